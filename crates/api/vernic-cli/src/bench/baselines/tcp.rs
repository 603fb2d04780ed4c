//! TCP: a ping-pong of two spinning processes, and one stream one way.

use crate::bench::control::{Control, EndpointInfo, Watch};
use crate::bench::end::{Active, Passive, Run, Stopwatch};
use crate::failure::{Doing, Failure, Outcome};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

/// A connection, once there is one, and the message that goes over it.
#[derive(Debug)]
struct Stream {
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Stream {
    fn new(size: usize) -> Self {
        Self { stream: None, buffer: vec![0x5a; size] }
    }

    fn connect(&mut self, ip: IpAddr, peer: &EndpointInfo) -> Outcome<()> {
        let port = peer.port.ok_or_else(|| Failure::new("the other side named no TCP port"))?;
        let address = SocketAddr::new(ip, port);
        let stream = TcpStream::connect(address).doing(|| format!("connect to {address}"))?;
        self.adopt(stream)
    }

    fn adopt(&mut self, stream: TcpStream) -> Outcome<()> {
        stream.set_nodelay(true).doing(|| "switch TCP_NODELAY on".into())?;
        // A peer that died is an error, not a hang: see STALL_TIMEOUT.
        let limit = Some(crate::bench::control::STALL_TIMEOUT);
        stream.set_read_timeout(limit).doing(|| "set the timeout of a TCP socket".into())?;
        stream.set_write_timeout(limit).doing(|| "set the timeout of a TCP socket".into())?;
        self.stream = Some(stream);
        Ok(())
    }

    /// The connection and the message.
    fn parts(&mut self) -> Outcome<(&mut TcpStream, &mut [u8])> {
        let stream = self.stream.as_mut().ok_or_else(|| Failure::new("TCP is not connected"))?;
        Ok((stream, &mut self.buffer))
    }

    /// Non-blocking for the spinning loops.
    fn spin(&mut self) -> Outcome<()> {
        self.parts()?.0.set_nonblocking(true).doing(|| "make a TCP socket non-blocking".into())
    }

    fn send_spinning(&mut self, watch: &mut Watch<'_>) -> Outcome<()> {
        let (stream, message) = self.parts()?;
        let mut sent = 0;
        while sent < message.len() {
            match stream.write(&message[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => watch.idle("TCP room")?,
                Err(error) => return Err(error).doing(|| "send over TCP".into()),
            }
        }
        Ok(())
    }

    fn receive_spinning(&mut self, watch: &mut Watch<'_>) -> Outcome<()> {
        let (stream, message) = self.parts()?;
        let mut received = 0;
        while received < message.len() {
            match stream.read(&mut message[received..]) {
                Ok(0) => return Err(Failure::new("the other side closed the TCP connection")),
                Ok(bytes) => received += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => watch.idle("TCP data")?,
                Err(error) => return Err(error).doing(|| "receive over TCP".into()),
            }
        }
        watch.progress();
        Ok(())
    }
}

/// Listens until the active side connects. The connection waits in the backlog, so the accept
/// happens at the first run, when it is there.
#[derive(Debug)]
struct Listening {
    listener: TcpListener,
    stream: Stream,
}

impl Listening {
    fn open(local: IpAddr, size: usize) -> Outcome<Self> {
        let listener = TcpListener::bind((local, 0)).doing(|| format!("listen on {local}"))?;
        listener.set_nonblocking(true).doing(|| "make a listener non-blocking".into())?;
        Ok(Self { listener, stream: Stream::new(size) })
    }

    fn endpoint(&self) -> EndpointInfo {
        let port = self.listener.local_addr().ok().map(|address| address.port());
        EndpointInfo { port, ..EndpointInfo::default() }
    }

    /// Accepts the connection unless it is there; true when it is new.
    fn accept(&mut self, control: &Control) -> Outcome<bool> {
        if self.stream.stream.is_some() {
            return Ok(false);
        }
        let mut watch = Watch::new(control);
        let stream = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    watch.idle("TCP connection")?;
                }
                Err(error) => return Err(error).doing(|| "accept a TCP connection".into()),
            }
        };
        self.stream.adopt(stream)?;
        Ok(true)
    }
}

