//! Devices: what there is, opening one, asking it.

use std::net::IpAddr;
use std::sync::Arc;

use vernic_engine::{
    self as engine, Clocks, Context, DeviceAttr, DeviceCounters, DeviceInfo, DeviceMemory,
    GidEntry, PortAttr, Transport,
};

use crate::{
    AddressVector, Config, CreateError, Error, Gid, OpenError, Path, PathError, PortNum,
    StaticRate, SubnetPath, WhyWire,
};

/// An open device: one per usable netdev of this machine. A clone is another handle to it; it
/// closes with the last handle and the last object that was made from it.
///
/// ```
/// use vernic::Device;
/// for info in Device::list()? {
///     println!("{} is {}, addresses {:?}", info.name, info.port.netdev, info.port.addresses);
/// }
/// let device = Device::open("lo")?; // or its Vernic name
/// println!("{:?}", device.port());
/// for row in device.gid_table() {
///     println!("GID {}: {}", row.index, row.gid);
/// }
/// # Ok::<(), vernic::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<Context>,
    /// The address that it was opened for.
    address: Option<IpAddr>,
    /// The port that its queue pairs use.
    port: PortNum,
}

impl Device {
    /// The RoCE devices of this machine, the one of the default route first, `lo` last: each netdev
    /// that is up and has an address. Opens none. Beside each stands an iWARP device
    /// ([`DeviceInfo::into_iwarp`]), which is for connections by address ([`cm`](crate::cm)).
    ///
    /// # Errors
    /// [`OpenError`] if the system does not list its netdevs.
    pub fn list() -> Result<Vec<DeviceInfo>, OpenError> {
        engine::devices()
    }

    /// The devices that a program with these settings sees: those of the setting `transport`, or
    /// the one that the setting `device` names.
    ///
    /// # Errors
    /// [`OpenError`] if the system does not list its netdevs, or the one named is not there.
    pub fn list_for(config: &Config) -> Result<Vec<DeviceInfo>, OpenError> {
        engine::configured_devices(config)
    }

    /// Why [`Device::list`] is empty: what is in the way of each netdev, and what helps.
    ///
    /// # Errors
    /// [`OpenError`] if the system does not list its netdevs.
    pub fn why_none() -> Result<OpenError, OpenError> {
        engine::no_device()
    }

    /// What the processes of this user have on the device of this name: counters of the port, queue
    /// pairs. For root, the processes of all users.
    ///
    /// # Errors
    /// A process did not tell within 2 s: it is stopped, say.
    pub fn processes(name: &str) -> std::io::Result<Vec<engine::ProcessStatus>> {
        engine::processes(name)
    }

    /// What the processes of this user have on all their devices: one entry for each device that a
    /// process has open. And how many did not tell, since they are stopped or very busy. For root,
    /// the processes of all users. Processes of other network namespaces are not seen.
    ///
    /// # Errors
    /// `/proc/net/unix` cannot be read.
    pub fn processes_of_all() -> std::io::Result<(Vec<engine::ProcessStatus>, usize)> {
        engine::processes_of_all()
    }

    /// The latest send requests of the queue pairs of this user's processes, with the times of
    /// their stages, and how many processes did not tell. For root, of the processes of all users.
    /// `pid` and `qpn` choose one process and one queue pair; without the latter, a process tells
    /// of the first 32 of each device that have sent anything. Processes of other network
    /// namespaces are not seen.
    ///
    /// A process notes times for a second after each call: call every 100 ms, say. The first call
    /// finds what is outstanding.
    ///
    /// # Errors
    /// `/proc/net/unix` cannot be read.
    pub fn trace_requests(
        pid: Option<u32>,
        qpn: Option<engine::Qpn>,
    ) -> std::io::Result<(Vec<engine::TracedQp>, usize)> {
        engine::trace_requests(pid, qpn)
    }

    /// Opens the configured device, or the first of [`Device::list`].
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Open`]: no netdev that is up, UDP port 4791 in use by others, a
    /// netdev with too small an MTU; each says what to do.
    pub fn open_default() -> Result<Self, Error> {
        Ok(Self::new(Context::open(None, Config::load()?)?))
    }

    /// Opens a device by its name (`vernic0`) or that of its netdev (`eth0`), with the settings of
    /// file and environment.
    ///
    /// # Errors
    /// As [`Device::open_default`]; a wrong name is answered with those that exist.
    pub fn open(name: &str) -> Result<Self, Error> {
        Ok(Self::new(Context::open(Some(name), Config::load()?)?))
    }

    /// Opens the device that has an IP address, which becomes the address of its queue pairs: the
    /// answer to "which device and which GID index?" where a TCP connection to the peer exists.
    ///
    /// # Errors
    /// As [`Device::open`]; [`OpenError::NoSuchAddress`] if no device has it. The setting `device`
    /// plays no part: the address decides.
    ///
    /// ```no_run
    /// # use vernic::Device;
    /// let stream = std::net::TcpStream::connect("peer:18515")?;
    /// let device = Device::open_for(stream.local_addr()?.ip())?;
    /// # Ok::<(), vernic::Error>(())
    /// ```
    pub fn open_for(address: IpAddr) -> Result<Self, Error> {
        let address = address.to_canonical();
        let mut device = Self::open(&engine::device_with(address)?.name)?;
        device.address = Some(address);
        Ok(device)
    }

