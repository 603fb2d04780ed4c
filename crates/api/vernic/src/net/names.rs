//! The addresses of a name.

use std::io;
use std::net::SocketAddr;

use tokio::net::ToSocketAddrs;

/// The addresses of a name, to be tried one after the other; there is at least one.
#[derive(Debug)]
pub(super) struct Addresses {
    /// All but the last.
    pub(super) first: Vec<SocketAddr>,
    /// The one whose error is told if none succeeds.
    pub(super) last: SocketAddr,
}

/// Looks a name up.
pub(super) async fn addresses(name: impl ToSocketAddrs) -> io::Result<Addresses> {
    let mut first: Vec<SocketAddr> = tokio::net::lookup_host(name).await?.collect();
    match first.pop() {
        Some(last) => Ok(Addresses { first, last }),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
    }
}
