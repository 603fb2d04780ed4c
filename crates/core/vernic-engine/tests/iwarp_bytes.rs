//! How bytes get from the memory of one end of an iWARP connection to that of the other: copied, or
//! by the kernel from and to where they lie.

mod common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use common::iwarp::{LO, Pair, end, pair_with, queue_pair, raw_peer, recv, startup, until_error};
use common::{End, pattern, wr};
use vernic_engine::iwarp::{StartupConfig, StreamConfig, default_stream};
use vernic_engine::*;
use vernic_wire::iwarp::{Control, DdpHeader, FpduHeader, RdmapOpcode, Segment, Tagged};

/// Bytes of a long message: several turns of a connection, and no multiple of anything.
const LEN: usize = 3_000_001;

fn plain() -> StartupConfig {
    StartupConfig { crc: false, ..startup() }
}

/// A list over `LEN` bytes from `offset` on, in pieces of many sizes.
fn pieces(end: &End, offset: u64) -> [Sge; 4] {
    let lengths = [1, 70_003, 0, LEN as u32 - 70_004];
    let mut at = offset;
    lengths.map(|length| {
        let sge = end.sge(at, length);
        at += u64::from(length);
        sge
    })
}

/// A SEND, a WRITE and a READ of `LEN` bytes, from and to lists. Returns what both ends counted.
fn exchange(pair: &Pair) -> (StreamCounters, StreamCounters) {
    let Pair { a, b, a_qp, b_qp } = pair;
    let bytes = pattern(LEN, 7);
    a.fill(0, &bytes);
    b_qp.post_recv(&[RecvWr { wr_id: 9, sges: &pieces(b, 4 << 20) }]).unwrap();
    let (from, back) = (pieces(a, 0), pieces(a, 4 << 20));
    a_qp.post_send(&[
        wr(1, SendOp::Send, &from),
        wr(2, SendOp::Write(b.remote(3)), &from),
        wr(3, SendOp::Read(b.remote(3)), &back),
    ])
    .unwrap();
    let got = b.wait_beside(1, || a.context.progress());
    assert_eq!((got[0].wr_id, got[0].status), (9, WcStatus::Success));
    let done = a.wait_beside(3, || b.context.progress());
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
    assert!(b.bytes(4 << 20, LEN) == bytes, "SEND");
    assert!(b.bytes(3, LEN) == bytes, "WRITE");
    assert!(a.bytes(4 << 20, LEN) == bytes, "READ");
    (a.context.counters().streams, b.context.counters().streams)
}

#[test]
fn without_crcs_long_messages_are_gathered_and_placed_by_the_kernel() {
    let (a, b) = exchange(&pair_with(LO, plain(), default_stream()));
    let len = LEN as u64;
    // All of what was sent but the 1-byte piece's FPDU, perhaps, and what the socket was too full
    // for.
    assert!(a.gathered_bytes > 2 * len - 200_000, "{a:?}");
    assert!(b.gathered_bytes > len - 200_000, "{b:?}");
    // How much is placed is a matter of where the stream happens to be cut.
    assert!(b.placed_bytes > len && a.placed_bytes > len / 4, "{a:?} {b:?}");
    assert_eq!((a.connections, a.lost, a.tx_bytes), (1, 0, b.rx_bytes));
    assert_eq!((a.with_crc, a.without_crc, b.without_crc), (0, 1, 1));
    assert!(a.tx_fpdus > 2 && a.rx_fpdus > 1, "{a:?}");
    assert_eq!((a.tx_fpdus, b.crc_errors), (b.rx_fpdus, 0));
}

#[test]
fn under_crcs_payload_is_copied_unless_it_may_be_placed_before_the_check() {
    let (a, b) = exchange(&pair_with(LO, startup(), default_stream()));
    assert_eq!((a.with_crc, a.without_crc, b.with_crc), (1, 0, 1));
    let direct = [a, b].map(|end| (end.gathered_bytes, end.placed_bytes));
    assert_eq!(direct, [(0, 0), (0, 0)]);
    let early = StreamConfig { place_before_crc: true, ..default_stream() };
    let (a, b) = exchange(&pair_with(LO, startup(), early));
    assert_eq!((a.gathered_bytes, b.gathered_bytes), (0, 0));
    assert!(b.placed_bytes > LEN as u64, "{b:?}");
    assert!(a.placed_bytes > LEN as u64 / 4, "{a:?}");
}

