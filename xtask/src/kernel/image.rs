//! The kernel that the guest boots: Debian's, with its modules, unpacked and not installed, and siw
//! beside them (`siw.rs`).
//!
//! Owns the folder `target/kernel/image`, which is made once: `vmlinuz`, the modules that the guest
//! needs and their order.

use std::fs;
use std::path::{Path, PathBuf};

use super::siw;
use crate::plan::Done;
use crate::shell::run;
use crate::tools::{self, Tool};
use crate::{Result, conformance, root};

/// Where it lies, relative to the root.
const FOLDER: &str = "target/kernel/image";

/// What makes the guest, beside the programs that [`tools::system_packages`] brings.
const TOOLS: &[Tool] = &[
    ("QEMU", &["qemu-system-x86_64", "--version"], "qemu-system-x86"),
    ("busybox", &["busybox", "true"], "busybox-static"),
    ("depmod", &["depmod", "--version"], "kmod"),
    ("ip", &["ip", "-V"], "iproute2"),
];

/// Debian's package that stands for its newest kernel.
const KERNEL: &str = "linux-image-amd64";

/// Modules that the guest loads, with all that they need; what is built in is passed over. In this
/// order, each after what it needs.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "sch_netem",
    // Filters of what the guest sends.
    "sch_ingress",
    "cls_flower",
    "act_gact",
    "crc32_pclmul",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    // What siw needs: its CRCs are the kernel's.
    "iw_cm",
    "crc32c_generic",
    "crc32c_intel",
    "libcrc32c",
    // `ss -K` resets TCP connections.
    "tcp_diag",
    // IPsec between two namespaces of the guest, with AES-GCM.
    "veth",
    "xfrm_user",
    "esp4",
    "esp6",
    "aesni_intel",
    "ghash_clmulni_intel",
    "gcm",
    "ctr",
    "seqiv",
    // Where its first counter comes from: the kernel's random generator.
    "hmac",
    "sha256_generic",
    "sha512_generic",
    "jitterentropy_rng",
    "drbg",
    "crypto_null",
    "ghash_generic",
];

/// What makes tap devices.
const TUN: &str = "/dev/net/tun";

/// The name of the file that ends its making.
const ORDER: &str = "modules.order";
/// The name of the file with [`MODULES`] as they were then.
const WANTED: &str = "modules.wanted";

/// A kernel and its modules.
pub(crate) struct Image {
    folder: PathBuf,
}

impl Image {
    /// The kernel's file.
    pub(super) fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The modules, in the order of loading.
    pub(super) fn modules(&self) -> Result<Vec<PathBuf>> {
        let file = self.folder.join(ORDER);
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(text.lines().map(|name| self.folder.join(name)).collect())
    }
}

/// A step of `cargo xtask test`: what the guest is made of is here, or the reason why it is not.
pub(crate) fn check() -> Result<Done> {
    Ok(match prepare() {
        Ok(_) => Done::Passed,
        Err(why) => Done::Skipped(why),
    })
}

/// Installs and unpacks what is missing. An error says why this machine can have no guest.
pub(crate) fn prepare() -> Result<Image> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest is an x86-64 machine, with this machine's programs".into());
    }
    if !conformance::is_root()? {
        return Err("the guest's network needs root".into());
    }
    let tun = fs::OpenOptions::new().read(true).write(true).open(TUN);
    tun.map_err(|e| format!("the guest's links are tap devices, and {TUN} cannot be opened: {e}"))?;
    tools::system_packages()?;
    tools::install(TOOLS)?;
    let folder = root().join(FOLDER);
    // An image of an earlier version may lack what this one has.
    let is_older = fs::read_to_string(folder.join(WANTED)).ok() != Some(MODULES.join("\n"));
    if is_older || [ORDER, siw::MODULE].iter().any(|file| !folder.join(file).exists()) {
        unpack(&folder)?;
    }
    Ok(Image { folder })
}

/// Downloads the kernel's package and keeps of it what is needed: 12 MB of 400. Builds siw beside
/// it.
fn unpack(folder: &Path) -> Result {
    run("apt-get update -q").limit_min(5).go()?;
    let depends = run(&format!("apt-cache depends {KERNEL}")).output().unwrap_or_default();
    let package = package_of(&depends)
        .ok_or_else(|| format!("apt knows no {KERNEL}: the guest's kernel is Debian's"))?;
    let why = |e: std::io::Error| format!("{}: {e}", folder.display());
    // What an earlier attempt left.
    let _ = fs::remove_dir_all(folder);
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&unpacked).map_err(why)?;
    let here = folder.to_string_lossy();
    run("sh -ec")
        .arg(format!(
            "cd '{here}' && apt-get download -q {package} && dpkg -x {package}_*.deb unpacked \
             && rm {package}_*.deb"
        ))
        .limit_min(10)
        .go()?;
    let version = package.trim_start_matches("linux-image-");
    let version = version.strip_suffix("-unsigned").unwrap_or(version);
    run("depmod -b").args(&[&unpacked.to_string_lossy(), version]).limit_min(2).go()?;
    let boot = unpacked.join("boot").join(format!("vmlinuz-{version}"));
    fs::copy(&boot, folder.join("vmlinuz")).map_err(why)?;
    let tree = unpacked.join("lib/modules").join(version);
    let dependencies = fs::read_to_string(tree.join("modules.dep")).map_err(why)?;
    let mut order = String::new();
    for path in in_order(&dependencies, MODULES) {
        let name = path.rsplit('/').next().unwrap_or(&path);
        fs::copy(tree.join(&path), folder.join(name)).map_err(why)?;
        order.push_str(name);
        order.push('\n');
    }
    fs::remove_dir_all(&unpacked).map_err(why)?;
    siw::build(folder, version)?;
    order.push_str(siw::MODULE);
    order.push('\n');
    fs::write(folder.join(WANTED), MODULES.join("\n")).map_err(why)?;
    // Last: with it the folder is whole.
    fs::write(folder.join(ORDER), order).map_err(why)
}

/// The package that a package without content depends on.
fn package_of(depends: &str) -> Option<&str> {
    depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "))
}

/// Paths of modules, each after those that it needs, out of the text of modules.dep.
fn in_order(dependencies: &str, wanted: &[&str]) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let row = dependencies.lines().find_map(|line| {
            let (path, needs) = line.split_once(':')?;
            let file = path.rsplit('/').next()?;
            let stem = file.split('.').next()?;
            (stem.replace('-', "_") == *name).then_some((path, needs))
        });
        let Some((path, needs)) = row else { continue };
        // All that it needs, also indirectly; what needs nothing stands last.
        for path in needs.split_whitespace().rev().chain([path]) {
            if !order.iter().any(|known| known == path) {
                order.push(path.to_owned());
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let text = "kernel/a/rdma-rxe.ko: kernel/b/core.ko kernel/c/base.ko\n\
                    kernel/b/core.ko: kernel/c/base.ko\nkernel/c/base.ko:\nkernel/d/other.ko:\n";
        let order = in_order(text, &["core", "rdma_rxe", "built_in"]);
        assert_eq!(order, ["kernel/c/base.ko", "kernel/b/core.ko", "kernel/a/rdma-rxe.ko"]);
    }

    #[test]
    fn the_newest_kernel_is_what_its_package_depends_on() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-1-amd64\n";
        assert_eq!(package_of(text), Some("linux-image-6.1.0-1-amd64"));
        assert_eq!(package_of("linux-image-amd64\n"), None);
    }
}
