//! Questions of programs: paths, groups and notices, which subnet administration answers, and
//! claims of services. Each has a connection of its own, and what was asked for ends with it.

use vernic_attach::question::{Answer, PathAsked, Question};
use vernic_attach::{Refusal, RefusalKind};
use vernic_fabric::Time;
use vernic_fabric::attributes::PortAttributes;
use vernic_proto::mad::Agents;
use vernic_proto::sa::PathQuery;
use vernic_wire::sa::{McMemberRecord, MemberComponents};
use vernic_wire::{Gid, PortNum};

use crate::administration::PortAdministration;
use crate::agents::PortAgents;
use crate::clients::{Asked, Clients, Role, What};
use crate::host::HostPort;
use crate::key::Key;
use crate::requests::{End, check_port};
use crate::world::World;

/// Takes the question of a connection.
pub(crate) fn ask(
    world: &mut World,
    clients: &mut Clients,
    key: Key,
    message: &[u8],
    now: Time,
) -> Result<(), End> {
    let client = clients.change(key).ok_or(End)?;
    let Role::Question(asked @ None) = &mut client.role else { return Err(End) };
    let taken = match Question::parse(message).ok_or(End)? {
        Question::Path { host, port, query } => ask_path(world, key, host, port, &query, now),
        Question::Group { host, port, record, components } => {
            join(world, key, (host, port), &record, components)
        }
        Question::Notices { host, port } => port_of(world, host, port).and_then(|of| {
            of.administration.hear_notices(of.agents, key)?;
            Ok(Asked { host: of.host, what: What::Notices(port) })
        }),
        Question::Service { host, slot, service, address } => world.host(host).and_then(|at| {
            world.hosts[at].claim(key, slot, service, address)?;
            Ok(Asked { host: at, what: What::Service(service) })
        }),
    };
    match taken {
        Ok(now_asked) => {
            *asked = Some(now_asked);
            if let What::Service(_) = now_asked.what {
                client.send(Answer::Claimed.emit())?;
            }
            Ok(())
        }
        Err(refusal) => {
            client.send(refusal.emit())?;
            client.role = Role::Refused;
            Ok(())
        }
    }
}

/// Undoes what a connection has asked for.
pub(crate) fn end(world: &mut World, key: Key, asked: Asked) {
    let host = &mut world.hosts[asked.host];
    let (port, what) = match asked.what {
        What::Service(service) => return host.end_claim(key, service),
        What::Path(port, _) | What::Group(port, ..) | What::Notices(port) => {
            (host.port(port), asked.what)
        }
    };
    let Some(HostPort { agents: Some(agents), administration: Some(administration), .. }) = port
    else {
        return;
    };
    match what {
        What::Notices(_) => _ = administration.end_notices(agents.own(), key),
        What::Path(_, ticket) => administration.withdraw(ticket),
        What::Group(_, mgid, how) => administration.leave(key, mgid, how),
        What::Service(_) => {}
    }
}

/// Tells a connection what subnet administration has said. A refusal is the last word.
pub(crate) fn answer(
    clients: &mut Clients,
    key: Key,
    answer: Result<Answer, Refusal>,
) -> Result<(), End> {
    // A connection that has ended hears nothing.
    let Some(client) = clients.change(key) else { return Ok(()) };
    match answer {
        Ok(answer) => Ok(client.send(answer.emit())?),
        Err(refusal) => {
            client.send(refusal.emit())?;
            client.role = Role::Refused;
            Ok(())
        }
    }
}

fn ask_path(
    world: &mut World,
    key: Key,
    host: &str,
    port: PortNum,
    asked: &PathAsked,
    now: Time,
) -> Result<Asked, Refusal> {
    let PortOf { host, attributes, administration, .. } = port_of(world, host, port)?;
    check_own(attributes, "a path begins", asked.sgid)?;
    let query = PathQuery {
        service_id: asked.service,
        traffic_class: asked.traffic_class,
        ..PathQuery::new(asked.sgid, asked.dgid, asked.pkey)
    };
    let ticket = administration.ask_path(key, &query, now)?;
    Ok(Asked { host, what: What::Path(port, ticket) })
}

fn join(
    world: &mut World,
    key: Key,
    (host, port): (&str, PortNum),
    record: &McMemberRecord,
    components: MemberComponents,
) -> Result<Asked, Refusal> {
    let PortOf { host, attributes, administration, .. } = port_of(world, host, port)?;
    check_own(attributes, "the member of a group is", record.port_gid)?;
    let how = record.join_state;
    if how.iter_names().count() != 1 || how.bits().count_ones() != 1 {
        let text = format!("a port joins in one way at a time, and not in those of {how:?}");
        return Err(Refusal::new(RefusalKind::Invalid, text));
    }
    if record.mgid == Gid::ZERO {
        let text = "a group is joined by its MGID, and 0 is none: choose one, such as \
                    ff12:a01b:fe80::1";
        return Err(Refusal::new(RefusalKind::Invalid, text));
    }
    administration.join(key, record, components, attributes)?;
    Ok(Asked { host, what: What::Group(port, record.mgid, how) })
}

/// A port of a host, with its client of subnet administration.
struct PortOf<'w> {
    host: usize,
    attributes: &'w PortAttributes,
    administration: &'w mut PortAdministration,
    agents: &'w mut Agents,
}

/// Returns a port of a host. Its client is made if there is none.
fn port_of<'w>(world: &'w mut World, host: &str, number: PortNum) -> Result<PortOf<'w>, Refusal> {
    let at = world.host(host)?;
    check_port(world, at, number)?;
    let World { hosts, subnet, managed, name, .. } = world;
    let node = hosts[at].node;
    let missing = || Refusal::new(RefusalKind::NoSuchPort, "the adapter has no such port");
    let attributes = subnet.port(node, number).ok_or_else(missing)?;
    let HostPort { agents, administration, .. } = hosts[at].port(number).ok_or_else(missing)?;
    let agents = agents.get_or_insert_with(|| Box::new(PortAgents::new())).own();
    if administration.is_none() {
        managed.insert((at, number.0));
        let started = PortAdministration::start(agents, attributes, name);
        let started =
            started.map_err(|error| Refusal::new(RefusalKind::TooMany, error.to_string()))?;
        *administration = Some(Box::new(started));
    }
    let administration = administration.as_deref_mut().ok_or_else(missing)?;
    Ok(PortOf { host: at, attributes, administration, agents })
}

/// Checks that a GID is one of a port.
fn check_own(attributes: &PortAttributes, what: &str, gid: Gid) -> Result<(), Refusal> {
    match attributes.gid(0) {
        Some(own) if own != gid => {
            let text = format!("{what} at the port, whose GID is {own}, and not at {gid}");
            Err(Refusal::new(RefusalKind::Invalid, text))
        }
        _ => Ok(()),
    }
}
