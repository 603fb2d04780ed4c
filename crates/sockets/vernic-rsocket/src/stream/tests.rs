//! Two machines and the memory of both, in one thread: what one asks to be written is copied, in
//! order.

use std::collections::VecDeque;

use proptest::prelude::*;
use vernic_wire::Rkey;

use super::*;
use crate::wire::ByteOrder;

const LIMITS: Limits = Limits {
    send_bytes: 4096,
    recv_bytes: 4096,
    send_requests: 16,
    recv_messages: 16,
    inline_bytes: 8,
    iomap: IomapScale(2),
};

/// Keys of the three regions.
const RING: Rkey = Rkey(1);
const LIST: Rkey = Rkey(2);
const MAPPED: Rkey = Rkey(3);
/// Where the regions begin, as peers see them.
const RING_ADDR: u64 = 0x1000;
const LIST_ADDR: u64 = 0x9000;

/// The target list and the table of mapped buffers behind it.
struct List(Vec<u8>);

impl TargetList for List {
    fn take(&mut self, index: usize) -> RemoteSge {
        let at = index * RemoteSge::LEN;
        let entry = RemoteSge::parse(&self.0[at..], ByteOrder::HOST).unwrap();
        if entry.length != 0 {
            self.0[at..at + RemoteSge::LEN].fill(0);
        }
        entry
    }
}

/// One side.
struct Side {
    machine: Stream,
    send_ring: Vec<u8>,
    recv_ring: Vec<u8>,
    list: List,
    mapped: Vec<u8>,
    /// Posted, in order, with their bytes.
    posted: VecDeque<(Write, Vec<u8>)>,
}

impl Side {
    fn new(limits: Limits) -> Self {
        let places = Places {
            target_list: RemoteSge { addr: LIST_ADDR, rkey: LIST, length: 0 },
            recv_ring: RemoteSge { addr: RING_ADDR, rkey: RING, length: 0 },
        };
        let machine = Stream::new(limits, places);
        let list = TARGETS * RemoteSge::LEN
            + usize::from(limits.iomap.entries()) * crate::wire::IomapEntry::LEN;
        Self {
            send_ring: vec![0; machine.limits().send_bytes as usize],
            recv_ring: vec![0; machine.limits().recv_bytes as usize],
            machine,
            list: List(vec![0; list]),
            mapped: vec![0; 64],
            posted: VecDeque::new(),
        }
    }

    fn post(&mut self, write: Write, user: &[u8]) {
        let bytes = match write.source {
            Source::Nothing => Vec::new(),
            Source::Bytes(small) => small.as_slice().to_vec(),
            Source::User(len) => user[..len as usize].to_vec(),
            Source::Ring(spans) => spans
                .pieces()
                .iter()
                .flat_map(|span| {
                    self.send_ring[span.at as usize..(span.at + span.len) as usize].to_vec()
                })
                .collect(),
        };
        self.posted.push_back((write, bytes));
    }

    fn fill(&mut self, spans: Option<Spans>, bytes: &[u8]) {
        let mut bytes = bytes;
        for span in spans.iter().flat_map(Spans::pieces) {
            let (now, rest) = bytes.split_at(span.len as usize);
            self.send_ring[span.at as usize..(span.at + span.len) as usize].copy_from_slice(now);
            bytes = rest;
        }
    }

    /// Posts what is due without the user.
    fn flush(&mut self) {
        while let Some(write) = self.machine.poll_write() {
            self.post(write, &[]);
        }
    }

    /// Sends as much as goes now.
    fn send(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        self.flush();
        loop {
            let len = self.machine.next_len((bytes.len() - sent) as u32);
            if len == 0 {
                return sent;
            }
            let now = &bytes[sent..sent + len as usize];
            self.fill(self.machine.place(len), now);
            let write = self.machine.send(len).unwrap();
            self.post(write, now);
            sent += len as usize;
        }
    }

    /// Reads at most `len` bytes.
    fn recv(&mut self, len: u32) -> Vec<u8> {
        let spans = self.machine.peek(0, len);
        let bytes: Vec<u8> = spans
            .pieces()
            .iter()
            .flat_map(|span| {
                self.recv_ring[span.at as usize..(span.at + span.len) as usize].to_vec()
            })
            .collect();
        self.machine.consume(bytes.len() as u32);
        self.flush();
        bytes
    }

