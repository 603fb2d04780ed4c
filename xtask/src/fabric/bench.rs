//! A fabric that runs, and programs on its hosts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// How long anything is waited for: a hang is a failure.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The name of each fabric.
const NAME: &str = "xtask";

/// A fabric in a folder of its own. Both go when this is dropped.
pub(super) struct Bench {
    vernic: PathBuf,
    pub(super) folder: PathBuf,
    running: Vec<Child>,
}

impl Bench {
    /// Starts a fabric of a usual shape, and waits until it answers.
    pub(super) fn new(vernic: &Path, shape: &[&str]) -> Result<Self> {
        let mut bench = Self::empty(vernic)?;
        bench.up(shape)?;
        Ok(bench)
    }
    /// Starts a fabric of the plan in a text, and waits until it answers.
    pub(super) fn with_plan(vernic: &Path, plan: &str) -> Result<Self> {
        let mut bench = Self::empty(vernic)?;
        let path = bench.folder.join("plan");
        fs::write(&path, plan).map_err(|e| format!("{path:?}: {e}"))?;
        bench.up(&["plan"])?;
        Ok(bench)
    }
    fn empty(vernic: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("vernic-xtask-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|e| format!("{folder:?}: {e}"))?;
        Ok(Self { vernic: vernic.to_owned(), folder, running: Vec::new() })
    }
    fn up(&mut self, plan: &[&str]) -> Result {
        let up = [&["fabric", "up", "--name", NAME], plan].concat();
        self.start(&up, "fabric.log")?;
        self.wait("the fabric answers", |bench| {
            bench.vernic(&["fabric", "show", NAME]).is_ok_and(|output| output.status.success())
        })
    }
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.vernic);
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        // OpenSM keeps files of its last run, and its tools files of the subnet.
        for variable in ["OSM_CACHE_DIR", "OSM_TMP_DIR", "VERNIC_FABRIC_DIR"] {
            command.env(variable, &self.folder);
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command
    }
    fn vernic(&self, arguments: &[&str]) -> Result<Output> {
        self.command(arguments).output().map_err(|e| format!("cannot start vernic: {e}"))
    }
    /// Starts a program that runs on. Its output goes to a file of the folder.
    pub(super) fn start(&mut self, arguments: &[&str], log: &str) -> Result<usize> {
        let path = self.folder.join(log);
        let file = File::create(&path).map_err(|e| format!("{path:?}: {e}"))?;
        let copy = file.try_clone().map_err(|e| format!("{path:?}: {e}"))?;
        let child = self.command(arguments).stdout(file).stderr(copy).spawn();
        self.running.push(child.map_err(|e| format!("cannot start vernic: {e}"))?);
        Ok(self.running.len() - 1)
    }
    /// Starts a program on a host, which runs on.
    pub(super) fn start_on(&mut self, host: &str, program: &[&str], log: &str) -> Result<usize> {
        let run = [&["run", "--fabric", NAME, "--host", host, "--"], program].concat();
        self.start(&run, log)
    }
    /// Runs a program on a host, and returns what it prints, if it exits with 0.
    pub(super) fn run_on(&self, host: &str, program: &[&str]) -> Result<String> {
        let seconds = PATIENCE.as_secs().to_string();
        let limited = [&["timeout", "--kill-after=5", &seconds], program].concat();
        let run = [&["run", "--fabric", NAME, "--host", host, "--"], &limited[..]].concat();
        let output = self.vernic(&run)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().chain(text.lines()).last().unwrap_or("nothing").to_owned();
        Err(format!("`{}`: {}; it says: {last}", program.join(" "), output.status))
    }
    /// Runs a command of `vernic fabric` about this fabric.
    pub(super) fn fabric(&self, command: &str, arguments: &[&str]) -> Result<String> {
        let output = self.vernic(&[&["fabric", command, NAME], arguments].concat())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
    /// Returns the state of the fabric.
    pub(super) fn state(&self) -> Result<serde_json::Value> {
        let json = self.fabric("show", &["--json"])?;
        serde_json::from_str(&json).map_err(|e| format!("the state is no JSON: {e}"))
    }
    /// Returns how many ports with a cable there are, and how many of them are Active.
    pub(super) fn active(&self) -> Result<(usize, usize)> {
        let state = self.state()?;
        let empty = Vec::new();
        let list = |value: &serde_json::Value| value.as_array().unwrap_or(&empty).clone();
        let ports = list(&state["nodes"]).into_iter().flat_map(|node| list(&node["ports"]));
        let cabled: Vec<_> = ports.filter(|port| port["peer"].is_string()).collect();
        let active = cabled.iter().filter(|port| port["state"] == "Active").count();
        Ok((cabled.len(), active))
    }
    /// Returns what a file of the folder has in it.
    pub(super) fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.folder.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
    /// Looks until something is so.
    pub(super) fn wait(&self, what: &str, mut look: impl FnMut(&Self) -> bool) -> Result {
        let until = Instant::now() + PATIENCE;
        while !look(self) {
            if Instant::now() > until {
                return Err(format!("{what}: not in {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
    /// Kills a program at once.
    pub(super) fn kill(&mut self, at: usize) {
        let _ = self.running[at].kill();
        let _ = self.running[at].wait();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// OpenSM's arguments for one sweep, or without `once` for a manager that goes on. Each line of its
/// log is written at once.
pub(super) fn opensm<'a>(once: bool, more: &[&'a str]) -> Vec<&'a str> {
    let usual = ["opensm", "-f", "osm.log", "-D", "0x43", "-d", "2"];
    let once = if once { &["-o"][..] } else { &[] };
    [&usual, once, more].concat()
}

/// Returns the lines of OpenSM's log that tell of an error.
pub(super) fn errors(log: &str) -> Vec<String> {
    log.lines().filter(|line| line.contains("ERR ")).map(str::to_owned).collect()
}
