//! One connection to a fabric process: messages in both directions, and waiting for them.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use vernic_sys::{self as sys, OwnFd, PollFd};

use crate::error::AttachError;
use crate::hello::{Hello, Purpose, Refusal};
use crate::{MAX_MESSAGE, path};

/// How long an answer of the fabric process is waited for. A process that brings up hundreds of
/// nodes answers within milliseconds; ten seconds are a machine that swaps.
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages that are looked at for a refusal once the connection has ended: it is the last one of
/// the few answers that can be under way.
const MAX_LAST_WORDS: usize = 64;

/// A connection that keeps the boundaries of messages. Never blocks, except in the methods that say
/// they wait.
#[derive(Debug)]
pub struct Connection {
    socket: OwnFd,
    /// Answers that were waited for in vain. They may come yet, before those to later requests.
    late: AtomicU32,
}

impl Connection {
    /// Takes over a socket.
    pub const fn new(socket: OwnFd) -> Self {
        Self { socket, late: AtomicU32::new(0) }
    }
    /// Connects to the fabric called `name`.
    ///
    /// # Errors
    /// Every [`AttachError`] but those of answers.
    pub fn connect(name: &str, purpose: Purpose) -> Result<Self, AttachError> {
        let folder = path::folder();
        let socket = path::socket_in(&folder, name)?;
        if folder.is_dir() {
            path::check(&folder)?;
        }
        Self::connect_path(name, &socket, purpose)
    }
    /// Connects to the fabric called `name` whose socket is `path`.
    ///
    /// # Errors
    /// Every [`AttachError`] but those of answers.
    pub fn connect_path(name: &str, path: &Path, purpose: Purpose) -> Result<Self, AttachError> {
        let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)
            .map_err(AttachError::io("opening a socket to the fabric"))?;
        sys::connect_path(socket.as_fd(), path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => not_found(name, path),
            io::ErrorKind::ConnectionRefused => {
                AttachError::NotRunning { name: name.to_owned(), path: path.to_owned() }
            }
            // The list of connections that wait to be accepted is full.
            io::ErrorKind::WouldBlock => AttachError::Silent { seconds: 0 },
            _ => AttachError::io("connecting to the fabric")(error),
        })?;
        let connection = Self::new(socket);
        connection.request(&Hello::emit(purpose))?;
        Ok(connection)
    }
    /// Sends a message.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; other errors mean the end of the connection.
    #[inline]
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        sys::send(self.socket.as_fd(), message).map(drop)
    }
    /// Sends a message, and waits for room.
    ///
    /// # Errors
    /// [`AttachError::Silent`], [`AttachError::Ended`].
    pub fn send_waiting(&self, message: &[u8]) -> Result<(), AttachError> {
        self.send_within(message, PATIENCE)
    }
    /// Sends a message, and waits for room for so long.
    ///
    /// # Errors
    /// [`AttachError::Silent`], [`AttachError::Ended`].
    pub(crate) fn send_within(
        &self,
        message: &[u8],
        patience: Duration,
    ) -> Result<(), AttachError> {
        let end = Instant::now() + patience;
        loop {
            match self.send(message) {
                Err(error) if sys::is_for_later(&error) => {
                    self.wait(PollFd::writable(self.socket.as_raw_fd()), end, patience)?;
                }
                other => return other.map_err(AttachError::io("sending to the fabric")),
            }
        }
    }
    /// Sends a message that is answered, and waits for room.
    ///
    /// # Errors
    /// [`AttachError::Refused`] with the reason why the connection was closed, if it was told;
    /// [`AttachError::Silent`], [`AttachError::Ended`].
    pub(crate) fn request(&self, message: &[u8]) -> Result<(), AttachError> {
        self.send_waiting(message).map_err(|error| match error {
            AttachError::Ended => self.last_words().map_or(error, AttachError::Refused),
            error => error,
        })
    }
    /// Returns the refusal among what came in before the connection was closed.
    fn last_words(&self) -> Option<Refusal> {
        let mut buf = vec![0; MAX_MESSAGE];
        // The first call may yield the reset, and what came in before it only the next one.
        (0..MAX_LAST_WORDS).find_map(|_| Refusal::parse(self.recv(&mut buf).ok()?))
    }
    /// Receives a message into `buf`, and returns its bytes.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; `UnexpectedEof` if the connection has ended; `InvalidData` if
    /// the message is longer than `buf`.
    #[inline]
    pub fn recv<'a>(&self, buf: &'a mut [u8]) -> io::Result<&'a [u8]> {
        match sys::recv_message(self.socket.as_fd(), buf) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => buf.get(..len).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Err(error) => Err(error),
        }
    }
    /// Waits for an answer of one message, for ten seconds at most. Passes over answers to earlier
    /// requests that come too late.
    ///
    /// # Errors
    /// [`AttachError::Refused`], [`AttachError::Silent`], [`AttachError::Ended`].
    pub fn answer(&self) -> Result<Vec<u8>, AttachError> {
        self.answer_part(|_| true)
    }
    /// Waits for the next message of an answer, as [`answer`](Self::answer) does; `is_last` says
    /// whether a message is the last one of its answer.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub(crate) fn answer_part(&self, is_last: fn(&[u8]) -> bool) -> Result<Vec<u8>, AttachError> {
        let mut buf = vec![0; MAX_MESSAGE];
        let len = self.await_answer(|| {
            let message = self.recv(&mut buf)?;
            Ok((is_last(message) || Refusal::parse(message).is_some(), message.len()))
        })?;
        buf.truncate(len);
        match Refusal::parse(&buf) {
            Some(refusal) => Err(AttachError::Refused(refusal)),
            None => Ok(buf),
        }
    }
    /// Waits for an answer that comes with a connection.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub(crate) fn answer_with_connection(&self) -> Result<(Vec<u8>, Option<Self>), AttachError> {
        let mut buf = vec![0; MAX_MESSAGE];
        let mut packet = self.await_answer(|| match sys::recv_packet(self.as_fd(), &mut buf)? {
            packet if packet.len == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            packet => Ok((true, packet)),
        })?;
        if packet.lost_files {
            let source = io::Error::from_raw_os_error(libc::EMFILE);
            return Err(AttachError::Io { doing: "one more connection to the fabric", source });
        }
        buf.truncate(packet.len);
        match Refusal::parse(&buf) {
            Some(refusal) => Err(AttachError::Refused(refusal)),
            None => Ok((buf, packet.files.pop().map(Self::new))),
        }
    }
    /// Waits until `take` has a message of the answer to the last request. `take` receives one, and
    /// says whether it is the last one of its answer.
    fn await_answer<T>(
        &self,
        mut take: impl FnMut() -> io::Result<(bool, T)>,
    ) -> Result<T, AttachError> {
        let (end, mut was_reset) = (Instant::now() + PATIENCE, false);
        loop {
            match take() {
                Ok((is_last, _)) if self.late.load(Ordering::Relaxed) != 0 => {
                    self.late.fetch_sub(u32::from(is_last), Ordering::Relaxed);
                }
                Ok((_, message)) => return Ok(message),
                Err(error) if sys::is_for_later(&error) => {
                    let what = PollFd::readable(self.socket.as_raw_fd());
                    let waited = self.wait(what, end, PATIENCE);
                    if let Err(AttachError::Silent { .. }) = waited {
                        self.late.fetch_add(1, Ordering::Relaxed);
                    }
                    waited?;
                }
                // The system says so once, before it yields what came in before.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !was_reset => {
                    was_reset = true;
                }
                Err(error) => return Err(AttachError::io("an answer of the fabric")(error)),
            }
        }
    }
    /// Waits until there is a message, or the connection has ended, or `timeout` is over (`None`:
    /// no limit). Returns whether there is something.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wait_readable(&self, timeout: Option<Duration>) -> io::Result<bool> {
        sys::poll(&mut [PollFd::readable(self.socket.as_raw_fd())], timeout).map(|ready| ready > 0)
    }
    fn wait(&self, what: PollFd, end: Instant, patience: Duration) -> Result<(), AttachError> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AttachError::Silent { seconds: patience.as_secs() });
        }
        let waited = sys::poll(&mut [what], Some(left));
        waited.map(drop).map_err(AttachError::io("waiting for the fabric"))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes the error of a fabric without a socket.
