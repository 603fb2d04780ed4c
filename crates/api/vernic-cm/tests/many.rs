//! Many connections: none leaks, and none waits for another.

mod common;

use std::time::Instant;

use common::*;
use vernic_cm::{ConnParam, EventKind, PortSpace, QpType};

/// Environment variable: how many connections, for longer runs by hand.
const COUNT: &str = "VERNIC_TEST_CONNECTIONS";

/// Makes and ends `count` connections, one after the other; returns the seconds that it took.
fn churn(server: &Side, client: &Side, place: std::net::SocketAddr, count: usize) -> f64 {
    let begin = Instant::now();
    for _ in 0..count {
        let (id, end) = client.connecting(place, &ConnParam::default());
        let accepted = server.expect(EventKind::ConnectRequest).id.clone();
        let accepted_end = End::new(&accepted);
        accepted.attach_qp(accepted_end.qp.clone()).unwrap();
        accepted.accept(&ConnParam::default()).unwrap();
        client.expect(EventKind::Established);
        server.expect(EventKind::Established);
        id.disconnect().unwrap();
        server.expect(EventKind::Disconnected);
        accepted.disconnect().unwrap();
        client.expect(EventKind::Disconnected);
        id.destroy();
        accepted.destroy();
        drop((end, accepted_end));
    }
    begin.elapsed().as_secs_f64()
}

#[test]
fn connections_leave_nothing_behind() {
    let (server, client) = (Side::new(), Side::new());
    let (_listener, place) = server.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let count = std::env::var(COUNT).map_or(200, |count| count.parse().unwrap());
    let seconds = churn(&server, &client, place, count);
    eprintln!("{:.0} connections/s", count as f64 / seconds);
    for side in [&server, &client] {
        let context = side.manager.context("lo").unwrap();
        assert_eq!(context.open_qps(), 0);
        assert_eq!(context.cm().occupancy().live, 0, "{:?}", context.cm().occupancy());
        side.expect_nothing();
    }
}
