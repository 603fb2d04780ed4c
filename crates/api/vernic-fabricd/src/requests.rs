//! What the connections of programs ask for: attaching, groups, agents, datagrams.

use std::io;
use std::os::fd::AsFd as _;

use vernic_attach::data::{DataReport, DataRequest, Membership};
use vernic_attach::hello::{Hello, Purpose};
use vernic_attach::mad::{MadAnswer, MadRequest};
use vernic_attach::{AgentId, Connection, Refusal, RefusalKind, UserMad};
use vernic_fabric::Time;
use vernic_sys as sys;
use vernic_wire::PortNum;

use crate::agents::PortAgents;
use crate::clients::{Clients, MAX_CLIENTS, OpenPort, Role};
use crate::deliver;
use crate::host_cm::HostCm;
use crate::key::Key;
use crate::program::{MAX_JOINS, Program};
use crate::report;
use crate::world::World;

/// The connection is to end: its other end does not keep to the protocol, or has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End;

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// Takes the first message of a connection.
pub(crate) fn hello(clients: &mut Clients, key: Key, message: &[u8]) -> Result<(), End> {
    let client = clients.change(key).ok_or(End)?;
    client.role = match Hello::parse(message).ok_or(End)? {
        Hello::For(Purpose::Data) => Role::DataHello,
        Hello::For(Purpose::Mad) => Role::Mad(None),
        Hello::For(Purpose::Control) => Role::Control,
        Hello::For(Purpose::Question) => Role::Question(None),
        Hello::Version(theirs) => {
            client.send(Hello::version_refused(theirs).emit())?;
            Role::Refused
        }
    };
    Ok(())
}

/// Attaches a program to a host.
pub(crate) fn attach(
    world: &mut World,
    clients: &mut Clients,
    key: Key,
    message: &[u8],
) -> Result<(), End> {
    let Some(DataRequest::Attach { slot, host }) = DataRequest::parse(message) else {
        return Err(End);
    };
    let client = clients.change(key).ok_or(End)?;
    let chosen = world.host(host).and_then(|at| Ok((at, world.hosts[at].choose_slot(slot)?)));
    match chosen {
        Ok((at, slot)) => {
            let host = &mut world.hosts[at];
            host.attach(slot, key);
            client.role = Role::Program(Box::new(Program::new(at, slot)));
            let adapter = report::adapter(&world.subnet, host).ok_or(End)?;
            client.send(DataReport::attached(slot, &adapter))?;
            tracing::debug!(host = %host.name, slot, pid = client.pid, "program attached");
            Ok(())
        }
        Err(refusal) => {
            client.send(refusal.emit())?;
            client.role = Role::Refused;
            Ok(())
        }
    }
}

/// Takes a message of a program.
pub(crate) fn program(
    world: &mut World,
    clients: &mut Clients,
    key: Key,
    message: &[u8],
    now: Time,
) -> Result<(), End> {
    let program = clients.get(key).and_then(|client| client.program()).ok_or(End)?;
    let at = program.host;
    match DataRequest::parse(message).ok_or(End)? {
        DataRequest::Attach { .. } => Err(End),
        DataRequest::Packets(packets) => {
            program.submit(&mut world.outlet(at), message, now);
            if program.has_held() {
                world.held.push(key);
                clients.change(key).ok_or(End)?.reads = false;
            }
            deliver::to_own_members(world, clients, at, packets, now);
            Ok(())
        }
        DataRequest::Join(group) => {
            if program.joins.len() >= MAX_JOINS || !group.mlid.is_multicast() {
                program.counts.refused += 1;
            } else {
                program.joins.push(group);
                join(world, at, program.slot, &group);
            }
            Ok(())
        }
        DataRequest::Leave(group) => {
            if let Some(found) = program.joins.iter().position(|joined| *joined == group) {
                program.joins.swap_remove(found);
                leave(world, at, program.slot, &group);
            }
            Ok(())
        }
    }
}

fn join(world: &mut World, at: usize, slot: u16, group: &Membership) {
    let host = &mut world.hosts[at];
    if host.join(slot, group) {
        world.subnet.set_member(host.node, group.port, group.mlid, true);
    }
}

