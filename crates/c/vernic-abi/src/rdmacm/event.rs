//! Events: taking them, what they say, acknowledging them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use vernic_cm::{
    ConnInfo, Event, EventChannel, EventKind, Id, Param, RejReason, SidrStatus, UdInfo,
};
use vernic_engine::more;

use super::id::IdObject;
use super::process::process;
use crate::boundary::{self, Failure};
use crate::ibverbs::ah;
use crate::layout::ah::ibv_ah_attr;
use crate::layout::cm::{
    event_param, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use crate::pointer::{CObject, Handle, Out};
use crate::waiting::{Attempt, attempts};

/// An event. The engine's is dropped with it, which acknowledges it.
#[repr(C)]
pub(crate) struct EventObject {
    base: rdma_cm_event,
    /// What `private_data` of the parameters points to.
    _private_data: Vec<u8>,
    _engine: Event,
}

// SAFETY: `base` comes first.
unsafe impl CObject for rdma_cm_event {
    type Object = EventObject;
    const NAME: &'static str = "an event";
}

/// No parameters.
const NO_PARAM: rdma_ud_param = rdma_ud_param {
    private_data: ptr::null(),
    private_data_len: 0,
    ah_attr: ibv_ah_attr::ZERO,
    qp_num: 0,
    qkey: 0,
};

/// Takes the next event of a channel, if there is one, for C.
///
/// # Errors
/// `EIO` for a channel that was made before a fork.
pub(crate) fn take(channel: &Arc<EventChannel>) -> Result<Option<Handle<rdma_cm_event>>, Failure> {
    if channel.is_orphan() {
        let why = "the channel was made before fork(): make one in this process";
        return Err(Failure::new(libc::EIO, why));
    }
    // Each turn takes an event; few are of ids that the program does not know.
    while let Some(event) = channel.try_next_after(heed) {
        if let Some(of_c) = into_c(event) {
            return Ok(Some(of_c));
        }
    }
    Ok(None)
}

/// The program may have given the id another queue pair since it asked for a connection.
fn heed(id: &Arc<Id>) {
    let of_c = process().ok().and_then(|process| process.find(id));
    // It is not destroyed before the event is acknowledged.
    let heeded = of_c.and_then(|of_c| Some(of_c.find()?.heed_qp()));
    if let Some(Err(failure)) = heeded {
        tracing::warn!("the queue pair that the program gave the id: {}", failure.why());
    }
}

/// Makes an event one of C's; `None` of an id that the program does not know, or does not know any
/// more.
fn into_c(event: Event) -> Option<Handle<rdma_cm_event>> {
    let process = process().ok()?;
    let (id, listen_id) = match &event.listen_id {
        Some(listen_id) => {
            let listen_id = process.find(listen_id)?;
            // The engine refuses the peer when the event, and with it the new id, is dropped.
            let id = IdObject::of_request(event.id.clone(), listen_id.find()?);
            let id = id.inspect_err(|failure| {
                tracing::warn!("a request to connect is refused: {}", failure.why());
            });
            (id.ok()?, listen_id)
        }
        None => (process.find(&event.id)?, Handle::NULL),
    };
    let object = id.find()?;
    if listen_id.is_null() && !object.is_known() {
        return None;
    }
    let (mut kind, mut status) = (event.kind, event.status);
    if matches!(kind, EventKind::AddrResolved | EventKind::RouteResolved)
        && let Err(failure) = object.show()
    {
        tracing::warn!("{kind:?}: {}", failure.why());
        status = -failure.errno;
        kind = match kind {
            EventKind::AddrResolved => EventKind::AddrError,
            _ => EventKind::RouteError,
        };
    }
    object.show_qp_state();
    let (local, peer) = (shown(event.id.local_addr()), shown(event.id.peer_addr()));
    tracing::info!(id = ?event.id, %local, %peer, status, "{kind:?}");
    if let Some(why) = why_not(kind, status, event.id.fabric_host()) {
        let more = topic_of(kind).and_then(more).map(tracing::field::display);
        tracing::warn!(more, "no connection from {local} to {peer}: {why}");
    }
    Some(hand_out(id, listen_id, (kind, status), event))
}

/// Why a peer does not talk to us: programs print the numbers at most. `place` is the fabric and
/// the host of an id on InfiniBand.
fn why_not(kind: EventKind, status: c_int, place: Option<(&str, &str)>) -> Option<String> {
    let of_system = || std::io::Error::from_raw_os_error(-status);
    let why = match (kind, status, place) {
        (EventKind::Rejected, 1.., _) => {
            let reason = u16::try_from(status).map_or(RejReason(0), RejReason);
            let hint = match (reason, place) {
                (RejReason::INVALID_SERVICE_ID, Some((fabric, _))) => {
                    format!(
                        " (`vernic fabric show {fabric}` has what the programs of hosts listen for)"
                    )
                }
                (RejReason::INVALID_SERVICE_ID, None) => {
                    ", on a device of this transport (RoCE, not iWARP)".to_owned()
                }
                _ => String::new(),
            };
            format!("rejected with reason {reason}{hint}")
        }
        (EventKind::Rejected, ..) => format!(
            "{}: does a program listen there, and on an iWARP device, as this one is?",
            of_system()
        ),
        (EventKind::Unreachable, 1.., _) => {
            let status = u8::try_from(status).map_or(SidrStatus(0), SidrStatus);
            format!("no queue pair for datagrams: {status}")
        }
        (EventKind::Unreachable, _, Some((fabric, host))) => format!(
            "no answer ({}): does a program run at that host, are the ports of both active, and is {host} in a \
             partition with it? `vernic fabric show {fabric}` has programs and ports",
            of_system()
        ),
        (EventKind::Unreachable, _, None) => format!(
            "no answer ({}): is it there, has a program that listens by RoCEv2 been started there before this one, and \
             does UDP port 4791 pass between here and there?",
            of_system()
        ),
        (EventKind::AddrError, _, Some((fabric, host))) => format!(
            "the address is not found from host {host} of fabric {fabric} ({}): `vernic fabric ipoib` gives a host one, \
             and a subnet manager must run",
            of_system()
        ),
        (EventKind::AddrError, _, None) => format!(
            "nobody answers for the address ({}): is the host up, and on this network?",
            of_system()
        ),
        (EventKind::ConnectError, ..) => format!("it broke while it was made ({})", of_system()),
        _ => return None,
    };
    Some(why)
}

/// The topic of the page of errors about an event.
fn topic_of(kind: EventKind) -> Option<&'static str> {
    Some(match kind {
        EventKind::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
        EventKind::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
        EventKind::Rejected => "RDMA_CM_EVENT_REJECTED",
        EventKind::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
        _ => return None,
    })
}

