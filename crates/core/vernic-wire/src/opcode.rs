//! The opcode table: what each of the 256 values of BTH.OpCode means and which headers follow.
//!
//! Owns the only table of opcodes in Vernic. Everything that depends on an opcode (which headers to
//! parse and emit, whether a payload may follow, which state machine takes the packet, which opcode
//! a requester sends next) is read from a row; there is no second list and no branch on an opcode.
//! Called by every crate that handles packets; calls nothing. The rows are in `opcode/table.rs`;
//! clauses: IBTA 9.2.1 (opcode field), table 38 (opcodes and the headers that follow).

use core::fmt;

mod table;

pub use table::OPCODES;

/// Bytes of the BTH, behind which the extension headers stand: all that the table knows of it.
pub(crate) const BTH_LEN: usize = 12;

/// The opcode of a packet: three bits of service and five of operation (IBTA 9.2.1).
///
/// Any of the 256 values is valid data; those that no row defines have [`Kind::Unknown`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// What the table says about this opcode.
    #[inline]
    pub const fn info(self) -> &'static OpcodeInfo {
        &OPCODES[self.0 as usize]
    }
    /// The value of the field.
    #[inline]
    pub const fn value(self) -> u8 {
        self.0
    }
    /// Whether a row defines this opcode.
    #[inline]
    pub const fn is_known(self) -> bool {
        !matches!(self.info().kind, Kind::Unknown)
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_known() { f.pad(self.info().name) } else { write!(f, "opcode {:#04x}", self.0) }
    }
}

/// Transport service: which state machine a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram (no known implementation; parsed for captures).
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection (IBTA annex A14).
    Xrc,
    /// Congestion notification of RoCEv2 (IBTA A17.9.3).
    Cnp,
    /// Reserved or manufacturer specific.
    Unknown,
}

/// Operation, whatever its service and position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// SEND, also with immediate or with invalidate.
    Send,
    /// RDMA WRITE, also with immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also answers FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// Acknowledge: ACK, NAK or RNR NAK by the syndrome in its AETH.
    Ack,
    /// Answer to COMPARE & SWAP and FETCH & ADD.
    AtomicAck,
    /// COMPARE & SWAP of 8 bytes.
    CmpSwap,
    /// FETCH & ADD of 8 bytes.
    FetchAdd,
    /// RESYNC of reliable datagrams.
    Resync,
    /// FLUSH: make earlier writes visible or persistent (IBTA annex A19).
    Flush,
    /// ATOMIC WRITE of 8 bytes (IBTA annex A19).
    AtomicWrite,
    /// Congestion notification.
    Cnp,
    /// Not defined by any row.
    Unknown,
}

impl Kind {
    const COUNT: usize = Self::Unknown as usize + 1;
}

/// Place of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Position {
    /// First of two or more.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of two or more.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Of packet `index` (from 0) of a message of `count` packets (at least 1).
    pub const fn of(index: u32, count: u32) -> Self {
        match (index == 0, index + 1 >= count) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }
    /// Whether a message begins here: first or only.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }
    /// Whether a message ends here: last or only.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What the last packet of a message carries for the receiver's completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Tail {
    /// Nothing.
    None,
    /// Immediate data.
    Imm,
    /// An R_Key to invalidate.
    Inv,
}

/// Which end of a connection sends such packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Requester to responder.
    Request,
    /// Responder to requester.
    Response,
    /// Belongs to neither: CNP, unknown.
    Neither,
}

/// What may follow the headers, pad bytes not counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PayloadRule {
    /// Nothing.
    None,
    /// Any number of bytes; the path MTU and the message bound it, which the table does not know.
    Any,
    /// This many bytes.
    Exactly(u16),
    /// Up to this many bytes.
    UpTo(u16),
}

bitflags::bitflags! {
    /// Extension headers after the BTH.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct HeaderSet: u16 {
        /// RDMA extended transport header.
        const RETH = 1 << 0;
        /// ACK extended transport header.
        const AETH = 1 << 1;
        /// Atomic extended transport header.
        const ATOMIC = 1 << 2;
        /// Atomic ACK extended transport header.
        const ATOMIC_ACK = 1 << 3;
        /// Datagram extended transport header.
        const DETH = 1 << 4;
        /// Immediate data.
        const IMM = 1 << 5;
        /// Invalidate extended transport header.
        const IETH = 1 << 6;
        /// Reliable datagram extended transport header.
        const RDETH = 1 << 7;
        /// XRC extended transport header.
        const XRCETH = 1 << 8;
        /// FLUSH extended transport header.
        const FETH = 1 << 9;
    }
}

