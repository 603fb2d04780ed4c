//! CM datagrams from anyone: what is accepted is emitted as it was but for the header's open
//! fields, and reads the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_wire::cm::{CmMessage, CmaHeader};
use vernic_wire::mad::{MAD_LEN, MadHeader};

fn check_cma(private_data: &[u8]) {
    if let Ok(header) = CmaHeader::parse(private_data) {
        let mut out = [0; CmaHeader::LEN];
        header.emit(&mut out);
        assert_eq!(out, private_data[..CmaHeader::LEN]);
        assert!(!header.to_string().is_empty());
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok((header, message)) = CmMessage::parse(bytes) else { return };
    let mut out = [0; MAD_LEN];
    message.emit(header.transaction_id, &mut out);
    assert_eq!(out[MadHeader::LEN..], bytes[MadHeader::LEN..MAD_LEN]);
    let (again, same) = CmMessage::parse(&out).expect("what we emit parses");
    assert_eq!((again.transaction_id, same), (header.transaction_id, message));
    assert!(!message.to_string().is_empty());
    match message {
        CmMessage::Req(req) => check_cma(req.private_data.as_ref()),
        CmMessage::SidrReq(req) => check_cma(req.private_data.as_ref()),
        _ => {}
    }
});
