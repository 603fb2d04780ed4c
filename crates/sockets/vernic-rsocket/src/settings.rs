//! Sizes that sockets start with, and the files in which an administrator sets others.
//!
//! The files are those of rdma-core's rsockets: one number each, in `/etc/rdma/rsocket`. What
//! cannot be read keeps its default.

use std::path::Path;
use std::time::Duration;

use crate::stream::Limits;
use crate::wire::IomapScale;

/// Where the files are.
const FOLDER: &str = "/etc/rdma/rsocket";

/// What sockets start with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Sizes of streams; datagrams take their queues and buffers from the same numbers.
    pub limits: Limits,
    /// How long a call that waits looks again and again before it sleeps.
    pub polling_time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits {
                send_bytes: 1 << 17,
                recv_bytes: 1 << 17,
                send_requests: 384,
                recv_messages: 384,
                inline_bytes: 64,
                iomap: IomapScale(0),
            },
            polling_time: Duration::from_micros(10),
        }
    }
}

impl Settings {
    /// Defaults, and what the files say.
    pub fn load() -> Self {
        Self::from_folder(Path::new(FOLDER))
    }

    fn from_folder(folder: &Path) -> Self {
        let mut settings = Self::default();
        let number = |name: &str| -> Option<u32> {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        let short = |name: &str| number(name).map(|n| n.min(u16::MAX.into()) as u16);
        let limits = &mut settings.limits;
        limits.recv_bytes = number("mem_default").unwrap_or(limits.recv_bytes);
        limits.send_bytes = number("wmem_default").unwrap_or(limits.send_bytes);
        limits.send_requests = short("sqsize_default").unwrap_or(limits.send_requests);
        limits.recv_messages = short("rqsize_default").unwrap_or(limits.recv_messages);
        limits.inline_bytes = number("inline_default").unwrap_or(limits.inline_bytes);
        limits.iomap = short("iomap_size").map_or(limits.iomap, IomapScale::of);
        *limits = limits.clamped();
        if let Some(us) = number("polling_time") {
            settings.polling_time = Duration::from_micros(us.into());
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_what_they_name_and_nonsense_changes_nothing() {
        let folder = std::env::temp_dir().join(format!("vernic-rsocket-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("mem_default", "1000000\n");
        write("wmem_default", "12k");
        write("sqsize_default", "4");
        write("iomap_size", "300");
        write("polling_time", "0");
        let settings = Settings::from_folder(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let default = Settings::default().limits;
        let expected = Limits {
            recv_bytes: 1_000_000,
            send_requests: Limits::MIN_QUEUE,
            iomap: IomapScale::of(256),
            ..default
        };
        assert_eq!((settings.limits, settings.polling_time), (expected, Duration::ZERO));
    }
}
