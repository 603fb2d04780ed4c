//! Plans of fabrics, judged by programs of others: `ibsim` loads what we write, and we read what
//! `ibnetdiscover` finds there.
//!
//! The programs are in Debian's packages `ibsim-utils` and `infiniband-diags`. Where they are not
//! installed, the test says so and ends.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vernic_fabric::attributes::{LinkSpeed, LinkWidth, NodeKind};
use vernic_fabric::topology::{Node, Rate, Topology};
use vernic_wire::Lid;

/// How long `ibsim` may take to load a plan, and `ibnetdiscover` to walk it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The programs, where they are installed.
struct Tools {
    ibsim: PathBuf,
    ibnetdiscover: PathBuf,
    /// Library that takes the place of the kernel for `ibnetdiscover`.
    preload: PathBuf,
}

impl Tools {
    /// Finds the programs, or says what is missing.
    fn find() -> Result<Self, String> {
        let program = |name: &str, package: &str| {
            let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
            let path = folders.iter().map(|folder| Path::new(folder).join(name));
            path.into_iter()
                .find(|path| path.exists())
                .ok_or_else(|| format!("{name} is not installed: apt-get install {package}"))
        };
        let libraries = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let preload = libraries
            .map(|entry| entry.path().join("umad2sim/libumad2sim.so"))
            .find(|path| path.exists())
            .ok_or("libumad2sim.so is not installed: apt-get install ibsim-utils")?;
        let ibsim = program("ibsim", "ibsim-utils")?;
        Ok(Self { ibsim, ibnetdiscover: program("ibnetdiscover", "infiniband-diags")?, preload })
    }

