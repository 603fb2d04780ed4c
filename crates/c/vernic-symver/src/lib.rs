//! For build scripts: a `cdylib` whose C functions carry symbol versions, from a list.
//!
//! Programs that were linked against a library with versioned symbols do not start with one that
//! has none. rustc gives a `cdylib` an anonymous version script of its own, which cannot be
//! combined with a second one as long as the names in question are Rust's. So the public names are
//! not Rust functions: each is a jump, written in assembly, to a Rust function of another name, and
//! the versions come from a second script. Both are made from one list, `abi/exports.txt`:
//!
//! ```text
//! # symbol                version        answered by
//! ibv_get_device_list     IBVERBS_1.1    ibverbs::device::device_list
//! verbs_allow_everything  IBVERBS_1.1    data:8
//! ```
//!
//! The third column is the path of a function in the crate (`extern "C"`, of that symbol's
//! signature), or `data:SIZE` for an object of SIZE zero bytes. A function may have several lines,
//! one per version that programs import it with; the first is what they are linked against. A build
//! script that has the list is one line, [`build`]; the crate includes what it writes:
//!
//! ```text
//! include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
//! ```
//!
//! LLD, which rustc uses by itself on x86-64, takes the second script, and so does Zig, which links
//! by LLD. GNU ld refuses it; where there is no LLD, or `SYMVER_LD=bfd` asks for it, a wrapper
//! around GNU ld replaces rustc's script by ours.
//!
//! A test of such a crate holds the library against the list: [`check`].
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "how a build script talks to cargo")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The list, relative to the crate.
const LIST: &str = "abi/exports.txt";

/// Environment variable that chooses the linker: `lld` or `bfd`.
const LINKER_VARIABLE: &str = "SYMVER_LD";

/// Environment variable in which cargo names the C compiler that links, if one is set.
const COMPILER_VARIABLE: &str = "RUSTC_LINKER";

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The public name.
    pub symbol: String,
    /// The version node it belongs to.
    pub version: String,
    /// What the name stands for.
    pub answer: Answer,
    /// A further version of a function that the list has before.
    pub is_further: bool,
}

/// What a public name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A function: its path in the crate.
    Function(String),
    /// An object of this many zero bytes.
    Data(usize),
}

impl Export {
    /// The name with its version, as the linker writes it: `@@` for what programs are linked
    /// against.
    fn versioned(&self) -> String {
        let at = if self.is_further { "@" } else { "@@" };
        format!("{}{at}{}", self.symbol, self.version)
    }
}

/// The whole work of a build script: reads the crate's list, writes `trampolines.rs` and the
/// version script, and tells cargo how to link.
///
/// # Panics
/// A build script's way to fail: the list is missing or wrong, or the output cannot be written.
pub fn build() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    println!("cargo::rerun-if-changed={LIST}");
    println!("cargo::rerun-if-env-changed={LINKER_VARIABLE}");
    // Cargo heeds what it is told itself, and not what it makes of that for this script.
    let target = env::var("TARGET").unwrap_or_default().to_uppercase().replace('-', "_");
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_{target}_LINKER");

    let text = fs::read_to_string(manifest.join(LIST)).unwrap_or_else(|e| panic!("{LIST}: {e}"));
    let exports = parse(&text).unwrap_or_else(|why| panic!("{LIST}: {why}"));
    let code = trampolines(&exports, &arch).unwrap_or_else(|why| panic!("{why}"));
    let script = out.join("versions.map");
    write(&out.join("trampolines.rs"), &code);
    write(&script, &version_script(&exports));
    for argument in link_arguments(&out, &script) {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

/// Reads a list.
///
/// # Errors
/// A sentence that names the line: it has not three columns, repeats a symbol in one version, or
/// gives a further version another answer.
pub fn parse(list: &str) -> Result<Vec<Export>, String> {
    let mut exports: Vec<Export> = Vec::new();
    for (number, line) in list.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (symbol, version, answer) = match columns[..] {
            [] => continue,
            [symbol, version, answer] => (symbol, version, answer),
            _ => return Err(format!("line {}: not `symbol version answer`", number + 1)),
        };
        let answer = match answer.strip_prefix("data:") {
            Some(size) => Answer::Data(
                size.parse().map_err(|_| format!("line {}: `{size}` is no size", number + 1))?,
            ),
            None => Answer::Function(answer.to_owned()),
        };
        let mut before = exports.iter().filter(|export| export.symbol == symbol).peekable();
        let is_further = before.peek().is_some();
        let is_data = matches!(answer, Answer::Data(_));
        if before.any(|export| export.version == version || export.answer != answer || is_data) {
            return Err(format!("line {}: `{symbol}` is there twice", number + 1));
        }
        let (symbol, version) = (symbol.to_owned(), version.to_owned());
        exports.push(Export { symbol, version, answer, is_further });
    }
    if exports.is_empty() { Err("the list is empty".into()) } else { Ok(exports) }
}

