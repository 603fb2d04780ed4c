//! Prints what this crate costs per packet, in nanoseconds: parse, emit, ICRC.
//!
//! `cargo run --release -p vernic-wire --example wire_speed`. Each figure is the median of 25 runs.
#![allow(clippy::print_stdout, reason = "its purpose")]

use std::hint::black_box;
use std::time::Instant;

use vernic_wire::icrc::{IcrcFlow, IdentSolver, LEN, Verdict, solve_ident};
use vernic_wire::{Bth, Headers, Opcode, Packet, Psn, Qpn, Reth, Rkey};

const RUNS: usize = 25;
const LOOPS: u32 = 20_000;

fn measure(what: &str, mut work: impl FnMut(u32)) {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            (0..LOOPS).for_each(&mut work);
            start.elapsed().as_secs_f64() * 1e9 / f64::from(LOOPS)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{what:<44} {:8.1} ns", times[RUNS / 2]);
}

fn main() {
    let src = "10.0.0.1".parse().expect("an address");
    let dst = "10.0.0.2".parse().expect("an address");
    let v6 = ["fe80::1", "fe80::2"].map(|ip| ip.parse().expect("an address"));
    let flow = IcrcFlow::new(src, dst, 49_152, 4791);
    let flow_v6 = IcrcFlow::new(v6[0], v6[1], 49_152, 4791);

    let mut headers = Headers::new(Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(7), Psn::new(8)));
    headers.reth = Some(Reth { addr: 0x1000, rkey: Rkey(9), length: 8 });
    let mut buf = vec![0; 4200];
    measure("emit RC WRITE ONLY headers", |i| {
        headers.bth.psn = Psn::new(i);
        black_box(black_box(&headers).emit(black_box(&mut buf)));
    });
    headers.emit(&mut buf);
    measure("parse it and read PSN, RETH, payload", |_| {
        let packet = Packet::parse(black_box(&buf[..36])).expect("a packet");
        black_box((packet.psn(), packet.reth(), packet.payload()));
    });
    for len in [40, 1040, 4112] {
        let mut packet = buf[..len].to_vec();
        measure(&format!("stamp ICRC, {len} bytes, IPv4"), |i| {
            flow.stamp(i as u16, black_box(&mut packet));
        });
        flow.stamp(0, &mut packet);
        measure(&format!("check ICRC, {len} bytes, IPv4"), |_| {
            assert_eq!(flow.check(0, black_box(&packet)), Verdict::Good);
        });
    }
    let mut packet = buf[..40].to_vec();
    measure("stamp ICRC, 40 bytes, IPv6", |_| flow_v6.stamp(0, black_box(&mut packet)));
    flow.stamp(5737, &mut packet);
    let Verdict::Differs { diff } = flow.check(0, &packet) else { return };
    let mut solver = IdentSolver::new();
    measure("solve Identification, length seen before", |_| {
        black_box(solver.solve(black_box(diff), packet.len() - LEN));
    });
    measure("solve Identification, length not cached", |_| {
        black_box(solve_ident(black_box(diff), black_box(packet.len() - LEN)));
    });
}
