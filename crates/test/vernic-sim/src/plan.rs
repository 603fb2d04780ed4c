//! What a seed stands for: topology, attributes, traffic and faults of one run.
//!
//! Swarm testing (Groce et al., 2012): each seed switches a random subset of the features on, so
//! that rare combinations occur and no feature always hides another. Drawn once, before the run;
//! the run reads it only. All times in nanoseconds of virtual time, probabilities in parts per
//! million.

use vernic_proto::RendezvousLimits;
use vernic_proto::congestion::{Algorithm, Dcqcn, Swift};
use vernic_wire::{Mtu, Service};

use crate::rng::Rng;
use crate::xrc::is_reliable;

/// A deliberate fault of the simulation itself, to prove that the oracle can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mutation {
    /// None: the real thing.
    #[default]
    None,
    /// The network changes a payload byte and delivers the packet as good.
    SilentCorruption,
    /// The network delivers a request twice, the copy with the next sequence number.
    Replay,
    /// The host stores a wrong byte of a WRITE.
    LostByte,
    /// The host stores a wrong byte of a receive.
    LostByteOfReceive,
    /// The host writes one byte too many.
    OverlongWrite,
    /// The host keeps a send completion for itself.
    LostCompletion,
    /// The host delivers a send completion twice.
    RepeatedCompletion,
    /// The host returns a wrong value from an atomic.
    WrongAtomic,
    /// The host takes receives from another shared queue than the XRC request names.
    WrongQueue,
    /// A packet that was kept ahead of a gap is handled with the bytes of another one.
    WrongKept,
    /// The network swallows everything for ever, healed or not.
    DeadNetwork,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) seed: u64,
    pub(crate) mutation: Mutation,
    /// Chances that the mutation lets pass.
    pub(crate) fuse: u32,
    pub(crate) nodes: usize,
    pub(crate) conns: Vec<ConnPlan>,
    /// End of the faults.
    pub(crate) heal_at: u64,
    pub(crate) chaos: Vec<(u64, Chaos, usize, usize)>,
}

/// A connection: two queue pairs and the path between them.
#[derive(Clone, Debug)]
pub(crate) struct ConnPlan {
    pub(crate) service: Service,
    pub(crate) nodes: [usize; 2],
    pub(crate) mtu: Mtu,
    pub(crate) sides: [SidePlan; 2],
    pub(crate) link: LinkPlan,
    pub(crate) mix: [u8; 13],
    pub(crate) max_len: u32,
    /// Probability that a request is deliberately wrong.
    pub(crate) bad_ppm: u32,
    /// Probability that a receive is deliberately wrong.
    pub(crate) bad_recv_ppm: u32,
    pub(crate) fence_percent: u32,
    pub(crate) unsignaled_percent: u32,
    /// Windows may be invalidated while the peer uses them.
    pub(crate) careless: bool,
    /// A reconnect takes new numbers at once; else it waits until the old packets are gone.
    pub(crate) fresh_qpn: bool,
    /// A reconnect keeps the numbers and does not wait: packets of the old connection arrive at the
    /// new one. Its sequence starts a quarter of the circle away, so nothing of them may count.
    pub(crate) ghosts: bool,
    /// The sides come up at different times.
    pub(crate) staggered: bool,
    pub(crate) lenient: bool,
    pub(crate) hasty: bool,
    /// The sides may be processes of one host; `None`: they are not.
    pub(crate) ring: Option<RingPlan>,
}

/// The rings between two processes of one host, and who reads them.
#[derive(Clone, Debug)]
pub(crate) struct RingPlan {
    /// Whether they are there from the start.
    pub(crate) is_up: bool,
    /// Longest time until the reader comes.
    pub(crate) delay: u64,
    /// Most records that it takes at a time.
    pub(crate) batch: u64,
    /// Bytes of a ring.
    pub(crate) capacity: usize,
    /// Most bytes of payload that travel with a part.
    pub(crate) part: usize,
    pub(crate) rendezvous: Option<RendezvousLimits>,
    /// Probability that the payload of a rendezvous cannot be copied.
    pub(crate) unreachable: u32,
}