fn shown(address: Option<std::net::SocketAddr>) -> String {
    address.map_or_else(|| "-".to_owned(), |address| address.to_string())
}

fn hand_out(
    id: Handle<rdma_cm_id>,
    listen_id: Handle<rdma_cm_id>,
    (kind, status): (EventKind, c_int),
    mut event: Event,
) -> Handle<rdma_cm_event> {
    let (param, private_data) = match std::mem::replace(&mut event.param, Param::None) {
        Param::None => (event_param { ud: NO_PARAM }, Vec::new()),
        Param::Conn(info) => of_connection(info),
        Param::Ud(info) => of_datagrams(kind, info),
        Param::Arg(arg) => (of_program(arg), Vec::new()),
    };
    let base = rdma_cm_event { id, listen_id, event: kind as c_uint, status, param };
    Handle::hand_out(Box::new(EventObject { base, _private_data: private_data, _engine: event }))
}

/// Where private data is and how long, as fields of C.
fn data(bytes: &[u8]) -> (*const c_void, u8) {
    match u8::try_from(bytes.len()) {
        Ok(length @ 1..) => (bytes.as_ptr().cast(), length),
        _ => (ptr::null(), 0),
    }
}

fn of_connection(info: ConnInfo) -> (event_param, Vec<u8>) {
    let (private_data, private_data_len) = data(&info.private_data);
    let conn = rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources: info.responder_resources,
        initiator_depth: info.initiator_depth,
        flow_control: u8::from(info.flow_control),
        retry_count: info.retry_count,
        rnr_retry_count: info.rnr_retry_count,
        srq: u8::from(info.srq),
        qp_num: info.qp_num.value(),
    };
    let mut param = event_param { ud: NO_PARAM };
    param.conn = conn;
    (param, info.private_data)
}

fn of_datagrams(kind: EventKind, info: UdInfo) -> (event_param, Vec<u8>) {
    let (mut private_data, private_data_len) = data(&info.private_data);
    if matches!(kind, EventKind::MulticastJoin | EventKind::MulticastError) {
        // What the program gave when it joined.
        private_data = ptr::with_exposed_provenance(info.context);
    }
    let ud = rdma_ud_param {
        private_data,
        private_data_len,
        ah_attr: ah::from_vector(&info.av),
        qp_num: info.qp_num.value(),
        qkey: info.qkey.value(),
    };
    (event_param { ud }, info.private_data)
}

/// What a program wrote; zeros behind it.
fn of_program(arg: u64) -> event_param {
    let mut param = event_param { ud: NO_PARAM };
    param.arg = arg;
    param
}

