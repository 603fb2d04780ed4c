//! Asynchronous events.

use std::ffi::c_int;

use vernic_engine::Element;

use crate::boundary::{self, Failure};
use crate::layout::context::ibv_context;
use crate::layout::cq::ibv_cq;
use crate::layout::event::{event_type, ibv_async_event};
use crate::layout::qp::ibv_qp;
use crate::layout::srq::ibv_srq;
use crate::pointer::{Handle, In, Out, plain};
use crate::waiting::{Attempt, attempts};

plain! { ibv_async_event }

/// `ibv_get_async_event`: waits for an event, unless the program made the descriptor non-blocking.
pub(crate) extern "C-unwind" fn ibv_get_async_event(
    context: Handle<ibv_context>,
    out: Out<ibv_async_event>,
) -> c_int {
    attempts(|| boundary::quiet(|| attempt(context, out)).unwrap_or(Attempt::Done(-1)))
}

fn attempt(context: Handle<ibv_context>, out: Out<ibv_async_event>) -> Result<Attempt, Failure> {
    let shared = context.get()?.shared()?;
    // Each turn takes an event; those of objects that were destroyed meanwhile are skipped.
    while let Some(event) = shared.engine.try_async_event() {
        let mut registry = shared.registry();
        let element = match event.element {
            Element::Qp(qpn) => registry.qp_to_tell(&shared.engine, event, qpn).map(|qp| {
                qp.find().inspect(|qp| qp.report());
                qp.raw().cast()
            }),
            Element::Cq(id) => registry.cqs.get(&id).map(|cq| {
                cq.find().inspect(|cq| cq.report_async());
                cq.raw().cast()
            }),
            Element::Srq(id) => registry.srqs.get(&id).map(|srq| {
                srq.find().inspect(|srq| srq.report());
                srq.raw().cast()
            }),
            Element::Port(port) => Some(std::ptr::without_provenance_mut(port.0.into())),
            Element::Device => Some(std::ptr::null_mut()),
        };
        if let Some(element) = element {
            out.write(ibv_async_event { element, event_type: event.kind as c_int });
            return Ok(Attempt::Done(0));
        }
    }
    Attempt::wait(shared.engine.async_raw_fd())
}

/// `ibv_ack_async_event`.
pub(crate) extern "C" fn ibv_ack_async_event(event: In<ibv_async_event>) {
    use event_type as kind;
    boundary::nothing("ibv_ack_async_event", || {
        let event = event.require("the event")?;
        match event.event_type {
            kind::CQ_ERR => {
                Handle::<ibv_cq>::told(event.element).get()?.acknowledge_async();
            }
            kind::QP_FATAL..=kind::PATH_MIG_ERR | kind::QP_LAST_WQE_REACHED => {
                Handle::<ibv_qp>::told(event.element).get()?.acknowledge();
            }
            kind::SRQ_ERR | kind::SRQ_LIMIT_REACHED => {
                Handle::<ibv_srq>::told(event.element).get()?.acknowledge();
            }
            // Of the port or the device: nobody waits for these.
            _ => {}
        }
        Ok(())
    });
}
