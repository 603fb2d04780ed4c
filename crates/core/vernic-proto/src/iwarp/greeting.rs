//! The first words of an initiator, for connections that no queue pair takes, or that one has let
//! go of.
//!
//! A responder may not be prepared for the end of a connection before it is in full operation
//! ([`StreamConfig::rtr_answer_ns`](super::StreamConfig::rtr_answer_ns)), which the initiator's
//! first FPDU brings it to. So who leaves says that first, and leaves when it is answered.

use super::agreed::{Agreed, Role, RtrSet};
use super::layout::Layout;
use super::requester::Requester;

/// FPDUs of an initiator whose ready-to-receive indication is a READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The indication itself, which begins the stream.
    pub first: Vec<u8>,
    /// An empty WRITE, which may follow at any place: it makes a responder look that missed the
    /// indication.
    pub again: Vec<u8>,
}

impl Greeting {
    /// Those that fit what was agreed; none of a responder, where the indication is another, which
    /// is not answered, nor where the peer wants markers, which depend on the place in the stream.
    pub fn of(agreed: &Agreed) -> Option<Self> {
        let answered = agreed.role == Role::Initiator && agreed.rtr.choice() == Some(RtrSet::READ);
        if !answered || agreed.tx_markers {
            return None;
        }
        let layout = Layout::new(agreed);
        let word = |rtr| Some(layout.alone(&Requester::new(agreed.ord, 0, rtr).next_rtr()?));
        Some(Self { first: word(RtrSet::READ)?, again: word(RtrSet::WRITE)? })
    }
}
