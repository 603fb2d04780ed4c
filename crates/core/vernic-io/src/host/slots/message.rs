//! Questions and answers between processes of one host.
//!
//! ```text
//!  byte  0..4    4..20            20..22   22..24 (answers)
//!       +-------+----------------+--------+--------------+
//!       | magic | address as GID |  slot  | private port |   numbers big-endian
//!       +-------+----------------+--------+--------------+
//! ```
//!
//! With an answer that names a port comes the descriptor of the receiver page (`receiver_page.rs`),
//! if the process has shared memory.
//!
//! The last byte of the magic is the version. Processes with different versions of Vernic do not
//! understand each other, and use port 4791.

use std::net::IpAddr;

use vernic_wire::Gid;

use super::Slot;

const QUESTION: [u8; 4] = *b"VQ\x00\x01";
const ANSWER: [u8; 4] = *b"VA\x00\x01";

/// Longest message.
pub(super) const MAX_MESSAGE_BYTES: usize = 24;

/// A question: does the process serve this address?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) ip: IpAddr,
    pub(super) slot: Slot,
}

impl Question {
    pub(super) fn emit(&self) -> [u8; 22] {
        let mut bytes = [0; 22];
        bytes[..4].copy_from_slice(&QUESTION);
        bytes[4..20].copy_from_slice(&Gid::from_ip(self.ip).0);
        bytes[20..].copy_from_slice(&self.slot.value().to_be_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (ip, slot, rest) = parse_head(QUESTION, bytes)?;
        rest.is_empty().then_some(Self { ip, slot })
    }
}

/// An answer: the process serves the address on this port, or not at all (port 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) ip: IpAddr,
    pub(super) slot: Slot,
    pub(super) private_port: u16,
}

impl Answer {
    pub(super) fn emit(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..22].copy_from_slice(&Question { ip: self.ip, slot: self.slot }.emit());
        bytes[..4].copy_from_slice(&ANSWER);
        bytes[22..].copy_from_slice(&self.private_port.to_be_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (ip, slot, rest) = parse_head(ANSWER, bytes)?;
        let private_port = u16::from_be_bytes(rest.try_into().ok()?);
        Some(Self { ip, slot, private_port })
    }
}

fn parse_head(magic: [u8; 4], bytes: &[u8]) -> Option<(IpAddr, Slot, &[u8])> {
    let rest = bytes.strip_prefix(&magic)?;
    let (gid, rest) = rest.split_first_chunk::<16>()?;
    let (slot, rest) = rest.split_first_chunk::<2>()?;
    Some((Gid(*gid).to_ip(), Slot::new(u16::from_be_bytes(*slot))?, rest))
}

/// Parses a message and emits it again.
#[cfg(fuzzing)]
pub(crate) fn parse_and_emit(bytes: &[u8]) -> Option<Vec<u8>> {
    let question = Question::parse(bytes).map(|question| question.emit().to_vec());
    question.or_else(|| Answer::parse(bytes).map(|answer| answer.emit().to_vec()))
}
