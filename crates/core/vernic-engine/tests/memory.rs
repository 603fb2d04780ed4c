//! Regions over other memory than a range of the application's: device memory, everything, nothing.

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::*;
use vernic_engine::limits::{MAX_DM_ALIGN_LOG2, MAX_DM_BYTES};
use vernic_engine::*;
use vernic_mem::HostBuffer;

fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

fn sge(mr: &Mr, addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: mr.lkey() }
}

fn remote(mr: &Mr, addr: u64) -> Remote {
    Remote { addr, rkey: mr.rkey() }
}

/// Posts one request after the other on the first end, and tells how they ended.
fn statuses(t: &Pair, work: Vec<(SendOp, Vec<Sge>)>) -> Vec<WcStatus> {
    let wrs: Vec<SendWr<'_>> = work.iter().map(|(op, sges)| wr(1, *op, sges)).collect();
    t.a_qp.post_send(&wrs).unwrap();
    t.a.wait(wrs.len()).iter().map(|wc| wc.status).collect()
}

#[test]
fn peers_write_read_and_count_in_device_memory() {
    let t = Pair::new(Service::Rc);
    let dm = t.b.context.alloc_dm(10_000, 3).unwrap();
    let mr = t.b.pd.reg_dm_mr(&dm, 1000, 8000, all_rights()).unwrap();
    assert_eq!((mr.iova(), mr.len()), (0, 8000));
    let data = pattern(8000, 3);
    t.a.fill(0, &data);
    let work = vec![
        (SendOp::Write(remote(&mr, 0)), vec![t.a.sge(0, 8000)]),
        (SendOp::Read(remote(&mr, 16)), vec![t.a.sge(10_000, 4000)]),
        (SendOp::FetchAdd { remote: remote(&mr, 0), add: 1 }, vec![t.a.sge(20_000, 8)]),
    ];
    assert_eq!(statuses(&t, work), [WcStatus::Success; 3]);
    let mut inside = vec![0; 8000];
    dm.copy_out(1000, &mut inside).unwrap();
    assert_eq!(inside[8..], data[8..]);
    assert_eq!(t.a.bytes(10_000, 4000), data[16..4016]);
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(word(&inside), word(&data).wrapping_add(1));
    let mut around = [7; 1000];
    dm.copy_out(0, &mut around).unwrap();
    assert_eq!(
        around, [0; 1000],
        "device memory is zero at first, and what is not written stays so"
    );
    let beyond = (SendOp::Write(remote(&mr, 7999)), vec![t.a.sge(0, 2)]);
    assert_eq!(statuses(&t, vec![beyond]), [WcStatus::RemoteAccess]);
}

#[test]
fn device_memory_is_limited_checked_and_busy_under_regions() {
    let end = End::new();
    let context = &end.context;
    let error = |len, align| context.alloc_dm(len, align).unwrap_err().to_string();
    assert!(error(0, 0).contains("1 to"), "{}", error(0, 0));
    assert!(error(64, MAX_DM_ALIGN_LOG2 + 1).contains("alignment"));
    let most = context.alloc_dm(MAX_DM_BYTES - 64, MAX_DM_ALIGN_LOG2).unwrap();
    assert!(error(65, 0).contains("1 to 64"), "{}", error(65, 0));
    assert!(error(u64::MAX, 0).contains("1 to 64"));
    let rest = context.alloc_dm(64, 0).unwrap();
    drop(most);
    assert_eq!((rest.len(), context.device_attr().max_dm_bytes), (64, MAX_DM_BYTES));
    context.alloc_dm(MAX_DM_BYTES - 64, 0).unwrap();

    rest.copy_in(60, b"last").unwrap();
    let outside = DmRangeError { offset: 61, len: 4, size: 64 };
    assert_eq!(rest.copy_in(61, b"last"), Err(outside));
    assert_eq!(rest.copy_out(u64::MAX, &mut [0; 2]).unwrap_err().len, 2);
    assert!(end.pd.reg_dm_mr(&rest, 1, 64, all_rights()).is_err());
    let stranger = End::new();
    assert!(matches!(
        stranger.pd.reg_dm_mr(&rest, 0, 64, all_rights()),
        Err(CreateError::OtherDevice { .. })
    ));

    let (first, second) = (
        end.pd.reg_dm_mr(&rest, 0, 64, all_rights()).unwrap(),
        end.pd.reg_dm_mr(&rest, 0, 8, Access::REMOTE_READ).unwrap(),
    );
    assert_eq!(rest.destroy().unwrap_err().users, 2);
    let range = Some((end.memory.as_mut_ptr(), 8, 0));
    // SAFETY: the memory lives as long as `end`.
    #[allow(unsafe_code)]
    let moved = unsafe { first.rereg(MrChange { range, ..MrChange::default() }) };
    assert!(matches!(moved, Err(CreateError::Memory(RegisterError::NoMemory))), "{moved:?}");
    first.deregister().unwrap();
    drop(second);
    rest.destroy().unwrap();
}

