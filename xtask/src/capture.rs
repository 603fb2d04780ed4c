//! What goes over the wire, judged from outside: benchmarks and connections run with the capture
//! on, tshark reads the files, and every ICRC is checked.
//!
//! tshark shows the ICRC but does not verify it: that is done by `vernic-wire`, whose own judges
//! are golden packets of another implementation and a capture of two kernels.

mod pcap;
mod streams;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use vernic_wire::Frame;
use vernic_wire::cm::{CmAttribute, CmMessage};
use vernic_wire::icrc::{self, Verdict};
use vernic_wire::{Opcode, Packet, Qpn};

pub(crate) use streams::judge as judge_streams;

use crate::shell::run;
use crate::{Result, root};

/// Where the files go, relative to the root.
const FOLDER: &str = "target/capture";

/// One packet, and first, middle and last ones.
const BENCH: &str = "-p vernic-cli -- bench --rounds 1 -n 60 -s 64,20000 --no-baselines --json";

/// A connection of each fate, and some more at once.
const CONNECTIONS: &str = "-p vernic-engine --example cm_speed -- --count 50 --at-once 8";

/// A program whose packets are captured, by two devices.
struct Program {
    /// Beginning of the names of its captures.
    name: &'static str,
    /// What cargo runs.
    command: &'static str,
    /// Further options.
    options: &'static str,
    /// Settings beside the capture itself.
    settings: &'static [(&'static str, &'static str)],
}

/// The first goes as processes of one host talk, the others over port 4791 as between hosts. Lost,
/// doubled and overtaken packets make requester and responder repeat themselves; a benchmark of UC
/// or UD ends when messages are lost.
const PROGRAMS: &[Program] = &[
    Program { name: "one-host", command: BENCH, options: "-c rc,uc,ud", settings: &[] },
    Program {
        name: "single-packets",
        command: BENCH,
        options: "-c rc,uc,ud",
        settings: &[("VERNIC_FORCE_WIRE", "on"), ("VERNIC_OFFLOAD", "off")],
    },
    Program {
        name: "faults",
        command: BENCH,
        options: "-c rc",
        settings: &[
            ("VERNIC_FORCE_WIRE", "on"),
            ("VERNIC_FAULT", "loss=0.01,dup=0.01,reorder=0.01,delay_us=20,seed=1"),
        ],
    },
    Program { name: "connections", command: CONNECTIONS, options: "", settings: &[] },
];

/// Opcodes that must be among the captured ones, or the run did not show what it is for.
const WANTED: &[Opcode] = &[
    Opcode::RC_SEND_ONLY,
    Opcode::RC_SEND_MIDDLE,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_WRITE_LAST,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_READ_RESPONSE_MIDDLE,
    Opcode::RC_ACK,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_ATOMIC_ACK,
    Opcode::UC_SEND_FIRST,
    Opcode::UC_WRITE_ONLY,
    Opcode::UD_SEND_ONLY,
];

/// Attribute ids of the messages of communication management that must be among the captured ones:
/// REQ to SIDR_REP without MRA, which only slow programs send.
const WANTED_CM: &[u16] = &[0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];

/// What a packet is: its opcode, and the attribute id of a management datagram.
type Sort = (Opcode, Option<u16>);

/// Packets by sort.
pub(crate) type Counts = BTreeMap<(u8, Option<u16>), usize>;

/// Whether checksums of IP and UDP in a capture are those of the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksums {
    /// They are, and must be right.
    Right,
    /// They are written behind the capture, by a network card.
    Offloaded,
}

/// Captures, and judges what was captured.
pub(crate) fn check() -> Result {
    let folder = root().join(FOLDER);
    // It need not be there yet.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{FOLDER}: {e}"))?;
    let mut seen = Counts::new();
    for Program { name, command, options, settings } in PROGRAMS {
        let mut program = run(&format!("cargo run --release --quiet {command} {options}"))
            .env("VERNIC_CAPTURE", &format!("{FOLDER}/{name}-%p-%d.pcapng"));
        for (variable, value) in *settings {
            program = program.env(variable, value);
        }
        println!("$ {}", program.line());
        program.limit_min(5).output()?;
        let mut files = 0;
        for file in captures(&folder, name)? {
            let counts = judge(&file, Checksums::Right)?;
            let shown = file.strip_prefix(root()).unwrap_or(&file).display();
            println!("{shown}: {} packets, {} sorts", sum(&counts), counts.len());
            files += 1;
            for (sort, count) in counts {
                *seen.entry(sort).or_default() += count;
            }
        }
        if files < 2 {
            return Err(format!("{name}: two devices wrote {files} captures"));
        }
    }
    let has_opcode = |opcode: &&Opcode| seen.keys().any(|sort| sort.0 == opcode.0);
    if let Some(missing) = WANTED.iter().find(|opcode| !has_opcode(opcode)) {
        return Err(format!("no {missing} was captured"));
    }
    let has_message = |id: &&u16| seen.keys().any(|sort| sort.1 == Some(**id));
    match WANTED_CM.iter().find(|id| !has_message(id)) {
        Some(missing) => Err(format!("no {} was captured", CmAttribute(*missing))),
        None => Ok(()),
    }
}

fn sum(counts: &Counts) -> usize {
    counts.values().sum()
}

/// The captures of a run.
fn captures(folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let ours = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(name) && file.ends_with(".pcapng")
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(ours).collect();
    files.sort();
    Ok(files)
}

