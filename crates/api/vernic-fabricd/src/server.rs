//! The loop of a fabric process.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vernic_attach::{MAX_MESSAGE, control as messages};
use vernic_fabric::Time;
use vernic_fabric::attributes::NodeKind;
use vernic_fabric::manager::ManagerView;
use vernic_fabric::subnet::{NodeId, SubnetConfig};
use vernic_fabric::topology::Topology;
use vernic_sys::{self as sys, OwnFd, PollFd};
use vernic_wire::PortNum;

use crate::cables::Cables;
use crate::capture::Capture;
use crate::clients::{Client, Clients, Role};
use crate::commands::Desk;
use crate::control::SubnetManager;
use crate::deliver;
use crate::door::{Door, is_exhausted};
use crate::error::FabricError;
use crate::issm::IssmFiles;
use crate::key::Key;
use crate::load::{self, Load};
use crate::manager::{ManagerOptions, OwnManager};
use crate::questions;
use crate::requests::{self, End};
use crate::world::{News, World};

/// The keys of the door, of the signals, and of the files that subnet managers open.
const DOOR: u64 = 0;
const SIGNALS: u64 = 1;
const ISSM: u64 = 2;

/// Connections that are accepted at a time, so that others have their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// Messages of one connection that are taken at a time: half a megabyte of packets.
const READS_PER_TURN: usize = 8;

/// Nanoseconds between two calls of the owner: four times a second is what an eye follows.
const TICK_NS: u64 = 250_000_000;

/// Nanoseconds after which a port is looked at again whose next packet waits for a program.
const WAIT_NS: u64 = 5_000_000;

/// Nanoseconds for which the last packets of a program that has ended wait for room at its port.
const LAST_PACKETS_NS: u64 = 1_000_000_000;

/// How a fabric process is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the fabric.
    pub name: String,
    /// Folder of its socket.
    pub folder: PathBuf,
    /// File for a capture of all packets.
    pub capture: Option<PathBuf>,
    /// How long the loop looks for news without sleeping, after there were some. A sleep costs a
    /// packet some 50 us, a look the processor.
    pub spin: Duration,
    /// Sizes and times of the subnet.
    pub subnet: SubnetConfig,
    /// What the own subnet manager is told; `None` for no own manager.
    pub manager: Option<ManagerOptions>,
}

impl Options {
    /// Returns the usual ones.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            folder: vernic_attach::path::folder(),
            capture: None,
            spin: Duration::from_micros(10),
            subnet: SubnetConfig::UNPACED,
            manager: None,
        }
    }
}

/// What is to be seen of a fabric at a glance.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Seconds since the start.
    pub uptime: Duration,
    /// Cables in the plan.
    pub cables: usize,
    /// Cables with both ends Active.
    pub active: usize,
    /// The subnet manager that ports know.
    pub manager: Option<SubnetManager>,
    /// What the own subnet manager does, if there is one.
    pub own_manager: Option<ManagerView>,
    /// Programs that are attached.
    pub programs: usize,
    /// Agents of management.
    pub agents: usize,
    /// Packets per second, over all cables.
    pub packets_per_s: f64,
    /// Bytes of data per second, over all cables.
    pub bytes_per_s: f64,
    /// Packets in the capture, if there is one.
    pub captured: Option<u64>,
    /// Why the capture has ended early.
    pub trouble: Option<String>,
}

/// A fabric process.
#[derive(Debug)]
pub struct Server {
    world: World,
    clients: Clients,
    door: Door,
    /// Whether the door is not looked at until the next tick, for want of descriptors.
    door_rests: bool,
    issm: IssmFiles,
    signals: Option<OwnFd>,
    start: Instant,
    spin: Duration,
    load: Load,
    cables: Cables,
    capture: Option<Capture>,
    inbox: Vec<u8>,
    events: Vec<(u64, u32)>,
    stops: bool,
    next_tick: Time,
    last_news: Time,
}

