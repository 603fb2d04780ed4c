//! The one table of what ends an iWARP stream: violation -> Terminate code -> what happens to the
//! receive in progress -> asynchronous event (RFC 5040, 7; RFC 5041, 7.1, 7.2; RFC 5044, 8; RFC
//! 7306, 8.2).
//!
//! And the way back: which status a Terminate that was received gives to the request that it names.

use core::fmt;

use vernic_wire::iwarp::TermCode;

use super::access::{AccessCheck, AccessFault};
use super::status::WcStatus;
use crate::event::QpEvent;

/// Why a stream is ended with a Terminate. Discriminants appear in `vendor_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Violation {
    /// The CRC of an FPDU.
    Crc = 1,
    /// A marker that does not point to its FPDU.
    Marker = 2,
    /// A tagged segment with a key that nobody has, or that does not permit to be written. RFC 5041
    /// has no code for rights: "The STag has an associated buffer that allows Placement of the
    /// payload" (RFC 5041, 7.1) is what fails.
    TaggedStag = 3,
    /// A tagged segment outside of its buffer, or not where its READ goes on.
    TaggedBounds = 4,
    /// A tagged segment with a key of another protection domain or queue pair.
    TaggedStream = 5,
    /// A tagged segment whose offset and length exceed 64 bits.
    TaggedWrap = 6,
    /// A tagged segment of another DDP version.
    TaggedVersion = 7,
    /// A queue that does not exist.
    Queue = 8,
    /// A message for which no receive is posted, or more READs and atomics at once than were
    /// agreed.
    NoBuffer = 9,
    /// A message out of order in its queue.
    Msn = 10,
    /// A segment out of order in its message.
    Offset = 11,
    /// A message longer than its receive, or than the header that it is.
    TooLong = 12,
    /// An untagged segment of another DDP version.
    UntaggedVersion = 13,
    /// A READ or atomic on a key that nobody has.
    RemoteStag = 14,
    /// A READ or atomic outside of its buffer.
    RemoteBounds = 15,
    /// A READ or atomic on memory, or through a queue pair, that does not grant the right.
    RemoteAccess = 16,
    /// A READ or atomic on a key of another protection domain or queue pair.
    RemoteStream = 17,
    /// A READ whose offset and length exceed 64 bits.
    RemoteWrap = 18,
    /// The key of a SEND with invalidate cannot be invalidated.
    Invalidate = 19,
    /// Another RDMAP version.
    Version = 20,
    /// An opcode that nobody defined, is not supported, or cannot come now.
    Opcode = 21,
    /// An atomic at an address that is not a multiple of 8.
    Misaligned = 22,
    /// A segment too short for its headers, or a message that ends too early.
    Length = 23,
    /// The receive's own scatter list is invalid: this side's fault.
    ReceiveMemory = 24,
    /// Local memory of a send request is invalid: this side's fault.
    SendMemory = 25,
    /// Something that is nobody's fault but this end's.
    Local = 26,
}

/// What a violation means at this end.
#[derive(Clone, Copy, Debug)]
pub struct ViolationRow {
    /// The violation.
    pub violation: Violation,
    /// What the Terminate says.
    pub code: TermCode,
    /// Status of the receive in progress, if there is one.
    pub recv_status: WcStatus,
    /// Event at this end.
    pub event: Option<QpEvent>,
    /// In words.
    pub text: &'static str,
}

macro_rules! violations {
    ($($name:ident: $code:ident, $status:ident, $event:expr, $text:literal;)*) => {
        /// One row for each violation, in order.
        pub static VIOLATIONS: &[ViolationRow] = &[$(ViolationRow {
            violation: Violation::$name,
            code: TermCode::$code,
            recv_status: WcStatus::$status,
            event: $event,
            text: $text,
        },)*];
    };
}

const ACCESS: Option<QpEvent> = Some(QpEvent::AccessError);
const REQUEST: Option<QpEvent> = Some(QpEvent::RequestError);
const FATAL: Option<QpEvent> = Some(QpEvent::Fatal);

