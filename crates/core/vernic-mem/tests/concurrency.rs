//! Tests of what other threads see while the data path runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vernic_mem::{Access, Bind, Check, HostBuffer, Memory, MwType};
use vernic_wire::Qpn;

const QP: Qpn = Qpn::new(1);

/// Does what `ib_write_lat` does: spins on the last byte, then reads the others. With these lengths
/// and offsets, the last word is whole, partial, and across a boundary.
#[test]
fn reader_that_sees_the_last_byte_sees_all_bytes() {
    let rounds = if cfg!(miri) { 3_u32 } else { 20_000 };
    let lens = if cfg!(miri) { &[8, 16][..] } else { &[1, 2, 7, 8, 13, 24, 64, 100, 256, 1024] };
    for &len in lens {
        // Under Miri, accesses of different sizes to the same bytes must not race, so the words are
        // aligned.
        let offset = if cfg!(miri) { 0 } else { len % 11 };
        let memory = Memory::new();
        let buffer = HostBuffer::new(4096).unwrap();
        let pd = memory.alloc_pd();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: `buffer` outlives the use of `memory`, and only racy copies access it.
        let mr = unsafe { memory.register(pd, buffer.as_mut_ptr(), 4096, 0, rights) }.unwrap();
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut all = vec![0; len];
                for round in 1..=rounds {
                    let value = (round % 251 + 1) as u8;
                    loop {
                        let from = if cfg!(miri) { len - 8 } else { len - 1 };
                        buffer.read_at(offset + from, &mut all[from..]).unwrap();
                        if all[len - 1] == value {
                            break;
                        }
                        std::thread::yield_now();
                    }
                    // The poll is a relaxed load. With this fence, it acquires.
                    std::sync::atomic::fence(Ordering::Acquire);
                    buffer.read_at(offset, &mut all).unwrap();
                    assert!(all.iter().all(|&b| b == value), "round {round}: {all:?}");
                    seen.store(u64::from(round), Ordering::Release);
                }
            });
            for round in 1..=rounds {
                let src = vec![(round % 251 + 1) as u8; len];
                memory.write_remote(pd, QP, mr.rkey, offset as u64, &src).unwrap();
                while seen.load(Ordering::Acquire) != u64::from(round) {
                    std::thread::yield_now();
                }
            }
        });
    }
}

/// Registers, binds and ends keys while another thread uses the last key that it got. Each access
/// succeeds or is refused for a named reason, and a refused access changes nothing.
#[test]
fn keys_may_come_and_go_under_the_data_path() {
    let rounds = if cfg!(miri) { 20 } else { 30_000 };
    let memory = Memory::new();
    let buffer = HostBuffer::new(4096).unwrap();
    let pd = memory.alloc_pd();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    let mw = memory.alloc_mw(pd, MwType::Type1).unwrap();
    let heard = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let rkey = vernic_wire::Rkey(heard.load(Ordering::Acquire) as u32);
                match memory.write_remote(pd, QP, rkey, 64, &[0xFF; 8]) {
                    Ok(()) => {}
                    Err(e) => assert!(
                        matches!(e.check, Check::KeyUnknown | Check::KeyStale | Check::NotBound),
                        "{e}"
                    ),
                }
            }
        });
        for _ in 0..rounds {
            // SAFETY: `buffer` outlives the threads, and only racy copies access it.
            let mr = unsafe { memory.register(pd, buffer.as_mut_ptr(), 4096, 0, rights) }.unwrap();
            heard.store(u64::from(mr.rkey.value()), Ordering::Release);
            let bind = Bind {
                qp_pd: pd,
                qpn: QP,
                lkey: mr.lkey,
                addr: 64,
                len: 8,
                access: Access::REMOTE_WRITE,
                key: None,
            };
            let rkey = memory.bind_mw(mw.handle, &bind).unwrap();
            heard.store(u64::from(rkey.value()), Ordering::Release);
            memory.bind_mw(mw.handle, &Bind { len: 0, ..bind }).unwrap();
            memory.deregister(mr.handle).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    let mut around = [0; 4096];
    buffer.read_at(0, &mut around).unwrap();
    assert!(around[..64].iter().chain(&around[72..]).all(|&b| b == 0));
}

/// One thread binds windows to the last region that it got, and frees some windows. After a region
/// was deregistered by force, no key that was ever bound to it gives access to anything.
#[test]
fn no_bind_survives_a_forced_deregistration() {
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let memory = Memory::new();
    let buffer = HostBuffer::new(4096).unwrap();
    let pd = memory.alloc_pd();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    let lkey = AtomicU64::new(0);
    // The last key that the binding thread got.
    let bound = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut mw = memory.alloc_mw(pd, MwType::Type1).unwrap();
            let mut count = 0_u32;
            while !done.load(Ordering::Acquire) {
                let bind = Bind {
                    qp_pd: pd,
                    qpn: QP,
                    lkey: vernic_wire::Lkey(lkey.load(Ordering::Acquire) as u32),
                    addr: 0,
                    len: 8,
                    access: Access::REMOTE_WRITE,
                    key: None,
                };
                if let Ok(rkey) = memory.bind_mw(mw.handle, &bind) {
                    bound.store(u64::from(rkey.value()), Ordering::Release);
                }
                count += 1;
                if count.is_multiple_of(3) {
                    memory.dealloc_mw(mw.handle).unwrap();
                    mw = memory.alloc_mw(pd, MwType::Type1).unwrap();
                }
            }
        });
        for _ in 0..rounds {
            // SAFETY: `buffer` outlives the threads, and only racy copies access it.
            let mr = unsafe { memory.register(pd, buffer.as_mut_ptr(), 4096, 0, rights) }.unwrap();
            lkey.store(u64::from(mr.lkey.value()), Ordering::Release);
            memory.force_deregister(mr.handle);
            // The only region is gone, so no key of a window may work.
            let rkey = vernic_wire::Rkey(bound.load(Ordering::Acquire) as u32);
            assert!(memory.write_remote(pd, QP, rkey, 0, &[0xFF; 8]).is_err());
            assert!(memory.write_remote(pd, QP, mr.rkey, 0, &[0xFF; 8]).is_err());
        }
        done.store(true, Ordering::Release);
    });
    let mut all = [0; 4096];
    buffer.read_at(0, &mut all).unwrap();
    assert_eq!(all, [0; 4096]);
}

#[test]
fn atomics_of_two_threads_lose_no_addition() {
    let rounds = if cfg!(miri) { 50 } else { 100_000 };
    let memory = Memory::new();
    let buffer = HostBuffer::new(8).unwrap();
    let pd = memory.alloc_pd();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    // SAFETY: `buffer` outlives the threads, and only racy copies and atomics access it.
    let mr = unsafe { memory.register(pd, buffer.as_mut_ptr(), 8, 0, rights) }.unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    memory.atomic_fetch_add(pd, QP, mr.rkey, 0, 1).unwrap();
                }
            });
        }
    });
    let mut word = [0; 8];
    buffer.read_at(0, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 2 * rounds);
}
