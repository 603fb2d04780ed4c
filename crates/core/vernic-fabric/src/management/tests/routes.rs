use vernic_wire::mad::Method;
use vernic_wire::smp::{NodeInfo, SmAttribute, Smp};
use vernic_wire::{Guid, Lid, PortNum, Qpn};

use super::{Asked, Network, directed};
use crate::management::directed_route::{Shape, Step, step_back, step_out};
use crate::management::{DropReason, Ingress, Route};

/// An adapter, three switches in a row, and an adapter at their end: port 1 of the adapter, then
/// each switch is entered by port 1 and left by port 2.
fn chain() -> Network {
    let nodes = vec![
        Asked::adapter(1, 1),
        Asked::switch(4, 1),
        Asked::switch(4, 1),
        Asked::switch(4, 1),
        Asked::adapter(2, 2),
    ];
    let mut network = Network::new(
        nodes,
        &[((0, 1), (1, 1)), ((1, 2), (2, 1)), ((2, 2), (3, 1)), ((3, 2), (4, 2))],
    );
    for (at, node) in network.nodes.iter_mut().enumerate() {
        node.node.attributes.guid = Guid(at as u64);
    }
    network
}

fn node_info(smp: &Smp) -> NodeInfo {
    NodeInfo::parse(&smp.data).unwrap()
}

#[test]
fn a_chain_of_switches_is_walked_there_and_back() {
    let mut network = chain();
    for (hops, ingress) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)] {
        let path = &[1, 2, 2, 2][..hops];
        let answer = network.ask(directed(path, Method::GET, SmAttribute::NODE_INFO, 0));
        let info = node_info(&answer);
        assert_eq!((info.node_guid, info.local_port), (Guid(hops as u64), PortNum(ingress)));
        assert_eq!((answer.hop_pointer(), usize::from(answer.hop_count())), (0, hops));
        assert_eq!(answer.return_path[1..=hops], [1, 1, 1, 2][..hops]);
        assert_eq!(answer.initial_path[1..=hops], *path);
    }
}

#[test]
fn a_path_over_a_port_that_a_node_lacks_ends_there() {
    let mut network = chain();
    assert!(network.carry(1, directed(&[2], Method::GET, SmAttribute::NODE_INFO, 0)).is_none());
    assert!(network.carry(1, directed(&[1, 9], Method::GET, SmAttribute::NODE_INFO, 0)).is_none());
    assert!(network.carry(1, directed(&[1, 0], Method::GET, SmAttribute::NODE_INFO, 0)).is_none());
    assert_eq!(network.nodes[0].agent.dropped(DropReason::NoSuchPort), 1);
    assert_eq!(network.nodes[1].agent.dropped(DropReason::NoSuchPort), 2);
    // Through the adapter at the end.
    let through = directed(&[1, 2, 2, 2, 1], Method::GET, SmAttribute::NODE_INFO, 0);
    assert!(network.carry(1, through).is_none());
    assert_eq!(network.nodes[4].agent.dropped(DropReason::NotASwitch), 1);
}

/// LIDs 1 to 5 for the nodes, and tables of the switches.
fn with_lids() -> Network {
    let mut network = chain();
    for at in 0..network.nodes.len() {
        let lid = Lid(at as u16 + 1);
        let node = &mut network.nodes[at].node;
        node.ports.iter_mut().flatten().for_each(|port| port.lid = lid);
        if let Some(tables) = &mut node.forwarding {
            for to in 1..=5 {
                let to_lid: usize = to;
                tables.linear[to_lid] = match to_lid.cmp(&usize::from(lid.0)) {
                    core::cmp::Ordering::Less => 1,
                    core::cmp::Ordering::Equal => 0,
                    core::cmp::Ordering::Greater => 2,
                };
            }
        }
    }
    network
}

#[test]
fn after_the_list_of_ports_a_lid_can_lead_on() {
    let mut network = with_lids();
    let mut smp = directed(&[1, 2], Method::GET, SmAttribute::NODE_INFO, 0);
    smp.dr_dlid = Lid(5);
    let answer = network.ask(smp);
    assert_eq!(node_info(&answer).node_guid, Guid(4));
    assert_eq!((answer.hop_pointer(), answer.return_path[1], answer.return_path[2]), (0, 1, 1));
    // To the switch itself where the list ends.
    let mut smp = directed(&[1, 2], Method::GET, SmAttribute::NODE_INFO, 0);
    smp.dr_dlid = Lid(3);
    assert_eq!(node_info(&network.ask(smp)).node_guid, Guid(2));
}

