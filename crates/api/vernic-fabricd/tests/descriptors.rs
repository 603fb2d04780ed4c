//! A fabric that has no descriptor left: it waits until there are some, and does not spin.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::eventually;
use vernic_attach::hello::Purpose;
use vernic_attach::{Connection, ControlClient};
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::{Answer, Request};
use vernic_fabricd::{Options, Server};

/// The variable that says to the child where its fabric is.
const FOLDER: &str = "VERNIC_TEST_FABRIC_FOLDER";

/// How long the child is watched.
const WATCHED: Duration = Duration::from_millis(500);

/// A child that runs a fabric, and may have 40 descriptors.
struct Few {
    child: Child,
    folder: PathBuf,
}

impl Few {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("vernic-few-{}", std::process::id()));
        let test = "a_fabric_without_descriptors_sleeps_until_there_are_some";
        let script = "ulimit -n 40; exec \"$0\" --exact \"$1\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(std::env::current_exe().unwrap()).arg(test);
        let child = shell.env(FOLDER, &folder).spawn().unwrap();
        Self { child, folder }
    }
    /// Returns the time that the child has had of a processor.
    fn busy(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn serve(folder: &Path) {
    let options = Options { folder: folder.to_owned(), ..Options::new("lab") };
    Server::new(Topology::single("lab", 1).unwrap(), options).unwrap().run(|_| {}).unwrap();
}

#[test]
fn a_fabric_without_descriptors_sleeps_until_there_are_some() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return serve(Path::new(&folder));
    }
    let mut few = Few::start();
    let socket = few.folder.join("lab.fabric");
    let connect = || Connection::connect_path("lab", &socket, Purpose::Control).ok();
    let first = eventually("the fabric listens", connect);
    let last = PathBuf::from(format!("/proc/{}/fd/39", few.child.id()));
    let others: Vec<_> = (0..60).map(|_| connect().unwrap()).collect();
    eventually("the fabric has no descriptor left", || last.symlink_metadata().ok());
    let (before, since) = (few.busy(), Instant::now());
    eventually("it was watched", || (since.elapsed() >= WATCHED).then_some(()));
    let busy = few.busy() - before;
    assert!(busy <= WATCHED / 5, "busy for {busy:?}");

    // Those that wait have their turn when others leave.
    drop((first, others));
    let client = ControlClient::over(connect().unwrap());
    let answer = client.ask(&serde_json::to_string(&Request::Stop).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<Answer>(&answer).unwrap(), Answer::Done);
    assert!(few.child.wait().unwrap().success());
}
