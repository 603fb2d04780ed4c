//! libibumad: devices and ports, and management datagrams of a fabric.

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use common::Folder;
use vernic_attach::hello::Purpose;
use vernic_attach::{Connection, ControlClient};
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::Request;
use vernic_fabricd::{Options, Server};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

#[test]
fn devices_and_ports_are_shown_to_programs_for_management() {
    Folder::new("umad").check(&source("umad.c"));
}

#[test]
fn datagrams_travel_between_programs_on_a_roce_device() {
    Folder::new("umad_roce").check(&source("umad_roce.c"));
}

/// A switch with two hosts, in a folder of its own.
struct Fabric {
    sockets: PathBuf,
    socket: PathBuf,
    thread: JoinHandle<()>,
}

impl Fabric {
    fn start(folder: &Folder) -> Self {
        let sockets = folder.path().join("fabrics");
        let options = Options { folder: sockets.clone(), ..Options::new("lab") };
        let mut server = Server::new(Topology::single("lab", 2).unwrap(), options).unwrap();
        let socket = server.path().to_owned();
        let thread = thread::spawn(move || server.run(|_| {}).unwrap());
        Self { sockets, socket, thread }
    }
    fn settings(&self) -> [(&str, &str); 3] {
        [
            ("VERNIC_FABRIC_DIR", self.sockets.to_str().unwrap()),
            ("VERNIC_FABRIC", "lab"),
            ("VERNIC_HOST", "h1"),
        ]
    }
    fn stop(self) {
        let control = Connection::connect_path("lab", &self.socket, Purpose::Control).unwrap();
        let stop = serde_json::to_string(&Request::Stop).unwrap();
        ControlClient::over(control).ask(&stop).unwrap();
        self.thread.join().unwrap();
    }
}

#[test]
fn datagrams_travel_between_hosts_of_a_fabric() {
    let folder = Folder::new("umad_fabric");
    let fabric = Fabric::start(&folder);
    folder.check_with(&source("umad_fabric.c"), &fabric.settings());
    fabric.stop();
}

#[test]
fn a_program_is_told_that_its_fabric_has_ended() {
    let folder = Folder::new("umad_gone");
    let Some(program) = folder.compile(&source("umad_gone.c")) else { return };
    let fabric = Fabric::start(&folder);
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder.path()).envs(fabric.settings());
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "open");
    fabric.stop();
    let said: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(running.wait().unwrap().success(), "{said:?}");
}
