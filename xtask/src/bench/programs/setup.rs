//! What must be built and installed before anything can be measured.

use crate::shell::{on_path, run};
use crate::{Result, target, tools};

/// Programs under measurement, and the Debian packages that bring them.
const PACKAGES: &[(&str, &str)] = &[
    ("ib_write_bw", "perftest"),
    ("ibv_devices", "ibverbs-utils"),
    ("cmtime", "rdmacm-utils"),
    ("iperf3", "iperf3"),
    ("ucx_perftest", "ucx-utils"),
    ("qperf", "qperf"),
    ("fi_pingpong", "libfabric-bin"),
    ("sockperf", "sockperf"),
    ("ip", "iproute2"),
    ("taskset", "util-linux"),
    ("cc", "gcc"),
];
/// What the program of C is compiled against, and its package.
const HEADER: (&str, &str) = ("/usr/include/infiniband/verbs.h", "libibverbs-dev");

/// Messages that are posted together where small ones are.
const LIST: u32 = 16;

/// Our own programs, built, and how to run things.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(super) quick: bool,
    /// The `vernic` command, its libraries beside it.
    pub(super) vernic: String,
    /// `post_poll` through the Rust API.
    pub(super) post_poll: String,
    /// `post_poll` through libibverbs, or why there is none.
    pub(super) post_poll_c: Result<String>,
    /// Where servers and clients run.
    pub(super) server_core: Option<u32>,
    pub(super) client_core: Option<u32>,
    /// The same in words.
    pub(super) cores: &'static str,
}

impl Setup {
    /// Installs what is missing, as far as that is possible, and builds.
    pub(crate) fn prepare(quick: bool) -> Result<Self> {
        install();
        let packages =
            ["vernic-cli", "vernic-abi", "vernic-paths", "vernic-providers", "vernic-rspreload"];
        let packages: String = packages.iter().map(|name| format!(" -p {name}")).collect();
        run(&format!("cargo build --release{packages}")).limit_min(20).go()?;
        run("cargo build --release -p vernic --example post_poll").limit_min(20).go()?;
        let release = target().join("release");
        let pinned = on_path("taskset")
            && std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        let path = |name: &str| release.join(name).display().to_string();
        let c = path("post_poll-c");
        let source = "tools/post_poll/post_poll.c";
        Ok(Self {
            quick,
            vernic: path("vernic"),
            post_poll: path("examples/post_poll"),
            post_poll_c: run(&format!("cc -O2 -o {c} {source} -libverbs")).go().map(|()| c),
            server_core: pinned.then_some(1),
            client_core: pinned.then_some(0),
            cores: if pinned {
                "clients on core 0, servers on core 1"
            } else {
                "clients and servers on any core"
            },
        })
    }
}

impl Setup {
    /// How many messages stand for so many of a whole run: whole lists of perftest's, which has no
    /// others.
    pub(super) fn messages(&self, whole: u32) -> u32 {
        if self.quick && whole > 0 { (whole / (5 * LIST)).max(1) * LIST } else { whole }
    }

    /// A command without the folders of this machine.
    pub(super) fn without_folders(&self, command: &str) -> String {
        let ours = [&self.post_poll, &self.vernic].into_iter().chain(&self.post_poll_c);
        ours.fold(command.to_owned(), |command, path| {
            let name = path.rsplit('/').next().unwrap_or(path);
            command.replace(path.as_str(), name)
        })
    }
}

/// What cannot be installed is told by the entries that need it.
fn install() {
    let lacks = |(program, _): &&(&str, &str)| !on_path(program);
    let mut missing: Vec<&str> =
        PACKAGES.iter().filter(lacks).map(|(_, package)| *package).collect();
    if !std::path::Path::new(HEADER.0).exists() {
        missing.push(HEADER.1);
    }
    if missing.is_empty() {
        return;
    }
    if let Err(why) = tools::apt_get(&missing) {
        println!("not everything will be measured: {why}");
    }
}

/// The Debian package of a program that is not there.
pub(super) fn lacking(program: &str) -> Option<String> {
    if on_path(program) {
        return None;
    }
    let package = PACKAGES.iter().find(|(name, _)| *name == program).map(|(_, package)| package);
    Some(match package {
        Some(package) => format!("{program} is not installed (Debian: {package})"),
        None => format!("{program} is not installed"),
    })
}
