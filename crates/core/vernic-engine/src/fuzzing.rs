//! Parsers of what other processes of the host send, for the fuzz targets.
//!
//! Exists in builds with `--cfg fuzzing` only, which `cargo fuzz` sets; no part of the API.

use vernic_io::local::MessageHead;
use vernic_proto::MessagePart;
use vernic_wire::Qpn;

use crate::local::message_head;
use crate::local::messages::GrantMessage;
use crate::local::rendezvous::RendezvousRecord;

/// Parses a message about grants between local peers, and emits it again.
pub fn grant_message(bytes: &[u8]) -> Option<Vec<u8>> {
    GrantMessage::parse(bytes).map(|message| message.emit())
}

/// Parses a rendezvous record, and emits it again.
pub fn rendezvous_record(bytes: &[u8]) -> Option<Vec<u8>> {
    let record = RendezvousRecord::parse(bytes)?;
    let mut emitted = vec![0; bytes.len()];
    let len = record.emit(&mut emitted)?;
    emitted.truncate(len);
    Some(emitted)
}

/// Returns what the head of a message in a ring names, and its payload, of the bytes behind the
/// head.
pub fn part_of(head: MessageHead, bytes: &[u8]) -> Option<(Qpn, MessagePart, &[u8])> {
    message_head::part_of(head, bytes)
}

/// Returns the head of a message in a ring.
pub fn head_of(dest: Qpn, part: &MessagePart) -> MessageHead {
    message_head::head_of(dest, part)
}
