//! libibumad: devices and ports, and management datagrams of a fabric.

mod common;

use std::path::{Path, PathBuf};
use std::thread;

use common::Folder;
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
fn datagrams_travel_between_hosts_of_a_fabric() {
    let folder = Folder::new("umad_fabric");
    let sockets = folder.path().join("fabrics");
    let options = Options { folder: sockets.clone(), ..Options::new("lab") };
    let mut server = Server::new(Topology::single("lab", 2).unwrap(), options).unwrap();
    let path = server.path().to_owned();
    let fabric = thread::spawn(move || server.run(|_| {}));
    let settings = [
        ("VERNIC_FABRIC_DIR", sockets.to_str().unwrap()),
        ("VERNIC_FABRIC", "lab"),
        ("VERNIC_HOST", "h1"),
    ];
    folder.check_with(&source("umad_fabric.c"), &settings);
    let purpose = vernic_attach::hello::Purpose::Control;
    let control = vernic_attach::Connection::connect_path("lab", &path, purpose).unwrap();
    let stop = serde_json::to_string(&Request::Stop).unwrap();
    vernic_attach::ControlClient::over(control).ask(&stop).unwrap();
    fabric.join().unwrap().unwrap();
}
