//! Messages that local peers send to each other over their connection.
//!
//! ```text
//!  byte  0..4    4       5..8      8..16      16..20          20..
//!       +-------+-------+---------+----------+---------------+------------------+
//!       | magic | kind  | zero    | engine   | ring capacity | slots, 16 bits   |  hello, welcome
//!       +-------+-------+---------+----------+---------------+------------------+
//!       | magic | kind  | body                                                  |  others
//!       +-------+-------+-------------------------------------------------------+
//! ```
//!
//! Numbers are in the order of bytes of this machine, since both ends are on it. The last byte of
//! the magic is the version: a process of another version is not connected to, and packets go by
//! UDP.

use vernic_io::host::Slot;

const MAGIC: [u8; 4] = *b"VN\x00\x06";
const HEAD: usize = 5;
/// Bytes of a hello before its slots.
const HELLO_HEAD: usize = 20;

/// Longest message: a hello of a process that has every slot.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4096;

/// Longest body of a message that [`PeerProcess::send`](super::PeerProcess::send) sends.
pub const MAX_PAYLOAD_BYTES: usize = MAX_MESSAGE_BYTES - HEAD;

/// Files with a hello or welcome: the ring that its sender reads, and its sender's page.
pub(crate) const HELLO_FILES: usize = 2;

/// The contents of a hello or welcome: the sender's engine, ring and slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// A random number that stands for the engine, whatever slots it has.
    pub(crate) engine: u64,
    /// Capacity of the ring that comes with the message.
    pub(crate) ring_bytes: u32,
    /// The slots that the engine has.
    pub(crate) slots: Vec<Slot>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerMessage {
    /// A hello, from the process that has called.
    Hello(Hello),
    /// The answer to a hello.
    Welcome(Hello),
    /// The caller has understood the welcome: from now on the caller's ring may be written to.
    Ready,
    /// The slots that the sender has now.
    Slots(Vec<Slot>),
    /// The bell: there is something new in the ring.
    Ring,
    /// The sender closes in order.
    Bye,
    /// A message of a higher layer.
    Payload(Vec<u8>),
}

const HELLO: u8 = 0;
const WELCOME: u8 = 1;
const READY: u8 = 2;
const SLOTS: u8 = 3;
const BYE: u8 = 4;
const PAYLOAD: u8 = 5;
const RING: u8 = 6;

/// The bytes of [`PeerMessage::Ring`], ready to be sent.
pub(crate) const RING_BYTES: [u8; 5] = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], RING];

fn push_slots(bytes: &mut Vec<u8>, slots: &[Slot]) {
    slots.iter().for_each(|slot| bytes.extend(slot.value().to_ne_bytes()));
}

fn parse_slots(bytes: &[u8]) -> Option<Vec<Slot>> {
    let slots = bytes.chunks(2).map(|pair| {
        let slot = Slot::new(u16::from_ne_bytes(pair.try_into().ok()?));
        slot.filter(|slot| slot.is_ordinary())
    });
    slots.collect()
}

impl PeerMessage {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            Self::Hello(hello) => hello.emit(HELLO, &mut bytes),
            Self::Welcome(hello) => hello.emit(WELCOME, &mut bytes),
            Self::Ready => bytes.push(READY),
            Self::Slots(slots) => {
                bytes.push(SLOTS);
                push_slots(&mut bytes, slots);
            }
            Self::Ring => bytes.push(RING),
            Self::Bye => bytes.push(BYE),
            Self::Payload(body) => {
                bytes.push(PAYLOAD);
                bytes.extend_from_slice(body);
            }
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (&kind, body) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        match kind {
            HELLO => Hello::parse(body).map(Self::Hello),
            WELCOME => Hello::parse(body).map(Self::Welcome),
            READY => body.is_empty().then_some(Self::Ready),
            SLOTS => parse_slots(body).map(Self::Slots),
            RING => body.is_empty().then_some(Self::Ring),
            BYE => body.is_empty().then_some(Self::Bye),
            PAYLOAD => Some(Self::Payload(body.to_vec())),
            _ => None,
        }
    }
}

impl Hello {
    fn emit(&self, kind: u8, bytes: &mut Vec<u8>) {
        bytes.extend([kind, 0, 0, 0]);
        bytes.extend(self.engine.to_ne_bytes());
        bytes.extend(self.ring_bytes.to_ne_bytes());
        push_slots(bytes, &self.slots);
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let (head, slots) = body.split_at_checked(HELLO_HEAD - HEAD)?;
        Some(Self {
            engine: u64::from_ne_bytes(head[3..11].try_into().ok()?),
            ring_bytes: u32::from_ne_bytes(head[11..].try_into().ok()?),
            slots: parse_slots(slots)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<PeerMessage> {
        let slots = vec![Slot::FIRST, Slot::LAST];
        let hello = Hello { engine: 0x0123_4567_89AB_CDEF, ring_bytes: 1 << 18, slots };
        vec![
            PeerMessage::Hello(hello.clone()),
            PeerMessage::Welcome(hello.clone()),
            PeerMessage::Welcome(Hello { slots: Vec::new(), ..hello.clone() }),
            PeerMessage::Ready,
            PeerMessage::Slots(hello.slots),
            PeerMessage::Ring,
            PeerMessage::Bye,
            PeerMessage::Payload(vec![1, 2, 3]),
            PeerMessage::Payload(Vec::new()),
        ]
    }

    #[test]
    fn what_is_said_is_understood() {
        for message in every_kind() {
            assert_eq!(PeerMessage::parse(&message.emit()), Some(message));
        }
        let all = (1..=Slot::LAST.value()).filter_map(Slot::new).collect();
        let hello = Hello { engine: 1, ring_bytes: 1 << 18, slots: all };
        assert!(PeerMessage::Hello(hello).emit().len() <= MAX_MESSAGE_BYTES);
        assert!(PeerMessage::Payload(vec![0; MAX_PAYLOAD_BYTES]).emit().len() <= MAX_MESSAGE_BYTES);
    }

    #[test]
    fn the_bell_is_a_message_like_others() {
        assert_eq!(PeerMessage::Ring.emit(), RING_BYTES);
    }

    #[test]
    fn what_is_cut_off_or_of_another_version_is_not_understood() {
        for message in every_kind() {
            let mut bytes = message.emit();
            for len in 0..bytes.len() {
                // A list of slots may end early, and so may the body of `Told`.
                if let Some(other) = PeerMessage::parse(&bytes[..len]) {
                    assert_eq!(std::mem::discriminant(&other), std::mem::discriminant(&message));
                }
            }
            bytes[3] += 1;
            assert_eq!(PeerMessage::parse(&bytes), None);
        }
        let mut bytes = PeerMessage::Ready.emit();
        bytes.push(0);
        assert_eq!(PeerMessage::parse(&bytes), None);
        bytes[4] = 77;
        assert_eq!(PeerMessage::parse(&bytes), None);
        let nobody = [&MAGIC[..], &[SLOTS, 0, 0]].concat();
        assert_eq!(PeerMessage::parse(&nobody), None, "no process has slot 0");
    }
}
