//! One direction of a pair of queue pairs: what goes from an address to a queue pair.
//!
//! A connection is two streams. Requests of one end and responses to the requests of the other go
//! in one and the same stream, since both are to the same queue pair.

use std::net::IpAddr;

use vernic_wire::{Pkey, Qkey, Qpn, Service};

use crate::file::Direction;
use crate::frame::{Icrc, RocePacket};
use crate::log::{Event, Fate, Limits, Log, What};
use crate::requests::{Cause, Requests};
use crate::responses::Responses;
use crate::transit::{OnItsWay, Transit};

/// Names a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StreamKey {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) dest_qpn: Qpn,
    /// Sender of datagrams, whose headers name it.
    pub(crate) src_qpn: Option<Qpn>,
}

impl StreamKey {
    pub(crate) fn of(packet: &RocePacket<'_>) -> Self {
        let RocePacket { src, dst, bth, .. } = packet;
        let src_qpn = packet.deth().map(|deth| deth.src_qpn);
        Self { src: *src, dst: *dst, dest_qpn: bth.dest_qpn, src_qpn }
    }

    /// The opposite direction of datagrams.
    pub(crate) fn reversed(self) -> Option<Self> {
        let src_qpn = Some(self.dest_qpn);
        Some(Self { src: self.dst, dst: self.src, dest_qpn: self.src_qpn?, src_qpn })
    }
}

/// Where packets are seen: once as they leave, and perhaps again as they arrive.
///
/// A file that has both directions, and captures of both ends, have a packet twice. What is told is
/// about the first view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    file: usize,
    has_departures: bool,
}

impl View {
    pub(crate) fn new(file: usize, direction: Direction) -> Self {
        Self { file, has_departures: direction == Direction::Out }
    }

    /// Whether a packet belongs to the first view.
    pub(crate) fn is_first(&mut self, file: usize, direction: Direction) -> bool {
        match direction {
            Direction::Out => {
                self.has_departures = true;
                true
            }
            Direction::In => !self.has_departures,
            Direction::Unknown => file == self.file,
        }
    }
}

/// What an end waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitedFor {
    /// An answer by the receiver of this stream.
    AnswerOfReceiver,
    /// An answer by the sender of this stream.
    AnswerOfSender,
    /// The time that an RNR NAK asked for.
    RnrTimer,
    /// The programs: nothing was under way.
    Programs,
}

/// The longest time without a packet in either direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongestWait {
    pub(crate) nanos: u64,
    /// Time of the packet that ended it.
    pub(crate) until_ns: u64,
    pub(crate) waited_for: WaitedFor,
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) key: StreamKey,
    pub(crate) service: Service,
    pub(crate) view: View,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) packets: u64,
    pub(crate) marked: u64,
    pub(crate) cnps: u64,
    pub(crate) wrong_icrcs: u64,
    pub(crate) pkey: Pkey,
    /// The first Q_Key of datagrams, and whether there were others.
    pub(crate) qkey: Option<Qkey>,
    pub(crate) has_other_qkeys: bool,
    pub(crate) requests: Requests,
    pub(crate) responses: Responses,
    pub(crate) transit: Transit,
    pub(crate) longest_wait: Option<LongestWait>,
    pub(crate) log: Log,
    /// Index of the opposite direction.
    pub(crate) peer: Option<usize>,
    /// How often a peer was searched for in vain.
    pub(crate) searches: u32,
}

impl Stream {
    pub(crate) fn new(
        key: StreamKey,
        packet: &RocePacket<'_>,
        view: View,
        time_ns: u64,
        limits: Limits,
    ) -> Self {
        Self {
            key,
            service: packet.info().service,
            view,
            first_ns: time_ns,
            last_ns: time_ns,
            packets: 0,
            marked: 0,
            cnps: 0,
            wrong_icrcs: 0,
            pkey: packet.bth.pkey,
            qkey: packet.deth().map(|deth| deth.qkey),
            has_other_qkeys: false,
            requests: Requests::default(),
            responses: Responses::default(),
            transit: Transit::default(),
            longest_wait: None,
            log: Log::new(limits),
            peer: None,
            searches: 0,
        }
    }

    /// The path MTU, as far as packets of this direction tell.
    pub(crate) fn mtu(&self) -> Option<u32> {
        self.requests.mtu.or(self.responses.mtu)
    }

    /// Counts what every packet has.
    pub(crate) fn count(&mut self, packet: &RocePacket<'_>, time_ns: u64) {
        self.packets += 1;
        self.last_ns = self.last_ns.max(time_ns);
        self.marked += u64::from(packet.is_marked);
        self.wrong_icrcs += u64::from(packet.icrc == Icrc::Wrong);
        // A CNP may be the first packet of a stream.
        if self.service == Service::Cnp {
            self.service = packet.info().service;
        }
        let qkey = packet.deth().map(|deth| deth.qkey);
        self.has_other_qkeys |= qkey.is_some() && qkey != self.qkey;
    }

    /// Notes that a packet left, for its arrival.
    pub(crate) fn depart(&mut self, packet: &RocePacket<'_>, left_ns: u64) {
        self.transit.depart(OnItsWay { psn: packet.bth.psn, opcode: packet.bth.opcode, left_ns });
    }

    /// Takes the second view of a packet.
    pub(crate) fn arrive(&mut self, packet: &RocePacket<'_>, number: u64) {
        for lost in self.transit.arrive(packet.bth.psn, packet.bth.opcode) {
            self.note_lost(&lost, number);
        }
    }

    /// The capture has ended.
    pub(crate) fn end(&mut self, number: u64) {
        for lost in self.transit.end() {
            self.note_lost(&lost, number);
        }
    }

    /// Whether the service answers requests.
    pub(crate) fn is_reliable(&self) -> bool {
        matches!(self.service, Service::Rc | Service::Xrc)
    }

    /// Whether it is known when requests were answered: `back` has no answers, or they were found
    /// while the capture was read.
    pub(crate) fn is_followed(&self, back: Option<&Self>) -> bool {
        !self.requests.is_unanswered() || back.is_none_or(|back| back.responses.packets == 0)
    }

    fn is_waiting(&self) -> bool {
        self.is_reliable() && self.requests.is_waiting()
    }

    /// What is waited for before this stream's next packet.
    pub(crate) fn waits_for(&self, peer: Option<&Self>) -> WaitedFor {
        let is_rnr = |stream: &Self| stream.requests.pending == Some(Cause::Rnr);
        if is_rnr(self) || peer.is_some_and(is_rnr) {
            WaitedFor::RnrTimer
        } else if self.is_waiting() {
            WaitedFor::AnswerOfReceiver
        } else if peer.is_some_and(Self::is_waiting) {
            WaitedFor::AnswerOfSender
        } else {
            WaitedFor::Programs
        }
    }

    fn note_lost(&mut self, lost: &OnItsWay, number: u64) {
        let event = Event {
            time_ns: lost.left_ns,
            what: What::Lost,
            fate: Fate::New,
            is_marked: false,
            first: lost.psn,
            last: lost.psn,
            count: 1,
            bytes: 0,
        };
        self.log.push(event, number, self.log.latest());
    }
}
