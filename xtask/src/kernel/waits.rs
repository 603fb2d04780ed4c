//! `cargo xtask kernel --who-waits`: which end is the slow one when data goes to the kernel's
//! driver, and from it; and how fast data goes where packets are lost.
//!
//! A side that waits for the other is idle. So runs of bandwidth programs are watched from their
//! start to their end: what the guest's processor did (`/proc/stat` there), and how much processor
//! time our process took (what the system counts of children that have ended). Runs are long, so
//! that setting up counts little.

use std::fmt::Write as _;
use std::fs;

use super::case::Agreed;
use super::case::{Case, Expected, Fault, Place, Program};
use super::lab::Lab;
use super::links::Driver;
use super::pair;
use crate::Result;
use crate::conformance::Output;
use crate::pages::Part;

const PART: Part = Part {
    page: "conformance/kernel/README.md",
    begin: "<!-- who waits: begin (written by `cargo xtask kernel --who-waits --write`, do not edit) -->",
    end: "<!-- who waits: end -->",
};

/// Bytes of a message.
const MESSAGE_BYTES: u64 = 65_536;

/// Messages of a run: half a minute and more where the guest is emulated.
const MESSAGES: u64 = 10_000;

/// Messages of a run in which packets are lost.
const MESSAGES_WITH_LOSS: u64 = 2_000;

/// Clock ticks of `/proc`: the kernel's `USER_HZ`, 100 on every architecture that we run on.
const TICKS_PER_S: f64 = 100.0;

/// A run may take so long, seconds.
const LIMIT_S: u64 = 600;

/// What is run: program, its options, netdev MTU, whether the server is in the guest, what
/// Vernic's end does meanwhile, and what is done to packets.
const RUNS: [(&str, &str, u64, bool, &str, Fault); 10] = [
    ("ib_write_bw", "", 9000, true, "polls", Fault::None),
    ("ib_send_bw", "-e", 1500, true, "sleeps", Fault::None),
    ("ib_write_bw", "", 9000, false, "sleeps", Fault::None),
    ("ib_send_bw", "-e", 1500, false, "sleeps", Fault::None),
    ("ib_write_bw", "", 1500, true, "polls", Fault::Loss),
    ("ib_read_bw", "", 1500, true, "polls", Fault::Loss),
    ("ib_write_bw", "", 1500, true, "polls", Fault::Link),
    ("ib_read_bw", "", 1500, true, "polls", Fault::Link),
    ("ib_write_bw", "", 1500, false, "sleeps", Fault::Link),
    ("ib_read_bw", "", 1500, false, "sleeps", Fault::Link),
];

/// What the guest's processor did, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    all: f64,
    idle: f64,
    softirq: f64,
}

/// Runs all of them; with `write` the page is rewritten.
pub(super) fn run(lab: &mut Lab, write: bool) -> Result {
    let mut text = String::from(
        "| direction | program, and what Vernic's end does | netdev MTU | fault | MB/s, mean | the guest's processor is idle | \
         and in softirqs | processor time of Vernic's process |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (number, (program, options, mtu, to_kernel, does, fault)) in RUNS.into_iter().enumerate() {
        let case = case(program, options, mtu, to_kernel, fault)?;
        let (guest_before, ours_before) = (ticks(lab)?, own_ticks()?);
        let ended = pair::run(&case, number, lab)?;
        ended.outcome.map_err(|why| format!("{}: {why}\n{}", case.name(), ended.output))?;
        let (guest, ours) = (ticks(lab)?, own_ticks()? - ours_before);
        let all = (guest.all - guest_before.all).max(1.0);
        let share = |after: f64, before: f64| 100.0 * (after - before) / all;
        let (ours_s, took_s) = (ours / TICKS_PER_S, ended.time.as_secs_f64());
        let mean = mean(&ended.output).ok_or_else(|| format!("no mean in\n{}", ended.output))?;
        let shown = format!("{program} {options}");
        let shown = shown.trim_end();
        let direction = if to_kernel { "to-kernel" } else { "from-kernel" };
        let row = format!(
            "| {direction} | `{shown}`, {does} | {mtu} | {} | {mean:.1} | {:.1} % | {:.1} % | {ours_s:.2} s of {took_s:.0} s: {:.1} % |",
            fault.name(),
            share(guest.idle, guest_before.idle),
            share(guest.softirq, guest_before.softirq),
            100.0 * ours_s / took_s,
        );
        println!("{row}");
        // Writing to a String does not fail.
        let _ = writeln!(text, "{row}");
    }
    if write {
        let peer = lab.peer.description()?;
        let changed = PART.write(&format!("{text}\nPeer: {peer}."))?;
        println!("{} {}", PART.page, if changed { "is rewritten" } else { "was right" });
    }
    Ok(())
}

