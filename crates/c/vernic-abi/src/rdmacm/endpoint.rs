//! Endpoints: an id with a queue pair from an address, and requests of a synchronous listener.

use std::ffi::c_int;

use super::id::{self, IdObject, Request};
use super::{event, qp, resolve};
use crate::boundary::{self, Failure};
use crate::layout::cm::{rai, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::layout::pd::ibv_pd;
use crate::layout::qp::ibv_qp_init_attr;
use crate::pointer::{Handle, In, Out};
use crate::waiting::{Attempt, attempts};

/// What the queue pairs of a listener's requests are made with.
#[derive(Clone, Copy)]
pub(crate) struct Endpoint {
    pd: Handle<ibv_pd>,
    init: ibv_qp_init_attr,
}

/// How long an address or route of an endpoint may take, ms: what rdma-core's takes.
const TIMEOUT_MS: c_int = 2000;

/// `rdma_create_ep`: a synchronous id at the address; with a queue pair if `init` is given. A
/// passive one (`RAI_PASSIVE`) is bound, shows the protection domain, and its requests get queue
/// pairs in it; any other has its route resolved.
pub(crate) extern "C-unwind" fn rdma_create_ep(
    out: Out<Handle<rdma_cm_id>>,
    address: In<rdma_addrinfo>,
    pd: Handle<ibv_pd>,
    init: Out<ibv_qp_init_attr>,
) -> c_int {
    out.write(Handle::NULL);
    let begun = boundary::outcome("rdma_create_ep", || {
        if out.is_null() {
            return Err(Failure::null("a place for the id"));
        }
        let address = address.require("the address")?;
        let id = IdObject::create(&Request {
            channel: Handle::NULL,
            context: std::ptr::null_mut(),
            port_space: address.ai_port_space as u32,
            qp_type: address.ai_qp_type as u32,
        })?;
        Ok((id, address))
    });
    let Some((id, address)) = begun else { return -1 };
    let made = match address.ai_flags & rai::PASSIVE != 0 {
        true => boundary::minus_one("rdma_create_ep", || {
            listen_at(id.get()?, &address, pd, init).map(|()| 0)
        }),
        false => connect_to(id, &address, pd, init),
    };
    if made != 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        rdma_destroy_ep(id);
        errno.into_iter().for_each(boundary::set_errno);
        return -1;
    }
    out.write(id);
    0
}

/// Binds the id, and keeps what its requests' queue pairs are to be made with.
fn listen_at(
    id: &IdObject,
    address: &rdma_addrinfo,
    pd: Handle<ibv_pd>,
    init: Out<ibv_qp_init_attr>,
) -> Result<(), Failure> {
    resolve::bind(id, address.ai_src_addr)?;
    if !pd.is_null() {
        pd.store(&id.base.pd);
    }
    if !init.is_null() {
        let mut init = init.require("the attributes")?;
        init.qp_type = address.ai_qp_type as u32;
        id.keep_endpoint(Endpoint { pd, init });
    }
    Ok(())
}

/// Resolves address and route, and makes the queue pair. Nothing here is to be dropped while it
/// waits.
fn connect_to(
    id: Handle<rdma_cm_id>,
    address: &rdma_addrinfo,
    pd: Handle<ibv_pd>,
    init: Out<ibv_qp_init_attr>,
) -> c_int {
    let (src, dst) = (address.ai_src_addr, address.ai_dst_addr);
    if resolve::rdma_resolve_addr(id, src, dst, TIMEOUT_MS) != 0
        || resolve::rdma_resolve_route(id, TIMEOUT_MS) != 0
    {
        return -1;
    }
    if init.is_null() {
        return 0;
    }
    boundary::minus_one("rdma_create_ep", || {
        let mut attr = init.require("the attributes")?;
        attr.qp_type = address.ai_qp_type as u32;
        qp::create_plain(id.get()?, id, pd, &mut attr)?;
        init.write_made(&attr);
        Ok(0)
    })
}

/// `rdma_destroy_ep`: the id with its queue pair, shared receive queue and completion queues.
pub(crate) extern "C" fn rdma_destroy_ep(id: Handle<rdma_cm_id>) {
    boundary::nothing("rdma_destroy_ep", || {
        let object = id.get()?;
        object.destroy_qp();
        object.destroy_srq();
        id::destroy(id)
    });
}

/// `rdma_get_request`: waits for the next request of a synchronous listener. Its id is synchronous,
/// too, and has the listener's kind of queue pair.
pub(crate) extern "C-unwind" fn rdma_get_request(
    listener: Handle<rdma_cm_id>,
    out: Out<Handle<rdma_cm_id>>,
) -> c_int {
    out.write(Handle::NULL);
    attempts(|| {
        let attempt = boundary::outcome("rdma_get_request", || {
            if out.is_null() {
                return Err(Failure::null("a place for the id"));
            }
            let object = listener.get()?;
            if !object.is_synchronous() {
                return Err(Failure::invalid("the listener has a channel: take its events there"));
            }
            object.release_event();
            let channel: Handle<rdma_event_channel> = Handle::load(&object.base.channel);
            channel.get()?.attempt(|engine| {
                let Some(event) = event::take(engine)? else { return Ok(None) };
                match accept_request(object, event) {
                    Ok(id) => {
                        out.write(id);
                        Ok(Some(0))
                    }
                    Err(failure) => {
                        // For the program to look at, until the next.
                        event.store(&object.base.event);
                        Err(failure)
                    }
                }
            })
        });
        attempt.unwrap_or(Attempt::Done(-1))
    })
}

/// The id of a request, with a queue pair if the listener says so. The event is the new id's.
fn accept_request(
    listener: &IdObject,
    event: Handle<rdma_cm_event>,
) -> Result<Handle<rdma_cm_id>, Failure> {
    event::outcome(event)?;
    let id = event::request(event)?;
    let object = id.get()?;
    if let Some(Endpoint { pd, mut init }) = listener.endpoint() {
        qp::create_plain(object, id, pd, &mut init)?;
    }
    event.store(&object.base.event);
    Ok(id)
}
