//! Import cycles between the modules of a crate.
//!
//! Modules that stand beside each other form floors: each imports from those below it, never from
//! one that imports from it, at whatever distance. Files and folders below a module count as that
//! module; its unit tests do not count. What is imported is what `use` and other paths name,
//! through re-exports to the module that has the item. Calls of methods name no module, and are not
//! seen.
//!
//! [`ALLOWED`] is a ratchet: the cycles that there are, to be made fewer; more, and fewer without
//! writing that down, are errors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use crate::{Result, root};

/// Modules of a crate that may be in a cycle with their neighbours; none where a crate is not
/// named.
const ALLOWED: &[(&str, usize)] =
    &[("vernic-abi", 24), ("vernic-rsocket", 5), ("vernic-rspreload", 5)];

/// A module's path in its crate; the crate's root is empty.
type ModPath = Vec<String>;

/// A crate's modules: what each imports, and what each re-exports.
#[derive(Default)]
struct Krate {
    modules: BTreeMap<ModPath, Module>,
}

#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Absolute paths that its code names, each with a line.
    named: Vec<(ModPath, usize)>,
    /// Names that its `use`s bring into it, and what they mean.
    brought: BTreeMap<String, ModPath>,
}

/// An import from a module to another that stands beside it.
struct Import {
    from: PathBuf,
    line: usize,
    item: String,
    /// How many names of the one the other uses.
    count: usize,
}

/// Every crate's cycles against [`ALLOWED`]: a finding for each crate that differs.
pub(crate) fn check() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (name, folder) in crates()? {
        let Some(krate) = read(&folder.join("src"))? else { continue };
        let knots = knots(&krate);
        let count: usize = knots.iter().map(|(members, _)| members.len()).sum();
        let allowed = ALLOWED.iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| *count);
        if count == allowed {
            continue;
        }
        let table = "ALLOWED in xtask/src/cycles.rs";
        let what = match count < allowed {
            true => format!(
                "{name}: {count} modules in import cycles, {table} says {allowed}: lower it"
            ),
            false => format!("{name}: {count} modules in import cycles, at most {allowed}"),
        };
        findings.push(what);
        if count > allowed {
            findings.extend(knots.into_iter().map(|(_, story)| story));
        }
    }
    Ok(findings)
}

/// Prints the imports between the modules of one crate that stand beside each other, with how many
/// lines make each; those inside a cycle are marked.
pub(crate) fn print(name: &str) -> Result {
    let found = crates()?.into_iter().find(|(n, _)| n == name);
    let (_, folder) = found.ok_or_else(|| format!("there is no crate `{name}`"))?;
    let Some(krate) = read(&folder.join("src"))? else { return Ok(()) };
    let members: BTreeSet<_> = knots(&krate).into_iter().flat_map(|(members, _)| members).collect();
    for (from, imports) in edges(&krate) {
        for (to, import) in imports {
            let mark = if members.contains(&from) && members.contains(&to) { "cycle" } else { "" };
            let (from, to) = (from.join("::"), to.join("::"));
            let place = format!("{}:{}", import.from.display(), import.line);
            println!("{from:<30} {to:<30} {:>3} {mark:<6} {place} {}", import.count, import.item);
        }
    }
    Ok(())
}

/// Every crate with its name and folder: those of the folders of layers, and this one.
fn crates() -> Result<Vec<(String, PathBuf)>> {
    let below = |folder: PathBuf| -> Result<Vec<PathBuf>> {
        std::fs::read_dir(&folder)
            .and_then(|entries| {
                entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()
            })
            .map_err(|e| format!("{}: {e}", folder.display()))
    };
    let mut folders = vec![root().join("xtask")];
    for layer in below(root().join("crates"))? {
        folders.extend(below(layer)?);
    }
    folders.sort();
    let name =
        |folder: &Path| folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(folders.into_iter().map(|folder| (name(&folder), folder)).collect())
}

/// The modules of a crate, from its root file; `None` if it has none.
fn read(src: &Path) -> Result<Option<Krate>> {
    let files = ["lib.rs", "main.rs"].map(|file| src.join(file));
    let Some(file) = files.into_iter().find(|file| file.exists()) else { return Ok(None) };
    let mut krate = Krate::default();
    krate.read_file(&file, src, Vec::new())?;
    Ok(Some(krate))
}

impl Krate {
    /// `folder` is where the files of its submodules are.
    fn read_file(&mut self, file: &Path, folder: &Path, path: ModPath) -> Result {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        self.read_items(&parsed.items, file, folder, path)
    }

