//! The loop: who is asked when, and what becomes of each answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use vernic_attach::interface::{InterfaceAnswer, InterfaceRequest};
use vernic_attach::{AttachError, IpInterface, PathAsked};
use vernic_ipoib::{
    Config, Counters, Destination, Event, Forward, Gateway, Interface, Mode, Received, Request,
};
use vernic_proto::Time;
use vernic_sys::{PollFd, Tun, poll};
use vernic_wire::ipoib::{Encapsulation, Scope, partition_of};
use vernic_wire::sa::JoinState;
use vernic_wire::smp::{Notice, TrapNumber};
use vernic_wire::{Gid, Pkey, Qkey};

use crate::connections::Connections;
use crate::datagrams::{self, Datagrams};
use crate::error::IpoibError;
use crate::host::{Host, NoDevice};
use crate::port::{PORT, Port, PortView};
use crate::questions::Questions;
use crate::subnet::{News, SubnetQuestions};

/// How often the port and the addresses of the host are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Packets of the host that are taken at once, so that others have their turn.
const PACKETS_AT_ONCE: usize = 64;
/// Troubles that one summary tells at most.
const MAX_TROUBLES: usize = 8;
/// Bytes of the longest packet of a host.
const MAX_PACKET: usize = 65_535;
/// Notices of a port that came or went (IBTA 13.4.8.2).
const PORT_NOTICES: [TrapNumber; 2] = [TrapNumber(64), TrapNumber(65)];
/// Notice of a group that was created.
const GROUP_CREATED: TrapNumber = TrapNumber(66);
/// Notice of a group that was deleted.
const GROUP_DELETED: TrapNumber = TrapNumber(67);
/// Where the details of these four have a GID.
const GID_AT: usize = 6;

/// What an interface is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Name of the fabric.
    pub fabric: String,
    /// Name of the host.
    pub host: String,
    /// Partition.
    pub pkey: Pkey,
    /// How the interface sends.
    pub mode: Mode,
    /// Routers on the link.
    pub gateways: Vec<Gateway>,
}

impl Options {
    /// Returns the usual ones: the default partition, datagrams, no routers.
    pub fn new(fabric: &str, host: &str) -> Self {
        Self {
            fabric: fabric.to_owned(),
            host: host.to_owned(),
            pkey: Pkey::DEFAULT,
            mode: Mode::Datagram,
            gateways: Vec::new(),
        }
    }
}

/// How an interface is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The longest IP packet; `None` while the link is down.
    pub mtu: Option<u32>,
    /// Neighbors whose address is known.
    pub neighbors: usize,
    /// What has been counted.
    pub counters: Counters,
    /// What has gone wrong since the last time, in words.
    pub troubles: Vec<String>,
}

/// An interface, and all that it needs.
pub struct Owner<H> {
    host: H,
    options: Options,
    view: PortView,
    datagrams: Datagrams,
    interface: Interface,
    port: Port,
    /// Why the last path that was asked for is not known.
    no_path: Option<AttachError>,
    start: Instant,
    next_look: Time,
    packet: Vec<u8>,
    troubles: Vec<String>,
    questions: Questions,
    connections: Option<Connections>,
    subnet: SubnetQuestions,
}

impl Owner<Tun> {
    /// Gives the host of a fabric a TUN device of that name; an empty one lets the kernel choose.
    ///
    /// # Errors
    /// [`IpoibError`].
    pub fn with_tun(options: Options, name: &str) -> Result<Self, IpoibError> {
        let tun =
            Tun::open(name).map_err(|source| IpoibError::Tun { name: name.to_owned(), source })?;
        let owner = Self::new(options, tun)?;
        let set_up = |what| {
            let name = owner.host.name().to_owned();
            move |source| IpoibError::SetUp { what, name, source }
        };
        owner.host.set_up().map_err(set_up("the state"))?;
        // The address that everybody can make of the port's GUID (RFC 4391, section 8).
        let ip = link_local(owner.port.gid);
        owner.host.set_address(ip.into(), 64).map_err(set_up("the link-local address"))?;
        Ok(owner)
    }
    /// Name of the TUN device.
    pub fn name(&self) -> &str {
        self.host.name()
    }
    /// Gives the TUN device an address.
    ///
    /// # Errors
    /// [`IpoibError::SetUp`].
    pub fn set_address(&self, address: vernic_ipoib::Address) -> Result<(), IpoibError> {
        let name = self.host.name().to_owned();
        let failed = |source| IpoibError::SetUp { what: "the address", name, source };
        self.host.set_address(address.ip, address.prefix_len).map_err(failed)
    }
}

