//! An archive that a Linux kernel unpacks as its first root file system: cpio, format "newc".
//!
//! ```text
//!   "070701" | 13 fields of 8 hexadecimal digits | name, NUL | to 4 bytes | data | to 4 bytes
//! ```
//!
//! Written here, because it takes a page, and needs neither a folder to put together, nor root, nor
//! a further program. The kernel takes it uncompressed, which is the quickest for an emulated
//! processor.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Result;

const MAGIC: &str = "070701";
/// Types and permissions, as in `st_mode`.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
/// The name of the entry that ends an archive.
const END: &str = "TRAILER!!!";

/// An archive that grows.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    /// Whether it has a file of this absolute path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.names.contains(path.trim_start_matches('/'))
    }

    /// Adds a folder, and those above it.
    pub(super) fn folder(&mut self, path: &str) {
        let path = path.trim_start_matches('/');
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends.collect::<Vec<_>>() {
            if !path[..end].is_empty() && self.names.insert(path[..end].to_owned()) {
                self.entry(&path[..end], FOLDER, &[]);
            }
        }
    }

    /// Adds a file that may be executed; one of this name that is there already stays as it is.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        self.leaf(path, PROGRAM, content);
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.leaf(path, LINK, target.as_bytes());
    }

    /// Adds a file of this machine, links followed, under another or the same path.
    pub(super) fn copy(&mut self, from: &Path, path: &str) -> Result {
        let content = std::fs::read(from).map_err(|e| format!("{}: {e}", from.display()))?;
        self.file(path, &content);
        Ok(())
    }

    /// The archive, ended.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(END, 0, &[]);
        self.bytes
    }

    fn leaf(&mut self, path: &str, mode: u32, content: &[u8]) {
        let path = path.trim_start_matches('/');
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
        if self.names.insert(path.to_owned()) {
            self.entry(path, mode, content);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let number = self.names.len();
        let (links, time, device) = (1, 0, 0);
        let fields = [
            number,
            mode as usize,
            0,
            0,
            links,
            time,
            content.len(),
            device,
            device,
            device,
            device,
            name.len() + 1,
            0,
        ];
        self.bytes.extend(MAGIC.bytes());
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_brings_its_folders_and_is_there_once() {
        let mut archive = Archive::default();
        archive.file("/etc/a/name", b"12345");
        archive.file("/etc/a/name", b"6");
        archive.link("/etc/b", "a");
        assert!(archive.has("/etc/a/name") && archive.has("/etc") && !archive.has("/name"));
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches(MAGIC).count(), 5, "two folders, a file, a link, the end");
        assert_eq!(text.matches("etc/a/name\0").count(), 1);
        assert!(text.contains("12345") && !text.contains('6'.to_string().repeat(2).as_str()));
    }

    #[test]
    fn another_program_reads_it() {
        if !crate::shell::on_path("cpio") {
            println!("there is no cpio to read the archive");
            return;
        }
        let mut archive = Archive::default();
        archive.file("/bin/tool", b"content");
        let file = std::env::temp_dir().join(format!("vernic-cpio-{}", std::process::id()));
        std::fs::write(&file, archive.finish()).unwrap();
        let name = file.to_string_lossy().into_owned();
        let listed = crate::shell::run("cpio --list --quiet -F").arg(name).output();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(listed.as_deref(), Ok("bin\nbin/tool\n"));
    }
}
