//! What the owner of a queue pair does: FPDUs to the connection, bytes of the connection to the
//! queue pair, payload to its place.

use vernic_proto::iwarp::{MAX_FPDU, Place, RxNext, Source, Target};
use vernic_proto::{AccessFault, Host};

use super::host::StreamHost;
use super::plan::{Fault, Mutation};
use super::tally::Tally;
use super::world::World;

impl World {
    /// Makes an FPDU: whole, or its headers, with the payload fetched by the owner.
    pub(super) fn transmit(&mut self, side: usize) {
        self.judge.totals.hit(Tally::Fpdus);
        let hands_over = self.ends[side].plan.hands_over && !self.ends[side].qp.copies_payload();
        if self.rng.percent(20) {
            self.ends[side].qp.begin_batch();
        }
        let mut made = Vec::new();
        self.with_qp(side, |qp, host, now| {
            if !hands_over {
                made.resize(MAX_FPDU, 0);
                let len = qp.poll_transmit(now, host, &mut made).unwrap_or(0);
                made.truncate(len);
                return;
            }
            let Some(fpdu) = qp.poll_fpdu(now, host) else { return };
            let mut payload = vec![0; fpdu.payload_len() as usize];
            let fetched = match fpdu.source() {
                Source::None => Ok(()),
                Source::Send { slot, offset } => host.gather(slot, offset, &mut payload),
                Source::Remote { rkey, addr } => host.read_remote(rkey, addr, &mut payload),
            };
            match fetched {
                Ok(()) => {
                    qp.commit_fpdu(&fpdu);
                    made = [fpdu.head(), &payload, fpdu.tail()].concat();
                }
                Err(fault) => qp.refuse_fpdu(now, &fpdu, fault, host),
            }
        });
        if hands_over {
            self.judge.totals.hit(Tally::Handed);
        }
        let committed = self.ends[side].qp.committed();
        for msg in &mut self.books[side].msgs {
            if msg.gathered == msg.len && msg.len > 0 {
                msg.end.get_or_insert(committed);
            }
        }
        self.ends[side].out.extend(made);
    }

    /// The connection takes some of what was made.
    pub(super) fn take(&mut self, side: usize) {
        let room = self.pipes[side].room();
        let len = (self.rng.range(1, self.ends[side].plan.chunk) as usize).min(room);
        let end = &mut self.ends[side];
        if let Some(startup) = &mut end.startup {
            let len = len.min(startup.transmit().len());
            let bytes = startup.transmit()[..len].to_vec();
            startup.handle_sent(len);
            self.pipes[side].take(side, &bytes, &self.plan.fault);
            return;
        }
        let bytes: Vec<u8> = end.out.drain(..len.min(end.out.len())).collect();
        let struck = self.pipes[side].take(side, &bytes, &self.plan.fault);
        if struck {
            self.note_struck(side);
        }
        self.judge.totals.add(Tally::Bytes, bytes.len() as u64);
        self.books[side].accepted += bytes.len() as u64;
        let mut total = self.books[side].accepted;
        if !self.ends[side].out.is_empty() && self.judge.mutates(Mutation::EarlySent) {
            total += self.ends[side].out.len() as u64;
        }
        self.with_qp(side, |qp, host, now| qp.handle_sent(now, total, host));
        if self.ends[1 - side].gone {
            self.pipes[side].clear();
        }
    }

    fn note_struck(&mut self, from: usize) {
        let to = &self.ends[1 - from].plan;
        let crc = self.plan.ends.iter().any(|end| end.startup.crc);
        self.judge.disturbed = true;
        self.judge.say(format_args!("{from}: {:?} strikes", self.plan.fault));
        let tally = match self.plan.fault {
            Fault::CutOff { .. } => Tally::CutOff,
            Fault::Silence { .. } => Tally::Silence,
            _ => {
                self.judge.lenient |= !crc || to.stream.place_before_crc;
                Tally::Changed
            }
        };
        self.judge.totals.hit(tally);
        if self.judge.lenient {
            self.judge.totals.hit(Tally::Misplaced);
        }
    }

    /// Passes on what was delivered.
    pub(crate) fn consume(&mut self, side: usize) {
        // Bounded: each round consumes something.
        loop {
            let before = self.ends[side].inbox.len();
            if before == 0 || self.ends[side].gone {
                return;
            }
            let taken = if let Some(startup) = &mut self.ends[side].startup {
                let taken = startup.handle_bytes(&self.ends[side].inbox);
                self.advance_startup(side);
                taken
            } else {
                self.feed(side)
            };
            if taken > before {
                self.judge.fail(format_args!("{side}: consumes {taken} of {before} bytes"));
                return;
            }
            self.ends[side].inbox.drain(..taken);
            if taken == 0 {
                return;
            }
        }
    }

    fn feed(&mut self, side: usize) -> usize {
        let mut inbox = std::mem::take(&mut self.ends[side].inbox);
        if self.judge.mutates(Mutation::SilentCorruption) {
            inbox[0] ^= 4;
        }
        let places = self.ends[side].plan.places;
        let taken = match self.ends[side].qp.rx_next() {
            RxNext::Place(place) if places => {
                self.judge.totals.hit(Tally::Placed);
                let len = (place.len as usize).min(inbox.len());
                let piece = &inbox[..len];
                self.with_qp(side, |qp, host, now| match put(host, &place, piece) {
                    Ok(()) => {
                        let crc = place.crc.map(|crc| crc.update(piece));
                        qp.handle_placed(now, len as u32, crc);
                    }
                    Err(fault) => qp.refuse_place(now, fault, host),
                });
                len
            }
            _ => self.with_qp(side, |qp, host, now| qp.handle_bytes(now, &inbox, host)),
        };
        self.ends[side].inbox = inbox;
        taken
    }
}

fn put(host: &mut StreamHost<'_>, place: &Place, bytes: &[u8]) -> Result<(), AccessFault> {
    match place.target {
        Target::Recv { offset } => host.scatter_recv(offset, bytes),
        Target::Write { rkey, addr } => host.write_remote(rkey, addr, bytes),
        Target::Response { slot, offset } => host.scatter_response(slot, offset, bytes),
    }
}
