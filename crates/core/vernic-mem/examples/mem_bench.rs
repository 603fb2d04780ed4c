//! Measures nanoseconds per lookup and gigabytes per second of copies: `cargo run --release -p
//! vernic-mem --example mem_bench`.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use vernic_mem::{Access, HostBuffer, Memory, Mr, PdId, RemoteAccess, SgCursor, Sge};
use vernic_wire::Qpn;

const QP: Qpn = Qpn::new(1);
/// Length of the destination buffer in bytes. It fits the first or second level cache.
const BUFFER: usize = 64 * 1024;

/// Nanoseconds per call: the best of 5 runs of about 50 ms.
fn time(mut call: impl FnMut(u64)) -> f64 {
    let mut rounds = 1000_u64;
    let mut best = f64::MAX;
    let mut runs = 0;
    while runs < 5 {
        let start = Instant::now();
        for i in 0..rounds {
            call(i);
        }
        let nanos = start.elapsed().as_nanos() as f64;
        if nanos < 5e7 {
            rounds *= 2;
        } else {
            best = best.min(nanos / rounds as f64);
            runs += 1;
        }
    }
    best
}

fn register(memory: &Memory, pd: PdId, buffer: &HostBuffer) -> Mr {
    let rights = Access::LOCAL_WRITE | Access::REMOTE;
    // SAFETY: all regions live as long as the buffer, to the end of `main`, and only racy copies
    // access it.
    unsafe { memory.register(pd, buffer.as_mut_ptr(), BUFFER as u64, 0, rights) }.unwrap()
}

fn main() {
    let memory = Memory::new();
    let pd = memory.alloc_pd();
    let buffer = HostBuffer::new(BUFFER).unwrap();
    let mrs: Vec<Mr> = (0..1 << 20).map(|_| register(&memory, pd, &buffer)).collect();

    for count in [1, 1 << 10, 1 << 20] {
        let ns = time(|i| {
            let mr = &mrs[(i.wrapping_mul(0x9E37_79B9) as usize >> 3) & (count - 1)];
            let access = RemoteAccess::Write;
            black_box(memory.check_remote(pd, QP, mr.rkey, i % 1024, 64, access)).unwrap();
        });
        println!("check_remote over {count:>7} keys   {ns:7.1} ns");
    }
    let mr = mrs[0];
    let sge = Sge { addr: 0, length: BUFFER as u32, lkey: mr.lkey };
    let mut private = vec![0u8; BUFFER];
    for len in [8, 64, 256, 1024, 4096, 32768] {
        let slots = (BUFFER / len) as u64;
        let report = |what: &str, ns: f64| {
            println!("{what:<18} {len:>6} B   {ns:9.1} ns {:8.1} GB/s", len as f64 / ns);
        };
        let at = |i: u64| (i & (slots - 1)) * len as u64;
        report("memcpy (private)", {
            let (src, mut dst) = (vec![1u8; len], vec![0u8; BUFFER]);
            time(|i| {
                let at = at(i) as usize;
                dst[at..at + len].copy_from_slice(black_box(&src));
                black_box(&mut dst);
            })
        });
        let src = vec![1u8; len];
        report(
            "write_remote",
            time(|i| {
                memory.write_remote(pd, QP, mr.rkey, at(i), black_box(&src)).unwrap();
            }),
        );
        report(
            "read_remote",
            time(|i| {
                memory.read_remote(pd, QP, mr.rkey, at(i), black_box(&mut private[..len])).unwrap();
            }),
        );
        report(
            "read_local 1 sge",
            time(|i| {
                let dst = black_box(&mut private[..len]);
                memory.read_local(pd, &[sge], &mut SgCursor::default(), at(i), dst).unwrap();
            }),
        );
    }
    let pieces = [Sge { length: 2048, ..sge }; 32];
    let mut cursor = SgCursor::default();
    let ns = time(|i| {
        let offset = (i % 64) * 1024;
        memory.read_local(pd, &pieces, &mut cursor, offset, &mut private[..1024]).unwrap();
    });
    println!("read_local of 1 KiB from 32 pieces, in order   {ns:7.1} ns");
}
