//! A host whose slots are all taken. Apart from the other tests: it needs a thousand descriptors,
//! which is about all that a process may have.

#![allow(clippy::print_stdout)]

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use vernic_io::host::SlotError;
use vernic_io::{Slot, SlotTable};

#[test]
fn a_host_with_all_slots_taken_says_so() {
    let scope = format!("vf{}", std::process::id());
    let table = SlotTable::with_scope(&scope).unwrap();
    let mut held = Vec::new();
    for slot in Slot::FIRST.value()..=Slot::LAST.value() {
        let name = SocketAddr::from_abstract_name(format!("{scope}/{slot}")).unwrap();
        match UnixDatagram::bind_addr(&name) {
            Ok(socket) => held.push(socket),
            Err(error) => {
                println!("skipped: cannot hold {slot} descriptors: {error}");
                return;
            }
        }
    }
    let error = table.claim().unwrap_err();
    assert!(matches!(error, SlotError::NoneFree), "{error}");
    assert!(error.to_string().contains("all 1022 slots"), "{error}");
    held.pop();
    assert_eq!(table.claim().unwrap(), Slot::LAST);
}
