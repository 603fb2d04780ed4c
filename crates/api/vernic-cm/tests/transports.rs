//! Hosts that speak one transport alone: what a client of RoCE learns of a host of iWARP, and how a
//! client that may take both finds out. In network namespaces of the test's own.
#![allow(clippy::print_stdout)] // how the processes talk

mod common;
/// What the engine's tests have for it.
#[path = "../../../core/vernic-engine/tests/common/other.rs"]
#[allow(dead_code, unreachable_pub)] // these tests use their part
mod other;

use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use common::*;
use other::{Other, ROLE};
use vernic_cm::{Config, ConnParam, EventKind, PortSpace, QpType, RejReason};
use vernic_engine::TransportChoice;

/// Longest wait for another process to do as it is told.
const PATIENCE: Duration = LONG;

/// Where the far host listens.
const FAR: &str = "10.81.1.2:7471";

/// A request that nobody answers is given up after 62 s: half of it is early enough for a busy
/// machine.
const BEFORE_GIVING_UP: Duration = Duration::from_secs(31);

fn side(transport: TransportChoice) -> Side {
    Side::with(Config { transport, ..Config::default() })
}

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split_whitespace()).status().unwrap().success()
}

fn say(text: &str) {
    println!("> {text}");
    std::io::stdout().flush().unwrap();
}

fn told() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Not a test of its own: what the other process runs, at the far end of the cable.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    say("there");
    told();
    assert!(ip("address add 10.81.1.2/24 dev far") && ip("link set far up"));
    let transport = match &*role {
        "iwarp" => TransportChoice::Iwarp,
        _ => TransportChoice::Roce,
    };
    let side = side(transport);
    let (_listener, _) = side.listener(PortSpace::TCP, QpType::Rc, FAR);
    say("listening");
    let request = side.expect(EventKind::ConnectRequest);
    let id = request.id.clone();
    let end = End::new(&id);
    id.attach_qp(end.qp.clone()).unwrap();
    id.accept(&ConnParam::default()).unwrap();
    side.expect(EventKind::Established);
    told();
}

/// The far host, whose process listens over the transport that its role names. `None` where there
/// is no veth.
fn far_host(role: &str) -> Option<Other> {
    if !ip("link add near type veth peer name far") {
        println!("skipped: no veth here");
        return None;
    }
    let mut other = Other::in_a_namespace(role)?;
    assert_eq!(other.hear(), "there");
    assert!(ip(&format!("link set far netns {}", other.child.id())));
    assert!(ip("address add 10.81.1.1/24 dev near") && ip("link set near up"));
    other.tell("configure");
    assert_eq!(other.hear(), "listening");
    Some(other)
}

#[test]
fn a_client_of_roce_is_refused_soon_where_a_host_has_iwarp_alone() {
    let name = "a_client_of_roce_is_refused_soon_where_a_host_has_iwarp_alone";
    if std::env::var(ROLE).is_ok() || other::runs_alone(name) {
        return;
    }
    let Some(mut other) = far_host("iwarp") else { return };
    let client = side(TransportChoice::Roce);
    let begun = Instant::now();
    let (id, _end) = client.connecting(addr(FAR), &ConnParam::default());
    let reason = i32::from(RejReason::INVALID_SERVICE_ID.value());
    client.expect_failure(EventKind::Rejected, reason);
    assert!(begun.elapsed() < BEFORE_GIVING_UP, "{:?}", begun.elapsed());
    let counters = id.context().unwrap().counters();
    assert_eq!((counters.cm.refused_here, counters.cm.unanswered), (1, 0));

    // A client that may take both finds the other transport.
    let client = side(TransportChoice::Both);
    let (id, _end) = client.connecting(addr(FAR), &ConnParam::default());
    client.expect(EventKind::Established);
    assert!(id.context().unwrap().info().name.starts_with("viw"));
    other.tell("end");
    assert!(other.child.wait().unwrap().success());
}

#[test]
fn a_client_that_may_take_both_takes_roce_where_a_host_has_it() {
    let name = "a_client_that_may_take_both_takes_roce_where_a_host_has_it";
    if std::env::var(ROLE).is_ok() || other::runs_alone(name) {
        return;
    }
    let Some(mut other) = far_host("roce") else { return };
    let client = side(TransportChoice::Both);
    let (id, _end) = client.connecting(addr(FAR), &ConnParam::default());
    client.expect(EventKind::Established);
    assert!(id.context().unwrap().info().name.starts_with("vernic"));
    other.tell("end");
    assert!(other.child.wait().unwrap().success());
}

#[test]
fn on_one_host_the_names_of_services_say_which_transport_a_listener_has() {
    for (transport, prefix) in [(TransportChoice::Roce, "vernic"), (TransportChoice::Iwarp, "viw")]
    {
        let server = side(transport);
        let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
        let client = side(TransportChoice::Both);
        let (id, _end) = client.connecting(place, &ConnParam::default());
        let request = server.expect(EventKind::ConnectRequest);
        let name = id.context().unwrap().info().name.clone();
        assert!(name.starts_with(prefix), "{name} to a listener of {transport:?}");
        request.id.reject(b"no").unwrap();
        assert_eq!(client.event().kind, EventKind::Rejected);
    }
}
