//! What other processes of the host send: questions about slots, their answers, the head of packets
//! that are handed over, what is said of access to memory, and where the payload of a rendezvous
//! lies. The kernel says whose they are; what is in them is not believed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_io::fuzzing;
use vernic_local::fuzzing::{grant_message, rendezvous_record};

fuzz_target!(|bytes: &[u8]| {
    let parsers = [fuzzing::slot_message, fuzzing::handoff_head, grant_message, rendezvous_record];
    for parser in parsers {
        if let Some(understood) = parser(bytes) {
            // Reserved bytes may be lost the first time, nothing the second.
            assert_eq!(parser(&understood).as_deref(), Some(&understood[..]));
        }
    }
});
