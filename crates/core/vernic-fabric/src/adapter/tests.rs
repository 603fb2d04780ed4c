use vernic_wire::{FlowControl, Mtu};

use super::*;
use crate::link::port_tests::{attributes, packet};
use crate::link::{FrameKind, Signal};

const MANAGEMENT: u8 = 15;

/// A port with LID 1 that is active and has 100 blocks of credit in lane 0.
struct Bench {
    port: AdapterPort,
    attributes: PortAttributes,
    now: Time,
}

impl Bench {
    fn new() -> Self {
        let config = LinkConfig { lane_blocks: 100, submit_blocks: 130, ..LinkConfig::default() };
        let mut bench =
            Self { port: AdapterPort::new(config), attributes: attributes(), now: Time(0) };
        bench.port.handle_cable(&mut bench.attributes, true, bench.now);
        bench.frame(Frame::Signal(Signal::Ready));
        let mut bytes = [0; FlowControl::LEN];
        FlowControl { credit_limit: 100, ..FlowControl::default() }.emit(&mut bytes);
        bench.frame(Frame::FlowControl(&bytes));
        bench.attributes.state = PortState::Active;
        assert!(bench.port.poll_change() && !bench.port.poll_change());
        bench
    }
    fn frame(&mut self, frame: Frame<'_>) {
        self.port.handle_frame(&mut self.attributes, frame, self.now);
    }
    fn submit(&mut self, lane: u8, dlid: u16, payload: usize) -> Result<(), SubmitError> {
        let bytes = packet(lane, dlid, payload);
        self.port.submit(&mut self.attributes, &bytes[..bytes.len() - 2], self.now)
    }
    /// Lets time pass, and returns the packets that left.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let (mut sent, mut out) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            self.now = self.now + 5_000;
            let (port, attributes) = (&mut self.port, &mut self.attributes);
            while let Some(transmit) = port.poll_transmit(attributes, self.now, &mut out) {
                if transmit.kind == FrameKind::Packet {
                    sent.push(out.clone());
                }
            }
        }
        sent
    }
    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        std::iter::from_fn(|| self.port.poll_receive(&mut out).then(|| out.clone())).collect()
    }
    fn free(&self) -> u16 {
        self.port.free_blocks(VirtualLane::new(0))
    }
}

#[test]
fn a_submitted_packet_leaves_on_the_lane_of_its_service_level() {
    let mut bench = Bench::new();
    assert_eq!(bench.submit(1, 7, 64), Ok(()));
    assert_eq!(bench.submit(MANAGEMENT, 7, 256), Ok(()));
    assert_eq!(bench.sent(), [packet(MANAGEMENT, 7, 256), packet(0, 7, 64)]);
    assert_eq!(bench.port.packets(), 0);
}

#[test]
fn a_full_lane_refuses_until_a_packet_has_left() {
    let mut bench = Bench::new();
    assert_eq!([0; 3].map(|_| bench.submit(0, 7, 4096)), [Ok(()), Ok(()), Err(SubmitError::Full)]);
    assert_eq!(bench.sent().len(), 1, "credits are for one");
    assert_eq!(bench.submit(0, 7, 4096), Ok(()));
    assert_eq!(bench.submit(0, 7, 4096), Err(SubmitError::Full));
    assert_eq!(bench.attributes.counters.xmit_discards, 0);
}

#[test]
fn a_packet_that_the_link_does_not_carry_is_refused_and_counted() {
    let mut bench = Bench::new();
    bench.attributes.neighbor_mtu = Mtu::B1024;
    assert_eq!(bench.submit(0, 7, 2048), Err(SubmitError::Discarded));
    bench.attributes.tables.lanes[0][0] = VirtualLane::MANAGEMENT;
    assert_eq!(bench.submit(0, 7, 64), Err(SubmitError::Discarded));
    bench.attributes.tables.lanes[0][0] = VirtualLane::new(0);
    bench.attributes.state = PortState::Armed;
    assert_eq!(bench.submit(0, 7, 64), Err(SubmitError::Discarded));
    assert_eq!(bench.submit(MANAGEMENT, 7, 64), Ok(()));
    assert_eq!(bench.attributes.counters.xmit_discards, 3);
    bench.attributes.state = PortState::Active;
    assert_eq!(
        bench.port.submit(&mut bench.attributes, &[0; 5], Time(0)),
        Err(SubmitError::Malformed)
    );
    assert_eq!(
        bench.port.submit(&mut bench.attributes, &[0; 40], Time(0)),
        Err(SubmitError::Malformed)
    );
    assert_eq!(bench.port.packets(), 1);
}

#[test]
fn a_received_packet_holds_the_buffer_until_it_is_taken() {
    let mut bench = Bench::new();
    bench.frame(Frame::Packet(&packet(0, 1, 4096)));
    assert_eq!(bench.free(), 35);
    assert_eq!(bench.received(), [packet(0, 1, 4096)]);
    assert_eq!((bench.free(), bench.port.packets()), (100, 0));
}

#[test]
fn a_packet_for_another_port_is_dropped_and_counted() {
    let mut bench = Bench::new();
    (bench.attributes.lid, bench.attributes.lmc) = (Lid(4), 1);
    assert!(bench.port.join(Lid(0xC001)) && !bench.port.join(Lid(3)));
    let lids = [3, 4, 5, 6, 0, 0xC000, 0xC001, 0xFFFF];
    lids.into_iter().for_each(|dlid| bench.frame(Frame::Packet(&packet(0, dlid, 64))));
    bench.frame(Frame::Packet(&packet(MANAGEMENT, 0xFFFF, 256)));
    let ours = [4, 5, 0xC001, 0xFFFF].map(|dlid| packet(0, dlid, 64));
    assert_eq!(bench.port.misdirected(), 4);
    let received = bench.received();
    assert_eq!((&received[..4], &received[4]), (&ours[..], &packet(MANAGEMENT, 0xFFFF, 256)));
    assert_eq!(bench.free(), 100);
    bench.port.leave(Lid(0xC001));
    bench.frame(Frame::Packet(&packet(0, 0xC001, 64)));
    assert_eq!(bench.port.misdirected(), 5);
}

#[test]
fn a_packet_to_the_port_itself_does_not_leave() {
    let mut bench = Bench::new();
    assert_eq!([0; 2].map(|_| bench.submit(0, 1, 4096)), [Ok(()), Ok(())]);
    assert_eq!(bench.submit(0, 1, 4096), Err(SubmitError::Full));
    assert_eq!(bench.sent(), Vec::<Vec<u8>>::new());
    assert_eq!(bench.received(), [packet(0, 1, 4096), packet(0, 1, 4096)]);
    assert_eq!((bench.submit(0, 1, 4096), bench.free()), (Ok(()), 100));
}

#[test]
fn a_link_that_goes_down_empties_the_queue() {
    let mut bench = Bench::new();
    assert_eq!(bench.submit(0, 7, 64), Ok(()));
    bench.port.handle_cable(&mut bench.attributes, false, bench.now);
    assert_eq!((bench.sent().len(), bench.port.packets()), (0, 0));
    assert_eq!(bench.attributes.counters.xmit_discards, 1);
    assert_eq!(bench.port.poll_timeout(&bench.attributes), None);
}
