//! Connections whose operations are awaited.
#![cfg(feature = "tokio")]
#![expect(clippy::print_stdout, reason = "how a process of the test tells another its port")]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_core::Stream as _;
use tokio::task::JoinSet;
use tokio::time::timeout;
use vernic::net::{Connection, Listener, Network, OperationFailure, Options, Peer};
use vernic::{Access, Device, Error, Inline, cm};

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(30);
const HOME: &str = "127.0.0.1:0";
const ALL: Access = Access::NONE.remote_read().remote_write().remote_atomic();

/// Both ends of a connection, the accepting one first.
async fn pair(options: Options<'static>) -> (Connection, Connection) {
    let network = Network::of(cm::Manager::open().unwrap());
    let mut listener = network.listen(HOME, options).await.unwrap();
    let place = listener.local_addr();
    let (server, client) = tokio::join!(listener.accept(), network.connect(place, &options));
    (server.unwrap(), client.unwrap())
}

#[tokio::test]
async fn each_operation_is_one_await() {
    let (server, client) = pair(Options::default()).await;
    let theirs = server.alloc_mr(64, ALL).unwrap();
    let ours = client.alloc_mr(64, Access::NONE.local_write()).unwrap();
    let at = theirs.remote();
    ours.write_at(0, b"hello").unwrap();

    client.write(ours.slice(..5).unwrap(), at.at(16)).await.unwrap();
    client.write(&ours.slice(..5).unwrap(), at.at(24)).await.unwrap();
    assert_eq!(theirs.to_vec(16..29).unwrap(), b"hello\0\0\0hello");
    client.write(Inline(b"J"), at.at(16)).await.unwrap();
    client.read(ours.slice(..5).unwrap(), at.at(16)).await.unwrap();
    assert_eq!(ours.to_vec(..5).unwrap(), b"Jello");

    assert_eq!(client.fetch_add(at.at(0), 7).await.unwrap(), 0);
    assert_eq!(client.compare_swap(at.at(0), 7, 9).await.unwrap(), 7);
    assert_eq!(client.compare_swap(at.at(0), 7, 11).await.unwrap(), 9);
    assert_eq!(theirs.load_u64(0).unwrap(), 9);

    let inbox = server.alloc_mr(64, Access::NONE.local_write()).unwrap();
    let (sent, received) = tokio::join!(client.send(&ours), server.recv(&inbox));
    sent.unwrap();
    assert_eq!(received.unwrap().byte_len(), 64);
    assert_eq!(inbox.to_vec(..5).unwrap(), b"Jello");
    let (sent, received) = tokio::join!(client.send_imm(Inline(b"ab"), 5), server.recv(&inbox));
    sent.unwrap();
    let received = received.unwrap();
    assert_eq!((received.byte_len(), received.imm()), (2, Some(5)));
    let (written, received) =
        tokio::join!(client.write_imm(Inline(b"z"), at.at(40), 6), server.recv(()));
    written.unwrap();
    assert_eq!(received.unwrap().imm(), Some(6));
    assert_eq!(theirs.to_vec(40..41).unwrap(), b"z");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_of_many_tasks_share_few_places_and_find_their_own_results() {
    const TASKS: u64 = 32;
    const EACH: u64 = 100;
    let (server, client) = pair(Options { depth: 4, ..Options::default() }).await;
    let counter = server.alloc_mr(8, ALL).unwrap();
    let at = counter.remote().at(0);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..EACH {
                seen.push(client.fetch_add(at, 1).await.unwrap());
            }
            seen
        });
    }
    let mut seen = Vec::new();
    while let Some(task) = timeout(LONG, tasks.join_next()).await.unwrap() {
        let own = task.unwrap();
        assert!(own.is_sorted(), "a task's operations are in order");
        seen.extend(own);
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..TASKS * EACH));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_one_task_arrive_in_order_while_others_wait_for_room() {
    const COUNT: u64 = 500;
    let (server, client) = pair(Options { depth: 3, ..Options::default() }).await;
    let sending = tokio::spawn(async move {
        for number in 0..COUNT {
            client.send(Inline(&number.to_be_bytes())).await.unwrap();
        }
        client
    });
    let inbox = server.alloc_mr(8, Access::NONE.local_write()).unwrap();
    for number in 0..COUNT {
        timeout(LONG, server.recv(&inbox)).await.unwrap().unwrap();
        assert_eq!(inbox.to_vec(..).unwrap(), number.to_be_bytes());
    }
    timeout(LONG, sending).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_dropped_future_and_its_dropped_region_leave_the_connection_whole() {
    let (server, client) = pair(Options { depth: 1, ..Options::default() }).await;
    let outbox = client.alloc_mr(5, Access::NONE).unwrap();
    outbox.write_at(0, b"first").unwrap();
    // The peer has no receive yet, so the SEND cannot complete.
    assert!(timeout(SHORT, client.send(&outbox)).await.is_err());
    drop(outbox);
    // The only place is taken, and this one is given up before it has one.
    assert!(timeout(SHORT, client.send(Inline(b"never"))).await.is_err());

    let inbox = server.alloc_mr(8, Access::NONE.local_write()).unwrap();
    let first = timeout(LONG, server.recv(&inbox)).await.unwrap().unwrap();
    assert_eq!(inbox.to_vec(..first.byte_len() as usize).unwrap(), b"first");
    let (sent, second) = tokio::join!(client.send(Inline(b"second")), server.recv(&inbox));
    sent.unwrap();
    assert_eq!(inbox.to_vec(..second.unwrap().byte_len() as usize).unwrap(), b"second");
}

#[tokio::test]
async fn a_dropped_receive_takes_its_message_with_it_and_no_other() {
    let (server, client) = pair(Options::default()).await;
    let lost = server.alloc_mr(8, Access::NONE.local_write()).unwrap();
    let kept = lost.buffer();
    assert!(timeout(SHORT, server.recv(&lost)).await.is_err());
    drop(lost);
    client.send(Inline(b"one")).await.unwrap();
    let inbox = server.alloc_mr(8, Access::NONE.local_write()).unwrap();
    let (sent, received) = tokio::join!(client.send(Inline(b"two")), server.recv(&inbox));
    sent.unwrap();
    received.unwrap();
    assert_eq!(inbox.to_vec(..3).unwrap(), b"two");
    let mut bytes = [0; 3];
    kept.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"one");
}