    /// A write of the peer's arrives.
    fn arrive(&mut self, write: &Write, bytes: &[u8]) -> Result<(), ProtocolError> {
        if !bytes.is_empty() {
            let (memory, base) = match write.rkey {
                RING => (&mut self.recv_ring, RING_ADDR),
                LIST => (&mut self.list.0, LIST_ADDR),
                MAPPED => (&mut self.mapped, 0),
                other => panic!("no region has the key {other:?}"),
            };
            let at = (write.addr - base) as usize;
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let result = match write.message {
            // Through its 32 bits, as on the wire.
            Some(message) => {
                self.machine.handle_message(Message::parse(message.to_imm()), &mut self.list)
            }
            None => Ok(()),
        };
        self.flush();
        result
    }
}

/// Both sides, connected.
struct Pair {
    a: Side,
    b: Side,
    trace: Vec<String>,
}

impl Pair {
    fn new(limits: Limits) -> Self {
        let (mut a, mut b) = (Side::new(limits), Side::new(limits));
        let through = |data: ConnData| ConnData::parse(&data.to_bytes()).unwrap();
        a.machine.connect(through(b.machine.conn_data())).unwrap();
        b.machine.connect(through(a.machine.conn_data())).unwrap();
        a.flush();
        b.flush();
        Self { a, b, trace: Vec::new() }
    }

    /// Delivers the oldest write of one side, and completes it.
    fn step(&mut self, from_a: bool) -> bool {
        let (from, to, arrow) = match from_a {
            true => (&mut self.a, &mut self.b, "A->B"),
            false => (&mut self.b, &mut self.a, "B->A"),
        };
        let Some((write, bytes)) = from.posted.pop_front() else { return false };
        let message = write.message.map_or("-".to_owned(), |message| message.to_string());
        let memory = match write.rkey {
            RING => format!(" ring+{}", write.addr - RING_ADDR),
            LIST => format!(" list+{}", write.addr - LIST_ADDR),
            MAPPED => format!(" mapped+{}", write.addr),
            _ => String::new(),
        };
        self.trace.push(format!("{arrow} {message}{memory} len={}", bytes.len()));
        to.arrive(&write, &bytes).unwrap();
        from.machine.handle_sent(write.id);
        from.flush();
        true
    }

    /// Delivers everything.
    fn run(&mut self) {
        // Ends: each turn delivers a write, and only credits cause writes.
        while self.step(true) || self.step(false) {}
    }

    fn take_trace(&mut self) -> Vec<String> {
        std::mem::take(&mut self.trace)
    }
}

fn bytes(from: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| from.wrapping_add(i as u8)).collect()
}

#[test]
fn each_side_first_tells_the_other_of_the_second_half_of_its_ring() {
    let mut pair = Pair::new(LIMITS);
    pair.run();
    let credits = |arrow| format!("{arrow} CREDITS 16 list+16 len=16");
    assert_eq!(pair.take_trace(), [credits("A->B"), credits("B->A")]);
}

#[test]
fn data_fills_a_half_to_its_end_and_goes_on_in_the_next() {
    let mut pair = Pair::new(LIMITS);
    pair.run();
    pair.take_trace();
    assert_eq!(pair.a.send(&bytes(0, 2000)), 2000);
    pair.run();
    assert_eq!(pair.a.send(&bytes(9, 100)), 100);
    pair.run();
    assert_eq!(
        pair.take_trace(),
        [
            "A->B DATA 2000 ring+0 len=2000",
            "A->B DATA 48 ring+2000 len=48",
            "A->B DATA 52 ring+2048 len=52"
        ]
    );
    assert_eq!(pair.b.recv(5000), [bytes(0, 2000), bytes(9, 100)].concat());
    pair.run();
    // The first half was read wholly, and is told of again.
    assert_eq!(pair.take_trace(), ["B->A CREDITS 19 list+0 len=16"]);
}

#[test]
fn data_that_is_short_does_not_go_through_the_ring() {
    let mut pair = Pair::new(LIMITS);
    assert_eq!(pair.a.machine.place(8), None);
    pair.a.send(&bytes(1, 8));
    assert_eq!(pair.a.machine.unsent(), 0);
    pair.run();
    assert_eq!(pair.b.recv(8), bytes(1, 8));
}

