//! What the guest has: modules, Debian's programs with their libraries, files of ours, the script
//! that it starts with.
//!
//! Put together anew for each boot, which takes a moment: it is never older than what it is made
//! of.

use std::fs;
use std::path::{Path, PathBuf};

use super::cpio::Archive;
use super::image::Image;
use super::links::Link;
use crate::Result;
use crate::shell::run;

/// Programs of this machine that the guest has under `/usr/bin`.
const PROGRAMS: &[&str] = &[
    "ip",
    "tc",
    "rdma",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "rping",
    "ucmatose",
    "udaddy",
    "mckey",
    "rdma_client",
    "rdma_server",
    "rdma_xclient",
    "rdma_xserver",
    "cmtime",
    "rstream",
    "riostream",
    "rcopy",
    "udpong",
];

/// Libraries that programs load by name while they run.
const LOADED: &[&str] = &["libgcc_s.so.1"];

/// Drivers of libibverbs that the guest needs: `libNAME-rdmavVERSION.so`.
const DRIVERS: &[&str] = &["rxe", "siw"];

/// A program or library of ours, and its path in the guest. What it is linked against comes with
/// it.
pub(crate) type Carried = (PathBuf, String);

/// The release build, by its files, and its folder in a guest that carries it.
const BUILD: [&str; 5] = [
    "vernic",
    "libvernic_abi.so",
    "libvernic_paths.so",
    "libvernic_providers.so",
    "libvernic_rspreload.so",
];
pub(crate) const BUILD_FOLDER: &str = "/vernic";

/// The release build that the command `vernic` lies in, to be carried.
pub(crate) fn release_build(vernic: &Path) -> Result<Vec<Carried>> {
    let release = vernic.parent().ok_or("the build has no folder")?;
    Ok(BUILD.map(|name| (release.join(name), format!("{BUILD_FOLDER}/{name}"))).to_vec())
}

/// The archive.
pub(super) fn make(image: &Image, links: &[Link], carried: &[Carried]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "dev", "tmp", "run", "root", "bin", "sbin", "usr/bin", "usr/sbin"]
    {
        archive.folder(folder);
    }
    archive.copy(&on_path("busybox")?, "/bin/busybox")?;
    archive.link("/bin/sh", "busybox");
    for name in PROGRAMS {
        let path = on_path(name)?;
        program(&mut archive, &path, &format!("/usr/bin/{name}"))?;
    }
    for (from, path) in carried {
        program(&mut archive, from, path)?;
    }
    for folder in library_folders()? {
        drivers(&mut archive, &folder)?;
        for name in LOADED {
            let path = folder.join(name);
            if path.exists() {
                archive.copy(&path, &path.to_string_lossy())?;
            }
        }
    }
    let mut order = String::new();
    for module in image.modules()? {
        let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.copy(&module, &format!("/modules/{name}"))?;
        order += &format!("{name}\n");
    }
    archive.file("/modules/order", order.as_bytes());
    archive.file("/etc/passwd", b"root::0:0:root:/root:/bin/sh\n");
    archive.file("/etc/group", b"root:x:0:\n");
    archive.file("/etc/hosts", b"127.0.0.1 localhost\n");
    archive.file("/etc/protocols", b"tcp 6 TCP\nudp 17 UDP\n");
    archive.file("/init", init(links).as_bytes());
    Ok(archive.finish())
}

/// Adds a program and the libraries that it is linked against.
fn program(archive: &mut Archive, from: &Path, path: &str) -> Result {
    archive.copy(from, path)?;
    let linked = run("ldd").arg(from.to_string_lossy()).output()?;
    for library in libraries(&linked) {
        if !archive.has(library) {
            archive.copy(Path::new(library), library)?;
        }
    }
    Ok(())
}

/// The absolute paths in what `ldd` prints.
fn libraries(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().filter(|word| word.starts_with('/'))
}

/// Adds drivers of libibverbs, and the files that name them.
fn drivers(archive: &mut Archive, libraries: &Path) -> Result {
    let folder = libraries.join("libibverbs");
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_wanted = |driver: &&&str| name.starts_with(&format!("lib{driver}-rdmav"));
        if let Some(driver) = DRIVERS.iter().find(is_wanted) {
            program(archive, &entry.path(), &entry.path().to_string_lossy())?;
            let line = format!("driver {driver}\n");
            archive.file(&format!("/etc/libibverbs.d/{driver}.driver"), line.as_bytes());
        }
    }
    Ok(())
}

/// `/usr/lib/x86_64-linux-gnu` and its like.
fn library_folders() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir("/usr/lib").map_err(|e| format!("/usr/lib: {e}"))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.join("libc.so.6").exists()).collect())
}

fn on_path(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = places.map(|folder| folder.join(program)).find(|file| file.is_file());
    found.ok_or_else(|| format!("the guest needs `{program}`, which is not on the PATH"))
}

/// The script that the guest starts with. Then it takes lines of shell from its serial port
/// `agent`. busybox's shell prefers its own `ip` and `tc` to programs on the PATH.
fn init(links: &[Link]) -> String {
    let mut text = String::from(
        "#!/bin/sh
export PATH=/usr/bin:/bin:/usr/sbin:/sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
while read -r module; do insmod /modules/$module || echo no $module; done </modules/order
ulimit -l unlimited
/usr/bin/ip link set lo up
",
    );
    for (number, link) in links.iter().enumerate() {
        // The link-local address is fixed, or it would come later and change the order of GIDs.
        // Without one the kernel cannot ask for a neighbour on behalf of a queue pair.
        let Link { driver, mtu, peer4, peer6, device, .. } = link;
        let driver = driver.name();
        text += &format!(
            "/usr/bin/ip link set eth{number} addrgenmode none mtu {mtu}
/usr/bin/ip addr add fe80::2/64 dev eth{number} nodad
/usr/bin/ip addr add {peer4}/24 dev eth{number}
/usr/bin/ip addr add {peer6}/64 dev eth{number} nodad
/usr/bin/ip link set eth{number} up
rdma link add {device} type {driver} netdev eth{number}
"
        );
    }
    // Without a reader at the other end the port is at its end, at once. It can be open once only.
    // By itself `eval` ends the shell at a line that makes no sense, and with it the guest.
    text += "cd /tmp
echo ready
port=$(echo /dev/vport*p1)
while :; do
    while read -r line; do command eval \"$line\"; done <>$port >&0 2>&1
    usleep 50000
done
";
    text
}

#[cfg(test)]
mod tests {
    use super::super::links::LINKS;
    use super::*;

    #[test]
    fn libraries_are_the_absolute_paths() {
        let text =
            "\tlinux-vdso.so.1 (0x7)\n\tlibc.so.6 => /lib/libc.so.6 (0x7)\n\t/lib64/ld.so (0x7)\n";
        assert_eq!(libraries(text).collect::<Vec<_>>(), ["/lib/libc.so.6", "/lib64/ld.so"]);
    }

    #[test]
    fn every_link_has_its_device_in_the_guest() {
        let text = init(&LINKS);
        for link in &LINKS {
            let line = format!("rdma link add {} type {}", link.device, link.driver.name());
            assert!(text.contains(&line), "{text}");
        }
    }
}