#[tokio::test]
async fn a_region_that_is_deregistered_is_out_of_reach_at_once() {
    let (server, client) = pair(Options::default()).await;
    let lost = server.alloc_mr(8, Access::NONE.local_write()).unwrap();
    assert!(timeout(SHORT, server.recv(&lost)).await.is_err());
    let buffer = lost.deregister();
    client.send(Inline(b"one")).await.unwrap_err();
    let mut bytes = [1; 3];
    buffer.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 3]);
}

#[tokio::test]
async fn what_is_refused_takes_no_place_and_says_what_is_wrong() {
    let (server, client) = pair(Options { depth: 2, ..Options::default() }).await;
    let theirs = server.alloc_mr(64, ALL).unwrap();
    for _ in 0..5 {
        let error = client.send(Inline(&[0; 65])).await.unwrap_err();
        assert!(matches!(error.cause, OperationFailure::Send(_)), "{error}");
        assert!(error.to_string().contains("65 bytes inline"), "{error}");
        let error = client.write(Inline(b"abc"), theirs.remote().at(62)).await.unwrap_err();
        assert!(matches!(error.cause, OperationFailure::RemoteRange { room: 2 }), "{error}");
        let parts = ["WRITE of 3 bytes", "127.0.0.1:", "after 2 bytes"];
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
    }
    client.write(Inline(b"ab"), theirs.remote().at(62)).await.unwrap();
}

