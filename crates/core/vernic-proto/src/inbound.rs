//! What the responders of all services share: messages in progress, length rules, rights,
//! completions of receives.
//!
//! Pure helpers over a packet and a few values; called by `rc::responder`, `uc` and `ud`.

use vernic_wire::{HeaderSet, Kind, LocalRoute, Packet, Position, Psn, Rkey};

use crate::completion::{Completion, Tag, WcOpcode};
use crate::cx::Cx;
use crate::disposition::Disposition;
use crate::error::{AccessCheck, AccessFault, Cause, ErrorClass, Failure, WcStatus};
use crate::host::{Host, RemoteAccess};
use crate::wqe::{MAX_MESSAGE, RecvWqe};

/// The SEND or WRITE whose packets are arriving on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// None: the next packet must start one.
    None,
    /// A SEND.
    Send {
        /// Bytes placed so far.
        received: u32,
    },
    /// An RDMA WRITE.
    Write {
        /// Key of the region.
        rkey: Rkey,
        /// Where the next byte goes.
        addr: u64,
        /// Bytes still to come.
        remaining: u32,
        /// Bytes in all, by its RETH.
        length: u32,
    },
}

impl Message {
    /// Whether a packet of this kind and position can come next (IBTA 9.7.4.1.2).
    pub(crate) fn admits(&self, kind: Kind, position: Position) -> bool {
        match self {
            Self::None => position.starts(),
            Self::Send { .. } => kind == Kind::Send && !position.starts(),
            Self::Write { .. } => kind == Kind::Write && !position.starts(),
        }
    }

    /// The message that `packet` belongs to, before its payload is placed.
    pub(crate) fn at(&self, packet: &Packet<'_>) -> Self {
        let info = packet.info();
        match info.kind {
            Kind::Send if info.position.starts() => Self::Send { received: 0 },
            Kind::Write if info.position.starts() => {
                let reth = packet.reth().unwrap_or_default();
                let (remaining, length) = (reth.length, reth.length);
                Self::Write { rkey: reth.rkey, addr: reth.addr, remaining, length }
            }
            _ => *self,
        }
    }

    /// The message once `packet`, checked by [`check_length`](Self::check_length), is placed.
    pub(crate) fn after(&self, packet: &Packet<'_>) -> Self {
        if packet.info().position.ends() {
            return Self::None;
        }
        let len = packet.payload().len() as u32;
        match self.at(packet) {
            Self::None => Self::None,
            Self::Send { received } => Self::Send { received: received + len },
            Self::Write { rkey, addr, remaining, length } => Self::Write {
                rkey,
                addr: addr.wrapping_add(u64::from(len)),
                remaining: remaining - len,
                length,
            },
        }
    }

    /// Bytes of the whole message, `packet` being its last: what the completion reports.
    pub(crate) fn total(&self, packet: &Packet<'_>) -> u32 {
        match self.at(packet) {
            Self::None => 0,
            Self::Send { received } => received + packet.payload().len() as u32,
            Self::Write { length, .. } => length,
        }
    }

    /// Checks the payload of a SEND or WRITE packet: full packets but the last (IBTA 9.7.4.1.6),
    /// and a sum that fits the receive of `capacity` bytes, or is what the RETH announced.
    pub(crate) fn check_length(
        &self,
        packet: &Packet<'_>,
        mtu: u32,
        capacity: u64,
    ) -> Result<(), ErrorClass> {
        let position = packet.info().position;
        if !fits_position(position, packet.payload().len(), mtu) {
            return Err(ErrorClass::PacketLength);
        }
        let len = packet.payload().len() as u32;
        let fits = match self.at(packet) {
            Self::None => true,
            Self::Send { received } => send_fits(received, len, capacity),
            Self::Write { length, .. } if length > MAX_MESSAGE => false,
            Self::Write { remaining, .. } if position.ends() => len == remaining,
            Self::Write { remaining, .. } => len < remaining,
        };
        if fits { Ok(()) } else { Err(ErrorClass::MessageLength) }
    }
}

/// Whether `len` bytes more of a SEND fit into a receive of `capacity` bytes.
pub(crate) fn send_fits(received: u32, len: u32, capacity: u64) -> bool {
    let total = u64::from(received) + u64::from(len);
    total <= capacity && total <= u64::from(MAX_MESSAGE)
}

/// Packets before the last of a message are full, the last is not empty unless it is the only one.
fn fits_position(position: Position, len: usize, mtu: u32) -> bool {
    let mtu = mtu as usize;
    match position {
        Position::First | Position::Middle => len == mtu,
        Position::Last => (1..=mtu).contains(&len),
        Position::Only => len <= mtu,
    }
}

/// Whether the message that `packet` belongs to takes a receive at this packet: a SEND at its
/// first, a WRITE with immediate data at its last (IBTA 9.7.4.1.4).
pub(crate) fn takes_receive(packet: &Packet<'_>) -> bool {
    let info = packet.info();
    match info.kind {
        Kind::Send => info.position.starts(),
        Kind::Write => info.has(HeaderSet::IMM),
        _ => false,
    }
}

