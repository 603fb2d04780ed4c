//! XRC (IBTA annex A14): domains, their shared receive queues, and the queue pairs at both ends of
//! a connection.
//!
//! An XRC initiator ([`Pd::create_xrc_ini`]) has only a send queue. An XRC target
//! ([`Xrcd::create_tgt`]) has no queue. Each request names a shared receive queue of the target's
//! domain by its number ([`Srq::number`](crate::Srq::number)). The request takes a receive of that
//! queue, completes in that queue's completion queue under the target's QPN, and accesses memory of
//! that queue's protection domain.
//!
//! Limits: an XRC domain exists within one open device of one process. Callers that open it by the
//! same file share it only within that device. Other processes, and further opens of the device,
//! have domains of their own.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use vernic_proto::QpType;
use vernic_proto::congestion::Algorithm;
use vernic_wire::Qpn;

use crate::device::file_objects::XrcdFile;
use crate::error::{Busy, CLOSED, CreateError, ORPHAN};
use crate::qp::cap::QpCap;
use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::handle::Qp;
use crate::verbs::pd::Pd;
use crate::verbs::qp_init::Parts;
use crate::verbs::srq::{Srq, SrqInit};
use crate::verbs::xrc_domain::Domain;

/// The options for opening an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XrcdOpen {
    /// The file that identifies the domain. A domain without a file cannot be opened again, so
    /// `create` must be set for it.
    pub file: Option<XrcdFile>,
    /// Creates the domain if it does not exist (`O_CREAT`).
    pub create: bool,
    /// Makes the call fail if the domain exists (`O_EXCL`).
    pub exclusive: bool,
}

/// The reason for which an XRC domain, or a target in it, was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XrcdError {
    /// Neither a file nor `create` was given.
    #[error("an XRC domain without a file can only be created: ask for that")]
    NotCreated,
    /// No domain is open for the file, and `create` was not given.
    #[error("no XRC domain is open for device {}, inode {}: create it", .0.device, .0.inode)]
    NotThere(XrcdFile),
    /// A domain is open for the file already, and `exclusive` was given.
    #[error("an XRC domain is open for device {}, inode {} already", .0.device, .0.inode)]
    Exists(XrcdFile),
    /// The device was opened by the parent of this process, before a `fork`.
    #[error("the XRC domain was {ORPHAN}")]
    Orphan,
    /// The device was closed.
    #[error("{}", CLOSED)]
    Closed,
    /// The device is an iWARP device, which has no XRC domains.
    #[error("{0} is an iWARP device, which has no XRC domains")]
    NotOnIwarp(String),
    /// The domain has no target with this number.
    #[error("{0} is no XRC target of this domain")]
    NoTarget(Qpn),
}

/// Returns the domain that a file identifies; `None` if it is not open.
fn find(
    files: &HashMap<XrcdFile, Arc<dyn Any + Send + Sync>>,
    file: XrcdFile,
) -> Option<Arc<Domain>> {
    files.get(&file)?.clone().downcast().ok()
}

/// A handle of an XRC domain. Dropping it closes the handle.
pub struct Xrcd {
    context: Arc<Context>,
    domain: Arc<Domain>,
    file: Option<XrcdFile>,
    closed: AtomicBool,
}

impl fmt::Debug for Xrcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xrcd({})", self.domain.id())
    }
}

impl Context {
    /// Opens the XRC domain that a file identifies, or creates one without a file (IBTA A14).
    ///
    /// # Errors
    /// [`XrcdError`].
    pub fn open_xrcd(self: &Arc<Self>, how: XrcdOpen) -> Result<Arc<Xrcd>, XrcdError> {
        Xrcd::open(self, how)
    }
}

impl Xrcd {
    pub(crate) fn open(context: &Arc<Context>, how: XrcdOpen) -> Result<Arc<Self>, XrcdError> {
        let info = context.info();
        if !info.transport.rules().has_qps(QpType::XrcIni) {
            return Err(XrcdError::NotOnIwarp(info.name.clone()));
        }
        context.alive().map_err(|error| match error {
            CreateError::Closed => XrcdError::Closed,
            _ => XrcdError::Orphan,
        })?;
        let domain = match how.file {
            None if !how.create => return Err(XrcdError::NotCreated),
            None => Domain::new(context),
            Some(file) => {
                let mut files = lock(context.engine().xrcds());
                let domain = match find(&files, file) {
                    Some(_) if how.exclusive => return Err(XrcdError::Exists(file)),
                    Some(domain) => domain,
                    None if !how.create => return Err(XrcdError::NotThere(file)),
                    None => {
                        let domain = Domain::new(context);
                        files.insert(file, domain.clone());
                        domain
                    }
                };
                domain.handles.fetch_add(1, Ordering::AcqRel);
                domain
            }
        };
        let (context, file, closed) = (context.clone(), how.file, AtomicBool::new(false));
        Ok(Arc::new(Self { context, domain, file, closed }))
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Creates an XRC target, in the state Reset. A target has neither queues nor completion queues
    /// of its own.
    ///
    /// # Errors
    /// [`CreateError::NoQpn`].
    pub fn create_tgt(self: &Arc<Self>) -> Result<Arc<Qp>, CreateError> {
        self.domain.pd.alive()?;
        let nothing = QpCap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline: 0,
        };
        let qp = Qp::build(Parts {
            qp_type: QpType::XrcTgt,
            pd: self.domain.pd.clone(),
            send_cq: None,
            recv_cq: None,
            srq: None,
            domain: Some(self.domain.clone()),
            cap: nothing,
            signal_all: false,
            congestion: None,
        })?;
        let weak = Arc::downgrade(&qp);
        lock(&self.domain.targets).insert(qp.qpn(), weak);
        Ok(qp)
    }

