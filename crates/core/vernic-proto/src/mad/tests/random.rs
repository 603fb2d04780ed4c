//! Many transfers at once over a wire that loses, doubles and reorders.

use super::*;

const TABLE: u128 = 1 << Method::GET_TABLE.0;

/// A generator of numbers that are as good as needed here (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Asks for tables of random lengths; each is given once and whole, or its request is given back.
/// Returns how many were given.
fn run(seed: u64, loss_percent: u64) -> usize {
    const REQUESTS: usize = 20;
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut pair = Pair::new();
    let asker = pair.register(A, &sa(0));
    let server = pair.register(B, &sa(TABLE));
    let mut lens = [0; REQUESTS];
    for (tid, len) in lens.iter_mut().enumerate() {
        *len = random.below(30_000) as usize;
        let request = mad(header(MgmtClass::SUBNET_ADMIN, Method::GET_TABLE, tid as u64));
        pair.ports[A].send(asker, to(B), &request, 4000, 5).unwrap();
    }
    let mut fates = Random(random.0);
    let mut fate = |_: &MadTransmit| match fates.below(100) {
        n if n < loss_percent => Fate::Lost,
        n if n < loss_percent + 5 => Fate::Twice,
        n if n < loss_percent + 15 => Fate::Late,
        _ => Fate::Arrives,
    };
    let (mut given, mut back) = ([0; REQUESTS], [0; REQUESTS]);
    for _ in 0..100_000 {
        pair.settle(&mut fate);
        while let Some(request) = pair.take(B, server) {
            if request.outcome != Outcome::Received {
                continue;
            }
            let tid = header_of(&request.mad).transaction_id;
            let table = message(Method::GET_TABLE_RESP, tid, lens[tid as u32 as usize]);
            // A repeated request comes while its answer is under way.
            let _ = pair.ports[B].send(server, to(A), &table, 0, 20);
        }
        while let Some(delivery) = pair.take(A, asker) {
            let tid = header_of(&delivery.mad).transaction_id;
            let at = tid as u32 as usize;
            if delivery.outcome != Outcome::Received {
                back[at] += 1;
                continue;
            }
            given[at] += 1;
            let table = message(Method::GET_TABLE_RESP, tid, lens[at]);
            assert_eq!(delivery.mad[56..], table[56..], "seed {seed}");
        }
        if pair.ports.iter().all(|port| port.next_deadline().is_none()) {
            break;
        }
        pair.wait();
    }
    for at in 0..REQUESTS {
        assert_eq!(given[at] + back[at], 1, "seed {seed}, request {at}");
    }
    assert!(
        pair.ports.iter_mut().all(|port| {
            port.next_deadline().is_none() && port.poll_transmit(pair.now).is_none()
        })
    );
    given.iter().sum()
}

#[test]
fn every_table_is_given_once_and_whole_or_its_request_comes_back() {
    for seed in 1..=40 {
        assert_eq!(run(seed, 0), 20, "seed {seed}: nothing is lost");
        assert!(run(seed, 3) >= 18, "seed {seed}");
        run(seed, 30);
    }
}