/// Whether a receive completes where the packet's message ends. One may have been taken for a
/// message that never came about, and waits for the next that takes one.
pub(crate) fn fills_receive(packet: &Packet<'_>) -> bool {
    packet.info().kind == Kind::Send || takes_receive(packet)
}

/// Memory that a request names, and what it wants to do there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// All of these are needed.
    pub(crate) needs: &'static [RemoteAccess],
}

impl Target {
    /// What `packet` names; `None` for SEND and for later packets of a WRITE.
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Self> {
        if let Some(atomic) = packet.atomic() {
            let (rkey, addr) = (atomic.rkey, atomic.addr);
            return Some(Self { rkey, addr, len: 8, needs: &[RemoteAccess::Atomic] });
        }
        let reth = packet.reth()?;
        let needs: &[_] = match packet.info().kind {
            Kind::ReadRequest => &[RemoteAccess::Read],
            Kind::Flush => flush_needs(packet),
            _ => &[RemoteAccess::Write],
        };
        Some(Self { rkey: reth.rkey, addr: reth.addr, len: u64::from(reth.length), needs })
    }

    /// The fault of this target at `check`.
    pub(crate) fn fault(&self, check: AccessCheck) -> AccessFault {
        AccessFault { check, key: self.rkey.value(), addr: self.addr, len: self.len }
    }

    /// Whether the queue pair itself grants the rights (`qp_access_flags`, IBTA 9.7.4.1.3).
    pub(crate) fn check_qp_rights(&self, access: u32) -> Result<(), AccessFault> {
        let granted = |need: &RemoteAccess| access & access_flag(*need) != 0;
        if self.needs.iter().all(granted) { Ok(()) } else { Err(self.fault(AccessCheck::QpRights)) }
    }

    /// Whether the region or window grants it. Zero bytes need no key (IBTA C9-88).
    pub(crate) fn check_region(&self, host: &mut impl Host) -> Result<(), AccessFault> {
        if self.len == 0 {
            return Ok(());
        }
        let Self { rkey, addr, len, needs } = *self;
        match needs {
            // All but a FLUSH need one.
            [need] => host.check_remote(rkey, addr, len, *need),
            _ => needs.iter().try_for_each(|need| host.check_remote(rkey, addr, len, *need)),
        }
    }
}

/// The rights that a FLUSH needs, by its placement bits; none where it asks for nothing we know.
fn flush_needs(packet: &Packet<'_>) -> &'static [RemoteAccess] {
    use RemoteAccess::{FlushGlobal, FlushPersistent};
    match packet.feth().unwrap_or_default().placement.bits() {
        1 => &[FlushGlobal],
        2 => &[FlushPersistent],
        3 => &[FlushGlobal, FlushPersistent],
        _ => &[],
    }
}

/// The bit of `ibv_access_flags` that grants a right.
const fn access_flag(need: RemoteAccess) -> u32 {
    match need {
        RemoteAccess::Write => 1 << 1,
        RemoteAccess::Read => 1 << 2,
        RemoteAccess::Atomic => 1 << 3,
        RemoteAccess::FlushGlobal => 1 << 8,
        RemoteAccess::FlushPersistent => 1 << 9,
    }
}

/// The extra that the last packet of a message carries.
pub(crate) fn tag_of(packet: &Packet<'_>) -> Tag {
    match (packet.imm(), packet.ieth()) {
        (Some(imm), _) => Tag::Imm(imm.0),
        (None, Some(ieth)) => Tag::Invalidated(ieth.rkey),
        (None, None) => Tag::None,
    }
}

/// The completion of a receive by `packet`: successful, of no bytes, from the connected peer. The
/// caller changes what differs.
pub(crate) fn recv_completion(cx: &Cx<'_>, recv: RecvWqe, packet: &Packet<'_>) -> Completion {
    let opcode = match packet.info().kind {
        Kind::Write => WcOpcode::RecvWriteImm,
        _ => WcOpcode::Recv,
    };
    Completion { opcode, ..send_completion(cx, recv, packet.solicited()) }
}

/// The same by a SEND.
pub(crate) fn send_completion(cx: &Cx<'_>, recv: RecvWqe, solicited: bool) -> Completion {
    Completion {
        wr_id: recv.wr_id,
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        tag: Tag::None,
        qpn: cx.qpn,
        src_qpn: cx.attr.dest_qpn,
        solicited,
        grh: false,
        route: LocalRoute::NONE,
        vendor_err: 0,
    }
}

/// Tells failure, completion and event of a receive whose own scatter list is invalid (UC, UD).
/// `completion` is that of the receive in progress, as if the request had been carried out.
#[cold]
pub(crate) fn fail_receive(
    psn: Psn,
    completion: Option<Completion>,
    fault: AccessFault,
    host: &mut impl Host,
) -> Disposition {
    let class = ErrorClass::ReceiveMemory;
    let row = class.row();
    let cause = Cause::Responder { class, fault: Some(fault) };
    let (status, wr_id) = (row.recv_status, completion.map(|completion| completion.wr_id));
    host.failure(Failure { status, wr_id, psn, cause });
    if let Some(completion) = completion {
        host.complete_recv(Completion { status, vendor_err: cause.vendor_err(), ..completion });
    }
    if let Some(event) = row.event {
        host.event(event);
    }
    Disposition::Nak(class)
}
