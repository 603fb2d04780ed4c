//! Ids: the objects of C, and what they show.
//!
//! An id of the engine (`vernic_cm::Id`) knows what it is; an `rdma_cm_id` shows it in fields that
//! programs read without a call. They are stored where a call changes what they show, or takes an
//! event that tells of a change ([`IdObject::show`]).
//!
//! An id without a channel is synchronous: it has a channel of its own, and each call waits for its
//! event, which stays in the field `event` until the next ([`complete`]).

use std::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use vernic_cm::{GidAddr, Id, PortSpace, QpType};
use vernic_engine::{Context, Gid, PortNum, Transport};

use super::addrinfo::Answer;
use super::channel::ChannelObject;
use super::endpoint::Endpoint;
use super::event;
use super::live;
use super::path;
use super::process::{CmDevice, process};
use crate::boundary::{self, Failure};
use crate::layout::cm::{
    PathRecord, Storage, Words, port_space, rdma_addr, rdma_cm_event, rdma_cm_id,
    rdma_event_channel, rdma_ib_addr, rdma_route,
};
use crate::layout::qp::{ibv_qp, qpt};
use crate::log;
use crate::object::lock;
use crate::pointer::sockaddr::{infiniband_bytes, to_bytes};
use crate::pointer::{CObject, Handle, Out};
use crate::waiting::{Attempt, attempts};

/// An id.
#[repr(C)]
pub(crate) struct IdObject {
    pub(crate) base: rdma_cm_id,
    pub(crate) engine: Arc<Id>,
    /// What `route.path_rec` points to, once there is a path.
    path: PathRecord,
    /// False of a request until the program accepts it: what happens to it before, it learns then.
    is_known: AtomicBool,
    /// The queue pair in `base.qp` that the engine was told of last.
    pub(super) heeded_qp: Arc<AtomicPtr<ibv_qp>>,
    kept: Mutex<Kept>,
}

/// What an id keeps beside what it shows.
#[derive(Default)]
pub(crate) struct Kept {
    device: Option<Arc<CmDevice>>,
    /// Of a synchronous id.
    own_channel: Option<Handle<rdma_event_channel>>,
    /// What the queue pairs of a listener's requests are made with.
    endpoint: Option<Endpoint>,
    /// What `rdma_resolve_addrinfo` found.
    answer: Option<Answer>,
}

// SAFETY: `base` comes first.
unsafe impl CObject for rdma_cm_id {
    type Object = IdObject;
    const NAME: &'static str = "an rdma_cm_id";

    fn is_there(address: usize) -> bool {
        live::is_live(address)
    }
}

/// What an id is made with.
pub(crate) struct Request {
    /// NULL for a synchronous id.
    pub(crate) channel: Handle<rdma_event_channel>,
    pub(crate) context: *mut c_void,
    pub(crate) port_space: c_uint,
    pub(crate) qp_type: c_uint,
}

/// The engine's word for a type of queue pairs.
fn qp_type(of_c: c_uint) -> Result<QpType, Failure> {
    match of_c {
        qpt::RC => Ok(QpType::Rc),
        qpt::UC => Ok(QpType::Uc),
        qpt::UD => Ok(QpType::Ud),
        qpt::XRC_SEND => Ok(QpType::XrcIni),
        qpt::XRC_RECV => Ok(QpType::XrcTgt),
        other => Err(Failure::invalid(format!("{other} is no type of queue pairs for ids"))),
    }
}

impl IdObject {
    /// An id for C.
    ///
    /// # Errors
    /// `EINVAL` for a port space or type of queue pairs that there is not, `EIO` for a channel that
    /// was made before a fork, the system's when the process has no descriptor left.
    pub(crate) fn create(request: &Request) -> Result<Handle<rdma_cm_id>, Failure> {
        let space = u16::try_from(request.port_space).ok().map(PortSpace);
        let space = space.filter(|space| space.name().is_some()).ok_or_else(|| {
            Failure::invalid(format!("{:#x} is no port space", request.port_space))
        })?;
        let qp_type = qp_type(request.qp_type)?;
        let own = match request.channel.is_null() {
            true => Some(ChannelObject::create()?),
            false => None,
        };
        let channel = own.unwrap_or(request.channel);
        let process = process()?;
        let engine = process.manager.create_id(Some(&channel.get()?.engine()?), space, qp_type);
        let engine = engine.inspect_err(|_| {
            if let Some(own) = own {
                drop(ChannelObject::destroy(own));
            }
        })?;
        Ok(Self::hand_out(engine, own, &Request { channel, ..*request }))
    }

