//! `cargo xtask dist`: what people install, packed.
//!
//! One folder that can be unpacked over a prefix such as `/usr/local`: the command, its libraries
//! where it looks for them, man pages, completions of shells, licences. The packages of Debian and
//! of RPM take the same folder (`[package.metadata.deb]` and `generate-rpm` of `vernic-cli`).

use std::fs;
use std::path::{Path, PathBuf};

use crate::plan::{Done, none_of};
use crate::shell::run;
use crate::{Result, bare, root, target};

/// The libraries that the command looks for in `../lib/vernic`.
const LIBRARIES: [&str; 4] =
    ["libvernic_abi.so", "libvernic_paths.so", "libvernic_providers.so", "libvernic_rspreload.so"];

/// Files of the repository that come along.
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Completions: the shell, and where it looks.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/vernic"),
    ("zsh", "share/zsh/site-functions/_vernic"),
    ("fish", "share/fish/vendor_completions.d/vernic.fish"),
];

/// What to pack.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build for this target instead of this machine, as aarch64-unknown-linux-gnu; with a version
    /// of glibc behind it, as x86_64-unknown-linux-gnu.2.28, by `cargo zigbuild`
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Make the command that carries its libraries as well, and try it: two links more, minutes
    #[arg(long, conflicts_with = "target")]
    bundled: bool,
    /// Install what was packed in a bare Debian 12 with three commands, and time them; as root
    #[arg(long = "try")]
    bare: bool,
}

/// `cargo xtask dist`.
pub(crate) fn dist(arguments: &Arguments) -> Result {
    let (folder, archive) = pack(arguments.target.as_deref())?;
    println!("{}\n{}", folder.display(), archive.display());
    if arguments.bundled {
        check_bundled()?;
    }
    if arguments.bare {
        write_sum(&archive)?;
        bare::check(&archive.with_file_name(""))?;
    }
    Ok(())
}

/// Builds and packs; the folder and the archive.
fn pack(triple: Option<&str>) -> Result<(PathBuf, PathBuf)> {
    let built = build(triple)?;
    if let Some((_, newest)) = triple.and_then(|triple| triple.split_once('.')) {
        let files = LIBRARIES.iter().chain(&["vernic"]);
        check_glibc(files.map(|file| built.join(file)), newest)?;
    }
    let name = triple.map_or_else(host, |triple| Ok(without_glibc(triple).to_owned()))?;
    let id = run("cargo pkgid -p vernic-cli").output()?;
    let version = id.trim().rsplit(['@', '#']).next().unwrap_or_default();
    let name = format!("vernic-{version}-{name}");
    let dist = target().join("dist");
    let folder = dist.join("vernic");
    make_anew(&folder)?;
    let copy = |from: &Path, to: String| put(&folder, &to, || fs::copy(from, folder.join(&to)));
    copy(&built.join("vernic"), "bin/vernic".into())?;
    strip(&folder.join("bin/vernic"))?;
    for library in LIBRARIES {
        copy(&built.join(library), format!("lib/vernic/{library}"))?;
        strip(&folder.join("lib/vernic").join(library))?;
    }
    for document in DOCUMENTS {
        copy(&root().join(document), format!("share/doc/vernic/{document}"))?;
    }
    // The command describes itself; that of another processor does not run here.
    let own = if triple.is_some() { build(None)? } else { built };
    let command = own.join("vernic").display().to_string();
    for (shell, place) in SHELLS {
        let text = run(&command).args(&["completions", shell]).output()?;
        put(&folder, place, || fs::write(folder.join(place), &text))?;
    }
    let manual = folder.join("share/man/man1");
    fs::create_dir_all(&manual).map_err(|e| format!("{}: {e}", manual.display()))?;
    run(&command).arg("man-pages").arg(manual.display().to_string()).go()?;

    let archive = dist.join(format!("{name}.tar.gz"));
    run("tar --owner=0 --group=0 --sort=name -czf")
        .arg(archive.display().to_string())
        .arg(format!("--transform=s,^vernic,{name},"))
        .args(&["-C", &dist.display().to_string(), "vernic"])
        .limit_min(5)
        .go()?;
    Ok((folder, archive))
}