#[test]
fn before_the_list_of_ports_a_lid_can_lead_there() {
    let mut network = with_lids();
    // The packet has come to the second switch by its LID.
    let mut smp = directed(&[2, 2], Method::GET, SmAttribute::NODE_INFO, 0);
    smp.dr_slid = Lid(1);
    let second = &mut network.nodes[2];
    second.port = PortNum(1);
    assert_eq!(second.send(&mut smp), Route::Port(PortNum(2)));
    let third = &mut network.nodes[3];
    assert_eq!(third.send(&mut smp), Route::Port(PortNum(2)));
    let last = &mut network.nodes[4];
    assert_eq!(last.send(&mut smp), Route::Port(PortNum(2)));
    assert_eq!(node_info(&smp).node_guid, Guid(4));
    assert!(smp.returns());
    let third = &mut network.nodes[3];
    third.port = PortNum(2);
    assert_eq!(third.send(&mut smp), Route::Port(PortNum(1)));
    let second = &mut network.nodes[2];
    second.port = PortNum(2);
    assert_eq!(second.send(&mut smp), Route::Lid(Lid(1)));
    let first = &mut network.nodes[0];
    assert_eq!(first.send(&mut smp), Route::Local);
}

#[test]
fn every_hop_pointer_and_count_is_one_step_or_a_drop() {
    let switch = Asked::switch(4, 1);
    let adapter = Asked::adapter(1, 1);
    for local in [false, true] {
        let ingress = Ingress { port: PortNum(1), slid: Lid(3), queue_pair: Qpn::SMI, local };
        for shape in [Shape::of(&switch.node), Shape::of(&adapter.node)] {
            for (pointer, count) in (0..=255).flat_map(|p| (0..=255).map(move |c| (p, c))) {
                for permissive in [Lid::PERMISSIVE, Lid(9)] {
                    let mut smp = directed(&[], Method::GET, SmAttribute::NODE_INFO, 0);
                    smp.initial_path = [1; 64];
                    smp.return_path = [1; 64];
                    (smp.dr_slid, smp.dr_dlid) = (permissive, permissive);
                    smp.header.class_specific = u16::from_be_bytes([pointer, count]);
                    let mut back = smp;
                    back.header.status = Smp::RETURNS;
                    match step_out(&mut smp, shape, ingress) {
                        Step::Away(Route::Drop(DropReason::HopCount)) => assert!(count > 63),
                        Step::Away(Route::Drop(_)) => assert_eq!(smp.hop_pointer(), pointer),
                        Step::Here => assert_eq!(smp.hop_pointer(), count + 1),
                        Step::Away(_) => assert_eq!(smp.hop_pointer(), pointer + 1),
                    }
                    match step_back(&mut back, shape, local) {
                        Route::Drop(DropReason::HopCount) => assert!(count > 63),
                        Route::Drop(_) => assert_eq!(back.hop_pointer(), pointer),
                        Route::Local => assert_eq!(back.hop_pointer(), 0),
                        _ => assert_eq!(back.hop_pointer(), pointer - 1),
                    }
                }
            }
        }
    }
}

#[test]
fn a_route_through_an_adapter_is_dropped_in_both_directions() {
    let mut adapter = Asked::adapter(2, 1);
    let mut smp = directed(&[1, 2], Method::GET, SmAttribute::NODE_INFO, 0);
    smp.set_hop_pointer(1);
    assert_eq!(adapter.send(&mut smp), Route::Drop(DropReason::NotASwitch));
    smp.header.status = Smp::RETURNS;
    smp.set_hop_pointer(2);
    assert_eq!(adapter.send(&mut smp), Route::Drop(DropReason::NotASwitch));
    assert_eq!(adapter.agent.dropped(DropReason::NotASwitch), 2);
}

#[test]
fn a_route_does_not_begin_at_a_switch_that_no_lid_led_to() {
    let mut switch = Asked::switch(4, 1);
    let mut smp = directed(&[2], Method::GET, SmAttribute::NODE_INFO, 0);
    assert_eq!(switch.send(&mut smp), Route::Drop(DropReason::HopPointer));
}

#[test]
fn an_answer_on_its_way_out_is_dropped() {
    let mut switch = Asked::switch(4, 1);
    let mut smp = directed(&[1], Method::GET_RESP, SmAttribute::NODE_INFO, 0);
    smp.set_hop_pointer(1);
    assert_eq!(switch.send(&mut smp), Route::Drop(DropReason::Direction));
}

#[test]
fn a_question_about_the_manager_goes_to_it_where_there_is_one() {
    let mut adapter = Asked::adapter(1, 1);
    let mut ask = directed(&[1], Method::GET, SmAttribute::SM_INFO, 0);
    ask.set_hop_pointer(1);
    let mut smp = ask;
    assert_eq!(adapter.send(&mut smp), Route::Port(PortNum(1)));
    assert_eq!(smp.status(), vernic_wire::smp::MadStatus::ATTRIBUTE_NOT_SUPPORTED);
    let port = adapter.node.ports[1].as_mut().unwrap();
    port.capabilities |= vernic_wire::smp::PortInfo::CAPABILITY_SM;
    let mut smp = ask;
    assert_eq!(adapter.send(&mut smp), Route::Local);
    assert_eq!((smp.hop_pointer(), smp.return_path[1]), (2, 1));
}
