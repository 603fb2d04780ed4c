//! The state of an id.

/// State of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// New.
    Idle,
    /// It has a port, and an address if that is no wildcard.
    Bound,
    /// The destination has a device, and the next hop on the way to it is looked for.
    AddrQuery,
    /// The destination has a device, and somebody who takes what is sent there.
    AddrResolved,
    /// The route is known.
    RouteResolved,
    /// It connects, is being connected, or is connected.
    Connect,
    /// Its connection is over.
    Disconnect,
    /// It listens.
    Listen,
    /// It was destroyed.
    Destroyed,
}
