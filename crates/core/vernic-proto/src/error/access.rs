//! Refused accesses to memory, and the memory of the peer that a request names.

use core::fmt;

use crate::wqe::{Remote, SendOp, SendWqe};

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

impl fmt::Display for AccessCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyUnknown => "no region or window has this key",
            Self::KeyStale => "the key was deregistered, invalidated or rebound, or is a wrong one",
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