impl Owner<NoDevice> {
    /// Gives the host of a fabric addresses without a device. They are found, and programs connect
    /// to them by `rdma_cm`; IP packets go nowhere.
    ///
    /// # Errors
    /// [`IpoibError`].
    pub fn without_device(
        options: Options,
        addresses: &[vernic_ipoib::Address],
    ) -> Result<Self, IpoibError> {
        let host = NoDevice::new(addresses.to_vec());
        let mut owner = Self::new(options, host.map_err(IpoibError::system("a descriptor"))?)?;
        let ip = link_local(owner.port.gid).into();
        owner.host.addresses.push(vernic_ipoib::Address { ip, prefix_len: 64 });
        Ok(owner)
    }
}

/// The link-local address of a port: its GUID, said to be unique in the world.
fn link_local(gid: Gid) -> std::net::Ipv6Addr {
    let mut octets = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    octets[8..].copy_from_slice(&gid.0[8..]);
    octets[8] |= 2;
    octets.into()
}

impl<H: Host> Owner<H> {
    /// Makes the interface of a host.
    ///
    /// # Errors
    /// [`IpoibError`].
    pub fn new(options: Options, host: H) -> Result<Self, IpoibError> {
        let Options { fabric, host: name, pkey, .. } = &options;
        let view = PortView::open(fabric, name, *pkey)?;
        let port = view.port()?;
        let at = (port.adapter, PORT, pkey.to_full());
        let questions = Questions::open(fabric, at).map_err(|error| match error {
            AttachError::Taken { pid, .. } => {
                IpoibError::Taken { host: name.clone(), pkey: *pkey, pid }
            }
            other => other.into(),
        })?;
        let device = datagrams::device_of(fabric, name)?;
        let datagrams = Datagrams::open(&device)?;
        let own = (port.adapter, datagrams.qpn());
        let connections = Connections::open(&device, datagrams.channel(), own);
        let mut config = Config::new(port.gid, port.lid, datagrams.qpn());
        (config.pkey, config.mode) = (*pkey, options.mode);
        let mut troubles = Vec::new();
        if let Err(error) = &connections {
            config.receive_mtu = None;
            troubles.push(format!("no connections, datagrams alone: {error}"));
        }
        let mut interface = Interface::new(config);
        interface.set_gateways(&options.gateways);
        Ok(Self {
            host,
            view,
            datagrams,
            interface,
            port: Port { is_active: false, ..port },
            no_path: None,
            start: Instant::now(),
            next_look: Time(0),
            packet: vec![0; MAX_PACKET],
            troubles,
            questions,
            connections: connections.ok(),
            subnet: SubnetQuestions::new(&options.fabric, &options.host)
                .map_err(IpoibError::system("waiting for the subnet"))?,
            options,
        })
    }

    /// Options of the interface.
    pub const fn options(&self) -> &Options {
        &self.options
    }
    /// Host of the interface.
    pub const fn host(&mut self) -> &mut H {
        &mut self.host
    }
    /// How the interface is, with the troubles since the last call.
    pub fn summary(&mut self) -> Summary {
        Summary {
            troubles: std::mem::take(&mut self.troubles),
            mtu: self.interface.mtu(),
            neighbors: self.interface.neighbors().count(),
            counters: *self.interface.counters(),
        }
    }

