//! A queue pair of each type against whatever parts of messages a process of this host writes to
//! its ring, packets among them, with sends of its own in flight. Nothing may panic, what it sends
//! must be what a peer takes, and parts are for the services that have them.
//!
//! Input: one byte chooses the type; then steps, each an action byte and an argument. A part step
//! goes on with flags (2 bytes), a length (3 bytes) and a tag; its sequence number is near the one
//! that the queue pair expects. A packet step goes on as in `queue_pair`.
#![no_main]

mod connected;
mod host;

use connected::{aim, connect, send};
use host::FuzzHost;
use libfuzzer_sys::fuzz_target;
use vernic_local::MessageHead;
use vernic_local::{PartRecord, head_of, part_of, put_tail};
use vernic_proto::{
    AccessCheck, AccessFault, AttrMask, Disposition, MessagePart, PartAck, PullFault, Qp, QpAttr,
    QpState, QpType, RendezvousLimits, RxMeta, Time,
};
use vernic_wire::{Packet, Psn, Qpn};

/// The number of the queue pair under test.
const QPN: u32 = 0x11;
/// The flag of a head that an acknowledgement comes with the part.
const ACK: u16 = 1 << 10;
/// Payload of parts that are no rendezvous is at most as long as a ring carries.
const MAX_PAYLOAD: u32 = 4224;

/// What a head that a process wrote names, if anything.
fn parse(data: &mut &[u8], near: Psn, argument: u8) -> Option<(MessagePart, Option<PartAck>)> {
    let (bytes, rest) = data.split_first_chunk::<6>()?;
    *data = rest;
    let [low, high, a, b, c, tag] = *bytes;
    // Mostly the next number; at times one seen before, or one ahead.
    let psn = match argument >> 4 {
        n @ 0..4 => near.add(u32::from(n)),
        n @ 4..8 => near.sub(u32::from(n)),
        _ => near,
    };
    // Mostly bits that have a meaning.
    let flags = u16::from_le_bytes([low, if argument & 7 == 7 { high } else { high & 7 }]);
    let head = MessageHead { flags, words: [QPN, psn.value(), u32::from(tag)] };
    let length = u32::from_le_bytes([a, b, c, 0]);
    // Behind the payload, a number that XRC may name or that is acknowledged, or one that cannot
    // be.
    let mut bytes = vec![0x5A; (length % (MAX_PAYLOAD - 7)) as usize];
    if flags & ACK != 0 {
        bytes.extend((u32::from(tag & 15) << (argument & 24)).to_ne_bytes());
        bytes.extend([tag & 0x60, 0, 0, tag]);
    } else {
        bytes.extend((u32::from(tag) << (argument & 24)).to_ne_bytes());
    }
    let PartRecord { dest, part, ack, .. } = part_of(head, &bytes)?;
    assert_eq!(head_of(dest, &part, ack).flags, flags);
    Some((if part.is_rendezvous { MessagePart { length, ..part } } else { part }, ack))
}

/// Checks that a part is one that a peer takes.
fn check(part: &MessagePart, ack: Option<PartAck>, payload: &[u8], mtu: u32) {
    let head = head_of(Qpn::new(0x22), part, ack);
    let (mut bytes, mut tail) = (payload.to_vec(), [0; 8]);
    let len = put_tail(part, ack, &mut tail);
    bytes.extend_from_slice(&tail[..len]);
    let record = part_of(head, &bytes).expect("what is written is read");
    let PartRecord { dest, part: read, payload: behind, ack: carried } = record;
    assert_eq!((dest, behind, carried), (Qpn::new(0x22), payload, ack));
    assert_eq!(MessagePart { length: part.length, ..read }, *part);
    assert!(part.is_rendezvous || read.length == part.length);
    let is_full = part.length != 0 && part.length.is_multiple_of(mtu);
    assert!(is_full || part.ends && (part.starts || part.length != 0), "{part:?}");
}

