//! The files of readings: what the last runs measured, from which the pages are written.

use std::io::Read;
use std::path::Path;

use crate::{Result, root};

/// Where they lie, relative to the root.
const FOLDER: &str = "charts/readings";

/// The file of a measurement, relative to the root.
pub(super) fn file(name: &str) -> String {
    format!("{FOLDER}/{name}.json")
}

/// Keeps a measurement in place of the one before.
pub(super) fn keep(name: &str, json: &str) -> Result {
    let file = file(name);
    std::fs::write(root().join(&file), format!("{}\n", json.trim_end()))
        .map_err(|e| format!("{file}: {e}"))?;
    println!("the readings are kept in {file}");
    Ok(())
}

/// The measurement that is kept.
pub(super) fn kept(name: &str) -> Result<String> {
    from(&root().join(file(name)))
}

/// The text of a file, or of standard input ("-").
pub(super) fn from(path: &Path) -> Result<String> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        return read.map(|_| text).map_err(|e| format!("standard input: {e}"));
    }
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}