    fn read_items(&mut self, items: &[Item], file: &Path, folder: &Path, path: ModPath) -> Result {
        let shown = file.strip_prefix(root()).unwrap_or(file).to_path_buf();
        let mut reader =
            Reader { path: path.clone(), module: Module { file: shown, ..Module::default() } };
        for item in items.iter().filter(|item| !is_test(item)) {
            let Item::Mod(module) = item else {
                reader.visit_item(item);
                continue;
            };
            let name = module.ident.to_string();
            let below = [path.clone(), vec![name.clone()]].concat();
            match &module.content {
                Some((_, items)) => self.read_items(items, file, &folder.join(&name), below)?,
                None => {
                    let flat = folder.join(format!("{name}.rs"));
                    let nested = folder.join(&name).join("mod.rs");
                    let file = if flat.exists() { flat } else { nested };
                    self.read_file(&file, &folder.join(&name), below)?;
                }
            }
        }
        self.modules.insert(path, reader.module);
        Ok(())
    }

    /// The module that has what an absolute path names: the longest part of the path that is one,
    /// and through its re-exports on.
    fn home(&self, path: &[String]) -> ModPath {
        let mut path = path.to_vec();
        // Each turn follows a re-export; a crate has no longer chain than modules.
        for _ in 0..self.modules.len() {
            let module = (0..=path.len()).rev().find(|n| self.modules.contains_key(&path[..*n]));
            let at = module.unwrap_or(0);
            let brought = path.get(at).and_then(|name| self.modules[&path[..at]].brought.get(name));
            match brought {
                // A name that stands for itself, as `use self::x` in `x`'s parent.
                Some(to) if to[..] != path[..=at] => path = [to, &path[at + 1..]].concat(),
                _ => return path[..at].to_vec(),
            }
        }
        path
    }
}

/// Whether an item is compiled for tests only.
fn is_test(item: &Item) -> bool {
    let attrs = match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        _ => return false,
    };
    is_for_tests(attrs)
}

fn is_for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().filter(|attr| attr.path().is_ident("cfg")).any(|attr| {
        let syn::Meta::List(list) = &attr.meta else { return false };
        let text = list.tokens.to_string();
        text.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
            && !text.contains("not")
    })
}

/// Collects what the code of one module names.
struct Reader {
    path: ModPath,
    module: Module,
}