#[tokio::test]
async fn a_refusal_by_the_peer_names_the_operation_and_fails_what_comes_after() {
    let (server, client) = pair(Options::default()).await;
    let theirs = server.alloc_mr(64, Access::NONE.remote_read()).unwrap();
    let error = client.write(Inline(b"x"), theirs.remote().at(0)).await.unwrap_err();
    let text = Error::from(error).to_string();
    let Peer::Addr(peer) = client.peer() else { panic!("{text}") };
    for part in ["WRITE of 1 bytes", &peer.to_string(), "RemoteAccess"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let error = client.send(Inline(b"x")).await.unwrap_err();
    assert!(error.to_string().contains("RemoteAccess"), "{error}");
}

#[tokio::test]
async fn an_end_by_one_side_fails_what_waits_on_both() {
    let (server, client) = pair(Options::default()).await;
    let inbox = server.alloc_mr(8, Access::NONE.local_write()).unwrap();
    let ours = client.alloc_mr(8, Access::NONE.local_write()).unwrap();
    let (theirs, own, left, ended) =
        tokio::join!(server.recv(&inbox), client.recv(&ours), server.wait_disconnected(), async {
            tokio::time::sleep(SHORT).await;
            client.disconnect().await
        });
    ended.unwrap();
    let () = left;
    let (theirs, own) = (theirs.unwrap_err(), own.unwrap_err());
    assert!(matches!(theirs.cause, OperationFailure::Disconnected), "{theirs}");
    assert!(matches!(own.cause, OperationFailure::Closed), "{own}");
    assert!(theirs.to_string().contains(&server.peer().to_string()), "{theirs}");
    let error = server.send(Inline(b"x")).await.unwrap_err();
    assert!(matches!(error.cause, OperationFailure::Disconnected), "{error}");
    server.disconnect().await.unwrap();
}

#[tokio::test]
async fn the_last_handle_that_is_dropped_ends_the_connection() {
    let (server, client) = pair(Options::default()).await;
    let other = client.clone();
    drop(client);
    assert!(timeout(SHORT, server.wait_disconnected()).await.is_err());
    drop(other);
    timeout(LONG, server.wait_disconnected()).await.unwrap();
}

#[tokio::test]
async fn a_listener_is_a_stream_of_connections_that_are_made_beside_each_other() {
    let mut listener = Listener::bind(HOME).await.unwrap();
    let place = listener.local_addr();
    let mut clients = JoinSet::new();
    for number in 0..8u64 {
        clients.spawn(async move {
            let client = Connection::connect(place).await.unwrap();
            client.send(Inline(&number.to_be_bytes())).await.unwrap();
            client.wait_disconnected().await;
        });
    }
    let mut numbers = Vec::new();
    for _ in 0..8 {
        let next = std::future::poll_fn(|cx| Pin::new(&mut listener).poll_next(cx));
        let server = timeout(LONG, next).await.unwrap().unwrap().unwrap();
        let inbox = server.alloc_mr(8, Access::NONE.local_write()).unwrap();
        server.recv(&inbox).await.unwrap();
        numbers.push(u64::from_be_bytes(inbox.to_vec(..).unwrap().try_into().unwrap()));
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..8));
    while let Some(client) = timeout(LONG, clients.join_next()).await.unwrap() {
        client.unwrap();
    }
}

#[tokio::test]
async fn a_peer_that_stops_in_its_handshake_holds_up_no_other() {
    let mut listener = Listener::bind(HOME).await.unwrap();
    let place = listener.local_addr();
    // It asks, and does not look at the answer.
    let mut slow = pin!(Connection::connect(place));
    assert!(timeout(SHORT, &mut slow).await.is_err());
    let quick = tokio::spawn(Connection::connect(place));
    let served = timeout(LONG, listener.accept()).await.unwrap().unwrap();
    let quick = quick.await.unwrap().unwrap();
    assert_eq!(served.peer().to_string(), quick.local_addr().unwrap().to_string());
    let (served, slow) = tokio::join!(listener.accept(), slow);
    assert_eq!(served.unwrap().peer().to_string(), slow.unwrap().local_addr().unwrap().to_string());
}

#[tokio::test]
async fn accepting_that_is_given_up_again_and_again_loses_no_connection() {
    let mut listener = Listener::bind(HOME).await.unwrap();
    assert!(timeout(SHORT, listener.accept()).await.is_err());
    let client = tokio::spawn(Connection::connect(listener.local_addr()));
    let mut turns = 0;
    let server = loop {
        match timeout(Duration::from_micros(50), listener.accept()).await {
            Ok(accepted) => break accepted.unwrap(),
            Err(_) => turns += 1,
        }
        assert!(turns < 100_000, "nobody connects");
    };
    let client = client.await.unwrap().unwrap();
    let (sent, received) = tokio::join!(client.send(Inline(b"")), server.recv(()));
    sent.unwrap();
    received.unwrap();
}

