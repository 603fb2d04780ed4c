use std::net::{IpAddr, SocketAddr};

use super::*;
use crate::endpoint;
use crate::testing::{append, path};

fn batch() -> TxBatch {
    TxBatch::new(&LinkLimits::default())
}

/// Returns the number of packets and the stride of each waiting run.
fn shape(batch: &TxBatch) -> Vec<(usize, usize)> {
    batch.runs().map(|run| (run.count(), run.stride)).collect()
}

#[test]
fn a_path_gives_back_what_it_was_made_of() {
    for (src, dst) in [
        ("10.0.0.1", "10.0.0.2:4791"),
        ("2001:db8::1", "[2001:db8::2]:4791"),
        ("fe80::1", "[fe80::2%7]:50000"),
    ] {
        let (src, dst): (IpAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        let path = endpoint::path(src, dst).with_flow(9).with_traffic_class(2).with_hop_limit(1);
        assert_eq!(path.local().to_ip(), src);
        assert_eq!(endpoint::destination_of(&path), dst);
        assert_eq!((path.flow(), path.traffic_class(), path.hop_limit()), (9, 2, 1));
        assert_ne!(path, path.with_flow(8));
    }
    let local = endpoint::path("fe80::1".parse().unwrap(), "[fe80::2%7]:1".parse().unwrap());
    assert_eq!(endpoint::local_of(&local).to_string(), "fe80::1%7");
}

#[test]
fn a_shorter_packet_closes_its_run_and_a_longer_one_starts_another() {
    let mut batch = batch();
    for size in [100, 100, 60, 60, 60, 100] {
        append(&mut batch, size, 0);
    }
    assert_eq!(shape(&batch), [(3, 104), (2, 64), (1, 104)]);
    assert_eq!((batch.packets(), batch.bytes()), (6, 3 * 104 + 3 * 64));
    let sizes: Vec<usize> = batch.runs().flat_map(|run| run.packets().map(<[u8]>::len)).collect();
    assert_eq!(sizes, [104, 104, 64, 64, 64, 104]);
}

#[test]
fn another_path_starts_another_run() {
    let mut batch = batch();
    append(&mut batch, 100, 0);
    batch.room().unwrap()[..100].fill(1);
    batch.push(&path().with_flow(1), 100);
    append(&mut batch, 100, 2);
    assert_eq!(shape(&batch), [(1, 104); 3]);
}

#[test]
fn a_run_ends_at_the_limits_of_the_link() {
    let mut batch = TxBatch::new(&LinkLimits { max_segments: 3, ..LinkLimits::default() });
    (0..7).for_each(|_| append(&mut batch, 60, 0));
    assert_eq!(shape(&batch), [(3, 64), (3, 64), (1, 64)]);
    let mut batch = TxBatch::new(&LinkLimits::default());
    (0..20).for_each(|_| append(&mut batch, 4112, 0));
    assert_eq!(shape(&batch), [(15, 4116), (5, 4116)]);
}

#[test]
fn a_full_batch_has_no_room_and_an_emptied_one_has_all_of_it() {
    let mut batch = batch();
    let mut count = 0;
    while batch.room().is_some() {
        append(&mut batch, MAX_TRANSPORT_BYTES, 0);
        count += 1;
    }
    assert!(batch.is_full());
    assert_eq!(count, TX_ARENA_BYTES / MAX_PACKET_BYTES);
    let runs = batch.runs().len();
    batch.retire(runs);
    assert!(batch.is_empty() && batch.room().is_some());
    // Runs are limited, too.
    for flow in 0..TX_MAX_RUNS as u16 {
        assert!(batch.room().is_some());
        batch.push(&path().with_flow(flow), 16);
    }
    assert!(batch.room().is_none());
}

#[test]
fn room_is_the_same_until_a_packet_is_pushed() {
    let mut batch = batch();
    batch.room().unwrap()[0] = 1;
    batch.room().unwrap()[0] = 2;
    batch.push(&path(), 20);
    assert_eq!(batch.first_run().unwrap().bytes[0], 2);
    assert_eq!(batch.packets(), 1);
}

#[test]
#[should_panic(expected = "push of 0 bytes")]
fn an_empty_packet_is_a_mistake_of_the_caller() {
    batch().push(&path(), 0);
}

#[test]
fn every_packet_is_stamped_once_with_its_index_in_the_run() {
    let mut batch = batch();
    let mut stamped = Vec::new();
    let mut stamp = |batch: &mut TxBatch| {
        batch.stamp_with(|_, first, bytes, stride| {
            stamped.extend((first..).zip(bytes.chunks(stride).map(|packet| packet[0])));
        });
    };
    append(&mut batch, 100, 10);
    stamp(&mut batch);
    stamp(&mut batch);
    append(&mut batch, 100, 11);
    append(&mut batch, 50, 12);
    append(&mut batch, 50, 13);
    stamp(&mut batch);
    append(&mut batch, 50, 14);
    stamp(&mut batch);
    assert_eq!(stamped, [(0, 10), (1, 11), (2, 12), (0, 13), (1, 14)]);
    assert_eq!(shape(&batch), [(3, 104), (2, 54)]);
}

#[test]
fn retired_runs_are_gone_and_the_rest_keeps_its_order() {
    let mut batch = batch();
    for (size, fill) in [(100, 1), (100, 2), (100, 3), (60, 4), (200, 5)] {
        append(&mut batch, size, fill);
    }
    batch.stamp_with(|_, _, _, _| ());
    batch.retire_part(2);
    assert_eq!(shape(&batch), [(2, 104), (1, 204)]);
    assert_eq!(batch.first_run().unwrap().bytes[0], 3);
    batch.retire_part(99);
    assert_eq!(batch.first_run().unwrap().bytes[0], 4, "one packet is left");
    batch.retire(1);
    assert_eq!(batch.first_run().unwrap().bytes[0], 5);
    append(&mut batch, 200, 6);
    let mut stamped = Vec::new();
    batch.stamp_with(|_, first, bytes, _| stamped.push((first, bytes[0])));
    assert_eq!(stamped, [(1, 6)], "only the new packet");
    batch.retire(99);
    assert!(batch.is_empty());
}

#[test]
fn packets_are_found_by_index_over_all_runs() {
    let mut batch = batch();
    for (size, fill) in [(100, 1), (60, 2), (60, 3), (60, 4)] {
        append(&mut batch, size, fill);
    }
    let firsts: Vec<Option<u8>> =
        (0..5).map(|index| batch.packet_mut(index).map(|packet| packet[0])).collect();
    assert_eq!(firsts, [Some(1), Some(2), Some(3), Some(4), None]);
    assert_eq!(batch.packet_mut(1).unwrap().len(), 64);
}

#[test]
fn copies_of_packets_are_refused_when_they_cannot_be_packets() {
    let mut batch = batch();
    assert!(!batch.push_copy(&path(), &[0; 4]));
    assert!(!batch.push_copy(&path(), &[0; MAX_PACKET_BYTES + 1]));
    assert!(batch.push_copy(&path(), &[5; 5]));
    assert!(batch.push_copy(&path(), &[6; MAX_PACKET_BYTES]));
    assert_eq!(batch.packets(), 2);
}

fn meta() -> RxMeta {
    let addr: SocketAddr = "127.0.0.1:4791".parse().unwrap();
    RxMeta { traffic_class: 3, ..endpoint::arrival(addr, addr) }
}

#[test]
fn a_buffer_is_cut_into_packets_of_its_stride() {
    let mut rx = RxBatch::new();
    rx.spare()[..250].fill(1);
    rx.commit(250, 100, meta());
    rx.spare()[..40].fill(2);
    rx.commit(40, 40, meta());
    let seen: Vec<(usize, u16, u8)> =
        rx.packets().map(|p| (p.bytes.len(), p.segment, p.bytes[0])).collect();
    assert_eq!(seen, [(100, 0, 1), (100, 1, 1), (50, 2, 1), (40, 0, 2)]);
    assert_eq!((rx.len(), rx.free()), (4, RX_BUFFERS - 2));
    assert!(rx.packets().all(|p| p.meta.is_congestion_experienced()));
    rx.clear();
    assert!(rx.is_empty() && rx.packets().next().is_none());
}

#[test]
fn parts_of_a_buffer_keep_their_place_and_segment() {
    let mut rx = RxBatch::new();
    for (i, byte) in rx.spare()[..300].iter_mut().enumerate() {
        *byte = (i / 100) as u8;
    }
    assert!(rx.commit_part(0, 100, 100, 0, meta()));
    assert!(rx.commit_part(200, 100, 100, 2, meta()));
    rx.next_buffer();
    let seen: Vec<(u16, u8)> = rx.packets().map(|p| (p.segment, p.bytes[0])).collect();
    assert_eq!(seen, [(0, 0), (2, 2)]);
    assert_eq!(rx.free(), RX_BUFFERS - 1);
}

#[test]
fn more_parts_than_there_may_be_are_refused_not_a_crash() {
    let mut rx = RxBatch::new();
    let kept = (0..10_000).filter(|_| rx.commit_part(0, 1, 1, 0, meta())).count();
    assert_eq!(kept, RX_MAX_RANGES);
    rx.clear();
    assert!(!rx.commit_part(RX_BUFFER_BYTES, 1, 1, 0, meta()));
    for _ in 0..RX_BUFFERS + 5 {
        rx.commit(10, 10, meta());
    }
    assert_eq!((rx.len(), rx.free()), (RX_BUFFERS, 0));
    assert!(rx.spare().is_empty());
}

#[test]
fn datagrams_of_no_or_few_bytes_are_safe_to_look_at() {
    let mut rx = RxBatch::new();
    rx.commit(0, 0, meta());
    assert_eq!((rx.len(), rx.free()), (0, RX_BUFFERS - 1));
    for len in 1..10 {
        rx.spare()[..len].fill(0xFF);
        rx.commit(len, len, meta());
    }
    for packet in rx.packets() {
        assert_eq!(packet.transport().len(), packet.bytes.len().saturating_sub(ICRC_BYTES));
        assert_eq!(packet.dest_qpn().is_some(), packet.bytes.len() >= 8);
    }
}