/// One side's attributes and application.
#[derive(Clone, Debug)]
pub(crate) struct SidePlan {
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr: u8,
    pub(crate) max_rd: u8,
    pub(crate) max_dest: u8,
    pub(crate) window: u32,
    pub(crate) sq: u32,
    pub(crate) rq: usize,
    pub(crate) srq: bool,
    pub(crate) psn: u32,
    pub(crate) quota: u32,
    pub(crate) post_delay: u64,
    pub(crate) recv_delay: u64,
    pub(crate) tx_delay: u64,
    pub(crate) burst: u32,
    pub(crate) reject_reads: bool,
    /// Packets ahead of a gap that are kept, and their bytes; `None`: all are dropped.
    pub(crate) keep: Option<(u32, usize)>,
    /// Seed of a congestion controller that does as it likes; `None` is the default one.
    pub(crate) erratic: Option<u64>,
    /// The congestion control where none is erratic.
    pub(crate) algorithm: Algorithm,
}

/// The path, each way.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkPlan {
    pub(crate) delay: u64,
    pub(crate) jitter: u64,
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
    pub(crate) corrupt: u32,
    pub(crate) garbage: u32,
    /// Packets that routers mark.
    pub(crate) marks: u32,
    pub(crate) ns_per_kib: u64,
    /// Each packet takes up to so much longer than the one before, which it may overtake.
    pub(crate) spread: u64,
}

/// Something that happens to a connection once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chaos {
    /// Nothing passes, from this side, for so long.
    Partition(u64),
    /// Packets above so many bytes vanish, for so long.
    MtuCut(usize, u64),
    /// A key of this side's memory ends while in use.
    Revoke,
    /// The application moves the queue pair to Error.
    Error,
    /// The application moves the queue pair to Reset.
    Reset,
    /// The send queue drains, and starts again after so long.
    Drain(u64),
    /// There are rings between the sides.
    RingUp,
    /// Once so many records are in what this side writes, that happens.
    Ring(usize, RingFate),
}

/// What happens to rings with something in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingFate {
    /// The rings break. Whether what is still read is read at once.
    Lost(bool),
    /// The process of a side ends.
    PeerDies,
    /// The application moves the queue pair to Error, which takes payload back. Waits for payload
    /// that the peer is to copy.
    Error,
}

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

impl Plan {
    /// Draws the run of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = rng.range(2, 3) as usize;
        let count = rng.pick(&[1, 1, 1, 2, 2, 3]);
        let large = rng.percent(4);
        let conns: Vec<_> = (0..count).map(|i| conn(&mut rng.fork(), nodes, i, large)).collect();
        let heal_at = rng.range(1, 8) * rng.pick(&[MS, 5 * MS, 20 * MS]);
        let mut plan = Self {
            seed,
            mutation: Mutation::None,
            fuse: 0,
            nodes,
            conns,
            heal_at,
            chaos: Vec::new(),
        };
        plan.draw_chaos(&mut rng);
        // The last draws: what a seed stood for before there were such controllers stays as it was.
        for side in plan.conns.iter_mut().flat_map(|conn| &mut conn.sides) {
            side.erratic = rng.percent(20).then(|| rng.word());
        }
        // And of what it stood for before there were rings.
        for index in 0..plan.conns.len() {
            plan.draw_rings(&mut rng, index);
        }
        // And before anything was kept, and there were controllers to choose from.
        for side in plan.conns.iter_mut().flat_map(|conn| &mut conn.sides) {
            let bounds = (rng.pick(&[1, 8, 256, 1024]), rng.pick(&[3_000, 100_000, 1 << 22]));
            side.keep = rng.percent(60).then_some(bounds);
            side.algorithm = algorithm(&mut rng);
        }
        plan
    }

    /// The same run with a deliberate fault at its `fuse`th chance.
    #[must_use]
    pub fn with_mutation(mut self, mutation: Mutation, fuse: u32) -> Self {
        self.mutation = mutation;
        self.fuse = fuse;
        self
    }

    fn draw_rings(&mut self, rng: &mut Rng, index: usize) {
        let conn = &mut self.conns[index];
        if conn.service == Service::Ud || rng.percent(50) {
            return;
        }
        let ring = ring(rng, conn.mtu.bytes());
        let changes = rng.below(6);
        if !ring.is_up {
            self.chaos.push((rng.below(self.heal_at) + 1, Chaos::RingUp, index, 0));
        }
        conn.ring = Some(ring);
        if rng.percent(15) {
            // So that parts meet receives that are too short, or have bad memory.
            conn.bad_recv_ppm = conn.bad_recv_ppm.max(100_000);
        }
        for _ in 0..changes {
            // Often early: most seeds have posted everything long before they heal.
            let latest = self.heal_at * 3 / 4 / rng.pick(&[1, 20, 100]);
            let at = rng.below(latest) + 1;
            let records = rng.pick(&[0, 1, 1, 2, 5, 20]);
            let chaos = match rng.below(8) {
                0 => Chaos::Ring(records, RingFate::PeerDies),
                1 | 2 if is_reliable(conn.service) => Chaos::Ring(records, RingFate::Error),
                3 | 4 => Chaos::Ring(records, RingFate::Lost(rng.percent(50))),
                _ => Chaos::RingUp,
            };
            self.chaos.push((at, chaos, index, rng.below(2) as usize));
        }
    }

    fn draw_chaos(&mut self, rng: &mut Rng) {
        if rng.percent(45) {
            return;
        }
        let kinds = rng.word();
        for index in 0..self.conns.len() {
            for _ in 0..rng.below(4) {
                let at = rng.below(self.heal_at * 3 / 4) + 1;
                let length = rng.range(1, self.heal_at / 2);
                let chaos = match rng.below(6) {
                    0 => Chaos::Partition(length),
                    1 => Chaos::MtuCut(rng.pick(&[64, 300, 600, 1100]), length),
                    2 => Chaos::Revoke,
                    3 => Chaos::Error,
                    4 => Chaos::Reset,
                    _ => Chaos::Drain(length),
                };
                let bit = match chaos {
                    Chaos::Partition(_) => 0,
                    Chaos::MtuCut(..) => 1,
                    Chaos::Revoke => 2,
                    Chaos::Error => 3,
                    Chaos::Reset => 4,
                    _ => 5,
                };
                if kinds >> bit & 1 == 1 {
                    self.chaos.push((at, chaos, index, rng.below(2) as usize));
                }
            }
        }
    }
}