fn case(
    program: &'static str,
    options: &str,
    mtu: u64,
    to_kernel: bool,
    fault: Fault,
) -> Result<Case> {
    let is_it =
        |place: &Place| place.link.mtu == mtu && place.to_kernel == to_kernel && !place.is_ipv6;
    let place = Place::of(Driver::Rxe).into_iter().find(is_it);
    let place = place.ok_or_else(|| format!("there is no link of MTU {mtu}"))?;
    let space = if options.is_empty() { "" } else { " " };
    let messages = if fault == Fault::None { MESSAGES } else { MESSAGES_WITH_LOSS };
    let output = Output::Table { sizes: vec![MESSAGE_BYTES], iterations: Some(messages) };
    Ok(Case {
        program,
        kind: Program::Perftest,
        service: "RC",
        options: format!("-c RC{space}{options} -n {messages}"),
        fault,
        agreed: Agreed::Crc,
        place,
        expected: Expected::Output(output),
        in_ci: false,
        limit_s: LIMIT_S,
    })
}

/// What the guest's processor has done since it was booted.
fn ticks(lab: &mut Lab) -> Result<Ticks> {
    let line = lab.peer.guest.ask("grep '^cpu ' /proc/stat")?;
    of_line(&line).ok_or_else(|| format!("no line of /proc/stat: {line}"))
}

/// The line `cpu`: user, nice, system, idle, iowait, irq, softirq, and what a host stole.
fn of_line(line: &str) -> Option<Ticks> {
    let words: Option<Vec<f64>> =
        line.split_whitespace().skip(1).map(|word| word.parse().ok()).collect();
    let words = words?;
    let (idle, softirq) = (words.get(3)? + words.get(4)?, *words.get(6)?);
    Some(Ticks { all: words.iter().take(8).sum(), idle, softirq })
}

/// Processor time of children that have ended, theirs included, in clock ticks.
fn own_ticks() -> Result<f64> {
    let text =
        fs::read_to_string("/proc/self/stat").map_err(|e| format!("/proc/self/stat: {e}"))?;
    of_children(&text).ok_or_else(|| format!("no times of children: {text}"))
}

/// Of a line of `/proc/PID/stat`: fields 16 and 17, of which the first two are number and name.
fn of_children(text: &str) -> Option<f64> {
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split_whitespace().skip(13);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// The mean of a table of perftest's: the fourth number of its last row.
fn mean(output: &str) -> Option<f64> {
    let numbers = |line: &str| {
        let row: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        row.filter(|row| row.len() >= 5)
    };
    output.lines().rev().find_map(numbers).map(|row| row[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_out_of_what_the_system_counts() {
        let ticks = of_line("cpu  10 0 20 50 5 0 15 0 7 0").unwrap();
        assert_eq!(ticks, Ticks { all: 100.0, idle: 55.0, softirq: 15.0 });
        assert_eq!(of_line("cpu 1 2"), None);
        let stat = "7 (a) b) S 1 1 1 0 -1 0 0 0 0 0 1 2 30 40 20 0 1 0 99";
        assert_eq!(of_children(stat), Some(70.0));
        assert!(own_ticks().is_ok());
    }

    #[test]
    fn the_mean_is_the_fourth_number_of_the_last_row() {
        let text =
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      10000            27.11              26.66              0.000427
---------------------------------------------------------------------------------------";
        assert_eq!(mean(text), Some(26.66));
        assert_eq!(mean("nothing"), None);
    }

    #[test]
    fn every_run_has_a_link() {
        for (program, options, mtu, to_kernel, _, fault) in RUNS {
            let case = case(program, options, mtu, to_kernel, fault).unwrap();
            assert_eq!((case.place.link.mtu, case.place.to_kernel), (mtu, to_kernel));
        }
    }
}
