//! The verbs objects of one measurement: queue pairs, their completion queue and their memory.
//!
//! Memory is one region, in it two areas per queue pair: what goes out, and what comes in.
//!
//! ```text
//!   | out 0 | in 0 | out 1 | in 1 | ...      the peer's WRITE, READ and ATOMIC reach "in"
//! ```
//!
//! All messages of a queue pair use the same two areas, as in perftest: what is measured is the
//! path of bytes, not the cache of the machine.

use super::flavor::{End, Flavor, Request, listener, rights};
use crate::bench::control::{EndpointInfo, QpInfo};
use crate::failure::{Doing, Failure, Outcome};
use crate::spec::{Op, Spec};
use vernic::iwarp::Listener;
use vernic::{
    Buffer, Cq, Device, Endpoint, Init, Inline, Mr, Path, Pd, Qp, RemoteMr, Rkey, Rts, Wc, WrId,
};

/// Bytes before a received datagram (IBTA 11.4.1.2).
const GRH_BYTES: usize = 40;
/// Areas begin at multiples of this: a cache line, and for large messages a page.
const LINE: usize = 64;
const PAGE: usize = 4096;
/// Completions taken at once.
const POLL: usize = 32;
/// Least depth of a queue: room for credits where messages need little.
const MIN_DEPTH: u32 = 16;

/// One message to post, as a workload sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post {
    /// Ask for a completion that stands for so many messages.
    pub(super) covers: Option<u32>,
    /// Send this along.
    pub(super) imm: Option<u32>,
}

/// What a completion said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// So many messages are complete.
    Sent {
        /// Which queue pair.
        pipe: usize,
        /// Messages.
        count: u32,
    },
    /// A message came.
    Received {
        /// Which queue pair.
        pipe: usize,
        /// What came along.
        imm: Option<u32>,
    },
}

/// A connected queue pair.
struct Pipe<S: Flavor> {
    qp: Qp<S, Rts>,
    route: S::Route,
    remote: RemoteMr,
    /// Receives used up and not posted again.
    consumed: u32,
}

/// Everything that one side of a measurement needs.
pub(super) struct Pipes<S: Flavor> {
    // Dropped in this order: queue pairs before the memory that they name.
    pipes: Vec<Pipe<S>>,
    opening: Vec<Qp<S, Init>>,
    cq: Cq,
    memory: Memory,
    /// The message, where it goes out inline.
    inline: Option<Vec<u8>>,
    pd: Pd,
    path: Path,
    /// Where the other side connects to, if this one is the passive side and TCP carries it.
    listener: Option<Listener>,
    spec: Spec,
    wcs: [Wc; POLL],
}

/// The region and its division into areas.
struct Memory {
    mr: Mr,
    area: usize,
    size: usize,
}

impl Memory {
    fn register(pd: &Pd, spec: &Spec) -> Outcome<Self> {
        let too_large = || Failure::new("the messages of all queue pairs do not fit into memory");
        let size = usize::try_from(spec.size).map_err(|_| too_large())?;
        let align = if size >= PAGE { PAGE } else { LINE };
        let area = (size + GRH_BYTES).next_multiple_of(align);
        let len = area.checked_mul(2 * spec.qps as usize).ok_or_else(too_large)?;
        crate::bench::memory::check(len)?;
        let buffer = Buffer::zeroed(len).doing(|| format!("allocate {len} bytes"))?;
        let access = rights(spec).local_write();
        let mr = pd.register(buffer, access).doing(|| format!("register {len} bytes"))?;
        let memory = Self { mr, area, size };
        memory.touch(len)?;
        Ok(memory)
    }

    /// Writes every page once: pages that were never written are all one page of zeros, and quick.
    fn touch(&self, len: usize) -> Outcome<()> {
        let page = [0x5a; PAGE];
        for offset in (0..len).step_by(PAGE) {
            let piece = &page[..PAGE.min(len - offset)];
            self.mr.write_at(offset, piece).doing(|| "fill the memory".into())?;
        }
        Ok(())
    }

    fn outgoing(&self, pipe: usize) -> usize {
        2 * pipe * self.area
    }

    fn incoming(&self, pipe: usize) -> usize {
        (2 * pipe + 1) * self.area
    }
}