fn conn(rng: &mut Rng, nodes: usize, index: usize, large: bool) -> ConnPlan {
    let service = match rng.below(10) {
        0 if index > 0 || rng.percent(50) => Service::Ud,
        1 | 2 => Service::Uc,
        3 => Service::Xrc,
        _ => Service::Rc,
    };
    let mtu = rng.pick(&Mtu::ALL);
    let max_len = match service {
        Service::Ud => mtu.bytes(),
        _ if large => rng.pick(&[300_000, 500_000, 1 << 20]),
        _ => rng.pick(&[64, 2048, 2048, 8192, 8192, 20_000, 65_536]),
    };
    let link = link(rng);
    let hasty = rng.percent(6);
    let a = rng.below(nodes as u64) as usize;
    let b = if rng.percent(10) { a } else { (a + 1) % nodes };
    let mut sides = [side(rng, &link, hasty, large), side(rng, &link, hasty, large)];
    for s in 0..2 {
        sides[s].max_rd = sides[s].max_rd.min(sides[1 - s].max_dest);
    }
    if rng.percent(20) || service == Service::Xrc {
        sides[1].quota = 0;
    }
    if service == Service::Xrc {
        // The initiator receives nothing; the target has shared queues only.
        sides[0].rq = 0;
        (sides[0].srq, sides[1].srq) = (false, true);
    }
    let mut mix = [0; 13];
    for weight in &mut mix {
        *weight = if rng.percent(50) { rng.range(1, 8) as u8 } else { 0 };
    }
    mix[rng.pick(&[0, 3, 5])] = 4;
    let mut plan = ConnPlan {
        service,
        nodes: [a, b],
        mtu,
        sides,
        link,
        mix,
        max_len,
        bad_ppm: if rng.percent(25) { rng.pick(&[5_000, 30_000, 100_000]) } else { 0 },
        bad_recv_ppm: 0,
        fence_percent: rng.pick(&[0, 0, 10, 50]),
        unsignaled_percent: rng.pick(&[0, 30, 90]),
        careless: rng.percent(15),
        fresh_qpn: false,
        ghosts: false,
        staggered: rng.percent(30),
        lenient: false,
        hasty,
        ring: None,
    };
    plan.bad_recv_ppm = plan.bad_ppm / 2;
    plan.with_numbers(rng).with_garbage(rng)
}

impl ConnPlan {
    /// Whether the network keeps packets in order, each once.
    pub(crate) fn is_orderly(&self) -> bool {
        self.link.duplicate == 0 && self.link.reorder == 0 && self.link.spread == 0
    }

    fn with_numbers(mut self, rng: &mut Rng) -> Self {
        match rng.below(4) {
            0 => self.ghosts = self.service == Service::Rc,
            1 | 2 => self.fresh_qpn = true,
            _ => {}
        }
        self
    }

    fn with_garbage(mut self, rng: &mut Rng) -> Self {
        if rng.percent(8) {
            self.lenient = true;
            self.link.garbage = rng.pick(&[10_000, 100_000, 500_000]);
        }
        self
    }
}

