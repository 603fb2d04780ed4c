//! Why a fabric process does not start, or ends.

use std::io;
use std::path::PathBuf;

use vernic_attach::AttachError;

/// The reason why a fabric process does not start, or does not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The name or the folder of its socket cannot be used.
    #[error(transparent)]
    Socket(#[from] AttachError),
    /// Another process has this name.
    #[error(
        "a fabric called {name:?} runs already, in process {pid}; choose another name (--name), or \
         end that one"
    )]
    Runs {
        /// The name.
        name: String,
        /// The process.
        pid: u32,
    },
    /// The capture cannot be written.
    #[error("cannot write the capture {path:?}: {source}")]
    Capture {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The own subnet manager has no host to be at.
    #[error("the plan has no host, and a subnet manager is at one: add a host, or leave out --sm")]
    NoHost,
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was to be done.
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl FabricError {
    /// Makes an error of a system call; `doing` says what for.
    pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
