//! What the examples share: roles, the TCP connection over which both ends meet, the report.
#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod lossy;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use vernic::{Device, Error, cm::Manager};

/// TCP port over which the ends exchange their endpoints.
const PORT: u16 = 18515;
/// Bytes of a message.
pub(crate) const SIZE: usize = 64;
/// Round trips.
pub(crate) const ROUNDS: u64 = 1000;
/// A peer that says nothing for so long is gone.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Which end this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Answers.
    Server,
    /// Begins, and reports.
    Client,
}

/// Runs `end` as the command line says: `server [PORT]` (0 takes a free one), `client HOST [PORT]`,
/// or, without arguments, both ends in this process.
pub(crate) fn run(end: fn(&mut TcpStream, Role) -> Result<(), Error>) -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let port = |word: Option<&&str>| word.map_or(Some(PORT), |word| word.parse().ok());
    let usage =
        || Error::Io(std::io::Error::other("arguments: server [PORT] | client HOST [PORT]"));
    match words.as_slice() {
        [] => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let addr = listener.local_addr()?;
            let server = std::thread::spawn(move || end(&mut listener.accept()?.0, Role::Server));
            end(&mut TcpStream::connect(addr)?, Role::Client)?;
            server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }
        ["server", rest @ ..] => {
            let port = port(rest.first()).ok_or_else(usage)?;
            // A machine may have IPv6 switched off.
            let listener = TcpListener::bind(("::", port))
                .or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
            println!("waiting for the client on port {}", listener.local_addr()?.port());
            end(&mut listener.accept()?.0, Role::Server)
        }
        ["client", host, rest @ ..] => {
            let address = (*host, port(rest.first()).ok_or_else(usage)?);
            end(&mut TcpStream::connect(address)?, Role::Client)
        }
        _ => Err(usage()),
    }
}

/// What a server calls once it listens, with where.
pub(crate) type Ready<'a> = &'a dyn Fn(SocketAddr);

/// As [`run`], for ends that meet by IP address and need no TCP connection.
pub(crate) fn meet(
    server: fn(&Manager, SocketAddr, Ready<'_>) -> Result<(), Error>,
    client: fn(&Manager, SocketAddr) -> Result<(), Error>,
) -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let port = |word: Option<&&str>| word.map_or(Some(PORT), |word| word.parse().ok());
    let usage =
        || Error::Io(std::io::Error::other("arguments: server [PORT] | client HOST [PORT]"));
    let manager = Manager::open()?;
    match words.as_slice() {
        [] => {
            let (tell, told) = std::sync::mpsc::channel();
            let theirs = manager.clone();
            let serving = std::thread::spawn(move || {
                let home = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0);
                server(&theirs, home, &|place| _ = tell.send(place))
            });
            if let Ok(place) = told.recv() {
                client(&manager, place)?;
            }
            serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }
        ["server", rest @ ..] => {
            let port = port(rest.first()).ok_or_else(usage)?;
            let place = SocketAddr::new(IpAddr::from([0; 16]), port);
            server(&manager, place, &|place| {
                println!("waiting for the client on port {}", place.port());
            })
        }
        ["client", host, rest @ ..] => {
            let address = (*host, port(rest.first()).ok_or_else(usage)?);
            let mut found = address.to_socket_addrs()?;
            client(&manager, found.next().ok_or_else(usage)?)
        }
        _ => Err(usage()),
    }
}

/// Runs a future to its end, in a runtime of this thread.
#[cfg(feature = "tokio")]
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// The device on which the TCP connection runs: it reaches the peer.
pub(crate) fn open_device(stream: &TcpStream) -> Result<Device, Error> {
    Device::open_for(stream.local_addr()?.ip())
}

/// Says how long the round trips took.
pub(crate) fn report(device: &Device, what: &str, start: Instant) {
    let each_us = start.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64;
    let netdev = &device.info().port.netdev;
    println!("{ROUNDS} round trips of {SIZE} bytes by {what} over {netdev}: {each_us:.1} us each");
}