/// One capture: tshark's view and ours, packet by packet.
pub(crate) fn judge(file: &Path, checksums: Checksums) -> Result<Counts> {
    let shown = tshark_fields(file, checksums)?;
    let plain = file.with_extension("pcap");
    run("tshark -n -F pcap")
        .args(&["-r", &file.to_string_lossy(), "-w", &plain.to_string_lossy()])
        .limit_min(5)
        .output()?;
    let bytes = fs::read(&plain).map_err(|e| format!("{}: {e}", plain.display()))?;
    // Large, and nothing that the first file does not say.
    let _ = fs::remove_file(&plain);
    let frames = pcap::frames(&bytes)?;
    if frames.is_empty() || frames.len() != shown.len() {
        let (ours, tsharks) = (frames.len(), shown.len());
        return Err(format!("{}: {ours} frames, tshark shows {tsharks}", file.display()));
    }
    let mut counts = Counts::new();
    for (index, (frame, shown)) in frames.iter().zip(&shown).enumerate() {
        let (opcode, attribute) = judge_frame(frame, shown)
            .map_err(|why| format!("{} frame {}: {why}", file.display(), index + 1))?;
        *counts.entry((opcode.0, attribute)).or_default() += 1;
    }
    Ok(counts)
}

/// One frame: no complaint by tshark, the same opcode and message, a right ICRC, no bytes left
/// over.
fn judge_frame(frame: &[u8], shown: &Shown) -> Result<Sort> {
    if !shown.complaints.is_empty() {
        return Err(format!("tshark says: {}", shown.complaints));
    }
    let frame = Frame::parse(frame).map_err(|e| e.to_string())?;
    if !frame.is_roce_v2() {
        return Err(format!("to UDP port {}", frame.udp.dport));
    }
    if frame.check_icrc() != Verdict::Good {
        return Err("wrong ICRC".into());
    }
    let transport = &frame.payload[..frame.payload.len() - icrc::LEN];
    let packet = Packet::parse(transport).map_err(|e| e.to_string())?;
    let opcode = packet.opcode();
    if shown.opcode != Some(opcode.0) {
        return Err(format!("{opcode}, but tshark reads {:?}", shown.opcode));
    }
    let mut attribute = None;
    if packet.dest_qpn() == Qpn::GSI {
        let (_, message) = CmMessage::parse(packet.payload()).map_err(|e| e.to_string())?;
        attribute = Some(message.attribute().0);
    }
    if shown.attribute != attribute {
        return Err(format!("message {attribute:?}, but tshark reads {:?}", shown.attribute));
    }
    Ok((opcode, attribute))
}

/// What tshark shows of a frame.
struct Shown {
    opcode: Option<u8>,
    /// Attribute id of a management datagram.
    attribute: Option<u16>,
    /// Malformed, suspicious, or with a wrong checksum; empty if nothing is.
    complaints: String,
}

fn tshark_fields(file: &Path, checksums: Checksums) -> Result<Vec<Shown>> {
    // A wrong checksum of IP or UDP is an expert message once they are looked at.
    let mut tshark = run("tshark -n -T fields");
    for layer in ["ip", "udp"] {
        let looked_at = if checksums == Checksums::Right { "TRUE" } else { "FALSE" };
        tshark = tshark.arg("-o").arg(format!("{layer}.check_checksum:{looked_at}"));
    }
    // Over IPv6, RoCEv2 may leave it out, and Linux does.
    tshark = tshark.args(&["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]);
    // It guesses what payloads are, and calls short ones malformed.
    for guess in ["rpcordma", "infiniband.eoib"] {
        tshark = tshark.args(&["--disable-protocol", guess]);
    }
    let text = tshark
        .args(&["-E", "separator=|", "-e", "infiniband.bth.opcode"])
        .args(&["-e", "infiniband.mad.attributeid"])
        .args(&["-e", "_ws.malformed", "-e", "_ws.expert.message"])
        .args(&["-r", &file.to_string_lossy()])
        .limit_min(5)
        .output()?;
    Ok(text.lines().map(shown).collect())
}

fn shown(line: &str) -> Shown {
    let mut fields = line.splitn(3, '|');
    let mut next = || fields.next().unwrap_or("");
    let (opcode, attribute, complaints) = (next(), next(), next());
    Shown {
        opcode: opcode.parse().ok(),
        attribute: attribute.strip_prefix("0x").and_then(|hex| u16::from_str_radix(hex, 16).ok()),
        complaints: complaints.trim_matches('|').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_tshark_is_an_opcode_and_complaints() {
        assert_eq!(shown("4|||").opcode, Some(4));
        assert_eq!(shown("4|||").complaints, "");
        assert_eq!(shown("4|||").attribute, None);
        assert_eq!(shown("100|0x0013||").attribute, Some(0x13));
        assert_eq!(shown("4||1|Malformed Packet").complaints, "1|Malformed Packet");
        assert_eq!(shown("|||").opcode, None);
    }

    #[test]
    fn a_frame_with_a_damaged_icrc_is_found() {
        let mut payload = vec![0; 16];
        payload[0] = Opcode::RC_SEND_ONLY.0;
        let (src, dst) = ("10.0.0.1:50000".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
        Frame::new(src, dst, 0, 3, &[]).flow().stamp(3, &mut payload);
        let mut bytes = vec![0; 100];
        let len = Frame::new(src, dst, 0, 3, &payload).emit(&mut bytes);
        bytes.truncate(len);
        assert_eq!(judge_frame(&bytes, &shown("4|||")), Ok((Opcode::RC_SEND_ONLY, None)));
        assert!(judge_frame(&bytes, &shown("6|||")).unwrap_err().contains("tshark reads"));
        assert!(judge_frame(&bytes, &shown("4|0x0010||")).unwrap_err().contains("tshark reads"));
        *bytes.last_mut().unwrap() ^= 1;
        assert!(judge_frame(&bytes, &shown("4|||")).unwrap_err().contains("ICRC"));
    }
}
