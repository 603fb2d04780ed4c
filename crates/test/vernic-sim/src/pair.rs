//! Two connected RC queue pairs for scenario tests that read as a trace.
//!
//! ```
//! use vernic_sim::{RcPair, expect};
//! use vernic_wire::Psn;
//!
//! let mut t = RcPair::default();
//! t.a.post_write(3 * 1024);
//! t.wire.lose(Psn::new(1));
//! t.run(expect![[r#"
//!     A->B WRITE_FIRST psn=0
//!     A->B WRITE_MIDDLE psn=1 LOST
//!     A->B WRITE_LAST psn=2
//!     B->A NAK psn=1 seq
//!     A->B WRITE_MIDDLE psn=1
//!     B->A ACK psn=1 credits=0
//!     A->B WRITE_LAST psn=2
//!     B->A ACK psn=2 credits=0
//!     A wc 0 Write Success"#]]);
//! ```
//!
//! The pair lives in the simulator's world: virtual time, the oracle's memory and all its checks
//! are there too; a violation fails the test. A's sequence starts at 0, B's at 1000; a packet takes
//! 1 us unless told otherwise. Orders to the sides and to the wire are carried out by
//! [`RcPair::run`].

use expect_test::Expect;
use vernic_proto::congestion::Algorithm;
use vernic_proto::{QpCounters, QpState, RendezvousLimits, SendFlags};
use vernic_wire::{Mtu, Psn, Qpn, Service};

use crate::ctx::Trace;
use crate::flow::Bad;
use crate::order::{Command, Posted};
use crate::plan::{ConnPlan, LinkPlan, Mutation, Plan, RingPlan, SidePlan};
use crate::trace::{Deed, Order};
use crate::world::{Event, World};

/// What a pair is made with. The defaults are those of most tests.
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// Path MTU.
    pub mtu: Mtu,
    /// First sequence number of A.
    pub psn: u32,
    /// ACK timeout exponent: 4.096 us * 2^n.
    pub timeout: u8,
    /// Repetitions after loss.
    pub retry_cnt: u8,
    /// Repetitions after RNR NAK, 7 = for ever.
    pub rnr_retry: u8,
    /// RNR timer code: 1 is 10 us.
    pub min_rnr_timer: u8,
    /// READs and atomics at once, both ways.
    pub max_rd_atomic: u8,
    /// Packets in flight.
    pub window: u32,
    /// Nanoseconds that a packet takes.
    pub delay: u64,
    /// Packets that are lost, of a million.
    pub loss: u32,
    /// A packet takes up to so many nanoseconds longer, each for itself: others overtake it.
    pub spread: u64,
    /// Nanoseconds that 1024 bytes take on the wire.
    pub ns_per_kib: u64,
    /// B receives from a shared queue: no credits.
    pub shared_rq: bool,
    /// A is an XRC initiator, B an XRC target with two shared queues.
    pub xrc: bool,
    /// The connection is of UC.
    pub uc: bool,
    /// The sides are processes of one host and have rings from the start.
    pub rings: bool,
    /// A ring takes so many bytes of payload with a part of a message.
    pub part: usize,
    /// Packets ahead of a gap are kept.
    pub keeps: bool,
    /// SENDs of so many bytes and more are copied by the receiver.
    pub rendezvous: Option<u32>,
}

impl Default for PairConfig {
    /// MTU 1024, PSN 0, timeout 67 us (shorter than any probe), 3 retries, 7 RNR retries (for
    /// ever), RNR timer 10 us, 4 READs, a window of 128 packets, 1 us from side to side, own
    /// receive queues, RC, no rings, parts of 64 KiB, no rendezvous, nothing is kept, and
    /// a network that loses nothing and has any speed.
    fn default() -> Self {
        Self {
            mtu: Mtu::B1024,
            psn: 0,
            timeout: 4,
            retry_cnt: 3,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            window: 128,
            delay: 1_000,
            loss: 0,
            spread: 0,
            ns_per_kib: 0,
            shared_rq: false,
            xrc: false,
            uc: false,
            rings: false,
            part: 64 * 1024,
            rendezvous: None,
            keeps: false,
        }
    }
}

/// A side's pen: what it shall do at the next [`RcPair::run`].
#[derive(Debug, Default)]
pub struct Pen {
    commands: Vec<(u64, Command)>,
    delay: u64,
    extra: SendFlags,
    unsignaled: bool,
    bad: Bad,
    queue: usize,
}

