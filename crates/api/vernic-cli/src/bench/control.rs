//! The control connection between the two processes of a bench.
//!
//! One TCP connection carries one JSON object per line in each direction; no measured byte travels
//! on it. A thread reads it, so that a spinning benchmark loop learns with one relaxed load
//! ([`Control::has_news`]) that the other side spoke, failed or died. The thread sleeps in `read`
//! while a measurement runs.
//!
//! Limits: a line is at most [`MAX_LINE_BYTES`] long and at most [`MAX_QUEUED`] messages wait.

use crate::failure::{Doing, Failure, Outcome};
use crate::spec::Task;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Longest control message: 1024 queue pairs at about 200 bytes each, with room to spare.
pub(crate) const MAX_LINE_BYTES: u64 = 1 << 20;
/// Messages read ahead of their use; the protocol is lock-step, so few are ever in flight.
const MAX_QUEUED: usize = 4;
/// How long a lock-step answer may take before the other side is given up.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a measurement may stand still before it is given up.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Version of the messages; both sides must have the same.
pub(crate) const PROTOCOL: u32 = 2;
/// Most characters shown of what the other side said.
const MAX_SHOWN: usize = 1000;

/// What the two sides say to each other, in the order of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// First message each way.
    Hello {
        /// [`PROTOCOL`] of the sender.
        protocol: u32,
        /// What the bench that started this process told it, empty between hosts.
        token: String,
    },
    /// Passive to active: this end has a device.
    Ready {
        /// Its largest path MTU in bytes.
        max_mtu: u32,
    },
    /// Active to passive: open your end of this.
    Prepare(Task),
    /// Where the sender's end can be reached: answer to `Prepare`, then the active side's own.
    Endpoint(EndpointInfo),
    /// Passive to active: connected to your end.
    Connected,
    /// Active to passive: take part in this many iterations.
    Go(u64),
    /// Passive to active: ready, begin.
    Running,
    /// Active to passive: no more will come.
    Stop,
    /// Passive to active: what arrived in the iterations.
    Done {
        /// Messages that arrived, where the passive side sees them; else 0.
        received: u64,
    },
    /// Active to passive: close your end.
    Finish,
    /// Either way: this end cannot go on, and why.
    Failed(String),
    /// Active to passive: the session is over.
    Bye,
}

/// How to reach one end of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EndpointInfo {
    /// UDP or TCP port of a baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    /// Queue pairs of a verbs measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) qps: Vec<QpInfo>,
}

/// What the other side must know of a queue pair and the memory behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QpInfo {
    /// The queue pair, in the text form of `vernic::Endpoint`.
    pub(crate) endpoint: String,
    /// Start of the memory that WRITE, READ and ATOMIC reach.
    pub(crate) address: u64,
    /// Key of that memory.
    pub(crate) rkey: u32,
    /// Bytes of it.
    pub(crate) length: u64,
}

/// One end of the control connection.
#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    inbox: Receiver<Outcome<Message>>,
    /// Messages, the closing of the connection included, that the reader has taken in.
    arrived: Arc<AtomicU64>,
    /// Messages taken from the inbox.
    taken: Cell<u64>,
    /// A message that came while a loop was spinning: the next to be received.
    early: RefCell<Option<Message>>,
}

