//! Processes of other users on one host: they hand nothing over, and nothing is handed to them.

#![allow(clippy::print_stdout, unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_io::{Link, Nanos, RxBatch, Slot, SlotTable, TxBatch, UdpConfig, UdpLink, udp};
use vernic_wire::Qpn;

const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: libc::uid_t = 65_534;

/// Runs `f` in a thread that is another user's; `None` where that is not possible.
fn as_nobody<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    let run = || {
        // The system call changes this thread alone; the function of libc would change them all.
        // SAFETY: no pointers are passed.
        let ret = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        (ret == 0).then(f)
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// A connection-keeping Unix socket, and the abstract address `\0name`.
fn socket(name: &str) -> (libc::c_int, libc::sockaddr_un, libc::socklen_t) {
    socket_of(libc::SOCK_SEQPACKET, name)
}

fn socket_of(kind: libc::c_int, name: &str) -> (libc::c_int, libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: a sockaddr_un of zeros is valid; no pointers are passed.
    let (mut addr, fd) = unsafe {
        let kind = kind | libc::SOCK_CLOEXEC;
        (std::mem::zeroed::<libc::sockaddr_un>(), libc::socket(libc::AF_UNIX, kind, 0))
    };
    assert!(fd >= 0);
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in addr.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (fd, addr, (3 + name.len()) as libc::socklen_t)
}

fn link(scope: &str, ip: IpAddr) -> (UdpLink, Arc<SlotTable>) {
    let slots = SlotTable::with_scope(scope).unwrap();
    let mut link = UdpLink::open(UdpConfig::default(), slots.clone());
    link.activate(ip.into()).unwrap();
    (link, slots)
}

#[test]
fn packets_are_handed_over_among_processes_of_one_user_only() {
    let scope = format!("vu{}", std::process::id());
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = IpAddr::from([127, 192 | high & 63, low, 1]);
    let (mut receiver, slots) = link(&scope, ip);
    let slot = slots.claim().unwrap();
    let mut rx = RxBatch::new();
    let start = Instant::now();
    let now = || Nanos(start.elapsed().as_nanos() as u64);

    // One that comes to the door of a slot is sent away.
    let stranger = as_nobody(|| {
        let (fd, addr, len) = socket(&format!("{scope}/{}/queue", slot.value()));
        // SAFETY: the pointer is to `addr`, which is longer than `len`.
        assert_eq!(unsafe { libc::connect(fd, (&raw const addr).cast(), len) }, 0);
        fd
    });
    let Some(stranger) = stranger else {
        println!("skipped: needs root");
        return;
    };
    while receiver.counters().hand_over_rejects == 0 {
        receiver.recv(now(), &mut rx);
        assert!(start.elapsed() < PATIENCE, "{:?}", receiver.counters());
    }
    let mut byte = 0u8;
    // SAFETY: the pointer is to one byte; the descriptor is this test's.
    let end = unsafe { libc::recv(stranger, (&raw mut byte).cast(), 1, 0) };
    assert_eq!(end, 0, "it was hung up on");

    // One that has a name of a slot, whichever, gets no packet for it.
    for (bit, name, kind) in [(2, "queue", libc::SOCK_SEQPACKET), (4, "packets", libc::SOCK_DGRAM)]
    {
        let taken = Slot::of(Qpn::new((u32::from(slot.value()) ^ bit) << Slot::INDEX_BITS));
        as_nobody(|| {
            let (fd, addr, len) = socket_of(kind, &format!("{scope}/{}/{name}", taken.value()));
            // SAFETY: the pointer is to `addr`, which is longer than `len`.
            unsafe {
                assert_eq!(libc::bind(fd, (&raw const addr).cast(), len), 0);
                assert!(kind == libc::SOCK_DGRAM || libc::listen(fd, 8) == 0);
            }
        });
        let mut tx = TxBatch::new(&receiver.limits());
        let path = udp::path(ip, (ip, vernic_io::ROCE_PORT).into());
        let [_, qpn @ ..] = taken.qpn(1).value().to_be_bytes();
        tx.room().unwrap()[5..8].copy_from_slice(&qpn);
        tx.push(&path, 64);
        receiver.send(now(), &mut tx);
        // It stays here, where the engine counts a packet for an unknown queue pair.
        while receiver.recv(now(), &mut rx) == 0 {
            assert!(start.elapsed() < PATIENCE, "{name}: {:?}", receiver.counters());
        }
        assert_eq!(receiver.counters().handed_over, 0, "{name}");
    }
}
