//! `cargo xtask book`: docs/ as a book, by mdBook, and the links of what it makes.
//!
//! Pages in docs/ are read on a repository's web view, too, so they link to files outside as
//! `../README.md`. The book has no such files: while it is built, mdBook passes each page through
//! `cargo xtask links-out`, which makes them links to the repository. Pictures are in the book, by
//! the symbolic link docs/charts. What was built is then checked: each link leads to a file of the
//! book and, behind a `#`, to an element of that file.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::plan::none_of;
use crate::shell::run;
use crate::{Result, links, root, tools};

/// The pages.
const SOURCE: &str = "docs";
/// Where book.toml has mdBook put the book.
const BUILT: &str = "target/book";
/// Where the files are that are not in the book.
const REPOSITORY: &str = "https://github.com/vernic/vernic/blob/main";
/// Pictures, which are in the book and in the repository: their folder, and how their names end.
const PICTURES: (&str, &str) = ("charts/", ".svg");
/// Files of mdBook's own, whose links begin elsewhere or repeat those of all pages.
const LEFT_OUT: &[&str] = &["404.html", "print.html", "toc.html"];

/// `cargo xtask book`: installs mdBook if need be, builds the book and checks it.
pub(crate) fn book() -> Result {
    tools::mdbook()?;
    check()?;
    println!("{}", root().join(BUILT).join("index.html").display());
    Ok(())
}

/// A step of `cargo xtask test`: builds the book and checks it.
pub(crate) fn check() -> Result {
    run("mdbook build").limit_min(10).go()?;
    let pages = pages(&root().join(BUILT))?;
    let findings = broken(&pages, |path| root().join(BUILT).join(path).is_file());
    println!("{} pages", pages.len());
    for finding in &findings {
        println!("{finding}");
    }
    none_of(&findings)
}

/// The pages that were built, by their paths in the book.
fn pages(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        let place = folder.join(&below);
        let why = |e| format!("{}: {e}", place.display());
        for entry in std::fs::read_dir(&place).map_err(why)? {
            let entry = entry.map_err(why)?;
            let path = below.join(entry.file_name());
            if entry.file_type().map_err(why)?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                let name = path.display().to_string();
                if !LEFT_OUT.contains(&&*name) {
                    pages.insert(name, std::fs::read_to_string(entry.path()).map_err(why)?);
                }
            }
        }
    }
    Ok(pages)
}

/// Links of built pages that lead nowhere.
fn broken(pages: &BTreeMap<String, String>, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, html) in pages {
        let targets = ["href=\"", "src=\""].into_iter().flat_map(|mark| html.split(mark).skip(1));
        for target in targets.filter_map(|rest| rest.split('"').next()) {
            let elsewhere = ["http", "data:", "mailto:", "javascript:"];
            if target.is_empty() || elsewhere.iter().any(|start| target.starts_with(start)) {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let whole = if path.is_empty() { name.clone() } else { links::beside(name, path) };
            let has_anchor = || {
                let quoted = format!("id=\"{anchor}\"");
                pages.get(&whole).is_none_or(|html| html.contains(&quoted))
            };
            if !exists(&whole) {
                findings.push(format!("{BUILT}/{name}: `{target}` leads to no file of the book"));
            } else if !anchor.is_empty() && !has_anchor() {
                findings.push(format!("{BUILT}/{name}: `{target}` names no part of {whole}"));
            }
        }
    }
    findings
}

/// `cargo xtask links-out`: mdBook's preprocessor. Reads what mdBook says of the book on standard
/// input, and prints the book with its links changed.
pub(crate) fn links_out(arguments: &[String]) -> Result {
    // "Do you support the renderer of this name?": yes.
    if arguments.first().is_some_and(|word| word == "supports") {
        return Ok(());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| format!("standard input: {e}"))?;
    println!("{}", changed(&text)?);
    Ok(())
}

/// The book of mdBook's `[context, book]`, with the links of its chapters changed.
fn changed(text: &str) -> Result<Value> {
    const WHAT: &str = "mdBook passes its preprocessors a list of context and book";
    let whole: Value = serde_json::from_str(text).map_err(|e| format!("{WHAT}: {e}"))?;
    let Value::Array(parts) = whole else { return Err(WHAT.into()) };
    let mut book = parts.into_iter().nth(1).ok_or(WHAT)?;
    change(&mut book);
    Ok(book)
}

