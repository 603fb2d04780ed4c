//! Agents of a port between programs that give any command and peers who send any datagram:
//! nothing panics, what is kept stays bounded, messages are as long as their segments, and when
//! all agents are gone nothing is left.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_proto::Time;
use vernic_proto::mad::{AgentId, Agents, AgentsConfig, MadAddress, MadGrh, Outcome, Registration};
use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::{Gid, Lid, Qpn, Rmpp, RmppFlags, RmppStatus, RmppType};

const CONFIG: AgentsConfig = AgentsConfig {
    id_base: 0,
    id_bits: 24,
    max_agents: 4,
    max_sends: 8,
    max_receives: 4,
    max_deliveries: 8,
    max_bytes: 16 << 10,
};
const CLASSES: [u8; 8] = [0x03, 0x32, 0x04, 0x01, 0x81, 0x05, 0x10, 0x30];
const METHODS: [u8; 8] = [0x01, 0x81, 0x12, 0x92, 0x07, 0x14, 0x94, 0x05];

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn address(&mut self) -> Option<MadAddress> {
        let byte = self.byte()?;
        let grh = MadGrh { gid: Gid([byte & 0x40; 16]), ..MadGrh::default() };
        Some(MadAddress {
            qpn: Qpn::GSI,
            lid: Lid(u16::from(byte & 3)),
            grh: (byte & 0x80 != 0).then_some(grh),
            ..MadAddress::default()
        })
    }

    /// A datagram that gets past the first checks, or anything.
    fn mad(&mut self, agents: &[AgentId]) -> Option<[u8; MAD_LEN]> {
        let [class, method, tid, kind, number] = [(); 5].map(|()| self.byte());
        let (class, method, tid, kind, number) = (class?, method?, tid?, kind?, number?);
        let mut mad = [number; MAD_LEN];
        let agent = agents.get(usize::from(tid >> 4) % 5).map_or(0, |agent| agent.0);
        let header = MadHeader {
            base_version: 1 + (class >> 7),
            mgmt_class: MgmtClass(CLASSES[usize::from(class & 7)]),
            class_version: 1 + (class >> 6 & 1),
            method: Method(if method & 0x40 == 0 {
                METHODS[usize::from(method & 7)]
            } else {
                method
            }),
            transaction_id: u64::from(agent) << 32 | u64::from(tid & 3),
            ..MadHeader::default()
        };
        header.emit(&mut mad);
        let rmpp = Rmpp {
            version: 1 + (kind >> 7),
            kind: RmppType(kind & 7),
            flags: RmppFlags::from_bits_truncate(kind >> 4),
            status: RmppStatus(if kind & 8 == 0 { 0 } else { number }),
            data1: u32::from(number & 7),
            data2: u32::from(number),
            ..Rmpp::default()
        };
        rmpp.emit(&mut mad[MadHeader::LEN..]);
        mad[37..40].copy_from_slice(&[0, 0x14, 5]);
        Some(mad)
    }
}

fn step(
    port: &mut Agents,
    agents: &mut Vec<AgentId>,
    now: &mut Time,
    input: &mut Input<'_>,
) -> Option<()> {
    match input.byte()? & 7 {
        0 => {
            let byte = input.byte()?;
            let class = MgmtClass(CLASSES[usize::from(byte & 7)]);
            let registered = port.register(&Registration {
                qpn: if matches!(class.0, 1 | 0x81) { Qpn::SMI } else { Qpn::GSI },
                class,
                class_version: 1 + (byte >> 6 & 1),
                methods: if byte & 0x20 == 0 { u128::MAX } else { 0 },
                oui: 0x1405,
                rmpp: byte & 0x10 != 0,
            });
            agents.extend(registered.ok());
            assert!(agents.len() <= CONFIG.max_agents);
        }
        1 if !agents.is_empty() => {
            let at = usize::from(input.byte()?) % agents.len();
            assert!(port.unregister(agents.remove(at)));
        }
        2 | 3 if !agents.is_empty() => {
            let agent = agents[usize::from(input.byte()?) % agents.len()];
            let address = input.address()?;
            let len = usize::from(input.byte()?) * 16;
            let mut message = input.mad(agents)?.to_vec();
            message.resize(len, 7);
            let timeout = u32::from(input.byte()?);
            let _ = port.send(agent, address, &message, timeout, timeout & 3);
        }
        4 | 5 => {
            let source = input.address()?;
            let mad = input.mad(agents)?;
            let qpn = if matches!(mad[1], 1 | 0x81) { Qpn::SMI } else { Qpn::GSI };
            let _ = port.handle_mad(*now, qpn, source, &mad);
        }
        6 => {
            *now = *now + u64::from(input.byte()?) * 20_000_000;
            port.handle_timeout(*now);
        }
        _ => {
            // The owner fetches what there is; segments that wait for others are no endless loop.
            let mut sent = 0;
            while port.poll_transmit(*now).is_some() {
                sent += 1;
                assert!(sent < 4096);
            }
            for agent in port.ready().collect::<Vec<_>>() {
                assert!(agents.contains(&agent));
                while let Some(delivery) = port.poll_deliver(agent) {
                    assert_eq!(delivery.agent, agent);
                    assert!(delivery.mad.len() <= CONFIG.max_bytes);
                    let is_own = delivery.outcome != Outcome::Received;
                    assert_eq!(delivery.mad.len() == MadHeader::LEN, is_own);
                }
            }
        }
    }
    Some(())
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let mut port = Agents::new(CONFIG);
    let (mut agents, mut now) = (Vec::new(), Time(0));
    for _ in 0..512 {
        if step(&mut port, &mut agents, &mut now, &mut input).is_none() {
            break;
        }
    }
    for agent in agents {
        port.unregister(agent);
    }
    while port.poll_transmit(now).is_some() {}
    assert_eq!((port.next_deadline(), port.ready().count()), (None, 0));
});
