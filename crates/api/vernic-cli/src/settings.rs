//! The settings that every command starts from, and `vernic config`, which lists them with their
//! values and origins.

use crate::failure::{Failure, Outcome};
use crate::table::{print, print_json};
use serde::Serialize;
use std::fmt::Write as _;
use vernic::{Config, Settings};

/// A row of `vernic config`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    /// `default`, `file PATH line N`, `environment variable NAME`.
    origin: String,
    default: String,
    variable: &'static str,
    allowed: &'static str,
    meaning: String,
}

/// Reads the settings from file and environment, for every command. A wrong name or value is wrong
/// usage, whether or not the command needs that setting.
pub(crate) fn load() -> Outcome<Settings> {
    Settings::load().map_err(|error| Failure::usage(format!("cannot read the settings: {error}")))
}

/// `vernic config`.
pub(crate) fn show(settings: &Settings, json: bool) -> Outcome<()> {
    let defaults = Config::default();
    let rows: Vec<Setting> = settings
        .rows()
        .zip(defaults.values())
        .map(|((key, value, origin), (_, default))| Setting {
            name: key.name,
            value,
            origin: origin.to_string(),
            default,
            variable: key.variable,
            allowed: key.unit,
            meaning: key.doc.split_whitespace().collect::<Vec<_>>().join(" "),
        })
        .collect();
    if json { print_json(&rows) } else { print(&text(&rows)) }
}

fn text(settings: &[Setting]) -> String {
    let shown = |value: &str| if value.is_empty() { "(empty)".into() } else { value.to_owned() };
    let mut text = String::new();
    for Setting { name, value, origin, default, variable, allowed, meaning } in settings {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name} = {}  (from: {origin})", shown(value));
        let _ = writeln!(text, "  {meaning}");
        let changed = match value == default {
            true => String::new(),
            false => format!("; default {}", shown(default)),
        };
        let _ = writeln!(text, "  {variable}: {allowed}{changed}\n");
    }
    text.push_str(
        "Set in the environment, or as `name = value` in the file that VERNIC_CONFIG names, else in\n\
         $XDG_CONFIG_HOME/vernic.conf (~/.config/vernic.conf), else in /etc/vernic.conf. The\n\
         environment wins over the file, and what a program sets in code over both.\n",
    );
    text
}