/// Changes the links of all chapters in a part of the book: objects with a text and a path.
fn change(part: &mut Value) {
    match part {
        Value::Array(items) => items.iter_mut().for_each(change),
        Value::Object(fields) => {
            let path = fields.get("path").and_then(Value::as_str).map(str::to_owned);
            if let (Some(path), Some(Value::String(content))) = (path, fields.get_mut("content")) {
                *content = with_links_out(&path, content);
            }
            fields.values_mut().for_each(change);
        }
        _ => {}
    }
}

/// A page whose links outside of docs/ lead to the repository. Code stays as it is.
fn with_links_out(path: &str, page: &str) -> String {
    let page_path = format!("{SOURCE}/{path}");
    let mut text = String::with_capacity(page.len());
    for (at, piece) in page.split("```").enumerate() {
        if at > 0 {
            text += "```";
        }
        if at % 2 == 1 {
            text += piece;
            continue;
        }
        for (at, piece) in piece.split("](").enumerate() {
            if at == 0 {
                text += piece;
                continue;
            }
            let end = piece.find([')', ' ']).unwrap_or(piece.len());
            let (target, rest) = piece.split_at(end);
            text += "](";
            text += &in_book(&page_path, target);
            text += rest;
        }
    }
    text
}

/// The target of a link as the book has it.
fn in_book(page: &str, target: &str) -> String {
    let (path, anchor) = target.split_at(target.find('#').unwrap_or(target.len()));
    if path.is_empty() || !links::is_relative(path) {
        return target.to_owned();
    }
    let whole = links::beside(page, path);
    match whole.strip_prefix("docs/") {
        // mdBook names it index.md.
        Some("README.md") => format!("index.md{anchor}"),
        Some(_) => target.to_owned(),
        None if is_picture(&whole) => format!("{whole}{anchor}"),
        None => format!("{REPOSITORY}/{whole}{anchor}"),
    }
}

fn is_picture(path: &str) -> bool {
    path.starts_with(PICTURES.0) && path.ends_with(PICTURES.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_leave_the_book_lead_to_the_repository_and_code_stays() {
        let page = "[r](../README.md#x) ![p](../charts/networks/a.svg) [b](b.md#y) [l](README.md) \
                    [c](../crates/a/b.rs) [d](../charts/readings) [u](https://x.y/z)\n```sh\n[r](../README.md)\n```\n";
        let new = with_links_out("a.md", page);
        let expected = format!(
            "[r]({REPOSITORY}/README.md#x) ![p](charts/networks/a.svg) [b](b.md#y) [l](index.md) \
             [c]({REPOSITORY}/crates/a/b.rs) [d]({REPOSITORY}/charts/readings) [u](https://x.y/z)\n```sh\n[r](../README.md)\n```\n"
        );
        assert_eq!(new, expected);
    }

    #[test]
    fn every_chapter_that_mdbook_passes_is_changed() {
        let chapter = |content: &str, items: Value| serde_json::json!({"Chapter": {"content": content, "path": "a.md", "sub_items": items}});
        let inner = chapter("[r](../README.md)", serde_json::json!([]));
        let outer = chapter("none", serde_json::json!([inner, "Separator"]));
        let input = serde_json::json!([{"root": "/"}, {"sections": [outer]}]).to_string();
        let book = changed(&input).unwrap();
        let content = &book["sections"][0]["Chapter"]["sub_items"][0]["Chapter"]["content"];
        assert_eq!(content, &format!("[r]({REPOSITORY}/README.md)"));
        assert!(changed("{}").is_err() && changed("[1]").is_err() && changed("x").is_err());
    }

    #[test]
    fn links_of_the_book_that_lead_nowhere_are_found() {
        let html = "<a href=\"b.html#two\"></a><a href=\"b.html#three\"></a><img src=\"no.svg\">\
                    <a href=\"https://x.y\"></a><a id=\"here\" href=\"#here\"></a>";
        let pages: BTreeMap<String, String> =
            [("a.html", html), ("b.html", "<h2 id=\"two\"></h2>")]
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .into();
        let findings = broken(&pages, |path| path.ends_with(".html"));
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings.iter().any(|f| f.contains("`no.svg`")));
        assert!(findings.iter().any(|f| f.contains("`b.html#three` names no part of b.html")));
    }

    #[test]
    fn the_address_of_the_repository_is_that_of_the_manifest() {
        let of = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
        let address = REPOSITORY.strip_suffix("/blob/main").unwrap();
        assert!(of("Cargo.toml").contains(&format!("repository = \"{address}\"")));
        assert!(of("book.toml").contains(&format!("git-repository-url = \"{address}\"")));
    }
}
