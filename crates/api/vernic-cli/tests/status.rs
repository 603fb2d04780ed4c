//! What everyday programs are told of a device that processes have open: counters in `/sys`, and
//! `rdma` of iproute2.

mod installed;

use std::process::Command;
use std::time::Duration;

use installed::Installed;
use vernic::{Access, Device, InitAttr, Mr, PORT_COUNTERS, Qp, Rc, RcOptions, Reset, Rts, WrId};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Messages that a [`Pair`] has sent.
const MESSAGES: u64 = 10;
/// Bytes of each.
const BYTES: usize = 1000;

/// A device with two queue pairs connected to each other, one of which has sent something to the
/// other.
struct Pair {
    device: Device,
    qps: [Qp<Rc, Rts>; 2],
    _regions: [Mr; 2],
}

impl Pair {
    fn new() -> Self {
        let device = Device::open("lo").unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let make = || pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create().unwrap();
        let ends = [make(), make()];
        let [at_a, at_b] = [ends[0].endpoint(), ends[1].endpoint()];
        let up = |qp: Qp<Rc, Reset>, remote| {
            let qp = qp.init(InitAttr::default()).unwrap();
            qp.connect_with(remote, &RcOptions::default()).unwrap()
        };
        let [a, b] = ends;
        let (a, b) = (up(a, at_b), up(b, at_a));
        let regions = [(); 2].map(|()| pd.alloc_mr(BYTES, Access::NONE.local_write()).unwrap());
        for i in 0..MESSAGES {
            b.post_recv(WrId(i), &regions[1]).unwrap();
            a.post_send(WrId(i), &regions[0]).unwrap();
            cq.wait_one(LONG).unwrap();
            cq.wait_one(LONG).unwrap();
        }
        Self { device, qps: [a, b], _regions: regions }
    }

    fn value(&self, name: &str) -> u64 {
        let index = PORT_COUNTERS.iter().position(|counter| *counter == name).unwrap();
        self.device.counters().port_counters(self.device.info().transport)[index]
    }
}

/// Whether iproute2's program is there; it must be where all tools are required.
fn has_rdma() -> bool {
    let there = Command::new("rdma").arg("-V").output().is_ok();
    assert!(there || std::env::var_os("VERNIC_REQUIRE_TOOLS").is_none(), "no rdma (iproute2)");
    if !there {
        eprintln!("skipped: no rdma (iproute2)");
    }
    there
}

/// The name of the device on `lo`, which is another one where there is a network card.
fn name_of_lo() -> String {
    Device::open("lo").unwrap().info().name.clone()
}

#[test]
fn counters_of_the_port_are_the_sums_over_processes_when_they_are_read() {
    let installed = Installed::new();
    let name = &*name_of_lo();
    let folder = format!("/sys/class/infiniband/{name}/ports/1");
    let read = |path: &str| {
        let text = installed.shell(&["-d", name], &format!("cat {folder}/{path}"));
        text.strip_suffix('\n').unwrap().parse::<u64>().unwrap()
    };
    let pairs = [Pair::new(), Pair::new()];
    for counter in ["port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"] {
        let sum = || pairs.iter().map(|pair| pair.value(counter)).sum::<u64>();
        let before = sum();
        let shown = read(&format!("counters/{counter}"));
        // Other tests of this program have the device open at the same time, and count more.
        assert!(before <= shown, "{counter}: {shown}, and what was counted before is {before}");
        let (bytes, messages) = (2 * MESSAGES * BYTES as u64, 2 * MESSAGES);
        let least = if counter.ends_with("data") { bytes / 4 } else { 2 * messages };
        assert!(before >= least, "{counter}: {before}, and {bytes} bytes were sent");
    }
    let counted = pairs[0].device.counters().near_tx_packets;
    assert!(read("hw_counters/near_tx_packets") >= counted);
    let relative = installed.shell(
        &["-d", name],
        &format!(
            "cd {folder} && grep . counters/port_xmit_packets && cd counters && \
                  read -r x < port_xmit_packets && [ $x -gt 0 ] && echo counted"
        ),
    );
    assert!(relative.ends_with("\ncounted\n"), "{relative}");
}

#[test]
fn rdma_of_iproute2_sees_the_device_its_objects_and_its_counters() {
    if !has_rdma() {
        return;
    }
    let installed = Installed::new();
    let name = &*name_of_lo();
    let rdma = |line: &str| installed.shell(&["-d", name], &format!("rdma {line}"));
    let pair = Pair::new();
    let info = pair.device.info();
    let netdev = &info.port.netdev;
    let link = format!("link {name}/1 state ACTIVE physical_state LINK_UP netdev {netdev} \n");
    assert_eq!(rdma("link"), link);
    assert_eq!(rdma(&format!("link show {name}/1")), link);
    let json = rdma("link -j");
    assert!(json.contains(&format!(r#""ifname":"{name}","port":1,"state":"ACTIVE""#)), "{json}");
    let guid =
        installed.shell(&["-d", name], &format!("cat /sys/class/infiniband/{name}/node_guid"));
    let dev = rdma("dev");
    assert!(dev.contains(&format!("{name}: node_type ca fw ")), "{dev}");
    assert!(dev.contains(&format!("node_guid {}", guid.trim())), "{dev}");

    let summary = rdma("resource show");
    let of = |kind: &str| {
        let (_, rest) = summary.split_once(&format!(" {kind} ")).unwrap();
        rest.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert!(of("qp") >= 2 && of("cq") >= 1 && of("mr") >= 2 && of("ctx") >= 1, "{summary}");
    let qps = rdma("resource show qp");
    let [a, b] = [&pair.qps[0], &pair.qps[1]].map(|qp| qp.qpn().value());
    let pid = std::process::id();
    let row = qps.lines().find(|line| line.contains(&format!(" lqpn {a} "))).unwrap();
    for word in [format!("rqpn {b} "), "type RC state RTS".into(), format!("pid {pid} ")] {
        assert!(row.contains(&word), "{word} is not in {row}");
    }
    let statistic = rdma("statistic");
    assert!(
        statistic.starts_with(&format!("link {name}/1 ")) && statistic.contains("_packets "),
        "{statistic}"
    );
    for refused in ["resource show cm_id".to_owned(), format!("dev set {name} name other")] {
        let output = installed.vernic(&["run", "sh", "-c", &format!("rdma {refused}")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("Operation not supported"), "{refused}: {said}");
    }
}