/// All memory of the process, as `end` knows it.
fn everything(end: &End) -> Arc<Mr> {
    assert!(end.context.device_attr().implicit_odp);
    // SAFETY: the tests name buffers of their own only, which are accessed racily.
    #[allow(unsafe_code)]
    unsafe { end.pd.reg_address_space(all_rights()) }.unwrap()
}

#[test]
fn messages_go_between_regions_over_everything() {
    let t = Pair::new(Service::Rc);
    let (from, to) = (everything(&t.a), everything(&t.b));
    let (source, target) = (HostBuffer::new(100_000).unwrap(), HostBuffer::new(100_000).unwrap());
    let addr = |buffer: &HostBuffer| buffer.as_mut_ptr().addr() as u64;
    let data = pattern(100_000, 9);
    source.write_at(0, &data).unwrap();
    t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[sge(&to, addr(&target), 50_000)] }]).unwrap();
    let write = SendOp::Write(remote(&to, addr(&target) + 50_000));
    let count = SendOp::FetchAdd { remote: remote(&to, addr(&target) + 99_992), add: 5 };
    let word = sge(&from, addr(&source) + 8, 8);
    let work = vec![
        (SendOp::Send, vec![sge(&from, addr(&source), 50_000)]),
        (write, vec![sge(&from, addr(&source) + 50_000, 50_000)]),
        (count, vec![word]),
    ];
    assert_eq!(statuses(&t, work), [WcStatus::Success; 3], "{:?}", t.a_qp.explain());
    assert_eq!(t.b.wait(1)[0].status, WcStatus::Success);
    let mut found = vec![0; 100_000];
    target.read_at(0, &mut found).unwrap();
    assert_eq!(found[..99_992], data[..99_992]);
    let mut swapped = [0; 8];
    source.read_at(8, &mut swapped).unwrap();
    assert_eq!(swapped, data[99_992..], "the word as it was");
}

#[test]
fn what_is_not_mapped_is_a_protection_error_at_either_end() {
    let nowhere = 4096;
    let t = Pair::new(Service::Rc);
    let from = everything(&t.a);
    let work = vec![(SendOp::Send, vec![sge(&from, nowhere, 8)])];
    assert_eq!(statuses(&t, work), [WcStatus::LocalProtection]);
    let t = Pair::new(Service::Rc);
    let to = everything(&t.b);
    t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[sge(&to, nowhere, 8)] }]).unwrap();
    let work = vec![(SendOp::Send, vec![t.a.sge(0, 8)])];
    assert_eq!(statuses(&t, work), [WcStatus::RemoteOperation]);
    assert_eq!(t.b.wait(1)[0].status, WcStatus::LocalProtection);
    let ops: [fn(Remote) -> SendOp; 3] =
        [SendOp::Write, SendOp::Read, |remote| SendOp::FetchAdd { remote, add: 1 }];
    for op in ops {
        let t = Pair::new(Service::Rc);
        let work = vec![(op(remote(&everything(&t.b), nowhere)), vec![t.a.sge(0, 8)])];
        assert_eq!(statuses(&t, work), [WcStatus::RemoteAccess]);
    }
}

