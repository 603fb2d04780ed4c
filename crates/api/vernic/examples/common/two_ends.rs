//! Both ends of a connection in one process: what the programs of the book begin with, from the
//! fourth chapter on. `learn_write` and `learn_states` take the same steps one by one.
#![allow(dead_code, reason = "each program uses a part of it")]

use std::time::Duration;

use vernic::{Access, AckTimeout, Cq, Device, Error, InitAttr, Pd, Qp, Rc, RcOptions, Rts};

/// No step of these programs takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One end of a connection.
pub(crate) struct End {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp<Rc, Rts>,
}

/// Options of a connection that gives up after some tenths of a second: for programs whose peer is
/// meant to be silent.
pub(crate) fn impatient() -> RcOptions {
    RcOptions { timeout: AckTimeout::new(15), retry_cnt: 2, rnr_retry: 2, ..RcOptions::default() }
}

/// Two ends of one connection, each with a protection domain of its own. Each grants the other what
/// `granted` says.
pub(crate) fn connected(
    device: &Device,
    granted: Access,
    options: &RcOptions,
) -> Result<(End, End), Error> {
    connected_in([&device.alloc_pd()?, &device.alloc_pd()?], granted, options)
}

/// Two ends of one connection in protection domains that there are already.
pub(crate) fn connected_in(
    [one, other]: [&Pd; 2],
    granted: Access,
    options: &RcOptions,
) -> Result<(End, End), Error> {
    let (a, b) = (one.device().create_cq(64)?, other.device().create_cq(64)?);
    let qp_a = one.qp::<Rc>().send_cq(&a).recv_cq(&a).create()?;
    let qp_b = other.qp::<Rc>().send_cq(&b).recv_cq(&b).create()?;
    // What two programs on two hosts would tell each other over TCP.
    let (at_a, at_b) = (qp_a.endpoint(), qp_b.endpoint());
    let qp_a = qp_a.init(InitAttr::granting(granted))?.connect_with(at_b, options)?;
    let qp_b = qp_b.init(InitAttr::granting(granted))?.connect_with(at_a, options)?;
    Ok((End { pd: one.clone(), cq: a, qp: qp_a }, End { pd: other.clone(), cq: b, qp: qp_b }))
}

/// What the next completion says: success, or all that is known of the failure.
pub(crate) fn outcome(cq: &Cq) -> String {
    match cq.wait_one(PATIENCE) {
        Ok(wc) => format!("{:?} (work request {}): Success", wc.opcode(), wc.wr_id().0),
        Err(error) => error.to_string(),
    }
}

/// The word on the command line: one of those that the program knows, or none.
pub(crate) fn word(known: &[&str]) -> Result<String, Error> {
    let word = std::env::args().nth(1).unwrap_or_default();
    if word.is_empty() || known.contains(&word.as_str()) {
        return Ok(word);
    }
    let text = format!("{word:?} is none of the words that this program knows: {known:?}");
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text).into())
}
