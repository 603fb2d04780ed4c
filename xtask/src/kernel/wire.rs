//! What both ends put on the wire, judged by a third: some cases run once more while their link is
//! captured, and every packet must be one that tshark and `vernic-wire` read alike.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use vernic_wire::Opcode;
use vernic_wire::iwarp::RdmapOpcode;

use super::case::{Case, Fault};
use super::lab::Lab;
use super::links::{Driver, LINKS, Link};
use super::pair;
use super::peer::FOLDER;
use super::scenarios::{CM_PORT, PROBE};
use crate::capture::{self, Checksums};
use crate::shell::run;
use crate::{Result, root};

/// Scenarios of our judge that are captured: every operation, NAKs of each kind, repeats after
/// loss.
const SCENARIOS: &[&str] = &[
    "verify",
    "uc-verify",
    "reads",
    "atomics",
    "datagrams",
    "invalidate",
    "rnr-wait",
    "write-key",
    "send-long",
];

/// The same over iWARP: with and without CRCs, and a Terminate of each layer.
const IWARP_SCENARIOS: &[&str] = &[
    "iwarp-verify",
    "reads",
    "iwarp-write-key",
    "iwarp-read-bounds",
    "iwarp-send-long",
    "iwarp-no-receive",
];

/// Of these the link carries both directions, each end is requester once.
const PLACES: [&str; 4] =
    ["ipv4-1500-to-kernel", "ipv6-9000-from-kernel", "ipv4-1500-to-siw", "ipv6-9000-from-siw"];

/// Opcodes that must be among the captured ones on each link, or the run did not show what it is
/// for.
const WANTED: &[Opcode] = &[
    Opcode::RC_SEND_ONLY_IMM,
    Opcode::RC_SEND_ONLY_INV,
    Opcode::RC_WRITE_FIRST,
    Opcode::RC_WRITE_MIDDLE,
    Opcode::RC_WRITE_LAST_IMM,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_READ_RESPONSE_MIDDLE,
    Opcode::RC_ACK,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_CMP_SWAP,
    Opcode::RC_ATOMIC_ACK,
    Opcode::UC_WRITE_FIRST,
    Opcode::UC_SEND_ONLY_IMM,
    Opcode::UD_SEND_ONLY_IMM,
];

/// The same of iWARP.
const IWARP_WANTED: &[RdmapOpcode] = &[
    RdmapOpcode::WRITE,
    RdmapOpcode::READ_REQUEST,
    RdmapOpcode::READ_RESPONSE,
    RdmapOpcode::SEND,
    RdmapOpcode::TERMINATE,
];

/// Runs the cases with a capture on each link, and judges every packet. Returns what is wrong.
pub(super) fn check(cases: &[Case], lab: &mut Lab) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for place in PLACES {
        let is_chosen = |case: &&Case| {
            case.program == PROBE
                && case.place.name() == place
                && matches!(case.fault, Fault::None | Fault::Loss)
                && scenarios(case.place.link.driver).contains(&case.options.as_str())
        };
        let chosen: Vec<&Case> = cases.iter().filter(is_chosen).collect();
        let link = chosen.first().map_or(&LINKS[0], |case| case.place.link);
        let dump = Dump::start(link, lab, place)?;
        for case in chosen {
            // How it ends is judged elsewhere: here is about what it sends.
            pair::run(case, usize::from(u16::MAX), lab)?;
        }
        let file = dump.stop()?;
        let judged = match link.driver {
            Driver::Rxe => judge(&file),
            Driver::Siw => judge_iwarp(&file),
        };
        if let Err(why) = judged {
            findings.push(format!("capture of {place}: {why}"));
        }
    }
    Ok(findings)
}

/// Those that are captured of a driver's.
fn scenarios(driver: Driver) -> &'static [&'static str] {
    match driver {
        Driver::Rxe => SCENARIOS,
        Driver::Siw => IWARP_SCENARIOS,
    }
}

fn judge(file: &Path) -> Result {
    // The host leaves UDP checksums to the card, after the capture; the guest sends none.
    let counts = capture::judge(file, Checksums::Offloaded)?;
    let packets: usize = counts.values().sum();
    println!("{}: {packets} packets, {} sorts", file.display(), counts.len());
    let is_there = |opcode: &&Opcode| counts.keys().any(|(seen, _)| *seen == opcode.0);
    match WANTED.iter().find(|opcode| !is_there(opcode)) {
        Some(missing) => Err(format!("no {missing} was captured")),
        None => Ok(()),
    }
}

fn judge_iwarp(file: &Path) -> Result {
    let counts = capture::judge_streams(file)?;
    let fpdus: usize = counts.values().sum();
    println!("{}: {fpdus} FPDUs, {} opcodes", file.display(), counts.len());
    match IWARP_WANTED.iter().find(|opcode| !counts.contains_key(&opcode.0)) {
        Some(missing) => Err(format!("no {missing} was captured")),
        None => Ok(()),
    }
}

/// A capture that runs; ended with the value.
struct Dump {
    child: Child,
    /// Held open: it ends when it cannot print.
    _printed: BufReader<ChildStderr>,
    file: PathBuf,
}

impl Dump {
    /// Starts it, and waits until it captures.
    fn start(link: &Link, lab: &Lab, name: &str) -> Result<Self> {
        let file = root().join(FOLDER).join(format!("{name}.pcapng"));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.peer.namespace, "dumpcap", "-q", "-i", link.netdev]);
        let filter = match link.driver {
            Driver::Rxe => "udp dst port 4791".to_owned(),
            Driver::Siw => format!("tcp port {CM_PORT}"),
        };
        command.args(["-f", &filter, "-B", "64", "-w"]).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("cannot start dumpcap: {e}"))?;
        let stderr = child.stderr.take().ok_or("dumpcap has no standard error")?;
        let mut printed = BufReader::new(stderr);
        let said = printed.by_ref().lines().map_while(std::io::Result::ok);
        // It says so once it has opened both the netdev and the file.
        let captures = said.into_iter().any(|line| line.starts_with("File: "));
        let dump = Self { child, _printed: printed, file };
        if captures { Ok(dump) } else { Err(format!("dumpcap cannot capture {}", link.netdev)) }
    }

    /// Ends it, so that the file is whole.
    fn stop(mut self) -> Result<PathBuf> {
        run(&format!("kill -INT {}", self.child.id())).output()?;
        self.child.wait().map_err(|e| format!("wait: {e}"))?;
        Ok(self.file.clone())
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        // Fails where it has ended already, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    #[test]
    fn every_scenario_and_place_has_its_case() {
        let cases = cases::all();
        for scenario in SCENARIOS.iter().chain(IWARP_SCENARIOS) {
            assert!(cases.iter().any(|case| case.options == *scenario), "{scenario}");
        }
        for place in PLACES {
            assert!(cases.iter().any(|case| case.place.name() == place), "{place}");
        }
    }
}
