use vernic_wire::{Guid, Lid, Mtu, Pkey, ServiceLevel, VirtualLane, link_packet};

use super::*;
use crate::attributes::{ArbitrationEntry, LinkSpeed, LinkWidth, PortTables};
use crate::link::frame::tests::{header, packet};
use crate::link::store::PacketId;

/// Makes attributes of a port without a link: two data lanes of equal weight, 32 Gb/s.
pub(crate) fn attributes() -> PortAttributes {
    let entry = |lane| ArbitrationEntry { lane: VirtualLane::new(lane), weight: 64 };
    let tables = PortTables {
        pkeys: vec![Pkey::DEFAULT],
        lanes: vec![[VirtualLane::new(0); ServiceLevel::COUNT]; 8],
        low: vec![entry(0), entry(1)],
        high: Vec::new(),
        high_limit: 0,
    };
    PortAttributes {
        lid: Lid(1),
        width: LinkWidth::X4,
        speed: LinkSpeed::Qdr,
        head_of_queue_life: 31,
        ..PortAttributes::new(Guid(1), Mtu::B4096, 2, tables)
    }
}

const CONFIG: LinkConfig = LinkConfig {
    lane_blocks: 100,
    management_blocks: 10,
    submit_blocks: 100,
    bytes_per_s: None,
    paced: true,
    update_ns: 1_000,
    idle_update_ns: 1_000,
    training_ns: 500,
};

/// One end of a cable with its attributes.
struct End {
    port: Port,
    attributes: PortAttributes,
}

impl End {
    fn new() -> Self {
        let mut end = Self { port: Port::new(CONFIG), attributes: attributes() };
        end.port.handle_cable(&mut end.attributes, true, Time(0));
        end
    }
    fn poll(&mut self, now: u64) -> Option<Next> {
        self.port.poll(&mut self.attributes, Time(now))
    }
    fn handle(&mut self, next: Next, now: u64) {
        match next {
            Next::Signal(signal) => {
                self.port.handle_signal(&mut self.attributes, signal, Time(now));
            }
            Next::FlowControl(bytes) => {
                self.port.handle_flow_control(&mut self.attributes, &bytes, Time(now));
            }
            Next::Packet(queued) => {
                let lane = queued.header.lane.value();
                self.receive(&packet(lane, queued.header.dlid.0, payload_of(&queued)), now);
            }
        }
    }
    fn receive(&mut self, bytes: &[u8], now: u64) -> Option<Header> {
        self.port.handle_packet(&mut self.attributes, bytes, Time(now))
    }
    fn send(&mut self, lane: u8, payload: usize, now: u64) {
        let queued = Queued {
            packet: PacketId::of_test(0),
            header: header(lane, 2, payload),
            since: Time(now),
        };
        self.port.enqueue(queued, Time(now));
    }
    fn discard(&mut self, now: u64) -> usize {
        let discard =
            || self.port.poll_discard(&mut self.attributes, &Lifetimes::FOR_EVER, Time(now));
        std::iter::from_fn(discard).count()
    }
    fn grant(&mut self, sent: u16, limit: u16, now: u64) {
        let virtual_lane = VirtualLane::new(0);
        let packet = FlowControl {
            total_sent: sent,
            credit_limit: limit,
            virtual_lane,
            ..FlowControl::default()
        };
        let mut bytes = [0; FlowControl::LEN];
        packet.emit(&mut bytes);
        self.port.handle_flow_control(&mut self.attributes, &bytes, Time(now));
    }
    fn states(&self) -> (PortState, PhysicalState) {
        (self.attributes.state, self.attributes.physical)
    }
}

fn payload_of(queued: &Queued) -> usize {
    usize::from(queued.header.bytes) - 26
}

/// Carries everything both ways, each frame at its own nanosecond and with the lines free. Returns
/// when.
fn settle(a: &mut End, b: &mut End, mut now: u64) -> u64 {
    for _ in 0..100 {
        now += 2_000;
        let (from_a, from_b) = (a.poll(now), b.poll(now));
        if let Some(next) = from_a {
            b.handle(next, now);
        }
        if let Some(next) = from_b {
            a.handle(next, now);
        }
    }
    now
}

/// Makes two ends with a link in such a state, and the present.
fn pair(state: PortState) -> (End, End, u64) {
    let (mut a, mut b) = (End::new(), End::new());
    let now = settle(&mut a, &mut b, 0);
    for end in [&mut a, &mut b] {
        assert_eq!(end.states(), (PortState::Init, PhysicalState::LinkUp));
        assert!(end.port.poll_change());
        end.attributes.state = state;
    }
    (a, b, now)
}

