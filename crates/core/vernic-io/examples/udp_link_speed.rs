//! How fast is the UDP link alone? Two processes on loopback, no protocol above.
//!
//! ```text
//! cargo run --release -p vernic-io --example udp_link_speed
//! CHILD_CORE=1 taskset -c 0 target/release/examples/udp_link_speed    # on a busy machine
//! ```
//!
//! - Goodput: the sender copies payload into the batch, stamps and sends; the receiver checks the
//!   ICRC and copies the payload out. A credit packet returns for every 128 KiB, so that at most
//!   512 KiB are under way and no packet is lost. Beside it the same without copies and ICRCs:
//!   what the kernel alone can do.
//! - Latency: 64-byte packets go back and forth between two spinning processes, through links and
//!   through plain UDP sockets.
//!
//! These are the ceilings of everything built on the link.

#![allow(clippy::print_stdout)]

use std::io::Read;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vernic_io::{
    Icrc, Link, Nanos, ROCE_PORT, RxBatch, SlotTable, TxBatch, TxPath, UdpConfig, UdpLink, udp,
};

type Failure = Box<dyn std::error::Error>;

const SENDER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 200, 0, 1));
const RECEIVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 200, 0, 2));
/// BTH.
const HEADER_BYTES: usize = 12;
/// Most bytes under way: two full batches.
const WINDOW_BYTES: usize = 512 * 1024;
/// Received bytes per credit packet.
const CREDIT_BYTES: usize = 128 * 1024;
/// Size of the registered memory that is sent and received: fits the second-level cache or not.
const MEMORY_BYTES: usize = 1 << 20;

struct Clock(Instant);

impl Clock {
    fn now(&self) -> Nanos {
        Nanos(self.0.elapsed().as_nanos() as u64)
    }
}

struct End {
    link: UdpLink,
    tx: TxBatch,
    rx: RxBatch,
    path: TxPath,
    clock: Clock,
    /// Copy, stamp and check nothing: what remains is the kernel.
    untouched: bool,
}

impl End {
    fn open(from: IpAddr, to: IpAddr, untouched: bool) -> Result<Self, Failure> {
        let mut link = UdpLink::open(UdpConfig::default(), SlotTable::with_scope("speed")?);
        link.activate(from.into())?;
        let tx = TxBatch::new(&link.limits());
        let path = udp::path(from, (to, ROCE_PORT).into());
        Ok(Self { link, tx, rx: RxBatch::new(), path, clock: Clock(Instant::now()), untouched })
    }

