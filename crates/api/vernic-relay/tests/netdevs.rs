//! A relay between real netdevs: two pairs of veth in a network namespace of its own.
//!
//! ```text
//!   a0 ---- ra  relay  rb ---- b0
//! ```

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use vernic_relay::{Impairment, Relay, RelayError, Report};
use vernic_sys::{self as sys, FrameKind, FrameRing, MAX_FRAME_HEAD, OutgoingFrame, RingFrame};

/// Says that this process is the one in the namespace.
const INSIDE: &str = "VERNIC_RELAY_TEST";
/// An EtherType that nobody uses (IEEE 802, for experiments), so that only the test has frames.
const EXPERIMENTAL: u16 = 0x88B5;
const OWN: [u8; 2] = EXPERIMENTAL.to_be_bytes();
/// EtherType of a tag (802.1Q).
const TAG: u16 = 0x8100;
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
            // Without addresses of IPv6, no frames come but those of the test.
            let quiet = ["link", "set", netdev, "addrgenmode", "none"];
            let _ = Command::new("ip").args(quiet).output();
            ip(&format!("link set {netdev} up"));
        }
    }
}

/// A station at one end.
struct Station {
    ifindex: u32,
    ring: FrameRing,
}

impl Station {
    fn new(netdev: &str) -> Self {
        Self::of_type(netdev, EXPERIMENTAL)
    }
    fn of_type(netdev: &str, ethertype: u16) -> Self {
        let interfaces = sys::interfaces().unwrap();
        let ifindex = interfaces.iter().find(|one| one.name == netdev).unwrap().index;
        let ring = FrameRing::new(sys::frame_socket().unwrap(), 1550, 16 << 20).unwrap();
        sys::bind_frames(ring.as_fd(), ifindex, ethertype).unwrap();
        Self { ifindex, ring }
    }
    /// Sends frames of so many bytes to all, with a number in each.
    fn send(&self, numbers: impl Iterator<Item = u32>, len: usize) {
        numbers.for_each(|number| self.send_frame(&OWN, number, len));
    }
    /// Sends a frame that has these bytes behind the addresses, and then a number.
    fn send_frame(&self, types: &[u8], number: u32, len: usize) {
        let mut frame = vec![0; len];
        frame[..6].fill(0xFF);
        let (start, end) = (12 + types.len(), 16 + types.len());
        frame[12..start].copy_from_slice(types);
        frame[start..end].copy_from_slice(&number.to_be_bytes());
        let head = [0; MAX_FRAME_HEAD];
        let frame = OutgoingFrame { ifindex: self.ifindex, head, head_len: 0, body: &frame };
        let sent = sys::send_frames(self.ring.as_fd(), EXPERIMENTAL, [frame].into_iter());
        assert_eq!(sent.unwrap(), 1);
    }
    /// Returns so many frames of the tests that come.
    fn receive_frames(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (until, mut all) = (Instant::now() + PATIENCE, Vec::new());
        while all.len() < count {
            let mut frame = Vec::new();
            match self.ring.take(&mut frame) {
                Some(RingFrame { kind: FrameKind::Sent, .. }) => {}
                Some(taken) if [12, 16].iter().any(|at| frame[*at..*at + 2] == OWN) => {
                    assert!(!taken.truncated);
                    all.push(frame);
                }
                Some(_) => {}
                None => {
                    assert!(Instant::now() < until, "{} of {count} frames came", all.len());
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        all
    }
    /// Returns the numbers of so many frames that come.
    fn receive(&mut self, count: usize) -> Vec<u32> {
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes[14..18].try_into().unwrap());
        self.receive_frames(count).iter().map(|frame| number(frame)).collect()
    }
}

fn relay_between(words: &str) -> Relay {
    let impairment = Impairment::parse(words.split_whitespace()).unwrap();
    Relay::new(["ra", "rb"], impairment).unwrap()
}

/// Runs a relay beside some work, and returns what the relay has done.
fn beside(mut relay: Relay, work: impl FnOnce()) -> Report {
    let (stop, stopped) = UnixDatagram::pair().unwrap();
    let relayed = thread::spawn(move || {
        relay.run(stopped.as_fd()).unwrap();
        relay.report()
    });
    work();
    stop.send(&[1]).unwrap();
    relayed.join().unwrap()
}

#[test]
fn frames_pass_in_both_directions_and_take_their_time() {
    if !is_inside("frames_pass_in_both_directions_and_take_their_time") {
        return;
    }
    lay_cables();
    let (mut a, mut b) = (Station::new("a0"), Station::new("b0"));
    let report = beside(relay_between(""), || {
        a.send(0..100, 64);
        assert_eq!(b.receive(100), (0..100).collect::<Vec<_>>());
        b.send(100..200, 64);
        assert_eq!(a.receive(100), (100..200).collect::<Vec<_>>());
    });
    assert!(report.directions.iter().all(|counts| counts.sent >= 100), "{report:?}");
    assert_eq!((report.too_long, report.refused, report.missed), ([0; 2], [0; 2], [0; 2]));
    beside(relay_between("delay=100ms"), || {
        let start = Instant::now();
        a.send(0..10, 64);
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

#[test]
fn a_burst_that_comes_at_once_and_is_due_at_once_passes_whole() {
    if !is_inside("a_burst_that_comes_at_once_and_is_due_at_once_passes_whole") {
        return;
    }
    lay_cables();
    let (a, mut b) = (Station::new("a0"), Station::new("b0"));
    let relay = relay_between("delay=20ms");
    // All of them are there before the relay takes the first.
    a.send(0..5000, 1082);
    let report = beside(relay, || assert_eq!(b.receive(5000), (0..5000).collect::<Vec<_>>()));
    assert_eq!((report.missed, report.refused), ([0; 2], [0; 2]), "{report:?}");
    // The ring has room for some 10,000 frames, and the others are counted.
    let relay = relay_between("");
    a.send(0..20_000, 64);
    let report = beside(relay, || drop(b.receive(10_000)));
    assert!((9000..=10_100).contains(&report.missed[0]), "{report:?}");
}

#[test]
fn frames_wait_for_a_netdev_that_has_no_room() {
    if !is_inside("frames_wait_for_a_netdev_that_has_no_room") {
        return;
    }
    lay_cables();
    let shape = "qdisc add dev rb root tbf rate 100mbit burst 20k limit 4m";
    if !Command::new("tc").args(shape.split(' ')).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no `tc`, or no token buckets, here");
        return;
    }
    let (a, mut b) = (Station::new("a0"), Station::new("b0"));
    let relay = relay_between("");
    a.send(0..2000, 1082);
    let report = beside(relay, || assert_eq!(b.receive(2000), (0..2000).collect::<Vec<_>>()));
    assert_eq!((report.missed, report.refused), ([0; 2], [0; 2]), "{report:?}");
}

#[test]
fn frames_keep_their_tags_and_long_ones_are_counted() {
    if !is_inside("frames_keep_their_tags_and_long_ones_are_counted") {
        return;
    }
    lay_cables();
    // The system tells only of a tag to those who receive frames of all types.
    let (a, mut b) = (Station::new("a0"), Station::of_type("b0", libc::ETH_P_ALL as u16));
    let tagged = [TAG, 0x2005, EXPERIMENTAL].map(u16::to_be_bytes);
    let relay = relay_between("");
    // The ring was made for the MTU of before.
    for netdev in ["a0", "ra"] {
        ip(&format!("link set {netdev} mtu 9000"));
    }
    let report = beside(relay, || {
        a.send(7..8, 9014);
        a.send_frame(tagged.as_flattened(), 8, 1518);
        let frames = b.receive_frames(1);
        assert_eq!(frames[0][12..22], [tagged.as_flattened(), &[0, 0, 0, 8]].concat());
        assert_eq!(frames[0].len(), 1518);
    });
    assert_eq!(report.too_long, [1, 0]);
}

#[test]
fn a_netdev_that_goes_away_ends_the_relay() {
    if !is_inside("a_netdev_that_goes_away_ends_the_relay") {
        return;
    }
    lay_cables();
    let (mut relay, (ended, end)) = (relay_between(""), mpsc::channel());
    let (_stop, stopped) = UnixDatagram::pair().unwrap();
    thread::spawn(move || ended.send(relay.run(stopped.as_fd())));
    ip("link delete ra");
    let error = end.recv_timeout(PATIENCE).unwrap().unwrap_err();
    // It is down for a moment before it is gone.
    let is_down = matches!(&error, RelayError::Down { name } if name == "ra");
    assert!(is_down || error.to_string().contains("receive by ra: Network is down"), "{error}");
}

#[test]
fn a_netdev_that_is_down_is_named_with_what_brings_it_up() {
    if !is_inside("a_netdev_that_is_down_is_named_with_what_brings_it_up") {
        return;
    }
    lay_cables();
    assert_eq!(relay_between("").without_carrier().count(), 0);
    ip("link set rb down");
    let down = Relay::new(["ra", "rb"], Impairment::default()).unwrap_err();
    let text = down.to_string();
    assert!(text.starts_with("rb is down") && text.contains("`ip link set rb up`"), "{text}");
    ip("link set rb up");
    // The other end of a cable is a matter of its host, which may set it up later.
    ip("link set b0 down");
    let mut relay = relay_between("");
    assert_eq!(relay.without_carrier().collect::<Vec<_>>(), ["rb"]);
    let (_stop, stopped) = UnixDatagram::pair().unwrap();
    ip("link set ra down");
    let ended = relay.run(stopped.as_fd()).unwrap_err();
    assert!(matches!(&ended, RelayError::Down { name } if name == "ra"), "{ended}");
}
