//! Completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libc::EINVAL;
use vernic_engine::limits::MAX_CQE;
use vernic_engine::{Cq, Tag, Wc};

use super::context::COMP_VECTORS;
use super::cq_ex::{self, Polling};
use crate::boundary::{self, Failure, guard};
use crate::ibverbs::shared::Shared;
use crate::layout::context::ibv_context;
use crate::layout::cq::{
    ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr, ibv_wc, wc_flags,
};
use crate::object::{Use, Users};
use crate::pointer::{CObject, Handle, In, OutArray, Unaligned, plain};

plain! { ibv_wc, ibv_modify_cq_attr }

/// A completion queue.
#[repr(C)]
pub(crate) struct CqObject {
    pub(crate) base: ibv_cq_ex,
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<Cq>,
    /// Of `ibv_start_poll` and the like.
    pub(crate) polling: Polling,
    /// Completion events given to the program.
    comp_reported: AtomicU32,
    /// Asynchronous events given to the program.
    async_reported: AtomicU32,
    pub(crate) users: Users,
    _parent_domain: Option<Use>,
}

// SAFETY: `base` comes first, and starts with `ibv_cq`.
unsafe impl CObject for ibv_cq {
    type Object = CqObject;
    const NAME: &'static str = "a completion queue";
}

/// Entries that the smallest queue has. Programs that worked on hardware, which rounds up too, may
/// ask for fewer than they have outstanding: one of perftest's asks for 1, and sends again before
/// it has polled.
const MIN_CQE: u32 = 64;

/// How long a change of size waits for what was posted before it to be carried out.
const SETTLING: Duration = Duration::from_millis(20);

/// Entries of a queue for which `asked` were asked: at least as many (IBTA 11.2.8.1). What cannot
/// be given stays as it is, to be refused.
fn rounded(asked: u32) -> u32 {
    match asked {
        1..=MAX_CQE => asked.next_power_of_two().clamp(MIN_CQE, MAX_CQE),
        _ => asked,
    }
}

/// What a queue is made with.
pub(crate) struct Request {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: Handle<ibv_comp_channel>,
    pub(crate) comp_vector: i64,
    /// Fields that completions are to have, beside those of `ibv_poll_cq`.
    pub(crate) wc_flags: u64,
    pub(crate) parent_domain: Option<Use>,
}

impl CqObject {
    /// A queue for C.
    ///
    /// # Errors
    /// `EINVAL`: size, completion vector, channel of another device.
    pub(crate) fn create(
        context: Handle<ibv_context>,
        request: Request,
    ) -> Result<Handle<ibv_cq>, Failure> {
        let shared = context.get()?.shared()?;
        let Request { cqe, cq_context, channel, comp_vector, wc_flags, parent_domain } = request;
        if !(0..i64::from(COMP_VECTORS)).contains(&comp_vector) {
            let why = format!("completion vector {comp_vector}: the device has {COMP_VECTORS}");
            return Err(Failure::invalid(why));
        }
        let of_channel = channel.find();
        let engine =
            shared.engine.create_cq(rounded(cqe), of_channel.map(|channel| &channel.engine))?;
        let base = ibv_cq {
            context,
            channel,
            cq_context: AtomicPtr::new(cq_context),
            handle: shared.next_handle(),
            cqe: AtomicI32::new(engine.depth() as c_int),
            mutex: [0; 5],
            cond: [0; 6],
            comp_events_completed: AtomicU32::new(0),
            async_events_completed: AtomicU32::new(0),
        };
        if let Some(channel) = of_channel {
            channel.count(1);
        }
        let id = engine.id();
        let handle = Handle::hand_out(Box::new(Self {
            base: cq_ex::methods(base),
            shared: shared.clone(),
            engine,
            polling: Polling::new(wc_flags),
            comp_reported: AtomicU32::new(0),
            async_reported: AtomicU32::new(0),
            users: Users::default(),
            _parent_domain: parent_domain,
        }));
        shared.registry().cqs.insert(id, handle);
        Ok(handle)
    }

    /// What the program wants to be told with events.
    pub(crate) fn cq_context(&self) -> *mut c_void {
        self.base.base.cq_context.load(Ordering::Relaxed)
    }

