//! Two queue pairs, and a network that delivers what they send, in the pieces that a test likes.

use vernic_wire::{Mtu, PortNum, Qpn};

use crate::completion::Completion;
use crate::cx::QpInit;
use crate::iwarp::{
    Agreed, Extensions, MAX_FPDU, Place, Qp, Role, RtrSet, RxNext, Shutdown, StreamConfig,
    StreamEnd, Target,
};
use crate::state::{AttrMask, QpAttr, QpState, QpType};
use crate::test_host::{BASE, RKEY, TestHost};
use crate::time::Time;
use crate::wqe::{Remote, SendFlags, SendOp, SendWqe};
use crate::{AccessFault, Host};

pub(super) const REMOTE: Remote = Remote { addr: BASE, rkey: RKEY };

/// What both ends agree upon, unless a test changes it.
pub(super) fn agreed(role: Role) -> Agreed {
    Agreed {
        role,
        revision: 2,
        crc: true,
        tx_markers: false,
        rx_markers: false,
        ird: 2,
        ord: 2,
        peer_depths: None,
        rtr: RtrSet::empty(),
    }
}

pub(super) fn config() -> StreamConfig {
    StreamConfig {
        emss: 500,
        peer_has: Extensions::all(),
        stall_ns: 1_000,
        linger_ns: 10_000,
        close_ns: 25_000,
        rtr_answer_ns: 4_000,
        ..StreamConfig::default()
    }
}

/// A queue pair in Init.
pub(super) fn queue_pair(host: &mut TestHost) -> Qp {
    let mut qp = Qp::new(QpInit {
        qpn: Qpn::new(5),
        qp_type: QpType::Rc,
        max_send_wr: 8,
        max_window: 1,
        shared_rq: false,
    });
    let attr = QpAttr {
        state: QpState::Init,
        access: 0xFFFF,
        port: PortNum(1),
        path_mtu: Mtu::B1024,
        ..QpAttr::default()
    };
    qp.modify(&attr, AttrMask::STATE | AttrMask::ACCESS_FLAGS, Time(0), host).unwrap();
    qp
}

pub(super) fn modify(qp: &mut Qp, host: &mut TestHost, state: QpState, now: Time) {
    let attr = QpAttr { state, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE, now, host).unwrap();
}

/// One end, with its half of the network.
pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) host: TestHost,
    /// Bytes that it has sent and the network has not delivered.
    pub(super) wire: Vec<u8>,
    /// Bytes delivered and not consumed.
    inbox: Vec<u8>,
    sent: u64,
    /// Its half is closed, behind what is on the wire.
    pub(super) closed: bool,
    heard_end: bool,
    pub(super) shutdowns: Vec<Shutdown>,
}

impl End {
    fn new(agreed: &Agreed, config: StreamConfig) -> Self {
        let mut host = TestHost::new();
        let mut qp = queue_pair(&mut host);
        qp.start(agreed, config).unwrap();
        let (wire, inbox) = (Vec::new(), Vec::new());
        let shutdowns = Vec::new();
        Self { qp, host, wire, inbox, sent: 0, closed: false, heard_end: false, shutdowns }
    }

    /// Sends one FPDU, if there is one.
    pub(super) fn transmit(&mut self, now: Time) -> bool {
        let mut buf = vec![0; MAX_FPDU];
        let Some(len) = self.qp.poll_transmit(now, &mut self.host, &mut buf) else {
            return false;
        };
        self.wire.extend_from_slice(&buf[..len]);
        self.sent += len as u64;
        self.qp.handle_sent(now, self.sent, &mut self.host);
        true
    }

    fn watch(&mut self) {
        if let Some(shutdown) = self.qp.poll_shutdown() {
            self.shutdowns.push(shutdown);
            self.closed = true;
        }
    }

