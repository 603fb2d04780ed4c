//! Completions, and what is known about a failure.

use core::fmt;
use vernic_wire::iwarp::TermCode;
use vernic_wire::{Psn, Qpn, Rkey, RnrTimer};

use crate::error::ErrorClass;
use crate::iwarp::{StreamEnd, Violation};
use crate::wqe::{Remote, SendOp, SendWqe};

/// Status of a completion. Values are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are IBTA's, 11.6.2")]
pub enum WcStatus {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalProtection = 4,
    Flushed = 5,
    MwBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    RemoteAborted = 16,
    Fatal = 19,
    ResponseTimeout = 20,
    General = 21,
}

impl fmt::Display for WcStatus {
    /// Its name in `ibv_wc_status`, without the `IBV_WC_` before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "SUCCESS",
            Self::LocalLength => "LOC_LEN_ERR",
            Self::LocalQpOperation => "LOC_QP_OP_ERR",
            Self::LocalProtection => "LOC_PROT_ERR",
            Self::Flushed => "WR_FLUSH_ERR",
            Self::MwBind => "MW_BIND_ERR",
            Self::BadResponse => "BAD_RESP_ERR",
            Self::LocalAccess => "LOC_ACCESS_ERR",
            Self::RemoteInvalidRequest => "REM_INV_REQ_ERR",
            Self::RemoteAccess => "REM_ACCESS_ERR",
            Self::RemoteOperation => "REM_OP_ERR",
            Self::RetryExceeded => "RETRY_EXC_ERR",
            Self::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
            Self::RemoteAborted => "REM_ABORT_ERR",
            Self::Fatal => "FATAL_ERR",
            Self::ResponseTimeout => "RESP_TIMEOUT_ERR",
            Self::General => "GENERAL_ERR",
        })
    }
}

/// What completed. Values are those of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of the operations")]
pub enum WcOpcode {
    Send = 0,
    Write = 1,
    Read = 2,
    CmpSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvWriteImm = 129,
}

/// The 32-bit extra of a receive completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tag {
    /// None.
    #[default]
    None,
    /// Immediate data.
    Imm(u32),
    /// The key that a SEND WITH INVALIDATE invalidated.
    Invalidated(Rkey),
}

/// A completion of either queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's name.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// What completed (undefined by IBTA on failure; here always what was posted or received).
    pub opcode: WcOpcode,
    /// Bytes received, read or swapped; for UD 40 bytes of GRH area included.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub tag: Tag,
    /// The queue pair.
    pub qpn: Qpn,
    /// Sender of a datagram, else the connected peer.
    pub src_qpn: Qpn,
    /// The packet asked for a solicited event.
    pub solicited: bool,
    /// The first 40 bytes of the receive buffer are a GRH area.
    pub grh: bool,
    /// Service level; for RoCEv2 datagrams the packet type (0xA IPv4, 0x9 IPv6).
    pub sl: u8,
    /// Which check failed: [`Cause::vendor_err`], 0 on success.
    pub vendor_err: u32,
}

/// A refused access to memory: the check that failed and what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFault {
    /// The check.
    pub check: AccessCheck,
    /// The key presented.
    pub key: u32,
    /// First byte asked for.
    pub addr: u64,
    /// Bytes asked for.
    pub len: u64,
}

/// The check that refused an access. Discriminants appear in `vendor_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessCheck {
    /// No region or window has this key.
    KeyUnknown = 1,
    /// The key was valid and was deregistered, invalidated or rebound.
    KeyStale = 2,
    /// The key belongs to another protection domain.
    WrongPd = 3,
    /// A type 2 window is bound to another queue pair.
    WrongQp = 4,
    /// The range leaves the region.
    Bounds = 5,
    /// The region does not grant this right.
    Rights = 6,
    /// An atomic whose address is not a multiple of 8.
    Alignment = 7,
    /// The queue pair itself does not grant this right (`qp_access_flags`).
    QpRights = 8,
    /// The operation is not allowed on this kind of key.
    Kind = 9,
    /// The shared receive queue that the XRC request named, and so its protection domain, is gone.
    Srq = 10,
}

