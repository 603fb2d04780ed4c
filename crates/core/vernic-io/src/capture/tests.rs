use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use pcap_file::pcapng::{Block, PcapNgReader};
use vernic_wire::icrc::Verdict;
use vernic_wire::{Bth, Headers, Opcode, Psn, Qpn};

use super::*;
use crate::endpoint;
use crate::fault::FaultLink;
use crate::testing::{MemoryLink, SOURCE_PORT, path};

/// A file that is removed when dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> Self {
        let name = format!("vernic-io-{}-{name}.pcapng", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
    fn config(&self, max_bytes: Option<u64>) -> CaptureConfig {
        CaptureConfig { path: self.0.clone(), max_bytes }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Appends a SEND ONLY (RC, opcode 4) with `payload` bytes.
fn append_send(batch: &mut TxBatch, path: &TxPath, psn: u32, payload: usize) {
    let bth = Bth::new(Opcode(4), Qpn::new(0x1234), Psn::new(psn));
    let room = batch.room().expect("the batch has room");
    let at = Headers::new(bth).emit(room);
    room[at..at + payload].fill(psn as u8);
    batch.push(path, at + payload);
}

/// Returns direction, destination port and ICRC verdict of each packet in a capture.
fn read_back(file: &TempFile) -> Vec<(u32, u16, bool)> {
    let mut reader = PcapNgReader::new(File::open(&file.0).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        let flags = packet.options.iter().find_map(|option| match option {
            EnhancedPacketOption::Flags(flags) => Some(*flags),
            _ => None,
        });
        let frame = Frame::parse(&packet.data).unwrap();
        let good = frame.check_icrc() == Verdict::Good;
        packets.push((flags.unwrap(), frame.udp.dport, good));
    }
    packets
}

/// Sends some packets through a capture, and receives them again.
fn capture(inner: Box<dyn Link>, config: CaptureConfig, dst: SocketAddr) -> CaptureLink {
    let mut link = CaptureLink::new(inner, config).unwrap();
    let mut batch = TxBatch::new(&link.limits());
    let path = endpoint::path(path().local().to_ip(), dst).with_traffic_class(2).with_hop_limit(9);
    for (psn, payload) in [(1, 1024), (2, 1024), (3, 1024), (4, 64), (5, 0)] {
        append_send(&mut batch, &path, psn, payload);
    }
    let report = link.send(Nanos(0), &mut batch);
    assert_eq!(report.packets, 5);
    let mut rx = RxBatch::new();
    assert_eq!(link.recv(Nanos(1000), &mut rx), 5);
    link
}

#[test]
fn both_directions_are_captured_with_right_icrcs() {
    let file = TempFile::new("both");
    let link = capture(MemoryLink::boxed().0, file.config(None), endpoint::destination_of(&path()));
    assert_eq!((link.packets(), link.skipped()), (10, 0));
    drop(link);
    let wanted: Vec<_> =
        [OUTBOUND, INBOUND].iter().flat_map(|d| [(*d, ROCE_PORT, true); 5]).collect();
    assert_eq!(read_back(&file), wanted);
}

#[test]
fn packets_whose_headers_the_link_does_not_know_are_counted() {
    let file = TempFile::new("headers");
    let inner = MemoryLink::without_headers();
    let link = capture(inner, file.config(None), endpoint::destination_of(&path()));
    assert_eq!((link.packets(), link.skipped()), (5, 5));
    drop(link);
    assert_eq!(read_back(&file), [(INBOUND, ROCE_PORT, true); 5]);
}

#[test]
fn packets_to_a_private_port_are_written_as_roce_with_right_icrcs() {
    let file = TempFile::new("private");
    let (inner, _) = MemoryLink::boxed();
    let mut link = CaptureLink::new(inner, file.config(None)).unwrap();
    let mut batch = TxBatch::new(&link.limits());
    let private = SocketAddr::new(path().local().to_ip(), 41_000);
    append_send(&mut batch, &endpoint::path(path().local().to_ip(), private), 1, 64);
    append_send(&mut batch, &endpoint::path(path().local().to_ip(), private), 2, 64);
    link.send(Nanos(0), &mut batch);
    drop(link);
    assert_eq!(read_back(&file), [(OUTBOUND, ROCE_PORT, true); 2]);
}

#[test]
fn a_damaged_packet_is_damaged_in_the_capture() {
    let file = TempFile::new("damaged");
    let (inner, _) = MemoryLink::boxed();
    let capture = CaptureLink::new(inner, file.config(None)).unwrap();
    let mut link = FaultLink::new(Box::new(capture), "corrupt=1".parse().unwrap());
    let mut batch = TxBatch::new(&link.limits());
    append_send(&mut batch, &path(), 1, 256);
    link.send(Nanos(0), &mut batch);
    drop(link);
    assert_eq!(read_back(&file), [(OUTBOUND, ROCE_PORT, false)]);
}

#[test]
fn a_capture_stays_below_its_size_and_counts_what_it_left_out() {
    let file = TempFile::new("small");
    let link =
        capture(MemoryLink::boxed().0, file.config(Some(3000)), endpoint::destination_of(&path()));
    assert_eq!(link.packets(), 2);
    drop(link);
    assert!(std::fs::metadata(&file.0).unwrap().len() <= 3000);
    assert_eq!(read_back(&file).len(), 2);
}

#[test]
fn a_file_that_cannot_be_created_is_a_named_error() {
    let config = CaptureConfig { path: "/no/such/folder/x.pcapng".into(), max_bytes: None };
    let error = CaptureLink::new(MemoryLink::boxed().0, config).unwrap_err().to_string();
    assert!(error.contains("/no/such/folder/x.pcapng") && error.contains("No such file"));
}

#[test]
fn packets_of_any_length_are_captured() {
    let file = TempFile::new("short");
    let mut capture = CaptureFile::create(file.config(None)).unwrap();
    let src = SocketAddr::new(path().local().to_ip(), SOURCE_PORT);
    for (len, dst) in [0, 1, 4, 15, 16, 4224, 9000].into_iter().zip([4791, 7, 7, 7, 7, 7, 7]) {
        let bytes = &vec![0xFF; len];
        let dst = SocketAddr::new(path().local().to_ip(), dst);
        let (direction, traffic_class, hop_limit, ident) = (INBOUND, 0, 1, 0);
        let packet = Datagram { src, dst, traffic_class, hop_limit, ident, bytes };
        capture.write(Nanos(0), direction, &Captured::Datagram(packet));
    }
    drop(capture);
    assert_eq!(read_back(&file).len(), 7);
}

#[test]
fn tshark_opens_a_capture_as_roce_with_nothing_malformed() {
    let file = TempFile::new("tshark");
    drop(capture(MemoryLink::boxed().0, file.config(None), endpoint::destination_of(&path())));
    let fields = ["-e", "_ws.malformed", "-e", "infiniband.bth.opcode", "-e", "infiniband.bth.psn"];
    // The packets must be shown as RoCE: tshark guesses that the empty SEND is RPC.
    let mut tshark = Command::new("tshark");
    tshark.args(["--disable-protocol", "rpcordma"]);
    let output = match tshark.arg("-r").arg(&file.0).args(["-T", "fields"]).args(fields).output() {
        Ok(output) => output,
        Err(error) => {
            let required = std::env::var_os("VERNIC_REQUIRE_TOOLS").is_some();
            assert!(!required, "tshark is required and cannot run: {error}");
            println!("skipped: tshark cannot run: {error}");
            return;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<String> = (1..=5).chain(1..=5).map(|psn| format!("\t4\t{psn}")).collect();
    assert_eq!(lines, wanted);
}

#[test]
fn a_capture_of_a_process_that_dies_ends_with_a_whole_block() {
    let file = TempFile::new("killed");
    let mut link = CaptureLink::new(MemoryLink::boxed().0, file.config(None)).unwrap();
    let mut batch = TxBatch::new(&link.limits());
    // More packets than wait in memory, and not a multiple.
    for psn in 0..100 {
        append_send(&mut batch, &path(), psn, 1000);
        link.send(Nanos(1), &mut batch);
    }
    let written = read_back(&file).len();
    assert!((1..100).contains(&written), "{written} packets were written at once");
    // Waiting packets have a deadline, at which they are written.
    let due = link.deadline().expect("packets wait");
    link.recv(Nanos(due.0 - 1), &mut RxBatch::new());
    assert_eq!(read_back(&file).iter().filter(|p| p.0 == OUTBOUND).count(), written);
    link.recv(due, &mut RxBatch::new());
    assert_eq!(read_back(&file).iter().filter(|p| p.0 == OUTBOUND).count(), 100);
    // Nothing is cleaned up, as in a process that is killed.
    std::mem::forget(link);
}

#[test]
fn two_captures_of_one_name_get_a_file_each() {
    let (file, second) = (TempFile::new("shared"), TempFile::new("shared-2"));
    let first =
        capture(MemoryLink::boxed().0, file.config(None), endpoint::destination_of(&path()));
    drop(capture(MemoryLink::boxed().0, file.config(None), endpoint::destination_of(&path())));
    assert_eq!(read_back(&second).len(), 10);
    drop(first);
    assert_eq!(read_back(&file).len(), 10);
    // The name is free again.
    drop(CaptureLink::new(MemoryLink::boxed().0, file.config(None)).unwrap());
    assert_eq!(read_back(&file).len(), 0);
}

#[test]
fn a_path_that_cannot_be_written_is_named_with_what_helps() {
    let begin = |path: PathBuf| {
        let config = CaptureConfig { path, max_bytes: None };
        CaptureLink::new(MemoryLink::boxed().0, config).unwrap_err().to_string()
    };
    let folder = std::env::temp_dir();
    let shown = folder.display().to_string();
    let text = begin(folder.clone());
    assert!(text.contains("Is a directory") && text.contains("name a file in it"), "{text}");
    assert!(text.ends_with("%d-%p.pcapng"), "{text}");
    let text = begin(folder.join("no-such-folder-of-vernic/x.pcapng"));
    assert!(text.contains(&format!("is there a folder {shown}")), "{text}");
}

#[test]
fn only_its_user_may_read_a_capture() {
    let file = TempFile::new("mode");
    drop(CaptureFile::create(file.config(None)).unwrap());
    let metadata = std::fs::metadata(&file.0).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o600);
}

#[test]
fn a_capture_neither_follows_a_link_nor_takes_the_file_of_another_user() {
    let (file, other) = (TempFile::new("link"), TempFile::new("behind"));
    std::fs::write(&other.0, b"precious").unwrap();
    std::os::unix::fs::symlink(&other.0, &file.0).unwrap();
    let begin = || CaptureLink::new(MemoryLink::boxed().0, file.config(None)).unwrap_err();
    let text = begin().to_string();
    assert!(text.contains("a symbolic link, which a capture does not follow"), "{text}");
    assert_eq!(std::fs::read(&other.0).unwrap(), b"precious");
    std::fs::remove_file(&file.0).unwrap();
    std::fs::write(&file.0, b"precious").unwrap();
    if std::os::unix::fs::chown(&file.0, Some(12_345), None).is_err() {
        return eprintln!("skipped the file of another user: only root can make one");
    }
    let text = begin().to_string();
    assert!(text.contains("belongs to user 12345") && text.contains("another name"), "{text}");
    assert_eq!(std::fs::read(&file.0).unwrap(), b"precious");
}

#[test]
fn a_capture_may_go_to_where_the_program_writes_already() {
    let config = CaptureConfig { path: "/dev/null".into(), max_bytes: None };
    drop(CaptureFile::create(config).unwrap());
    let (mut reader, writer) = std::io::pipe().unwrap();
    let path = format!("/dev/fd/{}", writer.as_raw_fd()).into();
    drop(CaptureFile::create(CaptureConfig { path, max_bytes: None }).unwrap());
    drop(writer);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
    assert_eq!(bytes[..4], [0x0A, 0x0D, 0x0D, 0x0A], "a section header");
}
