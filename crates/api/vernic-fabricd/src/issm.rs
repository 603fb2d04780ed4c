//! The files that subnet managers open for as long as they manage the subnet, as the kernel has
//! `/dev/infiniband/issm0`: a FIFO for each port that was asked for, in a folder that is watched.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use vernic_attach::path;
use vernic_fabric::Time;
use vernic_sys::{FileEvent, FileWatch};
use vernic_wire::{Guid, PortNum};

use crate::error::FabricError;
use crate::world::World;

/// The folder of the files, and the watch on it. The folder goes with it.
#[derive(Debug)]
pub(crate) struct IssmFiles {
    folder: PathBuf,
    watch: FileWatch,
    /// Ports whose file is open.
    open: HashSet<(Guid, PortNum)>,
}

impl IssmFiles {
    /// Makes the folder, without what a process left behind that was killed.
    pub(crate) fn new(sockets: &Path, name: &str) -> Result<Self, FabricError> {
        let folder = path::issm_folder_in(sockets, name)?;
        let failed = FabricError::io("make the folder of files that subnet managers open");
        let _ = fs::remove_dir_all(&folder);
        path::prepare(&folder)?;
        let watch = FileWatch::new(&folder).map_err(failed)?;
        Ok(Self { folder, watch, open: HashSet::new() })
    }
    /// Takes the news: who has opened a file, or closed it. The end of a process closes its files.
    pub(crate) fn handle(&mut self, world: &mut World, now: Time) {
        let mut news = Vec::new();
        // Without more news, or with an error of the watch, there is nothing to do.
        while let Ok(true) = self.watch.read(|name, event| news.push((name.to_vec(), event))) {}
        for (name, event) in news {
            let Ok(text) = std::str::from_utf8(&name) else { continue };
            let Some((guid, port)) = path::issm_port(text) else { continue };
            let Some(at) = world.host_of_guid(guid) else { continue };
            // Several openings are one event, and so are several closings.
            match event {
                FileEvent::Opened if self.open.insert((guid, port)) => {
                    world.count_manager(at, port, true, now);
                }
                FileEvent::Closed
                    if !is_read(&self.folder.join(text)) && self.open.remove(&(guid, port)) =>
                {
                    world.count_manager(at, port, false, now);
                }
                FileEvent::Opened | FileEvent::Closed | FileEvent::Lost => {}
            }
        }
    }
}

/// Returns whether a process has a FIFO open for reading: only then it opens for writing without
/// waiting.
fn is_read(path: &Path) -> bool {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).is_ok()
}

impl AsFd for IssmFiles {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl Drop for IssmFiles {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