macro_rules! posts {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $op:expr, $len:expr;)*) => {
        $($(#[$doc])* pub fn $name(&mut self $(, $arg: $type)*) -> &mut Self { self.post($op, $len) })*
    };
}

impl Pen {
    /// What follows is done so many nanoseconds after the start of the run.
    pub fn after(&mut self, nanos: u64) -> &mut Self {
        self.delay = nanos;
        self
    }
    /// The next post is fenced.
    pub fn fenced(&mut self) -> &mut Self {
        self.extra |= SendFlags::FENCE;
        self
    }
    /// The next post asks for a solicited event.
    pub fn solicited(&mut self) -> &mut Self {
        self.extra |= SendFlags::SOLICITED;
        self
    }
    /// The next post is unsignaled.
    pub fn unsignaled(&mut self) -> &mut Self {
        self.unsignaled = true;
        self
    }
    /// The next post's key grants nothing at the peer.
    pub fn denied(&mut self) -> &mut Self {
        self.bad = Bad::Key;
        self
    }
    /// The next post's own memory refuses from this offset on.
    pub fn broken_at(&mut self, offset: u32) -> &mut Self {
        self.bad = Bad::Local(offset);
        self
    }

    /// Posts and receives that follow are for this shared queue of B, 0 or 1 (XRC).
    pub fn queue(&mut self, queue: usize) -> &mut Self {
        self.queue = queue;
        self
    }
    /// The next post names a shared queue that B does not have (XRC).
    pub fn to_unknown_queue(&mut self) -> &mut Self {
        self.bad = Bad::UnknownSrq;
        self
    }
    /// The next post names a shared queue of another XRC domain.
    pub fn to_foreign_queue(&mut self) -> &mut Self {
        self.bad = Bad::ForeignSrq;
        self
    }

    fn post(&mut self, op: Posted, len: u32) -> &mut Self {
        let mut flags = SendFlags::SIGNALED | std::mem::take(&mut self.extra);
        if std::mem::take(&mut self.unsignaled) {
            flags.remove(SendFlags::SIGNALED);
        }
        let bad = std::mem::take(&mut self.bad);
        let queue = self.queue;
        self.commands.push((self.delay, Command::Post { op, len, flags, bad, queue }));
        self
    }

    posts! {
        /// Posts a SEND of `len` bytes.
        post_send(len: u32) = Posted::Send, len;
        /// Posts a SEND with immediate data.
        post_send_imm(len: u32, imm: u32) = Posted::SendImm(imm), len;
        /// Posts a SEND that invalidates a key of the peer.
        post_send_inv(len: u32) = Posted::SendInv, len;
        /// Posts a WRITE.
        post_write(len: u32) = Posted::Write, len;
        /// Posts a WRITE with immediate data.
        post_write_imm(len: u32, imm: u32) = Posted::WriteImm(imm), len;
        /// Posts a READ.
        post_read(len: u32) = Posted::Read, len;
        /// Posts a FETCH & ADD on the peer's first cell.
        post_fetch_add(add: u64) = Posted::FetchAdd(add), 8;
        /// Posts a COMPARE & SWAP on the peer's first cell.
        post_cmp_swap(compare: u64, swap: u64) = Posted::CmpSwap(compare, swap), 8;
        /// Posts a FLUSH of `len` bytes.
        post_flush(len: u32) = Posted::Flush, len;
        /// Posts an ATOMIC WRITE.
        post_atomic_write() = Posted::AtomicWrite, 8;
        /// Posts a local invalidate.
        post_local_inv() = Posted::LocalInv, 0;
        /// Posts a bind of this side's window.
        post_bind_mw() = Posted::BindMw, 0;
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, capacity: u32) -> &mut Self {
        let queue = self.queue;
        self.commands.push((self.delay, Command::Recv { capacity, bad: false, queue }));
        self
    }
    /// Posts a receive whose memory refuses.
    pub fn post_broken_recv(&mut self, capacity: u32) -> &mut Self {
        let queue = self.queue;
        self.commands.push((self.delay, Command::Recv { capacity, bad: true, queue }));
        self
    }
    /// Moves the queue pair to a state.
    pub fn modify(&mut self, state: QpState) -> &mut Self {
        self.commands.push((self.delay, Command::State(state)));
        self
    }
    /// Ends the key that the peer's WRITEs use.
    pub fn revoke_write_key(&mut self) -> &mut Self {
        self.order(Command::RevokeWriteKey)
    }
    /// Makes the rings between both sides.
    pub fn join_rings(&mut self) -> &mut Self {
        self.order(Command::JoinRings)
    }
    /// Breaks the rings. `keep` records of each are still read; both sides go on by the network.
    pub fn lose_rings(&mut self, keep: usize) -> &mut Self {
        self.order(Command::LoseRings(keep))
    }
    /// Ends the process of this side. `keep` records of what it has written are still read.
    pub fn die(&mut self, keep: usize) -> &mut Self {
        self.order(Command::Die(keep))
    }
    /// This side cannot copy the payload of the next `times` rendezvous.
    pub fn cannot_reach(&mut self, times: u32) -> &mut Self {
        self.order(Command::Unreachable(times))
    }

    fn order(&mut self, command: Command) -> &mut Self {
        self.commands.push((self.delay, command));
        self
    }
}

/// The wire's pen: what becomes of chosen packets.
#[derive(Debug, Default)]
pub struct Wire {
    orders: Vec<Order>,
}

impl Wire {
    fn order(&mut self, deed: Deed, from: usize, psn: Psn, request: bool, times: u32) {
        self.orders.push(Order { deed, from, psn, request, times });
    }
    /// Loses A's next request packet with this number.
    pub fn lose(&mut self, psn: Psn) {
        self.lose_times(psn, 1);
    }
    /// Loses A's next `times` request packets with this number.
    pub fn lose_times(&mut self, psn: Psn, times: u32) {
        self.order(Deed::Lose, 0, psn, true, times);
    }
    /// Loses B's next response packet with this number.
    pub fn lose_response(&mut self, psn: Psn) {
        self.order(Deed::Lose, 1, psn, false, 1);
    }
    /// Delivers A's next request packet with this number twice.
    pub fn duplicate(&mut self, psn: Psn) {
        self.duplicate_after(psn, 1);
    }
    /// Delivers A's next request packet with this number again, so many nanoseconds later.
    pub fn duplicate_after(&mut self, psn: Psn, nanos: u64) {
        self.order(Deed::Duplicate(nanos), 0, psn, true, 1);
    }
}

/// Two RC queue pairs, or the two halves of an XRC connection, connected and in RTS, and the wire
/// between them.
#[derive(Debug)]
pub struct RcPair {
    /// The first side.
    pub a: Pen,
    /// The second side.
    pub b: Pen,
    /// The network.
    pub wire: Wire,
    world: World,
    printed: usize,
    /// Virtual time at which the last run began, in nanoseconds.
    begun: u64,
}

impl Default for RcPair {
    fn default() -> Self {
        Self::with(PairConfig::default())
    }
}

impl RcPair {
    /// A pair.
    ///
    /// # Panics
    /// If the queue pairs cannot be brought up.
    pub fn with(config: PairConfig) -> Self {
        let mut world = World::new(plan(&config), true);
        world.run_to_silence();
        let printed = world.lines().len();
        let pair = Self {
            a: Pen::default(),
            b: Pen::default(),
            wire: Wire::default(),
            world,
            printed,
            begun: 0,
        };
        pair.check();
        pair
    }

    /// Carries out the orders, runs until nothing happens any more, and compares what was sent,
    /// completed and raised with `expected`.
    ///
    /// # Panics
    /// If the trace differs, or the oracle finds a violation.
    pub fn run(&mut self, expected: Expect) {
        let trace = self.run_untold();
        expected.assert_eq(&trace);
    }

    /// Does the same, and returns what [`run`](Self::run) compares.
    ///
    /// # Panics
    /// If the oracle finds a violation.
    pub fn run_untold(&mut self) -> String {
        self.begun = self.nanos();
        self.world.orders.append(&mut self.wire.orders);
        for (s, pen) in [&mut self.a, &mut self.b].into_iter().enumerate() {
            pen.delay = 0;
            for (delay, command) in pen.commands.drain(..) {
                self.world.commands.push(command);
                let number = self.world.commands.len() - 1;
                if delay == 0 {
                    self.world.obey(0, s, number);
                } else {
                    self.world.at(delay, Event::Command(0, s, number));
                }
            }
        }
        self.world.run_to_silence();
        let lines = self.world.lines();
        let shown = lines[self.printed..].iter().filter_map(|line| shorten(line));
        let trace = shown.collect::<Vec<_>>().join("\n");
        self.printed = lines.len();
        self.check();
        trace
    }

    fn check(&self) {
        if let Some(what) = &self.world.ctx.violation {
            panic!("{what}\n{}", self.world.lines().join("\n"));
        }
    }

    /// Virtual time, in nanoseconds from the creation of the pair.
    pub fn nanos(&self) -> u64 {
        self.world.ctx.now.nanos()
    }
    /// Nanoseconds that the last [`run`](Self::run) took, from its beginning to the last thing that
    /// its trace shows; timers may have run out for nothing since.
    pub fn took_nanos(&self) -> u64 {
        self.world.ctx.said_at.nanos() - self.begun
    }
    /// Counters of A.
    pub fn counters_a(&self) -> &QpCounters {
        self.world.conns[0].sides[0].qp.counters()
    }
    /// Counters of B.
    pub fn counters_b(&self) -> &QpCounters {
        self.world.conns[0].sides[1].qp.counters()
    }
    /// Number of A.
    pub fn qpn_a(&self) -> Qpn {
        self.world.conns[0].sides[0].qp.qpn()
    }
    /// State of A and B.
    pub fn states(&self) -> (QpState, QpState) {
        (self.world.conns[0].sides[0].qp.state(), self.world.conns[0].sides[1].qp.state())
    }
    /// From now on A knows that B is there, and waits for it for so many nanoseconds.
    pub fn a_is_patient(&mut self, nanos: u64) {
        self.world.conns[0].sides[0].st.patience = nanos;
    }
    /// From now on a packet takes so many nanoseconds.
    pub fn set_delay(&mut self, nanos: u64) {
        self.world.conns[0].plan.link.delay = nanos;
    }
    /// A waits for an answer for so many nanoseconds at least, from its next packet on.
    pub fn set_ack_floor_of_a(&mut self, nanos: u64) {
        self.world.conns[0].sides[0].qp.set_ack_floor(nanos);
    }
    /// Why A failed, in words.
    pub fn failure_a(&self) -> Option<String> {
        self.world.conns[0].sides[0].st.failure.map(|failure| failure.cause.to_string())
    }
    /// Value of B's first atomic cell.
    pub fn cell_b(&self) -> u64 {
        let st = &self.world.conns[0].sides[1].st;
        self.world.nodes[st.node].memory.load_u64(st.areas.cells)
    }
    /// Whether no byte of either node's memory differs from what the messages made it.
    pub fn memory_is_right(&self) -> bool {
        self.world.nodes.iter().all(|node| node.memory.difference().is_none())
    }
}

/// What a scenario shows of a line: no time, no receptions, no posts.
fn shorten(line: &str) -> Option<String> {
    let text = line.get(13..)?;
    let shown = ["->B ", "->A ", "=>B ", "=>A ", " -> "].iter().any(|&way| text.contains(way));
    let shown =
        shown || text.contains(" wc ") || text.contains(" recv ") || text.contains(" event ");
    (shown && !text.contains(" <- ")).then(|| text.to_owned())
}

fn plan(config: &PairConfig) -> Plan {
    let side = |psn: u32, srq: bool| SidePlan {
        timeout: config.timeout,
        retry_cnt: config.retry_cnt,
        rnr_retry: config.rnr_retry,
        min_rnr: config.min_rnr_timer,
        max_rd: config.max_rd_atomic,
        max_dest: config.max_rd_atomic,
        window: config.window,
        sq: 64,
        rq: 64,
        srq,
        psn,
        quota: 0,
        post_delay: 0,
        recv_delay: 0,
        tx_delay: 0,
        burst: 64,
        reject_reads: false,
        keep: config.keeps.then_some((1024, 1 << 22)),
        erratic: None,
        algorithm: Algorithm::Aimd,
    };
    let conn = ConnPlan {
        service: match (config.xrc, config.uc) {
            (true, _) => Service::Xrc,
            (false, true) => Service::Uc,
            (false, false) => Service::Rc,
        },
        nodes: [0, 1],
        mtu: config.mtu,
        sides: [side(config.psn, false), side(1000, config.shared_rq || config.xrc)],
        link: LinkPlan {
            delay: config.delay,
            loss: config.loss,
            spread: config.spread,
            ns_per_kib: config.ns_per_kib,
            ..LinkPlan::default()
        },
        mix: [0; 13],
        max_len: 1 << 16,
        bad_ppm: 0,
        bad_recv_ppm: 0,
        fence_percent: 0,
        unsignaled_percent: 0,
        careless: false,
        fresh_qpn: false,
        ghosts: false,
        staggered: false,
        lenient: false,
        hasty: false,
        ring: Some(RingPlan {
            is_up: config.rings,
            delay: config.delay,
            batch: 64,
            capacity: 1 << 18,
            part: config.part,
            rendezvous: config
                .rendezvous
                .map(|min_bytes| RendezvousLimits { min_bytes, max_bytes: 1 << 19 }),
            unreachable: 0,
        }),
    };
    Plan {
        seed: 1,
        mutation: Mutation::None,
        fuse: 0,
        nodes: 2,
        conns: vec![conn],
        heal_at: u64::MAX,
        chaos: Vec::new(),
    }
}

impl World {
    fn lines(&self) -> &[String] {
        match &self.ctx.trace {
            Trace::Lines(lines) => lines,
            Trace::Off => &[],
        }
    }
}