    /// Opens another handle of a target of this domain. The target is destroyed when
    /// [`Qp::destroy`] has been called for each handle, including the one from its creation, or
    /// when no reference is left.
    ///
    /// # Errors
    /// [`XrcdError::NoTarget`].
    pub fn open_tgt(&self, qpn: Qpn) -> Result<Arc<Qp>, XrcdError> {
        if self.context.is_orphan() {
            return Err(XrcdError::Orphan);
        }
        let targets = lock(&self.domain.targets);
        let target =
            targets.get(&qpn).and_then(Weak::upgrade).and_then(|t| t.downcast::<Qp>().ok());
        let qp = target.ok_or(XrcdError::NoTarget(qpn))?;
        qp.add_handle();
        Ok(qp)
    }

    /// Closes this handle.
    ///
    /// # Errors
    /// [`Busy`] if this is the last handle of the domain, and the domain has targets or shared
    /// receive queues.
    pub fn destroy(&self) -> Result<(), Busy> {
        if self.context.is_orphan() {
            return Ok(());
        }
        let mut files = lock(self.context.engine().xrcds());
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let last = self.file.is_none() || self.domain.handles.load(Ordering::Acquire) == 1;
        let users = self.domain.users.load(Ordering::Acquire);
        if last && users != 0 {
            let by = "queue pairs and shared receive queues";
            return Err(Busy { object: "XRC domain", users, by });
        }
        self.closed.store(true, Ordering::Release);
        let gone = self.leave(&mut files);
        drop(files);
        drop(gone);
        Ok(())
    }

    /// Decrements the number of handles. Returns the domain if this was the last handle of its
    /// file.
    fn leave(
        &self,
        files: &mut HashMap<XrcdFile, Arc<dyn Any + Send + Sync>>,
    ) -> Option<Arc<dyn Any + Send + Sync>> {
        let file = self.file?;
        let last = self.domain.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        if last { files.remove(&file) } else { None }
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        if self.context.is_orphan() {
            // In a child of `fork`: the domain is not freed, because another thread of the parent
            // may have been using it at the time of the fork.
            std::mem::forget(self.domain.clone());
        } else if !*self.closed.get_mut() {
            // Targets and shared receive queues keep the domain alive, but no handle of it can be
            // opened any more.
            let gone = self.leave(&mut lock(self.context.engine().xrcds()));
            drop(gone);
        }
    }
}

/// The parameters for creating an XRC initiator.
#[derive(Clone, Debug)]
pub struct XrcIniInit {
    /// The completion queue of sends.
    pub send_cq: Arc<Cq>,
    /// The sizes of the queue pair. The sizes of its receive queue are ignored, because it has
    /// none.
    pub cap: QpCap,
    /// Makes every send request signaled, whatever its flags.
    pub signal_all: bool,
    /// The congestion control; `None` takes that of the device's settings.
    pub congestion: Option<Algorithm>,
}

impl Pd {
    /// Creates a shared receive queue in an XRC domain. Requests of initiators name it by its
    /// [`number`](Srq::number). Its receives complete in `cq`. Requests that name it may access
    /// memory of this protection domain (IBTA A14).
    ///
    /// # Errors
    /// [`CreateError`] if a size exceeds its limit, or an object is of another device.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        init: SrqInit,
        xrcd: &Arc<Xrcd>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Srq>, CreateError> {
        self.alive()?;
        if !Arc::ptr_eq(xrcd.context(), self.context()) {
            return Err(CreateError::OtherDevice { what: "XRC domain" });
        }
        Srq::new_xrc(self, init, xrcd.domain(), cq)
    }
}

impl Pd {
    /// Creates an XRC initiator, in the state Reset.
    ///
    /// # Errors
    /// [`CreateError`] if a size exceeds its limit, the completion queue is of another device, or
    /// no queue pair number is left.
    pub fn create_xrc_ini(self: &Arc<Self>, init: XrcIniInit) -> Result<Arc<Qp>, CreateError> {
        self.alive()?;
        let XrcIniInit { send_cq, cap, signal_all, congestion } = init;
        Qp::build(Parts {
            qp_type: QpType::XrcIni,
            pd: self.clone(),
            send_cq: Some(send_cq),
            recv_cq: None,
            srq: None,
            domain: None,
            cap: QpCap { max_recv_wr: 0, max_recv_sge: 0, ..cap },
            signal_all,
            congestion,
        })
    }
}
