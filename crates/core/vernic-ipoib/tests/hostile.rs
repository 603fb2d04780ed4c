//! Anything at all, in any order: nothing panics, every table stays within its bounds, and no
//! deadline is left lying.

mod common;

use proptest::collection::vec;
use proptest::prelude::*;

use common::{SECOND, gid_of, lid_of, packet, qpn_of, v4, v6};
use vernic_ipoib::{Address, Config, ConnectionId, Interface, Mode, Request, Source, Time};
use vernic_wire::ipoib::{
    Arp, ArpOperation, ConnectedData, Encapsulation, HardwareAddress, USUAL_QKEY,
};
use vernic_wire::net::EtherType;
use vernic_wire::sa::{McMemberRecord, PathRecord, Selected};
use vernic_wire::{Lid, Qpn};

#[derive(Clone, Debug)]
enum Step {
    Host(Vec<u8>),
    Send { to: usize, len: usize, is_v6: bool },
    Datagram(Vec<u8>),
    Arp { from: usize, for_us: bool, operation: u16 },
    Message { id: u32, bytes: Vec<u8> },
    Connect { from: usize, mtu: u32 },
    Connected { id: u32, mtu: Option<u32> },
    Disconnected(u32),
    Answer { is_good: bool },
    Port { is_active: bool, lid: u16 },
    Reregister,
    Wait(u64),
    Resolve(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        vec(any::<u8>(), 0..100).prop_map(Step::Host),
        (0..40_usize, 0..4000_usize, any::<bool>()).prop_map(|(to, len, is_v6)| Step::Send {
            to,
            len,
            is_v6
        }),
        vec(any::<u8>(), 0..100).prop_map(Step::Datagram),
        (0..40_usize, any::<bool>(), 0..4_u16).prop_map(|(from, for_us, operation)| Step::Arp {
            from,
            for_us,
            operation
        }),
        (0..20_u32, vec(any::<u8>(), 0..60)).prop_map(|(id, bytes)| Step::Message { id, bytes }),
        (0..40_usize, any::<u32>()).prop_map(|(from, mtu)| Step::Connect { from, mtu }),
        (0..20_u32, any::<Option<u32>>()).prop_map(|(id, mtu)| Step::Connected { id, mtu }),
        (0..20_u32).prop_map(Step::Disconnected),
        any::<bool>().prop_map(|is_good| Step::Answer { is_good }),
        any::<bool>().prop_map(|is_good| Step::Answer { is_good }),
        (prop::bool::weighted(0.9), 1..4_u16)
            .prop_map(|(is_active, lid)| Step::Port { is_active, lid }),
        Just(Step::Reregister),
        (0..20 * SECOND).prop_map(Step::Wait),
        (0..40_usize).prop_map(Step::Resolve),
    ]
}

const LIMIT: usize = 8;

struct Machine {
    interface: Interface,
    now: Time,
    requests: Vec<Request>,
}

impl Machine {
    /// Starts an interface whose subnet is there.
    fn start(mode: Mode) -> Self {
        let mut config = Config::new(gid_of(0), lid_of(0), qpn_of(0));
        config.mode = mode;
        config.max_neighbors = LIMIT;
        config.max_groups = LIMIT;
        config.max_connections = LIMIT;
        config.max_waiting = LIMIT;
        let interface = Interface::new(config);
        let mut machine = Self { interface, now: Time(SECOND), requests: Vec::new() };
        machine.interface.set_addresses(&[
            Address { ip: v4(0), prefix_len: 24 },
            Address { ip: v6(0), prefix_len: 64 },
        ]);
        machine.take(Step::Port { is_active: true, lid: 1 });
        machine.take(Step::Answer { is_good: true });
        machine
    }
    fn take(&mut self, step: Step) {
        let now = self.now;
        let source = Source { slid: Lid(9), qpn: Qpn::new(9) };
        let interface = &mut self.interface;
        match step {
            Step::Host(bytes) => {
                interface.handle_ip(now, &bytes);
            }
            Step::Send { to, len, is_v6 } => {
                let address = if is_v6 { v6 } else { v4 };
                interface.handle_ip(now, &packet(address(0), address(to), 1, len));
            }
            Step::Datagram(mut bytes) => {
                // Most are of a type that is looked at.
                if let [first, second, ..] = &mut bytes[..] {
                    let kinds = [EtherType::ARP, EtherType::IPV4, EtherType::IPV6];
                    [*first, *second] = kinds[usize::from(*first % 3)].0.to_be_bytes();
                }
                interface.handle_datagram(now, source, &bytes);
            }
            Step::Arp { from, for_us, operation } => {
                let ip = |index| match v4(index) {
                    std::net::IpAddr::V4(ip) => ip,
                    std::net::IpAddr::V6(_) => unreachable!(),
                };
                let arp = Arp {
                    operation: ArpOperation(operation),
                    sender: HardwareAddress::new(qpn_of(from), gid_of(from)),
                    sender_ip: ip(from),
                    target: HardwareAddress::default(),
                    target_ip: ip(if for_us { 0 } else { from }),
                };
                let mut bytes = vec![0; Encapsulation::LEN + Arp::LEN];
                Encapsulation::new(EtherType::ARP).emit(&mut bytes);
                arp.emit(&mut bytes[Encapsulation::LEN..]);
                interface.handle_datagram(now, source, &bytes);
            }
            Step::Message { id, bytes } => {
                interface.handle_message(ConnectionId(id), &bytes);
            }
            Step::Connect { from, mtu } => {
                let data = ConnectedData { reserved: 0, qpn: qpn_of(from), receive_mtu: mtu };
                let _ = interface.handle_connect_request(now, gid_of(from), data);
            }
            Step::Connected { id, mtu } => {
                let data =
                    mtu.map(|receive_mtu| ConnectedData { receive_mtu, ..Default::default() });
                interface.handle_connected(now, ConnectionId(id), data);
            }
            Step::Disconnected(id) => interface.handle_disconnected(now, ConnectionId(id)),
            Step::Answer { is_good } => self.answer(is_good),
            Step::Port { is_active, lid } => {
                interface.handle_port(now, is_active, gid_of(0), Lid(lid));
            }
            Step::Reregister => interface.handle_reregister(now),
            Step::Wait(nanos) => self.wait(nanos),
            Step::Resolve(index) => drop(interface.resolve(now, v4(index))),
        }
        self.fetch();
    }

