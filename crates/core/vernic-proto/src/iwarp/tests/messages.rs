//! Each operation between two queue pairs, in every mode of the stream.

use vernic_wire::Rkey;

use super::pair::{Pair, REMOTE, config, wqe};
use crate::completion::{Tag, WcOpcode};
use crate::error::WcStatus;
use crate::iwarp::{Agreed, Extensions, StreamConfig};
use crate::qp::PostError;
use crate::test_host::{BASE, RKEY};
use crate::wqe::{Remote, SendFlags, SendOp, SendWqe};

/// CRC, markers, placement before the CRC, large FPDUs, pieces of the network, placement by the
/// owner.
const MODES: [(bool, bool, bool, bool, usize, bool); 7] = [
    (false, false, false, false, 1 << 20, false),
    (true, false, false, false, 7, false),
    (true, true, false, false, 100, false),
    (true, false, true, true, 64, true),
    (true, true, true, false, 33, true),
    (false, true, false, true, 5, true),
    (false, false, false, true, 1000, true),
];

fn in_every_mode(test: impl Fn(&mut Pair)) {
    // Miri takes a minute for what the machine does in a millisecond.
    let skipped = if cfg!(miri) { MODES.len() - 1 } else { 0 };
    for &(crc, markers, place_before_crc, large_fpdus, chunk, places) in &MODES[skipped..] {
        let change = |agreed: &mut Agreed| (agreed.crc, agreed.tx_markers) = (crc, markers);
        let config = StreamConfig { place_before_crc, large_fpdus, ..config() };
        let mut pair = Pair::with(change, config);
        (pair.chunk, pair.places) = (chunk, places);
        pair.greet();
        test(&mut pair);
        for end in &pair.ends {
            assert!(end.host.failures.is_empty(), "{:?}", end.host.failures);
            assert!(end.host.sent.iter().all(|one| one.status == WcStatus::Success));
        }
    }
}

const LENGTHS: [u32; 6] = if cfg!(miri) { [0, 1, 2, 3, 4, 5] } else { [0, 1, 100, 476, 477, 3000] };

