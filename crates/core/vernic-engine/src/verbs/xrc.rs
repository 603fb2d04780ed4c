//! XRC (IBTA annex A14): domains, their shared receive queues by number, and the queue pairs of
//! both halves of a connection.
//!
//! An initiator ([`Pd::create_xrc_ini`]) has a send queue alone. A target ([`Xrcd::create_tgt`])
//! has no queue: each request names a shared receive queue of the target's domain by its number
//! ([`Srq::number`](crate::Srq::number)), takes its receive there, completes on that queue's
//! completion queue with the target's number, and reaches memory of that queue's protection domain.
//!
//! Limits: a domain is one of an open device in one process. Those who open it by the same file
//! share it within the device; other processes and other opens of the device have domains of their
//! own.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vernic_mem::PdId;
use vernic_proto::QpType;
use vernic_wire::Qpn;

use crate::device::listing::Transport;
use crate::error::{Busy, CLOSED, CreateError, ORPHAN};
use crate::qp::cap::QpCap;
use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::handle::Qp;
use crate::verbs::pd::Pd;
use crate::verbs::qp_init::Parts;

/// A file that stands for a domain: whoever opens the device's domain by it gets the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcdFile {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// How a domain is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XrcdOpen {
    /// The file that stands for it; without one it is private, and must be created.
    pub file: Option<XrcdFile>,
    /// Create it if it is not there (`O_CREAT`).
    pub create: bool,
    /// Fail if it is there (`O_EXCL`).
    pub exclusive: bool,
}

/// Why a domain, or a queue pair of one, was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XrcdError {
    /// A private domain that was not to be created.
    #[error("an XRC domain without a file can only be created: ask for that")]
    NotCreated,
    /// Nobody has opened the domain of the file.
    #[error("no XRC domain is open for device {}, inode {}: create it", .0.device, .0.inode)]
    NotThere(XrcdFile),
    /// Somebody has, and it was to be new.
    #[error("an XRC domain is open for device {}, inode {} already", .0.device, .0.inode)]
    Exists(XrcdFile),
    /// The device was opened before this process was forked.
    #[error("the XRC domain was {ORPHAN}")]
    Orphan,
    /// The device was closed.
    #[error("{}", CLOSED)]
    Closed,
    /// An iWARP device has none.
    #[error("{0} is an iWARP device, which has no XRC domains")]
    NotOnIwarp(String),
    /// The domain has no such target.
    #[error("{0} is no XRC target of this domain")]
    NoTarget(Qpn),
}

/// What the handles of a domain share.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Where the targets live: they need a protection domain, and reach nothing in it.
    pd: Arc<Pd>,
    /// Handles that are open. Changed under the lock of the context's files where it has one.
    handles: AtomicU32,
    /// Targets and shared receive queues.
    users: AtomicU32,
    targets: Mutex<HashMap<Qpn, Weak<Qp>>>,
}

impl Domain {
    fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            pd: context.alloc_pd(),
            handles: AtomicU32::new(0),
            users: AtomicU32::new(0),
            targets: Mutex::default(),
        })
    }

    /// Its name: that of its protection domain, which is never used again.
    pub(crate) fn id(&self) -> PdId {
        self.pd.id()
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// A target is gone.
    pub(crate) fn forget_target(&self, qpn: Qpn) {
        lock(&self.targets).remove(&qpn);
    }

    /// A handle of the target is closed; true if it was the last, and nobody can open it any more.
    pub(crate) fn close_target(&self, qpn: Qpn, handles: &AtomicU32) -> bool {
        let mut targets = lock(&self.targets);
        let left = handles.load(Ordering::Acquire).saturating_sub(1);
        handles.store(left, Ordering::Release);
        if left == 0 {
            targets.remove(&qpn);
        }
        left == 0
    }
}

/// The domains of a device that files stand for.
#[derive(Debug, Default)]
pub(crate) struct XrcdFiles(Mutex<HashMap<XrcdFile, Arc<Domain>>>);