/// What an event of a synchronous id means for the call that waited for it.
///
/// # Errors
/// `ECONNREFUSED` for a rejection, the errno in the status of others.
pub(crate) fn outcome(event: Handle<rdma_cm_event>) -> Result<(), Failure> {
    let base = &event.get()?.base;
    if base.status == 0 {
        return Ok(());
    }
    let why = format!("event {}, status {}", base.event, base.status);
    let errno = match base.event == EventKind::Rejected as c_uint {
        true => libc::ECONNREFUSED,
        false => base.status.unsigned_abs() as c_int,
    };
    Err(Failure::new(errno, why))
}

/// The new id of a request; of a synchronous listener.
///
/// # Errors
/// `EINVAL` for another event.
pub(crate) fn request(event: Handle<rdma_cm_event>) -> Result<Handle<rdma_cm_id>, Failure> {
    let base = &event.get()?.base;
    match base.event == EventKind::ConnectRequest as c_uint {
        true => Ok(base.id),
        false => Err(Failure::invalid(format!("event {} is no request to connect", base.event))),
    }
}

/// Ends an event.
pub(crate) fn acknowledge(event: Handle<rdma_cm_event>) {
    // SAFETY: from `hand_out`, and acknowledged once (contract of `pointer.rs`, 1).
    drop(unsafe { event.take_back() });
}

/// `rdma_write_cm_event`, since rdma-core 58: an event of the program's own, for whoever waits on
/// the id's channel.
pub(crate) extern "C" fn rdma_write_cm_event(
    id: Handle<rdma_cm_id>,
    event: c_uint,
    status: c_int,
    arg: u64,
) -> c_int {
    boundary::minus_one("rdma_write_cm_event", || {
        let kinds = [EventKind::User, EventKind::Internal];
        let kind = kinds.into_iter().find(|kind| *kind as c_uint == event).ok_or_else(|| {
            Failure::invalid(format!("event {event} is none that a program may write"))
        })?;
        id.get()?.engine.write_event(kind, status, arg)?;
        Ok(0)
    })
}

/// `rdma_get_cm_event`: waits for an event, unless the program made the descriptor non-blocking.
pub(crate) extern "C-unwind" fn rdma_get_cm_event(
    channel: Handle<rdma_event_channel>,
    out: Out<Handle<rdma_cm_event>>,
) -> c_int {
    attempts(|| {
        let attempt = boundary::quiet(|| {
            if out.is_null() {
                return Err(Failure::null("a place for the event"));
            }
            channel
                .get()?
                .attempt(|engine| Ok(take(engine)?.map(|event| out.write(event)).map(|()| 0)))
        });
        attempt.unwrap_or(Attempt::Done(-1))
    })
}

/// `rdma_ack_cm_event`.
pub(crate) extern "C" fn rdma_ack_cm_event(event: Handle<rdma_cm_event>) -> c_int {
    boundary::minus_one("rdma_ack_cm_event", || {
        event.get()?;
        acknowledge(event);
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_prints_as_a_number_is_explained() {
        let says = |kind, status, words: &[&str]| {
            let why = why_not(kind, status, None).unwrap();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
            assert!(vernic_engine::TOPICS.contains(&topic_of(kind).unwrap()), "{kind:?}");
        };
        says(EventKind::Rejected, 8, &["nobody listens", "RoCE, not iWARP"]);
        says(EventKind::Rejected, 28, &["28"]);
        says(EventKind::Rejected, -libc::ECONNREFUSED, &["refused", "iWARP device"]);
        says(EventKind::Unreachable, -libc::ETIMEDOUT, &["4791", "before this one"]);
        says(EventKind::Unreachable, 1, &["datagrams", "nobody listens"]);
        assert_eq!(why_not(EventKind::Established, 0, None), None);
        assert_eq!(why_not(EventKind::Disconnected, 0, None), None);
    }

    #[test]
    fn on_a_fabric_the_words_are_those_of_infiniband() {
        for (kind, status, words) in [
            (EventKind::Rejected, 8, &["nobody listens", "vernic fabric show lab"][..]),
            (EventKind::Unreachable, -libc::ETIMEDOUT, &["partition", "active", "show lab"]),
            (EventKind::AddrError, -libc::ETIMEDOUT, &["h7", "vernic fabric ipoib"]),
        ] {
            let why = why_not(kind, status, Some(("lab", "h7"))).unwrap();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
            let others = ["RoCE", "UDP", "iWARP", "network"];
            assert!(!others.iter().any(|word| why.contains(word)), "{why}");
        }
    }
}
