//! Queue pairs of ids: made with what the id has where the program gives nothing, brought up and
//! down by the id.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::id::IdObject;
use crate::boundary::{self, Failure};
use crate::ibverbs::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::ibverbs::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::ibverbs::qp::{QpObject, ibv_destroy_qp};
use crate::ibverbs::qp_attr;
use crate::ibverbs::qp_of_id::{HeldQp, Owner};
use crate::layout::cm::rdma_cm_id;
use crate::layout::cq::{ibv_comp_channel, ibv_cq};
use crate::layout::pd::ibv_pd;
use crate::layout::qp::{
    ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, qp_init_mask, qpt,
};
use crate::pointer::{CObject, Handle, Out};

/// Entries of a queue, as C counts them.
fn entries(count: u32) -> c_int {
    c_int::try_from(count.max(1)).unwrap_or(c_int::MAX)
}

/// A channel and a completion queue on it. The program finds both in the id, and the id with its
/// events.
fn create_cq(
    id: Handle<rdma_cm_id>,
    entries: c_int,
) -> Result<(Handle<ibv_comp_channel>, Handle<ibv_cq>), Failure> {
    let context = id.get()?.device()?.context;
    let failed = |what| {
        let error = std::io::Error::last_os_error();
        Failure::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{what} of the id"))
    };
    let channel = ibv_create_comp_channel(context);
    if channel.is_null() {
        return Err(failed("a completion channel"));
    }
    let cq = ibv_create_cq(context, entries, id.raw().cast(), channel, 0);
    if cq.is_null() {
        let failure = failed("a completion queue");
        ibv_destroy_comp_channel(channel);
        return Err(failure);
    }
    Ok((channel, cq))
}

/// No field has it any more.
fn forget<C: CObject>(fields: [&AtomicPtr<C>; 2], gone: Handle<C>) {
    let has_it = |field: &&AtomicPtr<C>| field.load(Ordering::Acquire) == gone.raw();
    fields.into_iter().filter(has_it).for_each(|field| Handle::NULL.store(field));
}

impl IdObject {
    /// Makes a receive completion queue of its own, unless it has one.
    pub(crate) fn create_recv_cq(
        &self,
        of_c: Handle<rdma_cm_id>,
        count: u32,
    ) -> Result<Handle<ibv_cq>, Failure> {
        let known: Handle<ibv_cq> = Handle::load(&self.base.recv_cq);
        if !known.is_null() {
            return Ok(known);
        }
        let (channel, cq) = create_cq(of_c, entries(count))?;
        channel.store(&self.base.recv_cq_channel);
        cq.store(&self.base.recv_cq);
        Ok(cq)
    }

    /// As [`create_recv_cq`](Self::create_recv_cq), for sends.
    fn create_send_cq(
        &self,
        of_c: Handle<rdma_cm_id>,
        count: u32,
    ) -> Result<Handle<ibv_cq>, Failure> {
        let known: Handle<ibv_cq> = Handle::load(&self.base.send_cq);
        if !known.is_null() {
            return Ok(known);
        }
        let (channel, cq) = create_cq(of_c, entries(count))?;
        channel.store(&self.base.send_cq_channel);
        cq.store(&self.base.send_cq);
        Ok(cq)
    }

    /// Destroys completion queues of its own. One that something uses stays. Where a program has
    /// made one for both directions, that is destroyed once.
    pub(crate) fn destroy_cqs(&self) {
        let base = &self.base;
        let (cqs, channels) =
            ([&base.recv_cq, &base.send_cq], [&base.recv_cq_channel, &base.send_cq_channel]);
        for (cq_field, channel_field) in cqs.into_iter().zip(channels) {
            let cq: Handle<ibv_cq> = Handle::load(cq_field);
            if cq.is_null() || ibv_destroy_cq(cq) != 0 {
                continue;
            }
            forget(cqs, cq);
            let channel: Handle<ibv_comp_channel> = Handle::load(channel_field);
            if !channel.is_null() && ibv_destroy_comp_channel(channel) == 0 {
                forget(channels, channel);
            }
        }
    }