#[test]
fn a_sender_without_credits_waits_until_messages_are_read() {
    let mut pair = Pair::new(LIMITS);
    pair.run();
    let mut sent = 0;
    while pair.a.send(&[7]) == 1 {
        sent += 1;
        pair.run();
    }
    assert_eq!(sent, 16, "one message for each of the peer's receives");
    assert!(!pair.a.machine.can_send());
    // Less than half of them: nothing is said.
    pair.take_trace();
    assert_eq!(pair.b.recv(7).len(), 7);
    pair.run();
    assert_eq!(pair.take_trace(), [""; 0]);
    assert_eq!(pair.b.recv(1).len(), 1);
    pair.run();
    assert_eq!(pair.take_trace(), ["B->A CREDITS 24 len=0"]);
    assert!(pair.a.machine.can_send());
}

#[test]
fn a_sender_without_targets_waits_until_a_half_was_read() {
    let mut pair = Pair::new(LIMITS);
    pair.run();
    let data = bytes(3, 10_000);
    let mut sent = pair.a.send(&data);
    pair.run();
    sent += pair.a.send(&data[sent..]);
    pair.run();
    assert_eq!(sent, 4096, "the peer's ring is full");
    assert!(!pair.a.machine.can_send());
    assert_eq!(pair.b.recv(2047), data[..2047]);
    pair.run();
    assert!(!pair.a.machine.can_send());
    assert_eq!(pair.b.recv(1), data[2047..2048]);
    pair.run();
    assert!(pair.a.machine.can_send());
}

#[test]
fn a_full_send_ring_waits_for_completions() {
    let mut pair = Pair::new(Limits { recv_bytes: 1 << 20, ..LIMITS });
    pair.run();
    let data = bytes(3, 10_000);
    assert_eq!(pair.a.send(&data), 4096);
    assert_eq!((pair.a.machine.unsent(), pair.a.machine.can_send()), (4096, false));
    pair.step(true);
    assert_eq!((pair.a.machine.unsent(), pair.a.machine.can_send()), (0, true));
}

#[test]
fn half_of_a_connection_can_be_shut_and_the_other_goes_on() {
    let mut pair = Pair::new(LIMITS);
    pair.run();
    pair.a.send(&bytes(1, 10));
    pair.a.machine.shutdown(Shutdown::Write);
    assert_eq!(pair.a.send(&[1]), 0);
    pair.a.flush();
    pair.run();
    assert_eq!(pair.trace.last().unwrap(), "A->B SHUTDOWN len=0");
    assert!(!pair.b.machine.may_receive() && pair.b.machine.may_send());
    assert_eq!(pair.b.recv(100), bytes(1, 10));
    assert_eq!(pair.b.send(&bytes(2, 10)), 10);
    pair.run();
    assert_eq!(pair.a.recv(100), bytes(2, 10));
    // The other half ends it all.
    pair.b.machine.shutdown(Shutdown::Write);
    pair.b.flush();
    pair.run();
    assert_eq!(pair.trace.last().unwrap(), "B->A DISCONNECT len=0");
    assert!(pair.a.machine.is_disconnected() && pair.b.machine.is_disconnected());
    assert!(pair.a.machine.is_flushed() && pair.b.machine.is_flushed());
}

#[test]
fn what_came_before_a_disconnect_can_still_be_read() {
    let mut pair = Pair::new(LIMITS);
    pair.a.send(&bytes(1, 500));
    pair.a.machine.shutdown(Shutdown::Both);
    pair.a.flush();
    pair.run();
    assert!(pair.b.machine.is_disconnected() && !pair.b.machine.may_receive());
    assert_eq!(pair.b.recv(1000), bytes(1, 500));
    assert_eq!(pair.b.send(&[1]), 0);
}

#[test]
fn two_that_shut_down_at_once_are_both_disconnected() {
    let mut pair = Pair::new(LIMITS);
    for side in [&mut pair.a, &mut pair.b] {
        side.machine.shutdown(Shutdown::Write);
        side.flush();
    }
    pair.run();
    assert!(pair.a.machine.is_disconnected() && pair.b.machine.is_disconnected());
    assert!(pair.a.machine.is_flushed() && pair.b.machine.is_flushed());
}

#[test]
fn what_nobody_wants_to_read_does_not_stop_the_sender() {
    let mut pair = Pair::new(LIMITS);
    pair.run();
    pair.b.machine.shutdown(Shutdown::Read);
    let data = bytes(0, 20_000);
    let mut sent = 0;
    while sent < data.len() {
        let now = pair.a.send(&data[sent..]);
        assert_ne!(now, 0);
        sent += now;
        pair.run();
    }
    assert_eq!((pair.b.machine.unread(), pair.b.machine.may_receive()), (0, false));
}

