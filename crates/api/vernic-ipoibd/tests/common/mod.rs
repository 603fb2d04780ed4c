//! A fabric with its own subnet manager, in a thread of the test.

// Each test of the crate uses its own part of this.
#![allow(dead_code, unreachable_pub)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vernic_attach::ControlClient;
use vernic_fabric::manager::Routing;
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::{Answer, Request};
use vernic_fabricd::{FabricError, Server};

/// Far longer than anything here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Fabric {
    pub name: String,
    thread: Option<JoinHandle<Result<(), FabricError>>>,
}

impl Fabric {
    pub fn start(hosts: usize) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ipoib-{}-{count}", std::process::id());
        let manager = Some(vernic_fabricd::ManagerOptions::new(Routing::default()));
        let options = vernic_fabricd::Options { manager, ..vernic_fabricd::Options::new(&name) };
        let plan = Topology::single(&name, hosts).expect("a plan");
        let mut server = Server::new(plan, options).expect("the fabric starts");
        Self { name, thread: Some(thread::spawn(move || server.run(|_| {}))) }
    }
    pub fn ask(&self, request: &Request) -> Answer {
        let text = serde_json::to_string(request).unwrap();
        let answer = ControlClient::connect(&self.name).unwrap().ask(&text).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.ask(&Request::Stop);
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}
