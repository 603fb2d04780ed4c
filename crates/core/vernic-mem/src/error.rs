//! Errors: what was refused, with the values, the usual cause, and what to do.

use std::fmt;

use thiserror::Error;
use vernic_wire::Rkey;

use crate::{Access, PdId};

/// The check that refused an access. The checks run in the order of the variants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Check {
    /// No region or window ever had this key.
    KeyUnknown,
    /// The key was valid once. Its region was deregistered, its window rebound or invalidated, or
    /// the key is changing at this moment.
    KeyStale,
    /// The key is the key of a window, which has no lkey, or of a null region, which has no rkey.
    KeyKind,
    /// The window exists but is not bound.
    NotBound,
    /// The protection domain of the key is not the protection domain of the queue pair.
    WrongPd,
    /// The type 2 window is bound to another queue pair.
    WrongQp,
    /// The key lacks these rights.
    Rights(Access),
    /// The range is not inside the region or window.
    Bounds,
    /// No memory is mapped at the address, or its protection forbids the access. Only the region
    /// over the whole address space has this check. For other regions, the caller of `register`
    /// promises it.
    Unmapped,
    /// An 8-byte operation on an address that is not a multiple of 8: on the wire, or in local
    /// memory.
    Alignment,
    /// The message is longer than the scatter/gather list.
    ListTooShort,
}

/// A refused access to registered memory.
///
/// In a responder, the error becomes a NAK: invalid request for [`Check::Alignment`], remote access
/// error for the others (IBTA 9.7.5.2.4). In a requester, or for a receive buffer, it becomes a
/// completion (IBTA 11.6.2): local length error for [`Check::ListTooShort`], local protection error
/// for the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessError {
    /// The check that refused the access.
    pub check: Check,
    /// The lkey or rkey of the access.
    pub key: u32,
    /// First address of the access; for [`Check::ListTooShort`], the offset in the message.
    pub addr: u64,
    /// Length of the access in bytes.
    pub len: u64,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, key, addr, len } = self;
        write!(f, "key {key:#010x}, {len} bytes at {addr:#x}: ")?;
        match check {
            Check::KeyUnknown => f.write_str(
                "no such key on this device; was the key sent in host byte order, and by the peer \
                 that owns the memory?",
            ),
            Check::KeyStale => f.write_str(
                "the key is no longer valid: its region was deregistered or its window rebound or \
                 invalidated; exchange keys again",
            ),
            Check::KeyKind => f.write_str(
                "a key of the wrong kind: local work requests take the lkey of a region, peers \
                 take an rkey, and a null region has none",
            ),
            Check::NotBound => f.write_str("the memory window is not bound; bind it first"),
            Check::WrongPd => f.write_str(
                "the region belongs to another protection domain than the queue pair; create both \
                 from the same one",
            ),
            Check::WrongQp => f.write_str(
                "the type 2 window is bound to another queue pair; use the one it was bound with",
            ),
            Check::Rights(missing) => {
                write!(f, "the right {} is missing; register or bind with it", Names(*missing))
            }
            Check::Bounds => f.write_str(
                "the range leaves the region; check address (zero-based?) and length against what \
                 was registered",
            ),
            Check::Unmapped => f.write_str(
                "no memory is mapped there, or it is read-only (or the kernel refuses \
                 process_vm_readv and process_vm_writev)",
            ),
            Check::Alignment => {
                f.write_str("8-byte atomics need an address that is a multiple of 8")
            }
            Check::ListTooShort => {
                f.write_str("the message is longer than the buffers posted for it; post more room")
            }
        }
    }
}

impl fmt::Debug for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessError({self})")
    }
}

impl std::error::Error for AccessError {}

/// Displays rights by their names, joined by `|`.
struct Names(Access);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(&self.0, f)
    }
}

/// Why a protection domain was not found or not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PdError {
    /// The domain does not exist.
    #[error("protection domain {0} does not exist; was it freed?")]
    Unknown(PdId),
    /// Objects still use the domain (IBTA 11.2.1.7). Nothing changed.
    #[error(
        "protection domain {pd} is in use by {regions} regions, {windows} windows and {holders} \
         queue pairs and the like; destroy them first"
    )]
    Busy {
        /// The domain.
        pd: PdId,
        /// Memory regions in the domain.
        regions: u32,
        /// Memory windows in the domain.
        windows: u32,
        /// Queue pairs, shared receive queues and address handles in the domain (see `hold_pd`).
        holders: u32,
    },
}