/// Where each extension header begins, in bytes from the BTH's first; 0 where it is absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "one field per header, each named as in HeaderSet")]
pub struct HeaderOffsets {
    pub rdeth: u8,
    pub deth: u8,
    pub xrceth: u8,
    pub feth: u8,
    pub reth: u8,
    pub atomic: u8,
    pub aeth: u8,
    pub atomic_ack: u8,
    pub imm: u8,
    pub ieth: u8,
}

/// One row of the opcode table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub kind: Kind,
    /// Place in the message.
    pub position: Position,
    /// Requester's or responder's.
    pub role: Role,
    /// Extension headers present.
    pub headers: HeaderSet,
    /// Bytes of BTH and extension headers, 12 to 52.
    pub header_len: u8,
    /// Where the extension headers are.
    pub at: HeaderOffsets,
    /// What may follow the headers.
    pub payload: PayloadRule,
    /// Name as in the constants of [`Opcode`]; `"UNKNOWN"` where no row defines the opcode.
    pub name: &'static str,
}

impl OpcodeInfo {
    /// Whether a requester sends it.
    #[inline]
    pub const fn is_request(&self) -> bool {
        matches!(self.role, Role::Request)
    }
    /// Whether a responder sends it.
    #[inline]
    pub const fn is_response(&self) -> bool {
        matches!(self.role, Role::Response)
    }
    /// Whether it carries all of `headers`.
    #[inline]
    pub const fn has(&self, headers: HeaderSet) -> bool {
        self.headers.contains(headers)
    }
    /// What it carries for the receiver's completion.
    #[inline]
    pub const fn tail(&self) -> Tail {
        if self.has(HeaderSet::IMM) {
            Tail::Imm
        } else if self.has(HeaderSet::IETH) {
            Tail::Inv
        } else {
            Tail::None
        }
    }
    /// Whether `len` bytes of payload, pad not counted, agree with the payload rule.
    #[inline]
    pub const fn payload_fits(&self, len: usize) -> bool {
        match self.payload {
            PayloadRule::Any => true,
            PayloadRule::None => len == 0,
            PayloadRule::Exactly(n) => len == n as usize,
            PayloadRule::UpTo(n) => len <= n as usize,
        }
    }
}

/// Opcodes by service, kind, position and tail; made from [`OPCODES`] at compile time. 0xFF, which
/// no service can define (manufacturer space), stands for none.
static BY_MEANING: [[[[u8; 3]; 4]; Kind::COUNT]; Service::Unknown as usize] = {
    let mut table = [[[[0xFF; 3]; 4]; Kind::COUNT]; Service::Unknown as usize];
    let mut code = 0;
    while code < 256 {
        let row = &OPCODES[code];
        if !matches!(row.kind, Kind::Unknown) {
            table[row.service as usize][row.kind as usize][row.position as usize]
                [row.tail() as usize] = code as u8;
        }
        code += 1;
    }
    table
};

fn lookup(service: Service, kind: Kind, position: Position, tail: Tail) -> Option<Opcode> {
    if matches!(service, Service::Unknown) {
        return None;
    }
    let code = BY_MEANING[service as usize][kind as usize][position as usize][tail as usize];
    if code == 0xFF { None } else { Some(Opcode(code)) }
}

/// The opcode that a requester of `service` puts on a packet, or `None` where the service has no
/// such operation, position or tail.
///
/// ```
/// use vernic_wire::opcode::{self, Kind, Opcode, Position, Service, Tail};
/// let last = opcode::request(Service::Rc, Kind::Send, Position::Last, Tail::Inv);
/// assert_eq!(last, Some(Opcode::RC_SEND_LAST_INV));
/// assert_eq!(opcode::request(Service::Uc, Kind::ReadRequest, Position::Only, Tail::None), None);
/// ```
#[inline]
pub fn request(service: Service, kind: Kind, position: Position, tail: Tail) -> Option<Opcode> {
    lookup(service, kind, position, tail).filter(|opcode| opcode.info().is_request())
}

/// The opcode that a responder of `service` puts on a packet, or `None` where there is none.
#[inline]
pub fn response(service: Service, kind: Kind, position: Position) -> Option<Opcode> {
    lookup(service, kind, position, Tail::None).filter(|opcode| opcode.info().is_response())
}

#[cfg(test)]
mod tests;