    /// Opens the device that `config` names, with exactly its settings: neither file nor
    /// environment is looked at.
    ///
    /// # Errors
    /// As [`Device::open`].
    ///
    /// ```
    /// use vernic::{Config, Device, Mtu};
    /// let config = Config { device: "lo".into(), mtu: Some(Mtu::B1024), ..Config::default() };
    /// let device = Device::open_with(config)?;
    /// assert_eq!(device.port().active_mtu, Mtu::B1024);
    /// # Ok::<(), vernic::Error>(())
    /// ```
    pub fn open_with(config: Config) -> Result<Self, Error> {
        Ok(Self::new(Context::open(None, config)?))
    }

    fn new(context: Arc<Context>) -> Self {
        Self::of(context, None)
    }

    /// A handle to an open device, whose queue pairs have `address` unless told otherwise.
    pub(crate) fn of(context: Arc<Context>, address: Option<IpAddr>) -> Self {
        Self { context, address, port: PortNum(1) }
    }

    /// A handle to the device at another of its ports: what is made from it has its queue pairs
    /// there, and [`port`](Self::port), the GIDs and the paths are those of that port. Adapters of
    /// an InfiniBand fabric may have several; every other device has port 1 alone, and a handle is
    /// at port 1 unless told otherwise.
    ///
    /// # Errors
    /// [`PathError`] if the device has no such port.
    ///
    /// ```
    /// use vernic::{Device, PortNum};
    /// let device = Device::open("lo")?;
    /// assert_eq!(device.at_port(PortNum(1))?.port().port, PortNum(1));
    /// assert!(device.at_port(PortNum(2)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_port(&self, port: PortNum) -> Result<Self, PathError> {
        self.context.port_attr(port)?;
        Ok(Self { port, ..self.clone() })
    }

    /// The port that queue pairs use.
    pub(crate) const fn port_num(&self) -> PortNum {
        self.port
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The messages of communication management, for protocols that name their services themselves
    /// (IP over InfiniBand, storage). Programs that connect by IP address use [`cm`](crate::cm).
    pub fn connection_manager(&self) -> &engine::CmAgent {
        self.context.cm()
    }

    /// Whether it was opened before this process was forked. Such a device stays the parent's: here
    /// its objects do nothing, and may be dropped. Open it again to use it in this process.
    pub fn is_orphan(&self) -> bool {
        self.context.is_orphan()
    }

    /// The clock of completions ([`Wc::timestamp_ns`](crate::Wc::timestamp_ns)) and the time of
    /// day, both now.
    pub fn clocks(&self) -> Clocks {
        self.context.clocks()
    }

    /// Its names, addresses and netdev, as they were when it was opened.
    pub fn info(&self) -> &DeviceInfo {
        self.context.info()
    }

    /// The settings that it was opened with.
    pub fn config(&self) -> &Config {
        self.context.config()
    }

    /// Its attributes and limits (IBTA 11.2.1.2).
    pub fn attributes(&self) -> DeviceAttr {
        self.context.device_attr()
    }

    /// Its port: state, MTUs, sizes of its tables.
    pub fn port(&self) -> PortAttr {
        match self.context.port_attr(self.port) {
            Ok(attr) => attr,
            Err(error) => unreachable!("a handle is at a port of its device: {error}"),
        }
    }

    /// The filled rows of the port's GID table: its addresses.
    pub fn gid_table(&self) -> Vec<GidEntry> {
        let mut rows = self.context.gid_table();
        rows.retain(|row| row.port == self.port);
        rows
    }

    /// The GID in a row of the table.
    pub fn gid(&self, index: u8) -> Option<Gid> {
        self.context.gid_entry(self.port, index).map(|row| row.gid)
    }

    /// The row that queue pairs use unless told otherwise: that of the address for which the device
    /// was opened, else the first IPv4 address, else the first IPv6 address that is not link-local,
    /// else the first row.
    pub fn default_gid_index(&self) -> Option<u8> {
        let rows = self.gid_table();
        let first = |fits: &dyn Fn(IpAddr) -> bool| {
            rows.iter().find(|row| fits(row.gid.to_ip())).map(|row| row.index)
        };
        first(&|ip| self.address == Some(ip))
            .or_else(|| first(&|ip| ip.is_ipv4()))
            .or_else(|| first(&|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())))
            .or_else(|| first(&|_| true))
    }

    /// The row to reach `gid` from: the default row if it is of the same IP version, else the first
    /// that is.
    pub fn gid_index_for(&self, gid: Gid) -> Option<u8> {
        let ipv4 = gid.to_ip().is_ipv4();
        let same = |index: &u8| self.gid(*index).is_some_and(|own| own.to_ip().is_ipv4() == ipv4);
        let any = || self.gid_table().iter().map(|row| row.index).find(same);
        self.default_gid_index().filter(same).or_else(any)
    }

    /// The path to a GID. On an InfiniBand device this asks subnet administration, and waits for
    /// its answer; [`Qp::connect`](crate::Qp::connect) and
    /// [`Pd::create_ah`](crate::Pd::create_ah) do so themselves. On other devices the GID says it
    /// all.
    ///
    /// # Errors
    /// [`PathError`]: subnet administration does not answer, or has no path.
    pub fn path_to(&self, gid: Gid) -> Result<Path, PathError> {
        self.complete(gid, &Path::default())
    }

    /// What [`path_to`](Self::path_to) finds, from the row and in the partition of `path`.
    fn complete(&self, gid: Gid, path: &Path) -> Result<Path, PathError> {
        let gid_index = path.gid_index.or_else(|| self.gid_index_for(gid));
        if self.info().transport != Transport::InfiniBand {
            return Ok(Path { gid_index, ..*path });
        }
        let pkey_index = path.pkey_index;
        let record = self.context.path_to(self.port, gid_index.unwrap_or(0), pkey_index, gid)?;
        let lmc = self.port().link.map_or(0, |link| link.lmc.min(7));
        let subnet = SubnetPath {
            dlid: record.dlid,
            path_bits: record.slid.value() as u8 & ((1 << lmc) - 1),
            is_global: record.hop_limit > 1,
        };
        Ok(Path {
            gid_index,
            hop_limit: record.hop_limit,
            traffic_class: record.traffic_class,
            flow_label: record.flow_label,
            pkey_index,
            static_rate: StaticRate(record.rate.value).known_or_max(),
            service_level: record.service_level.value(),
            subnet: Some(subnet),
        })
    }

    /// The address vector of a path to `dgid`.
    pub(crate) fn vector(&self, dgid: Gid, path: &Path) -> Result<AddressVector, PathError> {
        let mut path = *path;
        if self.info().transport == Transport::InfiniBand && path.subnet.is_none() {
            let found = self.complete(dgid, &path)?;
            (path.subnet, path.service_level) = (found.subnet, found.service_level);
            if path.static_rate == StaticRate::MAX {
                path.static_rate = found.static_rate;
            }
        }
        let mut av = AddressVector {
            dgid,
            sgid_index: path.gid_index.unwrap_or_else(|| self.gid_index_for(dgid).unwrap_or(0)),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            static_rate: path.static_rate,
            sl: path.service_level,
            port: self.port,
            ..AddressVector::default()
        };
        if let Some(subnet) = path.subnet {
            (av.dlid, av.path_bits) = (subnet.dlid, subnet.path_bits);
            if !subnet.is_global {
                av.dgid = Gid::default();
            }
        }
        Ok(av)
    }

    /// Memory inside the device, `len` zero bytes, to be copied in and out, and reached by work
    /// requests and peers once [registered](crate::Pd::register_dm).
    ///
    /// # Errors
    /// [`CreateError::Limit`] for no bytes or more than are left
    /// ([`MAX_DM_BYTES`](crate::limits::MAX_DM_BYTES) in all), [`CreateError::Os`].
    pub fn alloc_dm(&self, len: u64) -> Result<Arc<DeviceMemory>, CreateError> {
        self.context.alloc_dm(len, 0)
    }

    /// Totals since it was opened: packets, bytes, system calls, and one count per reason for which
    /// a packet was dropped. Briefly stops the device: not for the data path.
    pub fn counters(&self) -> DeviceCounters {
        self.context.counters()
    }

    /// Why its packets never go through memory that is shared with other processes of this host;
    /// `None` if they may.
    pub fn why_wire(&self) -> Option<WhyWire> {
        self.context.why_wire()
    }

    /// Sends and receives once on this thread, for programs that spin on memory instead of polling
    /// a completion queue. Never blocks.
    pub fn progress(&self) {
        self.context.progress();
    }
}
