//! Puts the libraries that programs load into the command itself, if `BUNDLE_VERNIC` asks for it.
//!
//! `cargo install` installs the command alone. With `BUNDLE_VERNIC=build` this script builds the
//! libraries by a cargo of its own, in the folder of its output, and lists them for
//! `src/run/bundle.rs`. Any other value names a folder that has them already. It is no feature of
//! the package, since commands for all features would build everything twice.

#[path = "src/run/names.rs"]
mod names;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Packages that are libraries for programs.
const PACKAGES: [&str; 4] = ["vernic-abi", "vernic-providers", "vernic-paths", "vernic-rspreload"];

/// Asks for the libraries.
const VARIABLE: &str = "BUNDLE_VERNIC";

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=src/run/names.rs");
    println!("cargo::rustc-check-cfg=cfg(bundled)");
    let folder = match env::var_os(VARIABLE).unwrap_or_default() {
        empty if empty.is_empty() => return,
        build_them if build_them == "build" => build(),
        folder => PathBuf::from(folder),
    };
    println!("cargo::rustc-cfg=bundled");
    let mut hasher = DefaultHasher::new();
    let mut list = String::new();
    for (file, _) in names::LIBRARIES {
        let path = folder.join(file);
        println!("cargo::rerun-if-changed={}", path.display());
        match fs::read(&path) {
            Ok(bytes) => bytes.hash(&mut hasher),
            Err(error) => panic!("{VARIABLE} needs {}: {error}", path.display()),
        }
        list.push_str(&format!("    ({file:?}, include_bytes!({path:?})),\n"));
    }
    let text = format!(
        "/// Names this content.\npub(super) const ID: u64 = {:#x};\n\n/// The libraries, by their \
         files.\npub(super) const FILES: [(&str, &[u8]); {}] = [\n{list}];\n",
        hasher.finish(),
        names::LIBRARIES.len()
    );
    let out = PathBuf::from(required("OUT_DIR")).join("bundle.rs");
    if let Err(error) = fs::write(&out, text) {
        panic!("{}: {error}", out.display());
    }
}

/// A variable that cargo sets.
fn required(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}

/// Builds the libraries, without what only a debugger reads; the folder that they are in.
fn build() -> PathBuf {
    let workspace = Path::new(&required("CARGO_MANIFEST_DIR")).join("../../..");
    let manifest = workspace.join("Cargo.toml");
    assert!(
        manifest.is_file(),
        "{VARIABLE}=build builds Vernic's libraries, so it needs the whole repository: \
         BUNDLE_VERNIC=build cargo install --git URL vernic-cli"
    );
    println!("cargo::rerun-if-changed={}", workspace.join("crates").display());
    let target = Path::new(&required("OUT_DIR")).join("libraries");
    let triple = required("TARGET");
    let mut cargo = Command::new(required("CARGO"));
    cargo.args(["build", "--release", "--locked", "--target", &triple, "--manifest-path"]);
    cargo.arg(&manifest).arg("--target-dir").arg(&target);
    cargo.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("building the libraries failed: {status}"),
        Err(error) => panic!("cannot run cargo to build the libraries: {error}"),
    }
    target.join(triple).join("release")
}
