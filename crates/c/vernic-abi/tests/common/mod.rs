//! What the tests of the C libraries share: where the library is, and programs of C that use it.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The names that programs look for.
pub const NAMES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"];

/// The library of the C functions.
pub fn library() -> PathBuf {
    built("libvernic_abi.so")
}

/// A library that cargo leaves beside the folder of test programs, or in it.
pub fn built(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let places = [folder.to_path_buf(), folder.parent().unwrap().to_path_buf()];
    let found = places.iter().map(|p| p.join(name)).find(|p| p.exists());
    found.expect("cargo builds the library before its tests")
}

/// A folder with the library under its three names, gone with the value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Self {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("vernic-abi-{test}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        for name in NAMES {
            symlink(library(), path.join(name)).unwrap();
        }
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Compiles a program of C; `None`, with a message, where compiler or headers are missing and
    /// need not be there.
    pub fn compile(&self, source: &Path) -> Option<PathBuf> {
        let program = self.0.join(source.file_stem().unwrap());
        let output = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"])
            .arg(&program)
            .arg(source)
            .arg("-L")
            .arg(&self.0)
            .args([NAMES[0], NAMES[1]].map(|name| format!("-l:{name}")))
            .output();
        let why = match output {
            Ok(output) if output.status.success() => return Some(program),
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        let headers = ["infiniband/verbs.h", "infiniband/umad.h", "rdma/rdma_cma.h"];
        let missing = headers.iter().any(|h| why.contains(h)) || !why.contains("error");
        let required = std::env::var_os("VERNIC_REQUIRE_TOOLS").is_some();
        assert!(missing && !required, "{}: {why}", source.display());
        eprintln!("skipped: no C compiler or no headers (librdmacm-dev): {why}");
        None
    }

    /// Runs a program with the library under it.
    pub fn run(&self, program: &Path) -> Output {
        self.run_with(program, &[])
    }

    /// The same with settings.
    pub fn run_with(&self, program: &Path, settings: &[(&str, &str)]) -> Output {
        self.command_with(program, settings).output().unwrap()
    }

    /// The command that does so, for arguments of the program.
    pub fn command_with(&self, program: &Path, settings: &[(&str, &str)]) -> Command {
        // One that waits for ever fails, rather than the run of all tests.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "120"]).arg(program);
        command.env("LD_LIBRARY_PATH", &self.0).envs(settings.iter().copied());
        command
    }

    /// Compiles and runs a program that says what is wrong and then fails.
    pub fn check(&self, source: &Path) {
        self.check_with(source, &[]);
    }

    /// The same with settings.
    pub fn check_with(&self, source: &Path, settings: &[(&str, &str)]) {
        let Some(program) = self.compile(source) else { return };
        let output = self.run_with(&program, settings);
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (said(&output.stdout), said(&output.stderr));
        assert!(output.status.success(), "{:?}\n{out}{err}", output.status);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
