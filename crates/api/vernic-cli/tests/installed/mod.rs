//! The command, installed into a folder of a test's own, with empty files for the libraries that
//! everyday programs do not load.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// An installation, with a run-time folder of its own; removed at the end.
pub struct Installed(pub PathBuf);

impl Installed {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        let name = format!("installed-{}-{count}", std::process::id());
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        for folder in ["bin", "lib/vernic", "runtime"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::hard_link(env!("CARGO_BIN_EXE_vernic"), root.join("bin/vernic")).unwrap();
        for library in ["libvernic_abi.so", "libvernic_providers.so", "libvernic_rspreload.so"] {
            fs::write(root.join("lib/vernic").join(library), "").unwrap();
        }
        let built = std::env::current_exe().unwrap().with_file_name("libvernic_paths.so");
        fs::hard_link(built, root.join("lib/vernic/libvernic_paths.so")).unwrap();
        Self(root)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.0.join("bin/vernic"));
        command.args(arguments).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.0.join("runtime")).env("LC_ALL", "C");
        command
    }

    pub fn vernic(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What a shell under `vernic run` prints.
    pub fn shell(&self, options: &[&str], line: &str) -> String {
        let output = self.vernic(&[&["run"], options, &["--", "sh", "-c", line]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