    /// Answers the oldest request, if it is one that is answered.
    fn answer(&mut self, is_good: bool) {
        if self.requests.is_empty() {
            return;
        }
        let now = self.now;
        match self.requests.remove(0) {
            Request::Join { record, .. } => {
                let (mlid, mtu) =
                    (Lid(0xC000 + u16::from(record.mgid.0[15])), Selected::exactly(4));
                let record = McMemberRecord { mlid, mtu, qkey: USUAL_QKEY, ..record };
                self.interface.handle_joined(now, record.mgid, is_good.then_some(record));
            }
            Request::Path { dgid, .. } => {
                let path = PathRecord { dgid, dlid: Lid(7), ..PathRecord::default() };
                self.interface.handle_path(now, dgid, is_good.then_some(path));
            }
            Request::Connect { id, private_data, .. } => match is_good {
                true => self.interface.handle_connected(now, id, Some(private_data)),
                false => self.interface.handle_disconnected(now, id),
            },
            _ => {}
        }
    }
    fn wait(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while let Some(next) = self.interface.next_deadline().filter(|next| *next <= end) {
            self.now = next.max(self.now);
            self.interface.handle_timeout(self.now);
            let left = self.interface.next_deadline();
            assert!(left.is_none_or(|left| left > self.now), "a deadline that stays");
            self.fetch();
        }
        self.now = end;
    }
    fn fetch(&mut self) {
        let transmits = std::iter::from_fn(|| self.interface.poll_transmit()).count();
        assert!(transmits <= 64, "{transmits} packets at once");
        let requests: Vec<_> = std::iter::from_fn(|| self.interface.poll_request()).collect();
        assert!(requests.len() <= 64, "{} requests at once", requests.len());
        self.requests.extend(requests);
        while self.interface.poll_deliver().is_some() {}
        while self.interface.poll_event().is_some() {}
        assert!(self.interface.neighbors().count() <= LIMIT);
    }
}

proptest! {
    #[test]
    fn nothing_panics_and_every_table_stays_within_its_bounds(
        steps in vec(step(), 1..200),
        is_connected in any::<bool>(),
    ) {
        let mode = if is_connected { Mode::Connected } else { Mode::Datagram };
        let mut machine = Machine::start(mode);
        for step in steps {
            machine.take(step);
        }
        machine.wait(1000 * SECOND);
    }
}

#[test]
fn strangers_with_gids_of_nobody_do_not_push_out_the_path_to_a_peer() {
    let mut machine = Machine::start(Mode::Datagram);
    let asks = |from| Step::Arp { from, for_us: true, operation: ArpOperation::REQUEST.0 };
    // Answers what was asked of the SA, and returns the GIDs.
    let answer = |machine: &mut Machine, is_there: bool| {
        let mut asked = Vec::new();
        for request in std::mem::take(&mut machine.requests) {
            if let Request::Path { dgid, .. } = request {
                let path = PathRecord { dgid, dlid: Lid(7), ..PathRecord::default() };
                machine.interface.handle_path(machine.now, dgid, is_there.then_some(path));
                asked.push(dgid);
            }
        }
        machine.fetch();
        asked
    };
    machine.take(asks(1));
    assert_eq!(answer(&mut machine, true), [gid_of(1)]);
    for stranger in 2..40 {
        machine.take(asks(stranger));
        assert_eq!(answer(&mut machine, false), [gid_of(stranger)], "it is asked for");
    }
    machine.take(asks(1));
    assert_eq!(answer(&mut machine, true), []);
}