    /// Counts a completion event that the program gets; under the lock of the registry.
    pub(crate) fn report(&self) {
        self.comp_reported.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an asynchronous event that the program gets; under the lock of the registry.
    pub(crate) fn report_async(&self) {
        self.async_reported.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts acknowledged completion events.
    pub(crate) fn acknowledge(&self, count: u32) {
        let shared = self.shared.clone();
        shared.acknowledge(|| {
            self.base.base.comp_events_completed.fetch_add(count, Ordering::AcqRel);
        });
    }

    /// Counts an acknowledged asynchronous event.
    pub(crate) fn acknowledge_async(&self) {
        let shared = self.shared.clone();
        shared.acknowledge(|| {
            self.base.base.async_events_completed.fetch_add(1, Ordering::AcqRel);
        });
    }

    fn is_acked(&self) -> bool {
        let base = &self.base.base;
        let same =
            |a: &AtomicU32, b: &AtomicU32| a.load(Ordering::Acquire) == b.load(Ordering::Acquire);
        same(&self.comp_reported, &base.comp_events_completed)
            && same(&self.async_reported, &base.async_events_completed)
    }
}

/// `ibv_create_cq`.
pub(crate) extern "C" fn ibv_create_cq(
    context: Handle<ibv_context>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle<ibv_comp_channel>,
    comp_vector: c_int,
) -> Handle<ibv_cq> {
    boundary::pointer("ibv_create_cq", || {
        let cqe = u32::try_from(cqe).map_err(|_| Failure::invalid(format!("{cqe} entries")))?;
        let comp_vector = i64::from(comp_vector);
        let (wc_flags, parent_domain) = (0, None);
        let request = Request { cqe, cq_context, channel, comp_vector, wc_flags, parent_domain };
        CqObject::create(context, request)
    })
}

/// `ibv_resize_cq`: `EINVAL` where more completions wait than entries are asked for, also if the
/// queue would be rounded up to hold them.
pub(crate) extern "C" fn ibv_resize_cq(cq: Handle<ibv_cq>, cqe: c_int) -> c_int {
    boundary::errno("ibv_resize_cq", || {
        let object = cq.get()?;
        object.shared.check()?;
        let cqe = u32::try_from(cqe).map_err(|_| Failure::invalid(format!("{cqe} entries")))?;
        // What was posted may wait for the lane, which another thread has; hardware has done it by
        // now, and what it completed has to fit.
        let until = Instant::now() + SETTLING;
        while !object.shared.engine.try_progress() && Instant::now() < until {
            std::thread::yield_now();
        }
        // Who changes the size has thought of it: [`MIN_CQE`] is for those who have not.
        let depth = if cqe <= MAX_CQE { cqe.next_power_of_two().min(MAX_CQE) } else { cqe };
        object.engine.resize_rounded(cqe, depth)?;
        object.base.base.cqe.store(object.engine.depth() as c_int, Ordering::Relaxed);
        Ok(())
    })
}

/// `ibv_modify_cq`: events are raised at once and never gathered, so there is nothing to modify.
pub(crate) extern "C" fn modify_cq(_cq: Handle<ibv_cq>, _attr: In<ibv_modify_cq_attr>) -> c_int {
    boundary::refused(libc::EOPNOTSUPP)
}

/// `ibv_destroy_cq`: `EBUSY` while queue pairs use it; waits until its events are acknowledged.
pub(crate) extern "C" fn ibv_destroy_cq(cq: Handle<ibv_cq>) -> c_int {
    boundary::errno("ibv_destroy_cq", || {
        let object = cq.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        object.users.none("the completion queue")?;
        object.engine.destroy()?;
        // Nobody is told of it any more from here on.
        object.shared.registry().cqs.remove(&object.engine.id());
        object.shared.wait_acked(|| object.is_acked());
        if let Some(channel) = object.base.base.channel.find() {
            channel.count(-1);
        }
        // SAFETY: this is the call that ends it.
        drop(unsafe { cq.take_back() });
        Ok(())
    })
}

impl From<Wc> for ibv_wc {
    #[inline]
    fn from(wc: Wc) -> Self {
        let (imm_data, flags) = tag(&wc);
        Self {
            wr_id: wc.wr_id,
            status: wc.status as c_uint,
            opcode: wc.opcode as c_uint,
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            imm_data,
            qp_num: wc.qpn.value(),
            src_qp: wc.src_qpn.value(),
            wc_flags: flags,
            pkey_index: 0,
            slid: wc.route.slid.value(),
            sl: wc.route.service_level,
            dlid_path_bits: wc.route.path_bits,
        }
    }
}

/// `imm_data` and `wc_flags` of a completion.
#[inline]
pub(crate) fn tag(wc: &Wc) -> (u32, c_uint) {
    let grh = if wc.grh { wc_flags::GRH } else { 0 };
    match wc.tag {
        Tag::None => (0, grh),
        Tag::Imm(imm) => (imm.to_be(), grh | wc_flags::WITH_IMM),
        Tag::Invalidated(rkey) => (rkey.value(), grh | wc_flags::WITH_INV),
    }
}

/// `ibv_poll_cq`: how many completions it took, or a negative errno; `-EIO` of a queue that
/// overflowed, once the device is closed, and in a process that was forked since: whoever polls
/// until something comes would poll for ever.
pub(crate) extern "C" fn poll_cq(
    cq: Handle<ibv_cq>,
    max: c_int,
    mut out: OutArray<ibv_wc>,
) -> c_int {
    guard(-libc::EIO, || {
        let (Some(object), Ok(max)) = (cq.find(), usize::try_from(max)) else { return -EINVAL };
        let taken = match out.is_unaligned() {
            false => out.slice(max).map(|room| object.engine.poll(room)),
            true => out.unaligned(max).map(|room| object.engine.poll(room)),
        };
        let Some(taken) = taken else { return -EINVAL };
        match taken {
            Ok(0) if object.shared.is_over() => -libc::EIO,
            Ok(taken) => taken as c_int,
            Err(_) => -libc::EIO,
        }
    })
}

impl From<Wc> for Unaligned<ibv_wc> {
    fn from(wc: Wc) -> Self {
        Self(wc.into())
    }
}

/// `ibv_req_notify_cq`.
pub(crate) extern "C" fn req_notify_cq(cq: Handle<ibv_cq>, solicited_only: c_int) -> c_int {
    guard(libc::EIO, || {
        let Some(object) = cq.find() else { return EINVAL };
        if object.shared.is_over() {
            return libc::EIO;
        }
        object.engine.req_notify(solicited_only != 0);
        0
    })
}
