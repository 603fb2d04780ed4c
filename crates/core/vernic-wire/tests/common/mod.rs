//! Reads and writes pcap files (classic format, microseconds, this machine's byte order or not),
//! and asks tshark about them.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The frames of a pcap file.
pub(crate) fn read_pcap(file: &[u8]) -> Vec<&[u8]> {
    let u32_at = match file[..4] {
        [0xD4, 0xC3, 0xB2, 0xA1] => |b: &[u8]| u32::from_le_bytes(b[..4].try_into().unwrap()),
        [0xA1, 0xB2, 0xC3, 0xD4] => |b: &[u8]| u32::from_be_bytes(b[..4].try_into().unwrap()),
        ref magic => panic!("not a pcap file: {magic:x?}"),
    };
    let mut frames = Vec::new();
    let mut rest = &file[24..];
    while !rest.is_empty() {
        let captured = u32_at(&rest[8..]) as usize;
        assert_eq!(captured, u32_at(&rest[12..]) as usize, "a frame was cut short by the capture");
        frames.push(&rest[16..16 + captured]);
        rest = &rest[16 + captured..];
    }
    frames
}

/// A pcap file of Ethernet frames, one per microsecond.
pub(crate) fn write_pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend_from_slice(&0xA1B2_C3D4_u32.to_le_bytes());
    file.extend_from_slice(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend_from_slice(&0x4_0000_u32.to_le_bytes());
    file.extend_from_slice(&1_u32.to_le_bytes());
    for (index, frame) in frames.iter().enumerate() {
        file.extend_from_slice(&0_u32.to_le_bytes());
        file.extend_from_slice(&(index as u32).to_le_bytes());
        file.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        file.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        file.extend_from_slice(frame);
    }
    file
}

/// Runs tshark with `options` over `frames` and returns the fields of each, or `None` where there
/// is no tshark. What it reads is left in a file of this name.
pub(crate) fn dissect(
    name: &str,
    frames: &[Vec<u8>],
    options: &[&str],
    fields: &[&str],
) -> Option<Vec<Vec<String>>> {
    let rows = dissect_file(name, &write_pcap(frames), options, fields)?;
    assert_eq!(rows.len(), frames.len());
    Some(rows)
}

/// Runs tshark with `options` over a file of these bytes and returns the fields of each packet in
/// it, or `None` where there is no tshark. The file is left under this name.
pub(crate) fn dissect_file(
    name: &str,
    file: &[u8],
    options: &[&str],
    fields: &[&str],
) -> Option<Vec<Vec<String>>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        let notice = "tshark is not installed: NOTHING WAS CHECKED BY IT (apt-get install tshark)";
        let required = std::env::var_os("VERNIC_REQUIRE_TOOLS").is_some_and(|value| value != "0");
        assert!(!required, "{notice}");
        // Not through print: the test harness must not swallow it.
        writeln!(std::io::stderr().lock(), "\nWARNING: {notice}").unwrap();
        return None;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, file).unwrap();
    let mut tshark = Command::new("tshark");
    tshark.arg("-n").args(options);
    tshark.args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
    tshark.args(fields.iter().flat_map(|field| ["-e", field])).arg("-r").arg(&path);
    let output = tshark.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark failed: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|l| l.split('|').map(str::to_owned).collect()).collect())
}

/// A number as tshark prints it, decimal or hexadecimal.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text {
        "True" => Some(1),
        "False" => Some(0),
        _ => match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        },
    }
}
