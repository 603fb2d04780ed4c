//! The state of an id.

/// The state of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// New.
    Idle,
    /// The id has a port, and an address unless that is the wildcard.
    Bound,
    /// The destination has a device, and the next hop or the port is being resolved.
    AddrQuery,
    /// The destination has a device, and the next hop is known.
    AddrResolved,
    /// The route is being asked for.
    RouteQuery,
    /// The route is known.
    RouteResolved,
    /// The id is connecting, being connected, or connected.
    Connect,
    /// The connection is over.
    Disconnect,
    /// The id listens.
    Listen,
    /// The id was destroyed.
    Destroyed,
}