violations! {
    Crc: MPA_CRC, General, FATAL, "the CRC of an FPDU is wrong";
    Marker: MPA_MARKER, General, FATAL, "a marker does not point to the start of its FPDU";
    TaggedStag: DDP_TAGGED_STAG, RemoteAccess, ACCESS, "no key that may be written";
    TaggedBounds: DDP_TAGGED_BOUNDS, RemoteAccess, ACCESS, "a write outside of the buffer";
    TaggedStream: DDP_TAGGED_STREAM, RemoteAccess, ACCESS, "a write through the key of others";
    TaggedWrap: DDP_TAGGED_WRAP, RemoteAccess, ACCESS, "a write beyond the end of addresses";
    TaggedVersion: DDP_TAGGED_VERSION, RemoteInvalidRequest, REQUEST, "another version of DDP";
    Queue: DDP_UNTAGGED_QUEUE, RemoteInvalidRequest, REQUEST, "a queue that does not exist";
    NoBuffer: DDP_UNTAGGED_NO_BUFFER, RemoteInvalidRequest, REQUEST,
        "no receive is posted, or more READs and atomics at once than agreed";
    Msn: DDP_UNTAGGED_MSN, RemoteInvalidRequest, REQUEST, "a message out of order";
    Offset: DDP_UNTAGGED_OFFSET, RemoteInvalidRequest, REQUEST,
        "a segment out of order in its message";
    TooLong: DDP_UNTAGGED_TOO_LONG, LocalLength, REQUEST,
        "the message is longer than its receive";
    UntaggedVersion: DDP_UNTAGGED_VERSION, RemoteInvalidRequest, REQUEST,
        "another version of DDP";
    RemoteStag: RDMAP_STAG, RemoteAccess, ACCESS, "the key names no memory";
    RemoteBounds: RDMAP_BOUNDS, RemoteAccess, ACCESS, "the range leaves the memory";
    RemoteAccess: RDMAP_ACCESS, RemoteAccess, ACCESS, "the right is not granted";
    RemoteStream: RDMAP_STREAM, RemoteAccess, ACCESS, "the key belongs to others";
    RemoteWrap: RDMAP_WRAP, RemoteAccess, ACCESS, "a range beyond the end of addresses";
    Invalidate: RDMAP_INVALIDATE, LocalAccess, ACCESS, "the key to invalidate is not valid here";
    Version: RDMAP_VERSION, RemoteInvalidRequest, REQUEST, "another version of RDMAP";
    Opcode: RDMAP_OPCODE, RemoteInvalidRequest, REQUEST,
        "an opcode that is unknown, not supported or out of place";
    Misaligned: RDMAP_STREAM_CATASTROPHIC, RemoteInvalidRequest, REQUEST,
        "the address of an atomic is not a multiple of 8";
    Length: RDMAP_OPERATION_OTHER, RemoteInvalidRequest, REQUEST,
        "a message too short for its header, or ended too early";
    ReceiveMemory: RDMAP_LOCAL, LocalProtection, FATAL, "the receive's scatter list is invalid";
    SendMemory: RDMAP_LOCAL, LocalProtection, FATAL, "the local memory of a request is invalid";
    Local: RDMAP_LOCAL, Flushed, FATAL, "this end gave up";
}

impl Violation {
    /// The row of this violation.
    pub fn row(self) -> &'static ViolationRow {
        &VIOLATIONS[self as usize - 1]
    }

    /// Of a refused RDMA WRITE (RFC 5041, 7.1, the checks of tagged segments).
    pub(crate) fn of_write(fault: &AccessFault) -> Self {
        match fault.check {
            AccessCheck::Bounds => Self::TaggedBounds,
            AccessCheck::WrongPd | AccessCheck::WrongQp | AccessCheck::Srq => Self::TaggedStream,
            _ => Self::TaggedStag,
        }
    }

    /// Of a refused READ or atomic (RFC 5040, 7.2 (4)).
    pub(crate) fn of_read(fault: &AccessFault) -> Self {
        match fault.check {
            AccessCheck::KeyUnknown | AccessCheck::KeyStale => Self::RemoteStag,
            AccessCheck::Bounds => Self::RemoteBounds,
            AccessCheck::WrongPd | AccessCheck::WrongQp | AccessCheck::Srq => Self::RemoteStream,
            AccessCheck::Alignment => Self::Misaligned,
            AccessCheck::Rights | AccessCheck::QpRights | AccessCheck::Kind => Self::RemoteAccess,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().text)
    }
}

