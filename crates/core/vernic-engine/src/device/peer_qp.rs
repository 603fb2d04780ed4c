//! A queue pair of another process of this host that does not answer: what that process says of it.
//!
//! Owns reading the queue pair out of a process's status text, the words for what is wrong with it,
//! and the place where an answer is kept. The process is asked by [`ask`], on a thread that lives
//! for one question: whoever moves packets never waits for another process.
//!
//! Called by the lane when an ACK timer has run out. Limits: one question at a time of a process,
//! [`PATIENCE`] for each, one a second for a queue pair ([`PAUSE_NANOS`]). A process tells of its
//! first thousand queue pairs.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use vernic_proto::{QpAttr, QpState, Time};
use vernic_wire::{Psn, Qpn};

use crate::support::threads;

/// How long a process is waited for, as by `vernic stat`: one that runs answers in a millisecond.
const PATIENCE: Duration = Duration::from_millis(250);

/// The least time between two questions about a queue pair: one second.
const PAUSE_NANOS: u64 = 1_000_000_000;

/// A peer's queue pair, as its process tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerQp {
    /// The queue pair that was asked for.
    pub qpn: Qpn,
    /// The process.
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    /// What is wrong with the queue pair.
    pub finding: PeerFinding,
}

/// What is wrong with a peer's queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerFinding {
    /// The process has no such queue pair.
    Missing,
    /// The queue pair is in Reset or Init.
    NotReady(QpState),
    /// The queue pair has failed, with its failure in words if the process tells it.
    Failed(Option<String>),
    /// The queue pair is connected to another one.
    Elsewhere(Qpn),
    /// The queue pair expects another first PSN than it was sent.
    OtherPsn {
        /// The PSN that it expects first.
        expected: Psn,
        /// The PSN that was sent first.
        sent: Psn,
    },
    /// The queue pair is as it should be, in this state.
    Ready(QpState),
}

impl fmt::Display for PeerQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, pid, program, finding } = self;
        if *finding == PeerFinding::Missing {
            return write!(
                f,
                "process {pid} ({program}) has no queue pair {qpn}: was it destroyed, or is the number wrong?"
            );
        }
        write!(f, "queue pair {qpn} of process {pid} ({program}) ")?;
        match finding {
            PeerFinding::Missing => Ok(()),
            PeerFinding::NotReady(state) => {
                write!(f, "is in {state:?}: it was never moved to RTR, from which on it receives")
            }
            PeerFinding::Failed(None) => f.write_str("is in Error"),
            PeerFinding::Failed(Some(why)) => write!(f, "is in Error, since {why}"),
            PeerFinding::Elsewhere(other) => {
                write!(f, "is connected to queue pair {other}, not to this one (dest_qp_num)")
            }
            PeerFinding::OtherPsn { expected, sent } => write!(
                f,
                "expects PSN {expected} first (rq_psn), and this one began with {sent} (sq_psn)"
            ),
            PeerFinding::Ready(state) => {
                write!(f, "is in {state:?} and connected to this one")
            }
        }
    }
}

impl PeerFinding {
    /// Reads what a status text says of a queue pair; `None` if it says nothing of it.
    fn read(text: &str, asked: &Question) -> Option<Self> {
        let number = asked.peer.value().to_string();
        let row = text.lines().find_map(|line| {
            let (qpn, rest) = line.strip_prefix("qp ")?.split_once(' ')?;
            (qpn == number).then_some(rest)
        })?;
        let mut words = row.split(' ').skip(1).map(|word| word.parse::<u32>().ok());
        let [state, dest, rq_psn] = [(); 3].map(|()| words.next().flatten());
        let state = QpState::ALL.iter().find(|known| Some(**known as u32) == state)?;
        Some(match state {
            QpState::Reset | QpState::Init => Self::NotReady(*state),
            QpState::Error => Self::Failed(failure(text, &number)),
            _ if dest? != asked.own.value() => Self::Elsewhere(Qpn::new(dest?)),
            // A PSN that was heard is right, whatever was set since.
            _ if !asked.heard && Psn::new(rq_psn?) != asked.first_psn => {
                Self::OtherPsn { expected: Psn::new(rq_psn?), sent: asked.first_psn }
            }
            state => Self::Ready(*state),
        })
    }
}

/// The failure of a queue pair in a status text.
fn failure(text: &str, number: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (qpn, why) = line.strip_prefix("failure\t")?.split_once('\t')?;
        // Another process chooses the words, and they go to a terminal.
        let plain = |c: char| if c.is_control() { '?' } else { c };
        // What its process said of this end is behind the cause.
        let cause = why.split("; ").next().unwrap_or_default();
        (qpn == number).then(|| cause.chars().map(plain).collect())
    })
}

/// What a process is asked.
struct Question {
    pid: u32,
    peer: Qpn,
    own: Qpn,
    first_psn: Psn,
    heard: bool,
}

impl Question {
    /// Asks the process, and returns what is to be told.
    fn ask(&self) -> Option<PeerQp> {
        let texts = vernic_io::status::ask_process(self.pid, PATIENCE).ok()?;
        let found = texts.iter().find_map(|text| PeerFinding::read(text, self));
        // One that tells of nothing may be too old, or have more queue pairs than it tells of.
        let tells_all = !texts.is_empty() && texts.iter().all(|text| tells_all(text));
        let finding = found.or_else(|| tells_all.then_some(PeerFinding::Missing))?;
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        let program = name.trim_end().replace(|c: char| c.is_control(), "?");
        Some(PeerQp { qpn: self.peer, pid: self.pid, program, finding })
    }
}

