//! What a seed stands for: what is agreed, the traffic, the connection's manners, one fault at
//! most.

use vernic_proto::iwarp::{Extensions, RtrSet, StartupConfig, StreamConfig};

use crate::rng::Rng;

/// A deliberate fault of the simulation itself, to prove that the oracle can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mutation {
    /// None: the real thing.
    #[default]
    None,
    /// The connection changes a byte that no CRC protects, and nobody is told.
    SilentCorruption,
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
    /// The owner says that the connection has taken bytes that it has not.
    EarlySent,
}

/// What goes wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// This byte of what this end sends after the start-up is changed by this mask.
    Change {
        from: usize,
        at: u64,
        mask: u8,
    },
    /// The connection is reset at this step.
    Reset {
        step: u64,
    },
    /// What this end sends ends behind this byte, as if it had closed its half.
    CutOff {
        from: usize,
        at: u64,
    },
    /// From this byte on nothing that this end sends arrives.
    Silence {
        from: usize,
        at: u64,
    },
    /// This end's application moves its queue pair to Error at this step.
    ToError {
        side: usize,
        step: u64,
    },
    /// This request of this end asks for what the peer does not grant.
    Bad {
        side: usize,
        index: u32,
        how: u8,
    },
    /// This end posts fewer receives than the peer needs, and nobody waits for them.
    NoReceive {
        side: usize,
    },
}

/// One end's application and owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndPlan {
    pub(crate) startup: StartupConfig,
    pub(crate) stream: StreamConfig,
    pub(crate) quota: u32,
    pub(crate) send_queue: u32,
    pub(crate) receives: u32,
    /// Weight of each kind of request, in the order of `books::KINDS`.
    pub(crate) mix: [u8; 8],
    pub(crate) fence_percent: u32,
    pub(crate) unsignaled_percent: u32,
    /// The owner places payload itself where it may.
    pub(crate) places: bool,
    /// The owner hands FPDUs to the connection in parts where it may.
    pub(crate) hands_over: bool,
    /// Bytes that the connection takes and delivers at once, at most.
    pub(crate) chunk: u64,
    /// Bytes that the connection holds.
    pub(crate) room: usize,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub(crate) seed: u64,
    pub(crate) mutation: Mutation,
    pub(crate) fuse: u32,
    pub(crate) ends: [EndPlan; 2],
    pub(crate) max_len: u32,
    pub(crate) fault: Fault,
    /// The end that closes first.
    pub(crate) closes_first: usize,
}

const SECOND: u64 = 1_000_000_000;

impl Plan {
    /// Draws the run of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1_0000_0000_0000);
        let chunk = rng.pick(&[1, 1, 2, 7, 100, 1448, 9000, 65_536, 1 << 20]);
        // A run by single bytes is kept short.
        let max_len = if chunk < 7 {
            rng.pick(&[40, 300])
        } else {
            rng.pick(&[64, 600, 2048, 2048, 20_000, 150_000])
        };
        let crc = rng.percent(65);
        let markers = rng.percent(35);
        let ends = [
            end(&mut rng, chunk, max_len, crc, markers),
            end(&mut rng, chunk, max_len, crc, markers),
        ];
        let fault = draw_fault(&mut rng, &ends, max_len);
        let closes_first = rng.below(2) as usize;
        let mut plan =
            Self { seed, mutation: Mutation::None, fuse: 0, ends, max_len, fault, closes_first };
        plan.settle(&mut rng);
        plan
    }

    /// The same run with a deliberate fault at its `fuse`th chance, and no other.
    #[must_use]
    pub fn with_mutation(mut self, mutation: Mutation, fuse: u32) -> Self {
        self.mutation = mutation;
        self.fuse = fuse;
        self.fault = Fault::None;
        if mutation == Mutation::SilentCorruption {
            self.ends.iter_mut().for_each(|end| end.startup.crc = false);
        }
        self
    }

    /// Whether the initiator has a ready-to-receive indication that the responder takes, if it
    /// wants one.
    pub(crate) fn agrees(&self) -> bool {
        let [ours, theirs] = self.ends.map(|end| end.startup.rtr);
        ours.is_empty() || theirs.is_empty() || ours.intersects(theirs)
    }

    /// What both ends must have in common, and what a fault needs.
    fn settle(&mut self, rng: &mut Rng) {
        if rng.percent(20) {
            self.ends[0].startup.revision = 1;
            self.ends[0].startup.rtr = RtrSet::empty();
        }
        if self.ends[0].startup.rtr.is_empty() {
            // The initiator speaks first, or nobody does.
            self.ends[0].quota = self.ends[0].quota.max(1);
        }
        // Revision 1 does not negotiate depths, nor does who does not want to: they fit by
        // agreement.
        let negotiates =
            self.ends[0].startup.revision == 2 && self.ends[0].startup.negotiate_depths;
        if !negotiates {
            for side in 0..2 {
                self.ends[side].startup.ord =
                    self.ends[side].startup.ord.min(self.ends[1 - side].startup.ird);
            }
        }
        if self.ends[0].startup.rtr.is_empty() || rng.percent(95) {
            self.ends[1].startup.rtr = RtrSet::empty();
        }
        if let Fault::NoReceive { side } = self.fault {
            self.ends[side].stream.recv_wait_ns = 0;
        }
    }
}

