//! UDP: a ping-pong of two spinning processes, and a stream of datagrams one way.
//!
//! The stream is not throttled: what the receiver's socket drops is not counted, and the rate is
//! that of the receiver.

use crate::bench::control::{Control, EndpointInfo, Watch};
use crate::bench::end::{Active, Passive, Run, Stopwatch};
use crate::failure::{Doing, Failure, Outcome};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Most payload bytes of a UDP datagram over IPv4.
pub(super) const MAX_DATAGRAM: usize = 65_507;

/// A bound socket and its peer-to-be.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) socket: UdpSocket,
    peer: IpAddr,
    pub(super) buffer: Vec<u8>,
}

impl Socket {
    pub(super) fn open(local: IpAddr, peer: IpAddr, size: usize) -> Outcome<Self> {
        if size > MAX_DATAGRAM {
            let what = format!("a UDP datagram holds at most {MAX_DATAGRAM} bytes, not {size}");
            return Err(Failure::new(what));
        }
        let socket =
            UdpSocket::bind((local, 0)).doing(|| format!("open a UDP socket on {local}"))?;
        Ok(Self { socket, peer, buffer: vec![0x5a; size] })
    }

    pub(super) fn endpoint(&self) -> EndpointInfo {
        let port = self.socket.local_addr().ok().map(|address| address.port());
        EndpointInfo { port, ..EndpointInfo::default() }
    }

    pub(super) fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        let port = peer.port.ok_or_else(|| Failure::new("the other side named no UDP port"))?;
        let address = SocketAddr::new(self.peer, port);
        self.socket.connect(address).doing(|| format!("connect a UDP socket to {address}"))
    }

    /// Non-blocking for the spinning loops.
    fn spin(&self) -> Outcome<()> {
        self.socket.set_nonblocking(true).doing(|| "make a UDP socket non-blocking".into())
    }

    /// Blocking, with an end to the wait.
    pub(super) fn wait_at_most(&self, timeout: Duration) -> Outcome<()> {
        let timeout = self.socket.set_read_timeout(Some(timeout));
        timeout.doing(|| "set the timeout of a UDP socket".into())
    }

    fn send(&self) -> Outcome<()> {
        self.send_some(self.buffer.len())
    }

    /// Sends the first bytes of the buffer.
    pub(super) fn send_some(&self, bytes: usize) -> Outcome<()> {
        loop {
            match self.socket.send(&self.buffer[..bytes]) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error).doing(|| "send a UDP datagram".into()),
            }
        }
    }

    fn receive(&mut self, watch: &mut Watch<'_>) -> Outcome<()> {
        while !self.try_receive()? {
            watch.idle("UDP datagram")?;
        }
        watch.progress();
        Ok(())
    }

    fn try_receive(&mut self) -> Outcome<bool> {
        self.try_receive_some().map(|bytes| bytes.is_some())
    }

    /// Receives into the buffer; the number of bytes, if any came.
    pub(super) fn try_receive_some(&mut self) -> Outcome<Option<usize>> {
        match self.socket.recv(&mut self.buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error).doing(|| "receive a UDP datagram".into()),
        }
    }
}

/// Sends one datagram, waits for it to come back.
pub(super) struct Pinger(Socket);

impl Pinger {
    pub(super) fn open(local: IpAddr, peer: IpAddr, size: usize) -> Outcome<Self> {
        Socket::open(local, peer, size).map(Self)
    }
}

impl Active for Pinger {
    fn endpoint(&self) -> EndpointInfo {
        self.0.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.0.connect(peer)?;
        self.0.spin()
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<Run> {
        let mut watch = Watch::new(control);
        let mut stopwatch = Stopwatch::start(iterations);
        for _ in 0..iterations {
            self.0.send()?;
            self.0.receive(&mut watch)?;
            stopwatch.lap();
        }
        Ok(stopwatch.stop())
    }
}

/// Sends each datagram back.
pub(super) struct Echo(Socket);

impl Echo {
    pub(super) fn open(local: IpAddr, peer: IpAddr, size: usize) -> Outcome<Self> {
        Socket::open(local, peer, size).map(Self)
    }
}

impl Passive for Echo {
    fn endpoint(&self) -> EndpointInfo {
        self.0.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.0.connect(peer)?;
        self.0.spin()
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<u64> {
        let mut watch = Watch::new(control);
        for _ in 0..iterations {
            self.0.receive(&mut watch)?;
            self.0.send()?;
        }
        Ok(iterations)
    }
}

/// Sends datagrams as fast as the socket takes them.
pub(super) struct Sender(Socket);

impl Sender {
    pub(super) fn open(local: IpAddr, peer: IpAddr, size: usize) -> Outcome<Self> {
        Socket::open(local, peer, size).map(Self)
    }
}

impl Active for Sender {
    fn endpoint(&self) -> EndpointInfo {
        self.0.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.0.connect(peer)
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<Run> {
        let began = Instant::now();
        for _ in 0..iterations {
            self.0.send()?;
        }
        let elapsed = began.elapsed();
        control.send(&crate::bench::control::Message::Stop)?;
        Ok(Run { elapsed, samples: Vec::new(), messages: None })
    }
}

/// How long a receiver waits for a datagram before it looks for the sender's Stop.
pub(super) const RECEIVE_TIMEOUT: Duration = Duration::from_millis(5);

/// Counts datagrams until the sender stops and the socket is empty.
pub(super) struct Receiver(Socket);

impl Receiver {
    pub(super) fn open(local: IpAddr, peer: IpAddr, size: usize) -> Outcome<Self> {
        Socket::open(local, peer, size).map(Self)
    }
}

impl Passive for Receiver {
    fn endpoint(&self) -> EndpointInfo {
        self.0.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.0.connect(peer)?;
        self.0.wait_at_most(RECEIVE_TIMEOUT)
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<u64> {
        let mut received = 0;
        while received < iterations {
            if self.0.try_receive()? {
                received += 1;
            } else if control.has_news() {
                break;
            }
        }
        control.expect(&crate::bench::control::Message::Stop)?;
        Ok(received)
    }
}
