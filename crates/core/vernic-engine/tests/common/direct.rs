//! A process and another one, started from the same binary, whose memory it reaches without
//! packets.
//!
//! What the other one does is in [`serve`], line by line as it is told.

#![allow(clippy::print_stdout)] // how the processes talk

use std::io::Write;

use super::other::{Other, ROLE, take_descriptors};
use super::*;

/// Bytes of the other process's memory.
pub const BYTES: usize = 4 << 20;
const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

impl Other {
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// A number that stands for bytes.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

/// What the other process has.
pub struct There {
    end: End,
    qp: Arc<Qp>,
    buffer: HostBuffer,
    rights: Access,
    /// Bytes of it that are registered, from the first on.
    len: usize,
    mr: Option<Arc<Mr>>,
    second: Option<Arc<Qp>>,
    taken: Vec<std::fs::File>,
}

impl There {
    fn new(memory: &str) -> Self {
        let mut config = direct_config();
        // It lifts no Yama for its peers.
        let strict = memory.strip_prefix("strict ");
        if strict.is_some() {
            config.set("direct", "on").unwrap();
        }
        let memory = strict.unwrap_or(memory);
        if memory == "hasty" {
            // No process answers that soon: its peers are strangers to it.
            config.set("peer_query_us", "1").unwrap();
        }
        if memory == "unwilling" {
            config.set("direct", "off").unwrap();
        }
        if memory == "moved" {
            config.set("share_memory", "on").unwrap();
        }
        let end = End::with(config);
        let qp = end.qp(Service::Rc);
        let buffer = match memory {
            "private" | "moved" => HostBuffer::private(BYTES),
            _ => HostBuffer::new(BYTES),
        };
        let rights = if memory == "readable" { Access::REMOTE_READ } else { RIGHTS };
        let len = if memory == "part" { BYTES - 4096 } else { BYTES };
        let (buffer, taken) = (buffer.unwrap(), Vec::new());
        let mut this = Self { end, qp, buffer, rights, len, mr: None, second: None, taken };
        this.register();
        this
    }

    fn register(&mut self) {
        let at = self.buffer.as_mut_ptr();
        let len = self.len as u64;
        // SAFETY: the buffer goes after the region, and is accessed by its racy copies only.
        let mr = unsafe { self.end.pd.reg_mr(at, len, at.addr() as u64, self.rights) };
        self.mr = Some(mr.unwrap());
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        let mr = self.mr.as_ref().unwrap();
        Sge { addr: mr.iova() + offset, length, lkey: mr.lkey() }
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read_at(at, &mut bytes).unwrap();
        bytes
    }

    fn describe(&self) -> String {
        let mr = self.mr.as_ref().unwrap();
        format!("{} {} {}", self.qp.qpn().value(), mr.iova(), mr.rkey().value())
    }

