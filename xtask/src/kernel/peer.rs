//! The guest and its network, from boot to end.
//!
//! A network namespace that carries our process id, a tap device for each link in it, QEMU beside
//! them. All of it goes when [`Peer`] is dropped, and also when this process is ended in any other
//! way: a shell waits for the end of a pipe that only we hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::guest::Guest;
use super::image::Image;
use super::initramfs::{self, Carried};
use super::links::{Driver, LINKS, Link};
use crate::shell::run;
use crate::{Result, root};

/// Where files of a guest that runs are, relative to the root.
pub(super) const FOLDER: &str = "target/kernel";

/// Beginning of the namespaces' names, before the process id.
const PREFIX: &str = "vernic.kernel.";

/// The longest time to boot: an emulated processor on a busy machine.
const BOOT: Duration = Duration::from_secs(180);

/// Memory of the guest, MiB: messages of 64 MiB, in the buffers of both directions of perftest.
const MEMORY_MIB: u32 = 1024;

/// Packets that wait for the guest's card. UC and UD have no flow control: what we may have in
/// flight towards a slow guest (128 messages of 64 KiB) must fit, or it is lost.
const QUEUE_PACKETS: u32 = 16_384;

/// The kernel's command line.
const KERNEL_LINE: &str = "console=ttyS0 quiet panic=-1";

/// What a kernel with more than one processor is told: it would distrust their emulated time stamp
/// counters, and take the time from an emulated device: a system call and more for each look at a
/// clock, which costs nearly nothing on a real machine. And on a busy machine it sometimes finds at
/// boot that the emulated timer does not tick.
pub(crate) const KERNEL_LINE_OF_SEVERAL: &str = "tsc=reliable no_timer_check";

/// Options of its network cards. With event indices QEMU 7.2 without KVM loses interrupts: after
/// some ten thousand packets a card stands still until it is reset.
const CARD: &str = "event_idx=off,romfile=";

/// What guests differ in.
pub(crate) struct Wanted {
    /// How many processors it has.
    pub(crate) processors: u32,
    /// Features of a processor that these lack, as QEMU wants them: `,-NAME` for each.
    pub(crate) without: &'static str,
    /// What it has of ours.
    pub(crate) carried: Vec<Carried>,
    /// Parameters of its kernel, beside those of every guest.
    pub(crate) kernel_line: &'static str,
}

/// A guest that runs.
pub(crate) struct Peer {
    /// The network namespace with this machine's ends of the links.
    pub(super) namespace: String,
    pub(crate) guest: Guest,
    folder: PathBuf,
    qemu: Child,
    /// Ends all when its standard input ends.
    undertaker: Child,
}

