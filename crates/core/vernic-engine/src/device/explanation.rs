//! Why a queue pair failed, in values and in words.
//!
//! An open queue pair keeps its failure itself. The failure of a queue pair that was reset or
//! destroyed is kept by the device in [`PastFailures`], since applications may ask later about
//! completions that were polled before.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use vernic_io::TxPath;
use vernic_proto::{Cause, Failure};
use vernic_wire::{Qpn, Service};

use crate::device::peer_end::PeerEnd;
use crate::device::peer_qp::PeerQp;

/// An explanation why a queue pair failed, with its peer: "RETRY_EXC" in words.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The queue pair.
    pub qpn: Qpn,
    /// The service of the queue pair.
    pub service: Service,
    /// The path to the peer, of connected services.
    pub path: Option<TxPath>,
    /// The peer's queue pair, of connected services.
    pub peer_qpn: Option<Qpn>,
    /// The connection of an iWARP queue pair: our own address and the peer's.
    pub stream: Option<(SocketAddr, SocketAddr)>,
    /// The failure itself.
    pub failure: Failure,
    /// Circumstances that may have contributed.
    pub circumstances: Circumstances,
}

/// Facts about this process and host that may have caused a failure. Each is written as "; ...",
/// and as nothing if it is absent. The end of the peer is a part of the cause
/// ([`with_cause`](Self::with_cause)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// The netdev, or the port of a fabric's host, if it is down: no packet passes. What it is, and
    /// where to look.
    pub down: Option<String>,
    /// The operating system's error, if the kernel last refused packets on this path. Then the
    /// kernel, not the peer, may be the reason.
    pub refused: Option<i32>,
    /// The setting `fault`, if this process damages its packets on purpose, and packets were
    /// missed.
    pub faults: Option<String>,
    /// Seconds after which a silent host is given up, if one was given up: the setting
    /// `iwarp_peer_timeout_s`.
    pub patience_s: Option<u32>,
    /// Least time that an answer is waited for, in microseconds, if the queue pair's `timeout` asks
    /// for less: the setting `ack_timeout_floor_us`.
    pub floor_us: Option<u64>,
    /// The peer's process, if it is a process of this host that is still there.
    pub live_peer: Option<LivePeer>,
    /// The peer's queue pair, if it is of a process of this host that has told of it.
    pub peer_qp: Option<PeerQp>,
    /// What is known of the end of a peer of this host that answers no more.
    pub peer_end: Option<PeerEnd>,
    /// What else may keep packets from a peer, by the device's transport, if the peer has never
    /// answered.
    pub silence: Option<String>,
}

/// A process of this host that is there and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivePeer {
    /// The process id; 0 if the process is of a PID namespace that cannot be seen.
    pub pid: u32,
    /// Whether the process is stopped, by a signal or a debugger.
    pub is_stopped: bool,
    /// Seconds for which the process is waited for: the setting `live_peer_timeout_s`.
    pub patience_s: u32,
}

impl LivePeer {
    /// Returns the process as it is now.
    pub(crate) fn look(pid: u32, patience_s: u32) -> Self {
        // The state comes after the name, which may hold any character.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        Self { pid, is_stopped: state.starts_with(['T', 't']), patience_s }
    }
}

impl fmt::Display for LivePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, is_stopped, patience_s } = *self;
        match pid {
            0 => f.write_str("its process, of another PID namespace, is there"),
            _ if is_stopped => write!(f, "its process {pid} is stopped (kill -CONT {pid})"),
            _ => write!(f, "its process {pid} is alive, and stalled or short of cores"),
        }?;
        let setting = "live_peer_timeout_s (VERNIC_LIVE_PEER_TIMEOUT_S)";
        write!(f, ": the wait is {patience_s} s, {setting}")
    }
}

impl Circumstances {
    /// Returns the cause in words, with what is known of the peer's end, and the circumstances.
    pub fn with_cause<'a>(&'a self, cause: &'a Cause) -> impl fmt::Display + 'a {
        WithCause { cause, circumstances: self }
    }
}

/// A cause with its circumstances.
struct WithCause<'a> {
    cause: &'a Cause,
    circumstances: &'a Circumstances,
}

impl fmt::Display for WithCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, circumstances } = self;
        let end = circumstances.peer_end.as_ref().map(|end| end as &dyn fmt::Display);
        write!(f, "{}{circumstances}", cause.with_end(end))
    }
}

impl fmt::Display for Circumstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            down, refused, faults, patience_s, floor_us, live_peer, peer_qp, silence, ..
        } = self;
        if let Some(peer_qp) = peer_qp {
            write!(f, "; {peer_qp}")?;
        }
        if let Some(silence) = silence {
            write!(f, "; {silence}")?;
        }
        if let Some(down) = down {
            write!(f, "; {down}")?;
        }
        if let Some(errno) = *refused {
            let error = std::io::Error::from_raw_os_error(errno);
            write!(f, "; this host's kernel refused packets on this path: {error}")?;
        }
        if let Some(seconds) = patience_s {
            write!(
                f,
                "; {seconds} s of silence are allowed: iwarp_peer_timeout_s (VERNIC_IWARP_PEER_TIMEOUT_S)"
            )?;
        }
        if let Some(floor_us) = floor_us {
            write!(
                f,
                "; the wait for each answer was {floor_us} us, the floor of timeout: ack_timeout_floor_us (VERNIC_ACK_TIMEOUT_FLOOR_US)"
            )?;
        }
        if let Some(live_peer) = live_peer {
            write!(f, "; {live_peer}")?;
        }
        if let Some(faults) = faults {
            write!(f, "; this process injects faults: fault (VERNIC_FAULT) is set to {faults}")?;
        }
        Ok(())
    }
}

