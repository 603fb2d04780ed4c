//! Running a program: echoed, from the repository's root, with a time limit.

use std::io::{BufRead, BufReader, IsTerminal};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::{Result, root};

/// A program with arguments, run in the root of the repository with the caller's output.
pub(crate) struct Run {
    words: Vec<String>,
    env: Vec<(String, String)>,
    limit: Option<Duration>,
}

/// A program and its arguments, split at blanks; arguments with blanks go through [`Run::arg`].
pub(crate) fn run(line: &str) -> Run {
    Run {
        words: line.split_whitespace().map(str::to_owned).collect(),
        env: Vec::new(),
        limit: None,
    }
}

impl Run {
    /// Adds one argument.
    pub(crate) fn arg(mut self, word: impl Into<String>) -> Self {
        self.words.push(word.into());
        self
    }

    /// Adds several arguments.
    pub(crate) fn args(self, words: &[&str]) -> Self {
        words.iter().fold(self, |command, word| command.arg(*word))
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Ends the program and its children after this time, so that a hang is a failure and not an
    /// endless CI run. At a terminal there is no limit: a person has Ctrl-C, which coreutils'
    /// `timeout` would keep from the program's own children.
    pub(crate) fn limit_min(mut self, minutes: u64) -> Self {
        self.limit = Some(Duration::from_secs(minutes * 60));
        self
    }

    /// The command line, as one would type it.
    pub(crate) fn line(&self) -> String {
        let env = self.env.iter().map(|(k, v)| format!("{k}={v:?} "));
        env.collect::<String>() + &self.words.join(" ")
    }

    fn command(&self) -> Command {
        let mut words = self.words.clone();
        if let Some(limit) = self.limit
            && !std::io::stdin().is_terminal()
            && on_path("timeout")
        {
            let seconds = limit.as_secs().to_string();
            words.splice(0..0, ["timeout".into(), "--kill-after=10".into(), seconds]);
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(root());
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Prints the command line, runs it, and fails unless it exits with 0.
    pub(crate) fn go(&self) -> Result {
        println!("$ {}", self.line());
        self.judge(self.command().status().map_err(|e| self.cannot_start(&e))?)
    }

    /// The same, and `see` gets each line that it prints to its standard output.
    pub(crate) fn watch(&self, mut see: impl FnMut(&str)) -> Result {
        println!("$ {}", self.line());
        let mut child =
            self.command().stdout(Stdio::piped()).spawn().map_err(|e| self.cannot_start(&e))?;
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).split(b'\n').map_while(std::io::Result::ok) {
                let line = String::from_utf8_lossy(&line);
                println!("{line}");
                see(&line);
            }
        }
        self.judge(child.wait().map_err(|e| self.cannot_start(&e))?)
    }

    fn judge(&self, status: ExitStatus) -> Result {
        match status.code() {
            Some(0) => Ok(()),
            // What coreutils' timeout exits with when it had to end the program.
            Some(124 | 137) if self.limit.is_some() => {
                Err(format!("`{}` ran past its time limit", self.line()))
            }
            _ => Err(format!("`{}` failed: {status}", self.line())),
        }
    }

    /// Runs it and returns its standard output; standard error goes to ours.
    pub(crate) fn output(&self) -> Result<String> {
        let output =
            self.command().stderr(Stdio::inherit()).output().map_err(|e| self.cannot_start(&e))?;
        if !output.status.success() {
            return Err(format!("`{}` failed: {}", self.line(), output.status));
        }
        String::from_utf8(output.stdout)
            .map_err(|_| format!("`{}` printed something that is not UTF-8", self.line()))
    }

    /// Whether it starts and exits with 0; prints nothing.
    pub(crate) fn succeeds(&self) -> bool {
        let quiet = self.command().stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    }

    fn cannot_start(&self, error: &std::io::Error) -> String {
        format!("cannot start `{}`: {error}", self.words[0])
    }
}

/// Whether a program of this name lies on the PATH.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