impl Peer {
    /// Boots it, and waits until every device of it has its addresses.
    pub(crate) fn boot(image: &Image, wanted: &Wanted) -> Result<Self> {
        // One after the other: the one before may still be on its way out.
        static BOOTS: AtomicU32 = AtomicU32::new(0);
        let boots = BOOTS.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("{PREFIX}{}.{boots}", std::process::id());
        let folder = root().join(FOLDER).join(&namespace);
        let why = |e: std::io::Error| format!("{}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(why)?;
        let archive = initramfs::make(image, &LINKS, &wanted.carried)?;
        fs::write(folder.join("initramfs"), archive).map_err(why)?;
        ip(&format!("netns add {namespace}"))?;
        let undertaker = undertaker(&namespace, &folder)?;
        // From here on the namespace goes with this process, whatever happens.
        ip(&format!("-n {namespace} link set lo up"))?;
        LINKS.iter().try_for_each(|link| tap(&namespace, link))?;
        let start = Instant::now();
        let socket = folder.join("agent");
        let qemu = qemu(&namespace, image, wanted, &folder)?;
        // The socket is there a moment before QEMU listens.
        let guest = loop {
            match Guest::connect(&socket) {
                Err(_) if start.elapsed() < BOOT => std::thread::sleep(Duration::from_millis(20)),
                connected => break connected?,
            }
        };
        let mut peer = Self { namespace, guest, folder, qemu, undertaker };
        peer.await_boot(start).map_err(|why| format!("{why}\n{}", peer.console()))?;
        println!("the guest is up after {:.1} s", start.elapsed().as_secs_f64());
        Ok(peer)
    }

    /// The index of an address in the GID table of the guest's device, if it is there yet.
    pub(crate) fn gid_index(&mut self, link: &Link, address: &str) -> Result<Option<u64>> {
        let ports = format!("/sys/class/infiniband/{}/ports/1/gids", link.device);
        let text = self.guest.ask(&format!("grep . {ports}/[0-9]"))?;
        Ok(find_gid(&text, address))
    }

    /// Which kernel it is.
    pub(crate) fn description(&mut self) -> Result<String> {
        let version = self.guest.ask("uname -srv")?;
        Ok(format!("{}, in QEMU without KVM", version.trim()))
    }

    /// What the guest's kernel has to say.
    pub(super) fn console(&self) -> String {
        let text = fs::read(self.folder.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Leaves everything as it is, and says how to use it and how to end it.
    pub(super) fn keep(mut self) {
        let Self { namespace, folder, .. } = &self;
        println!(
            "the guest stays up:\n  \
             ip netns exec {namespace} COMMAND           a command beside it\n  \
             cargo xtask kernel --guest 'COMMAND'   a command in it\n  \
             touch {}/end   ends it",
            folder.display()
        );
        // It waits for this file instead of us.
        let keep = fs::write(folder.join("keep"), "").map_err(|e| e.to_string());
        drop(self.undertaker.stdin.take());
        let _ = keep.map_err(|why| println!("cannot keep it: {why}"));
        std::mem::forget(self);
    }

    fn await_boot(&mut self, start: Instant) -> Result {
        while !self.console().contains("ready") {
            self.must_run(start)?;
            std::thread::sleep(Duration::from_millis(50));
        }
        for link in &LINKS {
            while !self.is_up(link)? {
                self.must_run(start)?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Whether the guest's device is active, and has the GIDs of its addresses: iWARP's has its MAC
    /// alone.
    fn is_up(&mut self, link: &Link) -> Result<bool> {
        let state = format!("/sys/class/infiniband/{}/ports/1/state", link.device);
        let mut up = self.guest.run(&format!("grep -q ACTIVE {state}"))?.0 == 0;
        if link.driver == Driver::Rxe {
            for address in [link.peer4, link.peer6] {
                up = up && self.gid_index(link, address)?.is_some();
            }
        }
        Ok(up)
    }

    fn must_run(&mut self, start: Instant) -> Result {
        if let Some(status) = self.qemu.try_wait().map_err(|e| format!("wait: {e}"))? {
            let log = fs::read_to_string(self.folder.join("qemu")).unwrap_or_default();
            return Err(format!("QEMU ended: {status}\n{log}"));
        }
        if start.elapsed() > BOOT {
            return Err(format!("the guest was not ready after {} s", BOOT.as_secs()));
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input is what it waits for.
        drop(self.undertaker.stdin.take());
        let _ = self.undertaker.wait();
        let _ = self.qemu.wait();
    }
}

/// Connects to the guest that was kept.
pub(super) fn kept() -> Result<Guest> {
    let folder = root().join(FOLDER);
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut sockets = entries.map(|entry| entry.path().join("agent")).filter(|path| path.exists());
    let socket = sockets.next().ok_or("no guest runs; `--keep` leaves one up")?;
    Guest::connect(&socket)
}

/// A tap device with its addresses.
fn tap(namespace: &str, link: &Link) -> Result {
    let Link { netdev, mtu, host4, host6, .. } = link;
    ip(&format!("netns exec {namespace} ip tuntap add dev {netdev} mode tap"))?;
    // A link-local address would come later, and may change the order of GIDs.
    let queue = format!("txqueuelen {QUEUE_PACKETS}");
    ip(&format!("-n {namespace} link set {netdev} addrgenmode none mtu {mtu} {queue}"))?;
    ip(&format!("-n {namespace} addr add {host4}/24 dev {netdev}"))?;
    ip(&format!("-n {namespace} addr add {host6}/64 dev {netdev} nodad"))?;
    ip(&format!("-n {namespace} link set {netdev} up"))
}

fn ip(words: &str) -> Result {
    run(&format!("ip {words}")).output().map(drop)
}

/// Starts the emulator. Without KVM, which CI's machines do not have: what is measured is the same
/// everywhere.
fn qemu(namespace: &str, image: &Image, wanted: &Wanted, folder: &Path) -> Result<Child> {
    let log = fs::File::create(folder.join("qemu")).map_err(|e| format!("log of QEMU: {e}"))?;
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "qemu-system-x86_64"]);
    command.args("-accel tcg,thread=multi -display none -no-reboot".split(' '));
    command.arg("-cpu").arg(format!("max{}", wanted.without));
    command.args(["-smp", &wanted.processors.to_string(), "-m", &MEMORY_MIB.to_string()]);
    command.arg("-append").arg(format!("{KERNEL_LINE} {}", wanted.kernel_line));
    command.arg("-kernel").arg(image.kernel());
    command.arg("-initrd").arg(folder.join("initramfs"));
    command.arg("-serial").arg(format!("file:{}", folder.join("console").display()));
    command.args(["-device", "virtio-serial-pci", "-chardev"]);
    let socket = folder.join("agent");
    command.arg(format!("socket,id=agent,path={},server=on,wait=off", socket.display()));
    command.args(["-device", "virtserialport,chardev=agent,name=agent"]);
    for (number, Link { netdev, mtu, .. }) in LINKS.iter().enumerate() {
        let backend = format!("tap,id=n{number},ifname={netdev},script=no,downscript=no");
        let mac = format!("52:54:00:99:{number:02x}:02");
        let card = format!("virtio-net-pci,netdev=n{number},mac={mac},host_mtu={mtu},{CARD}");
        command.args(["-netdev", &backend, "-device", &card]);
    }
    command.stdin(Stdio::null()).stderr(log);
    command.stdout(Stdio::null());
    command.spawn().map_err(|e| format!("cannot start QEMU: {e}"))
}

/// A shell that waits until this process is gone or says so, and then ends what is in the
/// namespace.
fn undertaker(namespace: &str, folder: &Path) -> Result<Child> {
    let script = "trap '' INT TERM HUP
        cat >/dev/null
        while [ -e keep ] && [ ! -e end ]; do sleep 1; done
        ip netns pids \"$0\" | xargs -r kill -9
        ip netns del \"$0\"
        rm -rf \"$PWD\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, namespace]).current_dir(folder).stdin(Stdio::piped());
    // Whoever reads our output is not to wait for its end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|e| format!("cannot start a shell: {e}"))
}

/// The index of an address in lines of `.../gids/INDEX:GID`.
fn find_gid(text: &str, address: &str) -> Option<u64> {
    let address: std::net::IpAddr = address.parse().ok()?;
    let wanted = match address {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        std::net::IpAddr::V6(v6) => v6,
    };
    text.lines().find_map(|line| {
        let (path, gid) = line.split_once(':')?;
        let gid: std::net::Ipv6Addr = gid.trim().parse().ok()?;
        if gid == wanted { path.rsplit('/').next()?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_found_by_its_address_of_either_version() {
        let text = "/sys/gids/0:fe80:0000:0000:0000:5054:00ff:fe99:0002
/sys/gids/1:0000:0000:0000:0000:0000:ffff:c000:0202
/sys/gids/12:2001:0db8:0001:0000:0000:0000:0000:0002";
        assert_eq!(find_gid(text, "192.0.2.2"), Some(1));
        assert_eq!(find_gid(text, "2001:db8:1::2"), Some(12));
        assert_eq!(find_gid(text, "192.0.2.3"), None);
    }
}