/// Status of the request that a received Terminate names. Codes that nobody defined count as the
/// peer's failure to carry the request out.
pub const fn terminated_status(code: TermCode) -> WcStatus {
    match code {
        TermCode::DDP_UNTAGGED_NO_BUFFER => WcStatus::RnrRetryExceeded,
        TermCode { layer: 0 | 1, error_type: 1, .. } => WcStatus::RemoteAccess,
        TermCode::RDMAP_VERSION | TermCode::RDMAP_OPCODE => WcStatus::RemoteInvalidRequest,
        TermCode { layer: 1, error_type: 2, .. } => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::RemoteOperation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_violation_finds_its_own_row() {
        for (index, row) in VIOLATIONS.iter().enumerate() {
            assert_eq!(row.violation as usize, index + 1);
            assert_eq!(row.violation.row().text, row.text);
            assert!(row.code.text().is_some(), "{:?}", row.violation);
        }
        assert_eq!(VIOLATIONS.last().map(|row| row.violation), Some(Violation::Local));
    }

    #[test]
    fn every_failed_check_of_memory_has_a_code_of_the_layer_that_made_it() {
        use AccessCheck as C;
        let checks = [
            (C::KeyUnknown, TermCode::DDP_TAGGED_STAG, TermCode::RDMAP_STAG),
            (C::KeyStale, TermCode::DDP_TAGGED_STAG, TermCode::RDMAP_STAG),
            (C::WrongPd, TermCode::DDP_TAGGED_STREAM, TermCode::RDMAP_STREAM),
            (C::WrongQp, TermCode::DDP_TAGGED_STREAM, TermCode::RDMAP_STREAM),
            (C::Bounds, TermCode::DDP_TAGGED_BOUNDS, TermCode::RDMAP_BOUNDS),
            (C::Rights, TermCode::DDP_TAGGED_STAG, TermCode::RDMAP_ACCESS),
            (C::QpRights, TermCode::DDP_TAGGED_STAG, TermCode::RDMAP_ACCESS),
            (C::Kind, TermCode::DDP_TAGGED_STAG, TermCode::RDMAP_ACCESS),
            (C::Alignment, TermCode::DDP_TAGGED_STAG, TermCode::RDMAP_STREAM_CATASTROPHIC),
        ];
        for (check, write, read) in checks {
            let fault = AccessFault { check, key: 1, addr: 2, len: 3 };
            assert_eq!(Violation::of_write(&fault).row().code, write, "{check:?}");
            assert_eq!(Violation::of_read(&fault).row().code, read, "{check:?}");
        }
    }

    #[test]
    fn a_terminate_gives_the_status_that_a_nak_of_the_same_reason_gives() {
        for (code, status) in [
            (TermCode::RDMAP_STAG, WcStatus::RemoteAccess),
            (TermCode::DDP_TAGGED_BOUNDS, WcStatus::RemoteAccess),
            (TermCode::RDMAP_OPCODE, WcStatus::RemoteInvalidRequest),
            (TermCode::DDP_UNTAGGED_TOO_LONG, WcStatus::RemoteInvalidRequest),
            (TermCode::DDP_UNTAGGED_NO_BUFFER, WcStatus::RnrRetryExceeded),
            (TermCode::RDMAP_LOCAL, WcStatus::RemoteOperation),
            (TermCode::MPA_CRC, WcStatus::RemoteOperation),
            (TermCode::new(9, 9, 9), WcStatus::RemoteOperation),
        ] {
            assert_eq!(terminated_status(code), status, "{code}");
        }
    }
}
