//! What must hold when a run is over.

use vernic_proto::{AttrMask, QpAttr, QpState};

use super::plan::{Fault, Mutation};
use super::tally::Tally;
use super::world::World;

impl World {
    /// After both ends have left the connection.
    pub(crate) fn check_end(&mut self) {
        if self.judge.violation.is_some() {
            return;
        }
        let began = self.ends.iter().all(|end| end.startup.is_none());
        for side in 0..2 {
            if !self.judge.disturbed {
                self.check_success(side);
            }
            if self.ends[side].startup.is_none()
                && self.ends[side].qp.state() != QpState::Error
                && self.judge.violation.is_none()
            {
                let ends = self.describe();
                self.judge.fail(format_args!("{side}: is over and not in Error: {ends}"));
            }
            // One whose start-up failed is the application's to end.
            let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
            self.modify(side, attr, AttrMask::STATE);
            self.check_queues(side);
        }
        if !self.judge.disturbed {
            self.judge.totals.hit(Tally::Closed);
        }
        if began {
            self.check_found();
        }
        for side in 0..2 {
            if let Some(addr) = self.books[side].memory.difference() {
                self.judge.fail(format_args!(
                    "memory of {side} at {addr:#x} is not what the messages made it"
                ));
            }
        }
    }

    /// Nothing went wrong: everything was carried out and both ends closed in order.
    fn check_success(&mut self, side: usize) {
        let peer = 1 - side;
        // Those that leave no trace are carried out as well.
        let left = self.books[peer].msgs[self.books[side].cursor..].to_vec();
        let undone = left.iter().find(|msg| {
            let traceless = msg.len == 0 && !msg.kind.takes_receive() && !msg.kind.is_atomic();
            !msg.finished && !traceless
        });
        if let Some(msg) = undone {
            self.judge.fail(format_args!("{side}: was never asked for {msg:?}"));
        }
        let books = &self.books[side];
        let (left, done) = (self.ends[side].left, books.is_done());
        if left > 0 || !done || books.send_failed {
            let ends = self.describe();
            self.judge.fail(format_args!("{side}: not all requests succeeded: {ends}"));
        }
    }

    /// Every request and every receive has completed.
    fn check_queues(&mut self, side: usize) {
        let books = &self.books[side];
        let rest = &books.msgs[books.next_done..];
        let room = self.ends[side].qp.send_room();
        // What succeeded unsignaled is silent; what failed never is.
        let silent = rest.iter().all(|msg| !msg.signaled) && !books.send_failed || rest.is_empty();
        let (done, posted) = (books.recvs_done, books.recvs_posted);
        if !silent || room != self.ends[side].plan.send_queue {
            self.judge.fail(format_args!("{side}: in Error, {} without completion", rest.len()));
        }
        if done != posted {
            self.judge.fail(format_args!("{side}: {posted} receives posted, {done} completed"));
        }
    }

    /// What was wrong on the wire, under a CRC or in a request, was found by who received it.
    fn check_found(&mut self) {
        let finder = match self.plan.fault {
            Fault::Change { from, .. } if self.judge.totals.of(Tally::Changed) > 0 => 1 - from,
            Fault::Bad { side, .. } if self.judge.totals.of(Tally::Refused) > 0 => 1 - side,
            _ => return,
        };
        let clean = self.judge.mutation == Mutation::None && !self.judge.lenient;
        if clean && self.books[finder].failure.is_none() {
            let fault = self.plan.fault;
            self.judge.fail(format_args!("{finder}: did not notice {fault:?}"));
        }
    }
}
