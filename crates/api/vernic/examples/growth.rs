//! What more of everything costs: queue pairs, peers, memory regions.
//!
//! ```text
//! growth qps N            N RC queue pairs, each connected to itself, all active in turn
//! growth peers N          N processes, each with a queue pair connected to one here, in turn
//! growth regions N BYTES  N regions of BYTES together, one page of each written, in turn
//! ```
//!
//! Each prints a line `name value` per figure; `cargo xtask bench` draws them over N. Messages are
//! *large* (WRITEs of 64 KiB, 16 in flight) and *small* (lists of 16 WRITEs of 64 bytes, 16 lists
//! in flight), however many there are of the rest; a measurement begins when every queue pair has
//! had a turn, and ends after so many more.
#![expect(clippy::print_stdout, reason = "a command-line program")]

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use vernic::{Access, Cq, Device, Error, InitAttr, Mr, Pd, Qp, Rc, RemoteMr, Rts, Wc, WrId, oob};

/// Bytes of a large message, and of the regions of messages.
const LARGE: usize = 64 << 10;
/// Bytes of a small one.
const SMALL: usize = 64;
/// Small messages with one doorbell.
const LIST: usize = 16;
/// Large messages, or lists of small ones, in flight.
const IN_FLIGHT: usize = 16;
/// The least time of a measurement.
const LEAST: Duration = Duration::from_millis(500);
/// WRITEs to regions.
const TURNS: usize = 200_000;
/// A queue pair.
type Pair = Qp<Rc, Rts>;

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
    match (words.first().map(String::as_str), number(1), number(2)) {
        (Some("qps"), Some(count @ 1..), None) => qps(count),
        (Some("peers"), Some(count @ 1..), None) => peers(count),
        (Some("regions"), Some(count @ 1..), Some(bytes)) => regions(count, bytes),
        (Some("peer"), Some(port), None) => peer(port),
        _ => Err(other("usage: growth qps N | peers N | regions N BYTES, numbers above zero")),
    }
}

fn other(what: &str) -> Error {
    Error::Io(std::io::Error::other(what.to_owned()))
}

/// What is written, and by whom.
struct Load {
    qps: Vec<Pair>,
    /// Where each writes to.
    targets: Vec<RemoteMr>,
    source: Mr,
    cq: Cq,
}

fn make(pd: &Pd, cq: &Cq, count: usize) -> Result<Qp<Rc, vernic::Reset>, Error> {
    let room = (lists_of_one(count) * LIST) as u32;
    let builder = pd.qp::<Rc>().send_cq(cq).recv_cq(cq).max_send_wr(room);
    Ok(builder.max_recv_wr(1).max_inline(0).create()?)
}

/// Lists that each of so many queue pairs may have in flight: one that is alone, all there are.
fn lists_of_one(count: usize) -> usize {
    (IN_FLIGHT / count).max(2)
}

fn qps(count: usize) -> Result<(), Error> {
    let device = Device::open("lo")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(1024)?);
    let source = pd.alloc_mr(LARGE, Access::NONE)?;
    let target = pd.alloc_mr(LARGE, Access::NONE.remote_write())?;
    let connected = || -> Result<Pair, Error> {
        let qp = make(&pd, &cq, count)?;
        let itself = qp.endpoint();
        let granting = InitAttr::granting(Access::NONE.remote_write());
        Ok(qp.init(granting)?.connect(itself)?)
    };
    // Brings up what all share.
    drop(connected()?);
    let (before, began) = (resident_bytes()?, Instant::now());
    let mut qps = Vec::with_capacity(count);
    for _ in 0..count {
        qps.push(connected()?);
    }
    let opened = began.elapsed();
    println!("open_us_per_qp {:.3}", opened.as_secs_f64() * 1e6 / count as f64);
    if count >= 100 {
        let used = resident_bytes()?.saturating_sub(before);
        println!("bytes_per_qp {}", used / count as u64);
    }
    let targets = vec![target.remote(); count];
    Load { qps, targets, source, cq }.measure()?;
    if count >= 100 {
        let used = resident_bytes()?.saturating_sub(before);
        println!("bytes_per_used_qp {}", used / count as u64);
    }
    Ok(())
}

/// Processes that end with their value.
struct Peers(Vec<Child>);

impl Drop for Peers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn peers(count: usize) -> Result<(), Error> {
    let device = Device::open("lo")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(1024)?);
    let source = pd.alloc_mr(LARGE, Access::NONE)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port().to_string();
    let (mut processes, mut streams) = (Peers(Vec::new()), Vec::new());
    let (mut qps, mut targets) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for _ in 0..count {
        let program = std::env::current_exe()?;
        processes.0.push(Command::new(program).args(["peer", &port]).spawn()?);
        let (mut stream, _) = listener.accept()?;
        let qp = make(&pd, &cq, count)?;
        let theirs = oob::exchange_endpoints(&mut stream, qp.endpoint())?;
        let target = oob::exchange_regions(&mut stream, source.remote())?;
        qps.push(qp.connect(theirs)?);
        targets.push(target);
        streams.push(stream);
    }
    println!("open_us_per_peer {:.0}", began.elapsed().as_secs_f64() * 1e6 / count as f64);
    Load { qps, targets, source, cq }.measure()
}

/// One of the processes: is written to until the other end of its connection has gone.
fn peer(port: usize) -> Result<(), Error> {
    let port = u16::try_from(port).map_err(|_| other("that is no port"))?;
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let device = Device::open("lo")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let target = pd.alloc_mr(LARGE, Access::NONE.remote_write())?;
    let qp = make(&pd, &cq, 1)?;
    let theirs = oob::exchange_endpoints(&mut stream, qp.endpoint())?;
    let granting = InitAttr::granting(Access::NONE.remote_write());
    let _qp = qp.init(granting)?.connect(theirs)?;
    oob::exchange_regions(&mut stream, target.remote())?;
    let _ = oob::barrier(&mut stream);
    Ok(())
}

