//! Why a queue pair failed, in values and in words.

use std::fmt;

use vernic_io::TxPath;
use vernic_proto::Failure;
use vernic_wire::{Qpn, Service};

/// Why a queue pair failed, and who its peer was: "RETRY_EXC" in words.
#[derive(Clone, Copy, Debug)]
pub struct Explanation {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its service.
    pub service: Service,
    /// The path to the peer, of connected services.
    pub path: Option<TxPath>,
    /// The peer's queue pair, of connected services.
    pub peer_qpn: Option<Qpn>,
    /// What happened.
    pub failure: Failure,
    /// The operating system's error, if the kernel last refused packets on this path: it, not the
    /// peer, may be the reason.
    pub refused: Option<i32>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { status, wr_id, psn, cause } = &self.failure;
        write!(f, "{:?} {}", self.service, self.qpn)?;
        if let (Some(path), Some(peer)) = (&self.path, self.peer_qpn) {
            write!(f, " ({} -> {}, peer {peer})", path.src(), path.dst())?;
        }
        write!(f, " failed with {status:?}")?;
        if let Some(wr_id) = wr_id {
            write!(f, " at work request {wr_id}")?;
        }
        write!(f, ", PSN {psn}: {cause}")?;
        if let Some(errno) = self.refused {
            let error = std::io::Error::from_raw_os_error(errno);
            write!(f, "; this host's kernel refused packets on this path: {error}")?;
        }
        Ok(())
    }
}