#[test]
fn a_sign_of_life_is_a_write_without_message() {
    let mut pair = Pair::new(LIMITS);
    pair.run();
    pair.take_trace();
    pair.a.machine.keep_alive();
    pair.a.flush();
    pair.run();
    assert_eq!(pair.take_trace(), ["A->B - len=0"]);
    // What is in flight is a sign of life by itself.
    assert_eq!(pair.a.send(&[1]), 1);
    pair.a.machine.keep_alive();
    pair.run();
    assert_eq!(pair.take_trace(), ["A->B DATA 1 ring+0 len=1"]);
}

#[test]
fn mapped_buffers_are_told_before_the_next_data_and_written_directly() {
    let mut pair = Pair::new(LIMITS);
    pair.run();
    pair.take_trace();
    let buffer = RemoteSge { addr: 16, rkey: MAPPED, length: 32 };
    let entry = IomapEntry { offset: 0x7000, buffer };
    assert_eq!(pair.b.machine.map(entry), Some(0));
    assert_eq!(pair.b.machine.map(entry), Some(1));
    assert_eq!(pair.b.machine.map(entry), None, "the peer's table has two entries");
    pair.b.machine.unmap(1);
    assert_eq!(pair.b.send(&[1]), 1);
    pair.run();
    assert_eq!(pair.take_trace(), ["B->A IOMAP 0 list+32 len=24", "B->A DATA 1 ring+0 len=1"]);
    let told = IomapEntry::parse(&pair.a.list.0[32..], ByteOrder::HOST).unwrap();
    assert_eq!(told, entry);

    let data = bytes(5, 20);
    assert_eq!(pair.a.machine.next_direct_len(20), 20);
    pair.a.fill(pair.a.machine.place(20), &data);
    let write = pair.a.machine.write_direct(20, RemoteSge { length: 20, ..buffer }).unwrap();
    pair.a.post(write, &data);
    pair.run();
    assert_eq!(pair.take_trace(), ["A->B - mapped+16 len=20"]);
    assert_eq!(pair.b.mapped[16..36], data);
}

#[test]
fn mapping_a_buffer_again_and_again_uses_up_no_credits() {
    let mut pair = Pair::new(LIMITS);
    let entry = IomapEntry::default();
    for round in 0..1000 {
        let index = pair.b.machine.map(entry).unwrap();
        assert_eq!(pair.b.send(&[1]), 1, "round {round}");
        pair.run();
        pair.a.recv(1);
        pair.run();
        pair.b.machine.unmap(index);
    }
}

#[test]
fn entries_are_written_in_the_byte_order_of_the_peer() {
    let mut side = Side::new(LIMITS);
    let foreign = match ByteOrder::HOST {
        ByteOrder::Little => ByteOrder::Big,
        ByteOrder::Big => ByteOrder::Little,
    };
    let mut peer = side.machine.conn_data();
    peer.flags ^= 1;
    assert_eq!(peer.byte_order(), foreign);
    side.machine.connect(peer).unwrap();
    side.flush();
    let (_, written) = side.posted.pop_front().unwrap();
    let entry = RemoteSge::parse(&written, foreign).unwrap();
    assert_eq!(entry, RemoteSge { addr: RING_ADDR + 2048, rkey: RING, length: 2048 });
}

#[test]
fn peers_that_break_the_rules_are_told_from_those_that_keep_them() {
    let fresh = || {
        let mut side = Side::new(LIMITS);
        side.machine.connect(side.machine.conn_data()).unwrap();
        side.flush();
        side
    };
    let (mut side, list) = (fresh(), &mut List(vec![0; 32]));
    // Both halves are granted by now.
    assert_eq!(side.machine.handle_message(Message::Data(4096), list), Ok(()));
    let error = ProtocolError::Overrun { len: 1, granted: 0 };
    assert_eq!(side.machine.handle_message(Message::Data(1), list), Err(error));

    let mut side = fresh();
    for _ in 0..16 {
        side.machine.handle_message(Message::Data(1), list).unwrap();
    }
    let error = ProtocolError::Messages { limit: 16 };
    assert_eq!(side.machine.handle_message(Message::Data(1), list), Err(error));

    let mut side = fresh();
    let error = ProtocolError::Credits { limit: 17, sent: 0 };
    assert_eq!(side.machine.handle_message(Message::Credits(17), list), Err(error));

    let mut side = fresh();
    let reserved = Message::Reserved(0x2000_0000);
    let error = ProtocolError::Unexpected(reserved);
    assert_eq!(side.machine.handle_message(reserved, list), Err(error));

    let mut side = fresh();
    let full = RemoteSge { addr: 0, rkey: RING, length: 1 }.to_bytes(ByteOrder::HOST);
    let list = &mut List([full, full].concat());
    assert_eq!(side.machine.handle_message(Message::Credits(16), list), Ok(()));
    let list = &mut List([full, full].concat());
    let error = ProtocolError::Targets;
    assert_eq!(side.machine.handle_message(Message::Credits(16), list), Err(error));

    let peer = side.machine.conn_data();
    let empty = ConnData { target_list: RemoteSge::default(), ..peer };
    assert_eq!(Side::new(LIMITS).machine.connect(empty), Err(ProtocolError::NoTargets));
}