impl Control {
    /// Takes over a fresh connection and starts its reader. `on_gone` runs when the other side has
    /// closed: a bench's child process ends itself there.
    pub(crate) fn new(stream: TcpStream, on_gone: impl FnOnce() + Send + 'static) -> Outcome<Self> {
        let attempt = || "set up the control connection".to_string();
        stream.set_nodelay(true).doing(attempt)?;
        // One that never reads fills its window, and would hold up the sender.
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).doing(attempt)?;
        let reading = stream.try_clone().doing(attempt)?;
        let arrived = Arc::new(AtomicU64::new(0));
        let (sender, inbox) = sync_channel(MAX_QUEUED);
        let reader_arrived = Arc::clone(&arrived);
        std::thread::Builder::new()
            .name("vernic-control".into())
            .spawn(move || {
                read_messages(reading, &sender, &reader_arrived);
                on_gone();
            })
            .doing(|| "start the control thread".into())?;
        Ok(Self { stream, inbox, arrived, taken: Cell::new(0), early: RefCell::new(None) })
    }

    /// Says hello and checks the other side's.
    pub(crate) fn greet(&self, token: &str) -> Outcome<()> {
        self.say_hello(token)?;
        self.hear_hello(token, ANSWER_TIMEOUT)
    }

    /// The first half of [`Control::greet`].
    pub(crate) fn say_hello(&self, token: &str) -> Outcome<()> {
        self.send(&Message::Hello { protocol: PROTOCOL, token: token.into() })
    }

    /// The second half of [`Control::greet`], which waits up to `limit`.
    pub(crate) fn hear_hello(&self, token: &str, limit: Duration) -> Outcome<()> {
        match self.receive_within(limit)? {
            Message::Hello { protocol: PROTOCOL, token: theirs } if theirs == token => Ok(()),
            Message::Hello { protocol: PROTOCOL, .. } => {
                Err(Failure::new("a process that this bench did not start connected to it"))
            }
            Message::Hello { protocol, .. } => Err(Failure::new(format!(
                "the other side speaks version {protocol} of the bench protocol, this one {PROTOCOL}"
            ))
            .hint("install the same version of vernic on both hosts")),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends one message.
    pub(crate) fn send(&self, message: &Message) -> Outcome<()> {
        let mut line = serde_json::to_vec(message).doing(|| "write a control message".into())?;
        line.push(b'\n');
        (&self.stream).write_all(&line).map_err(|_| gone())
    }

    /// Waits for the next message; the other side's failure is returned as this side's.
    pub(crate) fn receive(&self) -> Outcome<Message> {
        self.receive_within(ANSWER_TIMEOUT)
    }

    /// As [`Control::receive`], with a limit of the caller's.
    pub(crate) fn receive_within(&self, limit: Duration) -> Outcome<Message> {
        if let Some(message) = self.early.take() {
            return Ok(message);
        }
        let message = match self.inbox.recv_timeout(limit) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = limit.as_secs();
                return Err(Failure::new(format!(
                    "the other side has not answered for {seconds} s"
                )));
            }
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        };
        self.take(message)
    }

    /// Takes the next message, if it is there, to find out whether the other side has failed; what
    /// else it said is kept for the next receive.
    fn check_other_side(&self) -> Outcome<()> {
        if self.has_news() && self.early.borrow().is_none() {
            let message = self.receive()?;
            self.early.replace(Some(message));
        }
        Ok(())
    }

    fn take(&self, message: Outcome<Message>) -> Outcome<Message> {
        self.taken.set(self.taken.get() + 1);
        match message? {
            Message::Failed(why) => {
                Err(Failure::new(format!("the other side failed: {}", presentable(&why))))
            }
            message => Ok(message),
        }
    }

    /// Waits for exactly this message.
    pub(crate) fn expect(&self, expected: &Message) -> Outcome<()> {
        match self.receive()? {
            message if message == *expected => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// True when a message came, or the other side is gone, since the last receive.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.arrived.load(Ordering::Relaxed) > self.taken.get()
    }

    /// Address of the other side.
    pub(crate) fn peer_ip(&self) -> Outcome<std::net::IpAddr> {
        Ok(self.stream.peer_addr().doing(|| "see who the other side is".into())?.ip())
    }

    /// Address of this side as the other sees it.
    pub(crate) fn local_ip(&self) -> Outcome<std::net::IpAddr> {
        Ok(self.stream.local_addr().doing(|| "see this side's address".into())?.ip())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The reader holds a copy of the socket: without this it would sleep on, and so would the
        // other side. An error means that the connection is already closed.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn read_messages(stream: TcpStream, sender: &SyncSender<Outcome<Message>>, arrived: &AtomicU64) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        let message = match read {
            Ok(_) if line.last() == Some(&b'\n') => serde_json::from_slice(&line)
                .doing(|| "understand what the other side of the bench said".into()),
            _ => Err(gone()),
        };
        let last = message.is_err();
        // Counted first: who sees the count change may sleep in receive for the message itself.
        arrived.fetch_add(1, Ordering::Relaxed);
        if sender.send(message).is_err() || last {
            return;
        }
    }
}

fn gone() -> Failure {
    Failure::new("the other side of the bench is gone")
}

/// The failure for a message out of order.
pub(crate) fn unexpected(message: &Message) -> Failure {
    let said = presentable(&format!("{message:?}"));
    Failure::new(format!("the other side of the bench said {said} out of turn"))
}

/// What the other side said, fit for a terminal: it may be anybody, and may say anything.
fn presentable(text: &str) -> String {
    let safe = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = text.chars().take(MAX_SHOWN).map(safe).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Keeps a spinning loop from spinning for ever: call [`Watch::idle`] after each fruitless poll.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    control: &'a Control,
    fruitless: u32,
    since: Option<Instant>,
}

