//! `vernic monitor` beside a running program: what it exports, what its page shows, and what it
//! does not do for strangers.

mod openmetrics;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use openmetrics::Families;
use serde_json::Value;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// The media type of OpenMetrics, as Prometheus asks for it.
const OPEN_METRICS: &str =
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";

/// A monitor that runs.
struct Monitor {
    child: Child,
    address: SocketAddr,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Monitor {
    fn start(more: &[&str]) -> Self {
        Self::listening("127.0.0.1:0", more)
    }

    fn listening(on: &str, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
        command.args(["monitor", "--listen", on]).args(more).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        let mut address: SocketAddr = address.and_then(|text| text.parse().ok()).expect(&line);
        if address.ip().is_unspecified() {
            address.set_ip([127, 0, 0, 1].into());
        }
        Self { child, address }
    }

    /// Sends bytes and reads all that comes back.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // It may end the connection before it has read all.
        let _ = stream.write_all(bytes);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    fn ask(&self, method: &str, path: &str, host: &str, accept: &str) -> Answer {
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {accept}\r\n\r\n");
        let said = self.say(request.as_bytes());
        let (head, body) = said.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{said:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let head = head.to_ascii_lowercase();
        Answer { status: status.expect("a status"), head, body: body.to_owned() }
    }

    fn fetch(&self, path: &str, accept: &str) -> Answer {
        let answer = self.ask("GET", path, &self.address.to_string(), accept);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    fn metrics(&self) -> Families {
        let answer = self.fetch("/metrics", OPEN_METRICS);
        assert!(answer.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
        openmetrics::open_metrics(&answer.body).unwrap_or_else(|why| panic!("{why}"))
    }

    fn sample(&self) -> Value {
        serde_json::from_str(&self.fetch("/api/sample", "*/*").body).unwrap()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A benchmark that runs, by packets, in a program of this name.
struct Program {
    child: Child,
    folder: PathBuf,
}

impl Program {
    fn start(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = format!("monitor-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        fs::hard_link(env!("CARGO_BIN_EXE_vernic"), &path).unwrap();
        let line = "bench --no-baselines --op send -c RC -s 64 --test lat -D 3600";
        let mut command = Command::new(path);
        command.args(line.split(' ')).env("VERNIC_SAME_HOST", "off");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: command.spawn().unwrap(), folder }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.pid()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until a monitor sees messages of it.
    fn is_seen_by(&self, monitor: &Monitor) {
        eventually(|| {
            let metrics = monitor.metrics();
            let sent = value(&metrics, "vernic_link_transmit_packets", &self.pid());
            sent.filter(|sent| *sent > 100.0)
        });
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "it did not happen in {LONG:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The sum of a family's samples of a process; `None` if there are none.
fn value(families: &Families, family: &str, pid: &str) -> Option<f64> {
    let of = families[family].samples.iter().filter(|sample| sample.labels["pid"] == pid);
    of.map(|sample| sample.value).reduce(|a, b| a + b)
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    fs::read_to_string(root.join(path)).unwrap()
}

/// The names of metrics in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("vernic_"))
}

#[test]
fn a_program_with_a_hostile_name_is_exported_by_the_rules_of_openmetrics() {
    let program = Program::start("\"\n<script>");
    let monitor = Monitor::start(&["--per-qp"]);
    program.is_seen_by(&monitor);
    let pid = program.pid();
    let first = monitor.metrics();
    let info = first["vernic_process"].samples.iter().find(|one| one.labels["pid"] == pid);
    assert_eq!(info.unwrap().labels["program"], "\"?<script>");
    for family in first.values() {
        assert!(family.help.as_ref().is_some_and(|help| help.ends_with('.')), "{family:?}");
    }
    assert_eq!(first["vernic_port_transmit_bytes"].unit.as_deref(), Some("bytes"));

    let of_qps = |family: &str| {
        let samples = first[family].samples.iter();
        samples.filter(|sample| sample.labels["pid"] == pid).collect::<Vec<_>>()
    };
    let infos = of_qps("vernic_queue_pair");
    let up = infos.iter().find(|one| one.labels["state"] == "RTS").expect("a queue pair in RTS");
    assert_eq!((&*up.labels["type"], &*up.labels["route"]), ("RC", "link"));
    assert!(up.labels["peer"] == "127.0.0.1" && up.labels["peer_qpn"].starts_with("0x"), "{up:?}");
    let qpn = &up.labels["qpn"];
    for family in ["vernic_queue_pair_completed_requests", "vernic_queue_pair_acks_received"] {
        let total = of_qps(family).into_iter().find(|one| one.labels["qpn"] == *qpn);
        assert!(total.unwrap().value > 0.0, "{family}");
    }

    std::thread::sleep(Duration::from_millis(120));
    let second = monitor.metrics();
    for (name, family) in first.iter().filter(|(_, family)| family.kind == "counter") {
        for old in &family.samples {
            let same = second[name].samples.iter().find(|new| new.labels == old.labels);
            assert!(same.is_none_or(|new| new.value >= old.value), "{name} fell: {old:?} {same:?}");
        }
    }
    let sent = |families: &Families| value(families, "vernic_link_transmit_packets", &pid).unwrap();
    assert!(sent(&second) > sent(&first), "the program sends");

    let answer = monitor.fetch("/metrics", "text/html, */*");
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    let plain = openmetrics::prometheus(&answer.body).unwrap_or_else(|why| panic!("{why}"));
    let plain: Vec<_> = plain.keys().map(String::as_str).collect();
    let suffixed = second.iter().map(|(name, family)| match &*family.kind {
        "counter" => format!("{name}_total"),
        "info" => format!("{name}_info"),
        _ => name.clone(),
    });
    let mut suffixed: Vec<_> = suffixed.collect();
    suffixed.sort();
    assert_eq!(plain, suffixed);
}

#[test]
fn the_parser_of_prometheus_reads_the_same_samples() {
    let has_parser = Command::new("python3").args(["-c", "import prometheus_client"]).output();
    if !has_parser.is_ok_and(|output| output.status.success()) {
        let is_required = std::env::var_os("VERNIC_REQUIRE_TOOLS").is_some();
        assert!(!is_required, "no python3-prometheus-client");
        eprintln!("skipped: no python3-prometheus-client");
        return;
    }
    let program = Program::start("\\\"\n{}");
    let monitor = Monitor::start(&["--per-qp"]);
    program.is_seen_by(&monitor);
    for (accept, module) in [(OPEN_METRICS, "openmetrics.parser"), ("text/plain", "parser")] {
        let text = monitor.fetch("/metrics", accept).body;
        let count = format!(
            "import sys; from prometheus_client.{module} import text_string_to_metric_families as read; \
             print(sum(len(family.samples) for family in read(sys.stdin.read())))"
        );
        let mut python = Command::new("python3");
        python.args(["-c", &count]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = python.stderr(Stdio::piped()).spawn().unwrap();
        python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = python.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let read: usize = String::from_utf8_lossy(&output.stdout).trim().parse().expect(&said);
        assert_eq!(read, text.lines().filter(|line| !line.starts_with('#')).count());
    }
}

#[test]
fn what_the_dashboard_and_the_documentation_name_is_exported() {
    let program = Program::start("dashboard");
    let monitor = Monitor::start(&["--per-qp"]);
    program.is_seen_by(&monitor);
    let metrics = monitor.metrics();
    let exported: Vec<_> = metrics.values().flat_map(|family| &family.samples).collect();
    let dashboard = read("tools/grafana/vernic.json");
    let _: Value = serde_json::from_str(&dashboard).expect("JSON");
    let page = read("docs/monitor.md");
    assert!(names(&dashboard).count() > 10 && names(&page).count() > 50);
    for name in names(&dashboard).chain(names(&page)) {
        assert!(exported.iter().any(|sample| sample.name == name), "{name} is not exported");
    }
    let missing = exported.iter().find(|sample| !names(&page).any(|name| name == sample.name));
    assert!(missing.is_none(), "docs/monitor.md does not have {missing:?}");
}

#[test]
fn the_sample_is_that_of_stat_with_rates_since_the_look_before() {
    let program = Program::start("rates");
    let monitor = Monitor::start(&[]);
    program.is_seen_by(&monitor);
    let pid = program.child.id();
    let told = eventually(|| {
        let told = monitor.sample();
        let mut processes = told["processes"].as_array().unwrap().iter();
        let ours = processes.find(|process| process["pid"] == pid)?.clone();
        ours["rates"]["sent_bytes"].as_f64().filter(|rate| *rate > 0.0).map(|_| ours)
    });
    let shown = Command::new(env!("CARGO_BIN_EXE_vernic"))
        .args(["stat", "--json", "-p", &program.pid()])
        .output()
        .unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let keys = |process: &Value| {
        process.as_object().unwrap().keys().map(String::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(keys(&told), keys(&shown["processes"][0]));
    assert!(told["command"].as_str().unwrap().contains("bench"));
}

#[test]
fn a_process_that_does_not_answer_holds_nothing_up_and_one_that_has_ended_is_gone() {
    let program = Program::start("stopped");
    let monitor = Monitor::start(&[]);
    program.is_seen_by(&monitor);
    let pid = program.pid();
    let told = || {
        let start = Instant::now();
        let metrics = monitor.metrics();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        metrics
    };
    assert!(value(&told(), "vernic_stalls", &pid).is_some());
    program.signal("STOP");
    eventually(|| (told()["vernic_silent_processes"].samples[0].value >= 1.0).then_some(()));
    drop(program);

    let program = Program::start("ended");
    program.is_seen_by(&monitor);
    let pid = program.pid();
    drop(program);
    eventually(|| value(&told(), "vernic_stalls", &pid).is_none().then_some(()));
}

#[test]
fn many_scrapes_are_served_from_few_samples() {
    let monitor = Monitor::start(&[]);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| drop(monitor.metrics())));
        }
    });
    let taken = monitor.metrics()["vernic_samples"].samples[0].value;
    let most = start.elapsed().as_secs_f64() / 0.1 + 2.0;
    assert!(taken <= most, "{taken} samples for 161 scrapes, and at most {most} fit the time");
}

#[test]
fn strangers_are_refused_and_nonsense_harms_nobody() {
    let monitor = Monitor::start(&[]);
    let own = monitor.address.to_string();
    let status = |method, path, host: &str| monitor.ask(method, path, host, "*/*").status;
    assert_eq!(status("GET", "/metrics", "attacker.example"), 421);
    assert_eq!(status("GET", "/api/sample", "attacker.example:9477"), 421);
    assert_eq!(status("POST", "/metrics", &own), 405);
    assert_eq!(status("GET", "/../etc/passwd", &own), 404);
    assert!(monitor.ask("DELETE", "/", &own, "*/*").head.contains("allow: get, head"));
    let head = monitor.ask("HEAD", "/metrics", "localhost", "*/*");
    assert_eq!((head.status, &*head.body), (200, ""));
    assert!(!head.head.contains("content-length: 0"), "{}", head.head);

    let long = format!("GET /{} HTTP/1.1\r\nHost: {own}\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\nHost: {own}\r\n{}\r\n", "a: b\r\n".repeat(5000));
    for nonsense in [
        &b"\r\n\r\n"[..],
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        &[0; 65_536],
        long.as_bytes(),
        many.as_bytes(),
    ] {
        let mut stream = TcpStream::connect(monitor.address).unwrap();
        let _ = stream.write_all(nonsense);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        assert!(
            !said.starts_with("HTTP/1.1 200")
                || nonsense.starts_with(b"GET / HTTP/1.1\r\nHost: localhost"),
            "{said}"
        );
    }
    assert_eq!(status("GET", "/metrics", &own), 200);
}

#[test]
fn clients_that_send_nothing_are_cut_off_so_that_others_are_served() {
    let monitor = Monitor::start(&[]);
    let idle: Vec<_> = (0..80).map(|_| TcpStream::connect(monitor.address).unwrap()).collect();
    let start = Instant::now();
    monitor.metrics();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    drop(idle);
}

#[test]
fn other_hosts_are_served_only_where_that_is_asked_for() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    let refused = command.args(["monitor", "--listen", "0.0.0.0:0"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--allow-remote") && said.contains("ssh -L"), "{said}");
    let monitor = Monitor::listening("0.0.0.0:0", &["--allow-remote"]);
    assert_eq!(monitor.ask("GET", "/metrics", "monitored.example", "*/*").status, 200);
    let taken = monitor.address.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    let refused = command.args(["monitor", "--listen", &taken]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen on {taken}")), "{said}");
}

/// The page's script.
fn script(page: &str) -> &str {
    let (_, rest) = page.split_once("<script>").unwrap();
    let (script, rest) = rest.split_once("</script>").unwrap();
    assert!(!rest.contains("<script"), "one script");
    script
}

#[test]
fn the_page_loads_nothing_from_elsewhere_and_runs_nothing_but_its_script() {
    let monitor = Monitor::start(&[]);
    let page = monitor.fetch("/", "text/html");
    for part in [
        "content-security-policy: default-src 'none'; ",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "content-type: text/html; charset=utf-8",
    ] {
        assert!(page.head.contains(part), "no {part} in {}", page.head);
    }
    let without_namespace = page.body.replace("http://www.w3.org/2000/svg", "");
    for word in ["http://", "https://", " src=", "@import", "url(", " onclick", "javascript:"] {
        assert!(!without_namespace.contains(word), "{word}");
    }
    for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!script(&page.body).contains(word), "{word} makes HTML of text");
    }
}

#[test]
fn the_script_of_the_page_finds_peers_and_rates_in_a_sample() {
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("skipped: no node");
        return;
    }
    let program = Program::start("topology");
    let monitor = Monitor::start(&[]);
    program.is_seen_by(&monitor);
    let sample = eventually(|| {
        let told = monitor.sample();
        let has_rates = told["interval_s"].is_number()
            && told["processes"].as_array().unwrap().iter().any(|process| {
                process["pid"] == program.child.id() && process["rates"].is_object()
            });
        has_rates.then_some(told)
    });
    let page = monitor.fetch("/", "text/html").body;
    let judge = r##"
const assert = require("node:assert");
const pid = Number(process.argv[2]);
const sample = JSON.parse(require("node:fs").readFileSync(process.argv[3]));
assert.deepEqual([count(0), count(1234), count(0.256), count(null)], ["0", "1.23 k", "0.26", "-"]);
assert.deepEqual([bytes(17), bytes(2e6), cut("abcdef", 4), program("/a/b c")], ["17 B", "2.00 MB", "abc…", "b"]);
const graph = topology(sample);
const own = graph.nodes.find(node => node.pid === pid);
assert.ok(own && own.label === "topology", JSON.stringify(graph));
const edge = graph.edges.find(edge => [edge.a, edge.b].includes(own.key));
assert.ok(edge && edge.way === "link" && edge.pairs >= 1, JSON.stringify(graph));
assert.ok(!edge.a.startsWith("peer ") && !edge.b.startsWith("peer ") && edge.a !== edge.b, "both ends are processes of this host");
const ordered = beside(["a", "b", "c", "d"].map(key => ({ key })), [{ a: "a", b: "c" }, { a: "b", b: "d" }]);
assert.equal(ordered.map(node => node.key).join(""), "acbd");
assert.ok(rates(sample).sent > 0 && rates(sample).completed >= 0, JSON.stringify(rates(sample)));
const before = new Map([["1 d", { resent: 1, naks: 0, timeouts: 0, stalls: 0, dropped: 4, link: 0 }]]);
const now = new Map([["1 d", { resent: 3, naks: 0, timeouts: 0, stalls: 0, dropped: 2, link: 0 }],
                     ["2 d", { resent: 9, naks: 9, timeouts: 9, stalls: 9, dropped: 9, link: 9 }]]);
assert.deepEqual(growth(before, now, 2), { resent: 1, naks: 0, timeouts: 0, stalls: 0, dropped: 0, link: 0 });
"##;
    let file = program.folder.join("page.js");
    fs::write(&file, format!("{}\n{judge}", script(&page))).unwrap();
    let told = program.folder.join("sample.json");
    fs::write(&told, sample.to_string()).unwrap();
    let mut node = Command::new("node");
    let judged = node.arg(&file).arg(program.pid()).arg(&told).output().unwrap();
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
}

#[test]
fn a_browser_shows_a_hostile_name_as_text() {
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())
    else {
        eprintln!("skipped: no browser; `apt-get install chromium` brings one");
        return;
    };
    let program = Program::start("<img onerror=document.title=1>");
    let monitor = Monitor::start(&[]);
    program.is_seen_by(&monitor);
    let profile = program.folder.join("profile");
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.args(["--virtual-time-budget=8000", "--dump-dom"]);
    let shown = command.arg(format!("http://{}/", monitor.address)).output().unwrap();
    let dom = String::from_utf8_lossy(&shown.stdout);
    assert!(dom.contains("<title>Vernic monitor</title>"), "{dom}");
    assert!(dom.contains("class=\"good\"") && dom.contains(" processes, "), "{dom}");
    // As an element it would have its attribute's value in quotes.
    assert!(dom.contains("&lt;img onerror=") && !dom.contains("<img onerror=\""), "{dom}");
    assert!(dom.contains(&format!("({})", program.pid())), "the topology names the process");
}