/// Does something with a path below a folder, whose parent is made before.
fn put<T>(folder: &Path, to: &str, write: impl FnOnce() -> std::io::Result<T>) -> Result {
    let path = folder.join(to);
    let parent = path.parent().unwrap_or(folder);
    let written = fs::create_dir_all(parent).and_then(|()| write());
    written.map(drop).map_err(|e| format!("{}: {e}", path.display()))
}

/// Builds the command and its libraries; the folder that they are in.
fn build(triple: Option<&str>) -> Result<PathBuf> {
    let Some(triple) = triple else {
        run("cargo build --release --quiet").limit_min(20).go()?;
        return Ok(target().join("release"));
    };
    let plain = without_glibc(triple);
    let build = if plain == triple { "build" } else { "zigbuild" };
    run(&format!("cargo {build} --release --quiet --target {triple}")).limit_min(30).go()?;
    Ok(target().join(plain).join("release"))
}

/// Takes out of a file what debuggers alone read, which is four fifths of it; names of functions
/// stay. rustc's own objcopy knows the files of every processor, the system's strip its own.
fn strip(file: &Path) -> Result {
    let sysroot = run("rustc --print sysroot").output()?.trim().to_owned();
    let own = format!("{sysroot}/lib/rustlib/{}/bin/rust-objcopy", host()?);
    let tool = if Path::new(&own).is_file() { &own } else { "strip" };
    run(tool)
        .args(&["--strip-debug", &file.display().to_string()])
        .env("LD_LIBRARY_PATH", &format!("{sysroot}/lib"))
        .limit_min(2)
        .go()
}

/// Checks that files need nothing of glibc that is newer than this version.
fn check_glibc(files: impl Iterator<Item = PathBuf>, newest: &str) -> Result {
    let mut findings = Vec::new();
    for file in files {
        let read = run("readelf --wide --version-info").arg(file.display().to_string()).output()?;
        let needed = newer_than(newest, &read);
        if !needed.is_empty() {
            findings.push(format!("{} needs {}", file.display(), needed.join(", ")));
        }
    }
    none_of(&findings)
}

/// The versions of glibc's symbols beyond `newest`, of what `readelf --version-info` says. One that
/// is no number, as `GLIBC_ABI_DT_RELR`, is beyond all.
fn newer_than<'a>(newest: &str, read: &'a str) -> Vec<&'a str> {
    let numbers = |version: &str| -> Option<Vec<u32>> {
        version.split('.').map(|number| number.parse().ok()).collect()
    };
    let names = read.split("Name: ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    names
        .filter(|name| {
            let version = name.strip_prefix("GLIBC_");
            version
                .is_some_and(|version| numbers(version).is_none_or(|v| Some(v) > numbers(newest)))
        })
        .collect()
}

/// `x86_64-unknown-linux-gnu` of `x86_64-unknown-linux-gnu.2.28`.
fn without_glibc(triple: &str) -> &str {
    triple.split('.').next().unwrap_or(triple)
}

/// The triple of this machine.
fn host() -> Result<String> {
    let version = run("rustc -vV").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".into())
}

/// The step of `cargo xtask test`: what is packed runs where it is unpacked.
pub(crate) fn check() -> Result<Done> {
    let (_, archive) = pack(None)?;
    let prefix = target().join("dist/unpacked");
    make_anew(&prefix)?;
    let prefix = prefix.display().to_string();
    write_sum(&archive)?;
    let url = format!("file://{}", archive.with_file_name("").display());
    run("sh tools/install/install.sh")
        .env("VERNIC_PREFIX", &prefix)
        .env("VERNIC_URL", &url)
        .limit_min(5)
        .go()?;
    let vernic = format!("{prefix}/bin/vernic");
    run(&vernic).arg("devices").limit_min(1).go()?;
    let listed = run(&vernic).args(&["run", "--", "ibv_devices"]).limit_min(1).output()?;
    if !listed.contains("vernic0") {
        return Err(format!("ibv_devices under the unpacked command lists no vernic0:\n{listed}"));
    }
    let page = run("man --warnings -E UTF-8 -l -Tutf8 -Z")
        .arg(format!("{prefix}/share/man/man1/vernic-run.1"))
        .limit_min(1);
    if run("man --version").succeeds() {
        page.output()?;
    }
    run("bash -n").arg(format!("{prefix}/share/bash-completion/completions/vernic")).go()?;
    check_action(&url)?;
    Ok(Done::Passed)
}