    /// Does what a line says and returns the answer.
    fn obey(&mut self, line: &str) -> String {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let n: Vec<u64> =
            if word == "connect" || !rest.is_empty() { numbers(rest) } else { vec![] };
        match word {
            "connect" => {
                let retry_cnt = n.get(1).map_or(setup().retry_cnt, |&tries| tries as u8);
                let setup = Setup { retry_cnt, ..setup() };
                connect(&self.end, &self.qp, self.end.gid().1, Qpn::new(n[0] as u32), setup);
                "connected".to_owned()
            }
            "second" => {
                let qp = self.end.qp(Service::Rc);
                connect(&self.end, &qp, self.end.gid().1, Qpn::new(n[0] as u32), setup());
                self.second.insert(qp).qpn().value().to_string()
            }
            "receive" => {
                for wr_id in 0..n[0] {
                    self.qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
                }
                "receiving".to_owned()
            }
            // A receive of so many bytes at an offset; and what has become of the oldest.
            "expect" => {
                let sges = [self.sge(n[0], n[1] as u32)];
                self.qp.post_recv(&[RecvWr { wr_id: 1, sges: &sges }]).unwrap();
                "expected".to_owned()
            }
            "came" => {
                let wc = self.end.wait(1)[0];
                format!("{:?} {}", wc.status, wc.byte_len)
            }
            "polled" => self.end.cq.poll(&mut [EMPTY_WC; 16]).unwrap().to_string(),
            // Sends so many bytes from an offset on.
            "give" => {
                let sges = [self.sge(n[0], n[1] as u32)];
                self.qp.post_send(&[wr(1, SendOp::Send, &sges)]).unwrap();
                format!("{:?}", self.end.wait(1)[0].status)
            }
            // The same over and over.
            "pour" => {
                println!("> pouring");
                std::io::stdout().flush().unwrap();
                loop {
                    let sges = [self.sge(n[0], n[1] as u32)];
                    self.qp.post_send(&[wr(1, SendOp::Send, &sges)]).unwrap();
                    let status = self.end.wait(1)[0].status;
                    if status != WcStatus::Success {
                        break format!("{status:?}");
                    }
                }
            }
            // After each of so many receives, the word at the start of memory.
            "watch" => {
                let mut seen = Vec::new();
                while seen.len() < n[0] as usize {
                    for wc in self.end.wait(1) {
                        assert_eq!(wc.status, WcStatus::Success);
                        let word = self.bytes(0, 8);
                        seen.push(u64::from_ne_bytes(word.try_into().unwrap()));
                    }
                }
                format!("{seen:?}")
            }
            "sum" => sum(&self.bytes(n[0] as usize, n[1] as usize)).to_string(),
            "fill" => {
                self.buffer.write_at(n[0] as usize, &pattern(n[1] as usize, n[2] as u32)).unwrap();
                "filled".to_owned()
            }
            // Takes the memory back, and looks whether anybody still writes to it.
            "dereg" => {
                let since = Instant::now();
                self.mr.take().unwrap().deregister().unwrap();
                self.is_quiet(since)
            }
            "reset" => {
                let since = Instant::now();
                let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
                self.qp.modify(&attr, AttrMask::STATE).unwrap();
                self.is_quiet(since)
            }
            // Another path, though the same, while it is drained.
            "repath" => {
                repath(&self.end, &self.qp);
                "changed".to_owned()
            }
            // The file that the memory lies in.
            "file" => {
                use std::os::unix::fs::MetadataExt;
                let file = self.buffer.shared_fd().unwrap().try_clone_to_owned().unwrap();
                std::fs::File::from(file).metadata().unwrap().ino().to_string()
            }
            // The process that may trace this one because this one says so.
            "tracer" => format!("{:?}", vernic_mem::permitted_ptracer()),
            // Ends the second queue pair, or the first one.
            "end_second" => {
                self.second.take().unwrap().destroy().unwrap();
                "ended".to_owned()
            }
            "end" => {
                self.qp.destroy().unwrap();
                "ended".to_owned()
            }
            "pid" => std::process::id().to_string(),
            "route" => self.qp.route().to_string(),
            "state" => format!("{:?}", self.qp.state()),
            "counters" => self.end.context.counters().to_string(),
            // Takes a page away under a region: who touches it here dies.
            "hole" => {
                let page = self.buffer.as_mut_ptr().wrapping_add(n[0] as usize);
                // SAFETY: only the device touches the page, and this process is to die of that.
                let ret = unsafe { libc::mprotect(page.cast(), 4096, libc::PROT_NONE) };
                format!("hole {ret}")
            }
            // Ends the device as a program does that returns from main.
            "close" => {
                self.end.context.close();
                "closed".to_owned()
            }
            "more" => {
                let mr = self.mr.take().unwrap();
                self.register();
                let known = mr.rkey().value();
                // It stays as long as this process.
                std::mem::forget(mr);
                format!("{known} {}", self.mr.as_ref().unwrap().rkey().value())
            }
            // Gives the region other rights, under the same keys.
            "rights" => {
                let access = Some(RIGHTS - Access::REMOTE_READ);
                // SAFETY: the memory is the same.
                unsafe {
                    self.mr.as_ref().unwrap().rereg(MrChange { access, ..MrChange::default() })
                }
                .unwrap();
                "changed".to_owned()
            }
            // The same memory, by another key; the one before is no more.
            "renew" => {
                self.mr.take().unwrap().deregister().unwrap();
                self.register();
                self.mr.as_ref().unwrap().rkey().value().to_string()
            }
            // Nobody without privilege may look into this process.
            "hide" => {
                // SAFETY: no pointers are passed.
                let ret = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
                format!("hidden {ret}")
            }
            // The kernel does not let this process copy out of others any more.
            "forbid" => {
                filter_system_calls(libc::SYS_process_vm_readv, libc::EPERM, true);
                "forbidden".to_owned()
            }
            // Once it has connected to its peer, takes all descriptors that it may have.
            "starve" => {
                let since = Instant::now();
                while self.end.context.counters().neighbours.met == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                    assert!(since.elapsed() < PATIENCE, "{}", self.end.context.counters());
                }
                // Threads may have held some for a moment.
                loop {
                    let more = take_descriptors();
                    if more.is_empty() {
                        break;
                    }
                    self.taken.extend(more);
                    std::thread::sleep(Duration::from_millis(20));
                }
                "starved".to_owned()
            }
            "feed" => {
                self.taken.clear();
                "fed".to_owned()
            }
            // Writes a word to a peer, over and over; answers how many took no packets, and how
            // many files of the peer were lost.
            "write" => {
                let remote = Remote { addr: n[0], rkey: Rkey(n[1] as u32) };
                for _ in 0..n[2] {
                    let sges = [self.end.sge(0, 8)];
                    self.qp.post_send(&[wr(1, SendOp::Write(remote), &sges)]).unwrap();
                    assert_eq!(self.end.wait(1)[0].status, WcStatus::Success);
                }
                let counters = self.end.context.counters();
                format!("{} {}", counters.direct.writes, counters.neighbours.short)
            }
            // Writes to a peer until it cannot.
            "hammer" => {
                let remote = Remote { addr: n[0], rkey: Rkey(n[1] as u32) };
                println!("> hammering");
                std::io::stdout().flush().unwrap();
                hammer(&self.end, &self.qp, remote)
            }
            other => panic!("{other:?} means nothing"),
        }
    }

