//! Packets that end at a host: which program or agent gets them.
//!
//! | to | goes to |
//! |---|---|
//! | a request for a connection, to QPN 1 | the program that got it, or has the claim |
//! | a REJ that names no connection, to QPN 1 | the program that got the sender's request |
//! | other messages of connection management | the program of the communication id |
//! | other datagrams to QPN 0 and 1 | the agents of the port |
//! | QPN 2 to 0xFFFFFE | the program whose slot is in the QPN |
//! | QPN 0xFFFFFF | each program that has joined the group |
//! | anything else | nobody; counted |
//!
//! A message for no program, or about a connection of a program that has ended, is answered by the
//! host itself ([`host_cm`](crate::host_cm)).
//!
//! A packet of no partition of the port goes to nobody (IBTA 10.9.3). The port counts it, and tells
//! the subnet manager.

use std::net::IpAddr;

use vernic_attach::{Packets, QPN_INDEX_BITS};
use vernic_fabric::Time;
use vernic_fabric::subnet::{NodeId, Subnet};
use vernic_wire::cm::{CmMessage, CmaHeader, CommId, ServiceId};
use vernic_wire::mad::MAD_LEN;
use vernic_wire::smp::BadKey;
use vernic_wire::{Bth, Deth, Gid, Lid, Lrh, Opcode, PortNum, Qpn, ServiceLevel};

use crate::clients::{Client, Clients, Role};
use crate::connections::{Asker, slot_of};
use crate::host::Host;
use crate::host_cm::HostCm;
use crate::key::Key;
use crate::known::RequestName;
use crate::packet::{self, grh, pkey, transport_at};
use crate::program::{Offer, is_allowed};
use crate::world::World;

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Slot(u16),
    Group(Lid, Option<Gid>),
    Nobody,
}

/// Returns where the transport of a packet begins, and its global destination; `None` of a raw
/// packet.
fn transport(packet: &[u8]) -> Option<(usize, Option<Gid>)> {
    let lrh = Lrh::parse(packet).ok()?;
    let at = transport_at(&lrh)?;
    Some((at, grh(&lrh, packet).map(|grh| grh.dgid)))
}

/// Whether a port takes the partition of a packet; of one without a transport, there is none.
fn takes_partition(subnet: &Subnet, (node, port): (NodeId, PortNum), packet: &[u8]) -> bool {
    let pkey = Lrh::parse(packet).ok().and_then(|lrh| pkey(&lrh, packet));
    let takes = |pkey| subnet.port(node, port).is_some_and(|port| port.takes_pkey(pkey));
    pkey.is_none_or(takes)
}

/// Returns what a trap says of a packet whose partition key is wrong.
fn bad_key(packet: &[u8]) -> Option<BadKey> {
    let lrh = Lrh::parse(packet).ok()?;
    let transport = packet.get(transport_at(&lrh)?..)?;
    let (bth, grh) = (Bth::parse(transport).ok()?, grh(&lrh, packet));
    // Packets of connected services do not say where they are from.
    let is_datagram = matches!(bth.opcode, Opcode::UD_SEND_ONLY | Opcode::UD_SEND_ONLY_IMM);
    let deth = transport.get(Bth::LEN..).and_then(|bytes| Deth::parse(bytes).ok());
    Some(BadKey {
        from: Lid(lrh.slid),
        to: Lid(lrh.dlid),
        key: bth.pkey.value().into(),
        service_level: ServiceLevel::new(lrh.service_level),
        from_qp: deth.filter(|_| is_datagram).map_or(Qpn::new(0), |deth| deth.src_qpn),
        to_qp: bth.dest_qpn,
        from_gid: grh.map_or(Gid::ZERO, |grh| grh.sgid),
        to_gid: grh.map_or(Gid::ZERO, |grh| grh.dgid),
    })
}

fn target(packet: &[u8]) -> Target {
    let Some((at, dgid)) = transport(packet) else { return Target::Nobody };
    let Some(bth) = packet.get(at..).and_then(|bytes| Bth::parse(bytes).ok()) else {
        return Target::Nobody;
    };
    match bth.dest_qpn {
        Qpn::MULTICAST => {
            let dlid = Lid(u16::from_be_bytes([packet[2], packet[3]]));
            Target::Group(dlid, dgid)
        }
        qpn => Target::Slot((qpn.value() >> QPN_INDEX_BITS) as u16),
    }
}