#[test]
fn memory_that_is_no_plain_range_takes_the_way_through_the_buffer() {
    let Pair { a, b, a_qp, b_qp } = pair_with(LO, plain(), default_stream());
    let (here, there) = (a.pd.alloc_null_mr().unwrap(), b.pd.alloc_null_mr().unwrap());
    let nothing = |mr: &Mr| Sge { addr: 0, length: LEN as u32, lkey: mr.lkey() };
    b.fill(0, &pattern(LEN, 1));
    recv(&b, &b_qp, 9, 0, LEN as u32);
    // Zeros come out of it, and what goes into it is gone.
    let a_nothing = [nothing(&here)];
    a_qp.post_send(&[wr(1, SendOp::Send, &a_nothing)]).unwrap();
    assert_eq!(b.wait_beside(1, || a.context.progress())[0].status, WcStatus::Success);
    assert!(b.bytes(0, LEN) == vec![0; LEN]);
    let placed = || b.context.counters().streams.placed_bytes;
    let before = placed();
    b_qp.post_recv(&[RecvWr { wr_id: 9, sges: &[nothing(&there)] }]).unwrap();
    let some = [a.sge(0, LEN as u32)];
    a_qp.post_send(&[wr(2, SendOp::Send, &some)]).unwrap();
    assert_eq!(b.wait_beside(1, || a.context.progress())[0].byte_len as usize, LEN);
    assert_eq!(placed(), before);
}

#[test]
fn nothing_reaches_memory_that_is_deregistered_while_it_is_written() {
    let Pair { a, b, a_qp, b_qp } = pair_with(LO, plain(), default_stream());
    let memory = vernic_mem::HostBuffer::new(LEN).unwrap();
    let addr = memory.as_mut_ptr();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // SAFETY: the buffer is dropped after the region, and only accessed racily.
    #[allow(unsafe_code)]
    let mr = unsafe { b.pd.reg_mr(addr, LEN as u64, 0, access) }.unwrap();
    let remote = Remote { addr: 0, rkey: mr.rkey() };
    let (sge, stop) = ([a.sge(0, LEN as u32)], AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) && a_qp.state() == QpState::Rts {
                let _ = a_qp.post_send(&[wr(1, SendOp::Write(remote), &sge)]);
                a.cq.poll(&mut [EMPTY_WC; 16]).unwrap();
            }
        });
        let begun = || b.context.counters().streams.placed_bytes > 10 * LEN as u64;
        while !begun() {
            b.context.progress();
        }
        mr.deregister().unwrap();
        let bytes = pattern(LEN, 11);
        memory.write_at(0, &bytes).unwrap();
        // The next segment finds no key.
        until_error(&b, &b_qp);
        stop.store(true, Ordering::Relaxed);
        let mut now = vec![0; LEN];
        memory.read_at(0, &mut now).unwrap();
        assert!(now == bytes);
    });
    assert!(matches!(b_qp.explain().unwrap().failure.cause, Cause::Violation { .. }));
}

/// The next segment of a stream without CRCs.
fn segment(socket: &mut impl Read) -> (DdpHeader, Vec<u8>) {
    let mut head = [0; FpduHeader::LEN];
    socket.read_exact(&mut head).unwrap();
    let header = FpduHeader::from_bytes(&head);
    let mut rest = vec![0; header.fpdu_len() - FpduHeader::LEN];
    socket.read_exact(&mut rest).unwrap();
    let segment = Segment::parse(&rest[..usize::from(header.ulpdu_len)]).unwrap();
    (segment.header, segment.body.to_vec())
}

#[test]
fn what_a_full_socket_did_not_take_is_what_the_application_posted() {
    let end = end();
    let qp = queue_pair(&end);
    let mut socket = raw_peer(&end, &qp, default_stream(), None);
    // An empty WRITE, so that the other end may speak.
    let control = Control::new(RdmapOpcode::WRITE, true);
    let header = DdpHeader::Tagged(Tagged { control, stag: Rkey(1), offset: 0 });
    let mut fpdu = [0; 20];
    FpduHeader { ulpdu_len: 14 }.emit(&mut fpdu);
    header.emit(&mut fpdu[FpduHeader::LEN..]);
    socket.write_all(&fpdu).unwrap();
    let bytes = pattern(LEN, 3);
    end.fill(0, &bytes);
    let remote = Remote { addr: 0, rkey: Rkey(7) };
    let sge = [end.sge(0, LEN as u32)];
    let wrs: Vec<_> = (0..20).map(|n| wr(n, SendOp::Write(remote), &sge)).collect();
    qp.post_send(&wrs).unwrap();
    // Until the sockets of both ends are full.
    let sent = || end.context.counters().streams.tx_bytes;
    let (mut before, mut idle) = (0, 0);
    while idle < 1000 || before == 0 {
        end.context.progress();
        idle = if sent() == before { idle + 1 } else { 0 };
        before = sent();
    }
    assert!(before < 20 * LEN as u64);
    qp.modify(&QpAttr { state: QpState::Error, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    let done = end.wait(20);
    assert!(done.iter().any(|wc| wc.status == WcStatus::Flushed));
    // The memory is the application's again.
    end.fill(0, &vec![0; LEN]);
    let mut at = 0;
    loop {
        let (header, body) = segment(&mut socket);
        if header.control().opcode == RdmapOpcode::TERMINATE {
            break;
        }
        assert!(body == bytes[at..at + body.len()], "{} bytes at {at}", body.len());
        at = (at + body.len()) % LEN;
    }
    assert_eq!(socket.read(&mut [0; 9]).unwrap(), 0);
}