    /// Takes bytes: by `handle_bytes`, or into their place first if it likes.
    pub(super) fn receive(&mut self, now: Time, bytes: &[u8], places: bool) {
        self.inbox.extend_from_slice(bytes);
        // Bounded: each round consumes something.
        loop {
            let taken = match self.qp.rx_next() {
                RxNext::Place(place) if places && !self.inbox.is_empty() => {
                    let len = (place.len as usize).min(self.inbox.len());
                    let piece: Vec<u8> = self.inbox.drain(..len).collect();
                    match self.place(&place, &piece) {
                        Ok(()) => {
                            let crc = place.crc.map(|crc| crc.update(&piece));
                            self.qp.handle_placed(now, len as u32, crc);
                        }
                        Err(fault) => self.qp.refuse_place(now, fault, &mut self.host),
                    }
                    len
                }
                // What is not needed yet is passed all the same: owners cannot know.
                _ => {
                    let taken = self.qp.handle_bytes(now, &self.inbox, &mut self.host);
                    self.inbox.drain(..taken);
                    taken
                }
            };
            if taken == 0 {
                return;
            }
        }
    }

    fn place(&mut self, place: &Place, bytes: &[u8]) -> Result<(), AccessFault> {
        match place.target {
            Target::Recv { offset } => self.host.scatter_recv(offset, bytes),
            Target::Write { rkey, addr } => self.host.write_remote(rkey, addr, bytes),
            Target::Response { slot, offset } => self.host.scatter_response(slot, offset, bytes),
        }
    }
}

/// Two ends: the initiator is the first.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    pub(super) now: Time,
    /// Bytes that the network delivers at once.
    pub(super) chunk: usize,
    /// Receivers place payload themselves.
    pub(super) places: bool,
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(|_| {}, config())
    }

    /// With something else agreed, by both in the same words; `tx_markers` means both directions.
    pub(super) fn with(change: impl Fn(&mut Agreed), config: StreamConfig) -> Self {
        let ends = [Role::Initiator, Role::Responder].map(|role| {
            let mut agreed = agreed(role);
            change(&mut agreed);
            agreed.rx_markers = agreed.tx_markers;
            End::new(&agreed, config)
        });
        Self { ends, now: Time(1_000), chunk: 1 << 20, places: false }
    }

    /// The same, and the initiator has sent a message, so that both may speak.
    pub(super) fn open() -> Self {
        let mut pair = Self::new();
        pair.greet();
        pair
    }

    /// An empty WRITE of the initiator, unsignaled.
    pub(super) fn greet(&mut self) {
        let wqe = SendWqe { flags: SendFlags::empty(), ..wqe(0, SendOp::Write(REMOTE), 0) };
        self.ends[0].qp.post_send(wqe).unwrap();
        self.run();
    }

    pub(super) fn post(&mut self, side: usize, wr_id: u64, op: SendOp, length: u32) {
        self.ends[side].qp.post_send(wqe(wr_id, op, length)).unwrap();
    }

    /// Until nobody has anything to send and nothing is on its way.
    pub(super) fn run(&mut self) {
        for _ in 0..10_000 {
            let mut moved = false;
            for side in 0..2 {
                moved |= self.ends[side].transmit(self.now);
                self.ends[side].watch();
                moved |= self.deliver(side);
            }
            if !moved {
                return;
            }
        }
        panic!("two queue pairs never fall silent");
    }

    /// Delivers a piece of what `side` has sent, or its end.
    pub(super) fn deliver(&mut self, side: usize) -> bool {
        let len = self.chunk.min(self.ends[side].wire.len());
        let piece: Vec<u8> = self.ends[side].wire.drain(..len).collect();
        let (closed, now, places) = (self.ends[side].closed, self.now, self.places);
        let to = &mut self.ends[1 - side];
        if !piece.is_empty() {
            to.receive(now, &piece, places);
            return true;
        }
        if closed && !to.heard_end && to.inbox.is_empty() {
            to.heard_end = true;
            let rest = to.inbox.len();
            to.qp.handle_end(now, StreamEnd::Closed, rest, &mut to.host);
            return true;
        }
        false
    }

    pub(super) fn sent(&self, side: usize) -> Vec<u64> {
        self.ends[side].host.sent.iter().map(|completion| completion.wr_id).collect()
    }
    pub(super) fn received(&self, side: usize) -> &[Completion] {
        &self.ends[side].host.received
    }
}

pub(super) fn wqe(wr_id: u64, op: SendOp, length: u32) -> SendWqe {
    SendWqe { wr_id, op, flags: SendFlags::SIGNALED, length, dest: None, srqn: None }
}