    /// Runs until `stop` is readable. `report` hears how it is, whenever it was looked at.
    ///
    /// # Errors
    /// [`IpoibError`]: the fabric process, the device or the host has gone.
    pub fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        mut report: impl FnMut(&Summary),
    ) -> Result<(), IpoibError> {
        let mut looked = self.next_look;
        loop {
            if self.step(Some(stop))? {
                return Ok(());
            }
            if looked != self.next_look {
                looked = self.next_look;
                report(&self.summary());
            }
        }
    }

    /// Does what there is to do, or waits for it. Returns whether `stop` is readable.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn step(&mut self, stop: Option<BorrowedFd<'_>>) -> Result<bool, IpoibError> {
        let now = self.now();
        if now >= self.next_look {
            self.next_look = now + LOOK.as_nanos() as u64;
            self.look(now)?;
        }
        if self.interface.next_deadline().is_some_and(|at| at <= now) {
            self.interface.handle_timeout(now);
        }
        self.take_questions(now);
        self.take_news(now);
        let received = self.take_messages(now)? + self.take_datagrams(now)?;
        let done = received + self.take_packets(now)?;
        self.serve(now)?;
        if done == 0 {
            return self.wait(stop);
        }
        Ok(false)
    }

    /// Notes what has gone wrong, for the next summary; the first ones count.
    fn note(&mut self, trouble: String) {
        if self.troubles.len() < MAX_TROUBLES {
            self.troubles.push(trouble);
        }
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self, stop: Option<BorrowedFd<'_>>) -> Result<bool, IpoibError> {
        self.datagrams.arm();
        self.connections.iter().for_each(Connections::arm);
        // What came before that would not wake us.
        let now = self.now();
        if self.take_messages(now)? + self.take_datagrams(now)? > 0 {
            self.serve(self.now())?;
            return Ok(false);
        }
        let next = self.interface.next_deadline().into_iter().fold(self.next_look, Time::min);
        let timeout = Duration::from_nanos(next.since(self.now()));
        let mut fds = vec![
            PollFd::readable(self.datagrams.as_fd().as_raw_fd()),
            PollFd::readable(self.questions.as_fd().as_raw_fd()),
            PollFd::readable(self.subnet.as_fd().as_raw_fd()),
        ];
        fds.extend(stop.map(|stop| PollFd::readable(stop.as_raw_fd())));
        fds.extend(self.connections.as_ref().map(|all| PollFd::readable(all.as_fd().as_raw_fd())));
        if self.has_room() || self.interface.mtu().is_none() {
            fds.push(PollFd::readable(self.host.as_fd().as_raw_fd()));
        }
        poll(&mut fds, Some(timeout)).map_err(IpoibError::system("waiting"))?;
        Ok(stop.is_some() && fds[3].is_ready())
    }

    /// Looks at what is not told by itself.
    fn look(&mut self, now: Time) -> Result<(), IpoibError> {
        let port = self.view.port()?;
        let old = std::mem::replace(&mut self.port, port);
        let is_usable = port.is_active && port.pkey_index.is_some();
        let is_new = (old.is_active, old.pkey_index) != (port.is_active, port.pkey_index);
        if is_new && port.is_active && port.pkey_index.is_none() {
            let (pkey, host) = (self.options.pkey, &self.options.host);
            self.note(format!(
                "the port of {host} is not in partition {pkey}: the subnet manager has to let it in"
            ));
        }
        if old.reregisters != port.reregisters {
            self.interface.handle_reregister(now);
        }
        // A partition at another place of the table needs a queue pair that knows that.
        if old.pkey_index != port.pkey_index {
            self.interface.handle_port(now, false, port.gid, port.lid);
        }
        self.interface.handle_port(now, is_usable, port.gid, port.lid);
        self.look_at_addresses();
        if let Err(error) = self.questions.accept_again() {
            self.note(format!("programs cannot ask this interface: {error}"));
        }
        Ok(())
    }
    fn look_at_addresses(&mut self) {
        match self.host.addresses() {
            Ok(addresses) => self.interface.set_addresses(&addresses),
            Err(error) => self.note(format!("the addresses of the host are not known: {error}")),
        }
    }

    fn take_questions(&mut self, now: Time) {
        for (program, request) in self.questions.take() {
            // The last look may be older than an address of the question.
            self.look_at_addresses();
            match request {
                InterfaceRequest::About => {
                    let answer = InterfaceAnswer::Interface(self.about());
                    self.questions.answer(program, Ok(answer));
                }
                InterfaceRequest::Resolve(ip) => {
                    let answered = self.interface.resolve(now, ip);
                    self.questions.wait(program, answered);
                }
            }
        }
    }
    /// What programs are told of the interface.
    fn about(&self) -> IpInterface {
        let addresses = self.interface.addresses().iter();
        IpInterface {
            guid: self.port.adapter,
            port: PORT,
            pkey: self.options.pkey.to_full(),
            gid: self.port.gid,
            mtu: self.interface.mtu(),
            addresses: addresses.map(|address| (address.ip, address.prefix_len)).collect(),
            group: self.interface.group().copied(),
        }
    }

    /// Whether a packet could be sent, whatever way it takes.
    fn has_room(&self) -> bool {
        self.datagrams.has_room() && self.connections.as_ref().is_none_or(Connections::has_room)
    }

    /// Takes news of connections, and their messages.
    fn take_messages(&mut self, now: Time) -> Result<usize, IpoibError> {
        let Self { interface, host, connections: Some(connections), port, .. } = self else {
            return Ok(0);
        };
        let events = connections.handle_events(interface, now, port.pkey_index.unwrap_or(0));
        let taken = connections.receive(interface, now, |interface, id, bytes| {
            if let Received::Deliver(packet) = interface.handle_message(id, bytes) {
                deliver(host, packet);
            }
        });
        Ok(events + taken.map_err(IpoibError::device("the connections"))?)
    }

    fn take_datagrams(&mut self, now: Time) -> Result<usize, IpoibError> {
        let Self { interface, host, datagrams, port, .. } = self;
        let taken = datagrams.receive((port.gid, port.lid), |source, bytes| {
            if let Received::Deliver(packet) = interface.handle_datagram(now, source, bytes) {
                deliver(host, packet);
            }
        });
        taken.map_err(IpoibError::device("the queue pair of datagrams"))
    }

    fn take_packets(&mut self, now: Time) -> Result<usize, IpoibError> {
        for count in 0..PACKETS_AT_ONCE {
            if self.interface.mtu().is_some() && !self.has_room() {
                return Ok(count);
            }
            let len = match self.host.recv(&mut self.packet) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(IpoibError::system("the host's packets")(error)),
            };
            let packet = &self.packet[..len];
            if let Forward::Send(destination, encapsulation) = self.interface.handle_ip(now, packet)
            {
                let mut header = [0; Encapsulation::LEN];
                encapsulation.emit(&mut header);
                let parts = [&header[..], packet];
                send((&mut self.datagrams, &mut self.connections), destination, parts)?;
            }
        }
        Ok(PACKETS_AT_ONCE)
    }

    /// Does what the machine wants done.
    fn serve(&mut self, now: Time) -> Result<(), IpoibError> {
        while let Some(packet) = self.interface.poll_deliver() {
            deliver(&mut self.host, &packet);
        }
        while let Some(request) = self.interface.poll_request() {
            self.request(now, request);
        }
        while let Some(event) = self.interface.poll_event() {
            self.take_event(event)?;
        }
        // Behind the events: the queue pair may have come up.
        while let Some(transmit) = self.interface.poll_transmit() {
            let parts = [&transmit.bytes[..], &[]];
            send((&mut self.datagrams, &mut self.connections), transmit.destination, parts)?;
        }
        Ok(())
    }

    fn request(&mut self, now: Time, request: Request) {
        match request {
            Request::Join { record, components } => {
                let mgid = record.mgid;
                if let Err(error) = self.subnet.join(&record, components) {
                    self.note(format!("group {mgid} is not asked for: {error}"));
                    self.interface.handle_joined(now, mgid, None);
                } else if record.join_state == JoinState::FULL_MEMBER {
                    // A member sends as well.
                    self.subnet.leave(mgid, JoinState::SEND_ONLY_NON_MEMBER);
                }
            }
            Request::Leave { record } => self.subnet.leave(record.mgid, record.join_state),
            Request::Attach { mgid, mlid } => self.datagrams.set_member(mgid, mlid, true),
            Request::Detach { mgid, mlid } => self.datagrams.set_member(mgid, mlid, false),
            Request::Path { dgid, pkey } => {
                let (sgid, service, traffic_class) = (self.port.gid, None, None);
                let asked = PathAsked { sgid, dgid, pkey, service, traffic_class };
                if let Err(error) = self.subnet.ask_path(&asked) {
                    self.note(format!("the path to {dgid} is not asked for: {error}"));
                    self.no_path = Some(error);
                    self.interface.handle_path(now, dgid, None);
                }
            }
            Request::Connect { id, peer, path, private_data } => {
                let with = (private_data, self.port.pkey_index.unwrap_or(0));
                let asked = self.connections.as_mut().map(|all| all.connect(id, peer, &path, with));
                if let Some(Err(error)) = &asked {
                    self.note(format!("no connection to {peer}: {error}"));
                }
                if !matches!(asked, Some(Ok(()))) {
                    self.interface.handle_disconnected(now, id);
                }
            }
            Request::Disconnect { id } => {
                self.connections.iter_mut().for_each(|all| all.disconnect(now, id));
            }
        }
    }

    fn take_event(&mut self, event: Event) -> Result<(), IpoibError> {
        match event {
            Event::Up { mtu, qkey } => {
                tracing::info!(mtu, %qkey, "the link is up");
                self.set_up(mtu, qkey)?;
            }
            Event::Down => tracing::info!("the link is down"),
            Event::Resolved { ip, answer } => {
                self.questions.resolved(ip, answer, self.no_path.as_ref());
            }
        }
        Ok(())
    }
    fn set_up(&mut self, mtu: u32, qkey: Qkey) -> Result<(), IpoibError> {
        self.host.set_mtu(mtu).map_err(IpoibError::system("setting the MTU"))?;
        self.datagrams.start(qkey, self.port.pkey_index.unwrap_or(0))?;
        if let Err(error) = self.subnet.hear_notices() {
            self.note(format!("notices are not heard: {error}"));
        }
        Ok(())
    }

    /// Takes what subnet administration says.
    fn take_news(&mut self, now: Time) {
        for news in self.subnet.take() {
            match news {
                News::Member { mgid, how, answer } => {
                    if let Err(error) = &answer
                        // A sender asks for groups that need not be there.
                        && how == JoinState::FULL_MEMBER
                    {
                        self.note(format!("group {mgid} is not joined: {error}"));
                    }
                    self.interface.handle_joined(now, mgid, answer.ok());
                }
                News::Path { dgid, answer } => {
                    let (path, error) = match answer {
                        Ok(path) => (Some(path), None),
                        Err(error) => (None, Some(error)),
                    };
                    if let Some(error) = &error {
                        self.note(error.to_string());
                    }
                    self.no_path = error;
                    self.interface.handle_path(now, dgid, path);
                }
                News::Notice(Ok(notice)) => self.take_notice(now, &notice),
                // Groups that come and go are noticed when they are asked for again.
                News::Notice(Err(error)) => self.note(format!("notices are not heard: {error}")),
            }
        }
    }

    fn take_notice(&mut self, now: Time, notice: &Notice) {
        let Some(gid) = notice.details[GID_AT..].first_chunk().map(|gid| Gid(*gid)) else { return };
        let is_ours = partition_of(gid) == Some((self.options.pkey.to_full(), Scope::LINK_LOCAL));
        match notice.number {
            GROUP_CREATED if is_ours => self.interface.handle_group_created(gid),
            GROUP_DELETED if is_ours => self.interface.handle_group_deleted(now, gid),
            number if PORT_NOTICES.contains(&number) => self.interface.forget_path(gid),
            _ => {}
        }
    }
}

/// A packet that the host does not take is lost, as on any wire.
fn deliver(host: &mut impl Host, packet: &[u8]) {
    if let Err(error) = host.send(packet) {
        tracing::debug!(%error, "the host did not take a packet");
    }
}

fn send(
    (datagrams, connections): (&mut Datagrams, &mut Option<Connections>),
    destination: Destination,
    parts: [&[u8]; 2],
) -> Result<(), IpoibError> {
    let (route, qpn, qkey) = match (destination, connections) {
        (Destination::Datagram { route, qpn, qkey }, _) => (route, qpn, qkey),
        (Destination::Connection(id), Some(connections)) => {
            let sent = connections.send(id, parts);
            return sent.map_err(IpoibError::device("sending by a connection"));
        }
        (Destination::Connection(_), None) => return Ok(()),
    };
    let sent = datagrams.send((route, qpn, qkey), parts);
    match sent {
        // A way that there is not: the destination has gone, or our port has.
        Err(vernic::Error::Create(error)) => {
            tracing::debug!(?route, %error, "a datagram is not sent");
            Ok(())
        }
        other => other.map_err(IpoibError::device("sending a datagram")),
    }
}
