//! The table of settings in README.md: the engine's own table, as `vernic config --json` prints it.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::Result;
use crate::pages::Part;
use crate::shell::run;

const TABLE: Part = Part {
    page: "README.md",
    begin: "<!-- settings: begin (written by `cargo xtask settings`, do not edit) -->",
    end: "<!-- settings: end -->",
};

/// A row of the engine's table. The present value, which the JSON has too, is this machine's.
#[derive(Deserialize)]
struct Setting {
    name: String,
    default: String,
    variable: String,
    allowed: String,
    meaning: String,
}

/// Whether the page has the engine's table.
pub(crate) fn check() -> Result {
    if TABLE.is(&table()?)? {
        return Ok(());
    }
    Err("README.md: the settings are not the engine's; run `cargo xtask settings`".into())
}

/// Rewrites the page's table.
pub(crate) fn write() -> Result {
    let changed = TABLE.write(&table()?)?;
    println!("README.md {}", if changed { "is rewritten" } else { "was right" });
    Ok(())
}

fn table() -> Result<String> {
    // A settings file of this machine must not matter.
    let command = "cargo run --quiet -p vernic-cli -- config --json";
    let json = run(command).env("VERNIC_CONFIG", "/dev/null").limit_min(20).output()?;
    let settings: Vec<Setting> =
        serde_json::from_str(&json).map_err(|e| format!("`{command}`: {e}"))?;
    Ok(render(&settings))
}

fn render(settings: &[Setting]) -> String {
    let mut text = String::from("| setting | variable | default | values |\n|---|---|---|---|\n");
    for Setting { name, default, variable, allowed, .. } in settings {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        // Writing to a String does not fail.
        let _ = writeln!(text, "| `{name}` | `{variable}` | {default} | {allowed} |");
    }
    text.push('\n');
    for Setting { name, meaning, .. } in settings {
        let _ = writeln!(text, "- `{name}`: {meaning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_has_a_row_and_a_line() {
        let json = r#"[{"name": "mtu", "value": "1", "default": "0", "variable": "VERNIC_MTU",
            "allowed": "bytes", "meaning": "Upper bound."}]"#;
        let text = render(&serde_json::from_str::<Vec<Setting>>(json).unwrap());
        assert!(text.contains("| `mtu` | `VERNIC_MTU` | `0` | bytes |"), "{text}");
        assert!(text.ends_with("\n- `mtu`: Upper bound.\n"), "{text}");
    }
}