#[test]
fn advice_is_checked_like_work() {
    let end = End::new();
    end.pd.advise(&[end.sge(0, 4096), end.sge(8192, 1)], true).unwrap();
    let check = |list: &[Sge], write| end.pd.advise(list, write).unwrap_err().check;
    let unknown = Sge { lkey: Lkey(end.mr.lkey().value() ^ 1), ..end.sge(0, 1) };
    assert!(matches!(check(&[unknown], false), Check::KeyStale | Check::KeyUnknown));
    assert_eq!(check(&[end.sge(MEMORY as u64, 1)], false), Check::Bounds);
    let dm = end.context.alloc_dm(8, 0).unwrap();
    let read_only = end.pd.reg_dm_mr(&dm, 0, 8, Access::REMOTE_READ).unwrap();
    end.pd.advise(&[sge(&read_only, 0, 8)], false).unwrap();
    assert_eq!(check(&[sge(&read_only, 0, 8)], true), Check::Rights(Access::LOCAL_WRITE));
    let other = end.context.alloc_pd();
    assert_eq!(other.advise(&[end.sge(0, 1)], false).unwrap_err().check, Check::WrongPd);
}

#[test]
fn null_region_sends_zeros_and_swallows_what_is_received() {
    let t = Pair::new(Service::Rc);
    let (from, to) = (t.a.pd.alloc_null_mr().unwrap(), t.b.pd.alloc_null_mr().unwrap());
    t.b.fill(0, &[9; 100]);
    t.b_qp
        .post_recv(&[RecvWr {
            wr_id: 1,
            sges: &[t.b.sge(0, 10), sge(&to, 1 << 60, 80), t.b.sge(10, 10)],
        }])
        .unwrap();
    t.a.fill(0, &[5; 10]);
    let list = [t.a.sge(0, 10), sge(&from, 12345, 80), t.a.sge(0, 10)];
    assert_eq!(statuses(&t, vec![(SendOp::Send, list.to_vec())]), [WcStatus::Success]);
    assert_eq!((t.b.wait(1)[0].byte_len, t.b.bytes(0, 20)), (100, vec![5; 20]));
    t.a.fill(0, &[5; 100]);
    let work = vec![(SendOp::Write(t.b.remote(0)), vec![sge(&from, 0, 50)])];
    assert_eq!(statuses(&t, work), [WcStatus::Success]);
    assert_eq!(t.b.bytes(0, 50), [0; 50]);
    let peer = (SendOp::Write(remote(&to, 0)), vec![t.a.sge(0, 1)]);
    assert_eq!(statuses(&t, vec![peer]), [WcStatus::RemoteAccess], "peers have no rights to it");
}

#[test]
fn nobody_is_inside_memory_that_is_deregistered_whatever_moves_packets() {
    // Some WRITEs must come too late; on a loaded machine that takes more than one attempt.
    assert!((0..20).any(|_| deregisters_under_writes()), "it was too slow to tell");
}

/// False if all WRITEs were done before.
fn deregisters_under_writes() -> bool {
    let (a, b) = (End::new(), End::new());
    // An ACK timeout of a second: on a loaded machine a thread may not run for long.
    let patient = || Setup { timeout: AckTimeout::new(18), ..Setup::default() };
    let connected = |_| {
        let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
        connect(&a, &a_qp, b.gid().1, b_qp.qpn(), patient());
        connect(&b, &b_qp, a.gid().1, a_qp.qpn(), patient());
        (a_qp, b_qp)
    };
    let pairs: Vec<_> = (0..3).map(connected).collect();
    let target = HostBuffer::new(1 << 16).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let addr = target.as_mut_ptr();
    // SAFETY: the buffer outlives the region, which this function deregisters.
    #[allow(unsafe_code)]
    let mr = unsafe { b.pd.reg_mr(addr, 1 << 16, addr as u64, access) }.unwrap();
    a.fill(0, &[7; 1 << 16]);
    let remote = remote(&mr, mr.iova());
    for (qp, _) in &pairs {
        let sges = [a.sge(0, 1 << 16)];
        let writes = [wr(1, SendOp::Write(remote), &sges); 64];
        qp.post_send(&writes).unwrap();
    }
    let start = Instant::now();
    let mut first = [0];
    while first != [7] {
        // Both devices' threads are at it, too.
        a.context.progress();
        target.read_at(0, &mut first).unwrap();
        assert!(start.elapsed() < PATIENCE, "nothing arrives");
    }
    mr.deregister().unwrap();
    // From here on it is ours alone.
    target.write_at(0, &[0; 1 << 16]).unwrap();
    let done = a.wait(64 * pairs.len());
    let mut bytes = vec![0; 1 << 16];
    target.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    done.iter().any(|wc| wc.status == WcStatus::RemoteAccess)
}
