//! The rows of the opcode table.
//!
//! One line per opcode: constant, value, service, kind, position, extension headers in the order of
//! the wire, payload rule. The constants of [`Opcode`], the rows of [`OPCODES`] and the offsets all
//! come from these lines. Values and headers: IBTA table 38; XRC: annex A14; CNP: A17.9.3;
//! FLUSH and ATOMIC WRITE: annex A19. The payload of an ACK is ours: [`KeptMap`](crate::KeptMap).

use super::{
    BTH_LEN, HeaderOffsets, HeaderSet, Kind, Opcode, OpcodeInfo, PayloadRule, Position, Role,
    Service,
};
use crate::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, Xrceth};

// The payload of an ACK.
const _: () = assert!(crate::KeptMap::MAX_LEN == 512);

const UNKNOWN: OpcodeInfo = row(
    "UNKNOWN",
    Service::Unknown,
    Kind::Unknown,
    Position::Only,
    HeaderSet::empty(),
    PayloadRule::Any,
);

/// Builds one row; the offsets follow from the set, for the order of headers is always the same.
const fn row(
    name: &'static str,
    service: Service,
    kind: Kind,
    position: Position,
    headers: HeaderSet,
    payload: PayloadRule,
) -> OpcodeInfo {
    let role = match kind {
        Kind::ReadResponse | Kind::Ack | Kind::AtomicAck => Role::Response,
        Kind::Cnp | Kind::Unknown => Role::Neither,
        _ => Role::Request,
    };
    let (at, header_len) = layout(headers);
    OpcodeInfo { service, kind, position, role, headers, header_len, at, payload, name }
}

/// Places the headers of a set one after another behind the BTH.
const fn layout(headers: HeaderSet) -> (HeaderOffsets, u8) {
    const fn place(headers: HeaderSet, header: HeaderSet, len: usize, end: u8) -> (u8, u8) {
        if headers.contains(header) { (end, end + len as u8) } else { (0, end) }
    }
    let end = BTH_LEN as u8;
    let (rdeth, end) = place(headers, HeaderSet::RDETH, Rdeth::LEN, end);
    let (deth, end) = place(headers, HeaderSet::DETH, Deth::LEN, end);
    let (xrceth, end) = place(headers, HeaderSet::XRCETH, Xrceth::LEN, end);
    let (feth, end) = place(headers, HeaderSet::FETH, Feth::LEN, end);
    let (reth, end) = place(headers, HeaderSet::RETH, Reth::LEN, end);
    let (atomic, end) = place(headers, HeaderSet::ATOMIC, AtomicEth::LEN, end);
    let (aeth, end) = place(headers, HeaderSet::AETH, Aeth::LEN, end);
    let (atomic_ack, end) = place(headers, HeaderSet::ATOMIC_ACK, AtomicAckEth::LEN, end);
    let (imm, end) = place(headers, HeaderSet::IMM, ImmDt::LEN, end);
    let (ieth, end) = place(headers, HeaderSet::IETH, Ieth::LEN, end);
    (HeaderOffsets { rdeth, deth, xrceth, feth, reth, atomic, aeth, atomic_ack, imm, ieth }, end)
}

macro_rules! opcodes {
    ($($name:ident = $value:literal, $service:ident, $kind:ident, $position:ident,
       [$($header:ident)*], $rule:ident $(($len:literal))?;)*) => {
        impl Opcode {
            $(
                #[doc = concat!("`", stringify!($name), "`, ", stringify!($value), ".")]
                pub const $name: Self = Self($value);
            )*
        }

        /// All 256 opcodes. Use [`Opcode::info`] to read a row.
        pub static OPCODES: [OpcodeInfo; 256] = {
            let mut table = [UNKNOWN; 256];
            $(
                table[$value] = row(
                    stringify!($name),
                    Service::$service,
                    Kind::$kind,
                    Position::$position,
                    HeaderSet::empty()$(.union(HeaderSet::$header))*,
                    PayloadRule::$rule $(($len))?,
                );
            )*
            table
        };
    };
}