/// Whether a library that was built exports what the list says, with its versions, and nothing
/// else. For tests.
///
/// # Errors
/// What is missing and what is too much, or why neither is known: the list is wrong, or `readelf`
/// (of binutils) does not read the library.
pub fn check(library: &Path, list: &str) -> Result<(), String> {
    let listed: BTreeSet<String> = parse(list)?.iter().map(Export::versioned).collect();
    let output = Command::new("readelf").args(["--wide", "--dyn-syms"]).arg(library).output();
    let output = output.map_err(|error| format!("readelf: {error}"))?;
    if !output.status.success() {
        return Err(format!("readelf {}: {}", library.display(), output.status));
    }
    let defined = defined(&String::from_utf8_lossy(&output.stdout));
    let only_in = |some: &BTreeSet<String>, others| {
        some.difference(others).map(String::as_str).collect::<Vec<_>>().join(" ")
    };
    match (only_in(&listed, &defined), only_in(&defined, &listed)) {
        (missing, more) if missing.is_empty() && more.is_empty() => Ok(()),
        (missing, more) => Err(format!("missing: {missing}; not in the list: {more}")),
    }
}

/// The symbols that a library defines for others, in what `readelf --dyn-syms` says of it.
fn defined(table: &str) -> BTreeSet<String> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter_map(|row| match row[..] {
        // Nodes of versions are absolute symbols.
        [_, _, _, _, "GLOBAL", _, section, name] if section != "UND" && section != "ABS" => {
            Some(name.to_owned())
        }
        _ => None,
    })
    .collect()
}

/// Rust code that defines each public name: a jump, or zeroes.
///
/// # Errors
/// The processor has no jump here yet.
pub fn trampolines(exports: &[Export], arch: &str) -> Result<String, String> {
    let jump = match arch {
        "x86_64" => "jmp",
        "aarch64" => "b",
        "riscv64" => "tail",
        _ => return Err(format!("no trampolines are known for the processor `{arch}`")),
    };
    let mut code = String::new();
    for export in exports {
        let Export { symbol, version, answer, is_further } = export;
        // A further version has a name of its own inside of the library, which stays there.
        let (symbol, alias) = match is_further {
            false => (symbol.clone(), String::new()),
            true => {
                let inside = format!("{symbol}__{version}");
                let alias = format!("\".symver {inside}, {}\", ", export.versioned());
                (inside, alias)
            }
        };
        let (section, kind, body, operand) = match answer {
            Answer::Function(path) => (
                format!(".text.{symbol},\\\"ax\\\",@progbits"),
                "function",
                format!("{symbol}: {jump} {{f}}"),
                format!(", f = sym crate::{path}"),
            ),
            Answer::Data(size) => (
                format!(".bss.{symbol},\\\"aw\\\",@nobits"),
                "object",
                format!("\".balign 16\", \"{symbol}: .zero {size}"),
                String::new(),
            ),
        };
        // An object's body opens with a directive of its own, and brings its quotes.
        let body = if kind == "object" { body } else { format!("\"{body}") };
        let _ = writeln!(
            code,
            "core::arch::global_asm!(\".pushsection {section}\", \".globl {symbol}\", \
             \".type {symbol},@{kind}\", {alias}{body}\", \".size {symbol}, .-{symbol}\", \
             \".popsection\"{operand});"
        );
    }
    Ok(code)
}