/// Brings what has arrived at a port to programs and agents, until a program has no room.
pub(crate) fn port(world: &mut World, clients: &mut Clients, end: (NodeId, PortNum), now: Time) {
    let Some(at) = world.host_of(end.0) else { return };
    let mut scratch = std::mem::take(&mut world.scratch);
    while world.subnet.poll_datagram(end.0, end.1, &mut scratch) {
        datagram(world, clients, (at, end.1), &mut scratch, now);
    }
    loop {
        let host = &mut world.hosts[at];
        let Some(packet) = world.subnet.peek_receive(end.0, end.1) else { break };
        if !takes_partition(&world.subnet, end, packet) {
            if let Some(bad) = bad_key(packet) {
                world.subnet.handle_bad_pkey(end.0, end.1, &bad, now);
            }
            world.subnet.skip_receive(end.0, end.1);
            continue;
        }
        let offer = match target(packet) {
            Target::Slot(slot) => match host.program(slot) {
                Some(key) => offer(clients, &mut world.dirty, key, end.1, packet, now),
                None => {
                    host.counts.no_program += 1;
                    Offer::Done
                }
            },
            Target::Group(lid, gid) => {
                let slots = host.members(end.1, lid, gid);
                let dirty = &mut world.dirty;
                group(host, clients, dirty, &slots, end.1, packet, now)
            }
            Target::Nobody => {
                host.counts.raw += 1;
                Offer::Done
            }
        };
        if offer == Offer::Wait {
            if let Some(port) = host.port(end.1)
                && !std::mem::replace(&mut port.waits, true)
            {
                world.waiting.push(end);
            }
            break;
        }
        world.subnet.skip_receive(end.0, end.1);
    }
    world.scratch = scratch;
}

/// Offers a packet to a program.
fn offer(
    clients: &mut Clients,
    dirty: &mut Vec<Key>,
    key: Key,
    port: PortNum,
    packet: &[u8],
    now: Time,
) -> Offer {
    let Some(client) = clients.get(key) else { return Offer::Done };
    let Role::Program(program) = &mut client.role else { return Offer::Done };
    let offer = program.offer(&client.socket, port, packet, now);
    if !std::mem::replace(&mut program.is_dirty, true) {
        dirty.push(key);
    }
    offer
}

/// Offers a packet to all members of a group, once each of them has room.
fn group(
    host: &mut Host,
    clients: &mut Clients,
    dirty: &mut Vec<Key>,
    slots: &[u16],
    port: PortNum,
    packet: &[u8],
    now: Time,
) -> Offer {
    let keys: Vec<_> = slots.iter().filter_map(|slot| host.program(*slot)).collect();
    if keys.is_empty() {
        host.counts.no_member += 1;
    }
    let has_room = |key: &Key| {
        let Some(client) = clients.get(*key) else { return true };
        let Role::Program(program) = &mut client.role else { return true };
        program.would_take(&client.socket, packet.len(), now)
    };
    if !keys.iter().all(has_room) {
        return Offer::Wait;
    }
    for key in keys {
        offer(clients, dirty, key, port, packet, now);
    }
    Offer::Done
}

/// Copies what a program sends to a group to those members that are at the same port, the sender
/// among them if it has joined: the subnet does not bring such a packet back. A member that has no
/// room does not get it.
pub(crate) fn to_own_members(
    world: &mut World,
    clients: &mut Clients,
    at: usize,
    packets: Packets<'_>,
    now: Time,
) {
    for (port, packet) in packets {
        let host = &world.hosts[at];
        let Target::Group(lid, gid) = target(packet) else { continue };
        let end = (host.node, port);
        if !host.has_members(port, lid)
            || !is_allowed(&world.subnet, host.node, port, packet)
            || !takes_partition(&world.subnet, end, packet)
        {
            continue;
        }
        for slot in host.members(port, lid, gid) {
            let Some(key) = host.program(slot) else { continue };
            let offered = offer(clients, &mut world.dirty, key, port, packet, now);
            if offered == Offer::Wait
                && let Some(program) = clients.get(key).and_then(Client::program)
            {
                program.counts.not_taken += 1;
            }
        }
    }
}

/// Brings a datagram for queue pair 0 or 1 to its agent or program.
fn datagram(
    world: &mut World,
    clients: &mut Clients,
    (at, port): (usize, PortNum),
    packet: &mut Vec<u8>,
    now: Time,
) {
    let host = &mut world.hosts[at];
    if let Some(mad) = packet::connection_message(packet) {
        connection_message(world, clients, (at, port), mad, packet, now);
        return;
    }
    let Some(attributes) = world.subnet.port(host.node, port) else { return };
    let agents = host.port(port).and_then(|port| port.agents.as_mut());
    let taken = agents.is_some_and(|agents| agents.handle(now, attributes, packet));
    host.counts.no_agent += u64::from(!taken);
}