#[test]
fn a_link_comes_up_and_tells_its_credits() {
    let (a, b, _) = pair(PortState::Active);
    for end in [&a, &b] {
        assert!(end.port.flows[0].may_send(100) && !end.port.flows[0].may_send(101));
        assert!(!end.port.flows[2].may_send(1), "only two lanes are in operation");
    }
}

#[test]
fn data_waits_for_credits_and_management_does_not() {
    let (mut a, mut b, now) = pair(PortState::Active);
    // 4,122 bytes take 65 blocks of 100, the next 65 have to wait.
    a.send(0, 4096, now);
    a.send(0, 4096, now);
    a.send(15, 256, now);
    let packets = |end: &mut End, now: u64| -> Vec<u8> {
        let polls = (0..20).filter_map(|step| end.poll(now + 2_000 * step));
        polls
            .filter_map(|next| match next {
                Next::Packet(queued) => Some(queued.header.lane.value()),
                _ => None,
            })
            .collect()
    };
    assert_eq!(packets(&mut a, now), [15, 0]);
    assert!(b.receive(&packet(0, 2, 4096), now).is_some());
    b.port.release(VirtualLane::new(0), 65);
    let now = now + 100_000;
    let told = b.poll(now).unwrap();
    a.handle(told, now);
    assert_eq!(packets(&mut a, now), [0]);
    assert!(a.attributes.counters.xmit_wait > 0);
    assert_eq!(
        (a.attributes.counters.xmit_packets, a.attributes.counters.xmit_data),
        (2, 2 * 1030)
    );
}

#[test]
fn in_init_only_management_passes() {
    let (mut a, mut b, now) = pair(PortState::Init);
    a.send(0, 64, now);
    a.send(15, 256, now);
    assert_eq!(a.discard(now), 1);
    assert_eq!(a.attributes.counters.xmit_discards, 1);
    assert!(b.receive(&packet(0, 2, 64), now).is_none());
    assert_eq!(b.attributes.counters.rcv_errors, 1);
    settle(&mut a, &mut b, now);
    assert_eq!(b.port.free_blocks(VirtualLane::MANAGEMENT), 5);
}

#[test]
fn an_armed_port_becomes_active_with_the_first_data_packet() {
    let (mut a, _, now) = pair(PortState::Armed);
    a.send(0, 64, now);
    assert_eq!(a.discard(now), 1);
    assert!(a.receive(&packet(15, 2, 256), now).is_some());
    assert_eq!(a.attributes.state, PortState::Armed);
    assert!(a.receive(&packet(1, 2, 64), now).is_some());
    assert_eq!(a.attributes.state, PortState::Active);
}

#[test]
fn management_beyond_its_buffer_is_dropped_and_counted() {
    let (mut a, _, now) = pair(PortState::Init);
    let taken = (0..5).filter(|_| a.receive(&packet(15, 2, 256), now).is_some()).count();
    assert_eq!((taken, a.attributes.counters.management_dropped), (2, 3));
    assert_eq!(a.attributes.state, PortState::Init);
}

#[test]
fn an_overrun_ends_the_link_and_both_ends_train_anew() {
    let (mut a, mut b, now) = pair(PortState::Active);
    assert!(a.receive(&packet(0, 2, 4096), now).is_some());
    assert!(a.receive(&packet(0, 2, 4096), now).is_none());
    let counters = a.attributes.counters;
    assert_eq!((counters.buffer_overruns, counters.link_downed), (1, 1));
    assert_eq!(a.states(), (PortState::Down, PhysicalState::Polling));
    assert_eq!(a.port.free_blocks(VirtualLane::new(0)), 35, "nothing was taken for it");
    settle(&mut a, &mut b, now);
    assert_eq!((a.attributes.state, b.attributes.state), (PortState::Init, PortState::Init));
    assert!(a.port.poll_change() && b.port.poll_change());
    assert_eq!(b.attributes.counters.link_downed, 1);
    assert!(b.port.flows[0].may_send(35) && !b.port.flows[0].may_send(36));
}

#[test]
fn counts_that_go_back_end_the_link() {
    for (sent, limit) in [(0, 99), (4095, 100), (0, 2049), (2049, 100)] {
        let (mut a, _, now) = pair(PortState::Active);
        a.grant(sent, limit, now);
        assert_eq!(a.attributes.state, PortState::Down, "{sent} {limit}");
        assert_eq!(a.attributes.counters.local_link_integrity, 1);
    }
    let (mut a, _, now) = pair(PortState::Active);
    a.grant(0, 2048, now);
    assert_eq!(a.attributes.state, PortState::Active);
}

