//! Any text as a plan of a fabric: what is accepted is written in a form that means the same and is
//! drawn, what is not has a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_fabric::topology::{Topology, svg};

fuzz_target!(|text: &str| {
    match Topology::parse(text, "fuzz") {
        Ok(plan) => {
            assert_eq!(Topology::parse(&plan.to_string(), "other").as_ref(), Ok(&plan));
            let picture = svg(&plan, |cable| Some(cable as f32 / 8.0));
            let titles = 1 + plan.nodes().len() + plan.cables().len();
            assert_eq!(picture.matches("<title>").count(), titles);
        }
        Err(error) => {
            // No error repeats more of a text than a terminal shows.
            let words = error.to_string();
            assert!(!words.is_empty() && words.len() < 4096);
        }
    }
});
