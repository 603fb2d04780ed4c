//! Mapped buffers and direct writes.

use std::time::{Duration, Instant};

use super::{Connection, Core};
use crate::Error;
use crate::memory::UserMemory;
use crate::pieces::Outgoing;
use crate::wake::lock;
use crate::wire::{IomapEntry, RemoteSge};

/// Most buffers of one socket that are mapped for local use only.
const MAX_LOCAL: usize = 1 << 16;

/// The user's buffers that are mapped.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// Each with its entry in the peer's table, if the peer knows it.
    list: Vec<(UserMemory, Option<u16>)>,
}

impl Mappings {
    /// Whether the peer writes into one.
    pub(super) fn are_for_peer(&self) -> bool {
        self.list.iter().any(|(_, entry)| entry.is_some())
    }
}

impl Connection {
    /// Maps a buffer: for the peer, which is told that it is at `offset` before the next data; or
    /// for this side alone.
    ///
    /// # Safety
    /// The contract of [`Pd::reg_mr`](vernic_engine::Pd::reg_mr), until [`unmap`](Self::unmap) or
    /// until the connection is dropped.
    #[allow(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub(crate) unsafe fn map(
        &self,
        addr: *mut u8,
        len: usize,
        offset: Option<u64>,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let memory = unsafe { UserMemory::register(&self.pd, addr, len, offset.is_some()) }?;
        let mut core = lock(&self.core);
        if core.mappings.list.len() >= MAX_LOCAL {
            return Err(Error::Mapping("too many mapped buffers"));
        }
        let entry = match offset {
            None => None,
            Some(offset) => {
                let long = Error::Mapping("a mapped buffer has at most 4 GiB - 1");
                let buffer = memory.remote().ok_or(long)?;
                let full = Error::Mapping("the peer's table of mapped buffers is full");
                Some(core.stream.map(IomapEntry { offset, buffer }).ok_or(full)?)
            }
        };
        core.mappings.list.push((memory, entry));
        self.stay_awake(&core);
        Ok(())
    }

    /// Ends a mapping; nothing accesses the buffer when this has returned.
    pub(crate) fn unmap(&self, addr: usize, len: usize) -> Result<(), Error> {
        let mut core = lock(&self.core);
        let at = core.mappings.list.iter().position(|(memory, _)| memory.is(addr, len));
        let at = at.ok_or(Error::Mapping("no buffer is mapped there with this length"))?;
        let (memory, entry) = core.mappings.list.swap_remove(at);
        if let Some(entry) = entry {
            core.stream.unmap(entry);
        }
        drop(core);
        drop(memory);
        Ok(())
    }

    /// Writes to where the peer has mapped `offset` and on. Ends early where nothing is mapped.
    pub(crate) fn write_direct(
        &self,
        bytes: &mut Outgoing<'_>,
        mut offset: u64,
        nonblocking: bool,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let _turn = lock(&self.sender);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let all = bytes.left();
        // Each turn writes something or waits.
        while bytes.left() > 0 {
            let sent = all - bytes.left();
            let Some(entry) = self.memory.find_iomap(offset) else { return Ok(sent) };
            let room = entry.room_at(offset).unwrap_or(0);
            let wanted = u32::try_from(bytes.left()).unwrap_or(u32::MAX).min(room);
            let mut core = lock(&self.core);
            let mut len = core.stream.next_direct_len(wanted);
            if len == 0 {
                self.progress(&mut core);
                len = core.stream.next_direct_len(wanted);
            }
            if len > 0 {
                let RemoteSge { addr, rkey, .. } = entry.buffer;
                let addr = addr.wrapping_add(offset - entry.offset);
                let to = RemoteSge { addr, rkey, length: len };
                let place = core.stream.place(len);
                let (before, mut is_sent) = (bytes.clone(), false);
                let mut core = self.copy_in(core, place, bytes, len, |core, user| {
                    if let Some(write) = core.stream.write_direct(len, to) {
                        self.post(core, &write, user);
                        is_sent = true;
                    }
                });
                self.changed(&mut core);
                // Else another thread has mapped a buffer meanwhile, which goes first, or the
                // stream was shut down.
                match is_sent {
                    true => offset += u64::from(len),
                    false => *bytes = before,
                }
                continue;
            }
            let over = !core.stream.may_send();
            // Who has sent some is told the next time.
            let failure = if over && sent == 0 { core.failure.take() } else { None };
            drop(core);
            match failure {
                _ if sent > 0 && (over || nonblocking) => return Ok(sent),
                Some(failure) => return Err(Error::Failed(failure)),
                None if over => return Err(Error::Shut),
                None if nonblocking => return Err(Error::WouldBlock),
                None => {}
            }
            let has_room =
                |core: &Core| core.stream.next_direct_len(1) != 0 || !core.stream.may_send();
            match self.wait(deadline, has_room) {
                Err(_) if sent > 0 => return Ok(sent),
                waited => waited?,
            }
        }
        Ok(all)
    }
}
