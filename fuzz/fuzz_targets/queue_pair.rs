//! A queue pair of each type against whatever bytes a stranger sends, with sends of its own in
//! flight. Nothing may panic, and every packet that it emits must parse.
//!
//! Input: one byte chooses the type; then steps, each an action byte and its data. A packet step
//! is a length byte (in units of 4) and that many bytes, with the opcode's service bits and the
//! sequence number brought near what the queue pair expects, so that the input gets past the door.
#![no_main]

mod connected;
mod host;

use connected::{aim, connect, send};
use host::FuzzHost;
use libfuzzer_sys::fuzz_target;
use vernic_proto::{AttrMask, Qp, QpAttr, QpState, QpType, RxMeta, Time};
use vernic_wire::{Packet, Psn};

fn drain(qp: &mut Qp, now: Time, host: &mut FuzzHost) {
    let mut buf = [0; 4500];
    // Bounded by the window and by what one packet can make due.
    for _ in 0..4096 {
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
    let (qp_type, bits) = [
        (QpType::Rc, 0x00),
        (QpType::Uc, 0x20),
        (QpType::Ud, 0x60),
        (QpType::XrcIni, 0xA0),
        (QpType::XrcTgt, 0xA0),
    ][usize::from(first) % 5];
    let mut host = FuzzHost::new();
    let mut qp = connect(qp_type, &mut host);
    let mut now = Time(0);
    let mut posted = 0;
    while let [action, argument, rest @ ..] = data {
        data = rest;
        match action & 3 {
            0 | 1 => {
                let len = (usize::from(*argument) * 4).min(data.len());
                let (bytes, rest) = data.split_at(len);
                data = rest;
                let mut bytes = bytes.to_vec();
                aim(&mut bytes, bits, Psn::new(0));
                if let Ok(packet) = Packet::parse(&bytes) {
                    let route = vernic_wire::LocalRoute::NONE;
                    let meta = RxMeta { grh: None, ecn: 0, route, is_peer: true };
                    qp.handle_packet(now, &packet, &meta, &mut host);
                }
            }
            2 => {
                posted += u32::from(qp.post_send(send(*argument, qp_type)).is_ok());
                host.receives += u32::from(*argument) & 3;
            }
            _ => {
                now = now + (u64::from(*argument) << 14);
                qp.handle_timeout(now, &mut host);
            }
        }
        drain(&mut qp, now, &mut host);
    }
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE, now, &mut host).expect("every state leads to Error");
    assert_eq!(host.sends_completed, posted, "one completion for every send");
});
