//! A connected local peer: its connection, and the messages that arrive over the connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use vernic_io::Nanos;
use vernic_io::host::Slot;
use vernic_sys::{self as sys, EpollOp, OwnFd, Packet};

use super::Event;
use crate::hello::{Hello, PeerMessage};
use crate::process::PeerProcess;
use crate::ring::RingWriter;

/// Messages of one local peer that are handled in [`EARSHOT_NANOS`], bells not counted. Each costs
/// the lane some microseconds at most.
pub(super) const MAX_HEARD: usize = 32;
/// The time in which [`MAX_HEARD`] messages are handled: a millisecond.
const EARSHOT_NANOS: u64 = 1_000_000;

/// The epoll events that a connection is watched for.
pub(super) const READABLE: u32 = libc::EPOLLIN as u32;

/// A connected local peer.
#[derive(Debug)]
pub(super) struct ConnectedPeer {
    pub(super) key: u64,
    pub(super) local_peer: Arc<PeerProcess>,
    pub(super) engine: u64,
    pub(super) slots: Vec<Slot>,
    /// The ring to the local peer, until the peer says that it is ready.
    pub(super) writer: Option<RingWriter>,
    /// The far end of the connection, where messages are read. Only for the connection of this
    /// process with itself.
    pub(super) ear: Option<Arc<OwnFd>>,
    /// Whether the local peer has not been sent our present slots yet.
    pub(super) owed_slots: bool,
    pub(super) said_bye: bool,
    /// Messages handled since `since`, bells not counted.
    heard: usize,
    since: Nanos,
    /// Whether the connection is not watched, because the local peer has sent enough for now.
    pub(super) is_muted: bool,
}

/// What to do with a connection after a message.
pub(super) enum Next {
    Stay,
    /// The message is lost: there was no descriptor for its file.
    Short,
    Close {
        in_order: bool,
    },
    Expel(&'static str),
}

impl ConnectedPeer {
    pub(super) fn new(key: u64, local_peer: Arc<PeerProcess>, hello: &Hello) -> Self {
        Self {
            key,
            local_peer,
            engine: hello.engine,
            slots: hello.slots.clone(),
            writer: None,
            ear: None,
            owed_slots: false,
            said_bye: false,
            heard: 0,
            since: Nanos(0),
            is_muted: false,
        }
    }

    /// Returns the socket at which the messages of the local peer are read.
    fn listening(&self) -> Option<Arc<OwnFd>> {
        self.ear.clone().or_else(|| self.local_peer.connection())
    }

    /// Watches the connection, or stops watching it.
    pub(super) fn watch(&mut self, epoll: BorrowedFd<'_>, watched: bool) {
        self.is_muted = !watched;
        let events = if watched { READABLE } else { 0 };
        if let Some(fd) = self.listening() {
            // The descriptor is in the list as long as it is open, so this cannot fail.
            let _ = sys::epoll_watch(epoll, EpollOp::Change, fd.as_fd(), self.key, events);
        }
    }

    /// The time from which messages of the local peer are handled again.
    pub(super) fn heard_again_at(&self) -> Nanos {
        self.since.plus(EARSHOT_NANOS)
    }

    /// Whether the local peer has sent as many messages as are handled in one [`EARSHOT_NANOS`].
    /// Messages are handled by the holder of the lane, and a talkative peer must not keep the lane
    /// from others.
    pub(super) fn has_said_enough(&mut self, now: Nanos) -> bool {
        if now >= self.heard_again_at() {
            (self.heard, self.since) = (0, now);
        }
        self.heard >= MAX_HEARD
    }

    /// Receives the next message; `None` if there is none now.
    pub(super) fn hear(&self, buf: &mut [u8]) -> Option<io::Result<Packet>> {
        let fd = self.listening()?;
        let packet = sys::recv_packet(fd.as_fd(), buf);
        (!packet.as_ref().is_err_and(sys::is_for_later)).then_some(packet)
    }

    /// Handles a message.
    pub(super) fn take(&mut self, buf: &[u8], packet: Packet, events: &mut Vec<Event>) -> Next {
        let from = self.local_peer.id();
        let Packet { len, truncated, mut files, .. } = packet;
        let message = buf.get(..len).filter(|_| !truncated).and_then(PeerMessage::parse);
        let may_have_files = matches!(message, Some(PeerMessage::Payload(_)));
        if files.len() > usize::from(may_have_files) {
            return Next::Expel("a message with files that it must not have");
        }
        self.heard += usize::from(!matches!(message, Some(PeerMessage::Ring)));
        match message {
            Some(PeerMessage::Ready) => match self.writer.take() {
                Some(writer) => events.push(Event::Ready { from, writer }),
                None => return Next::Expel("it is ready twice"),
            },
            Some(PeerMessage::Slots(slots)) => {
                self.slots.clone_from(&slots);
                // Only the latest list of slots counts, in the place of the first.
                let old = events.iter_mut().find_map(|event| match event {
                    Event::Slots { from: peer, slots } if *peer == from => Some(slots),
                    _ => None,
                });
                match old {
                    Some(old) => *old = slots,
                    None => events.push(Event::Slots { from, slots }),
                }
            }
            Some(PeerMessage::Ring) => {}
            Some(PeerMessage::Bye) => self.said_bye = true,
            Some(PeerMessage::Payload(bytes)) => {
                let file = files.pop().map(OwnFd::give_away);
                events.push(Event::Message { from, bytes, file });
            }
            Some(PeerMessage::Hello(_) | PeerMessage::Welcome(_)) | None => {
                return Next::Expel("a message that nobody says");
            }
        }
        Next::Stay
    }
}