/// Why a region was not registered or reregistered, or a window was not allocated. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The protection domain does not exist.
    #[error(transparent)]
    Pd(#[from] PdError),
    /// The handle names no region of this device.
    #[error("no such memory region; was it deregistered?")]
    UnknownHandle,
    /// The region has no memory of the application that could change: a null region, a region over
    /// the whole address space, or a region of device memory.
    #[error(
        "the region is a null region, or over the whole address space or device memory: its memory \
         cannot be changed; register another"
    )]
    NoMemory,
    /// The kernel does not let the process access itself by system calls, which the region over the
    /// whole address space needs.
    #[error(
        "the kernel refuses process_vm_readv and process_vm_writev, perhaps by a seccomp filter: \
         a region over the whole address space needs them; register ranges instead"
    )]
    NoAddressSpace,
    /// The range is longer than a region may be.
    #[error("{len} bytes exceed the largest region, {max} bytes")]
    TooLong {
        /// Bytes requested.
        len: u64,
        /// Bytes permitted.
        max: u64,
    },
    /// Address plus length exceeds the end of the address space.
    #[error("{len} bytes at address {addr:#x} wrap around the end of the address space")]
    WrapsAddress {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// I/O virtual address plus length exceeds 2^64.
    #[error("{len} bytes at I/O virtual address {iova:#x} wrap around 2^64")]
    WrapsIova {
        /// First I/O virtual address.
        iova: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The address is null, but the length is not 0.
    #[error("a region of {len} bytes at address 0")]
    NullAddress {
        /// Length in bytes.
        len: u64,
    },
    /// Remote write or atomic rights without the local write right (IBTA 10.6.3.1).
    #[error("{access:?}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well")]
    NeedsLocalWrite {
        /// Rights requested.
        access: Access,
    },
    /// Some bits are no access right.
    #[error("access bits {bits:#x} are unknown")]
    UnknownAccess {
        /// The unknown bits.
        bits: u32,
    },
    /// The region is zero-based, but its I/O virtual address is not 0.
    #[error("a zero-based region starts at 0, not at I/O virtual address {iova:#x}")]
    NotZeroBased {
        /// I/O virtual address requested.
        iova: u64,
    },
    /// Windows are bound to the region (IBTA 11.2.8.7).
    #[error("{windows} memory windows are bound to the region; unbind or free them first")]
    WindowsBound {
        /// Number of windows.
        windows: u32,
    },
    /// All keys are in use.
    #[error("all {max} memory keys of the device are in use")]
    KeysExhausted {
        /// Number of keys in the table.
        max: u32,
    },
}

/// Why a region was not deregistered. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DeregisterError {
    /// The handle names no region of this device, or no longer does.
    #[error("no such memory region; was it deregistered already?")]
    UnknownHandle,
    /// Windows are bound to the region (IBTA 10.6.7.2.7, 11.2.8.4).
    #[error("{windows} memory windows are bound to the region; unbind or free them first")]
    WindowsBound {
        /// Number of windows.
        windows: u32,
    },
}

/// Why a window was not bound. Nothing changed (IBTA 10.6.7.2, 11.2.8.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The handle names no window of this device, or no longer does.
    #[error("no such memory window; was it freed?")]
    UnknownHandle,
    /// The lkey names no region.
    #[error("lkey {lkey:#010x} is not of a memory region")]
    UnknownRegion {
        /// The lkey of the request.
        lkey: u32,
    },
    /// Window, region and queue pair are not all in one protection domain.
    #[error("window ({window}), region ({region}) and queue pair ({qp}) differ in their domains")]
    WrongPd {
        /// Domain of the window.
        window: PdId,
        /// Domain of the region.
        region: PdId,
        /// Domain of the queue pair.
        qp: PdId,
    },
    /// The region was registered without [`Access::MW_BIND`].
    #[error("the region was registered without MW_BIND")]
    NoBindRight,
    /// The window would have remote write or atomic rights, but its region has no local write
    /// right.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC need a region registered with LOCAL_WRITE")]
    NeedsLocalWrite,
    /// A window cannot have these rights.
    #[error("{access:?}: a window takes remote rights and ZERO_BASED only")]
    BadAccess {
        /// Rights requested.
        access: Access,
    },
    /// The range is not inside the region.
    #[error("{len} bytes at {addr:#x} leave the region")]
    Bounds {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The type 2 window is bound. It must be invalidated before it is bound again.
    #[error("the type 2 window is bound already; invalidate it first")]
    AlreadyBound,
    /// The new key differs from the window's key in more than the low byte. The consumer chooses
    /// only the low byte.
    #[error("the new key {key} differs from the window's, {window}, in more than its low byte")]
    OtherIndex {
        /// The new key of the request.
        key: Rkey,
        /// A key that the window could have.
        window: Rkey,
    },
}

/// Why a key was not invalidated. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidateError {
    /// The key names no window, or no longer does.
    #[error("rkey {0} is unknown or no longer valid")]
    UnknownKey(Rkey),
    /// The key is the key of a region, or of a type 1 window. Only type 2 windows can be
    /// invalidated here. IBTA 10.6.5 also permits regions made for fast registration, which do not
    /// exist here.
    #[error("rkey {0} is not of a type 2 window: only these can be invalidated")]
    NotInvalidatable(Rkey),
    /// The window belongs to another protection domain.
    #[error("rkey {0} belongs to another protection domain")]
    WrongPd(Rkey),
    /// The window is bound to another queue pair.
    #[error("rkey {0} is bound to another queue pair")]
    WrongQp(Rkey),
}