/// Sends one message, waits for it to come back.
pub(super) struct Pinger {
    peer: IpAddr,
    stream: Stream,
}

impl Pinger {
    pub(super) fn open(peer: IpAddr, size: usize) -> Self {
        Self { peer, stream: Stream::new(size) }
    }
}

impl Active for Pinger {
    fn endpoint(&self) -> EndpointInfo {
        EndpointInfo::default()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.stream.connect(self.peer, peer)?;
        self.stream.spin()
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<Run> {
        let mut watch = Watch::new(control);
        let mut stopwatch = Stopwatch::start(iterations);
        for _ in 0..iterations {
            self.stream.send_spinning(&mut watch)?;
            self.stream.receive_spinning(&mut watch)?;
            stopwatch.lap();
        }
        Ok(stopwatch.stop())
    }
}

/// Sends each message back.
pub(super) struct Echo(Listening);

impl Echo {
    pub(super) fn open(local: IpAddr, size: usize) -> Outcome<Self> {
        Listening::open(local, size).map(Self)
    }
}

impl Passive for Echo {
    fn endpoint(&self) -> EndpointInfo {
        self.0.endpoint()
    }

    fn connect(&mut self, _peer: &EndpointInfo) -> Outcome<()> {
        Ok(())
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<u64> {
        if self.0.accept(control)? {
            self.0.stream.spin()?;
        }
        let mut watch = Watch::new(control);
        for _ in 0..iterations {
            self.0.stream.receive_spinning(&mut watch)?;
            self.0.stream.send_spinning(&mut watch)?;
        }
        Ok(iterations)
    }
}

/// Sends messages with blocking calls, then waits for the receiver's word that all arrived.
pub(super) struct Sender {
    peer: IpAddr,
    stream: Stream,
}

impl Sender {
    pub(super) fn open(peer: IpAddr, size: usize) -> Self {
        Self { peer, stream: Stream::new(size) }
    }
}

impl Active for Sender {
    fn endpoint(&self) -> EndpointInfo {
        EndpointInfo::default()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.stream.connect(self.peer, peer)
    }

    fn run(&mut self, _control: &Control, iterations: u64) -> Outcome<Run> {
        let (stream, message) = self.stream.parts()?;
        let began = Instant::now();
        for _ in 0..iterations {
            stream.write_all(message).doing(|| "send over TCP".into())?;
        }
        stream.read_exact(&mut [0]).doing(|| "receive the last answer over TCP".into())?;
        Ok(Run { elapsed: began.elapsed(), samples: Vec::new(), messages: Some(iterations) })
    }
}

/// Receives messages with blocking calls, answers the last with one byte.
pub(super) struct Receiver(Listening);

impl Receiver {
    pub(super) fn open(local: IpAddr, size: usize) -> Outcome<Self> {
        Listening::open(local, size).map(Self)
    }
}

impl Passive for Receiver {
    fn endpoint(&self) -> EndpointInfo {
        self.0.endpoint()
    }

    fn connect(&mut self, _peer: &EndpointInfo) -> Outcome<()> {
        Ok(())
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<u64> {
        if self.0.accept(control)? {
            // An accepted socket is blocking on Linux, whatever the listener is.
            let stream = self.0.stream.parts()?.0;
            stream.set_nonblocking(false).doing(|| "make a TCP socket blocking".into())?;
        }
        let (stream, message) = self.0.stream.parts()?;
        let mut left = u128::from(iterations) * message.len() as u128;
        while left > 0 {
            // Whatever is there, up to one message: no wait for a message to be complete.
            let wanted =
                usize::try_from(left).map_or(message.len(), |left| left.min(message.len()));
            match stream.read(&mut message[..wanted]).doing(|| "receive over TCP".into())? {
                0 => return Err(Failure::new("the other side closed the TCP connection")),
                bytes => left -= bytes as u128,
            }
        }
        stream.write_all(&[1]).doing(|| "answer over TCP".into())?;
        Ok(iterations)
    }
}