#[tokio::test]
async fn a_dropped_listener_rejects_those_who_ask() {
    let mut listener = Listener::bind(HOME).await.unwrap();
    let place = listener.local_addr();
    let client = tokio::spawn(Connection::connect(place));
    tokio::time::sleep(SHORT).await;
    drop(listener.accept()); // never polled
    drop(listener);
    let error = timeout(LONG, client).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains(&place.to_string()), "{error}");
    let error = Connection::connect(place).await.unwrap_err();
    assert!(matches!(error, Error::Cm(cm::CmError::Rejected { .. })), "{error}");
}

#[tokio::test]
async fn ends_that_exchange_endpoints_themselves_are_connections_too() {
    let device = Device::open("lo").unwrap();
    let pd = device.alloc_pd().unwrap();
    let half = || Connection::prepare(&pd, &Options::default()).unwrap();
    let (a, b) = (half(), half());
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(at_b).unwrap(), b.connect(at_a).unwrap());
    let region = b.alloc_mr(8, ALL).unwrap();
    assert_eq!(a.fetch_add(region.remote().at(0), 1).await.unwrap(), 0);
    assert!(a.peer().to_string().contains(&at_b.qpn.to_string()));
    a.disconnect().await.unwrap();
    let error = a.send(Inline(b"x")).await.unwrap_err();
    assert!(matches!(error.cause, OperationFailure::Closed), "{error}");
}

#[test]
fn outside_a_runtime_there_is_an_error_and_no_panic() {
    let pd = Device::open("lo").unwrap().alloc_pd().unwrap();
    let error = Connection::prepare(&pd, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("completion channel"), "{error}");
}

#[test]
fn handles_may_go_to_any_thread_and_so_may_futures() {
    fn check<T: Send + Sync>() {}
    fn check_future<T: Send>(_: T) {}
    check::<Connection>();
    check::<Listener>();
    check::<Network>();
    let _ = |connection: &Connection| {
        check_future(connection.send(Inline(b"x")));
        check_future(connection.recv(()));
        check_future(connection.disconnect());
    };
}

/// Says that this process of the test is the peer that will be killed. Not named like a setting.
const PEER: &str = "NET_TEST_PEER";

/// A process that accepts a connection and does nothing more, and where it listens.
fn idle_peer(test: &str) -> (Child, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(PEER, "1").stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut words = lines
        .map(|line| line.unwrap())
        .filter_map(|line| line.split_once("listens at ").map(|(_, place)| place.parse().unwrap()));
    let place = words.next().expect("the peer says where it listens");
    (child, place)
}

#[tokio::test]
async fn a_peer_that_is_killed_is_named_by_whoever_sends_or_keeps_alive() {
    if std::env::var_os(PEER).is_some() {
        let mut listener = Listener::bind(HOME).await.unwrap();
        println!("listens at {}", listener.local_addr());
        let mut accepted = Vec::new();
        loop {
            accepted.push(listener.accept().await.unwrap());
        }
    }
    let name = "a_peer_that_is_killed_is_named_by_whoever_sends_or_keeps_alive";
    let (mut child, place) = idle_peer(name);
    let soon = cm::Options { retry_count: 1, ..Options::default().connection };
    let plain = Options { connection: soon, ..Options::default() };
    let watchful = Options { keep_alive: Some(SHORT), ..plain };
    let network = Network::of(cm::Manager::open().unwrap());
    let sender = network.connect(place, &plain).await.unwrap();
    let receiver = network.connect(place, &watchful).await.unwrap();
    // Signs of life do no harm to one that lives.
    assert!(timeout(4 * SHORT, receiver.recv(())).await.is_err());
    child.kill().unwrap();
    child.wait().unwrap();
    // Of no use to the peer, which has no receive: the request waits for an answer.
    let both = async { tokio::join!(sender.send(Inline(b"x")), receiver.recv(())) };
    let (sent, received) = timeout(LONG, both).await.unwrap();
    for error in [sent.unwrap_err(), received.unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains(&place.to_string()), "{text}");
        assert!(text.contains("RetryExceeded"), "{text}");
    }
}
