//! `cargo xtask commands`: the commands that pages show are run, and must print what pages show.
//!
//! A block of `sh` is run as it stands, by bash, in namespaces of its own with the programs of this
//! build on the PATH. `norun: REASON` behind the `sh` keeps a block from that. A block of `text
//! output` behind it is what it prints: [`output`] says what may differ. With `--write` such blocks
//! are written from what was printed.
//!
//! | file | owns |
//! |---|---|
//! | `page` | the blocks of a page |
//! | `place` | the namespaces, and running a block in them |
//! | `output` | what makes two outputs the same; lines that fit a page |

mod output;
mod page;
mod place;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::plan::{Done, none_of};
use crate::shell::run;
use crate::{Result, conformance, root};
use page::{Block, Mark};
use place::{Ended, Place};

/// Pages whose commands are run, beside those that begin as [`BEGINNINGS`].
const PAGES: &[&str] = &[
    "README.md",
    "docs/programs.md",
    "docs/watching.md",
    "docs/explain.md",
    "docs/explain-wr.md",
    "docs/monitor.md",
    "docs/install.md",
    "docs/errors.md",
];

/// Beginnings of the names of further pages, in docs/.
const BEGINNINGS: &[&str] = &["learn-", "howto-"];

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only pages whose path has this in it (repeatable)
    #[arg(long, value_name = "TEXT")]
    page: Vec<String>,
    /// Write what the commands print into the pages
    #[arg(long)]
    write: bool,
    /// With the command and the libraries of this folder, instead of a release build
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

/// A step of `cargo xtask test`.
pub(crate) fn check() -> Result<Done> {
    if let Err(why) = Place::probe() {
        return Ok(Done::Skipped(why));
    }
    commands(&Arguments { page: Vec::new(), write: false, programs: None })?;
    Ok(Done::Passed)
}

/// `cargo xtask commands`.
pub(crate) fn commands(arguments: &Arguments) -> Result {
    Place::probe()?;
    let programs = match &arguments.programs {
        Some(folder) => folder.clone(),
        None => conformance::build()?.with_file_name(""),
    };
    // What the pages start by `cargo run`.
    run("cargo build --quiet --package vernic --examples").limit_min(20).go()?;
    let place = Place::new(&programs);
    let before = changed_files()?;
    let mut findings = Vec::new();
    for name in chosen(&arguments.page)? {
        findings.extend(on_page(&name, &place, arguments.write)?);
    }
    let after = changed_files()?;
    if after != before && !arguments.write {
        findings.push(format!("the commands left something in the repository:\n{after}"));
    }
    for finding in &findings {
        println!("{finding}");
    }
    none_of(&findings)
}

/// Files that differ from the last commit, a line each.
fn changed_files() -> Result<String> {
    run("git status --porcelain").output()
}

/// Paths of the pages, relative to the root.
fn chosen(filters: &[String]) -> Result<Vec<String>> {
    let folder = root().join("docs");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let begins = |name: &String| BEGINNINGS.iter().any(|start| name.starts_with(start));
    let mut pages: Vec<String> = names.filter(begins).map(|name| format!("docs/{name}")).collect();
    pages.sort();
    let mut pages: Vec<String> = PAGES.iter().map(|page| (*page).to_owned()).chain(pages).collect();
    let is_wanted = |page: &String| filters.is_empty() || filters.iter().any(|f| page.contains(f));
    pages.retain(is_wanted);
    if pages.is_empty() { Err("no page has that in its path".into()) } else { Ok(pages) }
}

/// Runs the commands of a page; what is wrong.
fn on_page(name: &str, place: &Place, write: bool) -> Result<Vec<String>> {
    let path = root().join(name);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?;
    let mut findings = Vec::new();
    // Newer text of blocks, from the last to the first, so that places stay right.
    let mut changed: Vec<(Block, String)> = Vec::new();
    let blocks = page::blocks(&text).map_err(|why| format!("{name}: {why}"))?;
    let mut printed: Option<Ended> = None;
    for block in blocks {
        let at = format!("{name}:{}", block.line);
        match &block.mark {
            Mark::NotRun(why) => println!("{at}: not run: {why}"),
            Mark::Other => {}
            Mark::Run => {
                let started = Instant::now();
                let mut ended = place.run(block.text(&text))?;
                // A server may not listen yet where a machine is very busy.
                if let Some(why) = ended.failure() {
                    println!("{at}: once more: {why}");
                    ended = place.run(block.text(&text))?;
                }
                println!("{at}: {} ({:.1} s)", ended.verdict(), started.elapsed().as_secs_f64());
                findings.extend(ended.failure().map(|why| format!("{at}: {why}")));
                printed = Some(ended);
                continue;
            }
            Mark::Output => match &printed {
                None => findings.push(format!("{at}: output of no command")),
                Some(ended) if output::is_same(block.text(&text), &ended.output) => {}
                Some(ended) if write => {
                    changed.push((block.clone(), output::for_page(&ended.output)));
                }
                Some(ended) => findings.push(format!(
                    "{at}: the command prints something else (`cargo xtask commands --write` writes \
                     it into the page):\n{}",
                    output::for_page(&ended.output)
                )),
            },
        }
        printed = None;
    }
    if !changed.is_empty() {
        store(&path, &text, changed).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(findings)
}

/// Writes a page with other texts in some of its blocks.
fn store(path: &Path, text: &str, changed: Vec<(Block, String)>) -> std::io::Result<()> {
    let mut new = text.to_owned();
    for (block, content) in changed.into_iter().rev() {
        new.replace_range(block.range, &content);
    }
    std::fs::write(path, new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_commands_and_say_why_some_are_not_run() {
        let pages = chosen(&[]).unwrap();
        assert!(pages.iter().any(|page| page.starts_with("docs/learn-")), "{pages:?}");
        for page in &pages {
            let text = std::fs::read_to_string(root().join(page)).unwrap();
            page::blocks(&text).unwrap_or_else(|why| panic!("{page}: {why}"));
        }
        assert!(chosen(&["no such page".into()]).is_err());
    }

    #[test]
    fn blocks_are_written_from_the_last_to_the_first() {
        let text = "```text output\nold\n```\nand\n```text output\nolder\n```\n";
        let blocks = page::blocks(text).unwrap();
        let changed: Vec<_> =
            blocks.into_iter().map(|b| (b, "a longer one\n".to_owned())).collect();
        let path = std::env::temp_dir().join(format!("vernic-page-{}.md", std::process::id()));
        store(&path, text, changed).unwrap();
        let new = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let block = "```text output\na longer one\n```\n";
        assert_eq!(new, format!("{block}and\n{block}"));
    }
}
