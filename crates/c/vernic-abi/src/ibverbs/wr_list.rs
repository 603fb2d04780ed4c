//! Lists of work requests, as C posts them, turned into the engine's one by one: nothing is
//! gathered and nothing allocated on the way.
//!
//! With `pointer.rs` the only module that follows pointers of C; they rest on the contract there,
//! and on that of posting: a list ends with NULL, and what its requests point to stays as it is
//! until the call has returned.
//!
//! Requests and lists of entries that lie inside packed structs, as those of libiscsi do, are not
//! aligned. C on this machine does not mind, so neither do we: they are copied ([`Copies`]), which
//! aligned ones never are.

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;
use std::slice;

use libc::EINVAL;
use vernic_engine::{
    Dest, InlineData, Payload, Qkey, Qpn, RecvWr, Remote, Rkey, SendFlags, SendOp, SendWr, Service,
    Sge, Srqn, limits,
};

use super::mw;
use crate::layout::wr::{ibv_recv_wr, ibv_send_wr, opcode, send_flags, wr_atomic, wr_rdma, wr_ud};
use crate::pointer::{In, Plain, plain};

plain! { ibv_send_wr, ibv_recv_wr }

/// What of a list is not aligned, and is used from here while it is posted.
pub(crate) struct Copies<T> {
    requests: Kept<T>,
    entries: Kept<Sge>,
}

impl<T> Default for Copies<T> {
    fn default() -> Self {
        Self { requests: Kept::default(), entries: Kept::default() }
    }
}

/// Copies that stay where they are until it goes.
struct Kept<T>(RefCell<Vec<Rc<[T]>>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T: Copy> Kept<T> {
    /// A copy of `count` elements.
    ///
    /// # Safety
    /// `from` leads to so many, aligned or not.
    #[cold]
    unsafe fn copy(&self, from: *const T, count: usize) -> &[T] {
        // SAFETY: each is one of them (above).
        let copy: Rc<[T]> = (0..count).map(|i| unsafe { from.add(i).read_unaligned() }).collect();
        let kept = Rc::as_ptr(&copy);
        self.0.borrow_mut().push(copy);
        // SAFETY: what is behind an `Rc` stays where it is when the vector moves; nobody writes it,
        // and it is freed when `self` goes, which the result borrows.
        unsafe { &*kept }
    }
}

/// Elements where C has them, or a copy of them; `None` for NULL.
///
/// # Safety
/// `from` is NULL, or leads to `count` elements that stay as they are while the result lives.
#[inline]
unsafe fn elements<T: Copy>(from: *const T, count: usize, kept: &Kept<T>) -> Option<&[T]> {
    if from.is_null() {
        return None;
    }
    if !from.is_aligned() {
        // SAFETY: so many (above).
        return Some(unsafe { kept.copy(from, count) });
    }
    // SAFETY: so many that stay as they are (above), aligned (tested).
    Some(unsafe { slice::from_raw_parts(from, count) })
}

/// A list that is being posted.
pub(crate) struct List<'a, T> {
    next: *const T,
    /// The request that was looked at last.
    current: *const T,
    /// Why it was not handed on.
    refused: c_int,
    service: Service,
    copies: &'a Copies<T>,
}

impl<T> List<'_, T> {
    /// The request that was not posted, and the errno, if there is one. `engine` is the engine's
    /// refusal of a request that was handed on.
    pub(crate) fn bad(&self, engine: Option<c_int>) -> Option<(In<T>, c_int)> {
        let errno = engine.unwrap_or(self.refused);
        (errno != 0).then_some((In::tell(self.current), errno))
    }
}

/// The sends of a list.
pub(crate) fn sends(
    list: In<ibv_send_wr>,
    service: Service,
    copies: &Copies<ibv_send_wr>,
) -> List<'_, ibv_send_wr> {
    let next = list.raw();
    List { next, current: next, refused: 0, service, copies }
}

/// The receives of a list.
pub(crate) fn receives(
    list: In<ibv_recv_wr>,
    copies: &Copies<ibv_recv_wr>,
) -> List<'_, ibv_recv_wr> {
    let next = list.raw();
    List { next, current: next, refused: 0, service: Service::Rc, copies }
}

/// A scatter/gather list; `None` for one that cannot be.
#[inline]
fn sges(list: *const Sge, count: c_int, kept: &Kept<Sge>) -> Option<&[Sge]> {
    let count = usize::try_from(count).ok().filter(|&n| n <= limits::MAX_SGE as usize)?;
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: so many entries, which stay as they are while the request is posted (contract above).
    unsafe { elements(list, count, kept) }
}

impl<'a, T: Plain> List<'a, T> {
    /// The next request.
    #[inline]
    fn look(&mut self) -> Option<&'a T> {
        // SAFETY: NULL or a request of the list, which stays as it is while it is posted (contract
        // above).
        let [wr] = (unsafe { elements(self.next, 1, &self.copies.requests) })? else { return None };
        self.current = self.next;
        Some(wr)
    }
}