/// Memory of the peer that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The first byte, and the key that was sent with it.
    pub remote: Remote,
    /// Bytes.
    pub length: u32,
}

impl RemoteRange {
    /// What `wqe` names, if it is one-sided.
    pub(crate) fn of(wqe: &SendWqe) -> Option<Self> {
        let remote = match wqe.op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) => remote,
            SendOp::Read(remote) | SendOp::ReadInv(remote, _) => remote,
            SendOp::AtomicWrite(remote) => remote,
            SendOp::CmpSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => remote,
            SendOp::Flush { remote, .. } => remote,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => return None,
            SendOp::LocalInv(_) | SendOp::BindMw(_) => return None,
        };
        Some(Self { remote, length: wqe.length })
    }
}

impl fmt::Display for RemoteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { remote: Remote { addr, rkey }, length } = self;
        write!(f, "{length} bytes at {addr:#x} with R_Key {:#010x}", rkey.value())
    }
}

/// Why work failed, in values: the answer to "RETRY_EXC_ERR: which peer, and why?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer did not answer.
    AckTimeout {
        /// Transmissions made, the first included.
        tries: u32,
        /// Nanoseconds from the first transmission to giving up.
        waited: u64,
        /// Whether this peer has ever answered on this connection.
        heard: bool,
    },
    /// The peer kept reporting gaps.
    SequenceNak {
        /// Transmissions made, the first included.
        tries: u32,
    },
    /// The peer kept answering "receiver not ready".
    RnrNak {
        /// Transmissions made, the first included.
        tries: u32,
        /// The delay that the peer asked for last.
        delay: RnrTimer,
    },
    /// The peer refused with a NAK.
    RemoteNak {
        /// The NAK's class.
        class: ErrorClass,
        /// What the request asked for at the peer; `None` for a SEND.
        asked: Option<RemoteRange>,
    },
    /// A response that does not fit the request.
    BadResponse(&'static str),
    /// Local memory refused.
    LocalMemory(AccessFault),
    /// The message does not fit the receive, or exceeds a limit.
    Length {
        /// Bytes that came or were asked for.
        length: u64,
        /// Bytes that fit.
        limit: u64,
    },
    /// This side's responder refused the peer's request.
    Responder {
        /// The class of the violation.
        class: ErrorClass,
        /// The memory check, where memory was the reason.
        fault: Option<AccessFault>,
    },
    /// The queue pair was moved to the error state, by the application or by an earlier failure.
    Flushed,
    /// iWARP: this end refused what the peer sent, with a Terminate.
    Violation {
        /// What the peer violated.
        violation: Violation,
        /// The memory check, where memory was the reason.
        fault: Option<AccessFault>,
    },
    /// iWARP: the peer ended the stream with a Terminate.
    Terminated {
        /// What it says.
        code: TermCode,
        /// What the request that it names asked for at the peer, if it names one that is one-sided.
        asked: Option<RemoteRange>,
    },
    /// iWARP: the TCP connection ended while it was in use.
    ConnectionLost(StreamEnd),
    /// The peer's process, one of this host, has ended.
    PeerGone,
}

impl Cause {
    /// A 32-bit code for `vendor_err`: family in the high half, detail in the low half. The page of
    /// the `vernic` command has them as a table.
    pub fn vendor_err(&self) -> u32 {
        let (family, detail): (u32, u32) = match self {
            Self::AckTimeout { tries, heard, .. } => {
                (0x01, tries.min(&0xFF) | u32::from(!heard) << 8)
            }
            Self::SequenceNak { tries } => (0x02, *tries.min(&0xFF)),
            Self::RnrNak { tries, delay } => {
                (0x03, tries.min(&0xFF) | u32::from(delay.code()) << 8)
            }
            Self::RemoteNak { class, .. } => (0x04, *class as u32),
            Self::BadResponse(_) => (0x05, 0),
            Self::LocalMemory(fault) => (0x06, fault.check as u32),
            Self::Length { .. } => (0x07, 0),
            Self::Responder { class, fault } => {
                (0x08, *class as u32 | fault.map_or(0, |f| f.check as u32) << 8)
            }
            Self::Flushed => (0x09, 0),
            Self::Violation { violation, fault } => {
                (0x0A, *violation as u32 | fault.map_or(0, |f| f.check as u32) << 8)
            }
            Self::Terminated { code, .. } => {
                let TermCode { layer, error_type, code } = *code;
                (0x0B, u32::from(layer) << 12 | u32::from(error_type) << 8 | u32::from(code))
            }
            Self::ConnectionLost(end) => (0x0C, *end as u32),
            Self::PeerGone => (0x0D, 0),
        };
        family << 16 | detail
    }
}

