//! Programs for the kernel that say which frames a packet socket receives: each process its own.
//!
//! A program reads the destination QPN in the BTH. Its high bits are the slot of a process
//! (`host/slot.rs`). Frames that are too short for a BTH are let through, so that they are counted.

use vernic_sys::Instruction;
use vernic_wire::net::{EtherType, Ethernet};
use vernic_wire::{Grh, Qpn};

use crate::host::Slot;

/// The offset of the word that has the destination QPN in its lower 24 bits.
const QPN_AT: u32 = (Ethernet::LEN + Grh::LEN + 4) as u32;

/// Most slots in a program, since a jump skips 255 instructions at most. A link with more slots
/// receives the frames of all processes, and the engine drops those of others.
const MAX_SLOTS: usize = 200;

/// How much of an accepted frame is received: all of it.
const ALL: u32 = 0x4_0000;

const fn step(code: u32, value: u32) -> Instruction {
    Instruction { code: code as u16, if_true: 0, if_false: 0, value }
}

/// The instructions that load the QPN: 4, after which short frames are accepted.
fn load() -> Vec<Instruction> {
    use libc::{BPF_ALU, BPF_AND, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_LEN, BPF_RET, BPF_W};
    let is_long = Instruction { if_true: 1, ..step(BPF_JMP | BPF_JGE | BPF_K, QPN_AT + 4) };
    vec![
        step(BPF_LD | BPF_W | BPF_LEN, 0),
        is_long,
        step(BPF_RET | BPF_K, ALL),
        step(BPF_LD | BPF_W | libc::BPF_ABS, QPN_AT),
        step(BPF_ALU | BPF_AND | BPF_K, Qpn::MULTICAST.value()),
    ]
}

/// Appends: accept if the accumulator is one of `values`, else reject.
fn accept_any(program: &mut Vec<Instruction>, values: impl ExactSizeIterator<Item = u32>) {
    use libc::{BPF_JEQ, BPF_JMP, BPF_K, BPF_RET};
    let count = values.len();
    for (n, value) in values.enumerate() {
        // Behind the comparisons is the rejection, and then the acceptance.
        let if_true = (count - n) as u8;
        program.push(Instruction { if_true, ..step(BPF_JMP | BPF_JEQ | BPF_K, value) });
    }
    program.push(step(BPF_RET | BPF_K, 0));
    program.push(step(BPF_RET | BPF_K, ALL));
}

/// Returns the program for the queue pairs of these slots, and for multicast if `groups` is set.
pub(crate) fn of_slots(slots: &[Slot], groups: bool) -> Vec<Instruction> {
    use libc::{BPF_ALU, BPF_JEQ, BPF_JMP, BPF_K, BPF_RET, BPF_RSH};
    if slots.len() > MAX_SLOTS {
        return vec![step(BPF_RET | BPF_K, ALL)];
    }
    let mut program = load();
    let is_group =
        Instruction { if_false: 1, ..step(BPF_JMP | BPF_JEQ | BPF_K, Qpn::MULTICAST.value()) };
    program.extend([is_group, step(BPF_RET | BPF_K, if groups { ALL } else { 0 })]);
    program.push(step(BPF_ALU | BPF_RSH | BPF_K, Slot::INDEX_BITS));
    accept_any(&mut program, slots.iter().map(|slot| u32::from(slot.value())));
    program
}

/// Returns the program for one queue pair number: that of QP1, or that of multicast.
pub(crate) fn of_qpn(qpn: Qpn) -> Vec<Instruction> {
    let mut program = load();
    // Short frames are counted by the sockets of slots.
    program[2].value = 0;
    accept_any(&mut program, [qpn.value()].into_iter());
    program
}

/// Returns the program for multicast frames of RoCEv1 that this host sends, for a socket that sees
/// all frames of a netdev.
pub(crate) fn of_own_groups() -> Vec<Instruction> {
    use libc::{BPF_ABS, BPF_H, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
    let about = |what: i32| step(BPF_LD | BPF_H | BPF_ABS, (libc::SKF_AD_OFF + what) as u32);
    let mut program = Vec::new();
    for (what, value) in [
        (libc::SKF_AD_PROTOCOL, u32::from(EtherType::ROCE_V1.0)),
        (libc::SKF_AD_PKTTYPE, u32::from(libc::PACKET_OUTGOING)),
    ] {
        let is_right = Instruction { if_true: 1, ..step(BPF_JMP | BPF_JEQ | BPF_K, value) };
        program.extend([about(what), is_right, step(BPF_RET | BPF_K, 0)]);
    }
    program.extend(of_qpn(Qpn::MULTICAST));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does.
    fn accepts(program: &[Instruction], frame: &[u8]) -> bool {
        let (mut at, mut word) = (0, 0u32);
        loop {
            let Instruction { code, if_true, if_false, value } = program[at];
            at += 1;
            match u32::from(code) {
                0x80 => word = frame.len() as u32,
                0x20 => match frame.get(value as usize..value as usize + 4) {
                    Some(bytes) => word = u32::from_be_bytes(bytes.try_into().unwrap()),
                    None => return false,
                },
                0x54 => word &= value,
                0x74 => word >>= value,
                0x15 => at += usize::from(if word == value { if_true } else { if_false }),
                0x35 => at += usize::from(if word >= value { if_true } else { if_false }),
                0x06 => return value != 0,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn frame(qpn: u32) -> [u8; 70] {
        let mut frame = [0xEE; 70];
        frame[59..62].copy_from_slice(&qpn.to_be_bytes()[1..]);
        frame
    }

    #[test]
    fn each_process_receives_what_is_for_its_slots() {
        let slots = [3, 1022].map(|n| Slot::new(n).unwrap());
        let program = of_slots(&slots, false);
        for slot in slots {
            assert!(accepts(&program, &frame(slot.qpn(0).value())));
            assert!(accepts(&program, &frame(slot.qpn(u32::MAX).value())));
        }
        for qpn in [0, 1, 0xFF_FFFF, Slot::new(4).unwrap().qpn(0).value()] {
            assert!(!accepts(&program, &frame(qpn)), "{qpn:#x}");
            assert!(!accepts(&of_slots(&[], false), &frame(qpn)), "{qpn:#x}");
        }
        assert!(accepts(&of_slots(&slots, true), &frame(0xFF_FFFF)));
        assert!(accepts(&of_slots(&[], true), &frame(0xFF_FFFF)));
        let many = vec![slots[0]; MAX_SLOTS + 1];
        assert!(accepts(&of_slots(&many, false), &frame(0)));
        assert!(!accepts(&of_slots(&many[1..], false), &frame(0)));
        assert!(accepts(&of_slots(&many[1..], false), &frame(slots[0].qpn(9).value())));
    }

    #[test]
    fn frames_too_short_for_a_packet_are_received_once_to_be_counted() {
        let program = of_slots(&[], false);
        for len in [0, 14, 54, 61] {
            assert!(accepts(&program, &frame(1)[..len]), "{len}");
            assert!(!accepts(&of_qpn(Qpn::GSI), &frame(1)[..len]), "{len}");
        }
        assert!(accepts(&of_qpn(Qpn::GSI), &frame(1)));
        assert!(!accepts(&of_qpn(Qpn::GSI), &frame(2)));
    }
}