/// Runs the script of the GitHub Action as a runner does, and a program as a later step has it.
fn check_action(url: &str) -> Result {
    let place = target().join("dist/action");
    make_anew(&place)?;
    let at = |name: &str| place.join(name).display().to_string();
    run("bash .github/actions/setup-vernic/setup.sh")
        .env("SCRIPT", "tools/install/install.sh")
        .env("VERNIC_PREFIX", &at("vernic"))
        .env("VERNIC_URL", url)
        .env("GITHUB_PATH", &at("path"))
        .env("GITHUB_ENV", &at("environment"))
        .env("ENVIRONMENT", "true")
        .limit_min(5)
        .go()?;
    let read = |name: &str| fs::read_to_string(at(name)).map_err(|e| format!("{}: {e}", at(name)));
    if read("path")?.trim() != at("vernic/bin") {
        return Err("the action leaves another PATH than that of its command".into());
    }
    let variables = read("environment")?;
    let mut later = run("ibv_devices").limit_min(1);
    for (name, value) in variables.lines().filter_map(|line| line.split_once('=')) {
        later = later.env(name, value);
    }
    match later.output()? {
        listed if listed.contains("vernic0") => Ok(()),
        listed => Err(format!("ibv_devices in a later step lists no vernic0:\n{listed}")),
    }
}

/// An empty folder, whatever was there.
fn make_anew(folder: &Path) -> Result {
    let why = |e| format!("{}: {e}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(why)?;
    }
    fs::create_dir_all(folder).map_err(why)
}

/// Writes `SHA256SUMS` beside an archive, as a release has it.
fn write_sum(archive: &Path) -> Result {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let sum = run("sha256sum").arg(archive.display().to_string()).output()?;
    let sum = format!("{}  {name}\n", sum.split(' ').next().unwrap_or_default());
    fs::write(archive.with_file_name("SHA256SUMS"), sum).map_err(|e| format!("SHA256SUMS: {e}"))
}

/// Checks that a command which carries its libraries, as `cargo install` makes it, runs without
/// anything beside it.
fn check_bundled() -> Result {
    let built = build(None)?;
    let folder = target().join("dist/bundled");
    // Built in the place of the usual command, which is put back below.
    let bundling = run("cargo build --release --quiet")
        .env("BUNDLE_VERNIC", &built.display().to_string())
        .limit_min(10)
        .go();
    let copied = bundling.and_then(|()| {
        put(&folder, "bin/vernic", || fs::copy(built.join("vernic"), folder.join("bin/vernic")))
    });
    build(None)?;
    copied?;
    let cache = folder.join("cache");
    make_anew(&cache)?;
    let vernic = folder.join("bin/vernic").display().to_string();
    for _ in 0..2 {
        let listed = run(&vernic)
            .args(&["run", "--", "ibv_devices"])
            .env("XDG_CACHE_HOME", &cache.display().to_string())
            .limit_min(1)
            .output()?;
        if !listed.contains("vernic0") {
            return Err(format!("ibv_devices under the bundled command has no vernic0:\n{listed}"));
        }
    }
    let unpacked = fs::read_dir(cache.join("vernic")).map_err(|e| format!("{cache:?}: {e}"))?;
    // The libraries and the lock.
    match unpacked.count() {
        2 => Ok(()),
        count => Err(format!("{}: {count} entries, 2 were expected", cache.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_newer_glibc_is_found_by_number() {
        let read = "\
Version needs section '.gnu.version_r' contains 2 entries:
  000000: Version: 1  File: libc.so.6  Cnt: 4
  0x0010:   Name: GLIBC_2.2.5  Flags: none  Version: 5
  0x0020:   Name: GLIBC_2.28  Flags: none  Version: 4
  0x0030:   Name: GLIBC_2.34  Flags: none  Version: 3
  0x0040:   Name: GLIBC_ABI_DT_RELR  Flags: none  Version: 2
  0x0050: Version: 1  File: libgcc_s.so.1  Cnt: 1
  0x0060:   Name: GCC_3.0  Flags: none  Version: 6";
        assert_eq!(newer_than("2.28", read), ["GLIBC_2.34", "GLIBC_ABI_DT_RELR"]);
        assert_eq!(newer_than("2.4", read).len(), 3);
        assert_eq!(newer_than("2.28", ""), [""; 0]);
    }
}