/// Nanoseconds in the unit that reads best.
struct Waited(u64);

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 / 1000 {
            us @ 0..10_000 => write!(f, "{us} us"),
            us => write!(f, "{} ms", us / 1000),
        }
    }
}

impl fmt::Display for AccessCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyUnknown => "no region or window has this key",
            Self::KeyStale => "the key was deregistered, invalidated or rebound",
            Self::WrongPd => "the key belongs to another protection domain",
            Self::WrongQp => "the window is bound to another queue pair",
            Self::Bounds => "the range leaves the region",
            Self::Rights => "the region does not grant this right",
            Self::Alignment => "the address of an atomic is not a multiple of 8",
            Self::QpRights => "the queue pair does not grant this right",
            Self::Kind => "the operation is not allowed on this kind of key",
            Self::Srq => "the shared receive queue that the request named is gone",
        })
    }
}

impl fmt::Display for AccessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, key, addr, len } = self;
        write!(f, "key {key:#010x}, address {addr:#x}, {len} bytes: {check}")
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AckTimeout { tries, waited, heard } => {
                let hint = if *heard {
                    "it answered earlier: the process may have died, stalled or reset its queue pair, or a link went down"
                } else {
                    "it never answered: wrong address, GID index or QPN, peer not in RTR, a link that is down, or a firewall on UDP 4791"
                };
                write!(f, "no answer after {tries} transmissions in {}; {hint}", Waited(*waited))
            }
            Self::SequenceNak { tries } => write!(
                f,
                "the peer reported lost packets {tries} times in a row; the path loses packets or PSNs disagree"
            ),
            Self::RnrNak { tries, delay } => write!(
                f,
                "the peer had no receive posted, {tries} times in a row, asking for {} us each; post receives earlier or raise rnr_retry (7 = for ever)",
                delay.nanos() / 1000
            ),
            Self::RemoteNak { class, asked } => {
                write!(f, "the peer refused: {class}")?;
                if let Some(asked) = asked {
                    write!(f, "; it was asked for {asked}")?;
                }
                // A NAK carries its class and no more: which check failed is known where it was
                // made.
                write!(
                    f,
                    "; the peer's log and its queue pair's explanation say which check failed"
                )
            }
            Self::BadResponse(what) => {
                write!(f, "the peer's response does not fit the request: {what}")
            }
            Self::LocalMemory(fault) => write!(f, "local memory: {fault}"),
            Self::Length { length, limit } => {
                write!(f, "message of {length} bytes where {limit} fit")
            }
            Self::Responder { class, fault: Some(fault) } => {
                write!(f, "refused the peer's request: {class}: {fault}")
            }
            Self::Responder { class, fault: None } => {
                write!(f, "refused the peer's request: {class}")
            }
            Self::Flushed => write!(f, "the queue pair was in the error state"),
            Self::Violation { violation, fault: Some(fault) } => {
                write!(f, "ended the stream over what the peer sent: {violation}: {fault}")
            }
            Self::Violation { violation, fault: None } => {
                write!(f, "ended the stream over what the peer sent: {violation}")
            }
            Self::Terminated { code, asked } => {
                write!(f, "the peer ended the stream: {code}")?;
                match asked {
                    Some(asked) => write!(f, "; it was asked for {asked}"),
                    None => Ok(()),
                }
            }
            Self::ConnectionLost(end) => {
                write!(f, "the TCP connection ended while it was in use: {end}")
            }
            Self::PeerGone => write!(f, "the peer's process, one of this host, has ended"),
        }
    }
}

