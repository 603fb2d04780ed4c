//! What packages have beside the command: completions of shells and manual pages, both from the
//! description of the command line.

use std::path::Path;

use clap::CommandFactory as _;

use crate::args::Arguments;
use crate::failure::{Doing as _, Outcome};
use crate::table::print;

/// `vernic completions`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Outcome<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "vernic", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// `vernic man-pages`.
pub(crate) fn pages(folder: &Path) -> Outcome<()> {
    clap_mangen::generate_to(Arguments::command(), folder)
        .doing(|| format!("write manual pages into {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_none_that_is_hidden() {
        let folder = std::env::temp_dir().join(format!("vernic-man-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        pages(&folder).unwrap();
        let there = |name: &str| folder.join(name).is_file();
        for name in ["vernic.1", "vernic-run.1", "vernic-stat.1", "vernic-fabric-up.1"] {
            assert!(there(name), "{name}");
        }
        assert!(!there("vernic-man-pages.1"));
        let text = std::fs::read_to_string(folder.join("vernic-run.1")).unwrap();
        assert!(text.contains("iwarp"), "{text}");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(pages(&folder).unwrap_err().to_string().contains("write manual pages into"));
    }
}