fn ring(rng: &mut Rng, mtu: u32) -> RingPlan {
    let small = mtu as usize + 512;
    let limits = RendezvousLimits {
        min_bytes: rng.pick(&[1, mtu, 3_000, 20_000]),
        max_bytes: rng.pick(&[1, mtu * 2, 10_000, 1 << 19]),
    };
    RingPlan {
        is_up: rng.percent(50),
        delay: rng.pick(&[0, 200, 2 * US]),
        batch: rng.pick(&[1, 4, 64]),
        capacity: rng.pick(&[small, small * 3, 1 << 16, 1 << 18]),
        part: rng.pick(&[mtu as usize, mtu as usize * 3 + 17, 1 << 14, 1 << 16]),
        rendezvous: rng.percent(60).then_some(limits),
        unreachable: rng.pick(&[0, 0, 20_000, 300_000]),
    }
}

fn link(rng: &mut Rng) -> LinkPlan {
    let mut chance =
        |percent: u32, values: &[u32]| if rng.percent(percent) { rng.pick(values) } else { 0 };
    let loss = chance(45, &[1_000, 10_000, 50_000, 150_000]);
    let duplicate = chance(30, &[1_000, 20_000, 200_000]);
    let reorder = chance(30, &[1_000, 20_000, 200_000]);
    let corrupt = chance(25, &[1_000, 20_000]);
    LinkPlan {
        delay: rng.pick(&[500, 2 * US, 20 * US, 200 * US]),
        jitter: rng.pick(&[0, 0, 100, 1_000]),
        loss,
        duplicate,
        reorder,
        corrupt,
        garbage: 0,
        marks: 5_000,
        ns_per_kib: rng.pick(&[10, 100, 800]),
        spread: 0,
    }
}

fn side(rng: &mut Rng, link: &LinkPlan, hasty: bool, large: bool) -> SidePlan {
    // A round trip takes at most the delays, the reordering, and a burst's time on the wire.
    let floor: u8 = if link.delay >= 100 * US { 11 } else { 9 };
    let timeout = if hasty {
        rng.range(1, 6) as u8
    } else {
        floor + rng.below(4) as u8 + u8::from(large) * 2
    };
    let quota = if large { rng.range(4, 16) } else { rng.pick(&[6, 20, 20, 60]) } as u32;
    SidePlan {
        timeout,
        retry_cnt: rng.pick(&[0, 1, 3, 7, 7, 7]),
        rnr_retry: rng.pick(&[0, 1, 3, 6, 7, 7, 7]),
        min_rnr: rng.pick(&[0, 1, 1, 5, 12, 12, 18, 31]),
        max_rd: rng.range(1, 16) as u8,
        max_dest: rng.range(1, 16) as u8,
        window: rng.pick(&[1, 2, 7, 32, 128, 1024, 1 << 16]),
        sq: rng.pick(&[1, 2, 5, 16, 64, 100]),
        rq: rng.pick(&[1, 2, 8, 32, 64]),
        srq: rng.percent(25),
        psn: if rng.percent(40) {
            0x100_0000 - rng.range(1, 40) as u32
        } else {
            rng.below(1 << 24) as u32
        },
        quota,
        post_delay: rng.pick(&[0, US, 20 * US, 200 * US]),
        recv_delay: rng.pick(&[0, US, 20 * US, 500 * US, 5 * MS]),
        tx_delay: rng.pick(&[0, 300, 2 * US]),
        burst: rng.pick(&[1, 4, 16, 64]),
        reject_reads: rng.percent(3),
        keep: None,
        erratic: None,
        algorithm: Algorithm::Aimd,
    }
}

/// Half of the queue pairs have the default. The others have parameters at which a few packets are
/// a rate, and a notification is felt.
fn algorithm(rng: &mut Rng) -> Algorithm {
    match rng.below(6) {
        0 => Algorithm::Dcqcn(Dcqcn {
            rate_to_set_on_first_cnp: rng.pick(&[0, 100, 10_000]) as u32,
            rpg_min_rate: rng.pick(&[100, 1000]) as u32,
            pacing_quantum: rng.pick(&[0, 100]) as u32,
            min_time_between_cnps: rng.pick(&[0, 50]) as u32,
            ..Dcqcn::default()
        }),
        1 => Algorithm::Swift(Swift { min_cwnd: 500, ..Swift::default() }),
        2 => Algorithm::None,
        _ => Algorithm::Aimd,
    }
}
