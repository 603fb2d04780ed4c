//! One neighbour as long as it is there: its connection, and what comes over it.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::hello::{Hello, Said};
use super::neighbourhood::is_for_later;
use super::ring::RingWriter;
use super::{Event, Neighbour};
use crate::slot::Slot;
use crate::sys::{self, OwnFd, Packet};

/// A neighbour, as long as it is there.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) key: u64,
    pub(super) neighbour: Arc<Neighbour>,
    pub(super) engine: u64,
    pub(super) slots: Vec<Slot>,
    /// Until it is ready.
    pub(super) writer: Option<RingWriter>,
    /// Of ourselves: the other end of the connection, at which it is heard.
    pub(super) ear: Option<OwnFd>,
    /// It was not told yet which slots we have.
    pub(super) owed_slots: bool,
    pub(super) said_bye: bool,
}

/// What becomes of a connection after a message.
pub(super) enum Next {
    Stay,
    /// The message is lost: there was no descriptor for its file.
    Short,
    Close {
        in_order: bool,
    },
    Expel(&'static str),
}

impl Open {
    pub(super) fn new(key: u64, neighbour: Arc<Neighbour>, hello: &Hello) -> Self {
        Self {
            key,
            neighbour,
            engine: hello.engine,
            slots: hello.slots.clone(),
            writer: None,
            ear: None,
            owed_slots: false,
            said_bye: false,
        }
    }

    /// The next of its messages; `None` if there is none now.
    pub(super) fn hear(&self, buf: &mut [u8]) -> Option<io::Result<Packet>> {
        let own = self.neighbour.connection.get();
        let fd = self.ear.as_ref().or(own.as_deref())?;
        let packet = sys::recv_packet(fd.as_fd(), buf);
        (!packet.as_ref().is_err_and(is_for_later)).then_some(packet)
    }

    /// Takes a message.
    pub(super) fn take(&mut self, buf: &[u8], packet: Packet, events: &mut Vec<Event>) -> Next {
        let from = self.neighbour.id;
        let Packet { len, truncated, mut files, .. } = packet;
        let said = buf.get(..len).filter(|_| !truncated).and_then(Said::parse);
        let may_have_files = matches!(said, Some(Said::Told(_)));
        if files.len() > usize::from(may_have_files) {
            return Next::Expel("a message with files that it must not have");
        }
        match said {
            Some(Said::Ready) => match self.writer.take() {
                Some(writer) => {
                    events.push(Event::Ready { from, writer });
                    events.push(Event::Slots { from, slots: self.slots.clone() });
                }
                None => return Next::Expel("it is ready twice"),
            },
            Some(Said::Slots(slots)) => {
                self.slots.clone_from(&slots);
                events.push(Event::Slots { from, slots });
            }
            Some(Said::Ring) => {}
            Some(Said::Bye) => self.said_bye = true,
            Some(Said::Told(bytes)) => {
                let file = files.pop().map(OwnFd::give_away);
                events.push(Event::Message { from, bytes, file });
            }
            Some(Said::Hello(_) | Said::Welcome(_)) | None => {
                return Next::Expel("a message that nobody says");
            }
        }
        Next::Stay
    }
}
