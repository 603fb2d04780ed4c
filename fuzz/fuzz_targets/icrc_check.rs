//! Any flow and bytes: a stamped packet is good, its Identification is found, a damaged one is not
//! good, and short ones are rejected.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::fuzz_target;
use vernic_wire::icrc::{self, IcrcFlow, IdentSolver, Verdict};

type Input<'a> = (bool, [u8; 16], [u8; 16], u16, u16, u16, u32, &'a [u8]);

fuzz_target!(|input: Input<'_>| {
    let (v6, src, dst, sport, ident, guess, flip, bytes) = input;
    let ip = |octets: [u8; 16]| match octets {
        octets if v6 => IpAddr::V6(Ipv6Addr::from(octets)),
        [a, b, c, d, ..] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
    };
    let flow = IcrcFlow::new(ip(src), ip(dst), sport, 4791);
    let mut packet = [bytes, &[0; icrc::LEN]].concat();
    flow.stamp(ident, &mut packet);
    if bytes.len() < 12 {
        assert_eq!(flow.check(ident, &packet), Verdict::Truncated);
        return;
    }
    assert_eq!(flow.check(ident, &packet), Verdict::Good);
    match flow.check(guess, &packet) {
        Verdict::Good => assert!(ident == guess || !flow.is_ipv4()),
        Verdict::Differs { diff } => {
            assert_eq!(icrc::solve_ident(diff, bytes.len()), Some(ident ^ guess));
            assert_eq!(IdentSolver::new().solve(diff, bytes.len()), Some(ident ^ guess));
        }
        Verdict::Truncated => unreachable!("long enough"),
    }
    let at = flip as usize % (packet.len() * 8);
    packet[at / 8] ^= 1 << (at % 8);
    let masked = at / 8 == 4;
    assert_eq!(flow.check(ident, &packet) == Verdict::Good, masked);
});
