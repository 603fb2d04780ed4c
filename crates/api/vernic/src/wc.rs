//! Completions, and failures that explain themselves.

use std::fmt;

use vernic_engine::Explanation;
use vernic_engine::{Tag, Wc as Completion, WcOpcode, WcStatus};

use crate::{Qpn, Rkey};

/// The application's name for a work request: any number; comes back in the completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WrId(pub u64);

/// A work completion: a plain copy (IBTA 11.4.2.1).
///
/// `Wc::default()` is a placeholder to fill arrays with; its status is not success.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Wc(Completion);

impl Wc {
    pub(crate) const EMPTY: Self = Self(vernic_engine::EMPTY_WC);

    /// The name of the work request.
    pub const fn wr_id(&self) -> WrId {
        WrId(self.0.completion.wr_id)
    }
    /// The outcome. [`Cq::check`](crate::Cq::check) turns a failure into an error that explains it.
    pub const fn status(&self) -> WcStatus {
        self.0.completion.status
    }
    /// Whether the status is success.
    pub fn is_success(&self) -> bool {
        self.0.completion.status == WcStatus::Success
    }
    /// What completed.
    pub const fn opcode(&self) -> WcOpcode {
        self.0.completion.opcode
    }
    /// Whether it is a receive.
    pub const fn is_recv(&self) -> bool {
        matches!(self.0.completion.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm)
    }
    /// Bytes received, read or swapped. A datagram's includes the 40 bytes of GRH area before it.
    pub const fn byte_len(&self) -> u32 {
        self.0.completion.byte_len
    }
    /// Immediate data that came with the message.
    pub const fn imm(&self) -> Option<u32> {
        match self.0.completion.tag {
            Tag::Imm(imm) => Some(imm),
            _ => None,
        }
    }
    /// The key that a SEND with invalidate has invalidated.
    pub const fn invalidated(&self) -> Option<Rkey> {
        match self.0.completion.tag {
            Tag::Invalidated(rkey) => Some(rkey),
            _ => None,
        }
    }
    /// The queue pair.
    pub const fn qpn(&self) -> Qpn {
        self.0.completion.qpn
    }
    /// The sender of a datagram, else the connected peer.
    pub const fn src_qpn(&self) -> Qpn {
        self.0.completion.src_qpn
    }
    /// The sender asked for a solicited event.
    pub const fn is_solicited(&self) -> bool {
        self.0.completion.solicited
    }
    /// Whether the first 40 bytes of the receive hold a GRH area (UD).
    pub const fn has_grh(&self) -> bool {
        self.0.completion.grh
    }
    /// Service level; of a RoCEv2 datagram the packet type: 0xA for IPv4, 0x9 for IPv6.
    pub const fn sl(&self) -> u8 {
        self.0.completion.route.service_level
    }
    /// When it completed: nanoseconds of the system's CLOCK_MONOTONIC. Completions of one batch of
    /// packets have one time.
    pub const fn timestamp_ns(&self) -> u64 {
        self.0.timestamp_ns
    }
    /// A code of the check that failed; 0 on success.
    pub const fn vendor_err(&self) -> u32 {
        self.0.completion.vendor_err
    }
}

impl From<Completion> for Wc {
    fn from(completion: Completion) -> Self {
        Self(completion)
    }
}

impl Default for Wc {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.0;
        write!(
            f,
            "Wc {{ wr_id: {}, {:?}, {:?}, {} bytes",
            c.wr_id, c.opcode, c.status, c.byte_len
        )?;
        match c.tag {
            Tag::None => {}
            Tag::Imm(imm) => write!(f, ", imm: {imm:#x}")?,
            Tag::Invalidated(rkey) => write!(f, ", invalidated: {rkey}")?,
        }
        write!(f, ", qpn: {}, src_qpn: {} }}", c.qpn, c.src_qpn)
    }
}

/// A failed completion with all that is known about the failure.
///
/// Its [`Display`](fmt::Display) names the work request, both queue pairs and addresses, the
/// sequence number, the check that failed or the number of transmissions, and the usual cause.
#[derive(Clone, Debug)]
pub struct WcError {
    wc: Wc,
    explanation: Option<Box<Explanation>>,
}

impl WcError {
    pub(crate) fn new(wc: Wc, explanation: Option<Explanation>) -> Self {
        Self { wc, explanation: explanation.map(Box::new) }
    }
    /// The completion.
    pub fn wc(&self) -> &Wc {
        &self.wc
    }
    /// Its status.
    pub fn status(&self) -> WcStatus {
        self.wc.status()
    }
    /// What failed first on the queue pair, in values. `None` if the queue pair did not fail itself
    /// (the application moved it to Error), or was reset or destroyed so long ago that the device
    /// has forgotten it: it keeps the last 64 failures of such queue pairs.
    pub fn explanation(&self) -> Option<&Explanation> {
        self.explanation.as_deref()
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wc = &self.wc;
        let (opcode, wr_id, status) = (wc.opcode(), wc.wr_id().0, wc.status());
        write!(f, "{opcode:?} (work request {wr_id}) failed with {status:?}: ")?;
        let Some(explanation) = self.explanation() else {
            let (qpn, code) = (wc.qpn(), wc.vendor_err());
            return write!(
                f,
                "queue pair {qpn} is gone or did not fail itself, vendor error {code:#010x}"
            );
        };
        let Explanation { qpn, service, path, peer_qpn, stream, failure, .. } = explanation;
        write!(f, "{service:?} queue pair {qpn}")?;
        if let Some(path) = path {
            write!(f, " at {}", path.local().to_ip())?;
        }
        if let (Some(path), Some(peer)) = (path, peer_qpn) {
            write!(f, ", peer {peer} at {}", path.remote().to_ip())?;
        }
        if let Some((local, peer)) = stream {
            write!(f, " at {local}, peer at {peer}")?;
        }
        if failure.wr_id != Some(wr_id) || failure.status != status {
            write!(f, ", failed before with {:?}", failure.status)?;
            if let Some(first) = failure.wr_id {
                write!(f, " at work request {first}")?;
            }
        }
        write!(f, ", PSN {}: {}", failure.psn, explanation.circumstances.with_cause(&failure.cause))
    }
}

impl std::error::Error for WcError {}
