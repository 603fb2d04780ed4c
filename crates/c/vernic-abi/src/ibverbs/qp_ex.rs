//! The `ibv_wr_*` calls: a batch of sends, made by one call per part.
//!
//! From `ibv_wr_start` to `ibv_wr_complete` a thread owns the [`Builder`] of a queue pair; others
//! wait in `ibv_wr_start`. Each call that names an operation adds a request, each that sets data or
//! an address completes the last one. Inline data are copied by the call that brings them. Nothing
//! is posted before `ibv_wr_complete`, which posts all or, after any call with a wrong argument,
//! nothing.
//!
//! Limits: as many requests, entries and inline bytes as the queue pair was made for; allocated
//! then.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{EINVAL, EIO, ENOMEM};
use vernic_engine::{
    Dest, InlineData, Lkey, Payload, PostSendError, Qkey, QpCap, Qpn, Remote, Rkey, SendOp, SendWr,
    Service, Sge, Srqn,
};

use super::mw;
use super::qp::{QpObject, send_ops_of};
use super::refusals::Cause;
use super::wr_list::flags;
use crate::boundary::{Failure, guard, of_send, refused};
use crate::layout::ah::ibv_ah;
use crate::layout::memory::{ibv_mw, ibv_mw_bind_info};
use crate::layout::qp::ibv_qp;
use crate::layout::qp_ex::{ibv_qp_ex, send_ops};
use crate::layout::wr::{ibv_data_buf, ibv_sge};
use crate::object::RawLock;
use crate::pointer::{Bytes, Handle, In, plain};

plain! { ibv_data_buf, ibv_sge }

/// The batch of a queue pair.
pub(crate) struct Builder {
    /// Held from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    lock: RawLock,
    batch: UnsafeCell<Batch>,
}

// SAFETY: `batch` is used only by the thread that holds `lock`, as the contract of `ibv_wr_*` says.
unsafe impl Sync for Builder {}

/// Requests that are being made.
struct Batch {
    /// The calls that the queue pair was made for.
    ops: u64,
    service: Service,
    requests: Vec<Request>,
    /// `max_sge` for each request.
    sges: Box<[Sge]>,
    max_sge: usize,
    /// `max_inline` for each request.
    inline: Box<[u8]>,
    max_inline: usize,
    /// Of the first call that was wrong; 0 if none was.
    wrong: c_int,
}

/// A request of a batch.
#[derive(Clone, Copy)]
struct Request {
    wr_id: u64,
    flags: u32,
    op: SendOp,
    data: Data,
    dest: Option<(Handle<ibv_ah>, Qpn, Qkey)>,
    srqn: Option<Srqn>,
}

/// Where the bytes of a request are.
#[derive(Clone, Copy)]
enum Data {
    /// So many entries.
    Sges(usize),
    /// So many bytes.
    Inline(usize),
    /// So many bytes of the peer.
    Range(u32),
}

