//! Ping-pong over services that may lose a message without a word, UC and UD: who waits for an
//! answer sends again. An answer that comes twice, or late, is known by its number.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use vernic::{Cq, Error, Qpn, WaitError, Wc};

use super::{ROUNDS, TIMEOUT};

/// After this long without an answer a message counts as lost. Far longer than a round trip; one
/// that is only late is sent twice, which does no harm.
const LOST: Duration = Duration::from_millis(20);

/// One end: how its messages are sent and received.
pub(crate) trait End {
    /// Sends the message with this number to the peer's queue pair.
    fn send(&self, number: u64, peer: Qpn) -> Result<(), Error>;
    /// Where receives complete.
    fn cq(&self) -> &Cq;
    /// The number of a message that came; its receive is posted again.
    fn take(&self, wc: &Wc) -> Result<u64, Error>;
}

/// Makes the round trips; returns how many messages were sent again.
pub(crate) fn client(end: &impl End, peer: Qpn) -> Result<u64, Error> {
    let mut repeated = 0;
    for number in 1..=ROUNDS {
        end.send(number, peer)?;
        let (start, mut sent) = (Instant::now(), 1);
        loop {
            match receive(end, LOST)? {
                Some((answer, _)) if answer == number => break,
                Some(_late) => {}
                None if start.elapsed() < TIMEOUT => {
                    end.send(number, peer)?;
                    sent += 1;
                }
                None => {
                    return Err(silence(&format!(
                        "no answer to message {number}, sent {sent} times"
                    )));
                }
            }
        }
        repeated += sent - 1;
    }
    Ok(repeated)
}

/// Answers until the client says over TCP that it is through.
pub(crate) fn server(end: &impl End, stream: &TcpStream) -> Result<(), Error> {
    let mut heard = Instant::now();
    loop {
        match receive(end, LOST)? {
            Some((number, from)) => {
                end.send(number, from)?;
                heard = Instant::now();
            }
            None if has_spoken(stream)? => return Ok(()),
            None if heard.elapsed() < TIMEOUT => {}
            None => return Err(silence("no message from the client")),
        }
    }
}

/// The number of the next message and the queue pair that sent it; `None` if none comes in time.
fn receive(end: &impl End, limit: Duration) -> Result<Option<(u64, Qpn)>, Error> {
    let start = Instant::now();
    loop {
        match end.cq().wait_one(limit.saturating_sub(start.elapsed())) {
            Ok(wc) if wc.is_recv() => return Ok(Some((end.take(&wc)?, wc.src_qpn()))),
            // One of our own sends is complete.
            Ok(_) => {}
            Err(Error::Wait(WaitError::Timeout(..))) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Whether the peer has said something over TCP, or closed the connection.
fn has_spoken(stream: &TcpStream) -> Result<bool, Error> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn silence(what: &str) -> Error {
    let text =
        format!("{what} in {} s: does the peer live, and does UDP 4791 pass?", TIMEOUT.as_secs());
    Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
}