impl Server {
    /// Makes the fabric of a plan, and listens for programs.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn new(plan: Topology, options: Options) -> Result<Self, FabricError> {
        let door = Door::open(&options.folder, &options.name)?;
        sys::raise_descriptor_limit();
        let clients = Clients::new().map_err(FabricError::io("wait for connections"))?;
        let watch = clients.watch(door.as_fd(), DOOR);
        watch.map_err(FabricError::io("wait for connections"))?;
        let issm = IssmFiles::new(&options.folder, &options.name)?;
        let watch = clients.watch(issm.as_fd(), ISSM);
        watch.map_err(FabricError::io("watch the files of subnet managers"))?;
        let mut world = World::new(&options.name, plan, options.subnet);
        if let Some(manager) = options.manager
            && !world.start_manager(manager, Time(0))
        {
            return Err(FabricError::NoHost);
        }
        let capture = match &options.capture {
            None => None,
            Some(path) => {
                let started = Capture::start(&mut world.subnet, path, Time(0));
                let failed = |source| FabricError::Capture { path: path.clone(), source };
                Some(started.map_err(failed)?)
            }
        };
        Ok(Self {
            world,
            clients,
            door,
            door_rests: false,
            issm,
            signals: None,
            start: Instant::now(),
            spin: options.spin,
            load: Load::default(),
            cables: Cables::default(),
            capture,
            inbox: vec![0; MAX_MESSAGE],
            events: Vec::new(),
            stops: false,
            next_tick: Time(0),
            last_news: Time(0),
        })
    }
    /// Ends the loop in order when a signal asks this process to end. To be called before other
    /// threads are started.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn end_on_signals(&mut self) -> Result<(), FabricError> {
        let signals = sys::termination().map_err(FabricError::io("wait for signals"))?;
        let watch = self.clients.watch(signals.as_fd(), SIGNALS);
        watch.map_err(FabricError::io("wait for signals"))?;
        self.signals = Some(signals);
        Ok(())
    }
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        self.door.path()
    }
    /// Returns how many switches, adapters and cables there are.
    pub fn size(&self) -> (usize, usize, usize) {
        let plan = &self.world.plan;
        let cables = plan.cables().len();
        (plan.count(NodeKind::Switch), plan.count(NodeKind::Adapter), cables)
    }
    /// Runs until a signal or a request ends it. Calls `each` four times a second.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn run(&mut self, mut each: impl FnMut(&Summary)) -> Result<(), FabricError> {
        // Programs that spin may share a core with this thread, and wait for their packets.
        if let Err(error) = sys::ask_for_short_slices() {
            tracing::debug!(%error, "no short slices of the processor for the fabric");
        }
        while !self.stops {
            let now = self.now();
            let news = self.take_events(now)?;
            self.turn(now);
            if news {
                self.last_news = now;
            }
            if now >= self.next_tick {
                self.next_tick = now + TICK_NS;
                each(&self.summary(now));
                self.look_at_doors();
            }
            self.sleep()?;
        }
        let capture = self.capture.take().map(|capture| capture.stop(&mut self.world.subnet));
        capture.transpose().map(drop).map_err(FabricError::io("complete the capture"))
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }
    /// Handles what is ready. Returns whether there was something.
    fn take_events(&mut self, now: Time) -> Result<bool, FabricError> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let ready = sys::epoll_ready(self.clients.epoll().as_fd(), |key, what| {
            events.push((key, what));
        });
        match ready {
            Err(error) if !sys::is_for_later(&error) => {
                return Err(FabricError::io("wait for connections")(error));
            }
            _ => {}
        }
        for (key, what) in &events {
            match *key {
                DOOR => self.accept(),
                SIGNALS => self.stops = true,
                ISSM => self.issm.handle(&mut self.world, now),
                bits if Cables::has_key(bits) => {
                    let epoll = self.clients.epoll().as_fd();
                    self.cables.handle(&mut self.world.subnet, epoll, bits, *what, now);
                }
                bits => {
                    let key = Key::from_bits(bits);
                    if self.handle_ready(key, *what, now).is_err() {
                        self.end(key, now);
                    }
                }
            }
        }
        let any = !events.is_empty();
        self.events = events;
        Ok(any)
    }
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.door.accept() {
                Ok(Some((socket, pid))) => {
                    // Without room for it, the connection closes behind the reason.
                    match self.clients.check_room() {
                        Ok(()) => drop(self.clients.add(socket, Role::New, pid)),
                        Err(error) => drop(socket.send(&requests::no_room(&error).emit())),
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    if is_exhausted(&error) {
                        tracing::warn!(%error, "connections of programs wait");
                        self.clients.set_watched(self.door.as_fd(), DOOR, false);
                        self.door_rests = true;
                    }
                    return;
                }
            }
        }
    }
    /// Looks again at doors that were left alone for want of descriptors.
    fn look_at_doors(&mut self) {
        if std::mem::take(&mut self.door_rests) {
            self.clients.set_watched(self.door.as_fd(), DOOR, true);
        }
        self.cables.look_at_doors(self.clients.epoll().as_fd());
    }
    /// Handles what a connection is ready for.
    fn handle_ready(&mut self, key: Key, events: u32, now: Time) -> Result<(), End> {
        let has = |event: i32| events & event as u32 != 0;
        let client = self.clients.change(key).ok_or(End)?;
        // What waits for a program that has gone must not keep its last messages from being read.
        if has(libc::EPOLLOUT) && !has(libc::EPOLLHUP) {
            client.flush()?;
            let Client { socket, role, wants_room, .. } = client;
            if let Role::Program(program) = role
                && !*wants_room
            {
                *wants_room = !program.flush(socket, now);
            }
            requests::tell_news(&self.world, &mut self.clients, key)?;
        }
        let client = self.clients.get(key).ok_or(End)?;
        match client.reads {
            true if has(libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) => self.read(key, now),
            false if has(libc::EPOLLHUP | libc::EPOLLERR) => {
                // Its last packets wait for room at the port.
                client.hung_up.get_or_insert(now);
                Ok(())
            }
            _ => Ok(()),
        }
    }
    /// Takes messages of a connection.
    fn read(&mut self, key: Key, now: Time) -> Result<(), End> {
        let mut inbox = std::mem::take(&mut self.inbox);
        let mut result = Ok(());
        for _ in 0..READS_PER_TURN {
            let Some(client) = self.clients.get(key).filter(|client| client.reads) else { break };
            let message = match client.socket.recv(&mut inbox) {
                Ok(message) => message,
                Err(error) if sys::is_for_later(&error) => break,
                // The program has gone with packets that it did not read. The system says so once,
                // before it yields what the program has sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue,
                Err(_) => {
                    result = Err(End);
                    break;
                }
            };
            result = self.handle_message(key, message, now);
            if result.is_err() {
                break;
            }
        }
        self.inbox = inbox;
        result
    }
    fn handle_message(&mut self, key: Key, message: &[u8], now: Time) -> Result<(), End> {
        let (world, clients) = (&mut self.world, &mut self.clients);
        match clients.get(key).ok_or(End)?.role {
            Role::New => requests::hello(clients, key, message),
            Role::DataHello => requests::attach(world, clients, key, message),
            Role::Program(_) => requests::program(world, clients, key, message, now),
            Role::Mad(_) => requests::mad(world, clients, key, message, now),
            Role::Datagrams { .. } => requests::datagram(world, clients, key, message),
            Role::Refused => Ok(()),
            Role::Question(_) => questions::ask(world, clients, key, message, now),
            Role::Control => {
                let request = messages::parse_request(message).ok_or(End)?;
                let (load, capture, stops) = (&self.load, &mut self.capture, &mut self.stops);
                let cables = &mut self.cables;
                let mut desk = Desk { world, clients, load, cables, capture, stops, now };
                let answer = desk.handle(request);
                let client = self.clients.change(key).ok_or(End)?;
                for part in messages::answer(&answer) {
                    client.send(part)?;
                }
                Ok(())
            }
        }
    }
    /// Ends a connection, and undoes all that was done over it.
    fn end(&mut self, key: Key, now: Time) {
        let Some(client) = self.clients.remove(key) else { return };
        match client.role {
            Role::Program(program) => requests::detach(&mut self.world, &program, now),
            Role::Mad(Some(open)) => {
                requests::close_port(&mut self.world, open, now);
                self.clients.remove(open.datagrams);
            }
            Role::Datagrams { requests, .. } => self.end(requests, now),
            Role::Question(Some(asked)) => questions::end(&mut self.world, key, asked),
            Role::New
            | Role::DataHello
            | Role::Mad(None)
            | Role::Control
            | Role::Refused
            | Role::Question(None) => {}
        }
    }
    /// Moves what can move: packets into the fabric, through it, and out of it.
    fn turn(&mut self, now: Time) {
        self.world.subnet.run(now);
        self.retry_held(now);
        while let Some(end) = self.world.subnet.poll_ready() {
            deliver::port(&mut self.world, &mut self.clients, end, now);
        }
        if !self.world.early.is_empty() {
            deliver::early(&mut self.world, &mut self.clients, now);
        }
        self.retry_waiting(now);
        let mut gone = Vec::new();
        self.serve_agents(&mut gone, now);
        self.world.serve_host_cms(now);
        self.cables.transmit(&mut self.world.subnet, self.clients.epoll().as_fd(), now);
        self.flush(now);
        if self.tell_changes(&mut gone) {
            self.serve_agents(&mut gone, now);
        }
        for key in gone {
            self.end(key, now);
        }
        self.clients.tell_changes();
    }
    /// Sends and delivers datagrams of agents, and answers of subnet administration.
    fn serve_agents(&mut self, gone: &mut Vec<Key>, now: Time) {
        let (world, clients) = (&mut self.world, &mut self.clients);
        world.serve_agents(now, |key, news| {
            let told = match news {
                News::Datagram(mad) => requests::deliver(clients, key, &mad),
                News::Answer(answer) => questions::answer(clients, key, answer),
            };
            if told.is_err() {
                gone.push(key);
            }
        });
    }
    /// Tries again to send the packets that programs have and their ports had no room for.
    fn retry_held(&mut self, now: Time) {
        let (world, clients) = (&mut self.world, &mut self.clients);
        let mut held = std::mem::take(&mut world.held);
        let (mut any, mut gone) = (false, Vec::new());
        held.retain(|key| {
            let Some(client) = clients.change(*key) else { return false };
            let Some(program) = client.program() else { return false };
            let at = program.host;
            any = true;
            let is_done = program.retry(&mut world.outlet(at), now);
            client.reads = is_done;
            if !is_done && client.hung_up.is_some_and(|since| now.since(since) >= LAST_PACKETS_NS) {
                gone.push(*key);
            }
            !is_done
        });
        world.held = held;
        if any {
            world.subnet.run(now);
        }
        for key in gone {
            self.end(key, now);
        }
    }
    /// Looks again at ports whose next packet waits for a program.
    fn retry_waiting(&mut self, now: Time) {
        let waiting = std::mem::take(&mut self.world.waiting);
        for end in waiting {
            let host = self.world.host_of(end.0).map(|at| &mut self.world.hosts[at]);
            if let Some(port) = host.and_then(|host| host.port(end.1)) {
                port.waits = false;
            }
            deliver::port(&mut self.world, &mut self.clients, end, now);
        }
    }
    /// Sends programs the packets that have arrived for them.
    fn flush(&mut self, now: Time) {
        let mut dirty = std::mem::take(&mut self.world.dirty);
        for key in dirty.drain(..) {
            let Some(Client { socket, role, wants_room, .. }) = self.clients.get(key) else {
                continue;
            };
            let Role::Program(program) = role else { continue };
            program.is_dirty = false;
            if !*wants_room && !program.flush(socket, now) {
                *wants_room = true;
                self.clients.change(key);
            }
        }
        self.world.dirty = dirty;
    }
    /// Tells programs what has changed of their ports. Returns whether something has.
    fn tell_changes(&mut self, gone: &mut Vec<Key>) -> bool {
        let mut any = false;
        while let Some((node, port)) = self.world.subnet.poll_change() {
            self.note_change(node, port, gone);
            any = true;
        }
        any
    }
    fn note_change(&mut self, node: NodeId, number: PortNum, gone: &mut Vec<Key>) {
        let Some(at) = self.world.host_of(node) else { return };
        let reregisters = self.world.subnet.take_client_reregister(node, number);
        let host = &mut self.world.hosts[at];
        let attributes = self.world.subnet.port(node, number);
        if let Some((port, attributes)) = host.port(number).zip(attributes) {
            port.reregisters = port.reregisters.wrapping_add(reregisters.into());
            if let Some(administration) = &mut port.administration {
                administration.handle_port(attributes, reregisters);
            }
        }
        let programs: Vec<_> = host.all_programs().map(|(_, key)| key).collect();
        for key in programs {
            if let Some(program) = self.clients.get(key).and_then(Client::program) {
                program.note_news(number);
            }
            if requests::tell_news(&self.world, &mut self.clients, key).is_err() {
                gone.push(key);
            }
        }
    }
    /// Sleeps until something is ready or due. Right after news the loop goes on at once.
    fn sleep(&mut self) -> Result<(), FabricError> {
        let now = self.now();
        if self.stops || now.since(self.last_news) < self.spin.as_nanos() as u64 {
            return Ok(());
        }
        let waiting = (!self.world.waiting.is_empty()).then(|| now + WAIT_NS);
        let due = [self.world.subnet.poll_timeout(), self.world.next_deadline(), waiting];
        let due = due.into_iter().flatten().chain([self.next_tick]).min().unwrap_or(now);
        let left = Duration::from_nanos(due.since(now));
        if left.is_zero() {
            return Ok(());
        }
        let mut epoll = [PollFd::readable(self.clients.epoll().as_raw_fd())];
        sys::poll(&mut epoll, Some(left)).map(drop).map_err(FabricError::io("wait for connections"))
    }
    fn summary(&mut self, now: Time) -> Summary {
        self.load.look(&self.world.subnet, now);
        let mut trouble = None;
        let captured = self.capture.as_ref().and_then(|capture| {
            capture.flush().map_err(|error: io::Error| trouble = Some(error.to_string())).ok()
        });
        if trouble.is_some()
            && let Some(capture) = self.capture.take()
        {
            // The first error was told.
            let _ = capture.stop(&mut self.world.subnet);
        }
        let totals = self.load.totals();
        let hosts = &self.world.hosts;
        let ports = hosts.iter().flat_map(|host| &host.ports);
        let agents = ports.filter_map(|port| port.agents.as_ref()).map(|agents| agents.len());
        Summary {
            uptime: self.start.elapsed(),
            cables: self.world.plan.cables().len(),
            active: totals.active,
            manager: load::manager(&self.world),
            own_manager: self.world.manager.as_ref().map(OwnManager::view),
            programs: hosts.iter().map(|host| host.programs()).sum(),
            agents: agents.sum(),
            packets_per_s: totals.packets_per_s,
            bytes_per_s: totals.bytes_per_s,
            captured,
            trouble,
        }
    }
}
