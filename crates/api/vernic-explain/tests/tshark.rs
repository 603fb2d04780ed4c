//! tshark as the judge of what is counted: packets by opcode, and by their way and queue pair.
//!
//! Needs `tshark` (Debian and Ubuntu: `apt-get install tshark`). Without it the tests say so on
//! stderr and check nothing; with `VERNIC_REQUIRE_TOOLS=1` they fail instead.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use vernic_explain::{Flow, Report, Source, Way, explain};
use vernic_wire::Opcode;

/// tshark's fields of each packet of a file; none where there is no tshark.
fn fields(path: &Path) -> Option<Vec<Vec<String>>> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "fields", "-E", "separator=|", "-Y", "infiniband"]);
    for field in ["infiniband.bth.opcode", "ip.src", "ip.dst", "infiniband.bth.destqp"] {
        tshark.args(["-e", field]);
    }
    // It guesses what payloads are, and calls short ones malformed.
    tshark.args(["--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib"]);
    let Ok(output) = tshark.arg("-r").arg(path).output() else {
        let notice = "tshark is not installed: NOTHING WAS CHECKED BY IT (apt-get install tshark)";
        let required = std::env::var_os("VERNIC_REQUIRE_TOOLS").is_some_and(|value| value != "0");
        assert!(!required, "{notice}");
        writeln!(std::io::stderr().lock(), "\nWARNING: {notice}").unwrap();
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

fn explained(path: &Path) -> Report {
    let name = path.display().to_string();
    explain(vec![Source { name, reader: File::open(path).unwrap() }]).unwrap()
}

fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// Compares; returns the number of packets. Every packet of the file must have its direction once.
fn judge(path: &Path) -> Option<usize> {
    let rows = fields(path)?;
    let report = explained(path);
    let (mut opcodes, mut ways) = (BTreeMap::new(), BTreeMap::new());
    for row in &rows {
        let opcode = Opcode(u8::try_from(number(&row[0])).unwrap());
        *opcodes.entry(opcode.to_string()).or_insert(0) += 1;
        let qpn = number(&row[3]);
        if qpn != 1 {
            *ways.entry((row[1].clone(), row[2].clone(), qpn)).or_insert(0) += 1;
        }
    }
    assert_eq!(report.opcodes, opcodes, "{}", path.display());
    let mut told = BTreeMap::new();
    let mut add = |way: &Way, src: &str, dst: &str, qpn: Option<u32>| {
        if way.packets != 0 {
            *told.entry((src.to_owned(), dst.to_owned(), qpn.unwrap())).or_insert(0) += way.packets;
        }
    };
    for Flow { a, b, a_to_b, b_to_a, .. } in &report.flows {
        let (at_a, at_b) = (a.address.to_string(), b.address.to_string());
        add(a_to_b, &at_a, &at_b, b.qpn);
        add(b_to_a, &at_b, &at_a, a.qpn);
    }
    assert_eq!(told, ways, "{}", path.display());
    Some(rows.len())
}

#[test]
fn counts_of_a_capture_of_two_kernels_are_those_of_tshark() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../core/vernic-wire/tests/data/ulps_rocev2.pcap");
    if let Some(count) = judge(&path) {
        assert!(count > 3000, "{count}");
    }
}

#[test]
fn counts_of_the_samples_are_those_of_tshark() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/samples");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "pcapng") {
            judge(&path);
            files += 1;
        }
    }
    assert_ne!(files, 0);
}
