//! `vernic run`, `vernic env`: unmodified verbs programs on Vernic's devices.
//!
//! A program finds the libraries through `LD_LIBRARY_PATH`, in a folder of symbolic links that bear
//! their usual names; the files of devices through the preloaded `libvernic_paths.so`; the settings
//! through the environment. `vernic run` prepares all that and becomes the program (`exec`), so
//! that process id, signals and exit status are the program's own.
//!
//! | file | owns |
//! |---|---|
//! | `options` | the options that both commands share, and the settings they stand for |
//! | `libraries` | where Vernic's libraries are |
//! | `names` | the names that programs know them by |
//! | `bundle` | those inside the command, if it was built with `BUNDLE_VERNIC` |
//! | `files` | the files of devices, as the kernel shows them |
//! | `folder` | the user's folder that holds links and files |
//! | `program` | what can be told of a program before it runs |

mod bundle;
mod files;
mod folder;
mod libraries;
mod names;
mod options;
mod program;

pub(crate) use options::Options;
use options::Settings;

use crate::failure::{Doing as _, Failure, Outcome, complain, output_failure};
use folder::Entry;
use libraries::Libraries;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Exit status of a shell for a program that is not there.
const NOT_FOUND: u8 = 127;
/// Exit status of a shell for a program that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Exit status for wrong usage, as for a mistyped option.
const USAGE: u8 = 2;

/// The arguments of `vernic run`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "vernic run [OPTIONS] [--] PROGRAM [ARGS]...")]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The program, and its arguments; options behind it are its own
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Environment variables and their values.
type Variables = Vec<(&'static str, OsString)>;

/// Where the libraries are that programs get.
pub(crate) fn find_libraries() -> Outcome<PathBuf> {
    Libraries::find().map(|libraries| libraries.folder().to_owned())
}

/// `vernic run`: returns only if the program cannot be started.
pub(crate) fn run(arguments: &Arguments, loaded: &vernic::Settings) -> ExitCode {
    let variables = match surroundings(&arguments.options, loaded) {
        Ok(variables) => variables,
        Err(status) => return status,
    };
    let Some((name, rest)) = arguments.command.split_first() else { return ExitCode::from(USAGE) };
    for warning in program::warnings(name) {
        complain(format_args!("vernic: warning: {warning}"));
    }
    let error = Command::new(name).args(rest).envs(variables).exec();
    complain(format_args!("vernic: cannot run {}: {error}", name.display()));
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    })
}

/// `vernic env`: prints what a shell shall evaluate.
pub(crate) fn env(options: &Options, loaded: &vernic::Settings) -> ExitCode {
    let variables = match surroundings(options, loaded) {
        Ok(variables) => variables,
        Err(status) => return status,
    };
    let mut text = b"# for this shell: eval \"$(vernic env)\"\n".to_vec();
    for (name, value) in variables {
        text.extend_from_slice(format!("export {name}=").as_bytes());
        text.extend(quoted(&value));
        text.push(b'\n');
    }
    match io::stdout().write_all(&text).map_err(output_failure) {
        Err(failure) => failure.report(),
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn failed(failure: &Failure, status: u8) -> ExitCode {
    complain(format_args!("vernic: {failure}"));
    ExitCode::from(status)
}

/// Everything that a program needs around it.
fn surroundings(options: &Options, loaded: &vernic::Settings) -> Result<Variables, ExitCode> {
    let settings = options.settings(loaded).map_err(|failure| failed(&failure, USAGE))?;
    prepared(options, settings).map_err(|failure| failed(&failure, 1))
}

fn prepared(options: &Options, settings: Settings) -> Outcome<Variables> {
    let libraries = Libraries::find()?;
    let mut entries = libraries.links();
    if !options.no_paths {
        entries.extend(files::of_devices(&settings.devices));
    }
    let folder = folder::prepare(&entries)?;
    let links = folder.join(libraries::FOLDER);
    let mut variables = vec![("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", &[&links]))];
    let mut shims = Vec::new();
    if let Some(mode) = &options.rsockets {
        shims.push(links.join(libraries::RSOCKETS));
        variables.push(("VERNIC_RSOCKETS", mode.into()));
    }
    if !options.no_paths {
        shims.push(links.join(libraries::PATHS));
        // Open files are known by the name that the kernel has for them, which has no links in it.
        let files = folder.join(files::FOLDER);
        let files = files.canonicalize().doing(|| format!("find {}", files.display()))?;
        variables.push(("VERNIC_PATHS", files.into()));
    }
    if !shims.is_empty() {
        variables.push(("LD_PRELOAD", before("LD_PRELOAD", &shims)));
    }
    // Why something does not work is told without being asked for; `off` and others hold.
    if std::env::var_os("VERNIC_LOG").is_none() {
        variables.push(("VERNIC_LOG", "brief".into()));
    }
    variables.extend(settings.variables);
    Ok(variables)
}

/// The present value of a list in the environment, with `first` before all else, and nowhere else.
fn before(variable: &str, first: &[impl AsRef<OsStr>]) -> OsString {
    let present = std::env::var_os(variable).unwrap_or_default();
    let mut list: Vec<&OsStr> = first.iter().map(AsRef::as_ref).collect();
    for other in present.as_bytes().split(|byte| *byte == b':').map(OsStr::from_bytes) {
        // An empty element would mean the working directory.
        if !other.is_empty() && !list[..first.len()].contains(&other) {
            list.push(other);
        }
    }
    list.join(OsStr::new(":"))
}

/// A word that a shell reads as these bytes.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut text = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend_from_slice(br"'\''"),
            byte => text.push(*byte),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let word = OsStr::new("a b'c\"$d\\");
        let script = [b"printf %s ".as_slice(), &quoted(word)].concat();
        let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output().unwrap();
        assert_eq!(output.stdout, word.as_bytes());
    }
}