impl Load {
    fn measure(&self) -> Result<(), Error> {
        let (messages, time) = self.in_turn(1, LARGE)?;
        println!("large_gbytes_per_s {:.4}", messages * LARGE as f64 / time / 1e9);
        let (messages, time) = self.in_turn(LIST, SMALL)?;
        println!("small_mmsg_per_s {:.4}", messages / time / 1e6);
        Ok(())
    }

    /// Lists of so many messages of so many bytes, a list in each queue pair's turn. How many
    /// messages were complete, in how many seconds.
    fn in_turn(&self, list: usize, bytes: usize) -> Result<(f64, f64), Error> {
        let mut flight = Flight::new(self.qps.len());
        let (mut lists, mut began) = (0, None);
        // Ends after whole rounds, when the time is over.
        loop {
            for (at, (qp, target)) in self.qps.iter().zip(&self.targets).enumerate() {
                while !flight.has_room(at) {
                    self.complete(&mut flight)?;
                }
                let (mut batch, id) = (qp.send_batch(), WrId(at as u64));
                for _ in 1..list {
                    batch.write(id, self.source.slice(..bytes)?, target.at(0));
                }
                batch.write(id, self.source.slice(..bytes)?, target.at(0)).signaled();
                batch.commit_and_clear()?;
                flight.add(at);
                lists += 1;
            }
            let done = lists - flight.all;
            match began {
                // Flows are steered, windows opened: a round, and not less than some hundred lists.
                None if lists >= 256 => began = Some((Instant::now(), done)),
                Some((began, before)) if Instant::elapsed(&began) >= LEAST => {
                    let time = began.elapsed().as_secs_f64();
                    while flight.all > 0 {
                        self.complete(&mut flight)?;
                    }
                    return Ok((((done - before) * list) as f64, time));
                }
                _ => {}
            }
        }
    }

    /// Takes what is complete.
    fn complete(&self, flight: &mut Flight) -> Result<(), Error> {
        let mut wcs = [Wc::default(); 64];
        for wc in self.cq.poll(&mut wcs)? {
            self.cq.check(wc)?;
            flight.remove(wc.wr_id().0 as usize);
        }
        Ok(())
    }
}

/// Lists in flight, of all and of each queue pair.
struct Flight {
    all: usize,
    each: Vec<usize>,
    most: usize,
}

impl Flight {
    fn new(qps: usize) -> Self {
        Self { all: 0, each: vec![0; qps], most: lists_of_one(qps) }
    }

    fn has_room(&self, at: usize) -> bool {
        self.all < IN_FLIGHT && self.each[at] < self.most
    }

    fn add(&mut self, at: usize) {
        self.all += 1;
        self.each[at] += 1;
    }

    fn remove(&mut self, at: usize) {
        self.all -= 1;
        self.each[at] -= 1;
    }
}

fn regions(count: usize, bytes: usize) -> Result<(), Error> {
    let device = Device::open("lo")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(1024)?);
    let source = pd.alloc_mr(SMALL, Access::NONE)?;
    let began = Instant::now();
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(pd.alloc_mr(bytes / count, Access::NONE.remote_write())?);
    }
    println!("register_us {:.3}", began.elapsed().as_secs_f64() * 1e6 / count as f64);
    let qp = make(&pd, &cq, 1)?;
    let itself = qp.endpoint();
    let qp = qp.init(InitAttr::granting(Access::NONE.remote_write()))?.connect(itself)?;
    // A stride that has no divisor in common with any power of ten visits all of them, and none
    // soon again.
    let targets = (0..count).map(|at| all[at * 617 % count].remote()).collect();
    let qps = vec![qp];
    let load = Load { qps, targets, source, cq };
    println!("write_ns {:.1}", load.one_by_one()?);
    let began = Instant::now();
    drop(all);
    println!("deregister_us {:.3}", began.elapsed().as_secs_f64() * 1e6 / count as f64);
    Ok(())
}

impl Load {
    /// Lists of small messages by one queue pair, each message to another region; nanoseconds of a
    /// message.
    fn one_by_one(&self) -> Result<f64, Error> {
        let qp = &self.qps[0];
        let mut targets = self.targets.iter().cycle();
        let mut turn = |lists: usize| -> Result<Duration, Error> {
            let (began, mut flight) = (Instant::now(), Flight::new(1));
            for _ in 0..lists {
                while !flight.has_room(0) {
                    self.complete(&mut flight)?;
                }
                let mut batch = qp.send_batch();
                for target in targets.by_ref().take(LIST - 1) {
                    batch.write(WrId(0), self.source.slice(..8)?, target.at(0));
                }
                let last = targets.next().ok_or_else(|| other("there are no regions"))?;
                batch.write(WrId(0), self.source.slice(..8)?, last.at(0)).signaled();
                batch.commit_and_clear()?;
                flight.add(0);
            }
            while flight.all > 0 {
                self.complete(&mut flight)?;
            }
            Ok(began.elapsed())
        };
        // Each is visited before.
        turn(self.targets.len().div_ceil(LIST).max(256))?;
        let lists = TURNS / LIST;
        Ok(turn(lists)?.as_nanos() as f64 / (lists * LIST) as f64)
    }
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> Result<u64, Error> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| other("/proc/self/status tells no resident memory"))
}
