//! What it costs a process to be watched, and its watcher: many queue pairs, all active in turn,
//! while a command looks at them, and while none does.
//!
//! ```text
//! watched QPS ROUNDS COMMAND...      as in: watched 1000 20 vernic stat --json --watch 0.1
//! ```
//!
//! Each queue pair is connected to itself and writes lists of 64-byte messages. A round has a
//! second without and a second with the command, and the next one the other way round. Prints what
//! the watched process loses (the median over the rounds, and the quartiles), and which part of a
//! core the command takes.
#![expect(clippy::print_stdout, reason = "a command-line program")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vernic::{Access, Cq, Device, Error, InitAttr, Mr, Qp, Rc, RemoteMr, Rts, Wc, WrId};

/// Bytes of a message.
const BYTES: usize = 64;
/// Messages with one doorbell.
const LIST: u64 = 16;
/// Lists in flight, of all queue pairs together.
const IN_FLIGHT: usize = 16;
/// How long messages are counted with and without the command.
const WINDOW: Duration = Duration::from_secs(1);
/// How long the command has to begin.
const START: Duration = Duration::from_millis(200);
/// Ticks of `/proc/self/stat` in a second, on every Linux.
const TICKS_PER_S: f64 = 100.0;

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
    let (Some(qps @ 1..), Some(rounds @ 1..), Some(command @ [_, ..])) =
        (number(0), number(1), words.get(2..))
    else {
        return Err(other("usage: watched QPS ROUNDS COMMAND..., numbers above zero"));
    };
    let mut load = Load::new(qps)?;
    load.messages_within(WINDOW)?;
    let (mut losses, mut cores) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let quiet_first = round % 2 == 0;
        let mut rates = [0.0; 2];
        for watched in [!quiet_first, quiet_first] {
            rates[usize::from(watched)] = if watched {
                let (rate, core) = load.watched_by(command)?;
                cores.push(core);
                rate
            } else {
                load.messages_within(START)?;
                load.messages_within(WINDOW)?
            };
        }
        losses.push(1.0 - rates[1] / rates[0]);
    }
    let [low, median, high] = quartiles(&mut losses);
    println!("loss_percent {:.2} ({:.2} to {:.2})", median * 100.0, low * 100.0, high * 100.0);
    let [low, median, high] = quartiles(&mut cores);
    println!("core_percent {:.2} ({:.2} to {:.2})", median * 100.0, low * 100.0, high * 100.0);
    Ok(())
}

fn other(what: &str) -> Error {
    Error::Io(std::io::Error::other(what.to_owned()))
}

fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

/// Queue pairs that write to themselves.
struct Load {
    qps: Vec<Qp<Rc, Rts>>,
    source: Mr,
    target: RemoteMr,
    _target: Mr,
    cq: Cq,
    /// The queue pair that has the next turn.
    next: usize,
    in_flight: usize,
}

impl Load {
    fn new(count: usize) -> Result<Self, Error> {
        let device = Device::open("lo")?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let source = pd.alloc_mr(BYTES, Access::NONE)?;
        let target = pd.alloc_mr(BYTES, Access::NONE.remote_write())?;
        let room = LIST as u32 * IN_FLIGHT.div_ceil(count).max(2) as u32;
        let connected = || -> Result<_, Error> {
            let builder = pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).max_send_wr(room);
            let qp = builder.max_recv_wr(1).create()?;
            let itself = qp.endpoint();
            let granting = InitAttr::granting(Access::NONE.remote_write());
            Ok(qp.init(granting)?.connect(itself)?)
        };
        let qps = (0..count).map(|_| connected()).collect::<Result<_, _>>()?;
        let remote = target.remote();
        Ok(Self { qps, source, target: remote, _target: target, cq, next: 0, in_flight: 0 })
    }

    /// Messages completed a second, within so long.
    fn messages_within(&mut self, window: Duration) -> Result<f64, Error> {
        let (began, mut lists) = (Instant::now(), 0);
        while began.elapsed() < window {
            while self.in_flight < IN_FLIGHT {
                let qp = &self.qps[self.next];
                let from = self.source.slice(..BYTES)?;
                let mut batch = qp.send_batch();
                for id in 1..LIST {
                    batch.write(WrId(id), from, self.target.at(0));
                }
                batch.write(WrId(LIST), from, self.target.at(0)).signaled();
                batch.commit_and_clear()?;
                self.next = (self.next + 1) % self.qps.len();
                self.in_flight += 1;
            }
            let mut wcs = [Wc::default(); IN_FLIGHT];
            for wc in self.cq.poll(&mut wcs)? {
                self.cq.check(wc)?;
                self.in_flight -= 1;
                lists += LIST;
            }
        }
        Ok(lists as f64 / began.elapsed().as_secs_f64())
    }

    /// Messages completed a second while a command runs, and the part of a core that it takes.
    fn watched_by(&mut self, command: &[String]) -> Result<(f64, f64), Error> {
        let ticks = ticks_of_children()?;
        let began = Instant::now();
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        self.messages_within(START)?;
        let rate = self.messages_within(WINDOW);
        child.kill()?;
        child.wait()?;
        let used = (ticks_of_children()? - ticks) / TICKS_PER_S;
        Ok((rate?, used / began.elapsed().as_secs_f64()))
    }
}

/// Processor time of the children that have ended.
fn ticks_of_children() -> Result<f64, Error> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in parentheses, may contain blanks. Behind it `cutime` and `cstime` are the 14th
    // and the 15th field.
    let fields: Vec<_> =
        stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    ticks(13).zip(ticks(14)).map(|(user, system)| user + system).ok_or_else(|| other("no ticks"))
}