#[test]
fn sizes_outside_the_limits_become_the_nearest() {
    let sizes = Limits { send_bytes: 0, recv_bytes: 3001, send_requests: 1, ..LIMITS }.clamped();
    assert_eq!((sizes.send_bytes, sizes.recv_bytes, sizes.send_requests), (2048, 3000, 16));
    let most = Limits { recv_bytes: u32::MAX, recv_messages: u16::MAX, ..LIMITS }.clamped();
    assert_eq!((most.recv_bytes, most.recv_messages), (1 << 29, 0x7FFF));
}

/// Something that one side does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Send(u16),
    Recv(u16),
    Deliver,
}

fn acts() -> impl Strategy<Value = Vec<(bool, Act)>> {
    let act = prop_oneof![
        (0..6000_u16).prop_map(Act::Send),
        (0..6000_u16).prop_map(Act::Recv),
        Just(Act::Deliver),
        Just(Act::Deliver),
    ];
    prop::collection::vec((any::<bool>(), act), 1..400)
}

proptest! {
    #[test]
    fn every_byte_arrives_once_and_in_order_whatever_the_order_of_doings(
        acts in acts(),
        send_bytes in 2048..9000_u32,
        recv_bytes in 2048..9000_u32,
        inline_bytes in 0..64_u32,
    ) {
        let mut pair = Pair::new(Limits { send_bytes, recv_bytes, inline_bytes, ..LIMITS }.clamped());
        // What each side has sent and received, counted.
        let (mut sent, mut received) = ([0_usize; 2], [0_usize; 2]);
        let content = |from: usize, len: usize| bytes((from % 256) as u8, len);
        for (of_a, act) in acts {
            let (side, me) = if of_a { (&mut pair.a, 0) } else { (&mut pair.b, 1) };
            match act {
                Act::Send(len) => sent[me] += side.send(&content(sent[me], len.into())),
                Act::Recv(len) => {
                    let got = side.recv(len.into());
                    prop_assert_eq!(&got, &content(received[me], got.len()));
                    received[me] += got.len();
                }
                Act::Deliver => _ = pair.step(of_a),
            }
        }
        // Nothing is stuck: who reads gets it all.
        for _ in 0..1000 {
            pair.run();
            for (side, me) in [(&mut pair.a, 0), (&mut pair.b, 1)] {
                let got = side.recv(u32::MAX);
                prop_assert_eq!(&got, &content(received[me], got.len()));
                received[me] += got.len();
            }
            if received == [sent[1], sent[0]] {
                break;
            }
        }
        prop_assert_eq!(received, [sent[1], sent[0]]);
        pair.run();
        prop_assert!(pair.a.machine.is_flushed() && pair.b.machine.is_flushed());
        prop_assert!(pair.a.machine.can_send() && pair.b.machine.can_send());
    }

    #[test]
    fn no_message_of_a_peer_makes_a_machine_panic(
        imms in prop::collection::vec(any::<u32>(), 0..200),
        list in prop::collection::vec(any::<u8>(), 80),
        data in prop::collection::vec(any::<u8>(), 40),
    ) {
        let mut side = Side::new(LIMITS);
        let Ok(peer) = ConnData::parse(&[&[1], &data[1..]].concat()) else { return Ok(()) };
        if side.machine.connect(peer).is_err() {
            return Ok(());
        }
        for imm in imms {
            side.list.0.copy_from_slice(&list);
            // Few errors, so that much is tried.
            let imm = if imm & 1 == 0 { imm & 0xe000_00ff } else { imm };
            if side.machine.handle_message(Message::parse(imm), &mut side.list).is_err() {
                break;
            }
            side.flush();
            side.send(&[0; 100]);
            side.recv(10);
            while let Some((write, _)) = side.posted.pop_front() {
                side.machine.handle_sent(write.id);
            }
        }
    }
}