fn leave(world: &mut World, at: usize, slot: u16, group: &Membership) {
    let host = &mut world.hosts[at];
    if host.leave(slot, group) {
        world.subnet.set_member(host.node, group.port, group.mlid, false);
    }
}

/// Undoes all that a program has done. Peers of connections that it has not ended are told.
pub(crate) fn detach(world: &mut World, program: &Program, now: Time) {
    for group in &program.joins {
        leave(world, program.host, program.slot, group);
    }
    let host = &mut world.hosts[program.host];
    host.detach(program.slot);
    for orphan in program.connections.orphans() {
        host.cm.get_or_insert_with(|| Box::new(HostCm::new())).end_for(orphan, now);
        world.speaking.insert(program.host);
    }
    tracing::debug!(host = %host.name, slot = program.slot, "program gone");
}

/// Takes a request about management.
pub(crate) fn mad(
    world: &mut World,
    clients: &mut Clients,
    key: Key,
    message: &[u8],
    now: Time,
) -> Result<(), End> {
    let client = clients.change(key).ok_or(End)?;
    let Role::Mad(open) = &mut client.role else { return Err(End) };
    let answer = match MadRequest::parse(message).ok_or(End)? {
        MadRequest::Hosts { from } => Ok(hosts(world, from)),
        MadRequest::Adapter { host } => world.host(host).and_then(|at| {
            let adapter = report::adapter(&world.subnet, &world.hosts[at]);
            let adapter = adapter.ok_or(Refusal::new(RefusalKind::Other, "no such adapter"))?;
            Ok(MadAnswer::Adapter(Box::new(adapter)))
        }),
        MadRequest::Open { .. } if open.is_some() => return Err(End),
        MadRequest::Open { host, port, subnet_management } => {
            let host = world.host(host).and_then(|at| check_port(world, at, port).map(|()| at));
            match host {
                Ok(host) => return open_port(world, clients, key, host, port, subnet_management),
                Err(refusal) => Err(refusal),
            }
        }
        MadRequest::Register(registration) => of(world, open).and_then(|(agents, port)| {
            let agent = agents.register(port.datagrams, &registration, port.subnet_management)?;
            Ok(MadAnswer::Registered(agent))
        }),
        MadRequest::Unregister(agent) => of(world, open).and_then(|(agents, port)| {
            let was_there = agents.unregister(port.datagrams, agent);
            was_there.then_some(MadAnswer::Done).ok_or_else(|| no_agent(agent))
        }),
        MadRequest::Issm(on) => match open {
            Some(port) => {
                set_issm(world, port, on, now);
                Ok(MadAnswer::Done)
            }
            None => Err(not_open()),
        },
    };
    client.send(match answer {
        Ok(answer) => answer.emit(),
        Err(refusal) => refusal.emit(),
    })?;
    Ok(())
}

fn hosts(world: &World, from: u32) -> MadAnswer {
    let names = world.hosts.iter().skip(from as usize).take(4096);
    let names = names.map(|host| host.name.clone()).collect();
    MadAnswer::Hosts { total: world.hosts.len() as u32, names }
}

pub(crate) fn check_port(world: &World, at: usize, port: PortNum) -> Result<(), Refusal> {
    let host = &world.hosts[at];
    let (count, name) = (host.ports.len(), &host.name);
    if (1..=count).contains(&usize::from(port.0)) {
        return Ok(());
    }
    let text = format!("{name} has no port {port}: its ports are 1 to {count}");
    Err(Refusal::new(RefusalKind::NoSuchPort, text))
}

/// Opens a port, and passes the connection for its datagrams.
fn open_port(
    world: &mut World,
    clients: &mut Clients,
    key: Key,
    host: usize,
    port: PortNum,
    subnet_management: bool,
) -> Result<(), End> {
    let client = clients.get(key).ok_or(End)?;
    if client.wants_room {
        // What waits for the program is older than the answer, which does not wait.
        return Err(End);
    }
    let pid = client.pid;
    let added = sys::packet_pair().and_then(|(ours, theirs)| {
        Ok((clients.add(Connection::new(ours), Role::New, pid)?, theirs))
    });
    let (datagrams, theirs) = match added {
        Ok(added) => added,
        Err(error) => {
            let refusal = no_room(&error);
            return Ok(clients.get(key).ok_or(End)?.send(refusal.emit())?);
        }
    };
    let open = OpenPort { host, port, subnet_management, is_sm: false, datagrams };
    let role = Role::Datagrams { requests: key, port: open, assembler: Default::default() };
    clients.get(datagrams).ok_or(End)?.role = role;
    let client = clients.get(key).ok_or(End)?;
    client.role = Role::Mad(Some(open));
    let place = world.hosts[host].port(port).ok_or(End)?;
    place.agents.get_or_insert_with(|| Box::new(PortAgents::new()));
    world.managed.insert((host, port.0));
    sys::send_packet(client.socket.as_fd(), &MadAnswer::Done.emit(), &[theirs.as_fd()])?;
    Ok(())
}

