//! Test with a real process that calls exec. The process keeps its process id, but no copy may read
//! or write the memory of its new program.

#![cfg(not(miri))]
#![allow(unsafe_code, clippy::print_stdout)] // memory at a given address, exec; how the processes talk

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::ptr::NonNull;

use vernic_mem::{
    Access, LivenessWord, Memory, PdId, PeerCopyError, PeerRange, RemoteMemory, SgCursor, Sge,
};

/// Environment variable that selects the role of the other process: before exec, or after it.
const ROLE: &str = "VERNIC_TEST_ROLE";

/// Address of the other process's memory, before and after exec. Nothing else is mapped there.
const ADDR: usize = 0x6000_0000_0000;
const LEN: usize = 4096;

/// Maps memory at [`ADDR`], filled with a byte.
fn map(fill: u8) -> NonNull<u8> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let place = std::ptr::without_provenance_mut(ADDR);
    // SAFETY: a new mapping that replaces nothing.
    let at = unsafe { libc::mmap(place, LEN, rights, flags, -1, 0) };
    assert_eq!(at.addr(), ADDR);
    let at = NonNull::new(at).unwrap().cast::<u8>();
    // SAFETY: the range is mapped, and no other process knows it before this one reports it.
    unsafe { at.write_bytes(fill, LEN) };
    at
}

/// The code of the other process; not a test of its own.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let memory = map(if role == "before" { 1 } else { 2 });
    let device = Memory::new();
    let LivenessWord { addr, value } = device.liveness_word().unwrap();
    println!("> {addr} {value}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().lines().next();
    if role == "before" {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let error = again
            .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, "after")
            .exec();
        panic!("{error}");
    }
    // SAFETY: the range is mapped. No process writes to it any more, unless the tested code is
    // wrong, and then the volatile reads show it.
    let whole = (0..LEN).all(|i| unsafe { memory.add(i).read_volatile() } == 2);
    println!("> {} 0", u64::from(whole));
}

struct Other {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Other {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, "before")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// The next two numbers that the other process reports.
    fn hear(&mut self) -> (u64, u64) {
        loop {
            let mut line = String::new();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "the other process ended");
            if let Some((_, text)) = line.split_once("> ") {
                let (a, b) = text.trim().split_once(' ').unwrap();
                return (a.parse().unwrap(), b.parse().unwrap());
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads 8 bytes at the start of the other process's memory.
fn read(memory: &Memory, pd: PdId, to: &Sge, from: &PeerRange) -> Result<(), PeerCopyError> {
    from.read(memory.part(pd, &[*to], &mut SgCursor::default(), 0, 8), 0, &|| true)
}

#[test]
fn what_a_process_has_become_by_exec_is_neither_written_nor_read() {
    let mut other = Other::start();
    let (addr, value) = other.hear();
    let pid = other.child.id() as i32;
    let liveness = LivenessWord { addr, value };
    let reach = PeerRange { pid, addr: ADDR as u64, len: LEN as u64, liveness };
    let memory = Memory::new();
    let pd = memory.alloc_pd();
    let buffer = vernic_mem::HostBuffer::private(8).unwrap();
    // SAFETY: the buffer outlives the region, and only its racy copies access it.
    let mr =
        unsafe { memory.register(pd, buffer.as_mut_ptr(), 8, 0, Access::LOCAL_WRITE) }.unwrap();
    let sge = Sge { addr: 0, length: 8, lkey: mr.lkey };
    let bytes = || {
        let mut bytes = [0; 8];
        buffer.read_at(0, &mut bytes).unwrap();
        bytes
    };
    reach.write_bytes(&[7; 8], 8).unwrap();
    read(&memory, pd, &sge, &reach).unwrap();
    assert_eq!(bytes(), [1; 8]);
    other.go_on();
    // The new program has the same process id, and memory at the same address.
    assert_ne!(other.hear(), (addr, value));
    let written = reach.write_bytes(&[7; 8], 0);
    assert!(
        matches!(&written, Err(PeerCopyError::Peer(e)) if e.raw_os_error() == Some(libc::EFAULT)),
        "{written:?}"
    );
    assert!(matches!(read(&memory, pd, &sge, &reach), Err(PeerCopyError::Peer(_))));
    assert_eq!(bytes(), [1; 8], "nothing of it was read");
    other.go_on();
    assert_eq!(other.hear().0, 1, "it was written to");
}
