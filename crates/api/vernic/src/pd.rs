//! Protection domains (IBTA 10.2.3): what may be used together.

use std::sync::Arc;

use vernic_engine as engine;

use crate::mw::WindowType;
use crate::qp::QpBuilder;
use crate::service::{Service, XrcIni};
use crate::srq::Xrc;
use crate::{
    Access, Ah, Buffer, Cq, CreateError, Device, DeviceMemory, Gid, Mr, Mw, Path, RawMr, Srq, Xrcd,
};

/// A protection domain. Work of a queue pair reaches only memory of its own domain. A clone is
/// another handle to it; it is freed with the last handle and the last object in it.
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Arc<engine::Pd>,
    device: Device,
}

impl Pd {
    pub(crate) fn new(device: &Device) -> Self {
        Self { inner: device.context().alloc_pd(), device: device.clone() }
    }

    pub(crate) fn inner(&self) -> &Arc<engine::Pd> {
        &self.inner
    }

    pub(crate) fn context(&self) -> &Device {
        &self.device
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Registers memory: work requests reach it by its lkey and, with remote rights, peers by its
    /// rkey. Costs the same for any length; no page is touched or pinned.
    ///
    /// # Errors
    /// [`CreateError::Memory`] when all keys are in use.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Mr, CreateError> {
        Mr::new(self, buffer, access)
    }

    /// Registers part of a device's memory. Work requests and peers count its addresses from 0.
    ///
    /// ```
    /// use vernic::{Access, Device};
    /// let device = Device::open("lo")?;
    /// let dm = device.alloc_dm(4096)?;
    /// let mr = device.alloc_pd()?.register_dm(&dm, 1024, 64, Access::NONE.remote_atomic())?;
    /// assert_eq!((mr.remote().addr, mr.len()), (0, 64));
    /// let mut counter = [0; 8];
    /// dm.copy_out(1024, &mut counter)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CreateError`]: a range that is not inside, memory of another device.
    pub fn register_dm(
        &self,
        dm: &Arc<DeviceMemory>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<RawMr, CreateError> {
        Ok(RawMr::new(self.inner.reg_dm_mr(dm, offset, len, access.mem())?))
    }

    /// A region of `len` zeroed bytes: [`Buffer::zeroed`] and [`Pd::register`] together.
    ///
    /// # Errors
    /// As those.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr, CreateError> {
        self.register(Buffer::zeroed(len)?, access)
    }

    /// A memory window, bound to nothing yet.
    ///
    /// # Errors
    /// [`CreateError::Memory`] when all keys are in use.
    pub fn alloc_window<T: WindowType>(&self) -> Result<Mw<T>, CreateError> {
        Mw::new(self)
    }

    /// A shared receive queue of `max_wr` receives (1 to 32,768) of up to `max_sge` pieces (0 to
    /// 32).
    ///
    /// # Errors
    /// [`CreateError::Limit`].
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, CreateError> {
        Srq::new(self, max_wr, max_sge)
    }

    /// A shared receive queue of an XRC domain, whose receives complete on `cq`. Requests that name
    /// it reach memory of this protection domain.
    ///
    /// # Errors
    /// [`CreateError::Limit`]; [`CreateError::OtherDevice`] if domain or completion queue are
    /// another's.
    pub fn create_xrc_srq(
        &self,
        domain: &Xrcd,
        cq: &Cq,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Srq<Xrc>, CreateError> {
        Srq::new_xrc(self, domain, cq, max_wr, max_sge)
    }

    /// An address handle: where datagrams go.
    ///
    /// # Errors
    /// [`CreateError::Path`] if there is no way from this device.
    pub fn create_ah(&self, gid: Gid) -> Result<Ah, CreateError> {
        Ah::new(self, gid, &Path::default())
    }

    /// An address handle with a chosen path.
    ///
    /// # Errors
    /// As [`Pd::create_ah`].
    pub fn create_ah_with(&self, gid: Gid, path: &Path) -> Result<Ah, CreateError> {
        Ah::new(self, gid, path)
    }

    /// A queue pair of service `S`: [`Rc`](crate::Rc), [`Uc`](crate::Uc) or [`Ud`](crate::Ud).
    pub fn qp<S: Service>(&self) -> QpBuilder<'_, S> {
        QpBuilder::new(self)
    }

    /// The initiator of an XRC connection; see [`Xrcd`].
    pub fn xrc_ini(&self) -> QpBuilder<'_, XrcIni> {
        QpBuilder::new(self)
    }
}
