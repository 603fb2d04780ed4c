//! Alternate paths of connections: by LAP and APR, and by the request.

mod common;

use std::net::IpAddr;

use common::*;
use vernic_cm::{
    AlternatePath, AprStatus, AttrMask, Config, ConnParam, Error, EventKind, Id, PortSpace, QpAttr,
    QpState, QpType,
};
use vernic_engine::PathMigState;

const HOME: &str = "127.0.0.1:0";

/// A side whose packets take the wire: through memory there is no path to migrate from.
fn side() -> Side {
    Side::with(Config { force_wire: true, ..Config::default() })
}

fn pair(connect: &ConnParam<'_>) -> Pair {
    Pair::between((side(), side()), HOME, connect, &ConnParam::default())
}

/// A path from one address to another, where the id connects.
fn by(id: &Id, local: &str, remote: &str) -> AlternatePath {
    let [local, remote]: [IpAddr; 2] = [local, remote].map(|text| text.parse().unwrap());
    id.alternate_path(local, remote).unwrap()
}

fn states(pair: &Pair) -> [PathMigState; 2] {
    [&pair.connected_end, &pair.accepted_end].map(|end| end.qp.query().path_mig_state)
}

/// The addresses that both ends send to.
fn peers(pair: &Pair) -> [String; 2] {
    let of = |end: &End| end.qp.query().av.dgid.to_ip().to_string();
    [of(&pair.connected_end), of(&pair.accepted_end)]
}

/// Arms both ends by traffic, moves the first to the alternate path, and the other follows.
fn arm_and_migrate(pair: &Pair) {
    assert_eq!(states(pair), [PathMigState::Rearm; 2]);
    exchange(&pair.connected_end, &pair.accepted_end);
    assert_eq!(states(pair), [PathMigState::Armed; 2]);
    let away = QpAttr { path_mig_state: PathMigState::Migrated, ..QpAttr::default() };
    pair.connected_end.qp.modify(&away, AttrMask::PATH_MIG_STATE).unwrap();
    exchange(&pair.connected_end, &pair.accepted_end);
    assert_eq!(states(pair), [PathMigState::Migrated; 2]);
}

#[test]
fn a_path_that_is_loaded_into_both_queue_pairs_is_migrated_to_and_back() {
    let pair = pair(&ConnParam::default());
    for (there, other) in [("::1", "127.0.0.1"), ("127.0.0.1", "::1"), ("::1", "127.0.0.1")] {
        let path = by(&pair.connected, there, there);
        pair.connected.load_alternate_path(path, LONG).unwrap();
        assert_eq!(peers(&pair), [other; 2]);
        arm_and_migrate(&pair);
        assert_eq!(peers(&pair), [there; 2]);
    }
    // No program is told of this.
    pair.client.expect_nothing();
    pair.server.expect_nothing();
    pair.accepted.disconnect().unwrap();
    pair.client.expect(EventKind::Disconnected);
    let error = pair.connected.load_alternate_path(by(&pair.connected, "::1", "::1"), LONG);
    assert!(matches!(error, Err(Error::Cm(_))), "{error:?}");
}

#[test]
fn the_path_of_a_request_is_loaded_when_the_peer_accepts() {
    let server = side();
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, HOME);
    let alternate = Some(by(&side().routed(PortSpace::TCP, QpType::Rc, place), "::1", "::1"));
    let pair = pair(&ConnParam { alternate, ..ConnParam::default() });
    arm_and_migrate(&pair);
    assert_eq!(peers(&pair), ["::1"; 2]);
}

#[test]
fn a_request_whose_path_the_peer_has_not_is_accepted_without_it() {
    let server = side();
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, HOME);
    let id = side().routed(PortSpace::TCP, QpType::Rc, place);
    let alternate = Some(by(&id, "127.0.0.1", "127.77.0.1"));
    let pair = pair(&ConnParam { alternate, ..ConnParam::default() });
    assert_eq!(states(&pair), [PathMigState::Migrated; 2]);
    exchange(&pair.connected_end, &pair.accepted_end);
}

#[test]
fn what_cannot_be_loaded_is_refused_and_the_connection_stays() {
    let pair = pair(&ConnParam::default());
    let load = |id: &Id, local, remote| id.load_alternate_path(by(id, local, remote), LONG);
    let refused = load(&pair.connected, "127.0.0.1", "127.77.0.1");
    assert!(matches!(refused, Err(Error::NotLoaded(AprStatus::INVALID_GID))), "{refused:?}");
    let foreign = load(&pair.connected, "198.18.9.9", "198.18.9.8");
    assert!(matches!(foreign, Err(Error::NotOfDevice { .. })), "{foreign:?}");
    let families = load(&pair.connected, "127.0.0.1", "::1");
    assert!(matches!(families, Err(Error::AlternatePath { .. })), "{families:?}");
    let passive = load(&pair.accepted, "::1", "::1");
    assert!(matches!(passive, Err(Error::Cm(_))), "{passive:?}");
    let path = by(&pair.connected, "::1", "::1");
    let listener = pair.listener.load_alternate_path(path, LONG);
    assert!(matches!(listener, Err(Error::State { .. })), "{listener:?}");
    assert_eq!(states(&pair), [PathMigState::Migrated; 2]);
    exchange(&pair.connected_end, &pair.accepted_end);
}

#[test]
fn a_queue_pair_that_the_program_brings_up_takes_paths_once_it_is_named() {
    let (server, client) = (side(), side());
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, HOME);
    let id = client.routed(PortSpace::TCP, QpType::Rc, place);
    let end = End::new(&id);
    let up = |id: &Id, end: &End, states: &[QpState]| {
        for state in states {
            let (attr, mask) = id.init_qp_attr(*state).unwrap();
            end.qp.modify(&attr, mask).unwrap();
        }
    };
    let all = [QpState::Init, QpState::Rtr, QpState::Rts];
    let param = |end: &End| ConnParam { qp_num: Some(end.qp.qpn()), ..ConnParam::default() };
    id.connect(&ConnParam { alternate: Some(by(&id, "::1", "::1")), ..param(&end) }).unwrap();
    let accepted = server.expect(EventKind::ConnectRequest).id.clone();
    let other = End::new(&accepted);
    up(&accepted, &other, &all);
    accepted.accept(&param(&other)).unwrap();
    client.expect(EventKind::ConnectResponse);
    up(&id, &end, &all);
    id.establish().unwrap();
    server.expect(EventKind::Established);
    for qp in [&end.qp, &other.qp] {
        assert_eq!(qp.query().path_mig_state, PathMigState::Rearm);
    }
    // Another one.
    let path = by(&id, "127.0.0.1", "127.0.0.1");
    let unnamed = id.load_alternate_path(path, LONG);
    assert!(matches!(unnamed, Err(Error::NoQp { .. })), "{unnamed:?}");
    id.name_qp(&end.qp).unwrap();
    let unsupported = id.load_alternate_path(path, LONG);
    assert!(matches!(unsupported, Err(Error::NotLoaded(AprStatus::UNSUPPORTED))));
    accepted.name_qp(&other.qp).unwrap();
    id.load_alternate_path(path, LONG).unwrap();
    assert_eq!(other.qp.query().alt_av.dgid.to_ip().to_string(), "127.0.0.1");
}
