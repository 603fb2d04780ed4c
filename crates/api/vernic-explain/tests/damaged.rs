//! Captures whose bytes are changed at random: nothing may panic, and everything must end.

use vernic_explain::{Source, diagram, explain, svg, text};

/// A capture of two kernels; its beginning is enough.
const CAPTURE: &[u8] = include_bytes!("../../../core/vernic-wire/tests/data/ulps_rocev2.pcap");
/// A capture of Vernic's own.
const SAMPLE: &[u8] = include_bytes!("../../../../docs/samples/loss-and-rnr.pcapng");

/// Numbers from a seed (xorshift64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// All that can be told of a file, told.
fn tell(file: &[u8]) -> u64 {
    let Ok(report) = explain(vec![Source { name: "x".into(), reader: file }]) else { return 0 };
    let flows = report.flows.iter();
    assert!(flows.map(diagram).all(|picture| !picture.is_empty()));
    assert!(!text(&report).is_empty() && !svg(&report.flows).is_empty());
    report.frames
}

#[test]
fn damaged_captures_are_told_without_a_panic() {
    let mut chance = Chance(0x9E37_79B9_7F4A_7C15);
    let mut frames = 0;
    for round in 0..400 {
        let original = if round % 2 == 0 { SAMPLE } else { &CAPTURE[..60_000] };
        let mut file = original.to_vec();
        for _ in 0..1 + chance.below(40) {
            let at = chance.below(file.len());
            file[at] = match chance.below(4) {
                0 => 0,
                1 => 0xFF,
                _ => chance.below(256) as u8,
            };
        }
        frames += tell(&file);
    }
    assert!(frames > 10_000, "only {frames} frames were read: the damage hides what is behind");
}

#[test]
fn captures_cut_anywhere_are_told() {
    for len in (0..SAMPLE.len()).step_by(7) {
        tell(&SAMPLE[..len]);
    }
}
