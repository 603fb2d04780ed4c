//! The settings in docs/settings.md (the table) and docs/setting-meanings.md (what each does): the
//! engine's own table, as `vernic config --json` prints it.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::Result;
use crate::pages::Part;
use crate::shell::run;

const BEGIN: &str = "<!-- settings: begin (written by `cargo xtask settings`, do not edit) -->";
const END: &str = "<!-- settings: end -->";

const TABLE: Part = Part { page: "docs/settings.md", begin: BEGIN, end: END };
const MEANINGS: Part = Part { page: "docs/setting-meanings.md", begin: BEGIN, end: END };

/// A row of the engine's table. The present value, which the JSON has too, is this machine's.
#[derive(Deserialize)]
struct Setting {
    name: String,
    default: String,
    variable: String,
    allowed: String,
    meaning: String,
}

/// The command that tells the settings, built quickly.
const QUICK: &str = "cargo run --quiet -p vernic-cli --";
/// The command as all of `cargo xtask test` needs it, so that it is not built once more.
const RELEASE: &str = "cargo run --release --quiet --";

/// Checks that the pages have the engine's settings, which the command tells: the one that is built
/// quickly, or that of a release.
pub(crate) fn check(release: bool) -> Result {
    for (part, text) in parts(if release { RELEASE } else { QUICK })? {
        if !part.is(&text)? {
            let page = part.page;
            let why = "the settings are not the engine's; run `cargo xtask settings`";
            return Err(format!("{page}: {why}"));
        }
    }
    Ok(())
}

/// Rewrites the parts of the pages.
pub(crate) fn write() -> Result {
    for (part, text) in parts(QUICK)? {
        let changed = part.write(&text)?;
        println!("{} {}", part.page, if changed { "is rewritten" } else { "was right" });
    }
    Ok(())
}

fn parts(vernic: &str) -> Result<[(Part, String); 2]> {
    let command = format!("{vernic} config --json");
    // A settings file of this machine must not matter.
    let json = run(&command).env("VERNIC_CONFIG", "/dev/null").limit_min(20).output()?;
    let settings: Vec<Setting> =
        serde_json::from_str(&json).map_err(|e| format!("`{command}`: {e}"))?;
    Ok([(TABLE, table(&settings)), (MEANINGS, meanings(&settings))])
}

fn table(settings: &[Setting]) -> String {
    let mut text = String::from("| setting | variable | default | values |\n|---|---|---|---|\n");
    for Setting { name, default, variable, allowed, .. } in settings {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        // Writing to a String does not fail.
        let _ = writeln!(text, "| `{name}` | `{variable}` | {default} | {allowed} |");
    }
    text
}

fn meanings(settings: &[Setting]) -> String {
    let line = |Setting { name, meaning, .. }: &Setting| format!("- `{name}`: {meaning}\n");
    settings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_has_a_row_and_a_line() {
        let json = r#"[{"name": "mtu", "value": "1", "default": "0", "variable": "VERNIC_MTU",
            "allowed": "bytes", "meaning": "Upper bound."}]"#;
        let settings = serde_json::from_str::<Vec<Setting>>(json).unwrap();
        assert!(table(&settings).ends_with("| `mtu` | `VERNIC_MTU` | `0` | bytes |\n"));
        assert_eq!(meanings(&settings), "- `mtu`: Upper bound.\n");
    }
}