#[rustfmt::skip]
opcodes! {
    RC_SEND_FIRST = 0x00, Rc, Send, First, [], Any;
    RC_SEND_MIDDLE = 0x01, Rc, Send, Middle, [], Any;
    RC_SEND_LAST = 0x02, Rc, Send, Last, [], Any;
    RC_SEND_LAST_IMM = 0x03, Rc, Send, Last, [IMM], Any;
    RC_SEND_ONLY = 0x04, Rc, Send, Only, [], Any;
    RC_SEND_ONLY_IMM = 0x05, Rc, Send, Only, [IMM], Any;
    RC_WRITE_FIRST = 0x06, Rc, Write, First, [RETH], Any;
    RC_WRITE_MIDDLE = 0x07, Rc, Write, Middle, [], Any;
    RC_WRITE_LAST = 0x08, Rc, Write, Last, [], Any;
    RC_WRITE_LAST_IMM = 0x09, Rc, Write, Last, [IMM], Any;
    RC_WRITE_ONLY = 0x0a, Rc, Write, Only, [RETH], Any;
    RC_WRITE_ONLY_IMM = 0x0b, Rc, Write, Only, [RETH IMM], Any;
    RC_READ_REQUEST = 0x0c, Rc, ReadRequest, Only, [RETH], None;
    RC_READ_RESPONSE_FIRST = 0x0d, Rc, ReadResponse, First, [AETH], Any;
    RC_READ_RESPONSE_MIDDLE = 0x0e, Rc, ReadResponse, Middle, [], Any;
    RC_READ_RESPONSE_LAST = 0x0f, Rc, ReadResponse, Last, [AETH], Any;
    RC_READ_RESPONSE_ONLY = 0x10, Rc, ReadResponse, Only, [AETH], Any;
    RC_ACK = 0x11, Rc, Ack, Only, [AETH], UpTo(512);
    RC_ATOMIC_ACK = 0x12, Rc, AtomicAck, Only, [AETH ATOMIC_ACK], None;
    RC_CMP_SWAP = 0x13, Rc, CmpSwap, Only, [ATOMIC], None;
    RC_FETCH_ADD = 0x14, Rc, FetchAdd, Only, [ATOMIC], None;
    RC_SEND_LAST_INV = 0x16, Rc, Send, Last, [IETH], Any;
    RC_SEND_ONLY_INV = 0x17, Rc, Send, Only, [IETH], Any;
    RC_FLUSH = 0x1c, Rc, Flush, Only, [FETH RETH], None;
    RC_ATOMIC_WRITE = 0x1d, Rc, AtomicWrite, Only, [RETH], Exactly(8);

    UC_SEND_FIRST = 0x20, Uc, Send, First, [], Any;
    UC_SEND_MIDDLE = 0x21, Uc, Send, Middle, [], Any;
    UC_SEND_LAST = 0x22, Uc, Send, Last, [], Any;
    UC_SEND_LAST_IMM = 0x23, Uc, Send, Last, [IMM], Any;
    UC_SEND_ONLY = 0x24, Uc, Send, Only, [], Any;
    UC_SEND_ONLY_IMM = 0x25, Uc, Send, Only, [IMM], Any;
    UC_WRITE_FIRST = 0x26, Uc, Write, First, [RETH], Any;
    UC_WRITE_MIDDLE = 0x27, Uc, Write, Middle, [], Any;
    UC_WRITE_LAST = 0x28, Uc, Write, Last, [], Any;
    UC_WRITE_LAST_IMM = 0x29, Uc, Write, Last, [IMM], Any;
    UC_WRITE_ONLY = 0x2a, Uc, Write, Only, [RETH], Any;
    UC_WRITE_ONLY_IMM = 0x2b, Uc, Write, Only, [RETH IMM], Any;

    RD_SEND_FIRST = 0x40, Rd, Send, First, [RDETH DETH], Any;
    RD_SEND_MIDDLE = 0x41, Rd, Send, Middle, [RDETH DETH], Any;
    RD_SEND_LAST = 0x42, Rd, Send, Last, [RDETH DETH], Any;
    RD_SEND_LAST_IMM = 0x43, Rd, Send, Last, [RDETH DETH IMM], Any;
    RD_SEND_ONLY = 0x44, Rd, Send, Only, [RDETH DETH], Any;
    RD_SEND_ONLY_IMM = 0x45, Rd, Send, Only, [RDETH DETH IMM], Any;
    RD_WRITE_FIRST = 0x46, Rd, Write, First, [RDETH DETH RETH], Any;
    RD_WRITE_MIDDLE = 0x47, Rd, Write, Middle, [RDETH DETH], Any;
    RD_WRITE_LAST = 0x48, Rd, Write, Last, [RDETH DETH], Any;
    RD_WRITE_LAST_IMM = 0x49, Rd, Write, Last, [RDETH DETH IMM], Any;
    RD_WRITE_ONLY = 0x4a, Rd, Write, Only, [RDETH DETH RETH], Any;
    RD_WRITE_ONLY_IMM = 0x4b, Rd, Write, Only, [RDETH DETH RETH IMM], Any;
    RD_READ_REQUEST = 0x4c, Rd, ReadRequest, Only, [RDETH DETH RETH], None;
    RD_READ_RESPONSE_FIRST = 0x4d, Rd, ReadResponse, First, [RDETH AETH], Any;
    RD_READ_RESPONSE_MIDDLE = 0x4e, Rd, ReadResponse, Middle, [RDETH], Any;
    RD_READ_RESPONSE_LAST = 0x4f, Rd, ReadResponse, Last, [RDETH AETH], Any;
    RD_READ_RESPONSE_ONLY = 0x50, Rd, ReadResponse, Only, [RDETH AETH], Any;
    RD_ACK = 0x51, Rd, Ack, Only, [RDETH AETH], None;
    RD_ATOMIC_ACK = 0x52, Rd, AtomicAck, Only, [RDETH AETH ATOMIC_ACK], None;
    RD_CMP_SWAP = 0x53, Rd, CmpSwap, Only, [RDETH DETH ATOMIC], None;
    RD_FETCH_ADD = 0x54, Rd, FetchAdd, Only, [RDETH DETH ATOMIC], None;
    RD_RESYNC = 0x55, Rd, Resync, Only, [RDETH DETH], None;

    UD_SEND_ONLY = 0x64, Ud, Send, Only, [DETH], Any;
    UD_SEND_ONLY_IMM = 0x65, Ud, Send, Only, [DETH IMM], Any;

    XRC_SEND_FIRST = 0xa0, Xrc, Send, First, [XRCETH], Any;
    XRC_SEND_MIDDLE = 0xa1, Xrc, Send, Middle, [XRCETH], Any;
    XRC_SEND_LAST = 0xa2, Xrc, Send, Last, [XRCETH], Any;
    XRC_SEND_LAST_IMM = 0xa3, Xrc, Send, Last, [XRCETH IMM], Any;
    XRC_SEND_ONLY = 0xa4, Xrc, Send, Only, [XRCETH], Any;
    XRC_SEND_ONLY_IMM = 0xa5, Xrc, Send, Only, [XRCETH IMM], Any;
    XRC_WRITE_FIRST = 0xa6, Xrc, Write, First, [XRCETH RETH], Any;
    XRC_WRITE_MIDDLE = 0xa7, Xrc, Write, Middle, [XRCETH], Any;
    XRC_WRITE_LAST = 0xa8, Xrc, Write, Last, [XRCETH], Any;
    XRC_WRITE_LAST_IMM = 0xa9, Xrc, Write, Last, [XRCETH IMM], Any;
    XRC_WRITE_ONLY = 0xaa, Xrc, Write, Only, [XRCETH RETH], Any;
    XRC_WRITE_ONLY_IMM = 0xab, Xrc, Write, Only, [XRCETH RETH IMM], Any;
    XRC_READ_REQUEST = 0xac, Xrc, ReadRequest, Only, [XRCETH RETH], None;
    XRC_READ_RESPONSE_FIRST = 0xad, Xrc, ReadResponse, First, [AETH], Any;
    XRC_READ_RESPONSE_MIDDLE = 0xae, Xrc, ReadResponse, Middle, [], Any;
    XRC_READ_RESPONSE_LAST = 0xaf, Xrc, ReadResponse, Last, [AETH], Any;
    XRC_READ_RESPONSE_ONLY = 0xb0, Xrc, ReadResponse, Only, [AETH], Any;
    XRC_ACK = 0xb1, Xrc, Ack, Only, [AETH], UpTo(512);
    XRC_ATOMIC_ACK = 0xb2, Xrc, AtomicAck, Only, [AETH ATOMIC_ACK], None;
    XRC_CMP_SWAP = 0xb3, Xrc, CmpSwap, Only, [XRCETH ATOMIC], None;
    XRC_FETCH_ADD = 0xb4, Xrc, FetchAdd, Only, [XRCETH ATOMIC], None;
    XRC_SEND_LAST_INV = 0xb6, Xrc, Send, Last, [XRCETH IETH], Any;
    XRC_SEND_ONLY_INV = 0xb7, Xrc, Send, Only, [XRCETH IETH], Any;
    XRC_FLUSH = 0xbc, Xrc, Flush, Only, [XRCETH FETH RETH], None;
    XRC_ATOMIC_WRITE = 0xbd, Xrc, AtomicWrite, Only, [XRCETH RETH], Exactly(8);

    CNP = 0x81, Cnp, Cnp, Only, [], Exactly(16);
}
