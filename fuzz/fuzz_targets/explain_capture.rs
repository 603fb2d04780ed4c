//! Any bytes as a capture file: it is told, alone and beside itself, or refused with a reason. No
//! more streams are followed than there may be.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_explain::{MAX_STREAMS, Source, diagram, explain, svg, text};

fuzz_target!(|bytes: &[u8]| {
    for copies in 1..=2 {
        let sources = (0..copies).map(|_| Source { name: "fuzz".into(), reader: bytes }).collect();
        let mut report = match explain(sources) {
            Ok(report) => report,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        };
        assert!(report.flows.len() <= MAX_STREAMS);
        assert!(!text(&report).is_empty());
        report.keep(None, Some(8));
        assert!(report.flows.iter().map(diagram).all(|picture| !picture.is_empty()));
        assert!(!svg(&report.flows).is_empty());
    }
});