    /// What a queue pair is made with: the program's, and the id's where that has nothing.
    fn fill_in(
        &self,
        of_c: Handle<rdma_cm_id>,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Result<(), Failure> {
        let device = self.device()?;
        self.show_device(&device);
        if attr.comp_mask & qp_init_mask::PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= qp_init_mask::PD;
            attr.pd = Handle::load(&self.base.pd);
        }
        if attr.qp_type == qpt::XRC_RECV {
            if attr.comp_mask & qp_init_mask::XRCD == 0 {
                attr.comp_mask |= qp_init_mask::XRCD;
                attr.xrcd = device.xrcd()?;
            }
            return Ok(());
        }
        if attr.pd.get()?.context() != device.context {
            let why = "the protection domain is of another device context than id->verbs";
            return Err(Failure::invalid(why));
        }
        let is_other = |given: Handle<ibv_cq>, own| {
            let own: Handle<ibv_cq> = Handle::load(own);
            !given.is_null() && !own.is_null() && given.raw() != own.raw()
        };
        if is_other(attr.send_cq, &self.base.send_cq) || is_other(attr.recv_cq, &self.base.recv_cq)
        {
            let why = "another completion queue than the id has (id->send_cq, id->recv_cq)";
            return Err(Failure::invalid(why));
        }
        if attr.send_cq.is_null() {
            attr.send_cq = self.create_send_cq(of_c, attr.cap.max_send_wr)?;
        }
        if attr.qp_type == qpt::XRC_SEND {
            return Ok(());
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = self.create_recv_cq(of_c, attr.cap.max_recv_wr)?;
        }
        if attr.srq.is_null() {
            attr.srq = Handle::load(&self.base.srq);
        }
        Ok(())
    }

    /// Heeds what the program has made of the field `qp`: it may put a queue pair there that it has
    /// made itself or that another id had, or take the one away that was there. Looked at by each
    /// call that does something with the queue pair, and before an event does.
    ///
    /// # Errors
    /// `EINVAL` for a queue pair of another type or device.
    pub(crate) fn heed_qp(&self) -> Result<(), Failure> {
        let shown: Handle<ibv_qp> = Handle::load(&self.base.qp);
        let found = HeldQp::find(shown);
        // A program that has destroyed its queue pair may leave the address.
        let is_as_before = self.heeded_qp.load(Ordering::Acquire) == shown.raw();
        if is_as_before && (found.is_none() || self.engine.qp().is_some()) {
            return Ok(());
        }
        match found {
            None => drop(self.engine.detach_qp()),
            Some(qp) => {
                self.engine.adopt_qp(qp.engine.clone())?;
                qp.belong_to(self.as_owner());
            }
        }
        shown.store(&self.heeded_qp);
        Ok(())
    }

    /// Lets go of a queue pair that the program has taken away, before the id ends; follows
    /// nothing.
    pub(crate) fn release_qp(&self) {
        let shown: Handle<ibv_qp> = Handle::load(&self.base.qp);
        if self.heeded_qp.load(Ordering::Acquire) != shown.raw() {
            self.engine.detach_qp();
        }
    }

    fn as_owner(&self) -> Owner {
        Owner { id: Arc::downgrade(&self.engine), heeded: self.heeded_qp.clone() }
    }

    /// In this order, another thread that heeds the field in between finds what it finds after.
    fn show_qp(&self, qp: Handle<ibv_qp>) {
        qp.store(&self.base.qp);
        qp.store(&self.heeded_qp);
    }