fn not_found(name: &str, path: &Path) -> AttachError {
    let others = path.parent().map(path::list).unwrap_or_default();
    let running = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    AttachError::NoFabric { name: name.to_owned(), path: path.to_owned(), running }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::data::{DataReport, DataRequest, Membership};
    use crate::mad::{MadAnswer, MadRequest};
    use crate::report::tests::some_adapter;
    use crate::{
        AgentId, ControlClient, DataClient, DataEvent, MadClient, MadPort, PacketBatch,
        RefusalKind, UserMad, control,
    };
    use vernic_wire::{Gid, Lid, PortNum};

    fn pair() -> (Connection, Connection) {
        let (one, other) = sys::packet_pair().unwrap();
        (Connection::new(one), Connection::new(other))
    }

    #[test]
    fn a_program_attaches_and_exchanges_packets() {
        let (ours, fabric) = pair();
        fabric.send(&DataReport::attached(5, &some_adapter())).unwrap();
        let (client, adapter) = DataClient::attach_over(ours, "h1", None).unwrap();
        assert_eq!((client.slot(), adapter), (5, some_adapter()));
        let mut buf = vec![0; MAX_MESSAGE];
        let asked = fabric.recv(&mut buf).unwrap();
        assert!(matches!(DataRequest::parse(asked), Some(DataRequest::Attach { host: "h1", .. })));
        assert_eq!(client.recv(&mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);

        let mut batch = PacketBatch::new();
        assert!(client.send(&batch).is_ok() && fabric.recv(&mut buf).is_err(), "nothing to send");
        batch.push(PortNum(1), &[7; 60]);
        client.send(&batch).unwrap();
        let Some(DataRequest::Packets(packets)) =
            DataRequest::parse(fabric.recv(&mut buf).unwrap())
        else {
            panic!("packets")
        };
        assert!(packets.eq([(PortNum(1), &[7_u8; 60][..])]));
        fabric.send(batch.message()).unwrap();
        fabric.send(&DataReport::port(&some_adapter().ports[1])).unwrap();
        assert!(matches!(client.recv(&mut buf), Ok(DataEvent::Packets(_))));
        assert!(matches!(client.recv(&mut buf), Ok(DataEvent::Port(port)) if port.lmc == 2));

        drop(fabric);
        assert_eq!(client.recv(&mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(client.send(&batch).is_err_and(|error| !sys::is_for_later(&error)));
    }

    #[test]
    fn a_full_connection_takes_a_batch_later_and_whole() {
        let (ours, fabric) = pair();
        fabric.send(&DataReport::attached(5, &some_adapter())).unwrap();
        let (client, _) = DataClient::attach_over(ours, "h1", None).unwrap();
        let mut batch = PacketBatch::new();
        while batch.push(PortNum(1), &[7; 4096]) {}
        let mut sent = 0;
        while client.send(&batch).is_ok() {
            sent += 1;
            assert!(sent < 1000, "the system bounds what waits");
        }
        let mut buf = vec![0; MAX_MESSAGE];
        // Who joins a group may hold up others.
        let group = Membership { port: PortNum(1), mlid: Lid(0xC001), mgid: Gid::ZERO };
        let since = Instant::now();
        assert!(matches!(client.join(group), Err(AttachError::Silent { seconds: 1 })));
        assert!(since.elapsed() < PATIENCE / 2);
        fabric.recv(&mut buf).unwrap();
        for _ in 0..sent {
            assert_eq!(fabric.recv(&mut buf).unwrap().len(), batch.message().len());
        }
        client.send(&batch).unwrap();
    }

    #[test]
    fn a_refusal_is_an_error_with_its_reason() {
        let (ours, fabric) = pair();
        fabric.send(&Refusal::new(RefusalKind::NoSuchNode, "no host h9").emit()).unwrap();
        let error = DataClient::attach_over(ours, "h9", None).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.errno()), ("no host h9", libc::ENODEV));
        let (ours, fabric) = pair();
        fabric.send(&[0x77, 0, 0, 0]).unwrap();
        let error = DataClient::attach_over(ours, "h9", None).unwrap_err();
        assert!(matches!(error, AttachError::Malformed { .. }));
        let (ours, fabric) = pair();
        drop(fabric);
        let error = DataClient::attach_over(ours, "h9", None).unwrap_err();
        assert!(matches!(error, AttachError::Ended), "{error}");
    }

    #[test]
    fn the_reason_of_a_refusal_outlives_the_connection() {
        // The other end has read nothing, so that the system reports a reset, before the request
        // was sent or after.
        for sends_before in [true, false] {
            let (ours, fabric) = pair();
            let refusal = Hello::version_refused(7);
            ours.send(&Hello::emit(Purpose::Data)).unwrap();
            if sends_before {
                ours.send(&DataRequest::attach(None, "h1")).unwrap();
            }
            fabric.send(&refusal.emit()).unwrap();
            drop(fabric);
            let error = match sends_before {
                true => ours.answer().unwrap_err(),
                false => DataClient::attach_over(ours, "h1", None).unwrap_err(),
            };
            assert!(matches!(error, AttachError::Refused(told) if told == refusal));
        }
    }

    #[test]
    fn an_answer_that_comes_too_late_is_not_taken_for_the_next_one() {
        let (ours, fabric) = pair();
        // As if two answers had been waited for in vain, one of them in parts.
        ours.late.store(2, Ordering::Relaxed);
        let parts = control::answer(&"late".repeat(MAX_MESSAGE / 2));
        assert!(parts.len() > 1);
        parts.iter().for_each(|part| fabric.send(part).unwrap());
        fabric.send(&Refusal::new(RefusalKind::Other, "late").emit()).unwrap();
        control::answer("in time").iter().for_each(|part| fabric.send(part).unwrap());
        let client = ControlClient::over(ours);
        assert_eq!(client.ask("a request").unwrap(), "in time");

        let (ours, fabric) = pair();
        ours.late.store(1, Ordering::Relaxed);
        fabric.send(&MadAnswer::Registered(AgentId(1)).emit()).unwrap();
        fabric.send(&MadAnswer::Hosts { total: 0, names: Vec::new() }.emit()).unwrap();
        assert_eq!(MadClient::over(ours).hosts().unwrap(), [""; 0]);
    }

    #[test]
    fn datagrams_have_a_connection_of_their_own() {
        let (ours, fabric) = pair();
        let serve = thread::spawn(move || {
            let mut buf = vec![0; MAX_MESSAGE];
            let (theirs, mine) = sys::packet_pair().unwrap();
            let mut requests = 0;
            while fabric.wait_readable(None).is_ok() {
                let Ok(message) = fabric.recv(&mut buf) else { break };
                requests += 1;
                match MadRequest::parse(message).unwrap() {
                    MadRequest::Open { .. } => {
                        let done = MadAnswer::Done.emit();
                        sys::send_packet(fabric.as_fd(), &done, &[theirs.as_fd()]).unwrap();
                    }
                    MadRequest::Register(_) => {
                        fabric.send(&MadAnswer::Registered(AgentId(3)).emit()).unwrap();
                    }
                    MadRequest::Hosts { from } => {
                        let names = if from == 0 { vec!["h1".to_owned()] } else { Vec::new() };
                        fabric.send(&MadAnswer::Hosts { total: 2, names }.emit()).unwrap();
                    }
                    _ => fabric.send(&MadAnswer::Done.emit()).unwrap(),
                }
            }
            drop(theirs);
            (requests, Connection::new(mine))
        });
        let client = MadClient::over(ours);
        assert_eq!(client.hosts().unwrap(), ["h1"], "an empty answer ends the list");
        assert!(matches!(client.adapter("h1"), Err(AttachError::Malformed { .. })));
        let port = client.open("h1", PortNum(1), true).unwrap();
        let agent = port.register(&crate::Registration::default()).unwrap();
        assert_eq!(agent, AgentId(3));
        port.set_issm(true).unwrap();
        let mad = UserMad { agent, mad: vec![9; 100_000], ..UserMad::default() };
        port.send(&mad).unwrap();
        assert!(!port.wait(Some(Duration::ZERO)).unwrap());
        assert_eq!(port.recv().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let MadPort { requests, datagrams, .. } = port;
        drop(requests);
        let (asked, mine) = serve.join().unwrap();
        assert_eq!(asked, 6);
        let mut buf = vec![0; MAX_MESSAGE];
        let mut assembler = crate::user_mad::Assembler::default();
        assert_eq!(assembler.handle(mine.recv(&mut buf).unwrap()), Ok(None));
        assert_eq!(assembler.handle(mine.recv(&mut buf).unwrap()), Ok(Some(mad)));
        drop(datagrams);
    }
}
