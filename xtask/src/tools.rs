//! Programs that the checks need: found, or installed.
//!
//! System packages come from apt-get (as root, or through `sudo -n`), cargo's subcommands from the
//! registry, Miri from rustup. Where none of these works the error names the package to install.

use crate::Result;
use crate::plan::Done;
use crate::shell::{on_path, run};

/// A tool, the command that succeeds where it is there, and the Debian package that brings it.
pub(crate) type Tool = (&'static str, &'static [&'static str], &'static str);

const PACKAGES: &[Tool] = &[
    ("tshark", &["tshark", "--version"], "tshark"),
    (SCAPY, &["python3", "-c", "import scapy.contrib.roce"], "python3-scapy"),
    (PROMETHEUS, &["python3", "-c", "import prometheus_client"], "python3-prometheus-client"),
    ("a C++ compiler", &["c++", "--version"], "g++"),
    ("ip", &["ip", "-V"], "iproute2"),
    VALGRIND[0],
    // These exit with an error where there is no device.
    ("ib_write_bw", &["sh", "-c", "command -v ib_write_bw"], "perftest"),
    ("ibv_devinfo", &["sh", "-c", "command -v ibv_devinfo"], "ibverbs-utils"),
    ("rping", &["sh", "-c", "command -v rping"], "rdmacm-utils"),
    ("nc", &["sh", "-c", "nc -h 2>&1 | grep -q OpenBSD"], "netcat-openbsd"),
    ("iperf3", &["iperf3", "--version"], "iperf3"),
    ("redis-server", &["redis-server", "--version"], "redis-server"),
    ("jq", &["jq", "--version"], "jq"),
    ("fi_pingpong", &["sh", "-c", "command -v fi_pingpong"], "libfabric-bin"),
    ("ucx_perftest", &["sh", "-c", "command -v ucx_perftest"], "ucx-utils"),
    ("qperf", &["sh", "-c", "command -v qperf"], "qperf"),
    ("fio", &["sh", "-c", "command -v fio"], "fio"),
    ("tgtd", &["sh", "-c", "command -v tgtd"], "tgt"),
    ("iscsi-test-cu", &["sh", "-c", "command -v iscsi-test-cu"], "libiscsi-bin"),
    ("qemu-system-x86_64", &["sh", "-c", "command -v qemu-system-x86_64"], "qemu-system-x86"),
    ("dapltest", &["sh", "-c", "command -v dapltest"], "dapl2-utils"),
    ("ibstat", &["sh", "-c", "command -v ibstat || test -x /usr/sbin/ibstat"], "infiniband-diags"),
    ("opensm", &["sh", "-c", "command -v opensm || test -x /usr/sbin/opensm"], "opensm"),
    ("ibsim", &["sh", "-c", "command -v ibsim"], "ibsim-utils"),
    ("opensm", &["sh", "-c", "command -v opensm || test -x /usr/sbin/opensm"], "opensm"),
    ("socat", &["socat", "-V"], "socat"),
    ("mpirun", &["sh", "-c", "command -v mpirun"], "openmpi-bin"),
    ("mpicc", &["sh", "-c", "command -v mpicc"], "libopenmpi-dev"),
    ("rdma-core's tests", &["test", "-d", "/usr/share/doc/rdma-core/tests"], "python3-pyverbs"),
    ("infiniband/verbs.h", &["test", "-f", "/usr/include/infiniband/verbs.h"], "libibverbs-dev"),
    ("infiniband/umad.h", &["test", "-f", "/usr/include/infiniband/umad.h"], "libibumad-dev"),
    ("rdma/rdma_cma.h", &["test", "-f", "/usr/include/rdma/rdma_cma.h"], "librdmacm-dev"),
];

/// memcheck and callgrind.
pub(crate) const VALGRIND: &[Tool] = &[("valgrind", &["valgrind", "--version"], "valgrind")];

const SCAPY: &str = "scapy's RoCE layer";
const PROMETHEUS: &str = "the client library of Prometheus";

/// Tools that are Python packages, and their names for pip.
const WHEELS: &[(&str, &str)] = &[(SCAPY, "scapy"), (PROMETHEUS, "prometheus-client")];

/// tshark and scapy (independent judges of our packets), a C++ compiler (libFuzzer), `ip`, programs
/// and headers of verbs.
pub(crate) fn system_packages() -> Result {
    install(PACKAGES)
}

/// Installs those of the tools that are missing.
pub(crate) fn install(tools: &[Tool]) -> Result {
    let missing: Vec<_> = tools.iter().filter(|(_, probe, _)| !found(probe)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(_, _, package)| *package).collect();
    apt_get(&names)?;
    for (what, probe, _) in missing {
        // python3 on the PATH may be another one than Debian's, which sees Debian's packages.
        let wheel = WHEELS.iter().find(|(name, _)| name == what);
        if let (Some((_, wheel)), false) = (wheel, found(probe)) {
            run(&format!("python3 -m pip install --quiet {wheel}")).go()?;
        }
        if !found(probe) {
            return Err(format!("{what} is still missing after the installation"));
        }
    }
    Ok(())
}

fn found(probe: &[&str]) -> bool {
    run(probe[0]).args(&probe[1..]).succeeds()
}

/// Installs Debian packages, as root or through sudo; where that cannot be, the error names them.
pub(crate) fn apt_get(packages: &[&str]) -> Result {
    let wanted = packages.join(" ");
    if !on_path("apt-get") {
        return Err(format!("please install by hand (names as in Debian): {wanted}"));
    }
    let sudo = if run("id -u").output()?.trim() == "0" {
        ""
    } else if run("sudo -n true").succeeds() {
        "sudo -n "
    } else {
        return Err(format!("not root; please run: sudo apt-get install {wanted}"));
    };
    run(&format!("{sudo}apt-get update -q")).limit_min(5).go()?;
    run(&format!("{sudo}env DEBIAN_FRONTEND=noninteractive apt-get install -q -y"))
        .arg("--no-install-recommends")
        .args(packages)
        .limit_min(10)
        .go()
}

/// cargo-deny, built without optimisation: it runs for a second, and builds in a third of the time.
pub(crate) fn cargo_deny() -> Result {
    cargo_install("deny")
}

/// cargo-fuzz.
pub(crate) fn cargo_fuzz() -> Result {
    cargo_install("fuzz")
}

/// mdBook, without what searches and serves.
pub(crate) fn mdbook() -> Result {
    if on_path("mdbook") {
        return Ok(());
    }
    run("cargo install --locked --debug --no-default-features mdbook").limit_min(25).go()
}

fn cargo_install(subcommand: &str) -> Result {
    if run(&format!("cargo {subcommand} --version")).succeeds() {
        return Ok(());
    }
    run(&format!("cargo install --locked --debug cargo-{subcommand}")).limit_min(25).go()
}

/// A nightly toolchain with Miri; skipped, with the reason, where rustup cannot bring it.
pub(crate) fn miri() -> Result<Done> {
    if has_miri() {
        return Ok(Done::Passed);
    }
    if !on_path("rustup") {
        return Ok(Done::Skipped("there is no rustup to install a nightly toolchain with".into()));
    }
    let profile = "rustup toolchain install nightly --profile minimal --no-self-update";
    let components = "rustup component add --toolchain nightly miri rust-src";
    let installed = (if has_nightly() { Ok(()) } else { run(profile).limit_min(10).go() })
        .and_then(|()| run(components).limit_min(10).go());
    match installed {
        Ok(()) if has_miri() => Ok(Done::Passed),
        Ok(()) => Ok(Done::Skipped("this nightly toolchain has no working Miri".into())),
        Err(why) => Ok(Done::Skipped(format!("rustup cannot install Miri: {why}"))),
    }
}

/// Builds the standard library that Miri runs programs with. It fetches crates of that library's
/// own, and says nothing of this repository: what fails is tried three times.
pub(crate) fn miri_sysroot() -> Result {
    let build = || run("rustup run nightly cargo miri setup").limit_min(10).go();
    build().or_else(|_| build()).or_else(|_| build())
}

/// Whether `rustup run nightly` has a compiler.
pub(crate) fn has_nightly() -> bool {
    run("rustup run nightly rustc --version").succeeds()
}

/// Whether `rustup run nightly cargo miri` works.
pub(crate) fn has_miri() -> bool {
    run("rustup run nightly cargo miri --version").succeeds()
}