/// Failures of queue pairs that were reset or destroyed since, the latest [`MAX_PAST`].
#[derive(Debug, Default)]
pub(crate) struct PastFailures(VecDeque<Explanation>);

/// Largest number of past failures. It is enough for an application that examines its completions
/// soon, and bounds the memory of one that makes queue pairs fail by the thousand.
const MAX_PAST: usize = 64;

impl PastFailures {
    /// Keeps an explanation, in place of an earlier one of the same number.
    pub(crate) fn keep(&mut self, explanation: Explanation) {
        self.forget(explanation.qpn);
        if self.0.len() == MAX_PAST {
            self.0.pop_front();
        }
        self.0.push_back(explanation);
    }

    /// Forgets the explanation of a number that has a new queue pair.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.0.retain(|past| past.qpn != qpn);
    }

    pub(crate) fn find(&self, qpn: Qpn) -> Option<&Explanation> {
        self.0.iter().find(|past| past.qpn == qpn)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { status, wr_id, psn, cause } = &self.failure;
        write!(f, "{:?} {}", self.service, self.qpn)?;
        if let (Some(path), Some(peer)) = (&self.path, self.peer_qpn) {
            write!(f, " ({} -> {}, peer {peer})", path.local().to_ip(), path.destination())?;
        }
        if let Some((local, peer)) = self.stream {
            write!(f, " ({local} -> {peer})")?;
        }
        write!(f, " failed with {status:?}")?;
        if let Some(wr_id) = wr_id {
            write!(f, " at work request {wr_id}")?;
        }
        write!(f, ", PSN {psn}: {}", self.circumstances.with_cause(cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vernic_proto::WcStatus;
    use vernic_wire::Psn;

    fn explanation(qpn: u32, cause: Cause) -> Explanation {
        let status = WcStatus::RetryExceeded;
        Explanation {
            qpn: Qpn::new(qpn),
            service: Service::Rc,
            path: None,
            peer_qpn: None,
            stream: None,
            failure: Failure { status, wr_id: None, psn: Psn::new(0), cause },
            circumstances: Circumstances::default(),
        }
    }

    #[test]
    fn circumstances_are_told_behind_the_cause() {
        let mut failed = explanation(1, Cause::AckTimeout { tries: 8, waited: 1, heard: true });
        let alone = failed.to_string();
        failed.circumstances = Circumstances {
            silence: Some("or a firewall".into()),
            down: Some("eth7 is down".into()),
            refused: Some(101),
            faults: Some("loss=0.5".into()),
            patience_s: Some(7),
            floor_us: Some(8000),
            live_peer: Some(LivePeer { pid: 42, is_stopped: true, patience_s: 30 }),
            peer_qp: None,
            peer_end: None,
        };
        let text = failed.to_string();
        let told = text.strip_prefix(&alone).unwrap();
        let faults = "fault (VERNIC_FAULT) is set to loss=0.5";
        let floor = "was 8000 us, the floor";
        let stopped = "; its process 42 is stopped (kill -CONT 42): the wait is 30 s";
        let seconds = "; 7 s of silence";
        let parts =
            ["; or a firewall; eth7 is down", "refused packets", faults, seconds, floor, stopped];
        for part in parts {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn what_is_known_of_the_peers_end_replaces_what_may_have_become_of_it() {
        let mut failed = explanation(1, Cause::AckTimeout { tries: 8, waited: 1, heard: true });
        assert!(failed.to_string().contains("may have died"));
        failed.circumstances.peer_end = Some(PeerEnd::Left { pid: 42, before_ms: Some(7) });
        let text = failed.to_string();
        assert!(text.contains("; it answered earlier, and its process 42"), "{text}");
        assert!(!text.contains("may have died"), "{text}");
    }

    #[test]
    fn the_latest_failures_are_kept_one_for_each_number() {
        let mut past = PastFailures::default();
        for n in 0..=MAX_PAST as u32 {
            past.keep(explanation(n, Cause::BadResponse("first")));
        }
        assert!(past.find(Qpn::new(0)).is_none());
        past.keep(explanation(9, Cause::BadResponse("second")));
        assert_eq!(past.0.len(), MAX_PAST);
        let kept = past.find(Qpn::new(9)).unwrap();
        assert_eq!(kept.failure.cause, Cause::BadResponse("second"));
        past.forget(Qpn::new(9));
        assert!(past.find(Qpn::new(9)).is_none());
    }
}
