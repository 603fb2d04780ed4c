//! Programs of C on an iWARP device.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::Folder;

/// For what another process does.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_device_is_an_rnic_and_connections_bring_its_queue_pairs_up() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/iwarp.c");
    let settings = [("VERNIC_DEVICE", "lo"), ("VERNIC_TRANSPORT", "iwarp")];
    Folder::new("iwarp").check_with(&source, &settings);
}

/// A request without CRCs, of revision 1 (RFC 5044, 7.1).
const REQUEST: [u8; 20] = *b"MPA ID Req Frame\0\x01\0\0";

/// An FPDU of a SEND without bytes, with its number (RFC 5044, 4.1; RFC 5041, 4.3; RFC 5040, 4.1).
fn empty_send(msn: u8) -> [u8; 24] {
    let mut fpdu = [0; 24];
    fpdu[1] = 18;
    // Untagged, the last segment, version 1; SEND, version 1.
    (fpdu[2], fpdu[3]) = (0x41, 0x43);
    fpdu[15] = msn;
    fpdu
}

#[test]
fn a_program_that_just_exits_leaves_its_peer_with_all_that_it_completed() {
    const WRITTEN: usize = 256 << 10;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/iwarp_exit.c");
    let folder = Folder::new("iwarp-exit");
    let Some(program) = folder.compile(&source) else { return };
    let mut child = Command::new(program)
        .env("LD_LIBRARY_PATH", folder.path())
        .env("VERNIC_DEVICE", "lo")
        .env("VERNIC_TRANSPORT", "iwarp")
        .env("VERNIC_IWARP_CRC", "off")
        .env("VERNIC_IWARP_RECV_WAIT_US", "10000000")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let port: u16 = said.next().unwrap().unwrap().parse().unwrap();
    let mut peer = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.write_all(&REQUEST).unwrap();
    peer.read_exact(&mut [0; 20]).unwrap();
    peer.write_all(&[empty_send(1), empty_send(2)].concat()).unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "complete");
    // Unread when it ends: the system alone would reset the connection.
    peer.write_all(&empty_send(3)).unwrap();
    drop(child.stdin.take());
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() > WRITTEN, "{} bytes", bytes.len());
    assert!(child.wait().unwrap().success());
}
