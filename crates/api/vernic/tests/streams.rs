//! Streams of bytes over RDMA in a runtime.
#![cfg(feature = "tokio")]

use std::io::ErrorKind;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use vernic::net::{RdmaListener, RdmaStream};

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);
const HOME: &str = "127.0.0.1:0";

/// Both ends of a stream, the accepting one first.
async fn pair() -> (RdmaStream, RdmaStream) {
    let listener = RdmaListener::bind(HOME).await.unwrap();
    let place = listener.local_addr().unwrap();
    let (server, client) = tokio::join!(listener.accept(), RdmaStream::connect(place));
    (server.unwrap(), client.unwrap())
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ seed).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_both_ways_at_once_in_pieces_of_every_size() {
    const LEN: usize = 3_000_000;
    let (server, client) = pair().await;
    let mut tasks = tokio::task::JoinSet::new();
    for (end, own, other) in [(server, 1, 2), (client, 2, 1)] {
        let (mut incoming, mut outgoing) = tokio::io::split(end);
        tasks.spawn(async move {
            let bytes = content(own, LEN);
            let (mut left, mut len) = (&bytes[..], 1);
            while !left.is_empty() {
                let (now, rest) = left.split_at(len.min(left.len()));
                outgoing.write_all(now).await.unwrap();
                left = rest;
                len = len * 7 % 100_003 + 1;
            }
            outgoing.shutdown().await.unwrap();
        });
        tasks.spawn(async move {
            let mut bytes = Vec::new();
            incoming.read_to_end(&mut bytes).await.unwrap();
            assert!(bytes == content(other, LEN));
        });
    }
    while let Some(task) = timeout(LONG, tasks.join_next()).await.unwrap() {
        task.unwrap();
    }
}

#[tokio::test]
async fn a_writer_waits_for_a_reader_and_goes_on_when_it_reads() {
    let (mut server, mut client) = pair().await;
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    let mut sent = 0;
    while let Ok(written) = timeout(SHORT, client.write(&[7; 10_000])).await {
        sent += written.unwrap();
        assert!(sent < 4 << 20, "nothing holds the writer back");
    }
    assert!(sent > 0);
    let reading = async {
        let mut bytes = vec![0; sent];
        server.read_exact(&mut bytes).await.unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    };
    let ((), written) = timeout(LONG, async { tokio::join!(reading, client.write(&[8; 9])) })
        .await
        .expect("the writer is woken");
    assert_eq!(written.unwrap(), 9);
    let mut last = [0; 9];
    server.read_exact(&mut last).await.unwrap();
    assert_eq!(last, [8; 9]);
}

#[tokio::test]
async fn one_direction_ends_and_the_other_goes_on() {
    let (mut server, mut client) = pair().await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "question");
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "the end stays");
    assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    server.write_all(b"answer").await.unwrap();
    drop(server);
    text.clear();
    timeout(LONG, client.read_to_string(&mut text)).await.unwrap().unwrap();
    assert_eq!(text, "answer");
}

#[tokio::test]
async fn a_read_that_is_given_up_loses_no_byte() {
    let (mut server, mut client) = pair().await;
    let mut word = [0; 4];
    assert!(timeout(SHORT, server.read(&mut word)).await.is_err());
    client.write_all(b"kept").await.unwrap();
    timeout(LONG, server.read_exact(&mut word)).await.unwrap().unwrap();
    assert_eq!(&word, b"kept");
}

#[tokio::test]
async fn a_sleeping_reader_is_woken_by_bytes_and_by_the_end() {
    let (mut server, mut client) = pair().await;
    let reading = tokio::spawn(async move {
        let mut bytes = Vec::new();
        server.read_to_end(&mut bytes).await.map(|_| bytes)
    });
    for _ in 0..3 {
        tokio::time::sleep(SHORT).await;
        client.write_all(b"x").await.unwrap();
    }
    tokio::time::sleep(SHORT).await;
    drop(client);
    let read = timeout(LONG, reading).await.unwrap().unwrap();
    assert_eq!(read.unwrap(), b"xxx");
}

#[tokio::test]
async fn where_nobody_listens_a_connection_is_refused_with_the_address() {
    let error = RdmaStream::connect("127.0.0.1:1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let error = RdmaListener::bind("192.0.2.77:0").await.unwrap_err();
    assert!(error.to_string().contains("192.0.2.77"), "{error}");
}

#[tokio::test]
async fn a_listener_is_a_stream_and_giving_it_up_loses_no_connection() {
    let mut listener = RdmaListener::bind(HOME).await.unwrap();
    let place = listener.local_addr().unwrap();
    assert!(timeout(SHORT, listener.accept()).await.is_err());
    let mut clients = Vec::new();
    for number in 0..4u8 {
        let mut client = RdmaStream::connect(place).await.unwrap();
        client.write_all(&[number]).await.unwrap();
        clients.push(client);
    }
    let mut numbers = Vec::new();
    for _ in 0..4 {
        let next = std::future::poll_fn(|cx| Pin::new(&mut listener).poll_next(cx));
        let mut server = timeout(LONG, next).await.unwrap().unwrap().unwrap();
        numbers.push(server.read_u8().await.unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3]);
}