    /// Makes a queue pair and brings it to Init; one for datagrams to RTS.
    ///
    /// # Errors
    /// `EINVAL` for an id that has one, or that has no device yet; those of making a queue pair.
    pub(crate) fn create_qp(
        &self,
        of_c: Handle<rdma_cm_id>,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Result<(), Failure> {
        let had: Handle<ibv_qp> = Handle::load(&self.base.qp);
        if !had.is_null() {
            return Err(Failure::invalid("the id has a queue pair already"));
        }
        self.heed_qp()?;
        let own: [Handle<ibv_cq>; 2] =
            [Handle::load(&self.base.send_cq), Handle::load(&self.base.recv_cq)];
        // Queues that were there before stay, whatever happens.
        let undo = || {
            if own.iter().all(|cq| cq.is_null()) {
                self.destroy_cqs();
            }
        };
        let made = self.fill_in(of_c, attr).and_then(|()| QpObject::create_ex(attr));
        let qp = made.inspect_err(|_| undo())?;
        let object = qp.get()?;
        if let Err(error) = self.engine.attach_qp(object.engine.clone()) {
            ibv_destroy_qp(qp);
            undo();
            return Err(error.into());
        }
        object.of_id.belong_to(self.as_owner());
        object.set_state(object.engine.state());
        attr.cap = object.cap();
        attr.pd.store(&self.base.pd);
        self.show_qp(qp);
        Ok(())
    }

    /// Destroys its queue pair, and completion queues of its own.
    pub(crate) fn destroy_qp(&self) {
        self.release_qp();
        let qp: Handle<ibv_qp> = Handle::load(&self.base.qp);
        if !qp.is_null() {
            self.engine.detach_qp();
            ibv_destroy_qp(qp);
            self.show_qp(Handle::NULL);
        }
        self.destroy_cqs();
    }
}

impl Out<ibv_qp_init_attr> {
    /// Fills in what a queue pair was made with.
    pub(crate) fn write_made(self, made: &ibv_qp_init_attr) {
        self.write_send_cq(made.send_cq);
        self.write_recv_cq(made.recv_cq);
        self.write_srq(made.srq);
        self.write_cap(made.cap);
        self.write_qp_type(made.qp_type);
    }
}

impl Out<ibv_qp_init_attr_ex> {
    /// Fills in what a queue pair was made with.
    fn write_made(self, made: &ibv_qp_init_attr_ex) {
        self.write_send_cq(made.send_cq);
        self.write_recv_cq(made.recv_cq);
        self.write_srq(made.srq);
        self.write_cap(made.cap);
    }
}

/// `rdma_create_qp`. Without a protection domain that of the id's device is taken, without
/// completion queues the id gets some of its own.
pub(crate) extern "C" fn rdma_create_qp(
    id: Handle<rdma_cm_id>,
    pd: Handle<ibv_pd>,
    attr: Out<ibv_qp_init_attr>,
) -> c_int {
    boundary::minus_one("rdma_create_qp", || {
        let object = id.get()?;
        let mut init = attr.require("the attributes")?;
        create_plain(object, id, pd, &mut init)?;
        attr.write_made(&init);
        Ok(0)
    })
}

/// As `rdma_create_qp`; fills in what the queue pair was made with.
///
/// # Errors
/// As of [`IdObject::create_qp`].
pub(crate) fn create_plain(
    object: &IdObject,
    id: Handle<rdma_cm_id>,
    pd: Handle<ibv_pd>,
    init: &mut ibv_qp_init_attr,
) -> Result<(), Failure> {
    let mut extended = ibv_qp_init_attr_ex::of(init, pd);
    object.create_qp(id, &mut extended)?;
    *init = extended.basic();
    Ok(())
}

/// `rdma_create_qp_ex`.
pub(crate) extern "C" fn rdma_create_qp_ex(
    id: Handle<rdma_cm_id>,
    attr: Out<ibv_qp_init_attr_ex>,
) -> c_int {
    boundary::minus_one("rdma_create_qp_ex", || {
        let object = id.get()?;
        let mut init = attr.require_grown("the attributes")?;
        object.create_qp(id, &mut init)?;
        attr.write_made(&init);
        Ok(0)
    })
}

/// `rdma_destroy_qp`.
pub(crate) extern "C" fn rdma_destroy_qp(id: Handle<rdma_cm_id>) {
    boundary::nothing("rdma_destroy_qp", || {
        id.get()?.destroy_qp();
        Ok(())
    });
}

/// `rdma_init_qp_attr`: the attributes that bring a queue pair of the program's to `qp_state`.
pub(crate) extern "C" fn rdma_init_qp_attr(
    id: Handle<rdma_cm_id>,
    attr: Out<ibv_qp_attr>,
    mask: Out<c_int>,
) -> c_int {
    boundary::minus_one("rdma_init_qp_attr", || {
        let wanted = attr.require("the attributes")?.qp_state;
        if mask.is_null() {
            return Err(Failure::null("a place for the mask"));
        }
        let state = qp_attr::state(wanted)?;
        let (found, which) = id.get()?.engine.init_qp_attr(state)?;
        attr.write(qp_attr::from_engine(&found));
        mask.write(which.bits() as c_int);
        Ok(0)
    })
}
