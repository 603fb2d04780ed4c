//! Hosts that are not there: next hops that nobody answers for, in a network namespace of the
//! test's own.
#![allow(clippy::print_stdout)] // what is skipped

mod common;
/// What the engine's tests have for it.
#[path = "../../../core/vernic-engine/tests/common/other.rs"]
#[allow(dead_code, unreachable_pub)] // these tests use their part
mod other;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use vernic_cm::{Config, EventKind, Id};
use vernic_engine::TransportChoice;

/// Longest wait for another process to do as it is told.
const PATIENCE: Duration = LONG;

/// Runs `ip` in the namespace of this process.
fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split_whitespace()).status().unwrap().success()
}

/// A cable with both ends here, at one of which there is a host: this one.
fn lay_cable(name: &str, number: u32) -> bool {
    let far = format!("{name}far");
    ip(&format!("link add {name} type veth peer name {far}"))
        && ip(&format!("address add 10.78.{number}.1/24 dev {name}"))
        && ip(&format!("address add fd78:{number}::1/64 dev {name} nodad"))
        && ip(&format!("link set {far} up"))
        && ip(&format!("link set {name} up"))
}

/// Waits until IPv6 works on the cable.
fn await_ipv6(side: &Side) {
    let until = Instant::now() + LONG;
    while side.tcp().bind_addr(addr("[fd78:1::1]:0")).is_err() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An id that looks for `place`.
fn looking(side: &Side, place: &str, timeout: Duration) -> Arc<Id> {
    let id = side.tcp();
    id.resolve_addr(None, addr(place), timeout).unwrap();
    id
}

/// What becomes of ids that look for places, by the order of the places.
fn outcomes(side: &Side, timeout: Duration, places: &[&str]) -> Vec<(EventKind, i32)> {
    let ids: Vec<_> = places.iter().map(|place| looking(side, place, timeout)).collect();
    let mut told = vec![None; ids.len()];
    for _ in &ids {
        let event = side.event();
        let at = ids.iter().position(|id| Arc::ptr_eq(id, &event.id)).unwrap();
        told[at] = Some((event.kind, event.status));
    }
    told.into_iter().map(Option::unwrap).collect()
}

/// For a side of a transport: hosts on the network, behind gateways, known and unknown.
fn look_around(side: &Side) {
    let home = ["127.0.0.1:7", "[::1]:7", "10.78.1.1:7", "[fd78:1::1]:7", "10.78.2.1:7"];
    let known = ["10.78.1.7:7", "[fd78:1::7]:7", "198.51.100.7:7", "[2001:db8:7::7]:7"];
    let needs_no_arp = ["10.78.2.9:7", "[fd78:2::9]:7"];
    for place in [&home[..], &known[..], &needs_no_arp[..]].concat() {
        let id = looking(side, place, LONG);
        let event = side.channel.try_next();
        let event = event.unwrap_or_else(|| panic!("{place} is not told at once"));
        assert_eq!((event.kind, event.status), (EventKind::AddrResolved, 0), "{place}");
        id.resolve_route(SOON).unwrap();
        side.expect(EventKind::RouteResolved);
    }
    let absent = ["10.78.1.9:7", "[fd78:1::9]:7", "203.0.113.9:7", "[2001:db8:9::9]:7"];
    let timed_out = (EventKind::AddrError, -libc::ETIMEDOUT);
    assert_eq!(outcomes(side, Duration::from_millis(100), &absent), [timed_out; 4]);
    let unreachable = (EventKind::AddrError, -libc::EHOSTUNREACH);
    assert_eq!(outcomes(side, LONG, &absent), [unreachable; 4]);
}

#[test]
fn a_host_that_is_not_there_is_an_error_of_its_address() {
    if other::runs_alone("a_host_that_is_not_there_is_an_error_of_its_address") {
        return;
    }
    if !lay_cable("near", 1) || !lay_cable("quiet", 2) {
        println!("skipped: no veth here");
        return;
    }
    for setting in [
        "link set quiet arp off",
        "neighbour add 10.78.1.7 lladdr 02:00:00:00:00:07 dev near nud permanent",
        "neighbour add fd78:1::7 lladdr 02:00:00:00:00:07 dev near nud permanent",
        "route add 198.51.100.0/24 via 10.78.1.7",
        "route add 2001:db8:7::/48 via fd78:1::7",
        "route add 203.0.113.0/24 via 10.78.1.8",
        "route add 2001:db8:9::/48 via fd78:1::8",
    ] {
        assert!(ip(setting), "{setting}");
    }
    let sides = [TransportChoice::Roce, TransportChoice::Iwarp]
        .map(|transport| Side::with(Config { transport, ..Config::default() }));
    await_ipv6(&sides[0]);
    std::thread::scope(|scope| {
        for side in &sides {
            scope.spawn(|| look_around(side));
        }
    });
}

#[test]
fn a_host_that_answers_late_is_resolved_then() {
    if other::runs_alone("a_host_that_answers_late_is_resolved_then") {
        return;
    }
    if !lay_cable("near", 1) {
        println!("skipped: no veth here");
        return;
    }
    let side = Side::new();
    let id = looking(&side, "10.78.1.9:7471", LONG);
    assert_eq!(id.state(), vernic_cm::State::AddrQuery);
    side.expect_nothing();
    assert!(ip("neighbour replace 10.78.1.9 lladdr 02:00:00:00:00:09 dev near nud reachable"));
    side.expect(EventKind::AddrResolved);
    id.resolve_route(SOON).unwrap();
}