impl Builder {
    /// For the calls that `ops` asks for.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for calls that the service does not have.
    pub(crate) fn new(service: Service, ops: u64, cap: &QpCap) -> Result<Self, Failure> {
        let unknown = ops & !send_ops_of(service);
        if unknown != 0 {
            return Err(Failure::unsupported(format_args!("send_ops_flags {unknown:#x}")));
        }
        let requests = (cap.max_send_wr.min(vernic_engine::limits::MAX_QP_WR)) as usize;
        let max_sge = cap.max_send_sge.min(vernic_engine::limits::MAX_SGE) as usize;
        let max_inline = cap.max_inline.min(vernic_engine::limits::MAX_INLINE) as usize;
        let batch = UnsafeCell::new(Batch {
            ops,
            service,
            requests: Vec::with_capacity(requests),
            sges: vec![Sge::default(); requests * max_sge].into(),
            max_sge,
            inline: vec![0; requests * max_inline].into(),
            max_inline,
            wrong: 0,
        });
        Ok(Self { lock: RawLock::new(), batch })
    }
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.wrong = 0;
    }

    fn fail(&mut self, errno: c_int) {
        if self.wrong == 0 {
            self.wrong = errno;
        }
    }

    fn push(&mut self, request: Request) {
        if self.requests.len() == self.requests.capacity() {
            return self.fail(ENOMEM);
        }
        self.requests.push(request);
    }

    /// The last request, and its number.
    fn last(&mut self) -> Option<(usize, &mut Request)> {
        let number = self.requests.len().checked_sub(1)?;
        Some((number, &mut self.requests[number]))
    }

    fn set_sges(&mut self, list: &[Sge]) {
        if list.len() > self.max_sge {
            return self.fail(EINVAL);
        }
        let Some((number, request)) = self.last() else { return self.fail(EINVAL) };
        request.data = Data::Sges(list.len());
        let at = number * self.max_sge;
        self.sges[at..at + list.len()].copy_from_slice(list);
    }

    /// Starts the inline data of the last request, or adds to them.
    fn add_inline(&mut self, addr: *const u8, length: usize, first: bool) {
        let max = self.max_inline;
        let Some((number, request)) = self.last() else { return self.fail(EINVAL) };
        let before = match request.data {
            Data::Inline(before) if !first => before,
            _ => 0,
        };
        let (Some(total), Ok(given)) =
            (before.checked_add(length).filter(|&n| n <= max), u32::try_from(length))
        else {
            return self.fail(EINVAL);
        };
        request.data = Data::Inline(total);
        let at = number * max;
        let piece = [Sge { addr: addr.addr() as u64, length: given, lkey: Lkey(0) }];
        // SAFETY: readable bytes of the program, until the call returns (its contract).
        let list = unsafe { InlineData::new(&piece) };
        list.copy_to(&mut self.inline[at + before..at + total]);
    }

    fn send(&self, number: usize) -> SendWr<'_> {
        let request = &self.requests[number];
        let payload = match request.data {
            Data::Sges(count) => {
                let at = number * self.max_sge;
                Payload::Sges(&self.sges[at..at + count])
            }
            Data::Inline(length) => {
                let at = number * self.max_inline;
                Payload::InlineBytes(&self.inline[at..at + length])
            }
            Data::Range(length) => Payload::Range(length),
        };
        let dest = request.dest.as_ref().and_then(|(ah, qpn, qkey)| {
            Some(Dest { ah: &ah.find()?.engine, qpn: *qpn, qkey: *qkey })
        });
        let (wr_id, op, flags) = (request.wr_id, request.op, flags(request.flags));
        SendWr { wr_id, op, flags, payload, dest, srqn: request.srqn }
    }
}

/// The table of functions that a queue pair of C carries.
pub(crate) fn methods(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: AtomicU64::new(0),
        wr_flags: AtomicU32::new(0),
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw,
        wr_local_inv,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv,
        wr_send_tso,
        wr_set_ud_addr,
        wr_set_xrc_srqn,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
        wr_atomic_write,
        wr_flush,
    }
}

/// `ibv_qp_to_qp_ex`: NULL for a queue pair that was made without these calls.
pub(crate) extern "C" fn ibv_qp_to_qp_ex(qp: Handle<ibv_qp>) -> Handle<ibv_qp> {
    match qp.find().and_then(|qp| qp.builder.as_ref()) {
        Some(_) => qp,
        None => Handle::NULL,
    }
}

/// Runs `call` on the batch that the calling thread makes.
fn with(qp: Handle<ibv_qp>, call: impl FnOnce(&QpObject, &mut Batch)) {
    guard((), || {
        let Some(object) = qp.find() else { return };
        let Some(builder) = &object.builder else { return };
        // SAFETY: the calling thread is between `ibv_wr_start` and `ibv_wr_complete`, so it holds
        // the lock, and no other reference to the batch exists (each lives within one call).
        call(object, unsafe { &mut *builder.batch.get() });
    });
}

/// Adds a request, if the queue pair was made for its call.
fn add(qp: Handle<ibv_qp>, wants: u64, op: SendOp) {
    with(qp, |object, batch| {
        if batch.ops & wants == 0 {
            return batch.fail(EINVAL);
        }
        batch.push(Request {
            wr_id: object.base.wr_id.load(Ordering::Relaxed),
            flags: object.base.wr_flags.load(Ordering::Relaxed),
            op,
            data: Data::Sges(0),
            dest: None,
            srqn: None,
        });
    });
}

fn remote(rkey: u32, addr: u64) -> Remote {
    Remote { addr, rkey: Rkey(rkey) }
}

