//! What the tests of sockets share: two sides of one process, over `lo`.
#![allow(dead_code, unreachable_pub)]

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vernic_cm::{Config, Manager};
use vernic_rsocket::{
    Error, Family, MsgFlags, PollItem, Polled, Runtime, Settings, Socket, SocketKind, poll,
};

/// Tests of one program run one at a time: each looks at descriptors or at times.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sockets over devices that are opened for the test.
pub fn runtime() -> Arc<Runtime> {
    runtime_with(Config::default())
}

pub fn runtime_with(config: Config) -> Arc<Runtime> {
    let manager = Manager::new(config);
    Arc::new(Runtime::new(&manager, Settings::default()).unwrap())
}

pub fn stream(runtime: &Runtime) -> Socket {
    runtime.socket(Family::V4, SocketKind::Stream).unwrap()
}

pub fn home() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A listener on a free port.
pub fn listener(runtime: &Runtime) -> Socket {
    let listener = stream(runtime);
    listener.bind(home()).unwrap();
    listener.listen(8).unwrap();
    listener
}

/// Both ends of a connection.
pub fn pair(runtime: &Runtime) -> (Socket, Socket) {
    let listener = listener(runtime);
    let client = stream(runtime);
    client.connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap();
    listener.close();
    (client, server)
}

pub fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, Error> {
    socket.send(&[IoSlice::new(bytes)], None, MsgFlags::NONE)
}

pub fn send_all(socket: &Socket, bytes: &[u8]) {
    assert_eq!(send(socket, bytes).unwrap(), bytes.len());
}

pub fn recv_flags(socket: &Socket, len: usize, flags: i32) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len];
    let received = socket.recv(&mut [IoSliceMut::new(&mut bytes)], MsgFlags(flags))?;
    bytes.truncate(received.copied);
    Ok(bytes)
}

pub fn recv(socket: &Socket, len: usize) -> Result<Vec<u8>, Error> {
    recv_flags(socket, len, 0)
}

/// Exactly so many bytes.
pub fn recv_exact(socket: &Socket, len: usize) -> Vec<u8> {
    recv_flags(socket, len, libc::MSG_WAITALL).unwrap()
}

/// All bytes until the end.
pub fn recv_to_end(socket: &Socket) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match recv(socket, 1 << 16).unwrap() {
            some if some.is_empty() => return all,
            some => all.extend(some),
        }
    }
}

/// Sends a datagram, whole.
pub fn send_to(socket: &Socket, bytes: &[u8], to: SocketAddr) {
    let sent = socket.send(&[IoSlice::new(bytes)], Some(to), MsgFlags::NONE).unwrap();
    assert_eq!(sent, bytes.len());
}

/// The next datagram, and where it is from.
pub fn recv_from(socket: &Socket) -> (Vec<u8>, SocketAddr) {
    let mut bytes = vec![0; 4096];
    let received = socket.recv(&mut [IoSliceMut::new(&mut bytes)], MsgFlags::NONE).unwrap();
    bytes.truncate(received.copied);
    (bytes, received.from.unwrap())
}

/// Bytes that are told apart from others.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Waits for one socket; which events it has.
pub fn wait_for(socket: &Socket, events: i16, timeout: Duration) -> i16 {
    let mut items = [PollItem { what: Polled::Socket(socket.clone()), events, revents: 0 }];
    poll(&mut items, Some(timeout), Duration::from_micros(10)).unwrap();
    items[0].revents
}

/// Waits until `condition` holds, for ten seconds at most.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Maps a buffer for the peer, and ends that, again and again until `is_over`.
pub fn map_again_and_again(socket: &Socket, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        unmap(socket, map(socket));
    }
}

/// Maps a buffer for the peer: which.
#[allow(unsafe_code)] // as programs do it
pub fn map(socket: &Socket) -> &'static [AtomicU8] {
    // Of nobody else, and for ever: the peer may write there until the connection has ended.
    let window: &'static [AtomicU8] = Box::leak((0..64).map(|_| AtomicU8::new(0)).collect());
    let at = window.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: memory that stays, and that nobody accesses but the peer.
    unsafe { socket.map(at, window.len(), Some(0)) }.unwrap();
    window
}

pub fn unmap(socket: &Socket, window: &[AtomicU8]) {
    socket.unmap(window.as_ptr().addr(), window.len()).unwrap();
}

/// Long enough for a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

pub fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().errno()
}

pub fn set_int(socket: &Socket, level: i32, option: i32, value: i32) {
    socket.set_option(level, option, &value.to_ne_bytes()).unwrap();
}

pub fn int(socket: &Socket, level: i32, option: i32) -> i32 {
    let value = socket.option(level, option).unwrap();
    i32::from_ne_bytes(value[..4].try_into().unwrap())
}