/// The linker's version script: a node per version, everything else hidden.
pub fn version_script(exports: &[Export]) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for export in exports {
        let symbols = nodes.entry(&export.version).or_default();
        // A further version says itself which node it is in.
        symbols.extend((!export.is_further).then_some(export.symbol.as_str()));
    }
    let mut script = String::new();
    for (index, (version, symbols)) in nodes.iter().enumerate() {
        let hidden = if index == 0 { " local: *;" } else { "" };
        let global = if symbols.is_empty() {
            String::new()
        } else {
            format!(" global: {};", symbols.join("; "))
        };
        let _ = writeln!(script, "{version} {{{global}{hidden} }};");
    }
    script
}

fn link_arguments(out: &Path, script: &Path) -> Vec<String> {
    // Programs close libraries of which threads still run.
    let mut arguments = vec!["-Wl,-z,nodelete".to_owned()];
    if uses_lld() {
        arguments.push("-fuse-ld=lld".to_owned());
        arguments.push(format!("-Wl,--version-script={}", script.display()));
    } else {
        let wrapper = out.join("ld.bfd");
        write(&wrapper, &bfd_wrapper(script, &gnu_ld()));
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))
            .unwrap_or_else(|e| panic!("{}: {e}", wrapper.display()));
        arguments.push(format!("-B{}", out.display()));
        arguments.push("-fuse-ld=bfd".to_owned());
    }
    arguments
}

/// Whether to link with LLD: as the variable says, else where rustc's own or the system's is there.
fn uses_lld() -> bool {
    match env::var(LINKER_VARIABLE).as_deref() {
        Ok("lld") => true,
        Ok("bfd") => false,
        Ok(other) => panic!("{LINKER_VARIABLE}={other}: allowed are lld and bfd"),
        Err(_) => is_zig() || rustc_brings_lld() || on_path("ld.lld"),
    }
}

/// Whether `cargo zigbuild` links: it has a linker of its own, and calls no other.
fn is_zig() -> bool {
    let compiler = PathBuf::from(env::var_os(COMPILER_VARIABLE).unwrap_or_default());
    compiler.file_name().is_some_and(|name| name.to_string_lossy().starts_with("zig"))
}

/// rustc passes the folder of its own LLD to the C compiler on this target alone.
fn rustc_brings_lld() -> bool {
    let target = env::var("TARGET").unwrap_or_default();
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let Ok(output) = Command::new(rustc).args(["--print", "sysroot"]).output() else {
        return false;
    };
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    target == "x86_64-unknown-linux-gnu"
        && sysroot.join("lib/rustlib").join(target).join("bin/gcc-ld/ld.lld").exists()
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The GNU ld of the C compiler that rustc links with: that of another processor has its own.
fn gnu_ld() -> String {
    let compiler = env::var_os(COMPILER_VARIABLE).unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler).arg("-print-prog-name=ld").output();
    let named = output.ok().filter(|output| output.status.success());
    let named = named.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    named.filter(|path| !path.is_empty()).unwrap_or_else(|| "ld".to_owned())
}

