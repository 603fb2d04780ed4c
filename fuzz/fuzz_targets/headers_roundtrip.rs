//! Any bytes: what a header or packet parser accepts is emitted as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_wire::ipoib::{Arp, ConnectedData, Encapsulation, HardwareAddress};
use vernic_wire::mad::MadHeader;
use vernic_wire::net::{Ethernet, Ipv4, Ipv6, Udp};
use vernic_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Grh, Ieth, ImmDt, Lrh, Packet, Rdeth, Reth,
    Xrceth,
};

macro_rules! round_trip {
    ($bytes:ident: $($header:ty),*) => {
        $(
            if let Ok(header) = <$header>::parse($bytes) {
                let mut out = [0; <$header>::LEN];
                header.emit(&mut out);
                assert_eq!(out, $bytes[..<$header>::LEN]);
                assert!(!header.to_string().is_empty());
            }
        )*
    };
}

fuzz_target!(|bytes: &[u8]| {
    round_trip!(bytes: Bth, Reth, Aeth, AtomicEth, AtomicAckEth, Deth, ImmDt, Ieth, Rdeth, Xrceth);
    round_trip!(bytes: Feth, Grh, Lrh, MadHeader, Ethernet, Ipv4, Ipv6, Udp);
    round_trip!(bytes: Encapsulation, HardwareAddress, Arp, ConnectedData);
    if let Ok(packet) = Packet::parse(bytes) {
        let mut out = vec![0; bytes.len()];
        let at = packet.headers().emit(&mut out);
        out[at..].copy_from_slice(&[packet.payload(), packet.padding()].concat());
        assert_eq!(out, bytes);
    }
});
