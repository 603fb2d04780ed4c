//! What the machine itself does, in the same rounds as everything else.
//!
//! The two cores of a virtual machine may be threads of one core at one moment and cores far apart
//! at the next, as its host likes; then everything that two processes tell each other takes twice
//! as long, whoever carries it. Only figures of one round compare, and this says what the round was
//! like.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::median::median;
use super::setup::Setup;
use crate::Result;

/// What is measured.
pub(super) enum Probe {
    /// How long a word that one core writes takes to the other one that waits for it, in
    /// microseconds.
    CoreToCore,
    /// Copies of so many bytes between the same two places on the clients' core, in GB/s.
    Memcpy(usize),
}

/// Words there and back of a measurement, and of those that are timed together: their median, like
/// those of the programs, has nothing of the moments in which a core was another's.
const ROUND_TRIPS: u32 = 200_000;
const TIMED_TOGETHER: u32 = 100;
/// Bytes that are copied in one.
const COPIED: usize = 4 << 30;
/// Bytes of a page.
const PAGE: usize = 4096;

/// A cache line of its own, and that which a processor fetches along with it.
#[repr(align(128))]
#[derive(Default)]
struct Mailbox(AtomicU32);

impl Probe {
    pub(super) fn measure(&self, setup: &Setup) -> Result<f64> {
        match (self, setup.client_core, setup.server_core) {
            (Self::CoreToCore, Some(one), Some(other)) => core_to_core(one, other, ROUND_TRIPS),
            (Self::CoreToCore, ..) => Err("the ends have no cores of their own".into()),
            (Self::Memcpy(bytes), core, _) => on(core, || memcpy(*bytes, COPIED)),
        }
    }
}

/// What is in the box of who answers when nobody asks any more.
const NOBODY_ASKS: u32 = u32::MAX;

/// One way of a ping-pong of two threads that spin, each on its core, in microseconds.
fn core_to_core(one: u32, other: u32, round_trips: u32) -> Result<f64> {
    let (there, back) = (Mailbox::default(), Mailbox::default());
    let is = |mailbox: &Mailbox, number| mailbox.0.load(Ordering::Acquire) == number;
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            on(Some(other), || {
                back.0.store(u32::MAX, Ordering::Release);
                for number in 1..=round_trips {
                    while !is(&there, number) && !is(&there, NOBODY_ASKS) {}
                    back.0.store(number, Ordering::Release);
                }
            })
        });
        let asks = on(Some(one), || {
            // The other thread may fail to get to its core, and then says nothing.
            while !is(&back, u32::MAX) && !answers.is_finished() {}
            let (mut times, mut began) = (Vec::new(), Instant::now());
            for number in 1..=round_trips {
                there.0.store(number, Ordering::Release);
                while !is(&back, number) && !answers.is_finished() {}
                if number % TIMED_TOGETHER == 0 {
                    let us = began.elapsed().as_secs_f64() * 1e6;
                    times.push(us / f64::from(2 * TIMED_TOGETHER));
                    began = Instant::now();
                }
            }
            times
        });
        // Who asks may have failed to get to its core.
        there.0.store(NOBODY_ASKS, Ordering::Release);
        answers.join().map_err(|_| "a thread panicked")??;
        median(asks?).ok_or_else(|| "no word was timed".into())
    })
}

/// Copies `bytes` between two places until `all` are copied. Both begin at a page, as the buffers
/// do of programs that measure: at other distances some processors' copying is many times slower.
fn memcpy(bytes: usize, all: usize) -> f64 {
    let (source, mut target) = (vec![0x5a_u8; bytes + PAGE], vec![0_u8; bytes + PAGE]);
    let (from, to) = (source.as_ptr().align_offset(PAGE), target.as_ptr().align_offset(PAGE));
    let (source, target) = (&source[from..from + bytes], &mut target[to..to + bytes]);
    target.copy_from_slice(black_box(source));
    let copies = (all / bytes).max(1);
    let began = Instant::now();
    for _ in 0..copies {
        target.copy_from_slice(black_box(source));
        black_box(&mut *target);
    }
    (copies * bytes) as f64 / 1e9 / began.elapsed().as_secs_f64()
}

/// Runs `work` on a thread of its own, on this core if there is one.
fn on<T: Send>(core: Option<u32>, work: impl FnOnce() -> T + Send) -> Result<T> {
    let pinned = move || {
        if let Some(core) = core {
            let mut set = CpuSet::new();
            let bound = set.set(core as usize);
            bound
                .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
                .map_err(|e| format!("core {core}: {e}"))?;
        }
        Ok(work())
    };
    let ended = std::thread::scope(|scope| scope.spawn(pinned).join());
    ended.map_err(|_| "a thread panicked")?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_copies_have_a_speed() {
        let speed = on(Some(0), || memcpy(4096, 1 << 20)).unwrap();
        assert!(speed > 0.0 && speed.is_finite(), "{speed}");
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
            let us = core_to_core(0, 1, 1000).unwrap();
            assert!(us > 0.0 && us.is_finite(), "{us}");
        }
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        assert!(on(Some(1000), || ()).unwrap_err().contains("core 1000"));
        assert!(core_to_core(0, 1000, 1000).is_err());
        assert!(core_to_core(1000, 0, 1000).is_err());
    }
}
