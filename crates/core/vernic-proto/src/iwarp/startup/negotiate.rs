//! What becomes of two offers: queue depths and RTR (RFC 6581, 9). Pure functions.

use vernic_wire::iwarp::{DepthCode, MpaEnhanced, TermCode};

use super::{StartupConfig, StartupError};
use crate::iwarp::agreed::RtrSet;

/// Depths and RTR that an end has agreed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Terms {
    pub(super) ird: u32,
    pub(super) ord: u32,
    pub(super) rtr: RtrSet,
}

/// What an initiator offers. An RTR by READ needs a place among the READs that the responder takes,
/// though the application wants none.
pub(super) fn offer(config: &StartupConfig) -> MpaEnhanced {
    let mut data = MpaEnhanced::default();
    config.rtr.into_flags(&mut data);
    let ord = config.ord.max(config.rtr.contains(RtrSet::READ).into());
    (data.ird, data.ord) = match config.negotiate_depths {
        true => (DepthCode::of_depth(config.ird), DepthCode::of_depth(ord)),
        false => (DepthCode::NOT_NEGOTIATED, DepthCode::NOT_NEGOTIATED),
    };
    data
}

/// The responder's answer to an offer, and what it thereby agrees to.
///
/// "The responder MUST set its ORD at most to the initiator IRD"; its IRD is raised to the
/// initiator's ORD as far as it has the resources, and to 1 for an RTR by READ (RFC 6581, 9.1).
/// What is not negotiated stays as it is, and is answered so.
pub(super) fn answer(config: &StartupConfig, asked: &MpaEnhanced) -> (MpaEnhanced, Terms) {
    let rtr = answer_rtr(config.rtr, RtrSet::of(asked), asked.peer_to_peer);
    let mut terms = Terms { ird: config.ird, ord: config.ord, rtr };
    let mut data = MpaEnhanced::default();
    rtr.into_flags(&mut data);
    data.ord = match asked.ird.depth() {
        Some(peer_ird) => {
            terms.ord = config.ord.min(peer_ird);
            DepthCode::of_depth(terms.ord)
        }
        None => DepthCode::NOT_NEGOTIATED,
    };
    if let Some(peer_ord) = asked.ord.depth() {
        terms.ird = config.ird.max(peer_ord).min(config.max_ird);
    }
    if rtr.contains(RtrSet::READ) {
        terms.ird = terms.ird.max(1);
    }
    data.ird = match asked.ord.depth() {
        Some(_) => DepthCode::of_depth(terms.ird),
        None => DepthCode::NOT_NEGOTIATED,
    };
    (data, terms)
}

/// "For each initiator-supported RTR indication option, the responder SHOULD set the corresponding
/// Control Flag if the responder can support that option"; and "If the responder does not support
/// any of the initiator-specified RTR indication options, then the responder MUST set at least one
/// RTR indication type option it supports" (RFC 6581, 9.2).
fn answer_rtr(supported: RtrSet, asked: RtrSet, peer_to_peer: bool) -> RtrSet {
    let supported = if supported.is_empty() { RtrSet::all() } else { supported };
    match supported & asked {
        _ if !peer_to_peer => RtrSet::empty(),
        none if none.is_empty() => supported,
        common => common,
    }
}

/// What the initiator makes of the answer.
///
/// "the initiator MUST set its IRD at least to the responder ORD and its ORD at most to the
/// responder IRD"; where it lacks the resources, or cannot give any RTR that the responder takes,
/// it says so in a Terminate (RFC 6581, 9.1, 9.2).
pub(super) fn conclude(
    config: &StartupConfig,
    answered: &MpaEnhanced,
) -> Result<Terms, StartupError> {
    let mut terms = Terms { ird: config.ird, ord: config.ord, rtr: RtrSet::empty() };
    if config.negotiate_depths {
        if let Some(peer_ird) = answered.ird.depth() {
            terms.ord = config.ord.min(peer_ird);
        }
        if let Some(needed) = answered.ord.depth() {
            terms.ird = config.ird.max(needed);
            if terms.ird > config.max_ird {
                return Err(StartupError::Depth { needed, limit: config.max_ird });
            }
        }
    }
    if !config.rtr.is_empty() {
        let theirs = RtrSet::of(answered);
        terms.rtr = (config.rtr & theirs)
            .choice()
            .ok_or(StartupError::NoRtr { ours: config.rtr, theirs })?;
    }
    Ok(terms)
}

/// What the peer is told of an error of the negotiation, or of this end (RFC 6581, 8, 9.3).
pub(super) fn term_code(error: &StartupError) -> Option<TermCode> {
    match error {
        StartupError::Depth { .. } => Some(TermCode::MPA_IRD),
        StartupError::NoRtr { .. } => Some(TermCode::MPA_RTR),
        StartupError::Local => Some(TermCode::MPA_LOCAL),
        _ => None,
    }
}
