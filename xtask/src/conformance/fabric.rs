//! The InfiniBand fabric that cases by LID run on: a fat tree of eight hosts, which OpenSM has set
//! up. Ended when [`Fabric`] is dropped.

use std::fs::{self, File};
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

/// How long the fabric may take to be there, and OpenSM to set it up.
const LIMIT: Duration = Duration::from_secs(20);

/// A fabric that runs.
pub(super) struct Fabric {
    process: Child,
    /// The folder of the socket. Its path is short, since paths of sockets are.
    folder: PathBuf,
}

impl Fabric {
    /// Starts it, and has OpenSM sweep it once. Their logs go to the folder `logs`.
    pub(super) fn start(vernic: &Path, logs: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("vernic-fabric-{}", std::process::id()));
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        let log = |name: &str| {
            let file = logs.join(name);
            File::create(&file).map_err(|error| format!("{}: {error}", file.display()))
        };
        let words = ["fabric", "up", "--tree", SHAPE, "--name", NAME];
        let (output, errors) = (log("fabric.txt")?, log("fabric.errors.txt")?);
        let mut command = Command::new(vernic);
        command.args(words).env(FOLDER_VARIABLE, &folder).env("VERNIC_CONFIG", "/dev/null");
        let started = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let process = started.map_err(|error| format!("vernic fabric up: {error}"))?;
        let mut fabric = Self { process, folder };
        fabric.wait(logs)?;
        let log = logs.join("opensm.log");
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(vernic).arg("run").args(SERVER);
        command.args(["--", "/usr/sbin/opensm", "-o", "-f"]).arg(&log);
        command.env(FOLDER_VARIABLE, &fabric.folder).env("VERNIC_CONFIG", "/dev/null");
        let output = command.output().map_err(|error| format!("opensm: {error}"))?;
        let text = fs::read_to_string(&log).unwrap_or_default();
        match text.contains("SUBNET UP") {
            true => Ok(fabric),
            false => Err(format!(
                "OpenSM does not set up the fabric ({}), see {}:\n{}{}",
                output.status,
                log.display(),
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    /// The folder of its socket.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits until its socket is there.
    fn wait(&mut self, logs: &Path) -> Result {
        let (begun, socket) = (Instant::now(), self.folder.join(format!("{NAME}.fabric")));
        while !socket.exists() {
            if let Ok(Some(status)) = self.process.try_wait() {
                let file = logs.join("fabric.errors.txt");
                return Err(format!("vernic fabric up: {status}, see {}", file.display()));
            }
            if begun.elapsed() > LIMIT {
                return Err(format!("vernic fabric up: no {}", socket.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
