//! The InfiniBand fabric that cases by LID run on: a fat tree of eight hosts, which OpenSM manages.
//! Two of the hosts have IP addresses. Ended when [`Fabric`] is dropped.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// The variable with the folder of fabrics' sockets.
pub(super) const FOLDER_VARIABLE: &str = "VERNIC_FABRIC_DIR";

/// The fabric's name and shape: two switches above, four below, eight hosts.
const NAME: &str = "conformance";
const SHAPE: &str = "2,4,8";

/// Options of `vernic run` for a server, and for a client three switches away.
pub(super) const SERVER: &[&str] = &["--fabric", NAME, "--host", "h1"];
pub(super) const CLIENT: &[&str] = &["--fabric", NAME, "--host", "h8"];

/// The host of OpenSM.
const MANAGED_BY: &[&str] = &["--fabric", NAME, "--host", "h4"];

/// IP addresses of the hosts of server and client.
pub(super) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.8"];

/// How long the fabric may take to be there, and OpenSM to set it up.
const LIMIT: Duration = Duration::from_secs(20);

/// What programs of a host take.
pub(super) enum Taken {
    /// Requests for a service, such as `tcp:7174`.
    Service(String),
    /// Packets of an IP group.
    Group(Ipv4Addr),
}

/// A fabric that runs.
pub(super) struct Fabric {
    vernic: PathBuf,
    /// The fabric process, OpenSM, and the owners of the IP addresses.
    processes: Vec<Child>,
    /// The folder of the socket. Its path is short, since paths of sockets are.
    folder: PathBuf,
}

impl Fabric {
    /// Starts it. The logs go to the folder `logs`.
    pub(super) fn start(vernic: &Path, logs: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("vernic-fabric-{}", std::process::id()));
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut fabric = Self { vernic: vernic.to_owned(), processes: Vec::new(), folder };
        let up = ["fabric", "up", "--tree", SHAPE, "--name", NAME];
        fabric.add(&up, &logs.join("fabric.txt"), |log| log.contains("run programs with"))?;
        let log = logs.join("opensm.log");
        let _ = fs::remove_file(&log);
        let path = log.to_string_lossy();
        let opensm =
            [&["run"], MANAGED_BY, &["--", "/usr/sbin/opensm", "-d", "2", "-f", &path]].concat();
        let swept = |_: &str| fs::read_to_string(&log).is_ok_and(|log| log.contains("SUBNET UP"));
        fabric.add(&opensm, &logs.join("opensm.txt"), swept)?;
        for (side, address) in [SERVER, CLIENT].iter().zip(ADDRESSES) {
            let host = side[side.len() - 1];
            let network = format!("{address}/24");
            let owner = ["fabric", "ipoib", NAME, host, "--address", &network, "--no-device"];
            let is_up = |log: &str| log.contains("up, MTU");
            fabric.add(&owner, &logs.join(format!("ipoib-{host}.txt")), is_up)?;
        }
        Ok(fabric)
    }

    /// Starts a process of the fabric, and waits until its log says that it is there.
    fn add(&mut self, words: &[&str], log: &Path, is_there: impl Fn(&str) -> bool) -> Result {
        let file = || File::create(log).map_err(|error| format!("{}: {error}", log.display()));
        let output = file()?;
        let errors = output.try_clone().map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(&self.vernic);
        command.args(words).env(FOLDER_VARIABLE, &self.folder).env("VERNIC_CONFIG", "/dev/null");
        let started = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let what = words.join(" ");
        let mut child = started.map_err(|error| format!("vernic {what}: {error}"))?;
        let begun = Instant::now();
        let outcome = loop {
            if is_there(&fs::read_to_string(log).unwrap_or_default()) {
                break Ok(());
            }
            if let Ok(Some(status)) = child.try_wait() {
                break Err(format!("vernic {what}: {status}, see {}", log.display()));
            }
            if begun.elapsed() > LIMIT {
                break Err(format!(
                    "vernic {what}: not there after {LIMIT:?}, see {}",
                    log.display()
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.processes.push(child);
        outcome
    }

    /// Returns how many programs of the server's host take requests for a service, or packets of a
    /// group: what `vernic fabric show` tells of them.
    pub(super) fn takers(&self, taken: &Taken) -> usize {
        let (key, wanted) = match taken {
            Taken::Service(service) => ("services", service.clone()),
            Taken::Group(group) => {
                // The low 28 bits, as the GID has them (RFC 4391).
                let bits = group.to_bits() & 0x0FFF_FFFF;
                ("groups", format!(":{:x}:{:x}", bits >> 16, bits & 0xFFFF))
            }
        };
        let mut command = Command::new(&self.vernic);
        command.args(["fabric", "show", NAME, SERVER[SERVER.len() - 1], "--json"]);
        command.env(FOLDER_VARIABLE, &self.folder).env("VERNIC_CONFIG", "/dev/null");
        let Ok(output) = command.output() else { return 0 };
        let state: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let nodes = state["nodes"].as_array().into_iter().flatten();
        let programs = nodes.flat_map(|node| node["programs"].as_array().into_iter().flatten());
        let takes = |program: &&serde_json::Value| {
            let all = program[key].as_array().into_iter().flatten();
            all.filter_map(|one| one.as_str()).any(|one| match key {
                "services" => one.split(' ').next() == Some(&wanted),
                _ => one.ends_with(&wanted),
            })
        };
        programs.filter(takes).count()
    }

    /// The folder of its socket.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
