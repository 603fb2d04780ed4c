//! Devices of an InfiniBand fabric: adapters with several ports, paths by subnet administration.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vernic::{Access, Config, Device, InitAttr, PortNum, PortState, Rc, WrId};
use vernic_attach::ControlClient;
use vernic_fabric::manager::Routing;
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::{LinkChange, Request};
use vernic_fabricd::{FabricError, ManagerOptions, Options, Server};

/// Far longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TWO: PortNum = PortNum(2);

/// Two hosts with two ports each, and the ports of a number at a switch of their own. The subnet
/// manager is at the last host.
const PLAN: &str = r#"
Switch 4 "s1"
[1] "h1"[1]
[2] "h2"[1]
[4] "h3"[1]
Switch 4 "s2"
[1] "h1"[2]
[2] "h2"[2]
[3] "s1"[3]
Ca 2 "h1"
Ca 2 "h2"
Ca 1 "h3"
"#;

struct Fabric {
    name: String,
    thread: Option<JoinHandle<Result<(), FabricError>>>,
}

impl Fabric {
    fn start() -> Self {
        let name = format!("vernic-{}", std::process::id());
        let manager = Some(ManagerOptions::new(Routing::default()));
        let plan = Topology::parse(PLAN, &name).unwrap();
        let mut server = Server::new(plan, Options { manager, ..Options::new(&name) }).unwrap();
        Self { name, thread: Some(thread::spawn(move || server.run(|_| {}))) }
    }
    /// The adapter of a host, once both ports are active.
    fn device(&self, host: &str) -> Device {
        let mut config = Config::default();
        config.set("fabric", &self.name).unwrap();
        config.set("host", host).unwrap();
        let device = Device::open_with(config).unwrap();
        let until = Instant::now() + PATIENCE;
        for port in [PortNum(1), TWO] {
            while device.at_port(port).unwrap().port().state != PortState::Active {
                assert!(Instant::now() < until, "port {port} of {host} is not active");
                thread::sleep(Duration::from_millis(5));
            }
        }
        device
    }
}

impl Fabric {
    fn ask(&self, request: &Request) {
        let text = serde_json::to_string(request).unwrap();
        ControlClient::connect(&self.name).unwrap().ask(&text).unwrap();
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.ask(&Request::Stop);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn a_handle_at_another_port_has_its_gids_paths_and_queue_pairs() {
    let fabric = Fabric::start();
    let devices = ["h1", "h2"].map(|host| fabric.device(host));
    assert!(devices[0].at_port(PortNum(3)).is_err());
    let at_two = devices.each_ref().map(|device| device.at_port(TWO).unwrap());
    for (one, two) in devices.iter().zip(&at_two) {
        assert_eq!((one.port().port, two.port().port), (PortNum(1), TWO));
        let gids = [one, two].map(|device| device.gid_table());
        assert!(gids.iter().all(|rows| rows.len() == 1) && gids[0][0].gid != gids[1][0].gid);
        assert_ne!(one.port().link.unwrap().lid, two.port().link.unwrap().lid);
    }
    let gid = |device: &Device| device.gid(0).unwrap();
    let path = at_two[0].path_to(gid(&at_two[1])).unwrap();
    assert_eq!(path.subnet.unwrap().dlid, at_two[1].port().link.unwrap().lid);

    // Without the first ports, only the second ones are left.
    for host in ["h1", "h2"] {
        fabric.ask(&Request::Link { node: host.to_owned(), port: 1, change: LinkChange::Down });
    }
    let ends = at_two.each_ref().map(|device| {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        let mr = pd.alloc_mr(64, Access::NONE.local_write()).unwrap();
        let qp = pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create().unwrap();
        (qp, cq, mr)
    });
    let [(one, one_cq, from), (other, other_cq, to)] = ends;
    let (at_one, at_other) = (one.endpoint(), other.endpoint());
    assert_eq!((at_one.gid, at_other.gid), (gid(&at_two[0]), gid(&at_two[1])));
    let other = other.init(InitAttr::default()).unwrap();
    other.post_recv(WrId(7), &to).unwrap();
    let _other = other.connect(at_one).unwrap();
    let one = one.init(InitAttr::default()).unwrap().connect(at_other).unwrap();
    from.write_at(0, b"by the second port").unwrap();
    one.post_send(WrId(1), &from).unwrap();
    assert!(other_cq.wait_one(PATIENCE).unwrap().is_recv());
    assert_eq!(to.to_vec(..18).unwrap(), b"by the second port");
    assert!(!one_cq.wait_one(PATIENCE).unwrap().is_recv());
    assert_ne!(devices[0].port().state, PortState::Active);
}
