//! Checks made by reading the repository's own files.
//!
//! One function per rule; each returns the findings, a line each, so that one run shows them all.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::plan::none_of;
use crate::shell::run;
use crate::{Result, cycles, history, links, prose, root};

/// A file git tracks, as text; binary files are left out.
struct Tracked {
    path: String,
    text: String,
}

/// Every rule over every tracked file.
pub(crate) fn check() -> Result {
    let files = tracked()?;
    let mut findings = Vec::new();
    findings.extend(stands_alone(&files));
    findings.extend(core_is_pure(&files));
    findings.extend(file_lengths(&files));
    findings.extend(comment_widths(&files));
    findings.extend(links_lead_somewhere(&files));
    findings.extend(the_book_is_whole(&files));
    findings.extend(pages_are_true(&files));
    findings.extend(pages(&files).flat_map(|page| prose::page(&page.path, &page.text)));
    findings.extend(prose::openings(rust(&files).map(|f| (f.path.as_str(), f.text.as_str()))));
    findings.extend(history::check());
    findings.extend(one_test_command(&files));
    findings.extend(cycles::check()?);
    findings.extend(dependencies_have_lines(&files, &direct_dependencies()?));
    for finding in &findings {
        println!("{finding}");
    }
    none_of(&findings)
}

fn tracked() -> Result<Vec<Tracked>> {
    // Files not yet added count too, so that a finding appears before the commit and not after.
    let listed = run("git ls-files -z --cached --others --exclude-standard").output()?;
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    let read = |path: &str| {
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        Some(Tracked { path: path.to_owned(), text })
    };
    Ok(paths.filter_map(read).collect())
}

/// Paths that exist only on a developer's machine.
fn stands_alone(files: &[Tracked]) -> Vec<String> {
    // In two pieces, or this file would break its own rule.
    const MUST_NOT_APPEAR: &[&str] =
        &[concat!("../", "shared"), concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            for word in MUST_NOT_APPEAR.iter().filter(|word| line.contains(**word)) {
                findings.push(format!("{}:{}: mentions `{word}`", file.path, number + 1));
            }
        }
    }
    findings
}

/// The wire formats and the protocol machines know no clock, socket, thread or chance.
fn core_is_pure(files: &[Tracked]) -> Vec<String> {
    const PURE: &[&str] = &["crates/core/vernic-wire/", "crates/core/vernic-proto/"];
    const IMPURE: &[&str] = &[
        "Instant",
        "SystemTime",
        "UdpSocket",
        "TcpStream",
        "std::thread",
        "std::fs",
        "std::env",
        "rand::",
    ];
    let mut findings = Vec::new();
    for krate in PURE {
        let lib = format!("{krate}src/lib.rs");
        if !files.iter().any(|f| f.path == lib && f.text.contains("#![forbid(unsafe_code)]")) {
            findings.push(format!("{lib}: does not forbid unsafe code"));
        }
        let sources = files.iter().filter(|f| f.path.starts_with(&format!("{krate}src/")));
        for file in sources.filter(|f| !f.path.ends_with("tests.rs")) {
            let code = || code_of(&file.text).lines().filter(|l| !l.trim_start().starts_with("//"));
            for word in IMPURE.iter().filter(|word| code().any(|line| line.contains(**word))) {
                findings.push(format!("{}: uses `{word}`", file.path));
            }
        }
    }
    findings
}

/// A file without its unit tests, which stand at its end.
fn code_of(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// No source file is longer than a reader's patience, tests apart.
fn file_lengths(files: &[Tracked]) -> Vec<String> {
    const LONGEST: usize = 800;
    let sources = files.iter().filter(|f| f.path.ends_with(".rs") && !is_test(&f.path));
    sources
        .map(|f| (f, code_of(&f.text).lines().count()))
        .filter(|(_, lines)| *lines > LONGEST)
        .map(|(f, lines)| format!("{}: {lines} lines, at most {LONGEST}", f.path))
        .collect()
}

/// No comment of Rust code is wider than its code may be; rows of tables apart, which cannot be
/// wrapped.
fn comment_widths(files: &[Tracked]) -> Vec<String> {
    const WIDEST: usize = 100;
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.path.ends_with(".rs")) {
        for (number, line) in file.text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let is_row = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
            let columns = line.chars().count();
            if columns > WIDEST && !is_row {
                let place = format!("{}:{}", file.path, number + 1);
                findings.push(format!("{place}: a comment of {columns} columns, at most {WIDEST}"));
            }
        }
    }
    findings
}

fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Links in Markdown lead to files that exist, and to headings of them.
fn links_lead_somewhere(files: &[Tracked]) -> Vec<String> {
    let markdown = files.iter().filter(|f| f.path.ends_with(".md"));
    let pages = markdown.map(|f| (f.path.as_str(), f.text.as_str()));
    links::check(pages, |path| root().join(path).exists())
}

/// SUMMARY.md, from which mdBook makes the book, has each page of docs/, and docs/README.md has the
/// same pages.
fn the_book_is_whole(files: &[Tracked]) -> Vec<String> {
    const SUMMARY: &str = "docs/SUMMARY.md";
    const LIST: &str = "docs/README.md";
    let text = |path: &str| files.iter().find(|f| f.path == path).map_or("", |f| &f.text);
    let listed = |path| -> BTreeSet<String> {
        links::targets(text(path)).map(|target| links::beside(path, target)).collect()
    };
    let (summary, list) = (listed(SUMMARY), listed(LIST));
    let is_page = |path: &&str| path.starts_with("docs/") && path.ends_with(".md");
    let pages = files.iter().map(|f| f.path.as_str()).filter(is_page);
    let pages: Vec<&str> = pages.filter(|path| ![SUMMARY, LIST].contains(path)).collect();
    let without = |name: &'static str, known: &BTreeSet<String>| -> Vec<String> {
        let missing = pages.iter().filter(|path| !known.contains(**path));
        missing.map(|path| format!("{name}: {path} is not in the list")).collect()
    };
    [without(SUMMARY, &summary), without(LIST, &list)].concat()
}

/// The pages about the architecture.
fn pages(files: &[Tracked]) -> impl Iterator<Item = &Tracked> {
    files.iter().filter(|f| prose::is_page(&f.path))
}

fn rust(files: &[Tracked]) -> impl Iterator<Item = &Tracked> {
    files.iter().filter(|f| f.path.ends_with(".rs"))
}

/// Every file and every `Type::item` that the pages about the architecture name exists. The
/// glossary, which lists former names too, is left out.
fn pages_are_true(files: &[Tracked]) -> Vec<String> {
    const GLOSSARY: &str = "docs/glossary.md";
    let sources: Vec<_> = rust(files).filter(|f| f.path.starts_with("crates/")).collect();
    let is_true = |name: &str| {
        if name.starts_with("vernic") && name.contains('/') {
            // The crate's folder lies in one of the folders of layers.
            let below =
                |path: &str| path.splitn(3, '/').nth(2).is_some_and(|p| p.starts_with(name));
            return files.iter().any(|f| f.path.starts_with("crates/") && below(&f.path));
        }
        match name.rsplit_once("::") {
            Some((_, item)) => sources.iter().any(|f| defines(&f.text, item)),
            None => true,
        }
    };
    let mut findings = Vec::new();
    for page in pages(files).filter(|page| page.path != GLOSSARY) {
        // What stands between backticks is every second piece; drawings in fences are cut out.
        let text: String = page.text.split("```").step_by(2).collect();
        let names = text.split('`').skip(1).step_by(2).filter(|name| !is_true(name));
        findings.extend(names.map(|name| format!("{}: there is no `{name}`", page.path)));
    }
    findings
}

/// Whether Rust code defines an item of this name.
fn defines(code: &str, item: &str) -> bool {
    const KEYWORDS: &[&str] = &["fn", "struct", "enum", "trait", "const", "static", "type", "mod"];
    KEYWORDS.iter().any(|keyword| {
        let definition = format!("{keyword} {item}");
        code.match_indices(&definition).any(|(at, _)| {
            let next = code[at + definition.len()..].chars().next();
            !next.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    })
}

/// README names the command that CI runs.
fn one_test_command(files: &[Tracked]) -> Vec<String> {
    const COMMAND: &str = "cargo xtask test";
    let starts = |path: &str| {
        let mut lines = files.iter().filter(|f| f.path == path).flat_map(|f| f.text.lines());
        lines.any(|line| line.starts_with(COMMAND))
    };
    let without = ["README.md", ".ci/run"].into_iter().filter(|path| !starts(path));
    without.map(|path| format!("{path}: no line starts with `{COMMAND}`")).collect()
}

/// The names of what the manifests ask from a registry, the fuzz package's included.
fn direct_dependencies() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        if !root().join(manifest).exists() {
            continue;
        }
        let line =
            format!("cargo metadata --no-deps --format-version 1 --manifest-path {manifest}");
        let metadata: Value = serde_json::from_str(&run(&line).output()?)
            .map_err(|e| format!("cargo metadata: {e}"))?;
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let dependencies =
            packages.flat_map(|p| p["dependencies"].as_array().into_iter().flatten());
        // Dependencies by path have no source.
        let foreign = dependencies.filter(|d| !d["source"].is_null());
        names.extend(foreign.filter_map(|d| d["name"].as_str()).map(str::to_owned));
    }
    Ok(names)
}