#[test]
fn a_damaged_flow_control_packet_is_counted_and_changes_nothing() {
    let (mut a, _, now) = pair(PortState::Active);
    a.port.handle_flow_control(&mut a.attributes, &[0, 0, 0, 99, 1, 2], Time(now));
    a.port.handle_flow_control(&mut a.attributes, &[], Time(now));
    assert_eq!((a.attributes.counters.symbol_errors, a.attributes.state), (2, PortState::Active));
}

#[test]
fn bad_packets_are_counted_and_take_no_room() {
    let (mut a, _, now) = pair(PortState::Active);
    a.attributes.mtu_capability = Mtu::B1024;
    let mut damaged = packet(0, 2, 64);
    damaged[30] ^= 1;
    let mut no_lane = packet(0, 2, 64);
    link_packet::set_virtual_lane(&mut no_lane, VirtualLane::new(2));
    for bytes in [&damaged[..], &no_lane, &packet(0, 2, 2048), &[], &[0; 5000]] {
        assert_eq!(a.receive(bytes, now), None);
    }
    assert_eq!((a.attributes.counters.rcv_errors, a.attributes.counters.rcv_packets), (5, 0));
    assert_eq!(a.port.free_blocks(VirtualLane::new(0)), 100);
}

#[test]
fn management_takes_the_link_down_and_switches_it_off() {
    let (mut a, mut b, now) = pair(PortState::Active);
    a.attributes.state = PortState::Down;
    let now = settle(&mut a, &mut b, now);
    assert_eq!(a.states(), (PortState::Init, PhysicalState::LinkUp));
    assert_eq!((a.attributes.counters.link_downed, b.attributes.counters.link_downed), (0, 1));
    (a.attributes.state, a.attributes.physical) = (PortState::Down, PhysicalState::Disabled);
    let now = settle(&mut a, &mut b, now);
    assert_eq!(a.states(), (PortState::Down, PhysicalState::Disabled));
    assert_eq!(b.states(), (PortState::Down, PhysicalState::Polling));
    a.attributes.physical = PhysicalState::Polling;
    settle(&mut a, &mut b, now);
    assert_eq!((a.attributes.state, b.attributes.state), (PortState::Init, PortState::Init));
}

#[test]
fn an_end_that_missed_the_signal_learns_from_its_credits_that_the_other_is_off() {
    let (mut a, mut b, now) = pair(PortState::Active);
    (a.attributes.state, a.attributes.physical) = (PortState::Down, PhysicalState::Disabled);
    assert_eq!(a.poll(now + 1), Some(Next::Signal(Signal::Silent)), "lost");
    assert_eq!(a.poll(now + 2), None);
    settle(&mut a, &mut b, now);
    assert_eq!(b.states(), (PortState::Down, PhysicalState::Polling));
}

#[test]
fn a_port_whose_default_is_sleep_wakes_when_the_other_end_polls() {
    let (mut a, mut b, now) = pair(PortState::Active);
    a.attributes.link_down_default = PhysicalState::Sleep;
    a.attributes.state = PortState::Down;
    a.poll(now + 1);
    assert_eq!(a.states(), (PortState::Down, PhysicalState::Sleep));
    settle(&mut a, &mut b, now);
    assert_eq!(a.states(), (PortState::Init, PhysicalState::LinkUp));
}

#[test]
fn a_pulled_cable_discards_what_waits() {
    let (mut a, _, now) = pair(PortState::Active);
    a.send(0, 64, now);
    a.send(15, 64, now);
    a.port.handle_cable(&mut a.attributes, false, Time(now));
    assert_eq!((a.discard(now), a.poll(now + 10_000)), (2, None));
    assert_eq!((a.attributes.counters.link_downed, a.attributes.counters.xmit_discards), (1, 2));
    assert_eq!(a.port.due(&a.attributes, &Lifetimes::FOR_EVER), None);
}

#[test]
fn the_next_packet_is_due_when_the_line_is_free() {
    let (mut a, _, now) = pair(PortState::Active);
    a.send(0, 4096, now);
    a.send(1, 4096, now);
    let now = now + 2_000;
    while !matches!(a.poll(now).expect("a packet follows"), Next::Packet(_)) {
        // Flow control was due first, and the line is taken for it.
        a.port.line = Line::new(None, true);
    }
    assert_eq!(a.poll(now), None);
    // 4,122 bytes at 4 bytes a nanosecond.
    let due = a.port.due(&a.attributes, &Lifetimes::FOR_EVER).unwrap();
    assert_eq!((due, due), (a.port.free_at(), Time(now + 1030)));
    assert!(a.poll(due.0).is_some());
}