extern "C" fn wr_atomic_cmp_swp(qp: Handle<ibv_qp>, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let op = SendOp::CmpSwap { remote: remote(rkey, addr), compare, swap };
    add(qp, send_ops::ATOMIC_CMP_AND_SWP, op);
}

extern "C" fn wr_atomic_fetch_add(qp: Handle<ibv_qp>, rkey: u32, addr: u64, value: u64) {
    let op = SendOp::FetchAdd { remote: remote(rkey, addr), add: value };
    add(qp, send_ops::ATOMIC_FETCH_AND_ADD, op);
}

extern "C" fn wr_bind_mw(
    qp: Handle<ibv_qp>,
    mw: Handle<ibv_mw>,
    rkey: u32,
    info: In<ibv_mw_bind_info>,
) {
    match info.read().and_then(|info| mw::posted(mw, rkey, &info)) {
        Some(op) => add(qp, send_ops::BIND_MW, op),
        None => with(qp, |_, batch| batch.fail(EINVAL)),
    }
}

extern "C" fn wr_local_inv(qp: Handle<ibv_qp>, rkey: u32) {
    add(qp, send_ops::LOCAL_INV, SendOp::LocalInv(Rkey(rkey)));
}

extern "C" fn wr_rdma_read(qp: Handle<ibv_qp>, rkey: u32, addr: u64) {
    add(qp, send_ops::RDMA_READ, SendOp::Read(remote(rkey, addr)));
}

extern "C" fn wr_rdma_write(qp: Handle<ibv_qp>, rkey: u32, addr: u64) {
    add(qp, send_ops::RDMA_WRITE, SendOp::Write(remote(rkey, addr)));
}

extern "C" fn wr_rdma_write_imm(qp: Handle<ibv_qp>, rkey: u32, addr: u64, imm: u32) {
    let op = SendOp::WriteImm(remote(rkey, addr), u32::from_be(imm));
    add(qp, send_ops::RDMA_WRITE_WITH_IMM, op);
}

extern "C" fn wr_send(qp: Handle<ibv_qp>) {
    add(qp, send_ops::SEND, SendOp::Send);
}

extern "C" fn wr_send_imm(qp: Handle<ibv_qp>, imm: u32) {
    add(qp, send_ops::SEND_WITH_IMM, SendOp::SendImm(u32::from_be(imm)));
}

extern "C" fn wr_send_inv(qp: Handle<ibv_qp>, rkey: u32) {
    add(qp, send_ops::SEND_WITH_INV, SendOp::SendInv(Rkey(rkey)));
}

/// Segmentation of TCP is for raw Ethernet queue pairs, which there are none of.
extern "C" fn wr_send_tso(qp: Handle<ibv_qp>, _header: Bytes, _length: u16, _mss: u16) {
    with(qp, |_, batch| batch.fail(libc::EOPNOTSUPP));
}

/// 8 bytes, which are copied now.
extern "C" fn wr_atomic_write(qp: Handle<ibv_qp>, rkey: u32, addr: u64, value: Bytes) {
    add(qp, send_ops::ATOMIC_WRITE, SendOp::AtomicWrite(remote(rkey, addr)));
    with(qp, |_, batch| match value.raw().is_null() {
        true => batch.fail(EINVAL),
        false => batch.add_inline(value.raw(), 8, true),
    });
}

extern "C" fn wr_flush(
    qp: Handle<ibv_qp>,
    rkey: u32,
    addr: u64,
    length: usize,
    placement: u8,
    selectivity: u8,
) {
    let op = SendOp::Flush { remote: remote(rkey, addr), placement, selectivity };
    add(qp, send_ops::FLUSH, op);
    with(qp, |_, batch| match (u32::try_from(length), batch.last()) {
        (Ok(length), Some((_, request))) => request.data = Data::Range(length),
        _ => batch.fail(EINVAL),
    });
}

extern "C" fn wr_set_ud_addr(qp: Handle<ibv_qp>, ah: Handle<ibv_ah>, qpn: u32, qkey: u32) {
    with(qp, |_, batch| {
        let is_ud = batch.service == Service::Ud && !ah.is_null();
        match batch.last() {
            Some((_, request)) if is_ud => request.dest = Some((ah, Qpn::new(qpn), Qkey(qkey))),
            _ => batch.fail(EINVAL),
        }
    });
}