impl<S: Flavor> Pipes<S> {
    /// Queue pairs in Init, with their receives posted.
    pub(super) fn open(
        device: &Device,
        gid_index: Option<u8>,
        spec: &Spec,
        end: End,
    ) -> Outcome<Self> {
        spec.check()?;
        let pd = device.alloc_pd().doing(|| "allocate a protection domain".into())?;
        let depth = spec.qps.saturating_mul(send_depth(spec) + receive_depth(spec));
        let cq = device
            .create_cq(depth)
            .doing(|| format!("create a completion queue of {depth} entries"))?;
        let memory = Memory::register(&pd, spec)?;
        let is_inline =
            matches!(spec.op, Op::Send | Op::Write) && memory.size <= spec.inline_size as usize;
        let inline = is_inline.then(|| vec![0x5a; memory.size]);
        let mut pipes = Self {
            pipes: Vec::new(),
            opening: Vec::new(),
            cq,
            memory,
            inline,
            pd,
            path: Path { gid_index, ..Path::default() },
            listener: listener(device, spec, end)?,
            spec: *spec,
            wcs: [Wc::default(); POLL],
        };
        for _ in 0..spec.qps {
            pipes.open_one()?;
        }
        Ok(pipes)
    }

    fn open_one(&mut self) -> Outcome<()> {
        let builder = self.pd.qp::<S>().send_cq(&self.cq).recv_cq(&self.cq);
        let mut builder = builder
            .max_send_wr(send_depth(&self.spec))
            .max_recv_wr(receive_depth(&self.spec))
            .max_inline(self.spec.inline_size);
        if let Some(index) = self.path.gid_index {
            builder = builder.gid_index(index);
        }
        let qp = builder.create().doing(|| "create a queue pair".into())?;
        let qp = S::init(qp, rights(&self.spec))?;
        let (pipe, count) = (self.opening.len(), receive_depth(&self.spec));
        self.opening.push(qp);
        let mut batch = self.opening[pipe].recv_batch();
        let area = self.incoming_slice(pipe)?;
        for _ in 0..count {
            batch.recv(wr_id(pipe, 0), area);
        }
        batch.commit().doing(|| "post receives".into())
    }

    /// How the other side reaches these queue pairs.
    pub(super) fn endpoint(&self) -> EndpointInfo {
        let region = self.memory.mr.remote();
        let home = self.listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let home = home.map(|home| home.to_string());
        let info = |(pipe, endpoint): (usize, Endpoint)| QpInfo {
            endpoint: home.clone().unwrap_or_else(|| endpoint.to_string()),
            address: region.at(self.memory.incoming(pipe) as u64).addr(),
            rkey: region.rkey.value(),
            length: self.memory.area as u64,
        };
        let qps = self.opening.iter().map(Qp::endpoint).enumerate().map(info).collect();
        EndpointInfo { qps, ..EndpointInfo::default() }
    }

