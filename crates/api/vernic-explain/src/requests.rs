//! What the requests of one direction tell: messages, packets sent again, packets that are missing.
//!
//! The order of PSNs is followed as a responder would (IBTA 9.7.2). A READ takes as many PSNs as
//! its answer has packets; where the path MTU is not known yet, between as many as there would be
//! with the largest and with the smallest MTU.

use std::collections::VecDeque;

use vernic_wire::{Kind, Mtu, Opcode, Position, Psn, Rkey};

use crate::frame::RocePacket;
use crate::log::Fate;

/// Most ranges of missing PSNs that are remembered.
const MAX_HOLES: usize = 64;
/// Most messages whose memory is remembered, to be named where one is refused.
const MAX_ASKED: usize = 32;
/// A step of PSNs beyond any window: the queue pair has begun anew.
const NEW_LIFE: i32 = 1 << 20;
/// Shortest time without packets that a requester may have taken for a loss: as a rule ACK timeouts
/// are longer, and round trips shorter.
const SILENCE_NS: u64 = 500_000;
/// A missing packet that comes after at most so many others was overtaken.
const MAX_OVERTAKING: u64 = 8;

/// Messages of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) kind: Kind,
    pub(crate) count: u64,
    /// Payload; of READs what was asked for.
    pub(crate) bytes: u64,
}

/// What a message asks of the responder's memory, or how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) psn: Psn,
    pub(crate) kind: Kind,
    /// Address, key, length; none for a SEND.
    pub(crate) memory: Option<(u64, Rkey, u32)>,
    /// Payload bytes so far.
    pub(crate) bytes: u64,
}

/// What an answer makes a requester send again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// A NAK for a missing packet.
    Nak,
    /// The time of an RNR NAK was over.
    Rnr,
}

/// Packets sent again, one burst after another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Again {
    pub(crate) packets: u64,
    pub(crate) bursts_after_nak: u64,
    pub(crate) bursts_after_rnr: u64,
    /// Where nothing was seen for [`SILENCE_NS`] before.
    pub(crate) bursts_after_silence: u64,
    pub(crate) largest_burst: u64,
    /// Most often that one PSN was sent again.
    pub(crate) most_of_one: u64,
}

/// PSNs that are missing.
#[derive(Clone, Copy, Debug)]
struct Hole {
    first: Psn,
    count: u32,
    /// Number of the packet behind it.
    seen_at: u64,
}

/// Requests of one direction.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) first: Option<Psn>,
    /// The PSN that comes next at the earliest, and so many more are possible.
    next: Psn,
    slack: u32,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) sent: Vec<Sent>,
    pub(crate) again: Again,
    /// Packets that came after later ones.
    pub(crate) overtaken: u64,
    /// Missing packets that were sent again.
    pub(crate) repaired: u64,
    holes: VecDeque<Hole>,
    missing: u64,
    /// Times that the PSNs began anew.
    pub(crate) new_lives: u64,
    pub(crate) longest_message: u64,
    /// Payload of a first or middle packet: the path MTU.
    pub(crate) mtu: Option<u32>,
    /// First PSN that is not acknowledged; none before an answer.
    acked: Option<Psn>,
    /// Whether an answer was about something that was sent.
    pub(crate) was_met: bool,
    /// What was asked for again and not sent yet.
    pub(crate) pending: Option<Cause>,
    burst: u64,
    /// The latest PSN that was sent again, and how often.
    repeated: Option<(Psn, u64)>,
    asked: VecDeque<Asked>,
}

impl Requests {
    /// Whether `psn` is one of those that were sent.
    pub(crate) fn covers(&self, psn: Psn) -> bool {
        self.first.is_some_and(|first| {
            let end = self.next.add(self.slack);
            psn.distance_from(first) < end.distance_from(first)
        })
    }

    /// Whether `psn` is one of those that were sent, or one of so many before and behind them: a
    /// capture may lack the beginning and the end.
    pub(crate) fn is_near(&self, psn: Psn, margin: u32) -> bool {
        self.first.is_some_and(|first| {
            let (begin, end) = (first.sub(margin), self.next.add(self.slack + margin));
            psn.distance_from(begin) < end.distance_from(begin)
        })
    }

