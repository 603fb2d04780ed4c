//! Any bytes: what the parsers of frames, of RoCEv2 and RoCEv1, accept is emitted as it was, and
//! its ICRC can be checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_wire::{Frame, FrameV1, ParseError};

fuzz_target!(|bytes: &[u8]| {
    match Frame::parse(bytes) {
        Ok(frame) => {
            let mut out = vec![0; bytes.len()];
            assert_eq!(frame.emit(&mut out), bytes.len());
            assert_eq!(out, bytes);
            let _ = frame.check_icrc();
            assert!(!frame.to_string().is_empty());
        }
        Err(ParseError::Truncated { need, have }) => assert!(have < need),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match FrameV1::parse(bytes) {
        Ok(frame) => {
            let ethernet = frame.ethernet;
            let head = FrameV1::headers((ethernet.src, ethernet.dst), &frame.grh);
            assert_eq!([&head, frame.packet, frame.trailer].concat(), bytes);
            let _ = frame.is_icrc_right();
        }
        Err(ParseError::Truncated { need, have }) => assert!(have < need),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