    fn push(&mut self, payload: &[u8]) -> bool {
        let Some(room) = self.tx.room() else { return false };
        room[..HEADER_BYTES].fill(0);
        if !self.untouched {
            room[HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        }
        self.tx.push(&self.path, HEADER_BYTES + payload.len());
        if !self.untouched {
            self.link.stamp(&mut self.tx);
        }
        true
    }

    fn send(&mut self) {
        if self.untouched {
            self.tx.stamp_with(|_, _, _, _| ());
        }
        while !self.tx.is_empty() {
            self.link.send(self.clock.now(), &mut self.tx);
        }
    }

    fn recv(&mut self) -> usize {
        self.link.recv(self.clock.now(), &mut self.rx)
    }
}

fn receiver(untouched: bool) -> Result<(), Failure> {
    let mut end = End::open(RECEIVER, SENDER, untouched)?;
    let mut memory = vec![0u8; MEMORY_BYTES];
    let (mut at, mut uncredited, mut bad) = (0, 0, 0u64);
    println!("ready");
    loop {
        if end.recv() == 0 {
            std::hint::spin_loop();
            continue;
        }
        let mut echo = 0;
        for packet in end.rx.packets() {
            if !untouched && end.link.verify(&packet) != Icrc::Good {
                bad += 1;
                continue;
            }
            let transport = packet.transport();
            match transport.len() {
                // A ping.
                64 => echo += 1,
                13 => {
                    println!("{bad} bad ICRCs, {:?}", end.link.counters());
                    return Ok(());
                }
                len if untouched => uncredited += len - HEADER_BYTES,
                _ => {
                    let payload = &transport[HEADER_BYTES..];
                    if at + payload.len() > memory.len() {
                        at = 0;
                    }
                    memory[at..at + payload.len()].copy_from_slice(payload);
                    std::hint::black_box(&memory);
                    at += payload.len();
                    uncredited += payload.len();
                }
            }
        }
        for _ in 0..echo {
            end.push(&[0; 64 - HEADER_BYTES]);
        }
        while uncredited >= CREDIT_BYTES {
            uncredited -= CREDIT_BYTES;
            end.push(&[0; 16]);
        }
        end.send();
    }
}

/// GB/s of payload, in a fresh pair of processes.
fn goodput(payload: usize, untouched: bool, time: Duration) -> Result<f64, Failure> {
    let mut child = start(if untouched { "receiver-untouched" } else { "receiver" })?;
    let mut end = End::open(SENDER, RECEIVER, untouched)?;
    let rate = goodput_of(&mut end, payload, time);
    finish(end, &mut child)?;
    Ok(rate)
}

/// Ends the receiver, and checks that nothing went wrong.
fn finish(mut end: End, child: &mut Child) -> Result<(), Failure> {
    end.push(&[0]);
    end.send();
    let mut rest = String::new();
    child.stdout.as_mut().ok_or("no output")?.read_to_string(&mut rest)?;
    child.wait()?;
    let sent = end.link.counters();
    if !rest.starts_with("0 bad") {
        return Err(format!("receiver: {}; sender: {sent:?}", rest.trim()).into());
    }
    Ok(())
}

fn goodput_of(end: &mut End, payload: usize, time: Duration) -> f64 {
    let memory = vec![1u8; MEMORY_BYTES];
    let (mut at, mut under_way, mut sent) = (0, 0, 0usize);
    let start = Instant::now();
    while start.elapsed() < time {
        while under_way + payload <= WINDOW_BYTES {
            if at + payload > memory.len() {
                at = 0;
            }
            if !end.push(&memory[at..at + payload]) {
                break;
            }
            at += payload;
            under_way += payload;
            sent += payload;
        }
        end.send();
        let credits = end.recv();
        under_way = under_way.saturating_sub(credits * CREDIT_BYTES);
    }
    sent as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Median and 99th percentile of half a round trip, in microseconds.
fn percentiles(mut rounds: Vec<f64>) -> (f64, f64) {
    rounds.sort_by(f64::total_cmp);
    (rounds[rounds.len() / 2] / 2.0, rounds[rounds.len() * 99 / 100] / 2.0)
}

const ROUNDS: usize = 100_000;

fn link_latency() -> Result<(f64, f64), Failure> {
    let mut child = start("receiver")?;
    let mut end = End::open(SENDER, RECEIVER, false)?;
    let mut one = || {
        let start = Instant::now();
        end.push(&[0; 64 - HEADER_BYTES]);
        end.send();
        while end.recv() == 0 {}
        assert!(end.rx.packets().all(|packet| end.link.verify(&packet) == Icrc::Good));
        start.elapsed().as_secs_f64() * 1e6
    };
    let result = percentiles((0..ROUNDS).map(|_| one()).collect());
    finish(end, &mut child)?;
    Ok(result)
}

fn spin_recv(socket: &UdpSocket, buf: &mut [u8]) -> (usize, SocketAddr) {
    loop {
        if let Ok(got) = socket.recv_from(buf) {
            return got;
        }
    }
}

fn raw_echo() -> Result<(), Failure> {
    let socket = UdpSocket::bind((RECEIVER, ROCE_PORT))?;
    socket.set_nonblocking(true)?;
    println!("ready");
    let mut buf = [0; 2048];
    loop {
        let (len, from) = spin_recv(&socket, &mut buf);
        if len == 1 {
            return Ok(());
        }
        socket.send_to(&buf[..len], from)?;
    }
}

fn raw_latency() -> Result<(f64, f64), Failure> {
    let mut child = start("raw")?;
    let socket = UdpSocket::bind((SENDER, 0))?;
    socket.set_nonblocking(true)?;
    let mut buf = [0; 2048];
    let to = (RECEIVER, ROCE_PORT);
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        socket.send_to(&buf[..64], to)?;
        spin_recv(&socket, &mut buf);
        rounds.push(start.elapsed().as_secs_f64() * 1e6);
    }
    socket.send_to(&[0], to)?;
    child.wait()?;
    Ok(percentiles(rounds))
}

fn tcp_sink() -> Result<(), Failure> {
    let listener = std::net::TcpListener::bind((RECEIVER, 4791))?;
    println!("ready");
    let (mut stream, _) = listener.accept()?;
    let mut memory = vec![0; 256 * 1024];
    while stream.read(&mut memory)? != 0 {}
    Ok(())
}

/// What one TCP stream carries, for comparison.
fn tcp_goodput() -> Result<f64, Failure> {
    use std::io::Write;
    let mut child = start("tcp-sink")?;
    let mut stream = std::net::TcpStream::connect((RECEIVER, 4791))?;
    let memory = vec![1; 256 * 1024];
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(2) {
        stream.write_all(&memory)?;
        sent += memory.len();
    }
    let rate = sent as f64 / start.elapsed().as_secs_f64() / 1e9;
    drop(stream);
    child.wait()?;
    Ok(rate)
}

fn start(role: &str) -> Result<Child, Failure> {
    let program = std::env::current_exe()?;
    let core = std::env::var("CHILD_CORE").ok();
    let mut command = match core {
        Some(core) => {
            let mut taskset = Command::new("taskset");
            taskset.args(["-c", &core]).arg(program);
            taskset
        }
        None => Command::new(program),
    };
    let mut child = command.arg(role).stdout(Stdio::piped()).spawn()?;
    // Wait for "ready".
    child.stdout.as_mut().ok_or("no output")?.read_exact(&mut [0; 6])?;
    Ok(child)
}

fn main() -> Result<(), Failure> {
    let second = Duration::from_secs(1);
    match std::env::args().nth(1).as_deref() {
        // The other process.
        Some("receiver") => return receiver(false),
        Some("receiver-untouched") => return receiver(true),
        Some("raw") => return raw_echo(),
        Some("tcp-sink") => return tcp_sink(),
        // For profilers: one thing only.
        Some("goodput") => {
            println!("{:.2} GB/s", goodput(4096, false, 2 * second)?);
            return Ok(());
        }
        Some("latency") => {
            println!("{:.2?} us", link_latency()?);
            return Ok(());
        }
        _ => {}
    }
    let (p50, p99) = raw_latency()?;
    println!("latency 64 B, plain UDP:         {p50:.2} us one way, p99 {p99:.2}");
    let (p50, p99) = link_latency()?;
    println!("latency 64 B, link:              {p50:.2} us one way, p99 {p99:.2}");
    println!("goodput, one TCP stream:         {:.2} GB/s", tcp_goodput()?);
    for payload in [4096, 2048, 1024, 256, 64] {
        let kernel = goodput(payload, true, second)?;
        let link = goodput(payload, false, second)?;
        let rate = link * 1e3 / payload as f64;
        println!(
            "goodput, packets of {payload:4} B:     {link:.2} GB/s, {rate:.2} M packets/s; \
             the kernel alone {kernel:.2} GB/s"
        );
    }
    Ok(())
}