    /// Has `ibsim` load a text, and returns what `ibnetdiscover` prints of it and what `ibsim`
    /// complains about.
    fn discover(&self, name: &str, text: &str) -> (String, String) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ibsim-{name}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("net"), text).unwrap();
        let socket = format!("vernic-{}-{name}", std::process::id());
        let output = |name: &str| fs::File::create(folder.join(name)).unwrap();
        let mut ibsim = Running(
            Command::new(&self.ibsim)
                .args(["-s", "net"])
                .current_dir(&folder)
                .env("IBSIM_SOCKNAME", &socket)
                .stdin(Stdio::piped())
                .stdout(output("ibsim.out"))
                .stderr(output("ibsim.err"))
                .spawn()
                .unwrap(),
        );
        let complaints = || fs::read_to_string(folder.join("ibsim.err")).unwrap();
        let begin = Instant::now();
        loop {
            let found = Command::new(&self.ibnetdiscover)
                .current_dir(&folder)
                .env("IBSIM_SOCKNAME", &socket)
                .env("LD_PRELOAD", &self.preload)
                .output()
                .unwrap();
            if found.status.success() {
                let complaints = complaints();
                drop(ibsim);
                fs::remove_dir_all(&folder).unwrap();
                return (String::from_utf8(found.stdout).unwrap(), complaints);
            }
            let why = String::from_utf8_lossy(&found.stderr);
            if let Some(status) = ibsim.0.try_wait().unwrap() {
                panic!("ibsim refuses {name} ({status}):\n{}\n{text}", complaints());
            }
            assert!(begin.elapsed() < PATIENCE, "{name}: {why}\n{}", complaints());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a plan says, in no order: of nodes what `ibsim` keeps, of cables all but modelled rates.
#[derive(PartialEq, Eq, Debug)]
struct Graph {
    nodes: BTreeSet<String>,
    cables: BTreeSet<String>,
}

impl Graph {
    fn new(plan: &Topology) -> Self {
        let node = |node: &Node| {
            let lids: Vec<_> = node.end_ports.iter().map(|end| (end.lid, end.lmc)).collect();
            let (kind, name, guid, ports) = (node.kind, &node.name, node.guid, node.ports);
            format!("{kind:?} {name:?} {guid} {ports} {:#x} {lids:?}", node.device_id)
        };
        let cables = plan.cables().iter().map(|cable| {
            let mut ends = cable.ends.map(|end| {
                let node = &plan.nodes()[end.node];
                let port_guid = node.end_port(end.port).unwrap().guid;
                format!("{} [{}]({port_guid})", node.guid, end.port)
            });
            ends.sort();
            format!("{ends:?} {:?} {:?}", cable.width, cable.speed)
        });
        Self { nodes: plan.nodes().iter().map(node).collect(), cables: cables.collect() }
    }
}

/// A ring with LIDs, cables of every kind that `ibsim` knows, and names that could mislead it.
fn odd_ring() -> Topology {
    let plan = Topology::ring("odd", 6, 13).unwrap();
    let (mut nodes, mut cables) = (plan.nodes().to_vec(), plan.cables().to_vec());
    for (at, node) in (1..).zip(&mut nodes) {
        node.device_id = 0x5A44 + at;
        for end in &mut node.end_ports {
            (end.lid, end.lmc) = (Some(Lid(at * 8)), if at % 2 == 0 { 3 } else { 0 });
        }
    }
    for (node, name) in nodes.iter_mut().zip([
        "lid 7 lmc 2",
        "w=2 s=1",
        "a # [1]",
        "4xDDR rate 3g",
        " enhanced port 0 ",
        "<h&m> 'x'",
    ]) {
        node.name = name.to_owned();
    }
    let widths = [LinkWidth::X1, LinkWidth::X4, LinkWidth::X8, LinkWidth::X12];
    let speeds = [LinkSpeed::Sdr, LinkSpeed::Ddr, LinkSpeed::Qdr, LinkSpeed::Fdr, LinkSpeed::Edr];
    for (at, cable) in cables.iter_mut().enumerate() {
        (cable.width, cable.speed) = (widths[at % 4], speeds[at % 5]);
        cable.rate = Rate::new(at as u64 * 1_500_000_000);
    }
    Topology::build(nodes, cables).unwrap()
}

#[test]
fn ibsim_loads_what_we_write_and_we_read_what_ibnetdiscover_finds() {
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    for (name, plan) in [
        ("single", Topology::single("a", 3).unwrap()),
        ("line", Topology::line("a", 4, 6).unwrap()),
        ("ring", odd_ring()),
        ("tree", Topology::tree("a", 18, 36, 648).unwrap()),
    ] {
        let (printed, complaints) = tools.discover(name, &plan.to_string());
        assert_eq!(complaints, "", "ibsim complains about {name}");
        let found = Topology::parse(&printed, "none").unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(Graph::new(&found), Graph::new(&plan), "{name}");
        assert_eq!(Topology::parse(&found.to_string(), "none"), Ok(found), "{name}");
    }
}

#[test]
fn samples_are_read_alike_by_us_and_by_ibsim() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
    let mut samples: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    samples.sort();
    let tools = Tools::find();
    for (path, (name, switches, adapters, cables)) in samples.iter().zip([
        ("ibnetdiscover.net", 2, 4, 6),
        ("ibsim.net", 2, 3, 6),
        ("tree-2-4-16.net", 6, 16, 24),
    ]) {
        assert!(path.ends_with(name), "{} is not {name}", path.display());
        let text = fs::read_to_string(path).unwrap();
        let plan = Topology::parse(&text, "sample").unwrap();
        let kinds = [NodeKind::Switch, NodeKind::Adapter].map(|kind| plan.count(kind));
        assert_eq!((kinds, plan.cables().len()), ([switches, adapters], cables), "{name}");
        match &tools {
            Ok(tools) => {
                let found = Topology::parse(&tools.discover(name, &text).0, "none").unwrap();
                let shape = |plan: &Topology| -> BTreeSet<String> {
                    let end = |end: vernic_fabric::topology::End| {
                        format!("{:?}[{}]", plan.nodes()[end.node].name, end.port)
                    };
                    let words = |cable: &vernic_fabric::topology::Cable| {
                        let mut ends = cable.ends.map(end);
                        ends.sort();
                        format!("{ends:?} {:?} {:?}", cable.width, cable.speed)
                    };
                    plan.cables().iter().map(words).collect()
                };
                assert_eq!(shape(&found), shape(&plan), "{name}");
            }
            Err(why) => eprintln!("{name} is not loaded by ibsim: {why}"),
        }
    }
    assert_eq!(samples.len(), 3);
}
