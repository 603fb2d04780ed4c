//! Any bytes: the packet view parses or rejects them, and every accessor and text of it works.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_wire::{Packet, ParseError};

fuzz_target!(|bytes: &[u8]| {
    match Packet::parse(bytes) {
        Ok(packet) => {
            let info = packet.info();
            assert!(packet.opcode().is_known());
            assert_eq!(packet.payload_fits(), info.payload_fits(packet.payload().len()));
            assert!(info.is_request() || packet.payload_fits());
            assert!(packet.padding().len() < 4);
            let header_len = usize::from(info.header_len);
            assert_eq!(header_len + packet.payload().len() + packet.padding().len(), bytes.len());
            assert_eq!(packet.headers().present(), info.headers);
            assert_eq!(packet.bth().psn, packet.psn());
            assert!(packet.to_string().starts_with(info.name));
        }
        Err(ParseError::Truncated { need, have }) => assert!(have < need),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