fn end(rng: &mut Rng, chunk: u64, max_len: u32, crc: bool, markers: bool) -> EndPlan {
    let mut mix = [0; 8];
    for weight in &mut mix {
        *weight = if rng.percent(60) { rng.range(1, 8) as u8 } else { 0 };
    }
    mix[rng.pick(&[0, 2, 4])] = 4;
    let quota = match chunk {
        0..7 => rng.pick(&[2, 6]),
        _ if max_len > 20_000 => rng.pick(&[3, 8]),
        _ => rng.pick(&[0, 6, 20, 50]),
    };
    let rtr =
        rng.pick(&[RtrSet::empty(), RtrSet::SEND, RtrSet::WRITE, RtrSet::READ, RtrSet::all()]);
    let startup = StartupConfig {
        revision: 2,
        crc: crc && rng.percent(70),
        markers: markers && rng.percent(70),
        ird: rng.pick(&[1, 2, 16]),
        max_ird: 64,
        ord: rng.pick(&[1, 2, 16]),
        negotiate_depths: rng.percent(80),
        rtr,
        timeout_ns: 5 * SECOND,
        reply_ns: 5 * SECOND,
    };
    let stream = StreamConfig {
        emss: rng.pick(&[160, 536, 1448, 8948]),
        large_fpdus: rng.percent(30),
        place_before_crc: rng.percent(25),
        accepts: Extensions::all(),
        peer_has: Extensions::all(),
        recv_wait_ns: 100 * SECOND,
        stall_ns: 2 * SECOND,
        rtr_wait_ns: 2 * SECOND,
        linger_ns: SECOND,
        close_ns: 30 * SECOND,
        rtr_repeat_ns: 10_000_000,
        rtr_answer_ns: SECOND / 2,
        fence_ns: 100_000_000,
    };
    EndPlan {
        startup,
        stream,
        quota,
        send_queue: rng.pick(&[1, 2, 5, 16, 64]),
        receives: rng.pick(&[1, 2, 8, 32]),
        mix,
        fence_percent: rng.pick(&[0, 0, 10, 50]),
        unsignaled_percent: rng.pick(&[0, 30, 90]),
        places: rng.percent(50),
        hands_over: rng.percent(50),
        chunk,
        room: match max_len {
            0..=600 => rng.pick(&[1, 60, 2000, 1 << 20]),
            _ => rng.pick(&[2000, 65_536, 1 << 20]),
        },
    }
}

fn draw_fault(rng: &mut Rng, ends: &[EndPlan; 2], max_len: u32) -> Fault {
    let side = rng.below(2) as usize;
    let bytes = u64::from(ends[side].quota + 1) * (u64::from(max_len) / 3 + 40);
    let at = rng.below(bytes);
    let steps = rng.pick(&[20, 100, 400]);
    match rng.below(14) {
        0 | 1 => Fault::Change { from: side, at, mask: 1 << rng.below(8) },
        2 => Fault::Reset { step: rng.below(steps) },
        3 => Fault::CutOff { from: side, at },
        4 => Fault::Silence { from: side, at },
        5 => Fault::ToError { side, step: rng.below(steps) },
        6 | 7 => {
            let index = rng.below(u64::from(ends[side].quota).max(1)) as u32;
            Fault::Bad { side, index, how: rng.below(5) as u8 }
        }
        8 => Fault::NoReceive { side },
        _ => Fault::None,
    }
}
