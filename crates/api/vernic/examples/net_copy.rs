//! A stream of bytes over RDMA through code that is written for tokio's TCP: `tokio::io::copy`.
//! The server sends back what comes, until the client shuts its direction down.
//!
//! `net_copy server [PORT]`, then `net_copy client HOST [PORT]`; or without arguments for both ends
//! at once. The other end may be any program of rsockets that sends back what it gets.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use vernic::Error;
use vernic::cm::Manager;
use vernic::net::{RdmaListener, RdmaStream};

/// Bytes to send.
const LEN: usize = 16 << 20;

fn main() -> Result<(), Error> {
    common::meet(server, client)
}

fn server(_: &Manager, place: SocketAddr, ready: common::Ready<'_>) -> Result<(), Error> {
    common::block_on(async {
        let listener = RdmaListener::bind(place).await?;
        ready(listener.local_addr()?);
        let (mut incoming, mut outgoing) = tokio::io::split(listener.accept().await?);
        tokio::io::copy(&mut incoming, &mut outgoing).await?;
        Ok(outgoing.shutdown().await?)
    })
}

fn client(_: &Manager, peer: SocketAddr) -> Result<(), Error> {
    common::block_on(async {
        let (mut incoming, mut outgoing) = tokio::io::split(RdmaStream::connect(peer).await?);
        let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        let (start, mut back) = (Instant::now(), Vec::new());
        let sending = async {
            outgoing.write_all(&bytes).await?;
            outgoing.shutdown().await
        };
        let (sent, received) = tokio::join!(sending, incoming.read_to_end(&mut back));
        sent.and(received)?;
        assert!(back == bytes);
        println!("{LEN} bytes there and back in {:.1?}", start.elapsed());
        Ok(())
    })
}
