//! iWARP: queue pairs carried by TCP connections that the program makes itself.
//!
//! A device of iWARP is opened by its name (`viw0`, which stands beside `vernic0` on the same
//! netdev: [`DeviceInfo::into_iwarp`](crate::DeviceInfo::into_iwarp)). Its queue pairs are [`Rc`];
//! instead of telling each other an [`Endpoint`](crate::Endpoint), one end listens at a TCP address
//! and the other connects to it. With many peers, [`cm`](crate::cm) does the same by events.
//!
//! ```
//! use std::net::{Ipv4Addr, SocketAddr};
//! use std::time::Duration;
//! use vernic::iwarp::{Listener, Options};
//! use vernic::{Access, Buffer, Device, InitAttr, Inline, Rc, WrId};
//!
//! let lo = Device::list()?.into_iter().find(|info| info.port.netdev == "lo").unwrap();
//! let device = Device::open(&lo.into_iwarp().name)?;
//! let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
//! let mr = pd.register(Buffer::zeroed(64)?, Access::NONE.local_write())?;
//! let make = || -> Result<_, vernic::Error> {
//!     Ok(pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create()?.init(InitAttr::default())?)
//! };
//! let (a, b) = (make()?, make()?); // in real life, b is another process's
//! b.post_recv(WrId(1), &mr)?;
//!
//! let home = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
//! let listener = Listener::bind(&device, home, &Options::default())?;
//! let addr = listener.local_addr()?;
//! let (a, b) = std::thread::scope(|scope| {
//!     let b = scope.spawn(|| listener.accept(b));
//!     let a = a.connect_tcp(Ipv4Addr::LOCALHOST.into(), addr, &Options::default());
//!     (a, b.join().unwrap())
//! });
//! let (a, b) = (a?, b?);
//!
//! a.post_send(WrId(2), Inline(b"hello"))?;
//! for _ in 0..2 {
//!     let wc = cq.wait_one(Duration::from_secs(5))?;
//!     if wc.is_recv() {
//!         assert_eq!(mr.to_vec(..wc.byte_len() as usize)?, b"hello");
//!     }
//! }
//! # drop(b);
//! # Ok::<(), vernic::Error>(())
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vernic_engine::iwarp::{self as engine, Handshake, RtrSet, StartupState};

pub use crate::error::iwarp::IwarpError;
pub use vernic_engine::iwarp::{ConnectError, Ending, HandshakeState, StartError};

use crate::{Device, Init, Qp, Rc, Rts};

/// How connections are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Ask for a CRC over everything, in both directions; one end that asks is enough. On by
    /// default, as RFC 5044 wants it: TCP's checksum misses what broken hardware does. Without,
    /// payload is copied less.
    pub crc: bool,
    /// READs that may be in flight in each direction, 0 to 128; 16 by default.
    pub read_depth: u8,
    /// How long the other end is waited for: 5 seconds by default.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { crc: true, read_depth: 16, patience: Duration::from_secs(5) }
    }
}

impl Options {
    fn startup(&self) -> engine::StartupConfig {
        let depth = u32::from(self.read_depth.min(128));
        // The initiator's first message is an empty READ, so that the responder may speak first,
        // and its answer tells when the responder is there.
        engine::StartupConfig {
            crc: self.crc,
            ird: depth,
            ord: depth,
            rtr: RtrSet::READ,
            ..engine::StartupConfig::default()
        }
    }
}

/// Waits until both ends agree, then the queue pair has the connection.
fn start(
    mut handshake: Handshake,
    qp: Qp<Rc, Init>,
    until: Instant,
    peer: String,
) -> Result<Qp<Rc, Rts>, IwarpError> {
    let state = handshake.wait(until.saturating_duration_since(Instant::now()))?;
    if state != HandshakeState::Startup(StartupState::Agreed) {
        // Its reply may be on its way.
        handshake.leave();
        return Err(IwarpError::State { peer, state });
    }
    let config = handshake.stream_config();
    Ok(qp.carried(|qp| handshake.start(qp, config))?)
}

/// Takes TCP connections at an address of an iWARP device.
#[derive(Debug)]
pub struct Listener {
    inner: engine::Listener,
    options: Options,
    addr: SocketAddr,
    /// Peers that asked, and were gone before they were answered.
    gone: AtomicU64,
}

impl Listener {
    /// Listens; port 0 chooses one.
    ///
    /// # Errors
    /// [`ConnectError`]: no device of iWARP, an address that is not this machine's, a port that is
    /// taken.
    pub fn bind(device: &Device, addr: SocketAddr, options: &Options) -> Result<Self, IwarpError> {
        let inner = engine::Listener::bind(device.context(), addr, options.startup())?;
        let os = |source| ConnectError::Os { what: "listen at", addr, source };
        let addr = inner.local_addr().map_err(os)?;
        Ok(Self { inner, options: *options, addr, gone: AtomicU64::new(0) })
    }

    /// The address, its port chosen.
    ///
    /// # Errors
    /// Of the system.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// Waits for the next connection whose peer asks for one, and gives it to a queue pair. What
    /// else connects is passed over: port scans, peers that do not speak MPA, that say nothing, or
    /// that are gone before they are answered.
    ///
    /// # Errors
    /// [`IwarpError`]; the queue pair is destroyed.
    pub fn accept(&self, qp: Qp<Rc, Init>) -> Result<Qp<Rc, Rts>, IwarpError> {
        let until = Instant::now() + self.options.patience;
        let left = || until.saturating_duration_since(Instant::now());
        // Bounded by the time.
        while let Some(mut handshake) = self.inner.wait_request(left())? {
            handshake.accept(&self.options.startup(), &[]).map_err(ConnectError::from)?;
            match handshake.wait(left())? {
                HandshakeState::Startup(StartupState::Agreed) => {
                    let config = handshake.stream_config();
                    return Ok(qp.carried(|qp| handshake.start(qp, config))?);
                }
                _ => self.gone.fetch_add(1, Ordering::Relaxed),
            };
        }
        let (addr, patience) = (self.addr, self.options.patience);
        Err(IwarpError::Nobody { addr, patience, passed_over: self.passed_over() })
    }

    /// Connections so far that [`accept`](Self::accept) took and that came to nothing.
    pub fn passed_over(&self) -> u64 {
        self.inner.passed_over() + self.gone.load(Ordering::Relaxed)
    }
}

impl Qp<Rc, Init> {
    /// Connects, over TCP, from an address of this machine to a [`Listener`]: the device must be
    /// one of iWARP.
    ///
    /// # Errors
    /// [`IwarpError`]; the queue pair is destroyed.
    pub fn connect_tcp(
        self,
        local: IpAddr,
        peer: SocketAddr,
        options: &Options,
    ) -> Result<Qp<Rc, Rts>, IwarpError> {
        let until = Instant::now() + options.patience;
        let context = self.device().context().clone();
        let handshake = Handshake::connect(&context, local.into(), peer, options.startup(), &[])?;
        start(handshake, self, until, peer.to_string())
    }
}