    fn is_quiet(&self, since: Instant) -> String {
        let took = since.elapsed();
        self.buffer.write_at(0, &vec![0xA5; BYTES]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let quiet = self.bytes(0, BYTES).iter().all(|&byte| byte == 0xA5);
        // The patience with a grantee that is stopped is a second.
        let soon = took < Duration::from_secs(10);
        format!("quiet {quiet} soon {soon}")
    }
}

/// Gives a queue pair its path anew: in SQD, as a connection is moved.
pub fn repath(end: &End, qp: &Qp) {
    let since = Instant::now();
    let (sgid_index, dgid) = end.gid();
    let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..AddressVector::default() };
    let attr = QpAttr { state: QpState::Sqd, av, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE).unwrap();
    while qp.is_draining() {
        end.context.progress();
        assert!(since.elapsed() < PATIENCE, "never drained");
    }
    qp.modify(&attr, AttrMask::STATE | AttrMask::AV).unwrap();
    qp.modify(&QpAttr { state: QpState::Rts, ..attr }, AttrMask::STATE).unwrap();
}

/// Writes 1 MiB over and over until that fails, and says with what.
pub fn hammer(end: &End, qp: &Qp, remote: Remote) -> String {
    let since = Instant::now();
    let sges = [end.sge(0, 1 << 20)];
    loop {
        if qp.post_send(&[wr(1, SendOp::Write(remote), &sges)]).is_err() {
            return "post refused".to_owned();
        }
        let wc = end.wait(1)[0];
        if wc.status != WcStatus::Success {
            return format!("{:?}", wc.status);
        }
        assert!(since.elapsed() < PATIENCE, "nothing ever failed");
    }
}

/// With all that is possible, also where the system has Yama.
pub fn direct_config() -> Config {
    let mut config = test_config();
    config.set("same_host", "on").unwrap();
    config.set("direct", "ptrace").unwrap();
    config
}

pub fn setup() -> Setup {
    Setup { timeout: AckTimeout::new(14), retry_cnt: 7, ..Setup::default() }
}

/// What the test `the_other_process` does; at once where it is run as any other test.
pub fn serve() {
    let Ok(memory) = std::env::var(ROLE) else { return };
    let mut there = There::new(&memory);
    println!("> {}", there.describe());
    std::io::stdout().flush().unwrap();
    for line in std::io::stdin().lines() {
        let answer = there.obey(&line.unwrap());
        println!("> {answer}");
        std::io::stdout().flush().unwrap();
    }
}

/// This process, connected to another one.
pub struct Rig {
    pub other: Other,
    pub end: End,
    pub qp: Arc<Qp>,
    pub remote: Remote,
}