    /// The id of a request, which has what its listener has.
    ///
    /// # Errors
    /// For that of a synchronous listener, which gets a channel of its own: the system's.
    pub(crate) fn of_request(
        engine: Arc<Id>,
        listener: &Self,
    ) -> Result<Handle<rdma_cm_id>, Failure> {
        let own = match listener.is_synchronous() {
            true => Some(ChannelObject::create()?),
            false => None,
        };
        if let Some(own) = own {
            let moved = own.get()?.engine().and_then(|to| Ok(engine.migrate(&to)?));
            moved.inspect_err(|_| drop(ChannelObject::destroy(own)))?;
        }
        let request = Request {
            channel: own.unwrap_or(Handle::load(&listener.base.channel)),
            context: listener.base.context.load(Ordering::Relaxed),
            port_space: listener.base.ps,
            qp_type: listener.base.qp_type,
        };
        let of_c = Self::hand_out(engine, own, &request);
        let object = of_c.get()?;
        object.is_known.store(false, Ordering::Relaxed);
        match object.show() {
            Ok(()) => Ok(of_c),
            Err(failure) => {
                destroy(of_c)?;
                Err(failure)
            }
        }
    }

    fn hand_out(
        engine: Arc<Id>,
        own_channel: Option<Handle<rdma_event_channel>>,
        request: &Request,
    ) -> Handle<rdma_cm_id> {
        let kept = Mutex::new(Kept { own_channel, ..Kept::default() });
        let of_c = Handle::hand_out(Box::new(Self {
            base: base(request),
            engine: engine.clone(),
            path: PathRecord::zero(),
            is_known: AtomicBool::new(true),
            heeded_qp: Arc::default(),
            kept,
        }));
        live::add(of_c);
        if let Ok(process) = process() {
            process.note(&engine, of_c);
        }
        of_c
    }

