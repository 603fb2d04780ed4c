//! Requests of `vernic fabric` to a fabric process, and their answers: texts, in JSON.
//!
//! A request is one message. Its answer may be long, so it comes in parts:
//!
//! ```text
//!  byte   0..3   4      5
//!       +------+------+-----------+
//!       | head | last | text      |
//!       +------+------+-----------+
//! ```

use crate::bytes::{Reader, Writer};
use crate::connection::Connection;
use crate::error::AttachError;
use crate::hello::Purpose;
use crate::{HEAD, MAX_MESSAGE};

const REQUEST: u8 = 0x40;
const ANSWER: u8 = 0x41;

/// Bytes of the longest answer: the whole state of the largest fabric.
pub const MAX_ANSWER: usize = 256 * 1024 * 1024;

/// Bytes of the longest request.
pub const MAX_REQUEST: usize = MAX_MESSAGE - HEAD;

/// Returns the message of a request; a text beyond [`MAX_REQUEST`] is cut.
pub fn emit_request(text: &str) -> Vec<u8> {
    Writer::new(REQUEST).bytes(&text.as_bytes()[..text.len().min(MAX_REQUEST)]).done()
}

/// Reads a request; `None` if the message is none.
pub fn parse_request(message: &[u8]) -> Option<&str> {
    let (REQUEST, body) = Reader::new(message)? else { return None };
    std::str::from_utf8(body.rest()).ok()
}

/// Returns the messages of an answer.
pub fn answer(text: &str) -> Vec<Vec<u8>> {
    let bytes = text.as_bytes();
    let mut parts: Vec<_> = bytes.chunks(MAX_MESSAGE - HEAD - 1).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    let count = parts.len();
    let part = |(i, part): (usize, &&[u8])| {
        Writer::new(ANSWER).u8(u8::from(i + 1 == count)).bytes(part).done()
    };
    parts.iter().enumerate().map(part).collect()
}

/// Reads a part of an answer: its bytes, and whether it is the last; `None` if the message is none.
pub fn parse_answer(message: &[u8]) -> Option<(&[u8], bool)> {
    let (ANSWER, mut body) = Reader::new(message)? else { return None };
    let is_last = body.boolean()?;
    Some((body.rest(), is_last))
}

fn is_last(message: &[u8]) -> bool {
    parse_answer(message).is_none_or(|(_, is_last)| is_last)
}

/// A connection that asks for the state of a fabric and changes it.
#[derive(Debug)]
pub struct ControlClient(Connection);

impl ControlClient {
    /// Connects to the fabric called `fabric`.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn connect(fabric: &str) -> Result<Self, AttachError> {
        Connection::connect(fabric, Purpose::Control).map(Self)
    }
    /// Asks over a connection that is there.
    pub const fn over(connection: Connection) -> Self {
        Self(connection)
    }
    /// Sends a request, and waits for its answer.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn ask(&self, request: &str) -> Result<String, AttachError> {
        self.0.request(&emit_request(request))?;
        let mut bytes = Vec::new();
        loop {
            let message = self.0.answer_part(is_last)?;
            let malformed = AttachError::Malformed { what: "an answer to a request" };
            let Some((part, is_last)) = parse_answer(&message) else { return Err(malformed) };
            bytes.extend_from_slice(part);
            match is_last {
                true => return String::from_utf8(bytes).map_err(|_| malformed),
                false if bytes.len() > MAX_ANSWER => return Err(malformed),
                false => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_parts_of_a_message_each() {
        for len in [0, 1, MAX_MESSAGE - 5, MAX_MESSAGE - 4, 200_000] {
            let text = "x".repeat(len);
            let messages = answer(&text);
            let mut bytes = Vec::new();
            for (i, message) in messages.iter().enumerate() {
                assert!(message.len() <= MAX_MESSAGE);
                let (part, is_last) = parse_answer(message).unwrap();
                assert_eq!(is_last, i + 1 == messages.len());
                bytes.extend_from_slice(part);
            }
            assert_eq!(bytes, text.as_bytes());
        }
        assert_eq!(parse_request(&emit_request("{}")), Some("{}"));
        assert_eq!(parse_request(&[REQUEST, 0, 0, 0, 0xFF]), None);
        assert_eq!(parse_request(&[ANSWER, 0, 0, 0, b'x']), None);
        assert_eq!(parse_answer(&[ANSWER, 0, 0, 0, 2]), None);
    }
}
