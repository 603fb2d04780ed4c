//! The files that subnet managers open for as long as they manage the subnet, as the kernel has
//! `/dev/infiniband/issm0`: a FIFO for each port that was asked for, in a folder that is watched.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use vernic_attach::path;
use vernic_fabric::Time;
use vernic_sys::{FileEvent, FileWatch};

use crate::error::FabricError;
use crate::world::World;

/// The folder of the files, and the watch on it. The folder goes with it.
#[derive(Debug)]
pub(crate) struct IssmFiles {
    folder: PathBuf,
    watch: FileWatch,
}

impl IssmFiles {
    /// Makes the folder, without what a process left behind that was killed.
    pub(crate) fn new(sockets: &Path, name: &str) -> Result<Self, FabricError> {
        let folder = path::issm_folder_in(sockets, name)?;
        let failed = FabricError::io("make the folder of files that subnet managers open");
        let _ = fs::remove_dir_all(&folder);
        path::prepare(&folder)?;
        let watch = FileWatch::new(&folder).map_err(failed)?;
        Ok(Self { folder, watch })
    }
    /// Takes the news: who has opened a file, or closed it. The end of a process closes its files.
    pub(crate) fn handle(&self, world: &mut World, now: Time) {
        let mut news = Vec::new();
        // Without more news, or with an error of the watch, there is nothing to do.
        while let Ok(true) = self.watch.read(|name, event| news.push((name.to_vec(), event))) {}
        for (name, event) in news {
            let port = std::str::from_utf8(&name).ok().and_then(path::issm_port);
            let Some((guid, port)) = port else { continue };
            let Some(at) = world.host_of_guid(guid) else { continue };
            match event {
                FileEvent::Opened => world.count_manager(at, port, true, now),
                FileEvent::Closed => world.count_manager(at, port, false, now),
                FileEvent::Lost => {}
            }
        }
    }
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