extern "C" fn wr_set_xrc_srqn(qp: Handle<ibv_qp>, srqn: u32) {
    with(qp, |_, batch| {
        let is_xrc = batch.service == Service::Xrc;
        match batch.last() {
            Some((_, request)) if is_xrc => request.srqn = Some(Srqn::new(srqn)),
            _ => batch.fail(EINVAL),
        }
    });
}

extern "C" fn wr_set_inline_data(qp: Handle<ibv_qp>, data: Bytes, length: usize) {
    with(qp, |_, batch| match data.raw().is_null() && length != 0 {
        true => batch.fail(EINVAL),
        false => batch.add_inline(data.raw(), length, true),
    });
}

extern "C" fn wr_set_inline_data_list(qp: Handle<ibv_qp>, count: usize, list: In<ibv_data_buf>) {
    with(qp, |_, batch| {
        batch.add_inline(std::ptr::null(), 0, true);
        let Some(pieces) = list.array(count) else { return batch.fail(EINVAL) };
        for piece in &*pieces {
            batch.add_inline(piece.addr.cast(), piece.length, false);
        }
    });
}

extern "C" fn wr_set_sge(qp: Handle<ibv_qp>, lkey: u32, addr: u64, length: u32) {
    with(qp, |_, batch| batch.set_sges(&[Sge { addr, length, lkey: Lkey(lkey) }]));
}

extern "C" fn wr_set_sge_list(qp: Handle<ibv_qp>, count: usize, list: In<ibv_sge>) {
    with(qp, |_, batch| match list.array(count) {
        Some(list) => batch.set_sges(&list),
        None => batch.fail(EINVAL),
    });
}

extern "C" fn wr_start(qp: Handle<ibv_qp>) {
    if let Some(builder) = qp.find().and_then(|qp| qp.builder.as_ref()) {
        builder.lock.lock();
        with(qp, |_, batch| batch.clear());
    }
}

extern "C" fn wr_complete(qp: Handle<ibv_qp>) -> c_int {
    guard(EIO, || {
        let Some((object, builder)) = qp.find().and_then(|qp| Some((qp, qp.builder.as_ref()?)))
        else {
            return refused(EINVAL);
        };
        let mut outcome = Err(Refused::Malformed(EIO));
        with(qp, |object, batch| outcome = complete(object, batch));
        builder.lock.unlock();
        let Err(why) = outcome else { return 0 };
        let (log, qpn) = (&object.shared.refusals, object.engine.qpn());
        refused(match why {
            Refused::Posted(why) => {
                let words = format_args!("queue pair {qpn}: {why}");
                log.log("ibv_wr_complete", (&why).into(), &words);
                of_send(&why)
            }
            Refused::TooLong(max) => {
                let words = format_args!(
                    "queue pair {qpn}: more requests in a batch than the {max} that it was created for"
                );
                log.log("ibv_wr_complete", Cause::TooLong, &words);
                ENOMEM
            }
            Refused::Malformed(errno) => {
                let words = format_args!(
                    "queue pair {qpn}: a request is wrong, or lacks its address: errno {errno}"
                );
                log.log("ibv_wr_complete", Cause::Malformed, &words);
                errno
            }
        })
    })
}

/// Why a batch was not posted.
enum Refused {
    /// There are more requests than so many.
    TooLong(usize),
    /// What was built is no request: the errno.
    Malformed(c_int),
    Posted(PostSendError),
}

fn complete(object: &QpObject, batch: &mut Batch) -> Result<(), Refused> {
    match batch.wrong {
        0 => {}
        ENOMEM => return Err(Refused::TooLong(batch.requests.capacity())),
        errno => return Err(Refused::Malformed(errno)),
    }
    let lacks_address = |request: &Request| match batch.service {
        Service::Ud => request.dest.is_none(),
        Service::Xrc => request.srqn.is_none(),
        _ => false,
    };
    if batch.requests.iter().any(lacks_address) {
        return Err(Refused::Malformed(EINVAL));
    }
    let all = (0..batch.requests.len()).map(|number| batch.send(number));
    object.engine.post_send_all(all).map_err(Refused::Posted)
}

extern "C" fn wr_abort(qp: Handle<ibv_qp>) {
    if let Some(builder) = qp.find().and_then(|qp| qp.builder.as_ref()) {
        with(qp, |_, batch| batch.clear());
        builder.lock.unlock();
    }
}
