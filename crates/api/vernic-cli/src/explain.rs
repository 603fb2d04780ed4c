//! `vernic explain`: what happened in a capture, or in a program that is run for it; and what
//! happens to the requests of a program that runs (`wr.rs`).
//!
//! Owns the files: which are read, where the picture goes, the folder of a program's captures. What
//! is told of captures comes from `vernic-explain`.

mod wr;

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use vernic::Qpn;
use vernic_explain::{Report, Source};

use crate::failure::{Doing as _, Failure, Outcome, complain};
use crate::table::{print, print_json};
use wr::WrArguments;

/// Flows that are told where it is not said how many: a screen or two.
const DEFAULT_TOP: usize = 10;

/// Most files of one program that are explained: one for each process and device.
const MAX_FILES: usize = 256;

/// `vernic explain`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "vernic explain [OPTIONS] FILE...\n       \
                            vernic explain [OPTIONS] --live -- [RUN OPTIONS] PROGRAM [ARGS]...\n       \
                            vernic explain [OPTIONS] --wr")]
pub(crate) struct Arguments {
    /// Captures, pcapng or pcap, of any program; `-` is standard input. Several are merged by time
    #[arg(value_name = "FILE", required_unless_present_any = ["live", "wr"])]
    files: Vec<PathBuf>,
    /// Run PROGRAM as `vernic run` does, with a capture into temporary files, and explain it when
    /// it ends; the exit status is its own. Options of `vernic run` may stand before it
    #[arg(long, conflicts_with = "files", requires = "program")]
    live: bool,
    #[command(flatten)]
    wr: WrArguments,
    /// Only flows, or requests, of this queue pair, as 0x4dc000 or 5095424
    #[arg(long, value_name = "NUMBER", value_parser = qpn)]
    qp: Option<Qpn>,
    /// Only so many flows, of those that need most attention [default: 10; all with --json]
    #[arg(long, value_name = "COUNT")]
    top: Option<usize>,
    /// Draw each flow: what A and B sent, in the order of time
    #[arg(long)]
    diagram: bool,
    /// Draw the same into this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "diagram")]
    json: bool,
    /// The program of --live, and its arguments
    #[arg(last = true, conflicts_with = "files", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A number of 24 bits, in decimal or hexadecimal.
fn qpn(text: &str) -> Result<Qpn, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number < 1 << 24 => Ok(Qpn::new(number)),
        _ => Err("a queue pair number is 0 to 16777215, or 0x0 to 0xffffff".into()),
    }
}

/// `vernic explain`.
pub(crate) fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    if arguments.wr.wr {
        wr::run(&arguments.wr, arguments.qp, arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.live {
        tell(arguments, sources(&arguments.files)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Ctrl-C ends the program, and not the explanation behind it.
    let _signals = vernic_sys::termination().doing(|| "await signals".into())?;
    let folder = Folder::new()?;
    let status = run_program(&folder.0, &arguments.program)?;
    let files = folder.captures()?;
    if files.is_empty() {
        let failure = Failure::new(format!("the program captured nothing ({status})"))
            .hint("it opened no RoCE device, or did not run");
        if status.success() {
            return Err(failure);
        }
        complain(format_args!("vernic: {failure}"));
        return Ok(exit_code(status));
    }
    let mut sources = sources(&files)?;
    // Names of a folder that is gone when they are read say nothing.
    for (source, path) in sources.iter_mut().zip(&files) {
        source.name = path.file_name().unwrap_or_default().display().to_string();
    }
    tell(arguments, sources)?;
    Ok(exit_code(status))
}

fn tell(arguments: &Arguments, sources: Vec<Source<Box<dyn Read>>>) -> Outcome<()> {
    let report = vernic_explain::explain(sources);
    let mut report = report.map_err(|error| Failure::new(error.to_string()))?;
    let top = if arguments.json { arguments.top } else { arguments.top.or(Some(DEFAULT_TOP)) };
    report.keep(arguments.qp, top);
    if let (Some(qpn), true) = (arguments.qp, report.flows.is_empty()) {
        return Err(Failure::new(format!("no flow has the queue pair {qpn}"))
            .hint("without --qp all flows are shown, with the numbers of their queue pairs"));
    }
    if let Some(file) = &arguments.svg {
        fs::write(file, vernic_explain::svg(&report.flows))
            .doing(|| format!("write {}", file.display()))?;
    }
    match arguments.json {
        true => print_json(&report),
        false => print(&words(arguments, &report)),
    }
}

fn words(arguments: &Arguments, report: &Report) -> String {
    let mut text = vernic_explain::text(report);
    if arguments.diagram {
        for flow in &report.flows {
            text.push('\n');
            text += &vernic_explain::diagram(flow);
        }
    }
    if report.flows.len() < report.flow_count && arguments.qp.is_none() {
        text += &format!("\nall flows: --top {}\n", report.flow_count);
    }
    text
}

fn sources(files: &[PathBuf]) -> Outcome<Vec<Source<Box<dyn Read>>>> {
    let open = |path: &PathBuf| {
        let name = path.display().to_string();
        let reader: Box<dyn Read> = match name.as_str() {
            "-" => Box::new(io::stdin()),
            _ => Box::new(File::open(path).doing(|| format!("open {name}"))?),
        };
        Ok(Source { name, reader })
    };
    files.iter().map(open).collect()
}

/// Runs a program under `vernic run`, whose options may be among the words, until it ends.
fn run_program(folder: &Path, words: &[OsString]) -> Outcome<ExitStatus> {
    let this = std::env::current_exe().doing(|| "find this command's own file".into())?;
    Command::new(this)
        .args(["run", "--capture"])
        .arg(folder.join("%p-%d.pcapng"))
        .args(words)
        .status()
        .doing(|| "run the program".into())
}

/// The program's exit status; a shell's for one that a signal ended.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// A folder of a program's captures, which nobody else may read; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Outcome<Self> {
        let path = std::env::temp_dir().join(format!("vernic-explain-{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .doing(|| format!("make the folder {}", path.display()))?;
        Ok(Self(path))
    }

    /// The captures that were written, those of one process behind each other.
    fn captures(&self) -> Outcome<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.0).doing(|| format!("read {}", self.0.display()))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        if files.len() > MAX_FILES {
            return Err(Failure::new(format!(
                "the program wrote {} captures, at most {MAX_FILES} are explained",
                files.len()
            ))
            .hint("capture with `vernic run --capture`, and explain the files of interest"));
        }
        Ok(files)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parsed(words: &[&str]) -> Result<Arguments, String> {
        let only = Only::try_parse_from(["explain"].iter().chain(words));
        only.map(|only| only.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn files_or_a_program_are_explained_and_not_both() {
        assert_eq!(parsed(&["a.pcapng", "b.pcap"]).unwrap().files.len(), 2);
        let live = parsed(&["--live", "--diagram", "--", "--loss", "1%", "ib_write_bw"]).unwrap();
        assert_eq!(live.program, ["--loss", "1%", "ib_write_bw"]);
        for wrong in [&[][..], &["--live"], &["a", "--", "b"], &["--live", "a", "--", "b"]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn queue_pairs_are_numbers_of_24_bits() {
        assert_eq!(qpn("0x4dc000"), Ok(Qpn::new(0x4D_C000)));
        assert_eq!(qpn("17"), Ok(Qpn::new(17)));
        for wrong in ["", "0x", "x", "-1", "16777216", "0x1000000"] {
            assert!(qpn(wrong).is_err(), "{wrong}");
        }
    }
}