/// A program named `ld.bfd` that calls GNU ld with our script in the place of rustc's.
fn bfd_wrapper(script: &Path, ld: &str) -> String {
    format!(
        r#"#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case "$argument" in
    --version-script=*/rustc*/list) argument="--version-script={}" ;;
    esac
    set -- "$@" "$argument"
done
exec '{ld}' "$@"
"#,
        script.display()
    )
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# symbol version answer\nb V_2 m::b\na V_1 m::a # newest\n\nd V_1 data:8\n";

    #[test]
    fn a_list_has_functions_and_data_and_comments() {
        let exports = parse(LIST).unwrap();
        assert_eq!(exports.len(), 3);
        assert_eq!(exports[1].answer, Answer::Function("m::a".into()));
        assert_eq!(exports[2].answer, Answer::Data(8));
    }

    #[test]
    fn a_wrong_line_is_named() {
        assert!(parse("a V_1 f\nb V_1\n").unwrap_err().starts_with("line 2: "));
        assert!(parse("a V_1 f\na V_1 f\n").unwrap_err().contains("twice"));
        assert!(parse("a V_1 f\na V_2 g\n").unwrap_err().contains("twice"));
        assert!(parse("a V_1 data:8\na V_2 data:8\n").unwrap_err().contains("twice"));
        assert!(parse("a V_1 data:x\n").unwrap_err().contains("no size"));
        assert!(parse("# nothing\n").is_err());
    }

    #[test]
    fn symbols_that_a_library_needs_or_keeps_to_itself_are_not_its_exports() {
        let table = "\
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND free@GLIBC_2.2.5 (2)
     2: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS V_1
     3: 0000000000001000     8 FUNC    LOCAL  DEFAULT   12 hidden
     4: 0000000000001010     8 FUNC    GLOBAL DEFAULT   12 a@@V_1
     5: 0000000000002000     8 OBJECT  GLOBAL DEFAULT   20 d@@V_1";
        assert_eq!(defined(table).into_iter().collect::<Vec<_>>(), ["a@@V_1", "d@@V_1"]);
    }

    #[test]
    fn a_library_that_is_not_there_has_not_what_the_list_says() {
        let why = check(Path::new("/no/such/library.so"), LIST).unwrap_err();
        assert!(why.starts_with("readelf"), "{why}");
    }

    #[test]
    fn each_version_is_a_node_and_the_first_hides_the_rest() {
        assert_eq!(
            version_script(&parse(LIST).unwrap()),
            "V_1 { global: a; d; local: *; };\nV_2 { global: b; };\n"
        );
    }

    #[test]
    fn a_function_of_several_versions_is_one_that_is_linked_against_and_aliases() {
        let exports = parse("a V_1 m::a\na V_3 m::a\na V_2 m::a\n").unwrap();
        let names: Vec<_> = exports.iter().map(Export::versioned).collect();
        assert_eq!(names, ["a@@V_1", "a@V_3", "a@V_2"]);
        let script = "V_1 { global: a; local: *; };\nV_2 { };\nV_3 { };\n";
        assert_eq!(version_script(&exports), script);
        let code = trampolines(&exports, "x86_64").unwrap();
        assert!(code.contains(r#"".symver a__V_3, a@V_3", "a__V_3: jmp {f}""#), "{code}");
        assert!(!code.contains("a__V_1"), "{code}");
    }

    #[test]
    fn the_wrapper_calls_the_linker_of_the_compiler_with_our_script() {
        let wrapper = bfd_wrapper(Path::new("/out/versions.map"), "/usr/bin/other-ld");
        assert!(
            wrapper.contains("argument=\"--version-script=/out/versions.map\" ;;"),
            "{wrapper}"
        );
        assert!(wrapper.ends_with("\nexec '/usr/bin/other-ld' \"$@\"\n"), "{wrapper}");
    }

    #[test]
    fn a_function_is_a_jump_and_data_are_zeroes() {
        let code = trampolines(&parse(LIST).unwrap(), "aarch64").unwrap();
        assert!(
            code.contains(r#""b: b {f}", ".size b, .-b", ".popsection", f = sym crate::m::b);"#)
        );
        assert!(code.contains(r#"".type d,@object", ".balign 16", "d: .zero 8", ".size d, .-d""#));
        assert!(trampolines(&[], "vax").is_err());
    }
}
