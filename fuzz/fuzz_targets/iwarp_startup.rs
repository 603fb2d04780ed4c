//! What a stranger sends to an MPA start-up, at either end, in pieces. Nothing may panic, nothing
//! that does not belong to the frame may be consumed, and two ends of ours that hear each other
//! agree.
//!
//! Input: one byte for the role and the configuration, one for the size of the pieces, the rest is
//! what the peer sends; with the right key put in front if the configuration byte says so.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_proto::Time;
use vernic_proto::iwarp::{RtrSet, Startup, StartupConfig, StartupState};
use vernic_wire::iwarp::{MpaKey, MpaStart};

const NOW: Time = Time(5);

fuzz_target!(|data: &[u8]| {
    let [mode, chunk, stranger @ ..] = data else { return };
    let has = |bit: u8| mode & bit != 0;
    let config = StartupConfig {
        revision: if has(2) { 2 } else { 1 },
        crc: has(4),
        markers: has(8),
        negotiate_depths: has(16),
        rtr: if has(32) { RtrSet::all() } else { RtrSet::empty() },
        ..StartupConfig::default()
    };
    let (mut startup, key) = if has(1) {
        (Startup::initiate(config, b"private", NOW).expect("it fits"), MpaKey::Reply)
    } else {
        (Startup::respond(config, NOW), MpaKey::Request)
    };
    let mut bytes = if has(64) { key.bytes().to_vec() } else { Vec::new() };
    bytes.extend_from_slice(stranger);
    let mut consumed = 0;
    for piece in bytes.chunks(usize::from(*chunk).max(1)) {
        if startup.state() != StartupState::Waiting {
            break;
        }
        consumed += startup.handle_bytes(piece);
    }
    match startup.state() {
        StartupState::Waiting => assert_eq!(consumed, bytes.len()),
        StartupState::Failed(error) => assert!(!error.to_string().is_empty()),
        state => {
            let start = startup.peer().expect("a complete frame");
            assert_eq!(consumed, MpaStart::LEN + usize::from(start.private_len));
            assert!(startup.private().len() <= usize::from(start.private_len));
            if state == StartupState::Asked {
                startup.accept(&config, b"answer", NOW).expect("it fits");
                startup.handle_sent(startup.transmit().len());
            }
            if let Some(agreed) = startup.agreed() {
                assert_eq!(agreed.crc, start.crc || config.crc);
                assert_eq!(agreed.tx_markers, start.markers);
            }
        }
    }
    startup.handle_timeout(NOW + config.timeout_ns.max(config.reply_ns));
    assert_ne!(startup.state(), StartupState::Waiting);
    startup.abort();
    assert!(matches!(startup.state(), StartupState::Failed(_) | StartupState::Rejected));
});