    /// Whether something that was sent is not acknowledged.
    pub(crate) fn is_waiting(&self) -> bool {
        let unanswered = self.acked.or(self.first);
        unanswered.is_some_and(|psn| psn.is_before(self.next))
    }

    /// Whether nothing was ever acknowledged.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.acked.is_none()
    }

    /// PSNs that are missing: neither seen nor made up for.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// The message that has this PSN.
    pub(crate) fn asked_at(&self, psn: Psn) -> Option<&Asked> {
        self.asked.iter().rev().find(|asked| !psn.is_before(asked.psn))
    }

    /// The responder has all before `psn`.
    pub(crate) fn acknowledge(&mut self, psn: Psn) {
        self.was_met |= self.covers(psn) || self.covers(psn.sub(1));
        if self.acked.is_none_or(|acked| acked.is_before(psn)) {
            self.acked = Some(psn);
        }
    }

    /// Takes a packet of a reliable or an unreliable connection. `mtu` is the path MTU, if the
    /// other direction or the connection's messages say it; `quiet_ns` the time in which neither
    /// end sent anything.
    pub(crate) fn take(
        &mut self,
        packet: &RocePacket<'_>,
        mtu: Option<u32>,
        quiet_ns: u64,
    ) -> Fate {
        let info = packet.info();
        let psn = packet.bth.psn;
        self.packets += 1;
        if matches!(info.position, Position::First | Position::Middle) {
            self.mtu = Some(packet.payload_len);
        }
        let (least, most) = self.psns_of(packet, self.mtu.or(mtu));
        let ahead = psn.offset_from(self.next);
        let fate = if self.first.is_none() {
            self.begin(psn)
        } else if ahead.abs() > NEW_LIFE {
            self.new_lives += 1;
            self.begin(psn)
        } else if ahead < 0 {
            self.behind(psn)
        } else if ahead.unsigned_abs() > self.slack {
            self.jump(ahead.unsigned_abs() - self.slack);
            Fate::Ahead
        } else {
            Fate::New
        };
        if fate == Fate::Resent || fate == Fate::Repaired {
            self.again(psn, quiet_ns);
        } else {
            self.burst = 0;
        }
        let end = psn.add(least);
        if fate != Fate::Overtaken && self.next.is_before(end) {
            (self.next, self.slack) = (end, most - least);
        }
        if fate != Fate::Resent {
            self.count(packet, fate);
        }
        fate
    }

    /// Counts a datagram, whose PSNs are those of all destinations of its sender.
    pub(crate) fn take_datagram(&mut self, packet: &RocePacket<'_>) -> Fate {
        self.packets += 1;
        self.first.get_or_insert(packet.bth.psn);
        self.count(packet, Fate::New);
        Fate::New
    }

    fn begin(&mut self, psn: Psn) -> Fate {
        (self.first, self.next, self.slack) = (Some(psn), psn, 0);
        self.acked = None;
        self.holes.clear();
        Fate::New
    }

    /// How many PSNs a packet takes: at least, at most.
    fn psns_of(&self, packet: &RocePacket<'_>, mtu: Option<u32>) -> (u32, u32) {
        if packet.info().kind != Kind::ReadRequest {
            return (1, 1);
        }
        let len = packet.reth().map_or(0, |reth| reth.length);
        let packets = |mtu: u32| len.div_ceil(mtu.max(1)).clamp(1, Psn::HALF - 1);
        match mtu {
            Some(mtu) => (packets(mtu), packets(mtu)),
            None => (packets(Mtu::B4096.bytes()), packets(Mtu::B256.bytes())),
        }
    }

    /// A PSN so many beyond the next one.
    fn jump(&mut self, count: u32) {
        self.missing += u64::from(count);
        let first = self.next.add(self.slack);
        self.holes.push_back(Hole { first, count, seen_at: self.packets });
        if self.holes.len() > MAX_HOLES {
            self.holes.pop_front();
        }
    }

    /// A PSN before the next one.
    fn behind(&mut self, psn: Psn) -> Fate {
        let is_in = |hole: &Hole| psn.distance_from(hole.first) < hole.count;
        let Some(at) = self.holes.iter().position(is_in) else { return Fate::Resent };
        let Some(hole) = self.holes.remove(at) else { return Fate::Resent };
        let before = psn.distance_from(hole.first);
        let parts = [
            Hole { count: before, ..hole },
            Hole { first: psn.next(), count: hole.count - before - 1, ..hole },
        ];
        for part in parts.into_iter().rev().filter(|part| part.count != 0) {
            self.holes.insert(at, part);
        }
        self.missing -= 1;
        if self.packets - hole.seen_at <= MAX_OVERTAKING && self.pending.is_none() {
            self.overtaken += 1;
            Fate::Overtaken
        } else {
            self.repaired += 1;
            Fate::Repaired
        }
    }

    /// A packet was sent again.
    fn again(&mut self, psn: Psn, quiet_ns: u64) {
        match self.pending.take() {
            Some(Cause::Nak) => self.again.bursts_after_nak += 1,
            Some(Cause::Rnr) => self.again.bursts_after_rnr += 1,
            None if quiet_ns >= SILENCE_NS => self.again.bursts_after_silence += 1,
            // The same burst goes on, perhaps with new packets in between.
            None => {}
        }
        self.burst += 1;
        let again = &mut self.again;
        again.packets += 1;
        again.largest_burst = again.largest_burst.max(self.burst);
        let count = match self.repeated {
            Some((repeated, count)) if repeated == psn => count + 1,
            _ => 1,
        };
        self.repeated = Some((psn, count));
        again.most_of_one = again.most_of_one.max(count);
    }

    /// Counts messages and payload.
    fn count(&mut self, packet: &RocePacket<'_>, fate: Fate) {
        let info = packet.info();
        let payload = u64::from(packet.payload_len);
        self.bytes += payload;
        let begins = matches!(info.position, Position::First | Position::Only);
        let ends = matches!(info.position, Position::Last | Position::Only);
        let memory = packet
            .reth()
            .map(|reth| (reth.addr, reth.rkey, reth.length))
            .or_else(|| packet.atomic().map(|atomic| (atomic.addr, atomic.rkey, 8)));
        let psn = packet.bth.psn;
        // Behind a gap it may be another message than before.
        if begins || fate == Fate::Ahead {
            // In the order of PSNs: what was missing may come late.
            let before = self.asked.iter().rposition(|asked| asked.psn.is_before(psn));
            let asked = Asked { psn, kind: info.kind, memory, bytes: 0 };
            self.asked.insert(before.map_or(0, |at| at + 1), asked);
            if self.asked.len() > MAX_ASKED {
                self.asked.pop_front();
            }
        }
        if let Some(asked) = self.asked.iter_mut().rev().find(|asked| !psn.is_before(asked.psn)) {
            asked.bytes += payload;
            self.longest_message = self.longest_message.max(asked.bytes);
        }
        let asked_for = match memory {
            Some((_, _, len)) if info.kind == Kind::ReadRequest => u64::from(len),
            _ => payload,
        };
        let at = self.sent.iter().position(|sent| sent.kind == info.kind).unwrap_or_else(|| {
            self.sent.push(Sent { kind: info.kind, count: 0, bytes: 0 });
            self.sent.len() - 1
        });
        self.sent[at].bytes += asked_for;
        self.sent[at].count += u64::from(ends);
    }
}

/// Name of a kind of message.
pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Send => "SEND",
        Kind::Write => "WRITE",
        Kind::ReadRequest => "READ",
        Kind::CmpSwap => "COMPARE & SWAP",
        Kind::FetchAdd => "FETCH & ADD",
        Kind::Flush => "FLUSH",
        Kind::AtomicWrite => "ATOMIC WRITE",
        Kind::Resync => "RESYNC",
        Kind::ReadResponse => "READ response",
        Kind::Ack => "ACK",
        Kind::AtomicAck => "atomic ACK",
        Kind::Cnp => "CNP",
        Kind::Unknown => "unknown",
    }
}

/// Name of a packet in a diagram: `WRITE Middle`.
pub(crate) fn packet_name(opcode: Opcode) -> String {
    let info = opcode.info();
    let kind = kind_name(info.kind);
    match (info.kind, info.position) {
        (Kind::Send | Kind::Write | Kind::ReadResponse, position) => format!("{kind} {position:?}"),
        _ => kind.to_owned(),
    }
}
