//! The frame that every measurement runs in, on both sides of the control connection.
//!
//! ```text
//! active                         passive
//!                  <-------------  Ready (once, when its device is open)
//!   Prepare(task)  ------------->  opens its end
//!                  <-------------  Endpoint
//!   Endpoint       ------------->  connects
//!                  <-------------  Connected
//!   Go(n)          ------------->
//!                  <-------------  Running
//!   ... the measured traffic ...
//!   Stop (if the task needs it) ->
//!                  <-------------  Done
//!   (Go again: warm-up, measurement)
//!   Finish         ------------->  closes its end
//! ```

use super::baselines;
use super::control::{Control, Message, unexpected};
use super::end::{Active, Extent, MAX_ITERATIONS, PATIENCE, Reading, Run, throughput};
use super::verbs::Verbs;
use crate::failure::{Failure, Outcome};
use crate::spec::{Baseline, Kind, Task};
use std::time::Duration;

/// The first warm-up run has so many.
const FIRST_ITERATIONS: u64 = 64;
/// The warm-up is extended until it lasts this share of the measurement.
const WARM_UP_SHARE: u32 = 10;

/// Measures `task` once, as the active side.
pub(crate) fn measure(
    control: &Control,
    verbs: &Verbs,
    task: &Task,
    extent: Extent,
) -> Outcome<Reading> {
    if let Task::Baseline { baseline: Baseline::Memcpy, size } = *task {
        return Ok(baselines::memcpy::measure(size, extent));
    }
    control.send(&Message::Prepare(*task))?;
    let peer = match control.receive()? {
        Message::Endpoint(info) => info,
        other => return Err(unexpected(&other)),
    };
    let (mut active, kind, size) = match task {
        Task::Verbs(spec) => (verbs.active(spec)?, spec.kind, spec.size),
        Task::Baseline { baseline, size } => {
            (baselines::active(control, *baseline, *size)?, baseline.kind(), *size)
        }
    };
    control.send(&Message::Endpoint(active.endpoint()))?;
    // Over TCP the passive side waits for this one to connect, else this one for the other.
    let is_first = matches!(task, Task::Verbs(spec) if spec.service.tcp().is_some());
    if is_first {
        active.connect(&peer)?;
    }
    control.expect(&Message::Connected)?;
    if !is_first {
        active.connect(&peer)?;
    }

    let iterations = warm_up(control, active.as_mut(), extent)?;
    let run = run_once(control, active.as_mut(), iterations)?;
    control.send(&Message::Finish)?;
    Ok(reading(task, kind, size, run))
}

/// Runs `active` until the warm-up is long enough; returns the iterations to measure.
fn warm_up(control: &Control, active: &mut dyn Active, extent: Extent) -> Outcome<u64> {
    let wanted = match extent {
        Extent::Iterations(count) => {
            run_once(control, active, (count / u64::from(WARM_UP_SHARE)).max(1))?;
            return Ok(count);
        }
        Extent::For(wanted) => wanted,
    };
    let mut iterations = FIRST_ITERATIONS;
    loop {
        let elapsed = run_once(control, active, iterations)?.elapsed.max(Duration::from_nanos(1));
        let fit = |span: Duration| {
            let ratio = span.as_secs_f64() / elapsed.as_secs_f64();
            // Both factors are positive and the result is clamped: the cast cannot wrap.
            ((iterations as f64 * ratio) as u64).clamp(1, MAX_ITERATIONS)
        };
        let enough = wanted / WARM_UP_SHARE;
        if elapsed >= enough / 2 || iterations == MAX_ITERATIONS {
            return Ok(fit(wanted));
        }
        // A first run is slow, so its rate is a low guess: at most 16 times more per step.
        iterations = fit(enough).clamp(iterations + 1, iterations * 16).min(MAX_ITERATIONS);
    }
}

fn run_once(control: &Control, active: &mut dyn Active, iterations: u64) -> Outcome<Run> {
    control.send(&Message::Go(iterations))?;
    control.expect(&Message::Running)?;
    let mut run = active.run(control, iterations)?;
    match control.receive()? {
        Message::Done { received } => run.messages = run.messages.or(Some(received)),
        other => return Err(unexpected(&other)),
    }
    match run.messages {
        Some(0) => Err(Failure::new(format!("not one of {iterations} messages arrived"))),
        _ => Ok(run),
    }
}

fn reading(task: &Task, kind: Kind, size: u64, run: Run) -> Reading {
    let round_trip = matches!(task, Task::Verbs(spec) if spec.is_round_trip());
    match kind {
        Kind::Latency => latency(run.samples, !round_trip),
        Kind::Throughput => throughput(size, run.messages.unwrap_or(0), run.elapsed),
    }
}

fn latency(mut samples: Vec<u64>, halve: bool) -> Reading {
    use super::stats::percentile;
    let scale = if halve { 2000.0 } else { 1000.0 };
    let mut at =
        |permille| percentile(&mut samples, permille).map_or(f64::NAN, |ns| ns as f64 / scale);
    Reading::Latency { p50_us: at(500), p99_us: at(990) }
}

/// Answers the active side until it says goodbye.
///
/// A failure is told to the active side before it is returned.
pub(crate) fn serve(control: &Control, verbs: &Verbs) -> Outcome<()> {
    control.send(&Message::Ready { max_mtu: verbs.max_mtu() })?;
    loop {
        match control.receive_within(PATIENCE)? {
            Message::Prepare(task) => {
                super::told(control, serve_task(control, verbs, &task))?;
            }
            Message::Bye => return Ok(()),
            other => return Err(unexpected(&other)),
        }
    }
}

fn serve_task(control: &Control, verbs: &Verbs, task: &Task) -> Outcome<()> {
    let mut passive = match task {
        Task::Verbs(spec) => verbs.passive(spec)?,
        Task::Baseline { baseline, size } => baselines::passive(control, *baseline, *size)?,
    };
    control.send(&Message::Endpoint(passive.endpoint()))?;
    match control.receive()? {
        Message::Endpoint(peer) => passive.connect(&peer)?,
        other => return Err(unexpected(&other)),
    }
    control.send(&Message::Connected)?;
    loop {
        match control.receive()? {
            Message::Go(iterations) => {
                control.send(&Message::Running)?;
                let received = passive.run(control, iterations)?;
                control.send(&Message::Done { received })?;
            }
            Message::Finish => return Ok(()),
            other => return Err(unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_pong_is_quoted_one_way_and_a_read_as_a_round_trip() {
        let samples = vec![4000; 10];
        assert_eq!(latency(samples.clone(), true), Reading::Latency { p50_us: 2.0, p99_us: 2.0 });
        assert_eq!(latency(samples, false), Reading::Latency { p50_us: 4.0, p99_us: 4.0 });
    }

    #[test]
    fn throughput_counts_bytes_and_messages_per_second() {
        let reading = throughput(1000, 2_000_000, Duration::from_secs(2));
        assert_eq!(reading, Reading::Throughput { gbytes_per_s: 1.0, mmsg_per_s: 1.0 });
    }
}
