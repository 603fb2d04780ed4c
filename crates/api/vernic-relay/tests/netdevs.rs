//! A relay between real netdevs: two pairs of veth in a network namespace of its own.
//!
//! ```text
//!   a0 ---- ra  relay  rb ---- b0
//! ```

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use vernic_relay::{Impairment, Relay, RelayError, Report};
use vernic_sys::{self as sys, FrameKind, IncomingFrame, MAX_FRAME_HEAD, OutgoingFrame, OwnFd};

/// Says that this process is the one in the namespace.
const INSIDE: &str = "VERNIC_RELAY_TEST";
/// An EtherType that nobody uses (IEEE 802, for experiments), so that only the test has frames.
const EXPERIMENTAL: u16 = 0x88B5;
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the test of this name once more, in a network namespace of its own. Returns whether this is
/// that process.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let apart = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net"]);
        command
    };
    let tried = apart().args(["ip", "link", "add", "x", "type", "veth"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no network namespaces, no veth, or no `ip`, here");
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = apart();
    command.arg(program).args([test, "--exact", "--nocapture"]);
    let status = command.env(INSIDE, "1").status().unwrap();
    assert!(status.success(), "{test} in a namespace: {status}");
    false
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

fn lay_cables() {
    for (host, relay) in [("a0", "ra"), ("b0", "rb")] {
        ip(&format!("link add {relay} type veth peer name {host}"));
        for netdev in [host, relay] {
            ip(&format!("link set {netdev} up"));
        }
    }
}

/// A station at one end.
struct Station {
    ifindex: u32,
    socket: OwnFd,
}

impl Station {
    fn new(netdev: &str) -> Self {
        let interfaces = sys::interfaces().unwrap();
        let ifindex = interfaces.iter().find(|one| one.name == netdev).unwrap().index;
        let socket = sys::frame_socket().unwrap();
        sys::bind_frames(socket.as_fd(), ifindex, EXPERIMENTAL).unwrap();
        Self { ifindex, socket }
    }
    /// Sends frames to all, with a number in each.
    fn send(&self, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let mut head = [0; MAX_FRAME_HEAD];
            head[..6].fill(0xFF);
            head[12..14].copy_from_slice(&EXPERIMENTAL.to_be_bytes());
            head[14..18].copy_from_slice(&number.to_be_bytes());
            let frame = OutgoingFrame { ifindex: self.ifindex, head, head_len: 64, body: &[] };
            let sent = sys::send_frames(self.socket.as_fd(), EXPERIMENTAL, [frame].into_iter());
            assert_eq!(sent.unwrap(), 1);
        }
    }
    /// Returns the numbers of so many frames that come.
    fn receive(&self, count: usize) -> Vec<u32> {
        let (until, mut all) = (Instant::now() + PATIENCE, Vec::new());
        while all.len() < count {
            assert!(Instant::now() < until, "{} of {count} frames came", all.len());
            let (mut buffer, mut incoming) = (vec![0; 32 * 2048], [IncomingFrame::NONE; 32]);
            match sys::recv_frames(self.socket.as_fd(), &mut buffer, 2048, &mut incoming) {
                Ok(taken) => {
                    let frames = incoming[..taken].iter().zip(buffer.chunks(2048));
                    let frames = frames.filter(|(frame, _)| frame.kind != FrameKind::Sent);
                    all.extend(frames.map(|(_, bytes)| {
                        u32::from_be_bytes([bytes[14], bytes[15], bytes[16], bytes[17]])
                    }));
                }
                Err(error) if sys::is_for_later(&error) => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        }
        all
    }
}

/// Runs a relay beside some work, and returns what the relay has done.
fn beside(words: &str, work: impl FnOnce(&Station, &Station)) -> Report {
    let impairment = Impairment::parse(words.split_whitespace()).unwrap();
    let mut relay = Relay::new(["ra", "rb"], impairment).unwrap();
    let (stop, stopped) = UnixDatagram::pair().unwrap();
    let relayed = thread::spawn(move || {
        relay.run(stopped.as_fd()).unwrap();
        relay.report()
    });
    work(&Station::new("a0"), &Station::new("b0"));
    stop.send(&[1]).unwrap();
    relayed.join().unwrap()
}

#[test]
fn frames_pass_in_both_directions_and_take_their_time() {
    if !is_inside("frames_pass_in_both_directions_and_take_their_time") {
        return;
    }
    lay_cables();
    let report = beside("", |a, b| {
        a.send(0..100);
        assert_eq!(b.receive(100), (0..100).collect::<Vec<_>>());
        b.send(100..200);
        assert_eq!(a.receive(100), (100..200).collect::<Vec<_>>());
    });
    // IPv6 of the kernel sends some frames of its own.
    assert!(report.directions.iter().all(|counts| counts.sent >= 100), "{report:?}");
    assert_eq!((report.too_long, report.refused, report.missed), ([0; 2], [0; 2], [0; 2]));
    beside("delay=100ms", |a, b| {
        let start = Instant::now();
        a.send(0..10);
        assert_eq!(b.receive(10).len(), 10);
        assert!(start.elapsed() >= Duration::from_millis(100));
    });
    let shapes = [(["ra", "ra"], "both ends"), (["ra", "none7"], "there is no netdev \"none7\"")];
    for (names, said) in shapes {
        let error = Relay::new(names, Impairment::default()).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert!(!matches!(error, RelayError::Socket { .. }), "{error}");
    }
}
