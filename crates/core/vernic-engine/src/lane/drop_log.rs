//! What the log says of packets that are dropped.
//!
//! Most drops are counted, and that is all. Some are what a mistake looks like at the receiving
//! end, while the sending end learns no more than that nothing answers. Those the log tells, with
//! the sender and the queue pair.
//!
//! A packet that comes too early, before its queue pair is in RTR, or too late, after it was
//! destroyed, is usual while programs begin and end. So such packets are told only if they still
//! come [`LASTING_NANOS`] after the first of them.
//!
//! Limits: one line of each reason in [`PAUSE_NANOS`], however many packets come.

use vernic_proto::{DropReason, QpState, Time};
use vernic_wire::Qpn;

/// How long packets must keep coming to the same queue pair before those are told that may only be
/// early or late: three times what a packet waits for its ACK by default (`timeout` 14, 67 ms).
const LASTING_NANOS: u64 = 200_000_000;

/// How long packets may stay away and count as the same ones: longer than the longest pause between
/// two retransmissions by default.
const FORGET_NANOS: u64 = 2_000_000_000;

/// The least time between two lines of one reason: one second.
const PAUSE_NANOS: u64 = 1_000_000_000;

/// Returns what a dropped packet says of a mistake, for a queue pair of this process in `state`;
/// `None` if it says nothing of one.
fn advice(reason: DropReason, state: Option<QpState>) -> Option<&'static str> {
    Some(match (reason, state) {
        (DropReason::BadState, Some(QpState::Reset)) => {
            "the queue pair is in Reset, and receives from RTR on: has its program still to connect it?"
        }
        (DropReason::BadState, Some(QpState::Init)) => {
            "the queue pair is in Init, and receives from RTR on: has its program still to connect it?"
        }
        (DropReason::UnknownQpn, None) => {
            "this program has no such queue pair: was it destroyed, or has the sender a wrong number?"
        }
        (DropReason::WrongService, _) => {
            "they are of another service than the queue pair: RC, UC or UD must be the same at both ends"
        }
        (DropReason::Pkey, _) => {
            "their partition key is not the queue pair's: do both ends use the same (pkey_index)?"
        }
        (DropReason::Qkey, _) => {
            "their queue key is not the queue pair's: does the sender use the receiver's (remote_qkey)?"
        }
        (DropReason::WrongSource, _) => {
            "the queue pair is connected to another address: has the sender another than it gave (sgid_index)?"
        }
        (DropReason::Length, _) => {
            "their length does not fit: a receive must be as long as the message, and for a datagram 40 bytes longer (GRH)"
        }
        (DropReason::PeerNotAllowed, _) => "the setting `peers` leaves this sender out",
        (DropReason::Icrc, _) => {
            "their ICRC is wrong: they were damaged, or a device on their way changed them"
        }
        _ => return None,
    })
}

/// What was told, and what may have to be. Belongs to the lane.
#[derive(Debug, Default)]
pub(in crate::lane) struct DropLog {
    /// When a line of each reason was last written.
    told: Vec<(DropReason, Time)>,
    /// The early or late packets of now: their queue pair, and the first and the latest of them.
    lasting: Option<(Qpn, Time, Time)>,
}

impl DropLog {
    /// Returns what to write of a packet that was dropped; `None` in most cases.
    pub(in crate::lane) fn note(
        &mut self,
        reason: DropReason,
        (qpn, state): (Qpn, Option<QpState>),
        now: Time,
    ) -> Option<&'static str> {
        let advice = advice(reason, state)?;
        let may_be_usual = matches!(reason, DropReason::BadState | DropReason::UnknownQpn);
        if (may_be_usual && !self.lasts(qpn, now)) || !self.is_due(reason, now) {
            return None;
        }
        Some(advice)
    }

    /// Whether early or late packets for a queue pair have come for long.
    fn lasts(&mut self, qpn: Qpn, now: Time) -> bool {
        let begun = match self.lasting {
            Some((same, begun, latest)) if same == qpn && now.since(latest) < FORGET_NANOS => begun,
            // Those of another queue pair do not end these.
            Some((_, _, latest)) if now.since(latest) < LASTING_NANOS => return false,
            _ => now,
        };
        self.lasting = Some((qpn, begun, now));
        now.since(begun) >= LASTING_NANOS
    }

    /// Whether a line of this reason may be written; then it counts as written.
    fn is_due(&mut self, reason: DropReason, now: Time) -> bool {
        match self.told.iter_mut().find(|(told, _)| *told == reason) {
            Some((_, at)) if now.since(*at) < PAUSE_NANOS => return false,
            Some((_, at)) => *at = now,
            None => self.told.push((reason, now)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const QPN: Qpn = Qpn::new(0x4c4000);

    fn notes(
        log: &mut DropLog,
        reason: DropReason,
        at: (Qpn, Option<QpState>),
        ms: &[u64],
    ) -> Vec<bool> {
        ms.iter().map(|ms| log.note(reason, at, Time(ms * MS)).is_some()).collect()
    }

    #[test]
    fn a_wrong_key_is_told_at_once_and_then_once_a_second() {
        let mut log = DropLog::default();
        let told = notes(&mut log, DropReason::Pkey, (QPN, None), &[5, 6, 900, 1004, 1005, 1006]);
        assert_eq!(told, [true, false, false, false, true, false]);
        assert!(log.note(DropReason::Qkey, (QPN, None), Time(0)).is_some(), "another reason");
    }

    #[test]
    fn packets_before_rtr_are_told_if_they_keep_coming() {
        let mut log = DropLog::default();
        let init = (QPN, Some(QpState::Init));
        let told = notes(&mut log, DropReason::BadState, init, &[0, 67, 134, 201, 268]);
        assert_eq!(told, [false, false, false, true, false]);
        // Much later it begins anew.
        let told = notes(&mut log, DropReason::BadState, init, &[9000, 9100, 9200]);
        assert_eq!(told, [false, false, true]);
    }

    #[test]
    fn packets_of_others_between_do_not_hide_those_that_last() {
        let mut log = DropLog::default();
        let [mine, other] = [QPN, Qpn::new(7)].map(|qpn| (qpn, Some(QpState::Reset)));
        let mut told = Vec::new();
        for ms in (0..300).step_by(50) {
            told.extend(notes(&mut log, DropReason::BadState, mine, &[ms]));
            assert_eq!(notes(&mut log, DropReason::BadState, other, &[ms + 1]), [false]);
        }
        assert_eq!(told, [false, false, false, false, true, false]);
    }

    #[test]
    fn what_is_usual_is_not_told() {
        let mut log = DropLog::default();
        for reason in DropReason::ALL {
            let is_known = advice(*reason, None).is_some();
            let told = log.note(*reason, (QPN, Some(QpState::Error)), Time(0)).is_some();
            assert!(is_known || !told, "{reason:?}");
        }
        let late = (QPN, Some(QpState::Error));
        assert_eq!(notes(&mut log, DropReason::BadState, late, &[0, 300, 600]), [false; 3]);
    }
}