/// A failure that moved a queue pair to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Status of the completion that carries it.
    pub status: WcStatus,
    /// The work request, if one can be named.
    pub wr_id: Option<u64>,
    /// Sequence number at which it happened.
    pub psn: Psn,
    /// Why.
    pub cause: Cause,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ERRORS;
    use crate::iwarp::VIOLATIONS;

    /// A page with its lines joined, as a reader sees its paragraphs.
    fn page() -> String {
        include_str!("../../../api/vernic-cli/README.md")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// `1 text; 2 text; ...`
    fn numbered<T: fmt::Display>(items: impl IntoIterator<Item = (u8, T)>) -> String {
        let items: Vec<_> = items.into_iter().map(|(n, text)| format!("{n} {text}")).collect();
        items.join("; ")
    }

    const CHECKS: [AccessCheck; 10] = [
        AccessCheck::KeyUnknown,
        AccessCheck::KeyStale,
        AccessCheck::WrongPd,
        AccessCheck::WrongQp,
        AccessCheck::Bounds,
        AccessCheck::Rights,
        AccessCheck::Alignment,
        AccessCheck::QpRights,
        AccessCheck::Kind,
        AccessCheck::Srq,
    ];

    #[test]
    fn users_find_every_vendor_error_in_the_commands_page() {
        let (page, class) = (page(), ErrorClass::RemoteAccess);
        let fault = AccessFault { check: AccessCheck::Bounds, key: 0, addr: 0, len: 0 };
        let delay = RnrTimer::new(3);
        for (code, cause, row) in [
            (0x1_0107, Cause::AckTimeout { tries: 7, waited: 0, heard: false }, "did not answer"),
            (0x1_0007, Cause::AckTimeout { tries: 7, waited: 0, heard: true }, "did not answer"),
            (0x2_00FF, Cause::SequenceNak { tries: 300 }, "kept reporting lost packets"),
            (0x3_0307, Cause::RnrNak { tries: 7, delay }, "had no receive posted"),
            (0x4_0008, Cause::RemoteNak { class, asked: None }, "the peer refused"),
            (0x5_0000, Cause::BadResponse(""), "does not fit the request"),
            (0x6_0005, Cause::LocalMemory(fault), "local memory refused"),
            (0x7_0000, Cause::Length { length: 2, limit: 1 }, "the message does not fit"),
            (
                0x8_0508,
                Cause::Responder { class, fault: Some(fault) },
                "refused the peer's request",
            ),
            (0x9_0000, Cause::Flushed, "was in the error state"),
            (
                0xA_0504,
                Cause::Violation { violation: Violation::TaggedBounds, fault: Some(fault) },
                "refused what the peer sent",
            ),
            (
                0xB_1205,
                Cause::Terminated { code: TermCode::DDP_UNTAGGED_TOO_LONG, asked: None },
                "the peer ended the stream",
            ),
            (0xC_0001, Cause::ConnectionLost(StreamEnd::Reset), "the TCP connection ended"),
            (0xD_0000, Cause::PeerGone, "the peer's process has ended"),
        ] {
            assert_eq!(cause.vendor_err(), code, "{cause:?}");
            let family = format!("| `{:#06x}` | ", code >> 16);
            let found = page.split_once(&family).and_then(|(_, rest)| rest.split_once(" |"));
            assert!(found.is_some_and(|(cell, _)| cell.contains(row)), "{family}{row}");
        }
        let classes = numbered(ERRORS.iter().map(|row| (row.class as u8, row.text)));
        assert!(page.contains(&format!("Classes: {classes}.")), "Classes: {classes}.");
        let violations = VIOLATIONS.iter().map(|row| (row.violation as u8, row.text));
        let violations = numbered(violations);
        let violations = format!("Violations (iWARP): {violations}.");
        assert!(page.contains(&violations), "{violations}");
        let checks = numbered(CHECKS.map(|check| (check as u8, check)));
        assert!(page.contains(&format!("Checks: {checks}.")), "Checks: {checks}.");
    }
}