/// DEPENDENCIES.md has a row for every direct dependency, and no row for anything else.
fn dependencies_have_lines(files: &[Tracked], direct: &BTreeSet<String>) -> Vec<String> {
    let page = files.iter().find(|f| f.path == "DEPENDENCIES.md").map_or("", |f| &f.text);
    let explained: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect();
    let missing = direct.difference(&explained).map(|name| format!("no row for `{name}`"));
    let stale = explained.difference(direct).map(|name| format!("row for unused `{name}`"));
    missing.chain(stale).map(|finding| format!("DEPENDENCIES.md: {finding}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Vec<Tracked> {
        vec![Tracked { path: path.into(), text: text.into() }]
    }

    #[test]
    fn this_repository_keeps_its_rules() {
        check().unwrap();
    }

    #[test]
    fn a_path_of_one_machine_is_found_with_its_line() {
        let text = format!("fine\nsee {}/vectors", concat!("../", "shared"));
        let findings = stands_alone(&file("a.rs", &text));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("a.rs:2: "), "{findings:?}");
    }

    #[test]
    fn a_clock_in_the_protocol_core_is_found_but_not_in_its_tests() {
        let lib = "#![forbid(unsafe_code)]\nuse std::time::Instant;\n";
        let proto = file("crates/core/vernic-proto/src/lib.rs", lib);
        assert!(core_is_pure(&proto).iter().any(|f| f.ends_with("uses `Instant`")));
        let lib = "#![forbid(unsafe_code)]\n#[cfg(test)]\nmod tests { use std::time::Instant; }\n";
        let proto = file("crates/core/vernic-proto/src/lib.rs", lib);
        assert!(!core_is_pure(&proto).iter().any(|f| f.contains("Instant")));
    }

    #[test]
    fn a_wide_comment_is_found_and_a_wide_row_of_a_table_is_not() {
        let wide = "x".repeat(98);
        let text = format!("// {wide}\n/// | {wide} |\n    // short\nlet a = \"{wide}\";\n");
        let findings = comment_widths(&file("a.rs", &text));
        assert_eq!(findings, ["a.rs:1: a comment of 101 columns, at most 100"]);
    }

    #[test]
    fn a_dependency_without_a_row_and_a_row_without_a_dependency_are_found() {
        let page = file("DEPENDENCIES.md", "| `libc` | system calls |\n| `rand` | chance |\n");
        let direct = ["libc", "clap"].map(String::from).into();
        let findings = dependencies_have_lines(&page, &direct);
        assert_eq!(findings.len(), 2, "{findings:?}");
    }

    #[test]
    fn names_that_a_page_of_the_architecture_invents_are_found() {
        let text = "`Qp::post`, `Qp::poll`, `vernic-x/src/qp.rs`, `vernic-x/src/no.rs`, `sendmsg`";
        let code = "impl Qp { pub fn post_send() {} pub fn poll() {} }";
        let mut files = file("ARCHITECTURE.md", text);
        files.extend(file("crates/core/vernic-x/src/qp.rs", code));
        let findings = pages_are_true(&files);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].ends_with("`Qp::post`") && findings[1].ends_with("no.rs`"));
    }

    #[test]
    fn a_page_that_a_list_of_the_book_lacks_is_found() {
        let mut files = file("docs/a.md", "# A\n");
        files.extend(file("docs/SUMMARY.md", "- [A](a.md)\n"));
        files.extend(file("docs/README.md", "| [b.md](b.md) | What? |\n"));
        assert_eq!(the_book_is_whole(&files), ["docs/README.md: docs/a.md is not in the list"]);
    }
}
