//! The module `siw`, the kernel's iWARP over TCP sockets, which Debian's kernel leaves out: built
//! from Debian's package of the kernel's source, against the headers of the kernel that the guest
//! boots.
//!
//! Its source has constants that earlier versions had as parameters of the module: whether it asks
//! for CRCs, which revision of MPA it speaks, and so on. They are made parameters again, so that a
//! guest can be both.

use std::fs;
use std::path::Path;

use crate::Result;
use crate::shell::run;
use crate::tools::{self, Tool};

/// The module's file.
pub(super) const MODULE: &str = "siw.ko";

/// Its folder in the kernel's source.
const SOURCE: &str = "drivers/infiniband/sw/siw";

/// The folder of the build, in that of the image.
const BUILD: &str = "siw";

/// What is made a parameter, beside its type in C and as a parameter.
const PARAMETERS: &[(&str, &str, &str)] = &[
    ("const bool", "mpa_crc_required", "bool"),
    ("const bool", "peer_to_peer", "bool"),
    ("const bool", "try_gso", "bool"),
    ("u_char", "mpa_version", "byte"),
];

/// What builds it, beside the compiler, which comes with the headers.
const TOOLS: &[Tool] = &[
    ("make", &["make", "--version"], "make"),
    ("xz", &["xz", "--version"], "xz-utils"),
    ("modinfo", &["modinfo", "--version"], "kmod"),
];

/// Builds it for a version of the kernel, as `6.1.0-1-amd64`, and leaves it in the folder of the
/// image.
///
/// The kernel's source is one archive of 140 MB: most of the time goes into fetching and unpacking
/// it.
pub(super) fn build(image: &Path, version: &str) -> Result {
    tools::install(TOOLS)?;
    let headers = format!("/usr/src/linux-headers-{version}");
    let release = release_of(version).ok_or_else(|| format!("{version} is no kernel's version"))?;
    let archive = format!("/usr/src/linux-source-{release}.tar.xz");
    if !Path::new(&headers).join("Makefile").exists() || !Path::new(&archive).exists() {
        let packages = [format!("linux-headers-{version}"), format!("linux-source-{release}")];
        let why = |why| format!("siw is built from {}: {why}", packages.join(" and "));
        tools::apt_get(&packages.each_ref().map(String::as_str)).map_err(why)?;
    }
    let folder = image.join(BUILD);
    let why = |e: std::io::Error| format!("{}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(why)?;
    let path = folder.to_string_lossy();
    run("tar --strip-components=5 --wildcards -xJf")
        .args(&[&archive, "-C", &path, &format!("*/{SOURCE}/*")])
        .limit_min(5)
        .go()?;
    for file in ["siw_main.c", "siw.h"] {
        let file = folder.join(file);
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        fs::write(&file, parameters(&text)?).map_err(why)?;
    }
    run(&format!("make -s -C {headers}"))
        .args(&[&format!("M={path}"), "CONFIG_RDMA_SIW=m", "modules"])
        .limit_min(10)
        .go()
        .map_err(|why| format!("siw of Linux {release} cannot be built for {version}: {why}"))?;
    run("strip -g").arg(folder.join(MODULE).to_string_lossy()).output()?;
    fs::copy(folder.join(MODULE), image.join(MODULE)).map_err(why)?;
    fs::remove_dir_all(&folder).map_err(why)
}

/// The release that a version is of: `6.1` of `6.1.0-1-amd64`.
fn release_of(version: &str) -> Option<String> {
    let mut numbers = version.split(['.', '-']);
    Some(format!("{}.{}", numbers.next()?, numbers.next().filter(|minor| !minor.is_empty())?))
}

/// A file of its source with constants made parameters.
fn parameters(text: &str) -> Result<String> {
    let mut text = text.to_owned();
    for (of_c, name, of_parameter) in PARAMETERS {
        let variable = of_c.trim_start_matches("const ");
        let declared = format!("extern {of_c} {name};");
        // The definition of one that is not zero has its value.
        let defined = text.lines().find(|line| {
            let rest = line.strip_prefix(&format!("{of_c} {name}"));
            rest.is_some_and(|rest| rest.starts_with([';', ' ']))
        });
        text = if let Some(line) = defined.map(str::to_owned) {
            let plain = line.trim_start_matches("const ");
            let parameter = format!("{plain}\nmodule_param({name}, {of_parameter}, 0644);");
            text.replacen(&line, &parameter, 1)
        } else if text.contains(&declared) {
            text.replacen(&declared, &format!("extern {variable} {name};"), 1)
        } else {
            return Err(format!("siw's source has no `{of_c} {name}` any more"));
        };
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_the_beginning_of_a_version() {
        assert_eq!(release_of("6.1.0-56-amd64").as_deref(), Some("6.1"));
        assert_eq!(release_of("6.12.38+deb13-amd64").as_deref(), Some("6.12"));
        assert_eq!(release_of("6"), None);
    }

    #[test]
    fn constants_become_parameters_where_they_are_defined_and_where_declared() {
        let of = |form: fn(&str, &str) -> String| {
            PARAMETERS.iter().map(|(of_c, name, _)| form(of_c, name)).collect::<String>()
        };
        let header = parameters(&of(|of_c, name| format!("extern {of_c} {name};\n"))).unwrap();
        assert!(header.contains("extern bool peer_to_peer;\n") && !header.contains("const"));
        let source = of(|of_c, name| format!("{of_c} {name};\n"));
        let source = source.replace("mpa_version;", "mpa_version = 2;");
        let source = parameters(&source).unwrap();
        assert!(source.contains("\nbool try_gso;\nmodule_param(try_gso, bool, 0644);"), "{source}");
        let revision = "u_char mpa_version = 2;\nmodule_param(mpa_version, byte, 0644);";
        assert!(source.contains(revision), "{source}");
        assert!(parameters("int main;").unwrap_err().contains("mpa_crc_required"));
    }
}
