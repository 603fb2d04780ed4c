//! What everyday programs are told of a device that processes have open: counters in `/sys`, and
//! `rdma` of iproute2.

mod installed;

use std::process::Command;
use std::time::Duration;

use installed::Installed;
use vernic::{
    Access, Cq, Device, InitAttr, Mr, PORT_COUNTERS, Qp, Rc, RcOptions, Reset, Rts, WrId,
};

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
    cq: Cq,
    qps: [Qp<Rc, Rts>; 2],
    regions: [Mr; 2],
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
        let pair = Self { device, cq, qps: [a, b], regions };
        (0..MESSAGES).for_each(|number| pair.exchange(number));
        pair
    }

    /// Sends a message, and waits for both completions.
    fn exchange(&self, number: u64) {
        let Self { cq, qps: [a, b], regions: [from, to], .. } = self;
        b.post_recv(WrId(number), to).unwrap();
        a.post_send(WrId(number), from).unwrap();
        cq.wait_one(LONG).unwrap();
        cq.wait_one(LONG).unwrap();
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

#[test]
fn stat_tells_of_each_queue_pair_where_its_requests_go_and_how_many() {
    let pair = Pair::new();
    let name = &pair.device.info().name;
    let pid = std::process::id().to_string();
    let stat = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
        let output = command.args(["stat", "-d", name, "-p", &pid]).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let told: serde_json::Value = serde_json::from_str(&stat(&["--json"])).unwrap();
    let processes = told["processes"].as_array().unwrap();
    // Tests beside this one have the same device open, in this process.
    let rows = processes.iter().flat_map(|process| process["qps"].as_array().unwrap());
    let [a, b] = [0, 1].map(|at| pair.qps[at].qpn().value());
    let row = rows.clone().find(|row| row["number"] == a).expect("the first queue pair");
    assert_eq!((&row["type"], &row["state"]), (&"RC".into(), &"RTS".into()));
    assert_eq!((&row["peer"], &row["peer_number"]), (&"127.0.0.1".into(), &b.into()));
    assert_eq!((&row["completed"], &row["outstanding"]), (&MESSAGES.into(), &0.into()));
    assert_eq!(row["route"].as_str().unwrap(), pair.qps[0].route().to_string());
    assert!(rows.clone().any(|row| row["number"] == b));
    let text = stat(&[]);
    for part in
        [format!("{name}, process {pid}: "), format!("{a:#x}  RC    RTS    127.0.0.1 {b:#x}")]
    {
        assert!(text.contains(&part), "no {part:?} in\n{text}");
    }
}

#[test]
fn stat_again_and_again_has_rates_and_top_wants_a_terminal() {
    use std::io::BufRead as _;
    let pair = Pair::new();
    let number = pair.qps[0].qpn().value();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    command.args(["stat", "--json", "--watch", "0.1"]).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().take(2);
    let read = |line: Result<String, _>| serde_json::from_str(&line.unwrap()).unwrap();
    let looks: Vec<serde_json::Value> = lines.map(read).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(looks[0]["interval_s"].is_null(), "there is nothing before");
    assert!(looks[1]["interval_s"].as_f64().unwrap() >= 0.1);
    let pid = std::process::id();
    let rates = |look: &serde_json::Value| {
        let processes = look["processes"].as_array().unwrap();
        let ours = processes.iter().find(|process| process["pid"] == pid).unwrap();
        let qps = ours["qps"].as_array().unwrap();
        let qp = qps.iter().find(|qp| qp["number"] == number).unwrap();
        qp["rates"].clone()
    };
    assert!(rates(&looks[0]).is_null() && rates(&looks[1])["completed"].is_number());
    let top = Command::new(env!("CARGO_BIN_EXE_vernic")).arg("top").output().unwrap();
    let said = String::from_utf8_lossy(&top.stderr).into_owned();
    assert_eq!(top.status.code(), Some(2), "{said}");
    assert!(said.contains("needs a terminal") && said.contains("vernic stat --watch"), "{said}");
}

#[test]
fn explain_wr_tells_the_life_of_requests_while_they_are_posted() {
    let installed = Installed::new();
    let pair = Pair::new();
    let (own, qpn) = (std::process::id().to_string(), pair.qps[0].qpn().value());
    let done = std::sync::atomic::AtomicBool::new(false);
    let arguments = ["explain", "--wr", "--pid", &own, "--qp", &qpn.to_string()];
    let ask = |more: &[&str]| {
        let output = installed.vernic(&[&arguments[..], more].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (json, words) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 100;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                pair.exchange(number);
                number += 1;
            }
        });
        let told = [&["--seconds", "0.3", "--json"][..], &["--seconds", "0.3"]].map(ask);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        told.into()
    });
    let told: serde_json::Value = serde_json::from_str(&json).unwrap();
    let qp = &told["queue_pairs"][0];
    assert_eq!((&qp["number"], &qp["type"]), (&qpn.into(), &"RC".into()), "{json}");
    let requests = qp["requests"].as_array().unwrap();
    let stages = ["posted_ns", "begun_ns", "sent_ns", "completed_ns", "polled_ns"];
    let whole = |request: &serde_json::Value| {
        let times = stages.map(|stage| request[stage].as_u64());
        times.iter().all(Option::is_some) && times.is_sorted()
    };
    let found = requests.iter().filter(|request| whole(request)).count();
    assert!(found > 0 && requests.iter().all(|request| request["operation"] == "SEND"), "{json}");
    let bytes = format!("the longest: SEND of {:.2} kB, wr_id ", BYTES as f64 / 1000.0);
    for part in [&*bytes, "its turn", "the program took the completion", "what it waits for"] {
        assert!(words.contains(part), "no {part:?} in\n{words}");
    }
    // Nobody has it.
    let output = installed.vernic(&["explain", "--wr", "--qp", "1", "--seconds", "0.1"]);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && why.contains("there is no queue pair 0x000001"), "{why}");
}

#[test]
fn doctor_finds_this_machine_well_and_a_peer_by_its_answer() {
    let installed = Installed::new();
    let said = |arguments: &[&str]| {
        let output = installed.vernic(&[&["doctor"], arguments].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = said(&["--json"]);
    assert_eq!(code, Some(0), "{text}");
    let findings: serde_json::Value = serde_json::from_str(&text).unwrap();
    let lo = findings
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["what"].as_str().unwrap().contains("(lo) opens"));
    assert_eq!(lo.expect("the device of lo")["kind"], "ok");
    // The command itself answers for this host.
    let (code, text) = said(&["127.0.0.1"]);
    assert!(code == Some(0) && text.contains("127.0.0.1 (127.0.0.1) answers"), "{text}");
    let (code, text) = said(&["no-such-host.invalid"]);
    assert!(code == Some(1) && text.contains("FAULT  no-such-host.invalid: "), "{text}");
}