fn of<'w, 'o>(
    world: &'w mut World,
    open: &'o Option<OpenPort>,
) -> Result<(&'w mut PortAgents, &'o OpenPort), Refusal> {
    let open = open.as_ref().ok_or_else(not_open)?;
    let port = world.hosts[open.host].port(open.port);
    let agents = port.and_then(|port| port.agents.as_deref_mut());
    Ok((agents.ok_or_else(not_open)?, open))
}

/// Returns the refusal of a connection for which there is no room.
pub(crate) fn no_room(error: &io::Error) -> Refusal {
    let text = match error.kind() {
        io::ErrorKind::QuotaExceeded => {
            format!("the fabric process has {MAX_CLIENTS} connections, as many as can be")
        }
        _ => format!("the fabric process has no room for one more connection: {error}"),
    };
    Refusal::new(RefusalKind::TooMany, text)
}

fn not_open() -> Refusal {
    Refusal::new(RefusalKind::Invalid, "this connection has opened no port")
}

fn no_agent(agent: AgentId) -> Refusal {
    let text = format!("this connection has no agent {}", agent.0);
    Refusal::new(RefusalKind::Invalid, text)
}

fn set_issm(world: &mut World, open: &mut OpenPort, on: bool, now: Time) {
    if std::mem::replace(&mut open.is_sm, on) == on {
        return;
    }
    world.count_manager(open.host, open.port, on, now);
}

/// Undoes all that the opener of a port has done.
pub(crate) fn close_port(world: &mut World, mut open: OpenPort, now: Time) {
    set_issm(world, &mut open, false, now);
    let port = world.hosts[open.host].port(open.port);
    if let Some(agents) = port.and_then(|port| port.agents.as_mut()) {
        agents.remove_owner(open.datagrams);
    }
}

/// Takes a message with a datagram, or a part of one.
pub(crate) fn datagram(
    world: &mut World,
    clients: &mut Clients,
    key: Key,
    message: &[u8],
) -> Result<(), End> {
    let client = clients.get(key).ok_or(End)?;
    let Role::Datagrams { port, assembler, .. } = &mut client.role else { return Err(End) };
    let Some(mad) = assembler.handle(message).map_err(|_| End)? else { return Ok(()) };
    let host = &mut world.hosts[port.host];
    let node = host.node;
    let place = host.port(port.port);
    let agents = place.and_then(|place| place.agents.as_mut()).ok_or(End)?;
    let attributes = world.subnet.port(node, port.port).ok_or(End)?;
    if let Some(returned) = agents.send(key, mad, attributes) {
        deliver(clients, key, &returned)?;
    }
    Ok(())
}

/// Brings a datagram to a program.
pub(crate) fn deliver(clients: &mut Clients, key: Key, mad: &UserMad) -> Result<(), End> {
    let client = clients.change(key).ok_or(End)?;
    for message in mad.messages().map_err(|_| End)? {
        client.send(message)?;
    }
    Ok(())
}

/// Tells a program what has changed of the ports of its host.
pub(crate) fn tell_news(world: &World, clients: &mut Clients, key: Key) -> Result<(), End> {
    let client = clients.change(key).ok_or(End)?;
    // What waits already is older; news go out when it has gone.
    while !client.wants_room {
        let Some(program) = client.program() else { return Ok(()) };
        let at = program.host;
        let Some(number) = program.take_news() else { return Ok(()) };
        if let Some(port) = report::port(&world.subnet, &world.hosts[at], number) {
            client.send(DataReport::port(&port))?;
        }
    }
    Ok(())
}
