//! Waiting for the events of one id.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_cm::{Event, EventChannel, EventKind, Id, Param, RejReason};

use super::CmError;
use crate::{Device, sys};

/// An id with a channel of its own. It is destroyed with the last reference to it, and then the
/// peer hears what is due; an event that is being looked at is one.
#[derive(Debug)]
pub(super) struct OwnId {
    pub(super) id: Arc<Id>,
    pub(super) channel: Arc<EventChannel>,
}

/// What has come of a wait, in the words of this API.
#[derive(Debug)]
pub(super) enum Told {
    /// Something that the caller waits for, or else ignores.
    Event(Event),
    /// Nothing within the time.
    Nothing,
}

impl OwnId {
    pub(super) fn new(id: Arc<Id>, channel: Arc<EventChannel>) -> Self {
        Self { id, channel }
    }

    /// Its device. An id gets one by an address, before it comes here.
    pub(super) fn device(&self) -> Result<Device, CmError> {
        let context = self.id.context();
        let context = context.ok_or(vernic_cm::Error::NoDevice { call: "device" })?;
        Ok(Device::of(context, self.id.local_addr().map(|addr| addr.ip())))
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.id.local_addr().unwrap_or_else(unspecified)
    }

    /// Name of the fabric, of an id on InfiniBand.
    pub(super) fn fabric(&self) -> Option<String> {
        self.id.fabric_host().map(|(fabric, _)| fabric.to_owned())
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        self.id.peer_addr().unwrap_or_else(unspecified)
    }

    /// The next event; waits for it until `until`, for ever without one.
    pub(super) fn wait(&self, until: Option<Instant>) -> Result<Told, CmError> {
        // Each turn sleeps until the descriptor is readable, a signal comes or the time is over.
        loop {
            if let Some(event) = self.channel.try_next() {
                return Ok(Told::Event(event));
            }
            if self.channel.is_orphan() {
                return Err(vernic_cm::Error::Orphan.into());
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Told::Nothing);
            }
            sys::wait_readable(self.channel.as_fd(), left).map_err(CmError::Wait)?;
        }
    }

    /// Waits for one of `kinds`, at most `timeout`.
    pub(super) fn wait_for(
        &self,
        kinds: &[EventKind],
        timeout: Duration,
    ) -> Result<Event, CmError> {
        let until = Instant::now() + timeout;
        loop {
            match self.wait(Some(until))? {
                Told::Event(event) => {
                    if let Some(event) = self.sort(event, kinds)? {
                        return Ok(event);
                    }
                }
                Told::Nothing => {
                    return Err(CmError::Timeout { peer: self.peer_addr(), timeout });
                }
            }
        }
    }

    /// The event, if it is one of `kinds`; `None` for others that do no harm.
    ///
    /// # Errors
    /// What the event tells, if that is a failure.
    pub(super) fn sort(&self, event: Event, kinds: &[EventKind]) -> Result<Option<Event>, CmError> {
        if kinds.contains(&event.kind) && event.status == 0 {
            return Ok(Some(event));
        }
        let peer = self.peer_addr();
        let status = event.status;
        match (event.kind, event.param) {
            (EventKind::Rejected, param) => Err(CmError::Rejected {
                peer,
                reason: RejReason(status as u16),
                private_data: data_of(param),
            }),
            (EventKind::Unreachable, param) if status > 0 => {
                Err(CmError::NotServed { peer, status: status as u8, private_data: data_of(param) })
            }
            (EventKind::Unreachable, _) => {
                Err(CmError::Unreachable { peer, fabric: self.fabric() })
            }
            (EventKind::Disconnected, _) => Err(CmError::Disconnected { peer }),
            (kind, _) if status != 0 => Err(vernic_cm::Error::Failed { kind, status }.into()),
            _ => Ok(None),
        }
    }
}

/// The private data of an event.
pub(super) fn data_of(param: Param) -> Vec<u8> {
    match param {
        Param::Conn(info) => info.private_data,
        Param::Ud(info) => info.private_data,
        _ => Vec::new(),
    }
}

/// Where nothing is: of an id that the parent of this process made.
fn unspecified() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

impl AsFd for OwnId {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl AsRawFd for OwnId {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}
