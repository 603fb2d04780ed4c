//! What the responses of one direction tell: acknowledges, refusals, answers of READs and atomics.

use vernic_wire::{AethCode, Kind, NakCode, Position, Psn, RnrTimer};

use crate::frame::RocePacket;
use crate::log::{Fate, What};

/// Number of codes of a NAK, the reserved ones included (5 bits).
const NAK_CODES: usize = 32;
/// Number of RNR timers.
const RNR_TIMERS: usize = 32;

/// A refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nak {
    pub(crate) code: NakCode,
    /// PSN of what is refused, or is missing.
    pub(crate) psn: Psn,
}

/// Responses of one direction.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    pub(crate) packets: u64,
    /// Payload: what was read.
    pub(crate) bytes: u64,
    pub(crate) acks: u64,
    /// ACKs that acknowledge nothing new.
    pub(crate) duplicate_acks: u64,
    pub(crate) read_packets: u64,
    /// Packets of READ answers that were sent before.
    pub(crate) read_packets_again: u64,
    pub(crate) atomic_acks: u64,
    naks: [u64; NAK_CODES],
    rnr_naks: [u64; RNR_TIMERS],
    /// The first NAK that is not about a missing packet.
    pub(crate) refusal: Option<Nak>,
    /// The first NAK about a missing packet.
    pub(crate) first_sequence_nak: Option<Nak>,
    /// Whether the latest response is an RNR NAK.
    pub(crate) ends_in_rnr: bool,
    /// Payload of a first or middle packet: the path MTU.
    pub(crate) mtu: Option<u32>,
    highest: Option<Psn>,
    /// The PSN of the first response.
    pub(crate) first: Option<Psn>,
}

/// What a response says to the requester.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) what: What,
    pub(crate) fate: Fate,
    /// The first PSN that is not acknowledged by it.
    pub(crate) acknowledged: Psn,
}

impl Responses {
    /// The highest PSN that was acknowledged.
    pub(crate) fn highest(&self) -> Option<Psn> {
        self.highest
    }

    /// NAKs of a code.
    pub(crate) fn naks(&self, code: NakCode) -> u64 {
        self.naks[usize::from(code.0) % NAK_CODES]
    }

    /// NAKs by code, those that occurred.
    pub(crate) fn nak_counts(&self) -> impl Iterator<Item = (NakCode, u64)> + '_ {
        let counts = (0_u8..).zip(&self.naks).map(|(code, count)| (NakCode(code), *count));
        counts.filter(|(_, count)| *count != 0)
    }

    /// RNR NAKs by timer, those that occurred.
    pub(crate) fn rnr_counts(&self) -> impl Iterator<Item = (RnrTimer, u64)> + '_ {
        let counts = (0_u8..).zip(&self.rnr_naks).map(|(code, n)| (RnrTimer::new(code), *n));
        counts.filter(|(_, count)| *count != 0)
    }

    /// Takes a response.
    pub(crate) fn take(&mut self, packet: &RocePacket<'_>) -> Said {
        let info = packet.info();
        let psn = packet.bth.psn;
        self.packets += 1;
        self.first.get_or_insert(psn);
        self.ends_in_rnr = false;
        if matches!(info.position, Position::First | Position::Middle) {
            self.mtu = Some(packet.payload_len);
        }
        let what = What::Packet(packet.bth.opcode);
        let is_new = self.highest.is_none_or(|highest| highest.is_before(psn));
        let fate = if is_new { Fate::New } else { Fate::Resent };
        let acknowledged = psn.next();
        match info.kind {
            Kind::ReadResponse => {
                self.read_packets += 1;
                self.read_packets_again += u64::from(!is_new);
                self.bytes += u64::from(packet.payload_len);
            }
            Kind::AtomicAck => self.atomic_acks += 1,
            _ => return self.take_acknowledge(packet),
        }
        self.acknowledge(psn);
        Said { what, fate, acknowledged }
    }

    fn take_acknowledge(&mut self, packet: &RocePacket<'_>) -> Said {
        let psn = packet.bth.psn;
        let refused = |what| Said { what, fate: Fate::New, acknowledged: psn };
        match packet.aeth().map(|aeth| aeth.syndrome.decode()) {
            Some(AethCode::RnrNak(timer)) => {
                self.rnr_naks[usize::from(timer.code())] += 1;
                self.ends_in_rnr = true;
                refused(What::Rnr(timer))
            }
            Some(AethCode::Nak(code)) => {
                self.naks[usize::from(code.0) % NAK_CODES] += 1;
                let place = match code {
                    NakCode::PSN_SEQUENCE => &mut self.first_sequence_nak,
                    _ => &mut self.refusal,
                };
                place.get_or_insert(Nak { code, psn });
                refused(What::Nak(code))
            }
            // What no standard defines acknowledges nothing.
            Some(AethCode::Reserved(_)) => refused(What::Packet(packet.bth.opcode)),
            Some(AethCode::Ack { .. }) | None => {
                self.acks += 1;
                let is_new = self.highest.is_none_or(|highest| highest.is_before(psn));
                self.duplicate_acks += u64::from(!is_new);
                self.acknowledge(psn);
                // Repeated ACKs are answers to what was sent twice, and nothing goes wrong by them.
                let what = What::Packet(packet.bth.opcode);
                Said { what, fate: Fate::New, acknowledged: psn.next() }
            }
        }
    }

    fn acknowledge(&mut self, psn: Psn) {
        if self.highest.is_none_or(|highest| highest.is_before(psn)) {
            self.highest = Some(psn);
        }
    }
}