impl Rig {
    pub fn new(memory: &str) -> Self {
        Self::with(memory, direct_config())
    }

    pub fn with(memory: &str, config: Config) -> Self {
        Self::with_setup(memory, config, setup())
    }

    pub fn with_setup(memory: &str, config: Config, setup: Setup) -> Self {
        Self::to(Other::start(memory), config, setup)
    }

    /// Connects to a process that was just started.
    pub fn to(mut other: Other, config: Config, setup: Setup) -> Self {
        let end = End::with(config);
        let qp = end.qp(Service::Rc);
        let n = numbers(&other.hear());
        let remote = Remote { addr: n[1], rkey: Rkey(n[2] as u32) };
        let line = format!("connect {} {}", qp.qpn().value(), setup.retry_cnt);
        assert_eq!(other.ask(&line), "connected");
        connect(&end, &qp, end.gid().1, Qpn::new(n[0] as u32), setup);
        Self { other, end, qp, remote }
    }

    /// One more queue pair to the same process, which makes one more for it.
    pub fn second_qp(&mut self, cap: QpCap) -> Arc<Qp> {
        let qp = self.end.qp_with(Service::Rc, cap, None);
        let theirs = numbers(&self.other.ask(&format!("second {}", qp.qpn().value())))[0];
        connect(&self.end, &qp, self.end.gid().1, Qpn::new(theirs as u32), setup());
        qp
    }

    pub fn at(&self, offset: u64) -> Remote {
        Remote { addr: self.remote.addr + offset, ..self.remote }
    }

    pub fn counters(&self) -> DirectCounters {
        self.end.context.counters().direct
    }

    pub fn run(&self, op: SendOp, sges: &[Sge]) -> WcStatus {
        self.qp.post_send(&[wr(1, op, sges)]).unwrap();
        self.end.wait(1)[0].status
    }

    /// Writes until that takes no packets: until the other process has consented.
    pub fn until_direct(&self) {
        let since = Instant::now();
        let at_first = self.counters().writes;
        while self.counters().writes == at_first {
            let status = self.run(SendOp::Write(self.remote), &[self.end.sge(0, 8)]);
            assert_eq!(status, WcStatus::Success);
            assert!(since.elapsed() < PATIENCE, "never direct: {}", self.end.context.counters());
        }
    }
}

/// Takes from the calling thread, and from those that it starts, the right to look into other
/// processes.
pub fn give_up_privilege() {
    /// Version 3 of `capget` and `capset`, and the number of the right (`linux/capability.h`).
    const VERSION: u32 = 0x2008_0522;
    const SYS_PTRACE: u32 = 19;
    let header = [VERSION, 0];
    // Effective, permitted and inheritable rights, twice 32 of them.
    let mut rights = [0_u32; 6];
    // SAFETY: the structures are as the kernel has them, and live through the calls.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_ptr(), rights.as_mut_ptr()), 0);
        rights[..3].iter_mut().for_each(|set| *set &= !(1 << SYS_PTRACE));
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_ptr(), rights.as_ptr()), 0);
    }
}

/// Has the kernel answer a system call of the calling thread, and of those that it starts, with an
/// error, as containers do; of `all` threads that there are, too.
pub fn filter_system_calls(call: libc::c_long, errno: i32, all: bool) {
    let answer = libc::SECCOMP_RET_ERRNO | errno as u32;
    filter(
        &mut [
            // The number of the call.
            step(LOAD, 0, 0),
            step(IF_EQUAL, 1, call as u32),
            step(RETURN, 0, answer),
            step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
        ],
        all,
    );
}

/// Has the kernel do this where the calling thread, or a process that it starts, names a process
/// that may trace it.
pub fn filter_set_ptracer(answer: u32) {
    filter(
        &mut [
            step(LOAD, 0, 0),
            step(IF_EQUAL, 3, libc::SYS_prctl as u32),
            // The low half of the first argument.
            step(LOAD, 0, 16),
            step(IF_EQUAL, 1, libc::PR_SET_PTRACER as u32),
            step(RETURN, 0, answer),
            step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
        ],
        false,
    );
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// A step of a filter; `jf` is how many steps are passed over if a comparison fails.
fn step(code: u32, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf, k }
}

fn filter(program: &mut [libc::sock_filter], all: bool) {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter has as many steps as it says, and lives through the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let flags = if all { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter), 0);
    }
}
