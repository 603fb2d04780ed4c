//! The one table of errors: class -> NAK code -> completion status at each end -> what happens to
//! the queue pair -> asynchronous event (IBTA 9.9, tables 58 to 63).

use core::fmt;
use vernic_wire::NakCode;

use super::status::WcStatus;
use crate::event::QpEvent;

/// A violation found by a responder. Discriminants appear in `vendor_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ErrorClass {
    /// A gap in the sequence (class B: the requester repeats, nothing is lost).
    PsnSequence = 1,
    /// An opcode that cannot follow the one before it.
    OpcodeSequence = 2,
    /// An opcode that this service or queue pair does not support.
    UnsupportedOpcode = 3,
    /// A payload that does not have the length its opcode prescribes.
    PacketLength = 4,
    /// A message longer than the receive, 2^31 bytes, or its RETH.
    MessageLength = 5,
    /// An atomic at an address that is not a multiple of 8.
    Misaligned = 6,
    /// More READs and atomics at once than `max_dest_rd_atomic`.
    TooManyReads = 7,
    /// Key, bounds or rights of a remote access.
    RemoteAccess = 8,
    /// The receive's own scatter list is invalid: the responder's fault.
    ReceiveMemory = 9,
    /// The responder cannot carry the request out.
    RemoteOperational = 10,
    /// The key of a SEND WITH INVALIDATE cannot be invalidated.
    Invalidate = 11,
    /// An XRC request that names no shared receive queue, or another than its message's first
    /// packet.
    SrqUnknown = 12,
    /// An XRC request for a shared receive queue of another XRC domain.
    XrcDomain = 13,
}

/// What a class means at both ends.
#[derive(Clone, Copy, Debug)]
pub struct ErrorRow {
    /// The class.
    pub class: ErrorClass,
    /// NAK sent to the requester.
    pub nak: NakCode,
    /// Status of the receive in progress at the responder, where one is consumed.
    pub recv_status: WcStatus,
    /// Whether the responder's queue pair enters the error state.
    pub fatal: bool,
    /// Event at the responder.
    pub event: Option<QpEvent>,
    /// In words.
    pub text: &'static str,
}

const fn row(
    class: ErrorClass,
    nak: NakCode,
    recv_status: WcStatus,
    fatal: bool,
    event: Option<QpEvent>,
    text: &'static str,
) -> ErrorRow {
    ErrorRow { class, nak, recv_status, fatal, event, text }
}

/// One row for each class, in order.
pub const ERRORS: [ErrorRow; 13] = {
    use ErrorClass as C;
    use NakCode as N;
    use QpEvent as E;
    use WcStatus as S;
    [
        row(
            C::PsnSequence,
            N::PSN_SEQUENCE,
            S::General,
            false,
            None,
            "a packet before it is missing",
        ),
        row(
            C::OpcodeSequence,
            N::INVALID_REQUEST,
            S::RemoteInvalidRequest,
            true,
            Some(E::RequestError),
            "the opcode cannot follow the previous one",
        ),
        row(
            C::UnsupportedOpcode,
            N::INVALID_REQUEST,
            S::RemoteInvalidRequest,
            true,
            Some(E::RequestError),
            "this queue pair does not support the operation, or does not grant it (qp_access_flags)",
        ),
        row(
            C::PacketLength,
            N::INVALID_REQUEST,
            S::LocalLength,
            true,
            Some(E::RequestError),
            "the packet has the wrong length for its opcode, as if the path MTUs of the ends differ",
        ),
        row(
            C::MessageLength,
            N::INVALID_REQUEST,
            S::LocalLength,
            true,
            Some(E::RequestError),
            "the message is longer than the receive or the limit",
        ),
        row(
            C::Misaligned,
            N::INVALID_REQUEST,
            S::RemoteInvalidRequest,
            true,
            Some(E::RequestError),
            "the address of an atomic is not a multiple of 8",
        ),
        row(
            C::TooManyReads,
            N::INVALID_REQUEST,
            S::RemoteInvalidRequest,
            true,
            Some(E::RequestError),
            "more READs or atomics at once than max_dest_rd_atomic",
        ),
        row(
            C::RemoteAccess,
            N::REMOTE_ACCESS,
            S::RemoteAccess,
            true,
            Some(E::AccessError),
            "key, bounds or rights of the remote memory",
        ),
        row(
            C::ReceiveMemory,
            N::REMOTE_OPERATIONAL,
            S::LocalProtection,
            true,
            Some(E::Fatal),
            "the receive's scatter list is invalid at the responder",
        ),
        row(
            C::RemoteOperational,
            N::REMOTE_OPERATIONAL,
            S::LocalQpOperation,
            true,
            Some(E::Fatal),
            "the responder could not carry the request out",
        ),
        row(
            C::Invalidate,
            N::REMOTE_ACCESS,
            S::LocalAccess,
            true,
            Some(E::AccessError),
            "the key to invalidate is not valid there",
        ),
        row(
            C::SrqUnknown,
            N::INVALID_REQUEST,
            S::RemoteInvalidRequest,
            true,
            Some(E::RequestError),
            "the XRC request names no shared receive queue there, or changes it within a message",
        ),
        row(
            C::XrcDomain,
            N::REMOTE_ACCESS,
            S::RemoteAccess,
            true,
            Some(E::AccessError),
            "the shared receive queue belongs to another XRC domain than the queue pair",
        ),
    ]
};

impl ErrorClass {
    /// The row of this class.
    pub const fn row(self) -> &'static ErrorRow {
        &ERRORS[self as usize - 1]
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().text)
    }
}

/// The requester's status for a NAK that ends it, and the class it stands for (IBTA 9.9.2.4.1).
pub const fn requester_status(nak: NakCode) -> (WcStatus, ErrorClass) {
    match nak {
        NakCode::INVALID_REQUEST => (WcStatus::RemoteInvalidRequest, ErrorClass::UnsupportedOpcode),
        NakCode::REMOTE_ACCESS => (WcStatus::RemoteAccess, ErrorClass::RemoteAccess),
        _ => (WcStatus::RemoteOperation, ErrorClass::RemoteOperational),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_finds_its_own_row() {
        for (i, row) in ERRORS.iter().enumerate() {
            assert_eq!(row.class as usize, i + 1);
            assert_eq!(row.class.row().text, row.text);
        }
    }
}