fn drain(qp: &mut Qp, now: Time, host: &mut FuzzHost) {
    let mut buf = [0; 4500];
    let mtu = qp.attr().path_mtu.bytes();
    // Bounded by the window and by what one packet can make due.
    for _ in 0..4096 {
        if let Some((part, written)) = qp.poll_message(now, host, &mut buf) {
            assert_eq!(part.srqn.is_some(), qp.qp_type() == QpType::XrcIni);
            let ack = qp.take_ack(now, host);
            assert!(ack.is_none() || qp.qp_type() == QpType::Rc);
            check(&part, ack, &buf[..written], mtu);
            continue;
        }
        let Some(sent) =
            qp.poll_request(now, host, &mut buf).or_else(|| qp.poll_response(now, host, &mut buf))
        else {
            return;
        };
        Packet::parse(&buf[..sent.len]).expect("what is emitted parses");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, mut data)) = data.split_first() else { return };
    let (qp_type, bits) =
        [(QpType::Uc, 0x20), (QpType::Ud, 0x60), (QpType::XrcIni, 0xA0), (QpType::XrcTgt, 0xA0)]
            .get(usize::from(first) % 16)
            .copied()
            .unwrap_or((QpType::Rc, 0x00));
    let mut host = FuzzHost::new();
    let mut qp = connect(qp_type, &mut host);
    let mtu = qp.attr().path_mtu.bytes();
    let payload = [0x5A; MAX_PAYLOAD as usize];
    let (mut now, mut posted, mut expected) = (Time(0), 0, Psn::new(0));
    while let [action, argument, rest @ ..] = data {
        data = rest;
        match action & 7 {
            0..=2 => {
                let Some((part, ack)) = parse(&mut data, expected, *argument) else { continue };
                if let Some(ack) = ack {
                    let answered = qp.handle_ack(now, ack, &mut host);
                    let drops = matches!(answered, Disposition::Drop(_));
                    assert!(drops || qp_type == QpType::Rc, "{answered:?}");
                }
                let len = if part.is_rendezvous { 0 } else { part.length as usize };
                let disposition = qp.handle_message(now, &part, &payload[..len], &mut host);
                let is_taken = match qp_type {
                    QpType::Rc => part.srqn.is_none(),
                    QpType::XrcTgt => part.srqn.is_some(),
                    QpType::Uc => part.srqn.is_none() && !part.is_rendezvous,
                    QpType::Ud | QpType::XrcIni => false,
                };
                if !is_taken {
                    assert!(matches!(disposition, Disposition::Drop(_)), "{disposition:?}");
                }
                if disposition == Disposition::Accepted {
                    expected = expected.add(part.length.div_ceil(mtu).max(1));
                }
            }
            3 | 4 => {
                let len = (usize::from(*argument) * 4).min(data.len());
                let (bytes, rest) = data.split_at(len);
                data = rest;
                let mut bytes = bytes.to_vec();
                aim(&mut bytes, bits, if action & 8 == 0 { Psn::new(0) } else { expected });
                let Ok(packet) = Packet::parse(&bytes) else { continue };
                let route = vernic_wire::LocalRoute::NONE;
                let meta = RxMeta { grh: None, ecn: 0, route, is_peer: true };
                let taken = qp.handle_packet(now, &packet, &meta, &mut host);
                if taken == Disposition::Accepted && packet.info().is_request() {
                    expected = packet.psn().add(1);
                }
            }
            5 => {
                posted += u32::from(qp.post_send(send(*argument, qp_type)).is_ok());
                host.receives += u32::from(*argument) & 3;
            }
            6 => {
                now = now + (u64::from(*argument) << 14);
                qp.handle_timeout(now, &mut host);
            }
            _ => {
                qp.set_messages(argument & 1 != 0);
                let limits = RendezvousLimits { min_bytes: 1000, max_bytes: 3000 };
                qp.set_rendezvous((argument & 2 != 0).then_some(limits));
                let fault = AccessFault { check: AccessCheck::Bounds, key: 1, addr: 0, len: 0 };
                host.pull = match argument >> 5 {
                    0 => Err(PullFault::Local(fault)),
                    1 => Err(PullFault::Unreachable),
                    2 => Err(PullFault::Withdrawn),
                    _ => Ok(()),
                };
            }
        }
        drain(&mut qp, now, &mut host);
    }
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE, now, &mut host).expect("every state leads to Error");
    assert_eq!(host.sends_completed, posted, "one completion for every send");
});
