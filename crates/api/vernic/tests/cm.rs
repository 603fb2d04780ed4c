//! Connections by IP address through the safe API.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use vernic::cm::{CmError, Connection, Listener, Manager, Options, RejReason};
use vernic::{
    Access, Config, Cq, Device, Error, Inline, PathMigState, Pd, Qp, QpState, Rc, Reset, Service,
    Uc, WrId,
};

const LONG: Duration = Duration::from_secs(30);

fn home(address: &str) -> SocketAddr {
    format!("{address}:0").parse().unwrap()
}

fn manager() -> Manager {
    Manager::with(Config::default())
}

struct End {
    _pd: Pd,
    cq: Cq,
}

fn end<S: Service>(device: &Device) -> (End, Qp<S, Reset>) {
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let qp = pd.qp().send_cq(&cq).recv_cq(&cq).create().unwrap();
    (End { _pd: pd, cq }, qp)
}

/// Accepts the next peer on another thread, and connects to it.
fn pair<S: vernic::Connected>(
    listener: &Listener<S>,
    client: &Manager,
    options: &Options<'_>,
) -> [(End, Connection<S>); 2] {
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let request = listener.next(Some(LONG)).unwrap();
            let (end, qp) = end(request.device());
            let options = Options { private_data: b"welcome", ..Options::default() };
            (end, request.prepare(qp).unwrap().accept(&options).unwrap())
        });
        let route = client.resolve::<S>(listener.local_addr()).unwrap();
        let (end, qp) = end(route.device());
        let active = (end, route.prepare(qp).unwrap().connect(options).unwrap());
        [passive.join().unwrap(), active]
    })
}

#[test]
fn a_connection_says_who_and_what_is_at_the_other_end_and_ends_on_both() {
    for address in ["127.0.0.1", "[::1]"] {
        let listener = manager().listen::<Rc>(home(address)).unwrap();
        let options = Options { private_data: b"hello", ..Options::default() };
        let [(_end, mut passive), (_other, active)] = pair(&listener, &manager(), &options);
        assert_eq!(&passive.private_data()[..6], b"hello\0");
        assert_eq!(&active.private_data()[..8], b"welcome\0");
        assert_eq!((passive.private_data().len(), active.private_data().len()), (56, 196));
        assert_eq!(passive.peer_addr(), active.local_addr());
        assert_eq!(active.peer_addr(), listener.local_addr());
        assert_eq!(active.device().info().port.netdev, "lo");
        assert!(!passive.wait_disconnected(Some(Duration::ZERO)).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(passive.wait_disconnected(Some(LONG)).unwrap());
                passive.disconnect().unwrap();
            });
            active.disconnect().unwrap();
        });
    }
}

#[test]
fn the_peer_may_do_what_the_options_grant_and_nothing_by_default() {
    let listener = manager().listen::<Rc>(home("127.0.0.1")).unwrap();
    let access = Access::NONE.remote_read();
    let options = Options { remote_access: access, initiator_depth: Some(3), ..Options::default() };
    let [(_, passive), (_, active)] = pair(&listener, &manager(), &options);
    assert_eq!(active.qp().attributes().access, access.bits());
    assert_eq!(passive.qp().attributes().access, 0);
    assert_eq!(active.qp().attributes().max_rd_atomic, 3);
    assert_eq!(passive.qp().attributes().max_dest_rd_atomic, 3);
}

#[test]
fn an_alternate_path_is_loaded_on_both_sides_or_on_none() {
    let ours: IpAddr = "::1".parse().unwrap();
    let listener = manager().listen::<Rc>(home("127.0.0.1")).unwrap();
    let [(_end, passive), (_other, active)] = pair(&listener, &manager(), &Options::default());
    let states = || [&passive, &active].map(|end| end.qp().attributes().path_mig_state);
    assert_eq!(states(), [PathMigState::Migrated; 2]);
    active.load_alternate_path(ours, ours).unwrap();
    assert_eq!(states(), [PathMigState::Rearm; 2]);
    let error = passive.load_alternate_path(ours, ours).unwrap_err();
    assert!(error.to_string().contains("passive side"), "{error}");
    let away = "198.18.9.9".parse().unwrap();
    let error = active.load_alternate_path(away, ours).unwrap_err();
    assert!(error.to_string().contains("has not the address"), "{error}");
    // With the request.
    let options = Options { alternate: Some((ours, ours)), ..Options::default() };
    let [(_end, passive), (_other, active)] = pair(&listener, &manager(), &options);
    for end in [&passive, &active] {
        let attr = end.qp().attributes();
        assert_eq!((attr.path_mig_state, attr.alt_av.dgid.to_ip()), (PathMigState::Rearm, ours));
    }
}

#[test]
fn unreliable_connections_are_made_alike() {
    let listener = manager().listen::<Uc>(home("127.0.0.1")).unwrap();
    let [(there, passive), (_here, active)] = pair(&listener, &manager(), &Options::default());
    passive.qp().post_recv(WrId(1), ()).unwrap();
    active.qp().post_send(WrId(2), Inline(&[])).unwrap();
    assert!(there.cq.wait_one(LONG).unwrap().is_recv());
}

#[test]
fn dropping_a_connection_disconnects_its_peer() {
    let listener = manager().listen::<Rc>(home("127.0.0.1")).unwrap();
    let [(_, mut passive), (_, active)] = pair(&listener, &manager(), &Options::default());
    assert!(!passive.is_disconnected());
    drop(active);
    assert!(passive.wait_disconnected(Some(LONG)).unwrap());
    assert!(passive.is_disconnected());
    passive.disconnect().unwrap();
}

