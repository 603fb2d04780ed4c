//! What a device costs while nothing happens: memory and time per queue pair, processor time.

use crate::failure::{Doing, Failure, Outcome};
use serde::Serialize;
use std::time::{Duration, Instant};
use vernic::{Cq, Device, Pd, Qp, Rc, Rts};

/// Queue pairs opened at once; half of them are the peers of the other half.
const QPS: u32 = 10_000;
/// Entries of each ring of the queue pairs that show what an entry takes, and how many of those.
const MORE_ENTRIES: u32 = 9;
const MORE_QPS: u32 = 2_000;
/// How long the idle device is watched.
const IDLE: Duration = Duration::from_secs(1);

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Resources {
    /// Queue pairs opened.
    pub(crate) qps: u32,
    /// Seconds until all of them were connected.
    pub(crate) open_s: f64,
    /// Resident memory that each added, its rings of one entry included.
    pub(crate) bytes_per_qp: u64,
    /// What one entry of both rings takes of that.
    pub(crate) bytes_per_ring_entry: u64,
    /// Share of one core that the process used while its devices and queue pairs were idle.
    pub(crate) idle_cpu_percent: f64,
}

/// Opens [`QPS`] RC queue pairs with the smallest rings, connected in pairs, and watches them idle.
///
/// To be called before anything else has used memory: what was used and freed would hide what is
/// used now.
pub(crate) fn measure(device: &Device) -> Outcome<Resources> {
    let pd = device.alloc_pd().doing(|| "allocate a protection domain".into())?;
    let cq = device.create_cq(1024).doing(|| "create a completion queue".into())?;
    // The first pair brings up what all share.
    let mut qps = vec![pair(&pd, &cq, 1)?];
    let mut open = |count: u32, entries| -> Outcome<u64> {
        let before = resident_bytes()?;
        for _ in 0..count / 2 {
            qps.push(pair(&pd, &cq, entries)?);
        }
        Ok(resident_bytes()?.saturating_sub(before) / u64::from(count))
    };
    let began = Instant::now();
    let bytes_per_qp = open(QPS, 1)?;
    let open_s = began.elapsed().as_secs_f64();
    let idle_cpu_percent = idle_percent()?;
    let more = open(MORE_QPS, MORE_ENTRIES)?.saturating_sub(bytes_per_qp);
    let bytes_per_ring_entry = more / u64::from(MORE_ENTRIES - 1);
    Ok(Resources { qps: QPS, open_s, bytes_per_qp, bytes_per_ring_entry, idle_cpu_percent })
}

/// Two queue pairs with rings of so many entries, connected to each other.
fn pair(pd: &Pd, cq: &Cq, entries: u32) -> Outcome<[Qp<Rc, Rts>; 2]> {
    let create = || {
        let builder = pd.qp::<Rc>().send_cq(cq).recv_cq(cq);
        let builder = builder.max_send_wr(entries).max_recv_wr(entries).max_inline(0);
        builder.create().doing(|| "create a queue pair".into())
    };
    let (one, other) = (create()?, create()?);
    let (at_one, at_other) = (one.endpoint(), other.endpoint());
    // The errors name the attempt and the peer themselves.
    let refused = |error: vernic::ConnectError| Failure::new(error.to_string());
    let one = one.connect(at_other).map_err(refused)?;
    let other = other.connect(at_one).map_err(refused)?;
    Ok([one, other])
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> Outcome<u64> {
    let status =
        std::fs::read_to_string("/proc/self/status").doing(|| "read /proc/self/status".into())?;
    parse_resident(&status)
        .ok_or_else(|| Failure::new("/proc/self/status does not tell the resident memory"))
}

/// The line `VmRSS:   1234 kB` in bytes.
fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Time that all threads of this process have run.
fn processor_time() -> Outcome<Duration> {
    let attempt = || "read /proc/self/task".to_string();
    let mut total = Duration::ZERO;
    for entry in std::fs::read_dir("/proc/self/task").doing(attempt)? {
        let path = entry.doing(attempt)?.path().join("schedstat");
        // A thread that has just ended has no file any more.
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        let nanoseconds = text.split_whitespace().next().and_then(|word| word.parse().ok());
        total += Duration::from_nanos(nanoseconds.unwrap_or(0));
    }
    Ok(total)
}

/// Percent of a core that this process uses while it sleeps for [`IDLE`].
fn idle_percent() -> Outcome<f64> {
    // What was just done may have left work for background threads.
    std::thread::sleep(IDLE / 10);
    let before = processor_time()?;
    let began = Instant::now();
    std::thread::sleep(IDLE);
    let used = processor_time()?.saturating_sub(before);
    Ok(100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_found_among_the_lines_of_status() {
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    2048 kB\nVmData: 1 kB\n"), Some(2 << 20));
        assert_eq!(parse_resident("VmRSS: many kB"), None);
        assert_eq!(parse_resident(""), None);
        assert!(resident_bytes().unwrap() > 1 << 16);
    }

    #[test]
    fn processor_time_grows_while_the_process_runs() {
        let before = processor_time().unwrap();
        let mut sum = 0_u64;
        while processor_time().unwrap() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