    /// Whether its peers are told apart by address handles, and not connected.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.base.qp_type == qpt::UD
    }

    /// Whether its queue pairs are XRC targets.
    pub(crate) fn has_xrc_targets(&self) -> bool {
        self.base.qp_type == qpt::XRC_RECV
    }

    /// Keeps what the queue pairs of its requests are made with.
    pub(crate) fn keep_endpoint(&self, endpoint: Endpoint) {
        lock(&self.kept).endpoint = Some(endpoint);
    }

    /// What the queue pairs of its requests are made with.
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        lock(&self.kept).endpoint
    }

    /// Keeps what `rdma_resolve_addrinfo` found.
    pub(crate) fn keep_answer(&self, answer: Answer) {
        lock(&self.kept).answer = Some(answer);
    }

    /// A copy of what `rdma_resolve_addrinfo` found; `None` if nothing.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn answer(&self) -> Result<Option<Answer>, Failure> {
        lock(&self.kept).answer.as_ref().map(Answer::copy).transpose()
    }

    /// Whether its calls wait.
    pub(crate) fn is_synchronous(&self) -> bool {
        lock(&self.kept).own_channel.is_some()
    }

    /// Whether the program is told of what happens to it.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// From now on it is.
    pub(crate) fn set_known(&self) {
        self.is_known.store(true, Ordering::Release);
    }

    /// Its device.
    ///
    /// # Errors
    /// `EINVAL` before an address has decided it, `EIO` in a process that was forked meanwhile.
    pub(crate) fn device(&self) -> Result<Arc<CmDevice>, Failure> {
        let device = lock(&self.kept).device.clone();
        let device = device.ok_or_else(|| {
            Failure::invalid("the id has no device: bind it to an address, or resolve one, first")
        })?;
        device.shared.check()?;
        Ok(device)
    }

    /// Shows what it is now.
    ///
    /// # Errors
    /// The system's, when the device cannot be shown.
    pub(crate) fn show(&self) -> Result<(), Failure> {
        let (engine, addr) = (&self.engine, &self.base.route.addr);
        let bytes = |address: SocketAddr| match engine.is_native() {
            true => {
                let (gid, port) = (Gid::from_ip(address.ip()), address.port());
                let address = GidAddr { gid, port, pkey: engine.place().pkey };
                infiniband_bytes(address, engine.port_space().service_id(port).value())
            }
            false => to_bytes(address).0,
        };
        if let Some(local) = engine.local_addr() {
            addr.src_storage.show(&bytes(local));
        }
        if let Some(peer) = engine.peer_addr() {
            addr.dst_storage.show(&bytes(peer));
        }
        path::show_gids(&addr.addr, engine);
        let Some(context) = engine.context() else { return Ok(()) };
        let device = process()?.device(&context)?;
        if !self.is_of_any_device(&context) {
            self.show_device(&device);
        }
        // A route of iWARP is TCP's, and has no record.
        let path = engine.path().filter(|_| context.info().transport != Transport::Iwarp);
        if let Some(found) = path {
            self.path.show(&path::record(&found, &engine.place()));
            let place = (&raw const self.path).cast_mut();
            self.base.route.path_rec.store(place, Ordering::Release);
            self.base.route.num_paths.store(1, Ordering::Release);
        }
        lock(&self.kept).device = Some(device);
        Ok(())
    }

    /// Whether its address says nothing about the device. To programs of a kernel's `rdma_cm` a
    /// loopback address that an id is bound to is one of any device, and `verbs` stays NULL until
    /// there is a peer: libfabric looks for its devices so. Where the netdev `lo` is all there is,
    /// there is no other device to mean; where it is not among those there are, it is no device of
    /// the program's at all.
    fn is_of_any_device(&self, context: &Context) -> bool {
        let is_loopback = self.engine.local_addr().is_some_and(|local| local.ip().is_loopback());
        is_loopback
            && self.engine.peer_addr().is_none()
            && process()
                .and_then(|process| Ok(process.manager.devices()?))
                .is_ok_and(|all| all.iter().any(|other| other.name != context.info().name))
    }

    /// Shows which device it is on.
    pub(crate) fn show_device(&self, device: &CmDevice) {
        device.context.store(&self.base.verbs);
        // Unless the program has named one of its own.
        let none = std::ptr::null_mut();
        let (now, then) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.base.pd.compare_exchange(none, device.pd.raw(), now, then);
        let port = self.engine.place().port.unwrap_or(PortNum(1));
        self.base.port_num.store(port.value(), Ordering::Relaxed);
    }

    /// Shows the state of its queue pair, which the id may have changed.
    pub(crate) fn show_qp_state(&self) {
        let device = lock(&self.kept).device.clone();
        if let (Some(device), Some(qp)) = (device, self.engine.qp()) {
            device.shared.registry().show_state(&qp);
        }
    }

    /// Acknowledges the event that a synchronous call left.
    pub(crate) fn release_event(&self) {
        let held: Handle<rdma_cm_event> = Handle::load(&self.base.event);
        if !held.is_null() {
            Handle::NULL.store(&self.base.event);
            event::acknowledge(held);
        }
    }

    /// Moves its events to another channel, or to one of its own; waits until those that were taken
    /// are acknowledged.
    ///
    /// # Errors
    /// `EINVAL` for a synchronous id that is to become one, `EIO` for a channel of before a fork;
    /// the system's.
    pub(crate) fn migrate(&self, channel: Handle<rdma_event_channel>) -> Result<(), Failure> {
        if channel.is_null() && self.is_synchronous() {
            return Err(Failure::invalid(
                "the id is synchronous, with a channel of its own, already",
            ));
        }
        let own = match channel.is_null() {
            true => Some(ChannelObject::create()?),
            false => None,
        };
        let to = own.unwrap_or(channel);
        self.release_event();
        let moved = self.engine.migrate(&to.get()?.engine()?);
        let not_needed = match moved {
            Ok(()) => {
                to.store(&self.base.channel);
                std::mem::replace(&mut lock(&self.kept).own_channel, own)
            }
            Err(_) => own,
        };
        if let Some(channel) = not_needed {
            // The program may have destroyed it, though it is not its own to destroy.
            drop(ChannelObject::destroy(channel));
        }
        Ok(moved?)
    }
}

fn base(request: &Request) -> rdma_cm_id {
    let none = AtomicPtr::default;
    rdma_cm_id {
        verbs: none(),
        channel: AtomicPtr::new(request.channel.raw()),
        context: AtomicPtr::new(request.context),
        qp: AtomicPtr::default(),
        route: rdma_route {
            addr: rdma_addr {
                src_storage: Storage::zero(),
                dst_storage: Storage::zero(),
                addr: rdma_ib_addr {
                    sgid: Words::zero(),
                    dgid: Words::zero(),
                    pkey: Words::zero(),
                },
            },
            path_rec: AtomicPtr::default(),
            num_paths: AtomicI32::new(0),
        },
        ps: request.port_space,
        port_num: AtomicU8::new(0),
        event: AtomicPtr::default(),
        send_cq_channel: AtomicPtr::default(),
        send_cq: AtomicPtr::default(),
        recv_cq_channel: AtomicPtr::default(),
        recv_cq: AtomicPtr::default(),
        srq: AtomicPtr::default(),
        pd: AtomicPtr::default(),
        qp_type: request.qp_type,
    }
}

