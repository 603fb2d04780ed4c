//! What every case needs: the guest, our programs, the GID indices of both ends.

use std::path::{Path, PathBuf};

use super::case::Place;
use super::image::Image;
use super::links::{Driver, LINKS, Link};
use super::peer::{FOLDER, Peer, Wanted};
use super::scenarios::PROBE;
use crate::shell::run;
use crate::{Result, conformance, root};

/// The source of our judge, relative to the root.
const PROBE_SOURCE: &str = "conformance/kernel/probe/probe.c";

/// The guest and what runs against it.
pub(super) struct Lab {
    pub(super) peer: Peer,
    /// The command `vernic`.
    pub(super) vernic: PathBuf,
    /// Our judge, for this machine; the guest has its own.
    pub(super) probe: PathBuf,
    /// GID indices by link and version, here and in the guest; those of iWARP are not asked for.
    gids: Vec<[[u64; 2]; 2]>,
    image: Image,
}

impl Lab {
    /// Builds, boots, and looks up.
    pub(super) fn new(image: Image) -> Result<Self> {
        let vernic = conformance::build()?;
        let probe = compile()?;
        let mut peer = Peer::boot(&image, &wanted(&probe))?;
        let mut gids = Vec::new();
        for link in &LINKS {
            let mut of_link = [[0; 2]; 2];
            if link.driver == Driver::Siw {
                gids.push(of_link);
                continue;
            }
            let info = info(&vernic, &peer.namespace, link)?;
            let addresses = [[link.host4, link.peer4], [link.host6, link.peer6]];
            for (indices, [host, guest]) in of_link.iter_mut().zip(addresses) {
                let here = gid_index(&info, host);
                let here = here.ok_or_else(|| format!("{}: no GID for {host}", link.netdev))?;
                let there = peer.gid_index(link, guest)?;
                let there = there.ok_or_else(|| format!("{}: no GID for {guest}", link.device))?;
                *indices = [here, there];
            }
            gids.push(of_link);
        }
        Ok(Self { peer, vernic, probe, gids, image })
    }

    /// Boots another guest in place of one that is stuck, and says what that one's kernel said
    /// last.
    pub(super) fn reboot(&mut self) -> Result {
        let console = self.peer.console();
        let lines: Vec<&str> = console.lines().collect();
        println!(
            "the guest is stuck; its console:\n{}",
            lines[lines.len().saturating_sub(30)..].join("\n")
        );
        self.peer = Peer::boot(&self.image, &wanted(&self.probe))?;
        Ok(())
    }

    /// The index of the GID of a place, here or in the guest.
    pub(super) fn gid(&self, place: Place, in_guest: bool) -> u64 {
        self.gids[number(place.link)][usize::from(place.is_ipv6)][usize::from(in_guest)]
    }

    /// The guest's name for its end of a link.
    pub(super) fn netdev_of_guest(&self, link: &Link) -> String {
        format!("eth{}", number(link))
    }
}

/// A guest with our judge.
fn wanted(probe: &Path) -> Wanted {
    let carried = vec![(probe.to_owned(), format!("/usr/bin/{PROBE}"))];
    Wanted { processors: 1, without: "", carried, kernel_line: "" }
}

/// The position of a link.
fn number(link: &Link) -> usize {
    LINKS.iter().position(|other| other.netdev == link.netdev).expect("a row of LINKS")
}

/// Compiles our judge.
fn compile() -> Result<PathBuf> {
    let program = root().join(FOLDER).join(PROBE);
    std::fs::create_dir_all(root().join(FOLDER)).map_err(|e| format!("{FOLDER}: {e}"))?;
    run("cc -O2 -Wall -Wextra -Werror -o")
        .args(&[&program.to_string_lossy(), PROBE_SOURCE, "-lrdmacm", "-libverbs"])
        .output()?;
    Ok(program)
}

/// What the device on a link's netdev is.
fn info(vernic: &Path, namespace: &str, link: &Link) -> Result<serde_json::Value> {
    let line =
        format!("ip netns exec {namespace} {} info {} --json", vernic.display(), link.netdev);
    let text = run(&line).env("VERNIC_CONFIG", "/dev/null").output()?;
    serde_json::from_str(&text).map_err(|e| format!("`{line}`: {e}"))
}

fn gid_index(info: &serde_json::Value, address: &str) -> Option<u64> {
    let rows = info[0]["gids"].as_array()?;
    rows.iter().find(|row| row["ip"] == address).and_then(|row| row["index"].as_u64())
}
