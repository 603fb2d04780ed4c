//! Streams of bytes over RDMA, as tokio's of TCP: rsockets, awaited.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::ToSocketAddrs;
use vernic_rsocket::{Error, Family, MsgFlags, Shutdown};

use super::names::{Addresses, addresses};
use super::sockets::{AsyncSocket, Direction, io_error};

/// Connections that may wait to be accepted: tokio's number for TCP.
const BACKLOG: u32 = 1024;

/// A stream of bytes over RDMA, for code that is written for tokio's `TcpStream`. The peer is one
/// of these, or any program that uses `rsocket()` of `librdmacm`.
///
/// Writes wait while the peer does not read ([`AsyncWrite`]). Shutting down ends this direction:
/// the peer reads what was written and then the end, and may go on writing. It returns when all has
/// arrived. A read of no bytes is the end of the stream. Dropping it closes the stream, and what
/// was written still arrives, if the process lives so long: a program that ends shuts down first.
///
/// A peer that is silent is asked for a sign of life every 5 s. Errors have the kinds of TCP's
/// (`ConnectionReset`, `BrokenPipe`, `ConnectionRefused`), and say which peer and why.
///
/// Sizes of buffers are those of `/etc/rdma/rsocket`, 128 KiB in each direction by default.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use vernic::net::{RdmaListener, RdmaStream};
/// let listener = RdmaListener::bind("127.0.0.1:0").await?;
/// let place = listener.local_addr()?;
/// let (server, client) = tokio::join!(listener.accept(), RdmaStream::connect(place));
/// let (mut server, mut client) = (server?, client?);
///
/// client.write_all(b"hello").await?;
/// client.shutdown().await?;
/// let mut text = String::new();
/// server.read_to_string(&mut text).await?; // to the end
/// assert_eq!(text, "hello");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct RdmaStream(AsyncSocket);

/// A listener for streams: [`accept`](Self::accept) them, or take them as a [`Stream`], which never
/// ends. Connections are made without the program's doing; 1024 of them wait at most.
#[derive(Debug)]
pub struct RdmaListener(AsyncSocket);

fn family(addr: SocketAddr) -> Family {
    if addr.is_ipv4() { Family::V4 } else { Family::V6 }
}

impl RdmaStream {
    /// Connects to a name or IP address, and port; the addresses of a name are tried one after the
    /// other. Call it inside a runtime.
    ///
    /// # Errors
    /// `ConnectionRefused` where nobody listens, `TimedOut` and `HostUnreachable` where nobody is,
    /// `AddrNotAvailable` without a device that leads there.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O driver.
    pub async fn connect(peer: impl ToSocketAddrs) -> io::Result<Self> {
        let Addresses { first, last } = addresses(peer).await?;
        for addr in first {
            if let Ok(stream) = Self::connect_to(addr).await {
                return Ok(stream);
            }
        }
        Self::connect_to(last).await
    }

    async fn connect_to(peer: SocketAddr) -> io::Result<Self> {
        let socket = AsyncSocket::new(family(peer))?;
        std::future::poll_fn(|cx| {
            socket.poll(Direction::Read, cx, |socket| match socket.connect(peer) {
                Err(Error::Connected) => Ok(()),
                other => other,
            })
        })
        .await
        .map_err(io_error)?;
        Self::connected(socket)
    }

    fn connected(mut socket: AsyncSocket) -> io::Result<Self> {
        socket.begin()?;
        Ok(Self(socket))
    }

    /// Our address and port.
    ///
    /// # Errors
    /// None of a connected stream.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket().local_addr().map_err(io_error)
    }

    /// The peer's address and port.
    ///
    /// # Errors
    /// None of a connected stream.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket().peer_addr().map_err(io_error)
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let received = self.0.poll(Direction::Read, cx, |socket| {
            let piece = IoSliceMut::new(room.initialize_unfilled());
            socket.recv(&mut [piece], MsgFlags::NONE)
        });
        received.map(|received| {
            room.advance(received.map_err(io_error)?.copied);
            Ok(())
        })
    }
}

impl AsyncWrite for RdmaStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let send = |socket: &vernic_rsocket::Socket| socket.send(pieces, None, MsgFlags::NONE);
        self.0.poll(Direction::Write, cx, send).map_err(io_error)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Returns at once: what is written is on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Err(error) = self.0.socket().shutdown(Shutdown::Write) {
            return Poll::Ready(Err(io_error(error)));
        }
        self.0.poll_flushed(cx).map(Ok)
    }
}

impl RdmaListener {
    /// Listens at a name or IP address, and port. Port 0 takes a free one
    /// ([`local_addr`](Self::local_addr) tells); the wildcard address is every device. Of a name
    /// with several addresses, the first at which it can listen.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        let Addresses { first, last } = addresses(addr).await?;
        let found = first.into_iter().find_map(|addr| Self::at(addr).ok());
        found.map_or_else(|| Self::at(last), Ok)
    }

    fn at(addr: SocketAddr) -> io::Result<Self> {
        let socket = AsyncSocket::new(family(addr))?;
        socket.socket().bind(addr).map_err(io_error)?;
        socket.socket().listen(BACKLOG).map_err(io_error)?;
        Ok(Self(socket))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// None of a listener.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket().local_addr().map_err(io_error)
    }

    /// The next connection. Cancelling loses none. One task at a time may wait for it. Call it
    /// inside a runtime.
    ///
    /// # Errors
    /// What the runtime says about one more descriptor.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O driver.
    pub async fn accept(&self) -> io::Result<RdmaStream> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<RdmaStream>> {
        let accepted = self.0.poll(Direction::Read, cx, vernic_rsocket::Socket::accept);
        accepted.map(|accepted| RdmaStream::connected(AsyncSocket::of(accepted.map_err(io_error)?)))
    }
}

impl Stream for RdmaListener {
    type Item = io::Result<RdmaStream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(cx).map(Some)
    }
}