/// A handle of an XRC domain. Dropping it closes it.
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

impl Xrcd {
    pub(crate) fn open(context: &Arc<Context>, how: XrcdOpen) -> Result<Arc<Self>, XrcdError> {
        let info = context.info();
        if info.transport == Transport::Iwarp {
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
                let mut files = lock(&context.engine().xrcds.0);
                let domain = match files.get(&file) {
                    Some(_) if how.exclusive => return Err(XrcdError::Exists(file)),
                    Some(domain) => domain.clone(),
                    None if !how.create => return Err(XrcdError::NotThere(file)),
                    None => files.entry(file).or_insert(Domain::new(context)).clone(),
                };
                domain.handles.fetch_add(1, Ordering::AcqRel);
                domain
            }
        };
        let (context, file, closed) = (context.clone(), how.file, AtomicBool::new(false));
        Ok(Arc::new(Self { context, domain, file, closed }))
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// A target, in Reset. It has neither queues nor completion queues of its own.
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
        })?;
        lock(&self.domain.targets).insert(qp.qpn(), Arc::downgrade(&qp));
        Ok(qp)
    }

    /// Another handle of a target of this domain. It is destroyed when [`Qp::destroy`] was called
    /// for each handle, the one of its creation included, or when no reference is left.
    ///
    /// # Errors
    /// [`XrcdError::NoTarget`].
    pub fn open_tgt(&self, qpn: Qpn) -> Result<Arc<Qp>, XrcdError> {
        if self.context.is_orphan() {
            return Err(XrcdError::Orphan);
        }
        let targets = lock(&self.domain.targets);
        let qp = targets.get(&qpn).and_then(Weak::upgrade).ok_or(XrcdError::NoTarget(qpn))?;
        qp.add_handle();
        Ok(qp)
    }

    /// Closes this handle.
    ///
    /// # Errors
    /// [`Busy`] if it is the last of its domain, and targets or shared receive queues live there.
    pub fn destroy(&self) -> Result<(), Busy> {
        if self.context.is_orphan() {
            return Ok(());
        }
        let mut files = lock(&self.context.engine().xrcds.0);
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

    /// Counts this handle out; returns the domain if it was the last of its file.
    fn leave(&self, files: &mut HashMap<XrcdFile, Arc<Domain>>) -> Option<Arc<Domain>> {
        let file = self.file?;
        let last = self.domain.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        if last { files.remove(&file) } else { None }
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        if self.context.is_orphan() {
            // Never freed: a thread of the parent may have been at work on it.
            std::mem::forget(self.domain.clone());
        } else if !*self.closed.get_mut() {
            // What lives in the domain keeps it; nobody else can come in.
            let gone = self.leave(&mut lock(&self.context.engine().xrcds.0));
            drop(gone);
        }
    }
}

/// What an initiator is created with.
#[derive(Clone, Debug)]
pub struct XrcIniInit {
    /// Where its sends complete.
    pub send_cq: Arc<Cq>,
    /// Its sizes; those of the receive queue are not looked at, for it has none.
    pub cap: QpCap,
    /// Every send is signaled, whatever its flags.
    pub signal_all: bool,
}

impl Pd {
    /// An XRC initiator, in Reset.
    ///
    /// # Errors
    /// [`CreateError`]: limits, a completion queue of another device, no number left.
    pub fn create_xrc_ini(self: &Arc<Self>, init: XrcIniInit) -> Result<Arc<Qp>, CreateError> {
        self.alive()?;
        let XrcIniInit { send_cq, cap, signal_all } = init;
        Qp::build(Parts {
            qp_type: QpType::XrcIni,
            pd: self.clone(),
            send_cq: Some(send_cq),
            recv_cq: None,
            srq: None,
            domain: None,
            cap: QpCap { max_recv_wr: 0, max_recv_sge: 0, ..cap },
            signal_all,
        })
    }
}