/// What the beginning of a call leaves to do.
pub(crate) enum Begun {
    /// It is over.
    Done,
    /// The id is synchronous: its event is to be waited for.
    Waits,
}

/// A call that ends with an event, for which a synchronous id waits. `begin` is run once, and may
/// be followed by a cancellation of the thread.
pub(crate) fn and_complete(
    name: &'static str,
    id: Handle<rdma_cm_id>,
    begin: impl FnOnce(&IdObject) -> Result<(), Failure>,
) -> c_int {
    let begun = boundary::outcome(name, || {
        let object = id.get()?;
        object.heed_qp()?;
        begin(object)?;
        object.show_qp_state();
        Ok(if object.is_synchronous() { Begun::Waits } else { Begun::Done })
    });
    match begun {
        None => -1,
        Some(Begun::Done) => 0,
        Some(Begun::Waits) => complete(name, id),
    }
}

/// Waits for the event of a synchronous id, which stays in its field; -1 and `errno` for one that
/// tells of a failure.
fn complete(name: &'static str, id: Handle<rdma_cm_id>) -> c_int {
    attempts(|| {
        let attempt = boundary::outcome(name, || {
            let object = id.get()?;
            object.release_event();
            let channel: Handle<rdma_event_channel> = Handle::load(&object.base.channel);
            channel.get()?.attempt(|engine| {
                let Some(event) = event::take(engine)? else { return Ok(None) };
                event.store(&object.base.event);
                event::outcome(event)?;
                Ok(Some(0))
            })
        });
        attempt.unwrap_or(Attempt::Done(-1))
    })
}

/// `rdma_create_id`.
pub(crate) extern "C" fn rdma_create_id(
    channel: Handle<rdma_event_channel>,
    out: Out<Handle<rdma_cm_id>>,
    context: *mut c_void,
    port_space: c_uint,
) -> c_int {
    log::init();
    out.write(Handle::NULL);
    boundary::minus_one("rdma_create_id", || {
        if out.is_null() {
            return Err(Failure::null("a place for the id"));
        }
        let qp_type = match port_space {
            port_space::UDP | port_space::IPOIB => qpt::UD,
            _ => qpt::RC,
        };
        out.write(IdObject::create(&Request { channel, context, port_space, qp_type })?);
        Ok(0)
    })
}

/// `rdma_destroy_id`: waits until its events are acknowledged. Its queue pair has to be destroyed
/// before, or goes on by itself.
pub(crate) extern "C" fn rdma_destroy_id(id: Handle<rdma_cm_id>) -> c_int {
    boundary::minus_one("rdma_destroy_id", || destroy(id).map(|()| 0))
}

/// Ends an id.
pub(crate) fn destroy(id: Handle<rdma_cm_id>) -> Result<(), Failure> {
    let object = id.get()?;
    if object.engine.is_orphan() {
        return Ok(());
    }
    live::remove(id)?;
    object.release_event();
    object.release_qp();
    object.engine.destroy();
    process()?.forget(&object.engine);
    let own_channel = lock(&object.kept).own_channel.take();
    // SAFETY: this is the call that ends it, and no event leads to it any more.
    live::keep(unsafe { id.end() });
    if let Some(channel) = own_channel {
        drop(ChannelObject::destroy(channel));
    }
    Ok(())
}

/// `rdma_migrate_id`: to a channel, or, for NULL, to one of its own, which makes it synchronous.
pub(crate) extern "C" fn rdma_migrate_id(
    id: Handle<rdma_cm_id>,
    channel: Handle<rdma_event_channel>,
) -> c_int {
    boundary::minus_one("rdma_migrate_id", || id.get()?.migrate(channel).map(|()| 0))
}

/// The port in a shown address: in network byte order, 0 of an address that is not of IP.
fn port(shown: &Storage) -> u16 {
    let [family_0, family_1, port_0, port_1, ..] = shown.first();
    let family = i32::from(u16::from_ne_bytes([family_0, family_1]));
    match matches!(family, libc::AF_INET | libc::AF_INET6) {
        true => u16::from_ne_bytes([port_0, port_1]),
        false => 0,
    }
}

/// `rdma_get_src_port`: big-endian; 0 for NULL.
pub(crate) extern "C" fn rdma_get_src_port(id: Handle<rdma_cm_id>) -> u16 {
    id.find().map_or(0, |id| port(&id.base.route.addr.src_storage))
}

/// `rdma_get_dst_port`: big-endian; 0 for NULL.
pub(crate) extern "C" fn rdma_get_dst_port(id: Handle<rdma_cm_id>) -> u16 {
    id.find().map_or(0, |id| port(&id.base.route.addr.dst_storage))
}
