//! A device with all of its names in use. Apart from the other tests: it needs more descriptors
//! than a process may have in many places.

#![allow(clippy::print_stdout)]

use std::net::Ipv4Addr;

use vernic_io::host::MAX_NAMES;
use vernic_io::{LocalAddr, NameError, ServiceName, ServiceScope, SlotTable};
use vernic_wire::cm::ServiceId;

fn name(service: u64) -> ServiceName {
    let local = LocalAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    ServiceName { service: ServiceId(service), scope: ServiceScope::Address(local) }
}

#[test]
fn a_table_takes_no_more_names_than_it_says() {
    let table = SlotTable::with_scope(&format!("vn{}", std::process::id())).unwrap();
    for service in 0..MAX_NAMES as u64 {
        match table.claim_name(&name(service)) {
            Ok(()) => {}
            Err(NameError::Os { source, .. }) => {
                println!("skipped: cannot hold {service} descriptors: {source}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let error = table.claim_name(&name(u64::MAX)).unwrap_err();
    assert!(matches!(error, NameError::TooMany { .. }), "{error}");
    assert!(error.to_string().contains("4096"), "{error}");
    table.release_name(&name(5));
    table.claim_name(&name(u64::MAX)).unwrap();
}
