//! Why there is no connection.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use vernic_engine::ModifyError;

/// Why a peer, or its communication management, refused: a number that any peer may choose. Those
/// of IBTA 12.6.7.2 print as words.
pub use vernic_cm::RejReason;

/// Why a connection was not made, or ended.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// A call of the manager was refused: addresses, ports, parameters.
    #[error(transparent)]
    Refused(#[from] vernic_cm::Error),
    /// The queue pair was not brought up. It is destroyed.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The peer said no.
    #[error("{peer} rejected the connection: {reason}")]
    Rejected {
        /// The peer.
        peer: SocketAddr,
        /// Why: [`RejReason::CONSUMER`] is its program, [`RejReason::INVALID_SERVICE_ID`] that
        /// nobody listens there.
        reason: RejReason,
        /// What its program says besides, 148 bytes.
        private_data: Vec<u8>,
    },
    /// The peer does not serve datagrams there.
    #[error("{peer} does not give a queue pair for datagrams (status {status}): does it listen?")]
    NotServed {
        /// The peer.
        peer: SocketAddr,
        /// Status of its answer (IBTA 12.11.2).
        status: u8,
        /// What its program says besides, 136 bytes.
        private_data: Vec<u8>,
    },
    /// The peer does not answer.
    #[error("{peer} does not answer: {}", silence(fabric.as_deref()))]
    Unreachable {
        /// The peer.
        peer: SocketAddr,
        /// Name of the fabric, if the connection is one of InfiniBand.
        fabric: Option<String>,
    },
    /// The time that the caller gave is over.
    #[error("{peer} has not answered within {timeout:?}")]
    Timeout {
        /// The peer.
        peer: SocketAddr,
        /// The time.
        timeout: Duration,
    },
    /// The connection ended while it was waited for.
    #[error("{peer} has disconnected")]
    Disconnected {
        /// The peer.
        peer: SocketAddr,
    },
    /// Waiting failed.
    #[error("cannot wait for events: {0}")]
    Wait(#[source] std::io::Error),
}

/// What is usually wrong where nobody answers.
fn silence(fabric: Option<&str>) -> String {
    match fabric {
        Some(fabric) => format!(
            "does a program run at its host, are the ports of both hosts active, and are they in one \
             partition? `vernic fabric show {fabric}` has programs and ports"
        ),
        None => {
            "is it there, does it use RoCEv2, and does UDP port 4791 pass between here and there?"
                .to_owned()
        }
    }
}

impl fmt::Debug for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_explained_in_the_words_of_the_transport() {
        let peer = ([10, 0, 0, 9], 7).into();
        let of = |fabric: Option<&str>| {
            CmError::Unreachable { peer, fabric: fabric.map(str::to_owned) }.to_string()
        };
        assert!(of(None).contains("UDP port 4791"));
        let text = of(Some("lab"));
        assert!(text.contains("vernic fabric show lab") && !text.contains("UDP"), "{text}");
    }
}