fn refused(listener: &Listener<Rc>, client: &Manager) -> CmError {
    let route = client.resolve::<Rc>(listener.local_addr()).unwrap();
    let (_end, qp) = end(route.device());
    route.prepare(qp).unwrap().connect(&Options::default()).unwrap_err()
}

#[test]
fn a_rejection_carries_its_reason_and_data_and_names_the_peer() {
    let (server, client) = (manager(), manager());
    let listener = server.listen::<Rc>(home("127.0.0.1")).unwrap();
    let place = listener.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(|| listener.next(Some(LONG)).unwrap().reject(b"full").unwrap());
        let error = refused(&listener, &client);
        let CmError::Rejected { peer, reason, private_data } = &error else { panic!("{error}") };
        assert_eq!((*peer, *reason), (place, RejReason::CONSUMER));
        assert_eq!(&private_data[..5], b"full\0");
        assert!(error.to_string().contains(&place.to_string()));
    });
    // What is dropped without an answer is rejected, too.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(listener.next(Some(LONG)).unwrap()));
        assert!(matches!(refused(&listener, &client), CmError::Rejected { .. }));
    });
    drop(listener);
    let route = client.resolve::<Rc>(place).unwrap();
    let (_end, qp) = end(route.device());
    let error = route.prepare(qp).unwrap().connect(&Options::default()).unwrap_err();
    let nobody = RejReason::INVALID_SERVICE_ID;
    assert!(matches!(error, CmError::Rejected { reason, .. } if reason == nobody), "{error}");
}

#[test]
fn time_that_is_over_is_told_with_how_long_it_was() {
    let (server, client) = (manager(), manager());
    let listener = server.listen::<Rc>(home("127.0.0.1")).unwrap();
    let short = Duration::from_millis(20);
    let error = listener.next(Some(short)).unwrap_err();
    assert!(matches!(error, CmError::Timeout { timeout, .. } if timeout == short), "{error}");
    assert!(listener.try_next().unwrap().is_none());
    let route = client.resolve::<Rc>(listener.local_addr()).unwrap();
    let (_end, qp) = end(route.device());
    let options = Options { timeout: short, ..Options::default() };
    // It waits at the listener, and nobody takes it.
    let error = route.prepare(qp).unwrap().connect(&options).unwrap_err();
    assert!(error.to_string().contains("within 20ms"), "{error}");
}

#[test]
fn a_queue_pair_of_another_handle_to_the_device_is_refused_with_what_helps() {
    let client = manager();
    let listener = manager().listen::<Rc>(home("127.0.0.1")).unwrap();
    let route = client.resolve::<Rc>(listener.local_addr()).unwrap();
    let (_end, qp) = end(&Device::open("lo").unwrap());
    let error = route.prepare(qp).unwrap_err().to_string();
    assert!(error.contains("make it on the device that the route or request names"), "{error}");
    let error = Error::from(client.listen::<Rc>("192.0.2.77:1".parse().unwrap()).unwrap_err());
    assert!(error.to_string().contains("no device has the address 192.0.2.77"), "{error}");
}

#[test]
fn a_failed_connection_leaves_its_queue_pair_destroyed() {
    let client = manager();
    let listener = manager().listen::<Rc>(home("127.0.0.1")).unwrap();
    let route = client.resolve::<Rc>(listener.local_addr()).unwrap();
    let device = route.device().clone();
    let (_end, qp) = end::<Rc>(&device);
    let outgoing = route.prepare(qp).unwrap();
    assert_eq!(outgoing.qp().state(), QpState::Init);
    let options = Options { private_data: &[0; 57], ..Options::default() };
    let error = outgoing.connect(&options).unwrap_err();
    assert!(error.to_string().contains("57 bytes of private data"), "{error}");
}

#[cfg(feature = "tokio")]
mod in_tokio {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn both_ends_of_a_connection_are_awaited_on_one_thread() {
        let (server, client) = (manager(), manager());
        let mut listener = server.listen::<Rc>(home("127.0.0.1")).unwrap();
        let place = listener.local_addr();
        let passive = async {
            let request = listener.next_async().await.unwrap();
            let (end, qp) = end(request.device());
            let incoming = request.prepare(qp).unwrap();
            let mut connection = incoming.accept_async(&Options::default()).await.unwrap();
            connection.wait_disconnected_async().await.unwrap();
            drop(end);
        };
        let active = async {
            let route = client.resolve::<Rc>(place).unwrap();
            let (end, qp) = end(route.device());
            let outgoing = route.prepare(qp).unwrap();
            let connection = outgoing.connect_async(&Options::default()).await.unwrap();
            drop((connection, end));
        };
        tokio::join!(passive, active);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn waiting_that_is_given_up_loses_no_request() {
        let (server, client) = (manager(), manager());
        let mut listener = server.listen::<Rc>(home("127.0.0.1")).unwrap();
        let nothing = tokio::time::timeout(Duration::from_millis(5), listener.next_async()).await;
        assert!(nothing.is_err());
        let route = client.resolve::<Rc>(listener.local_addr()).unwrap();
        let (_end, qp) = end(route.device());
        let outgoing = route.prepare(qp).unwrap();
        let options = Options::default();
        let (refused, ()) = tokio::join!(outgoing.connect_async(&options), async {
            listener.next_async().await.unwrap().reject(b"").unwrap();
        });
        assert!(matches!(refused.unwrap_err(), CmError::Rejected { .. }));
    }
}