/// Whether a status text has all queue pairs of its device.
fn tells_all(text: &str) -> bool {
    let count = text.lines().find_map(|line| line.strip_prefix("resource qp "));
    let told = text.lines().filter(|line| line.starts_with("qp ")).count();
    count.and_then(|count| count.parse().ok()) == Some(told)
}

/// Whether a process is being asked.
static IS_ASKING: AtomicBool = AtomicBool::new(false);

/// The turn to ask a process. It ends when the value is dropped, also by a panic.
struct Turn(&'static AtomicBool);

impl Turn {
    /// Returns the turn; `None` while another thread has it.
    fn take(taken: &'static AtomicBool) -> Option<Self> {
        (!taken.swap(true, Ordering::Acquire)).then_some(Self(taken))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What the peer's process was asked last, and its answer once it has come.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    at: Time,
    /// Silences that were counted by then.
    timeouts: u64,
    answer: Arc<OnceLock<PeerQp>>,
}

impl Asked {
    /// Returns the answer, if it has come.
    pub(crate) fn answer(&self) -> Option<&PeerQp> {
        self.answer.get()
    }
}

/// Asks the process of a queue pair's peer about it, unless that was done a moment ago, no timeout
/// came since, or a process is being asked. Never waits.
#[cold]
pub(crate) fn ask(
    before: Option<&Asked>,
    (pid, own, attr): (u32, Qpn, &QpAttr),
    (timeouts, heard): (u64, bool),
    now: Time,
) -> Option<Asked> {
    let is_news =
        before.is_none_or(|asked| timeouts > asked.timeouts && now.since(asked.at) >= PAUSE_NANOS);
    // A process of another PID namespace cannot be found.
    if pid == 0 || !is_news {
        return None;
    }
    let turn = Turn::take(&IS_ASKING)?;
    let (peer, first_psn) = (attr.dest_qpn, attr.sq_psn);
    let question = Question { pid, peer, own, first_psn, heard };
    let answer = Arc::new(OnceLock::new());
    let place = answer.clone();
    // Where there is no thread, the turn ends with what the thread would have run.
    let _ = threads::spawn("vernic-asks", move || {
        let _turn = turn;
        if let Some(told) = question.ask() {
            let _ = place.set(told);
        }
    });
    Some(Asked { at: now, timeouts, answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Question = Question {
        pid: 7,
        peer: Qpn::new(5),
        own: Qpn::new(6),
        first_psn: Psn::new(90),
        heard: false,
    };

    fn read(rows: &str) -> Option<PeerFinding> {
        PeerFinding::read(&format!("device d\nresource qp 1\n{rows}\nend\n"), &ASKED)
    }

    #[test]
    fn what_is_wrong_with_the_peers_queue_pair_is_read_from_its_row() {
        assert_eq!(read("qp 5 2 1 0 0 0"), Some(PeerFinding::NotReady(QpState::Init)));
        assert_eq!(read("qp 5 2 3 9 90 0"), Some(PeerFinding::Elsewhere(Qpn::new(9))));
        let other = PeerFinding::OtherPsn { expected: Psn::new(91), sent: Psn::new(90) };
        assert_eq!(read("qp 5 2 3 6 91 0"), Some(other));
        assert_eq!(read("qp 5 2 3 6 90 0"), Some(PeerFinding::Ready(QpState::Rts)));
        let failed = PeerFinding::Failed(Some("no ?[2J".into()));
        assert_eq!(read("qp 5 2 6 6 90 0\nfailure\t5\tno \u{1b}[2J"), Some(failed));
        for row in ["", "qp 55 2 3 6 90 0", "qp 5 2 77 6 90 0", "qp 5 2 3", "qp 5", "qp 5 x y z"] {
            assert_eq!(read(row), None, "{row}");
        }
        let heard = Question { heard: true, ..ASKED };
        let ready = PeerFinding::read("qp 5 2 3 6 91 0\n", &heard);
        assert_eq!(ready, Some(PeerFinding::Ready(QpState::Rts)));
        assert!(tells_all("resource qp 1\nqp 5 2 3\n") && !tells_all("resource qp 2\nqp 5 2 3\n"));
    }

    #[test]
    fn a_thread_that_panics_while_it_asks_keeps_no_other_from_asking() {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let turn = Turn::take(&TAKEN).unwrap();
        assert!(Turn::take(&TAKEN).is_none());
        let asker = std::thread::spawn(move || {
            let _turn = turn;
            std::panic::resume_unwind(Box::new("a panic without words"));
        });
        assert!(asker.join().is_err());
        assert!(Turn::take(&TAKEN).is_some());
    }

    #[test]
    fn the_words_name_process_and_queue_pair() {
        let told = |finding| {
            let program = "ib_send_bw".into();
            PeerQp { qpn: Qpn::new(0x4c_4000), pid: 1234, program, finding }.to_string()
        };
        assert_eq!(
            told(PeerFinding::NotReady(QpState::Init)),
            "queue pair 0x4c4000 of process 1234 (ib_send_bw) is in Init: it was never moved to \
             RTR, from which on it receives"
        );
        assert!(told(PeerFinding::Missing).starts_with("process 1234 (ib_send_bw) has no queue"));
        assert!(told(PeerFinding::Failed(Some("x".into()))).ends_with("is in Error, since x"));
    }
}
