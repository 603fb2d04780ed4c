//! Where Vernic's libraries are.

use super::names::LIBRARIES;
use super::{Entry, bundle};
use crate::failure::{Doing as _, Failure, Outcome};
use std::path::{Path, PathBuf};

/// Folder of the links, in the user's folder.
pub(super) const FOLDER: &str = "lib";

/// The library to preload.
pub(super) const PATHS: &str = "libvernic_paths.so";

/// The library to preload for programs that speak TCP.
pub(super) const RSOCKETS: &str = "librspreload.so";

/// The libraries that belong to this command.
#[derive(Debug)]
pub(super) struct Libraries {
    folder: PathBuf,
}

impl Libraries {
    /// Beside the command, as cargo leaves them, or in `../lib/vernic`, as they are installed; else
    /// those that the command carries.
    pub(super) fn find() -> Outcome<Self> {
        let command = std::env::current_exe().doing(|| "find the vernic command itself".into())?;
        let beside = command.parent().unwrap_or(Path::new("/")).to_path_buf();
        let installed = beside.parent().unwrap_or(Path::new("/")).join("lib/vernic");
        let has_all = |folder: &&PathBuf| missing(folder).is_none();
        if let Some(folder) = [&beside, &installed].into_iter().find(has_all) {
            return Ok(Self { folder: folder.clone() });
        }
        if let Some(folder) = bundle::unpacked() {
            return Ok(Self { folder: folder? });
        }
        let library = missing(&beside).unwrap_or_default();
        let (beside, installed) = (beside.display(), installed.display());
        Err(Failure::new(format!("{library} is neither in {beside} nor in {installed}")).hint(
            "`cargo build --release` in Vernic's repository makes the command and its libraries; \
             keep them together, or put the libraries into lib/vernic beside the command's bin. \
             `BUNDLE_VERNIC=build cargo install` makes a command that carries them",
        ))
    }

    /// The folder that they are in.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The links that programs find, each under a name that programs were linked against.
    pub(super) fn links(&self) -> Vec<Entry> {
        let names = LIBRARIES.iter().flat_map(|(file, names)| names.iter().map(move |n| (file, n)));
        names
            .map(|(file, name)| Entry::link(format!("{FOLDER}/{name}"), self.folder.join(file)))
            .collect()
    }
}

/// The first library that a folder lacks.
fn missing(folder: &Path) -> Option<&'static str> {
    LIBRARIES.iter().map(|(file, _)| *file).find(|file| !folder.join(file).is_file())
}
