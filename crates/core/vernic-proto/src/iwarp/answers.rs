//! What the peer asked for and has not been sent: its READs and atomics, in their order (RFC 5040,
//! 5.5 (20); RFC 7306, 5.4 (8), 7).
//!
//! At most IRD of them: that is what the buffers of the READ request queue are. READs are read when
//! they are sent, a segment at a time; "the actual read of the buffer contents MAY take place in
//! any order" (RFC 5040, 5.5 (20)). Atomics are carried out before they come here.

use std::collections::VecDeque;

use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    AtomicResponse, Control, DdpHeader, Msn, QueueNumber, RdmapOpcode, ReadRequest, Tagged,
    Terminate, Untagged,
};

use super::layout::{Fpdu, Item, Layout, Source};

/// An answer that is owed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// What is left of a READ: offsets and size move as it is sent (RFC 5040, 4.8).
    Read(ReadRequest),
    /// The answer to an atomic.
    Atomic(AtomicResponse),
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    /// Of the request.
    header: Untagged,
    body: Body,
}

/// The queue of answers, with room for IRD of them.
#[derive(Debug)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    depth: usize,
    /// Number of the next answer to an atomic.
    atomic_msn: Msn,
    /// The oldest one has been sent in part.
    is_begun: bool,
}

impl Answers {
    pub(super) fn new(ird: u32) -> Self {
        let depth = ird as usize;
        Self {
            queue: VecDeque::with_capacity(depth),
            depth,
            atomic_msn: Msn::FIRST,
            is_begun: false,
        }
    }

    /// Whether one more request may come.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < self.depth
    }
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
    /// Whether a message is in the middle: no other may come between its segments.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    pub(super) fn push(&mut self, header: Untagged, body: Body) {
        self.queue.push_back(Answer { header, body });
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.is_begun = false;
    }

    /// The next FPDU of the oldest answer.
    pub(super) fn next(&self, layout: &Layout) -> Option<Fpdu> {
        Some(match self.queue.front()?.body {
            Body::Read(read) => {
                let room = layout.max_ulpdu() - Tagged::LEN as u32;
                let (len, last) = (read.size.min(room), read.size <= room);
                let header = DdpHeader::Tagged(Tagged {
                    control: Control::new(RdmapOpcode::READ_RESPONSE, last),
                    stag: read.sink_stag,
                    offset: read.sink_offset,
                });
                let source = match len {
                    0 => Source::None,
                    _ => Source::Remote { rkey: read.source_stag, addr: read.source_offset },
                };
                Fpdu::new(Item::Answer, &header, &[], source, len)
            }
            Body::Atomic(answer) => {
                let header = DdpHeader::Untagged(Untagged {
                    control: Control::new(RdmapOpcode::ATOMIC_RESPONSE, true),
                    invalidate: Rkey(0),
                    queue: QueueNumber::ATOMIC_RESPONSE,
                    msn: self.atomic_msn,
                    offset: 0,
                });
                let mut rdmap = [0; AtomicResponse::LEN];
                answer.emit(&mut rdmap);
                Fpdu::new(Item::Answer, &header, &rdmap, Source::None, 0)
            }
        })
    }

    /// That FPDU has been taken, with so many bytes of payload.
    pub(super) fn sent(&mut self, len: u32) {
        let Some(answer) = self.queue.front_mut() else { return };
        self.is_begun = false;
        match &mut answer.body {
            Body::Read(read) if read.size > len => {
                read.size -= len;
                read.sink_offset = read.sink_offset.wrapping_add(u64::from(len));
                read.source_offset = read.source_offset.wrapping_add(u64::from(len));
                self.is_begun = true;
                return;
            }
            Body::Read(_) => {}
            Body::Atomic(_) => self.atomic_msn = self.atomic_msn.next(),
        }
        self.queue.pop_front();
    }

    /// What a Terminate says about the oldest answer, which cannot be given: its request, "updated
    /// to reflect the current location of the RDMA Read operation that is in process" (RFC 5040,
    /// 4.8).
    pub(super) fn describe(&self, terminate: Terminate) -> Terminate {
        let Some(answer) = self.queue.front() else { return terminate };
        let Body::Read(read) = answer.body else { return terminate };
        Terminate {
            length_valid: true,
            segment_len: (Untagged::LEN + ReadRequest::LEN) as u16,
            ddp: Some(DdpHeader::Untagged(answer.header)),
            read: Some(read),
            ..terminate
        }
    }
}
