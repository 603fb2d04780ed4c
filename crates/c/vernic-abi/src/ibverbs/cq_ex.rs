//! Completion queues whose completions are read field by field (`ibv_start_poll`, `ibv_wc_read_*`).
//!
//! `ibv_start_poll` takes a completion off the queue and keeps it in the object, where the
//! `ibv_wc_read_*` calls find it, until `ibv_next_poll` takes the next or `ibv_end_poll` ends. As
//! with rdma-core's drivers, one thread at a time polls: others wait in `ibv_start_poll`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{EINVAL, EIO, ENOENT};
use vernic_engine::{EMPTY_WC, Wc};

use super::cq::{CqObject, Request, tag};
use crate::boundary::{self, Failure, guard};
use crate::layout::context::ibv_context;
use crate::layout::cq::{
    cq_flags, cq_init_mask, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr,
    ibv_wc_tm_info, wc_ex,
};
use crate::layout::pd::ibv_pd;
use crate::object::RawLock;
use crate::pointer::{Handle, In, Out, growing, plain};

plain! { ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_tm_info }
growing! {
    ibv_cq_init_attr_ex {
        cq_init_mask::FLAGS => flags: u32,
        cq_init_mask::PD => parent_domain: Handle<ibv_pd>,
    }
}

/// The completion that is being read.
pub(crate) struct Polling {
    /// Held from `ibv_start_poll` to `ibv_end_poll`.
    lock: RawLock,
    current: UnsafeCell<Current>,
    /// Whether the program wants to read the time of day: it costs two looks at clocks a poll.
    wants_wall_clock: bool,
}

#[derive(Clone, Copy)]
struct Current {
    wc: Wc,
    /// What to add to the completion's time for the time of day, nanoseconds; read once a poll, and
    /// 0 where nobody wants it.
    wall_offset_ns: u64,
}

// SAFETY: `current` is written only while `lock` is held, by the thread that polls; it is read by
// that thread, as the contract of `ibv_wc_read_*` says.
unsafe impl Sync for Polling {}

impl Polling {
    /// For a queue whose completions are to have these fields (`enum ibv_create_cq_wc_flags`).
    pub(crate) fn new(wc_flags: u64) -> Self {
        let current = UnsafeCell::new(Current { wc: EMPTY_WC, wall_offset_ns: 0 });
        Self { lock: RawLock::new(), current, wants_wall_clock: wc_flags & wc_ex::WALLCLOCK != 0 }
    }

    fn current(&self) -> Current {
        // SAFETY: the calling thread polls, or nobody does: no other thread writes.
        unsafe { *self.current.get() }
    }
}

/// The table of functions that a queue of C carries.
pub(crate) fn methods(base: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: AtomicI32::new(0),
        wr_id: AtomicU64::new(0),
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp,
        read_wc_flags,
        read_slid,
        read_sl,
        read_dlid_path_bits,
        read_completion_ts,
        read_cvlan,
        read_flow_tag,
        read_tm_info,
        read_completion_wallclock_ns,
    }
}

/// `ibv_create_cq_ex`.
pub(crate) extern "C" fn create_cq_ex(
    context: Handle<ibv_context>,
    attr: In<ibv_cq_init_attr_ex>,
) -> Handle<ibv_cq> {
    boundary::pointer("ibv_create_cq_ex", || {
        let attr = attr.require_grown("the attributes")?;
        let known = wc_ex::STANDARD | wc_ex::TIMESTAMP | wc_ex::WALLCLOCK;
        if attr.wc_flags & !known != 0 {
            let unknown = attr.wc_flags & !known;
            return Err(Failure::unsupported(format_args!("wc_flags {unknown:#x}")));
        }
        let unknown = attr.comp_mask & !(cq_init_mask::FLAGS | cq_init_mask::PD);
        if unknown != 0 {
            return Err(Failure::unsupported(format_args!("comp_mask {unknown:#x}")));
        }
        let flags = if attr.comp_mask & cq_init_mask::FLAGS != 0 { attr.flags } else { 0 };
        // IGNORE_OVERRUN asks that overruns go unnoticed; here they never do, which breaks no
        // program that leaves room, as it has to.
        let unknown = flags & !(cq_flags::SINGLE_THREADED | cq_flags::IGNORE_OVERRUN);
        if unknown != 0 {
            return Err(Failure::unsupported(format_args!("flags {unknown:#x}")));
        }
        let parent_domain = match attr.comp_mask & cq_init_mask::PD {
            0 => None,
            _ => Some(attr.parent_domain.get()?.users.hold()),
        };
        let (cqe, cq_context, channel) = (attr.cqe, attr.cq_context, attr.channel);
        let (comp_vector, wc_flags) = (i64::from(attr.comp_vector), attr.wc_flags);
        let request = Request { cqe, cq_context, channel, comp_vector, wc_flags, parent_domain };
        CqObject::create(context, request)
    })
}

