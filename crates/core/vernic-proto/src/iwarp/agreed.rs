//! What both ends of a connection agreed upon before its first FPDU.

use core::fmt;

use bitflags::bitflags;
use vernic_wire::iwarp::{DepthCode, MpaEnhanced};

/// Which end of the start-up: "The Initiator is the side that sends first in the MPA startup
/// sequence (the MPA Request Frame)" (RFC 5044, 7.1). It need not be the one that opened the TCP
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    /// Sends the request, and the first FPDU.
    Initiator,
    /// Sends the reply: "MPA Responder mode implementations MUST receive and validate at least one
    /// FPDU before sending any FPDUs or Markers" (RFC 5044, 7.1.2 (4)).
    Responder,
}

bitflags! {
    /// Kinds of ready-to-receive indication (RTR): the first message of the initiator, without
    /// payload, when the peers want no client and no server (RFC 6581, 9.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
    pub struct RtrSet: u8 {
        /// A SEND. It takes no receive at the responder.
        const SEND = 1;
        /// An RDMA WRITE.
        const WRITE = 2;
        /// An RDMA READ.
        const READ = 4;
    }
}

impl RtrSet {
    /// What a peer's data says; flags B, C and D "MUST be ignored" without A (RFC 6581, 9.2).
    pub(crate) fn of(data: &MpaEnhanced) -> Self {
        let mut set = Self::empty();
        set.set(Self::SEND, data.peer_to_peer && data.rtr_send);
        set.set(Self::WRITE, data.peer_to_peer && data.rtr_write);
        set.set(Self::READ, data.peer_to_peer && data.rtr_read);
        set
    }
    /// As flags of `data`; "If Control Flag A is set to 0, then Control Flags B, C, and D MUST also
    /// be set to 0" (RFC 6581, 9.2).
    pub(crate) fn into_flags(self, data: &mut MpaEnhanced) {
        data.peer_to_peer = !self.is_empty();
        data.rtr_send = self.contains(Self::SEND);
        data.rtr_write = self.contains(Self::WRITE);
        data.rtr_read = self.contains(Self::READ);
    }
    /// The one of them that an initiator sends. A WRITE first: it asks the responder for nothing.
    pub(crate) fn choice(self) -> Option<Self> {
        [Self::WRITE, Self::READ, Self::SEND].into_iter().find(|rtr| self.contains(*rtr))
    }
}

/// What both ends agreed upon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// This end.
    pub role: Role,
    /// Revision of MPA, 1 or 2.
    pub revision: u8,
    /// FPDUs carry a CRC that is checked, in both directions (RFC 5044, 7.1.1, "C").
    pub crc: bool,
    /// The peer requires markers in what is sent to it (RFC 5044, 7.1.1, "M").
    pub tx_markers: bool,
    /// This end requires markers in what it receives.
    pub rx_markers: bool,
    /// READs and atomics that the peer may have in flight.
    pub ird: u32,
    /// READs and atomics that this end may have in flight.
    pub ord: u32,
    /// The depths as the peer wrote them: "The responder and initiator MUST pass the peer's
    /// provided IRD and ORD values to the ULP" (RFC 6581, 9.1). `None` where they were not
    /// negotiated.
    pub peer_depths: Option<(DepthCode, DepthCode)>,
    /// Peer-to-peer: the initiator's is the RTR that it sends, the responder's those it has
    /// offered.
    pub rtr: RtrSet,
}

impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mpa rev={} ird={} ord={}", self.revision, self.ird, self.ord)?;
        let flags = [
            (self.crc, " crc"),
            (self.tx_markers, " tx_markers"),
            (self.rx_markers, " rx_markers"),
            (!self.rtr.is_empty(), " p2p"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, text)| f.write_str(text))
    }
}