impl<'a> Iterator for List<'a, ibv_send_wr> {
    type Item = SendWr<'a>;

    #[inline]
    fn next(&mut self) -> Option<SendWr<'a>> {
        let wr = self.look()?;
        let send = send(wr, self.service, &self.copies.entries);
        match send {
            Some(_) => self.next = wr.next,
            None => self.refused = EINVAL,
        }
        send
    }
}

impl<'a> Iterator for List<'a, ibv_recv_wr> {
    type Item = RecvWr<'a>;

    #[inline]
    fn next(&mut self) -> Option<RecvWr<'a>> {
        let wr = self.look()?;
        let Some(sges) = sges(wr.sg_list, wr.num_sge, &self.copies.entries) else {
            self.refused = EINVAL;
            return None;
        };
        self.next = wr.next;
        Some(RecvWr { wr_id: wr.wr_id, sges })
    }
}

/// The part of the union for RDMA.
fn rdma(wr: &ibv_send_wr) -> wr_rdma {
    // SAFETY: integers, whatever was written.
    unsafe { wr.wr.rdma }
}

/// The part of the union for atomics.
fn atomic(wr: &ibv_send_wr) -> wr_atomic {
    // SAFETY: integers, whatever was written.
    unsafe { wr.wr.atomic }
}

/// The part of the union for datagrams.
fn datagram(wr: &ibv_send_wr) -> &wr_ud {
    // SAFETY: a handle and integers; for a datagram the program has filled in this part.
    unsafe { &wr.wr.ud }
}

/// What to do; `None` for what nobody can.
#[inline]
fn operation(wr: &ibv_send_wr) -> Option<SendOp> {
    let remote = || {
        let rdma = rdma(wr);
        Remote { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) }
    };
    let imm = u32::from_be(wr.imm_data);
    Some(match wr.opcode {
        opcode::SEND => SendOp::Send,
        opcode::SEND_WITH_IMM => SendOp::SendImm(imm),
        opcode::SEND_WITH_INV => SendOp::SendInv(Rkey(wr.imm_data)),
        opcode::RDMA_WRITE => SendOp::Write(remote()),
        opcode::RDMA_WRITE_WITH_IMM => SendOp::WriteImm(remote(), imm),
        opcode::RDMA_READ => SendOp::Read(remote()),
        opcode::ATOMIC_CMP_AND_SWP => {
            let wr = atomic(wr);
            let remote = Remote { addr: wr.remote_addr, rkey: Rkey(wr.rkey) };
            SendOp::CmpSwap { remote, compare: wr.compare_add, swap: wr.swap }
        }
        opcode::ATOMIC_FETCH_AND_ADD => {
            let wr = atomic(wr);
            let remote = Remote { addr: wr.remote_addr, rkey: Rkey(wr.rkey) };
            SendOp::FetchAdd { remote, add: wr.compare_add }
        }
        opcode::ATOMIC_WRITE => SendOp::AtomicWrite(remote()),
        opcode::LOCAL_INV => SendOp::LocalInv(Rkey(wr.imm_data)),
        opcode::BIND_MW => {
            let bind = &wr.bind_mw;
            mw::posted(bind.mw, bind.rkey, &bind.bind_info)?
        }
        _ => return None,
    })
}

/// The flags that the engine knows; others concern devices that check sums.
#[inline]
pub(crate) fn flags(flags: u32) -> SendFlags {
    SendFlags::from_bits_truncate((flags & !send_flags::IP_CSUM) as u8)
}

/// A request in the engine's terms; `None` for one that cannot be.
#[inline]
fn send<'a>(wr: &'a ibv_send_wr, service: Service, kept: &'a Kept<Sge>) -> Option<SendWr<'a>> {
    let op = operation(wr)?;
    let local = matches!(op, SendOp::LocalInv(_) | SendOp::BindMw(_));
    let sges = if local { &[] } else { sges(wr.sg_list, wr.num_sge, kept)? };
    let payload = match wr.send_flags & send_flags::INLINE != 0 && !local {
        // SAFETY: for an inline send these are readable bytes of the program, until it returns.
        true => Payload::InlineList(unsafe { InlineData::new(sges) }),
        false => Payload::Sges(sges),
    };
    let has_srqn = service == Service::Xrc;
    let dest = match service == Service::Ud {
        true => {
            let ud = datagram(wr);
            let ah = &ud.ah.find()?.engine;
            Some(Dest { ah, qpn: Qpn::new(ud.remote_qpn), qkey: Qkey(ud.remote_qkey) })
        }
        false => None,
    };
    let flags = flags(wr.send_flags) - SendFlags::INLINE;
    Some(SendWr {
        wr_id: wr.wr_id,
        op,
        flags,
        payload,
        dest,
        srqn: has_srqn.then(|| Srqn::new(wr.remote_srqn)),
    })
}
