//! Why a queue pair has no connection of iWARP.

use std::net::SocketAddr;
use std::time::Duration;

use vernic_engine::iwarp::{ConnectError, HandshakeState, StartError, StartupState};

/// Why a queue pair was not connected; it is destroyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IwarpError {
    /// TCP, or the device.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The other end did not do its part in time, refused, or is nobody who speaks MPA.
    #[error("no connection was agreed upon with {peer}: {}", in_words(.state))]
    State {
        /// The other end, as far as it is known.
        peer: String,
        /// How far the connection came.
        state: HandshakeState,
    },
    /// A listener was not asked for a connection in time.
    #[error("nobody asked for a connection at {addr} within {patience:?}{}", in_passing(*.passed_over))]
    Nobody {
        /// Where it listens.
        addr: SocketAddr,
        /// [`Options::patience`](crate::iwarp::Options::patience).
        patience: Duration,
        /// Connections that the listener has taken so far and that came to nothing.
        passed_over: u64,
    },
    /// The queue pair did not take it.
    #[error(transparent)]
    Start(#[from] StartError),
}

fn in_passing(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!("; {count} so far connected and did not, or did not speak MPA"),
    }
}

fn in_words(state: &HandshakeState) -> String {
    match state {
        HandshakeState::Connecting => "TCP is not answered".into(),
        HandshakeState::Unreachable(kind) => kind.to_string(),
        HandshakeState::Startup(StartupState::Waiting) => "it says nothing".into(),
        HandshakeState::Startup(StartupState::Rejected) => "it rejects the connection".into(),
        HandshakeState::Startup(StartupState::Failed(error)) => error.to_string(),
        HandshakeState::Startup(state) => format!("{state:?}"),
    }
}