#[test]
fn a_send_fills_the_receive() {
    in_every_mode(|pair| {
        for (len, id) in LENGTHS.into_iter().zip(0..) {
            pair.ends[1].host.post_recv(100 + id, 4000);
            pair.ends[1].host.recv_buf.fill(0xEE);
            pair.post(0, id, SendOp::Send, len);
            pair.run();
            let completion = *pair.received(1).last().unwrap();
            assert_eq!((completion.wr_id, completion.byte_len), (100 + id, len));
            assert_eq!((completion.opcode, completion.tag), (WcOpcode::Recv, Tag::None));
            let (sent, got) = (&pair.ends[0].host.send_buf, &pair.ends[1].host.recv_buf);
            assert_eq!(got[..len as usize], sent[..len as usize]);
            assert_eq!(got[len as usize], 0xEE);
        }
        assert_eq!(pair.sent(0), [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_write_reaches_memory_and_completes_nothing_there() {
    in_every_mode(|pair| {
        for (len, id) in LENGTHS.into_iter().zip(0..) {
            let at = 64 + 1000 * id as usize;
            let remote = Remote { addr: BASE + at as u64, rkey: RKEY };
            pair.post(0, id, SendOp::Write(remote), len);
            pair.run();
            let (sent, memory) = (&pair.ends[0].host.send_buf, &pair.ends[1].host.memory);
            assert_eq!(memory[at..at + len as usize], sent[..len as usize]);
        }
        assert!(pair.received(1).is_empty());
        assert_eq!(pair.sent(0), [0, 1, 2, 3, 4, 5]);
        let (a, b) = (pair.ends[0].qp.counters(), pair.ends[1].qp.counters());
        assert_eq!((a.tx_bytes, a.tx_packets), (b.rx_bytes, b.rx_packets));
        assert_eq!((a.messages_sent, b.messages_received), (7, 7));
    });
}

#[test]
fn a_read_fetches_memory_from_either_side() {
    in_every_mode(|pair| {
        for (len, id) in LENGTHS.into_iter().zip(0..) {
            for side in 0..2 {
                pair.ends[side].host.response_buf.fill(0xEE);
                let remote = Remote { addr: BASE + 777, rkey: RKEY };
                pair.post(side, id, SendOp::Read(remote), len);
                pair.run();
                let memory = &pair.ends[1 - side].host.memory[777..][..len as usize];
                let got = &pair.ends[side].host.response_buf;
                assert_eq!(got[..len as usize], *memory);
                assert_eq!(got[len as usize], 0xEE);
                assert_eq!(pair.ends[side].host.sent.last().unwrap().byte_len, len);
            }
        }
        assert_eq!(pair.sent(1), [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn atomics_return_what_was_there() {
    in_every_mode(|pair| {
        let cell = 64;
        pair.ends[1].host.memory[cell..cell + 8].copy_from_slice(&40_u64.to_ne_bytes());
        let remote = Remote { addr: BASE + cell as u64, rkey: RKEY };
        let value = |pair: &Pair| {
            u64::from_ne_bytes(pair.ends[1].host.memory[cell..cell + 8].try_into().unwrap())
        };
        let original = |pair: &Pair| {
            u64::from_ne_bytes(pair.ends[0].host.response_buf[..8].try_into().unwrap())
        };
        pair.post(0, 1, SendOp::FetchAdd { remote, add: 2 }, 8);
        pair.run();
        assert_eq!((original(pair), value(pair)), (40, 42));
        pair.post(0, 2, SendOp::CmpSwap { remote, compare: 41, swap: 7 }, 8);
        pair.run();
        assert_eq!((original(pair), value(pair)), (42, 42));
        pair.post(0, 3, SendOp::CmpSwap { remote, compare: 42, swap: 7 }, 8);
        pair.run();
        assert_eq!((original(pair), value(pair)), (42, 7));
        let opcodes: Vec<_> = pair.ends[0].host.sent.iter().map(|one| one.opcode).collect();
        assert_eq!(opcodes, [WcOpcode::FetchAdd, WcOpcode::CmpSwap, WcOpcode::CmpSwap]);
    });
}

#[test]
fn a_write_with_immediate_writes_and_completes_a_receive() {
    in_every_mode(|pair| {
        for (len, id) in LENGTHS.into_iter().zip(0..) {
            pair.ends[1].host.post_recv(50 + id, 0);
            pair.post(0, id, SendOp::WriteImm(REMOTE, 0xABCD_0000 + id as u32), len);
            pair.run();
            let completion = *pair.received(1).last().unwrap();
            assert_eq!((completion.wr_id, completion.byte_len), (50 + id, len));
            assert_eq!(completion.opcode, WcOpcode::RecvWriteImm);
            assert_eq!(completion.tag, Tag::Imm(0xABCD_0000 + id as u32));
            let (sent, memory) = (&pair.ends[0].host.send_buf, &pair.ends[1].host.memory);
            assert_eq!(memory[..len as usize], sent[..len as usize]);
        }
        assert_eq!(pair.sent(0), [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_send_with_invalidate_ends_the_key_before_it_completes() {
    in_every_mode(|pair| {
        pair.ends[1].host.post_recv(9, 4000);
        pair.post(0, 1, SendOp::SendInv(RKEY), 1000);
        pair.run();
        assert_eq!(pair.ends[1].host.invalidated, [RKEY]);
        let completion = pair.received(1)[0];
        assert_eq!((completion.tag, completion.byte_len), (Tag::Invalidated(RKEY), 1000));
    });
}

#[test]
fn a_read_with_local_invalidate_ends_its_own_key_when_the_data_is_here() {
    let mut pair = Pair::open();
    pair.post(0, 1, SendOp::ReadInv(REMOTE, Rkey(0x99)), 600);
    pair.ends[0].transmit(pair.now);
    assert!(pair.ends[0].host.local_ops.is_empty());
    pair.run();
    assert_eq!(pair.ends[0].host.local_ops, [SendOp::LocalInv(Rkey(0x99))]);
    assert_eq!(pair.ends[0].host.sent[0].opcode, WcOpcode::Read);
}

#[test]
fn solicited_messages_say_so_and_others_do_not() {
    let mut pair = Pair::open();
    for (id, op) in
        [(0, SendOp::Send), (1, SendOp::WriteImm(REMOTE, 1)), (2, SendOp::SendInv(RKEY))]
    {
        for flags in [SendFlags::SIGNALED, SendFlags::SIGNALED | SendFlags::SOLICITED] {
            pair.ends[1].host.post_recv(id, 100);
            pair.ends[0].qp.post_send(SendWqe { flags, ..wqe(id, op, 10) }).unwrap();
            pair.run();
            let solicited = flags.contains(SendFlags::SOLICITED);
            assert_eq!(pair.received(1).last().unwrap().solicited, solicited, "{op:?}");
        }
    }
}

#[test]
fn local_operations_are_carried_out_in_their_turn() {
    let mut pair = Pair::open();
    pair.post(0, 1, SendOp::Read(REMOTE), 100);
    pair.post(0, 2, SendOp::LocalInv(Rkey(3)), 0);
    pair.post(0, 3, SendOp::Write(REMOTE), 100);
    pair.run();
    assert_eq!(pair.sent(0), [1, 2, 3]);
    assert_eq!(pair.ends[0].host.local_ops, [SendOp::LocalInv(Rkey(3))]);
}

#[test]
fn what_iwarp_has_not_is_refused_when_it_is_posted() {
    let mut pair = Pair::open();
    let post = |pair: &mut Pair, op| pair.ends[0].qp.post_send(wqe(1, op, 8)).unwrap_err();
    let error = post(&mut pair, SendOp::SendImm(1));
    assert_eq!(error, PostError::NotOnIwarp("SEND with immediate data"));
    let flush = SendOp::Flush { remote: REMOTE, placement: 1, selectivity: 0 };
    assert_eq!(post(&mut pair, flush), PostError::NotOnIwarp("FLUSH"));
    assert_eq!(post(&mut pair, SendOp::AtomicWrite(REMOTE)), PostError::NotOnIwarp("ATOMIC WRITE"));
    let mut pair = Pair::with(|_| {}, StreamConfig { peer_has: Extensions::empty(), ..config() });
    let add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
    assert_eq!(post(&mut pair, add), PostError::PeerLacks("atomics"));
    assert_eq!(
        post(&mut pair, SendOp::WriteImm(REMOTE, 1)),
        PostError::PeerLacks("immediate data")
    );
    let mut pair = Pair::with(|agreed| agreed.ord = 0, config());
    assert_eq!(post(&mut pair, SendOp::Read(REMOTE)), PostError::NoReadDepth);
}

#[test]
fn a_full_queue_and_a_message_beyond_the_limit_are_refused() {
    let mut pair = Pair::open();
    for id in 0..8 {
        pair.post(1, id, SendOp::Write(REMOTE), 8);
    }
    let error = pair.ends[1].qp.post_send(wqe(9, SendOp::Send, 8)).unwrap_err();
    assert_eq!(error, PostError::Full(8));
    let error = pair.ends[0].qp.post_send(wqe(9, SendOp::Send, u32::MAX)).unwrap_err();
    assert!(matches!(error, PostError::Length { length: u32::MAX, .. }));
}
