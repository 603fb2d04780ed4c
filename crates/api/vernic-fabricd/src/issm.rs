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
        let are_lost = news.iter().any(|(_, event)| *event == FileEvent::Lost);
        for (name, event) in news {
            let Ok(name) = std::str::from_utf8(&name) else { continue };
            // Several openings are one event, and so are several closings.
            match event {
                FileEvent::Opened => self.note(world, name, true, now),
                FileEvent::Closed if !is_read(&self.folder.join(name)) => {
                    self.note(world, name, false, now);
                }
                FileEvent::Closed | FileEvent::Lost => {}
            }
        }
        if are_lost {
            self.look(world, now);
        }
    }
    /// Looks at all files, since events were lost.
    fn look(&mut self, world: &mut World, now: Time) {
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        for name in files.filter_map(|file| file.ok()?.file_name().into_string().ok()) {
            let is_open = is_read(&self.folder.join(&name));
            self.note(world, &name, is_open, now);
        }
    }
    /// Notes whether the file of a port is open.
    fn note(&mut self, world: &mut World, name: &str, is_open: bool, now: Time) {
        let Some(port) = path::issm_port(name) else { return };
        let Some(at) = world.host_of_guid(port.0) else { return };
        let is_new = if is_open { self.open.insert(port) } else { self.open.remove(&port) };
        if is_new {
            world.count_manager(at, port.1, is_open, now);
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

#[cfg(test)]
mod tests {
    use vernic_fabric::subnet::SubnetConfig;
    use vernic_fabric::topology::Topology;

    use super::*;

    #[test]
    fn a_manager_is_seen_though_the_system_has_lost_events() {
        let folder = std::env::temp_dir().join(format!("vernic-issm-{}", std::process::id()));
        path::prepare(&folder).unwrap();
        let mut files = IssmFiles::new(&folder, "lab").unwrap();
        let plan = Topology::single("lab", 2).unwrap();
        let mut world = World::new("lab", plan, SubnetConfig::UNPACED);
        let one = PortNum(1);
        let file = |world: &World, at: usize| {
            let node = &world.plan.nodes()[world.hosts[at].node.0 as usize];
            path::issm_in(&folder, "lab", node.guid, one).unwrap()
        };
        let paths = [file(&world, 0), file(&world, 1)];
        let open =
            |path| OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
        let managers = |world: &World| [0, 1].map(|at| world.hosts[at].ports[0].managers);
        let before = open(&paths[0]);
        files.handle(&mut world, Time(0));
        assert_eq!(managers(&world), [1, 0]);

        // As many events as the system keeps, and some more.
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        for _ in 0..limit.trim().parse::<usize>().unwrap() / 2 + 10 {
            drop(open(&paths[1]));
        }
        drop(before);
        let after = open(&paths[1]);
        files.handle(&mut world, Time(0));
        assert_eq!(managers(&world), [0, 1]);
        files.handle(&mut world, Time(0));
        drop(after);
        files.handle(&mut world, Time(0));
        assert_eq!(managers(&world), [0, 0]);
        drop(files);
        fs::remove_dir_all(&folder).unwrap();
    }
}
