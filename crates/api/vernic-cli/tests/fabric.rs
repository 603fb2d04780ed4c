//! `vernic fabric`: a fabric is started, shown, changed, captured and ended by commands.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far longer than a process takes to start or end, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder for the sockets of a test's fabrics, and what runs in it.
struct Place {
    folder: PathBuf,
    running: Vec<Child>,
}

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("vernic-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder, running: Vec::new() }
    }
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
        command.env("VERNIC_FABRIC_DIR", self.folder.join("sockets")).arg("fabric").args(arguments);
        command.stdin(Stdio::null());
        command
    }
    fn fabric(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
    /// Runs a command that succeeds, and returns what it prints.
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.fabric(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
    /// Runs a command that fails, and returns the reason.
    fn refused(&self, arguments: &[&str], status: i32) -> String {
        let output = self.fabric(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        text(&output.stderr)
    }
    /// Starts a fabric, and waits until it answers.
    fn up(&mut self, name: &str, arguments: &[&str]) -> usize {
        let mut command = self.command(&[&["up", "--name", name], arguments].concat());
        self.running.push(command.stderr(Stdio::piped()).spawn().unwrap());
        let until = Instant::now() + PATIENCE;
        while !self.fabric(&["show", name]).status.success() {
            assert!(Instant::now() < until, "the fabric does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.running.len() - 1
    }
    /// Waits for the end of a fabric, and returns what it has said.
    fn ended(&mut self, at: usize) -> String {
        let child = &mut self.running[at];
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "the fabric does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(status.success(), "{said}");
        said
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_fabric_is_started_shown_changed_and_ended() {
    let mut place = Place::new("life");
    assert!(place.done(&["list"]).contains("no fabric runs"));
    let fabric = place.up("lab", &["--tree", "2,2,4"]);
    let list = place.done(&["list"]);
    assert!(list.lines().nth(1).unwrap().starts_with("  lab"), "{list}");
    let shown = place.done(&["show", "lab"]);
    assert!(shown.starts_with("fabric \"lab\", process "), "{shown}");
    assert!(shown.contains("4 switches, 4 hosts, 0 programs"), "{shown}");
    assert!(shown.lines().any(|line| line.trim_start().starts_with("leaf1:1  ")), "{shown}");

    place.done(&["link", "lab", "h1:1", "down"]);
    let shown = place.done(&["show", "lab", "h1"]);
    assert!(shown.contains("cable pulled out") && shown.contains("Down"), "{shown}");
    assert!(shown.contains("h1:1 VL15") && !shown.contains("h2:1"), "{shown}");
    place.done(&["link", "lab", "h1:1", "up"]);
    place.done(&["link", "lab", "leaf1:1", "ber", "1e-6"]);
    place.done(&["link", "lab", "leaf1:2", "rate", "10g"]);
    let shown = place.done(&["show", "lab", "leaf1"]);
    assert!(shown.contains("bit errors 1e-6") && shown.contains(" 10.0 "), "{shown}");
    place.done(&["link", "lab", "leaf1:2", "rate", "max"]);

    let json = place.done(&["show", "lab", "--json"]);
    let state: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(state["nodes"].as_array().unwrap().len(), 8);
    assert_eq!(state["cables"][0]["ends"].as_array().unwrap().len(), 2);
    let picture = place.folder.join("lab.svg");
    place.done(&["show", "lab", "--svg", picture.to_str().unwrap()]);
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));

    for (arguments, status, words) in [
        (&["link", "lab", "h1:2", "down"][..], 1, "its ports are 1 to 1"),
        (&["link", "lab", "h9:1", "down"], 1, "no node \"h9\""),
        (&["link", "lab", "h1", "down"], 2, "such as h1:1"),
        (&["link", "lab", "h1:1", "cut"], 2, "down, up"),
        (&["link", "lab", "h1:1", "ber", "7"], 2, "1e-6"),
        (&["link", "lab", "h1:1", "rate", "fast"], 1, "fast"),
        (&["show", "lab", "h9"], 2, "no node \"h9\""),
        (&["show", "other"], 1, "fabrics that run: lab"),
        (&["show", "../lab"], 1, "letters, digits"),
        (&["up", "--single", "2"], 1, "runs already"),
        (&["up"], 2, "--tree"),
        (&["up", "--tree", "2,2"], 2, "3 numbers"),
        (&["up", "--single", "2", "--lanes", "3"], 2, "1, 2, 4, 8 or 15"),
        (&["up", "--single", "999", "--name", "x"], 2, "254"),
        (&["up", "/nowhere/x.topo", "--name", "x"], 2, "/nowhere/x.topo"),
    ] {
        let said = place.refused(arguments, status);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    place.done(&["down", "lab"]);
    let said = place.ended(fabric);
    assert!(said.starts_with("fabric \"lab\": 4 switches, 4 hosts, 8 cables at "), "{said}");
    assert!(place.done(&["list"]).contains("no fabric runs"));
}

#[test]
fn a_fabric_has_the_plan_of_a_file_and_ends_in_order_on_a_signal() {
    let mut place = Place::new("file");
    let file = place.folder.join("plan.topo");
    std::fs::write(&file, "Switch 4 \"sw\"\n[2] \"one\"[1] w=2 s=4\n\nHca 1 \"one\"\n").unwrap();
    let fabric = place.up("plan", &[file.to_str().unwrap()]);
    assert!(place.done(&["show", "plan"]).contains("one:1"));
    let sockets = place.folder.join("sockets");
    assert!(sockets.join("plan.fabric").exists());
    let process = place.running[fabric].id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &process]).status().unwrap().success());
    place.ended(fabric);
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0);

    std::fs::write(&file, "Switch 4 \"sw\"\n[2] \"one\"[1]\n").unwrap();
    let said = place.refused(&["up", file.to_str().unwrap()], 2);
    assert!(said.contains("plan.topo: line 2"), "{said}");
}

#[test]
fn a_killed_fabric_leaves_nothing_in_the_way_of_the_next_one() {
    let mut place = Place::new("kill");
    let fabric = place.up("lab", &["--single", "2"]);
    place.running[fabric].kill().unwrap();
    place.running[fabric].wait().unwrap();
    let said = place.refused(&["show", "lab"], 1);
    assert!(said.contains("does not run"), "{said}");
    place.up("lab", &["--single", "3"]);
    assert!(place.done(&["show", "lab"]).contains("3 hosts"));
}

#[test]
fn captures_begin_and_end_on_request() {
    let mut place = Place::new("capture");
    let file = place.folder.join("all.erf");
    let fabric = place.up("lab", &["--single", "2", "--capture", file.to_str().unwrap()]);
    // Nothing asks the nodes anything yet, so the first capture is empty; another one replaces it.
    let second = place.folder.join("more.erf");
    place.done(&["capture", "lab", second.to_str().unwrap()]);
    place.done(&["capture", "lab", "--off"]);
    let said = place.refused(&["capture", "lab", "/nowhere/x.erf"], 1);
    assert!(said.contains("/nowhere/x.erf"), "{said}");
    place.done(&["down", "lab"]);
    place.ended(fabric);
    assert!(file.exists() && second.exists());
}

#[test]
fn two_fabrics_are_joined_by_a_cable() {
    let mut place = Place::new("joined");
    place.up("one", &["--line", "1,2"]);
    place.up("two", &["--line", "1,2"]);
    // A port that nobody has for now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let address = format!("127.0.0.1:{port}");
    let said = place.refused(&["join", "two", "sw1:1", &address], 1);
    assert!(said.contains("refused") && said.contains("listen"), "{said}");
    place.done(&["listen", "one", "sw1:1", &port]);
    place.done(&["join", "two", "sw1:1", &address]);
    assert!(place.done(&["show", "one"]).contains("carries"));
    let said = place.refused(&["join", "two", "sw1:3", &address], 1);
    assert!(said.contains("has a cable"), "{said}");
    let said = place.refused(&["listen", "two", "sw1:1", "somewhere"], 2);
    assert!(said.contains("7777"), "{said}");
}