/// Brings a message of connection management to its program.
fn connection_message(
    world: &mut World,
    clients: &mut Clients,
    (at, port): (usize, PortNum),
    mad: &[u8; MAD_LEN],
    packet: &[u8],
    now: Time,
) {
    let end = (at, port);
    match whose(at, mad, packet) {
        Some(Whose::Request(name, asker, service)) => {
            let before = world.known.program_of_copy(name, mad);
            let before = before.filter(|key| clients.get(*key).is_some());
            let claim = world.hosts[at].claimed_by(service.0, service.1);
            match before.or(claim) {
                None => world.early.keep(end, name, packet, service, now),
                Some(key) => {
                    let is_taken = message(world, clients, end, key, (mad, packet), now);
                    if is_taken && before.is_none() {
                        world.known.note(name, mad, asker, key);
                    }
                }
            }
        }
        Some(Whose::Withdrawal(name)) => {
            world.early.withdraw(name);
            let key = world.known.program(name).filter(|key| clients.get(*key).is_some());
            match key {
                Some(key) => _ = message(world, clients, end, key, (mad, packet), now),
                None => world.hosts[at].counts.no_connection += 1,
            }
        }
        Some(Whose::Receiver(id)) => {
            let host = &world.hosts[at];
            let is_ended = host.cm.as_ref().is_some_and(|cm| cm.owns(id));
            match host.program(slot_of(id)).filter(|_| !is_ended) {
                Some(key) => _ = message(world, clients, end, key, (mad, packet), now),
                None => to_nobody(world, end, packet, now),
            }
        }
        None => world.hosts[at].counts.no_connection += 1,
    }
}

/// What a message of connection management says of its receiver.
enum Whose {
    /// The program that has got this request, or that has claimed the service, for this IP address.
    Request(RequestName, Option<Asker>, (ServiceId, Option<IpAddr>)),
    /// The program that has got this request, which is taken back.
    Withdrawal(RequestName),
    /// The program with the slot of this communication id.
    Receiver(CommId),
}

/// Returns whom a message of connection management to a host is for; `None` of what is none.
fn whose(host: usize, mad: &[u8; MAD_LEN], packet: &[u8]) -> Option<Whose> {
    let slid = Lrh::parse(packet).ok()?.slid;
    let name = |comm_id, is_sidr| RequestName { host, slid, comm_id, is_sidr };
    Some(match CmMessage::parse(mad).ok()?.1 {
        CmMessage::Req(req) => {
            let service = (req.service_id, destination(req.private_data.as_bytes()));
            Whose::Request(name(req.local_comm_id, false), Some(Asker::of(&req)), service)
        }
        CmMessage::SidrReq(req) => {
            let service = (req.service_id, destination(req.private_data.as_bytes()));
            Whose::Request(name(req.request_id, true), None, service)
        }
        CmMessage::Rej(rej) if rej.remote_comm_id == CommId::NONE => {
            Whose::Withdrawal(name(rej.local_comm_id, false))
        }
        other => Whose::Receiver(other.receiver_comm_id()?),
    })
}

/// Offers a message of connection management to a program, and returns whether it was taken. It is
/// lost if the program has no room: such messages are repeated.
fn message(
    world: &mut World,
    clients: &mut Clients,
    (at, port): (usize, PortNum),
    key: Key,
    (mad, packet): (&[u8; MAD_LEN], &[u8]),
    now: Time,
) -> bool {
    let offered = offer(clients, &mut world.dirty, key, port, packet, now);
    let is_taken = offered == Offer::Done;
    if is_taken && let Some(program) = clients.get(key).and_then(Client::program) {
        program.connections.note_received(mad);
    }
    world.hosts[at].counts.no_connection += u64::from(!is_taken);
    is_taken
}

/// Answers a message of connection management that is for no program.
fn to_nobody(world: &mut World, (at, port): (usize, PortNum), packet: &[u8], now: Time) {
    let host = &mut world.hosts[at];
    host.counts.no_connection += 1;
    if let Some(attributes) = world.subnet.port(host.node, port) {
        let cm = host.cm.get_or_insert_with(|| Box::new(HostCm::new()));
        cm.handle(port, attributes, packet, now);
        world.speaking.insert(at);
    }
}

/// Brings requests that came early to the programs that have claimed their services by now.
pub(crate) fn early(world: &mut World, clients: &mut Clients, now: Time) {
    // Bounded by the requests that wait: each is taken once.
    while let Some((request, claimed)) = world.early.take(&world.hosts, now) {
        let (end, packet) = (request.end, request.packet.as_slice());
        let Some(key) = claimed else {
            to_nobody(world, end, packet, now);
            continue;
        };
        if let Some(mad) = packet::connection_message(packet)
            && message(world, clients, end, key, (mad, packet), now)
            && let Some(Whose::Request(name, asker, _)) = whose(end.0, mad, packet)
        {
            world.known.note(name, mad, asker, key);
        }
    }
}

/// Returns the IP address that a request of `rdma_cm` is for (IBTA annex A11).
fn destination(private_data: &[u8]) -> Option<IpAddr> {
    let header = CmaHeader::parse(private_data).ok()?;
    (header.version == 0).then_some(header.dst)
}
