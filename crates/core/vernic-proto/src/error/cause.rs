//! Why a queue pair failed, in values and in words.

use core::fmt;

use vernic_wire::iwarp::TermCode;
use vernic_wire::{Psn, RnrTimer};

use super::access::{AccessFault, RemoteRange};
use super::class::ErrorClass;
use super::status::WcStatus;
use super::stream_end::StreamEnd;
use super::violation::Violation;

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
    /// This end's link has ended for good: no packet passes any more.
    LinkGone,
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
            Self::LinkGone => (0x0E, 0),
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

/// What a SEND may have been refused as invalid for.
const INVALID_SEND: &str = "it is longer than the receive there, or the path MTUs of the ends differ, \
     or the queue pair there does not have the operation";

/// What another request may have been refused as invalid for.
const INVALID_ONE_SIDED: &str = "the queue pair there does not grant the operation (qp_access_flags) or \
     takes fewer READs and atomics at a time (max_dest_rd_atomic), or the address of an atomic is no \
     multiple of 8, or the path MTUs of the ends differ";

/// What may have become of a peer that answered earlier.
const ANSWERED: &str =
    ": the process may have died, stalled or reset its queue pair, or a link went down";

/// What may be wrong where a peer never answered.
const NEVER_ANSWERED: &str =
    ": wrong address, GID index, QPN or PSN, peer not in RTR, or a link that is down";

impl Cause {
    /// Returns the cause in words. If the peer answered earlier, and its `end` is known, the end
    /// stands in place of what may have become of it.
    pub fn with_end<'a>(&'a self, end: Option<&'a dyn fmt::Display>) -> impl fmt::Display + 'a {
        WithEnd { cause: self, end }
    }
}

/// A cause, and what is known of the end of the peer.
struct WithEnd<'a> {
    cause: &'a Cause,
    end: Option<&'a dyn fmt::Display>,
}

impl fmt::Display for WithEnd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause::AckTimeout { tries, waited, heard } = self.cause else {
            return self.cause.fmt(f);
        };
        write!(f, "no answer after {tries} transmissions in {}; ", Waited(*waited))?;
        f.write_str(if *heard { "it answered earlier" } else { "it never answered" })?;
        match self.end.filter(|_| *heard) {
            Some(end) => write!(f, ", and {end}"),
            None => f.write_str(if *heard { ANSWERED } else { NEVER_ANSWERED }),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AckTimeout { .. } => self.with_end(None).fmt(f),
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
                match class {
                    // What a NAK of this code stands for: it says no more.
                    ErrorClass::UnsupportedOpcode => {
                        f.write_str("the peer refused the request as invalid: ")?;
                        f.write_str(if asked.is_some() {
                            INVALID_ONE_SIDED
                        } else {
                            INVALID_SEND
                        })?;
                    }
                    class => write!(f, "the peer refused: {class}")?,
                }
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
            Self::LinkGone => write!(
                f,
                "the link of this end's device is gone for good, which says nothing of the peer"
            ),
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
    use super::super::access::AccessCheck;
    use super::super::class::ERRORS;
    use super::super::violation::VIOLATIONS;
    use super::*;

    /// A page with its lines joined, as a reader sees its paragraphs.
    fn page() -> String {
        include_str!("../../../../api/vernic-cli/README.md")
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
            (0xE_0000, Cause::LinkGone, "this end's link is gone"),
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