    /// Connects each queue pair with its counterpart.
    pub(super) fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        if peer.qps.len() != self.opening.len() {
            let (theirs, ours) = (peer.qps.len(), self.opening.len());
            return Err(Failure::new(format!(
                "the other side has {theirs} queue pairs, not {ours}"
            )));
        }
        for (qp, info) in self.opening.drain(..).zip(&peer.qps) {
            let (qp, route) = match &self.listener {
                Some(listener) => S::accept(qp, listener)?,
                None => S::connect(&self.pd, qp, &info.endpoint, self.path, &self.spec)?,
            };
            let remote = RemoteMr { addr: info.address, rkey: Rkey(info.rkey), len: info.length };
            self.pipes.push(Pipe { qp, route, remote, consumed: 0 });
        }
        Ok(())
    }

    /// What is being measured.
    pub(super) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Posts `count` messages with one doorbell; `describe` tells of each, by its place in the
    /// batch.
    #[inline]
    pub(super) fn post(
        &self,
        pipe: usize,
        count: u64,
        describe: impl Fn(u64) -> Post,
    ) -> Outcome<()> {
        let Pipe { qp, route, remote, .. } = &self.pipes[pipe];
        let out = self.memory.outgoing(pipe);
        let from = self.slice(out, self.memory.size)?;
        let into = self.slice(self.memory.incoming(pipe), self.memory.size)?;
        let mut batch = qp.send_batch();
        for index in 0..count {
            let Post { covers, imm } = describe(index);
            let (wr_id, signaled) = (wr_id(pipe, covers.unwrap_or(0)), covers.is_some());
            let remote = remote.at(0);
            match &self.inline {
                Some(bytes) => {
                    let from = Inline(bytes);
                    let request = Request { wr_id, from, into, remote, signaled, imm };
                    S::add(&mut batch, route, self.spec.op, request)?;
                }
                None => {
                    let request = Request { wr_id, from, into, remote, signaled, imm };
                    S::add(&mut batch, route, self.spec.op, request)?;
                }
            }
        }
        batch.commit().doing(|| format!("post {count} sends"))
    }

    /// Sends a message that says how many messages have arrived. It has one byte, for tshark takes
    /// a datagram of none for a malformed one of another protocol.
    pub(super) fn post_credit(&self, pipe: usize, arrived: u32) -> Outcome<()> {
        let Pipe { qp, route, remote, .. } = &self.pipes[pipe];
        let byte = self.slice(0, 1)?;
        let mut batch = qp.send_batch();
        let request = Request {
            wr_id: wr_id(pipe, 0),
            from: byte,
            into: byte,
            remote: remote.at(0),
            signaled: true,
            imm: Some(arrived),
        };
        S::add(&mut batch, route, Op::Send, request)?;
        batch.commit().doing(|| "post a credit".into())
    }

    /// Asks for a byte of the other side's memory.
    pub(super) fn post_probe(&self, pipe: usize) -> Outcome<()> {
        let Pipe { qp, route, remote, .. } = &self.pipes[pipe];
        let byte = self.slice(self.memory.incoming(pipe), 1)?;
        let mut batch = qp.send_batch();
        let request = Request {
            wr_id: wr_id(pipe, 0),
            from: byte,
            into: byte,
            remote: remote.at(0),
            signaled: true,
            imm: None,
        };
        S::add(&mut batch, route, Op::Read, request)?;
        batch.commit().doing(|| "ask for a last byte".into())
    }

    /// Posts the receives again that were used up, a quarter of the queue at a time.
    pub(super) fn repost_receives(&mut self) -> Outcome<()> {
        let at_once = (receive_depth(&self.spec) / 4).max(1);
        for pipe in 0..self.pipes.len() {
            let consumed = self.pipes[pipe].consumed;
            if consumed < at_once {
                continue;
            }
            let area = self.incoming_slice(pipe)?;
            let mut batch = self.pipes[pipe].qp.recv_batch();
            for _ in 0..consumed {
                batch.recv(wr_id(pipe, 0), area);
            }
            batch.commit().doing(|| "post receives".into())?;
            self.pipes[pipe].consumed = 0;
        }
        Ok(())
    }

    /// Takes completions, which drives the device, and tells of each. True if there was any.
    ///
    /// A failed completion ends the measurement, with all that the device knows about it.
    #[inline]
    pub(super) fn poll(&mut self, mut on: impl FnMut(Event)) -> Outcome<bool> {
        let taken = self.cq.poll(&mut self.wcs).doing(|| "poll for completions".into())?.len();
        for wc in &self.wcs[..taken] {
            if !wc.is_success() {
                return Err(explain(&self.cq, wc));
            }
            let pipe = (wc.wr_id().0 >> 32) as usize;
            if wc.is_recv() {
                self.pipes[pipe].consumed += 1;
                on(Event::Received { pipe, imm: wc.imm() });
            } else {
                on(Event::Sent { pipe, count: wc.wr_id().0 as u32 });
            }
        }
        Ok(taken > 0)
    }

    /// Makes `marker` the last byte of the message that goes out.
    pub(super) fn mark(&mut self, pipe: usize, marker: u8) -> Outcome<()> {
        if let Some(last) = self.inline.as_mut().and_then(|bytes| bytes.last_mut()) {
            *last = marker;
            return Ok(());
        }
        let place = self.memory.outgoing(pipe) + self.memory.size - 1;
        self.memory.mr.write_at(place, &[marker]).doing(|| "mark a message".into())
    }

    /// The last byte of the message that came in by WRITE.
    #[inline]
    pub(super) fn marked(&self, pipe: usize) -> Outcome<u8> {
        let place = self.memory.incoming(pipe) + self.memory.size - 1;
        let mut marker = [0];
        self.memory.mr.read_at(place, &mut marker).doing(|| "look for a message".into())?;
        Ok(marker[0])
    }

    fn slice(&self, offset: usize, len: usize) -> Outcome<vernic::MrSlice<'_>> {
        self.memory.mr.slice(offset..offset + len).doing(|| "name a part of the memory".into())
    }

    fn incoming_slice(&self, pipe: usize) -> Outcome<vernic::MrSlice<'_>> {
        self.slice(self.memory.incoming(pipe), self.memory.area)
    }
}

/// The name of a request: its queue pair, and how many messages its completion stands for.
fn wr_id(pipe: usize, covers: u32) -> WrId {
    WrId((pipe as u64) << 32 | u64::from(covers))
}

fn send_depth(spec: &Spec) -> u32 {
    spec.tx_depth.max(MIN_DEPTH)
}

/// Receives are needed for SENDs, and for credits, which UC and UD return.
fn receive_depth(spec: &Spec) -> u32 {
    let needed = spec.op == Op::Send || !spec.service.is_reliable();
    if needed { spec.rx_depth.max(MIN_DEPTH) } else { 0 }
}

/// A failed completion in the words of the device: which peer, which packet, which check.
fn explain(cq: &Cq, wc: &Wc) -> Failure {
    match cq.check(wc) {
        Err(error) => Failure::new(error.to_string()),
        Ok(wc) => Failure::new(format!("{wc:?}")),
    }
}