/// Fruitless polls between two looks at the clock (about 20 us of spinning on an empty queue).
const POLLS_PER_LOOK: u32 = 1024;

impl<'a> Watch<'a> {
    /// A watch on the loop that talks to `control`'s other side.
    pub(crate) fn new(control: &'a Control) -> Self {
        Self { control, fruitless: 0, since: None }
    }

    /// How long nothing has happened, as far as the clock was looked at.
    pub(crate) fn standstill(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Something happened.
    #[inline]
    pub(crate) fn progress(&mut self) {
        self.fruitless = 0;
        self.since = None;
    }

    /// Nothing happened. Fails when the other side reported a failure or died, or when nothing has
    /// happened for [`STALL_TIMEOUT`]. `waiting_for` completes "no ... for 10 s".
    #[inline]
    pub(crate) fn idle(&mut self, waiting_for: &str) -> Outcome<()> {
        std::hint::spin_loop();
        self.fruitless += 1;
        if self.fruitless >= POLLS_PER_LOOK { self.look(waiting_for) } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self, waiting_for: &str) -> Outcome<()> {
        self.fruitless = 0;
        self.control.check_other_side()?;
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < STALL_TIMEOUT {
            return Ok(());
        }
        Err(Failure::new(format!("no {waiting_for} for {} s", STALL_TIMEOUT.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::mpsc::channel;

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn pair() -> (Control, Control) {
        let (one, other) = sockets();
        (Control::new(one, || ()).unwrap(), Control::new(other, || ()).unwrap())
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (a, b) = pair();
        let qp = QpInfo { endpoint: "qpn=1".into(), address: u64::MAX, rkey: 9, length: 1 };
        let endpoint = EndpointInfo { qps: vec![qp; 3], ..EndpointInfo::default() };
        let sent = [
            Message::Go(3),
            Message::Endpoint(endpoint),
            Message::Done { received: 1 },
            Message::Bye,
        ];
        for message in &sent {
            a.send(message).unwrap();
        }
        for message in &sent {
            b.expect(message).unwrap();
        }
    }

    #[test]
    fn a_token_that_differs_is_refused() {
        let (a, b) = pair();
        let other = std::thread::spawn(move || b.greet("yours"));
        let failure = a.greet("mine").unwrap_err();
        assert!(failure.what().contains("did not start"), "{failure}");
        assert!(other.join().unwrap().is_err());
    }

    #[test]
    fn a_spinning_loop_learns_that_the_other_side_died() {
        let (one, other) = sockets();
        let (told, hear) = channel();
        let a = Control::new(one, move || told.send(()).unwrap()).unwrap();
        drop(other);
        hear.recv().unwrap();
        assert!(a.has_news());
        let mut watch = Watch::new(&a);
        let failure = (0..POLLS_PER_LOOK).find_map(|_| watch.idle("completion").err()).unwrap();
        assert!(failure.what().contains("is gone"), "{failure}");
    }

    #[test]
    fn what_comes_while_a_loop_spins_is_received_after_it() {
        let (a, b) = pair();
        a.send(&Message::Done { received: 1 }).unwrap();
        while !b.has_news() {
            std::thread::yield_now();
        }
        let mut watch = Watch::new(&b);
        for _ in 0..2 * POLLS_PER_LOOK {
            watch.idle("message").unwrap();
        }
        b.expect(&Message::Done { received: 1 }).unwrap();
    }

    #[test]
    fn a_failure_of_the_other_side_is_told_in_its_words() {
        let (a, b) = pair();
        a.send(&Message::Failed("no device named x".into())).unwrap();
        let failure = b.receive().unwrap_err();
        assert_eq!(failure.what(), "the other side failed: no device named x");
    }

    #[test]
    fn what_a_stranger_says_is_shown_without_its_control_characters_and_cut() {
        let (a, b) = pair();
        a.send(&Message::Failed(format!("\u{1b}[2J{}", "x".repeat(2 * MAX_SHOWN)))).unwrap();
        let what = b.receive().unwrap_err().what().to_owned();
        assert!(what.starts_with("the other side failed:  [2Jxxx"), "{what}");
        assert!(what.len() < MAX_SHOWN + 100, "{}", what.len());
    }

    #[test]
    fn garbage_on_the_connection_is_an_error_and_not_a_panic() {
        let (mut one, other) = sockets();
        let b = Control::new(other, || ()).unwrap();
        one.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(b.receive().unwrap_err().what().contains("cannot understand"));
    }
}