/// Takes the next completion; the caller holds the lock.
fn advance(object: &CqObject) -> c_int {
    let mut taken = [EMPTY_WC];
    match object.engine.poll(&mut taken) {
        Ok(0) if object.shared.is_over() => return EIO,
        Ok(0) => return ENOENT,
        Ok(_) => {}
        Err(_) => return EIO,
    }
    let [wc] = taken;
    // SAFETY: the lock is held by this thread (`Polling`).
    unsafe { (*object.polling.current.get()).wc = wc };
    object.base.status.store(wc.status as i32, Ordering::Relaxed);
    object.base.wr_id.store(wc.wr_id, Ordering::Relaxed);
    0
}

extern "C" fn start_poll(cq: Handle<ibv_cq>, attr: In<ibv_poll_cq_attr>) -> c_int {
    guard(EIO, || {
        let Some(object) = cq.find() else { return EINVAL };
        if attr.read().is_some_and(|attr| attr.comp_mask != 0) {
            return EINVAL;
        }
        if object.shared.is_orphan() {
            return EIO;
        }
        object.polling.lock.lock();
        if object.polling.wants_wall_clock {
            let clocks = object.engine.context().clocks();
            let offset = clocks.wall_ns.wrapping_sub(clocks.device_ns);
            // SAFETY: the lock is held by this thread (`Polling`).
            unsafe { (*object.polling.current.get()).wall_offset_ns = offset };
        }
        let result = advance(object);
        if result != 0 {
            // Nothing to end then.
            object.polling.lock.unlock();
        }
        result
    })
}

extern "C" fn next_poll(cq: Handle<ibv_cq>) -> c_int {
    guard(EIO, || cq.find().map_or(EINVAL, advance))
}

extern "C" fn end_poll(cq: Handle<ibv_cq>) {
    guard((), || {
        if let Some(object) = cq.find() {
            object.polling.lock.unlock();
        }
    });
}

/// Reads a field of the present completion; of no queue, a zero.
fn read<T: Default>(cq: Handle<ibv_cq>, field: impl FnOnce(&Current) -> T) -> T {
    cq.find().map(|object| field(&object.polling.current())).unwrap_or_default()
}

extern "C" fn read_opcode(cq: Handle<ibv_cq>) -> c_uint {
    read(cq, |now| now.wc.opcode as c_uint)
}

extern "C" fn read_vendor_err(cq: Handle<ibv_cq>) -> u32 {
    read(cq, |now| now.wc.vendor_err)
}

extern "C" fn read_byte_len(cq: Handle<ibv_cq>) -> u32 {
    read(cq, |now| now.wc.byte_len)
}

extern "C" fn read_imm_data(cq: Handle<ibv_cq>) -> u32 {
    read(cq, |now| tag(&now.wc).0)
}

extern "C" fn read_qp_num(cq: Handle<ibv_cq>) -> u32 {
    read(cq, |now| now.wc.qpn.value())
}

extern "C" fn read_src_qp(cq: Handle<ibv_cq>) -> u32 {
    read(cq, |now| now.wc.src_qpn.value())
}

extern "C" fn read_wc_flags(cq: Handle<ibv_cq>) -> c_uint {
    read(cq, |now| tag(&now.wc).1)
}

extern "C" fn read_slid(cq: Handle<ibv_cq>) -> u32 {
    read(cq, |now| now.wc.route.slid.value().into())
}

extern "C" fn read_sl(cq: Handle<ibv_cq>) -> u8 {
    read(cq, |now| now.wc.route.service_level)
}

extern "C" fn read_dlid_path_bits(cq: Handle<ibv_cq>) -> u8 {
    read(cq, |now| now.wc.route.path_bits)
}

extern "C" fn read_completion_ts(cq: Handle<ibv_cq>) -> u64 {
    read(cq, |now| now.wc.timestamp_ns)
}

extern "C" fn read_cvlan(_cq: Handle<ibv_cq>) -> u16 {
    0
}

extern "C" fn read_flow_tag(_cq: Handle<ibv_cq>) -> u32 {
    0
}

extern "C" fn read_tm_info(_cq: Handle<ibv_cq>, info: Out<ibv_wc_tm_info>) {
    info.write(ibv_wc_tm_info { tag: 0, private: 0 });
}

/// The device's time if the queue was made without `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK`.
extern "C" fn read_completion_wallclock_ns(cq: Handle<ibv_cq>) -> u64 {
    read(cq, |now| now.wc.timestamp_ns.wrapping_add(now.wall_offset_ns))
}