impl Reader {
    /// The absolute path of one that begins with `crate`, `self` or `super`.
    fn absolute(&self, segments: &[String]) -> Option<ModPath> {
        let mut path = match segments.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => self.path.clone(),
            "super" => self.path[..self.path.len().checked_sub(1)?].to_vec(),
            _ => return None,
        };
        for segment in &segments[1..] {
            match segment.as_str() {
                "super" => drop(path.pop()?),
                "self" => {}
                _ => path.push(segment.clone()),
            }
        }
        Some(path)
    }

    fn name(&mut self, segments: &[String], line: usize) {
        if let Some(path) = self.absolute(segments) {
            self.module.named.push((path, line));
        }
    }

    fn import(&mut self, tree: &UseTree, before: &[String], line: usize) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), line),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, before, line));
            }
            UseTree::Glob(_) => self.name(before, line),
            UseTree::Name(name) => self.bring(&name.ident.to_string(), &with(&name.ident), line),
            UseTree::Rename(rename) => {
                self.bring(&rename.rename.to_string(), &with(&rename.ident), line);
            }
        }
    }

    fn bring(&mut self, name: &str, segments: &[String], line: usize) {
        self.name(segments, line);
        // A path without `crate` may begin with a submodule.
        let local = || [self.path.clone(), segments.to_vec()].concat();
        let path = self.absolute(segments).unwrap_or_else(local);
        self.module.brought.insert(name.to_owned(), path);
    }

    /// Paths in the tokens of a macro's call.
    fn name_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut colons, mut line) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if path.is_empty() || colons == 2 => {
                    line = ident.span().start().line;
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                }
                other => {
                    self.name(&std::mem::take(&mut path), line);
                    colons = 0;
                    match other {
                        TokenTree::Group(group) => self.name_tokens(group.stream()),
                        TokenTree::Ident(ident) => path.push(ident.to_string()),
                        _ => {}
                    }
                }
            }
        }
        self.name(&path, line);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let line = item.use_token.span.start().line;
        self.import(&item.tree, &[], line);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |s| s.ident.span().start().line);
        self.name(&segments, line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.name_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

/// The knots of a crate: modules beside each other that import each other, at whatever distance,
/// each with a line that tells an import of each member.
fn knots(krate: &Krate) -> Vec<(Vec<ModPath>, String)> {
    let edges = edges(krate);
    let reach: BTreeMap<&ModPath, BTreeSet<&ModPath>> =
        edges.keys().map(|from| (from, reachable(&edges, from))).collect();
    let mut knots: Vec<Vec<ModPath>> = Vec::new();
    for (from, reached) in &reach {
        if !reached.contains(from) || knots.iter().any(|members| members.contains(from)) {
            continue;
        }
        let back = |to: &&&ModPath| reach.get(**to).is_some_and(|r| r.contains(from));
        knots.push(reached.iter().filter(back).map(|m| (*m).clone()).collect());
    }
    let story = |members: &Vec<ModPath>| {
        let lines = members.iter().flat_map(|from| {
            let imports = edges[from].iter().filter(|(to, _)| members.contains(to));
            imports.map(|(to, i)| {
                let (from, to) = (from.join("::"), to.join("::"));
                format!("    {from} -> {to}: {}:{} names {}", i.from.display(), i.line, i.item)
            })
        });
        let names: Vec<_> = members.iter().map(|m| m.join("::")).collect();
        format!(
            "  cycle of {}: {}\n{}",
            members.len(),
            names.join(", "),
            lines.collect::<Vec<_>>().join("\n")
        )
    };
    knots
        .into_iter()
        .map(|members| {
            let told = story(&members);
            (members, told)
        })
        .collect()
}

/// What each module imports from those that stand beside it.
fn edges(krate: &Krate) -> BTreeMap<ModPath, BTreeMap<ModPath, Import>> {
    let mut edges: BTreeMap<ModPath, BTreeMap<ModPath, Import>> = BTreeMap::new();
    for (path, module) in &krate.modules {
        for (named, line) in &module.named {
            let home = krate.home(named);
            let common = path.iter().zip(&home).take_while(|(a, b)| a == b).count();
            if common == path.len() || common == home.len() {
                // A module and its own submodule are one floor.
                continue;
            }
            let [from, to] = [path, &home].map(|p| p[..=common].to_vec());
            let first = || Import {
                from: module.file.clone(),
                line: *line,
                item: named.join("::"),
                count: 0,
            };
            edges.entry(from).or_default().entry(to).or_insert_with(first).count += 1;
        }
    }
    edges
}

/// The modules that `from` imports, at whatever distance.
fn reachable<'a>(
    edges: &'a BTreeMap<ModPath, BTreeMap<ModPath, Import>>,
    from: &ModPath,
) -> BTreeSet<&'a ModPath> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&ModPath> = edges.get(from).into_iter().flat_map(BTreeMap::keys).collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(edges.get(module).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of these modules.
    fn krate(modules: &[(&str, &str)]) -> Krate {
        let mut krate = Krate::default();
        for (path, code) in modules {
            let path: ModPath =
                path.split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect();
            let items = syn::parse_file(code).unwrap().items;
            krate.read_items(&items, Path::new("a.rs"), Path::new(""), path).unwrap();
        }
        krate
    }

    fn members(modules: &[(&str, &str)]) -> Vec<String> {
        let knots = knots(&krate(modules));
        knots.iter().flat_map(|(members, _)| members).map(|m| m.join("::")).collect()
    }

    #[test]
    fn modules_that_import_each_other_are_a_cycle() {
        let ab = [("", ""), ("a", "use crate::b::B;"), ("b", "fn f() { crate::a::g(); }")];
        assert_eq!(members(&ab), ["a", "b"]);
        assert!(members(&ab[..2]).is_empty());
        let abc = [
            ("", ""),
            ("a", "use super::b::B;"),
            ("b", "use crate::c;"),
            ("c", "use crate::a::A;"),
        ];
        assert_eq!(members(&abc), ["a", "b", "c"]);
    }

    #[test]
    fn a_folder_counts_as_one_module_and_its_inside_apart() {
        let folder = [
            ("", ""),
            ("a", "mod_free!();"),
            ("a::x", "use super::y::Y;"),
            ("a::y", "use crate::b::B;"),
            ("b", "use crate::a::x::X;"),
        ];
        assert_eq!(members(&folder), ["a", "b"]);
        let inside =
            [("", ""), ("a", ""), ("a::x", "use super::y::Y;"), ("a::y", "use super::x::X;")];
        assert_eq!(members(&inside), ["a::x", "a::y"]);
    }

    #[test]
    fn re_exports_lead_to_the_module_that_has_the_item() {
        let root = "pub use a::A; pub use crate::b::B;";
        let through = [("", root), ("a", "use crate::B;"), ("b", "use crate::A;")];
        assert_eq!(members(&through), ["a", "b"]);
    }

    #[test]
    fn tests_and_parents_do_not_count_and_macros_do() {
        let tests = [
            ("", ""),
            ("a", "use crate::b::B;"),
            ("b", "#[cfg(test)] mod tests { use crate::a::A; }"),
        ];
        assert!(members(&tests).is_empty());
        let parent = [("", "use a::A; struct R;"), ("a", "use crate::R; use super::R as S;")];
        assert!(members(&parent).is_empty());
        let in_macro =
            [("", ""), ("a", "fn f() { log!(\"{}\", crate::b::B); }"), ("b", "use crate::a::A;")];
        assert_eq!(members(&in_macro), ["a", "b"]);
    }
}
