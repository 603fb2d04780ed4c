//! Requests of `NETLINK_RDMA` and what is answered: <rdma/rdma_netlink.h>, client `RDMA_NL_NLDEV`.
//!
//! Devices are those of the folder that is shown, with what its files say; counters, numbers of
//! objects and queue pairs are what the processes of this user tell when they are asked
//! ([`status`]). What nobody can know here (`RES_CM_ID_GET`, keys and domains one by one) and what
//! would change something is EOPNOTSUPP.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use message::{Message, Request, attr};

use crate::status;

mod message;

/// Bytes of an answer from which on the next attribute begins another: readers have room for a
/// page.
const FULL_BYTES: usize = 3500;
/// Most answers: all are sent before one is read, so they must fit the buffer of a netlink socket
/// (208 KiB, of which each takes some 5).
const MAX_ANSWERS: usize = 32;
/// Most queue pairs in one answer, of 68 bytes each.
const QPS_PER_ANSWER: usize = FULL_BYTES / 68;

/// Commands, as the header has them.
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const RES_QP_GET: u16 = 10;
    pub(super) const STAT_GET: u16 = 17;
}

/// What `SYS_GET` says of network namespaces: each has devices of its own, those on its netdevs.
const NETNS_EXCLUSIVE: u8 = 0;

/// The answers to what was sent by `port`; `None` if it is no request.
pub(crate) fn answers(bytes: &[u8], port: u32, folder: &CStr) -> Option<Vec<Vec<u8>>> {
    let request = Request::parse(bytes)?;
    let sys = Path::new(OsStr::from_bytes(folder.to_bytes())).join("sys/class");
    let messages = match answer(&request, &sys) {
        Ok(messages) if messages.len() <= MAX_ANSWERS => messages,
        Ok(_) => return Some(vec![request.error(libc::ENOBUFS, bytes, port)]),
        Err(error) => return Some(vec![request.error(error, bytes, port)]),
    };
    let mut answers: Vec<_> = messages.into_iter().map(|m| m.finish(&request, port)).collect();
    answers.extend(request.end(bytes, port));
    Some(answers)
}

fn answer(request: &Request, sys: &Path) -> Result<Vec<Message>, i32> {
    if !request.is_nldev() {
        return Err(libc::EOPNOTSUPP);
    }
    if request.command == command::SYS_GET {
        return Ok(vec![system()]);
    }
    let describe: fn(&Device, &mut Vec<Message>) -> Result<(), i32> = match request.command {
        command::GET => device,
        command::PORT_GET => port,
        command::RES_GET => summary,
        command::RES_QP_GET => queue_pairs,
        command::STAT_GET if request.is_of_objects => |_, _| Ok(()),
        command::STAT_GET => statistics,
        _ => return Err(libc::EOPNOTSUPP),
    };
    let devices: Vec<_> =
        Device::all(sys).into_iter().filter(|d| request.is_about(d.index)).collect();
    if devices.is_empty() && request.names_device() {
        return Err(libc::ENODEV);
    }
    let mut messages = Vec::new();
    devices.iter().try_for_each(|device| describe(device, &mut messages))?;
    Ok(messages)
}

fn system() -> Message {
    let mut message = Message::new();
    message.byte(attr::SYS_NETNS_MODE, NETNS_EXCLUSIVE);
    // Memory is reached by the addresses that it has in the process, whose copies a fork's child
    // has.
    message.byte(attr::SYS_COPY_ON_FORK, 1);
    message
}

/// A device of the folder.
struct Device {
    /// The number of its node, `uverbs0`.
    index: u32,
    name: String,
    folder: PathBuf,
}

impl Device {
    /// All of them, by number.
    fn all(sys: &Path) -> Vec<Self> {
        let nodes = fs::read_dir(sys.join("infiniband_verbs")).into_iter().flatten().flatten();
        let mut devices: Vec<_> = nodes
            .filter_map(|node| {
                let number = node.file_name().into_string().ok()?;
                let index = number.strip_prefix("uverbs")?.parse().ok()?;
                let name = fs::read_to_string(node.path().join("ibdev")).ok()?.trim().to_owned();
                let folder = sys.join("infiniband").join(&name);
                Some(Self { index, name, folder })
            })
            .collect();
        devices.sort_by_key(|device| device.index);
        devices
    }

    /// What a file of it says; nothing if it is not there.
    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap_or_default().trim().to_owned()
    }

    /// The number that a file begins with, as `4: ACTIVE`.
    fn number(&self, file: &str) -> u8 {
        let text = self.text(file);
        text.split(':').next().and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }

    /// A GUID of four groups.
    fn guid(&self, file: &str) -> u64 {
        u64::from_str_radix(&self.text(file).replace(':', ""), 16).unwrap_or(0)
    }

    fn netdev(&self) -> Option<String> {
        let mut netdevs = fs::read_dir(self.folder.join("device/net")).ok()?;
        netdevs.next()?.ok()?.file_name().into_string().ok()
    }

    fn is_iwarp(&self) -> bool {
        self.text("node_type").ends_with("RNIC")
    }

    /// What each of its processes tells; an error if one does not.
    fn texts(&self) -> Result<Vec<String>, i32> {
        status::ask(&self.name).map_err(|_| libc::ETIMEDOUT)
    }

    /// A message that says which device it is about.
    fn message(&self) -> Message {
        let mut message = Message::new();
        message.number(attr::DEV_INDEX, self.index);
        message.text(attr::DEV_NAME, &self.name);
        message
    }
}

fn device(device: &Device, messages: &mut Vec<Message>) -> Result<(), i32> {
    let mut message = device.message();
    message.number(attr::PORT_INDEX, 1);
    message.text(attr::FW_VERSION, &device.text("fw_ver"));
    message.long(attr::NODE_GUID, device.guid("node_guid"));
    message.long(attr::SYS_IMAGE_GUID, device.guid("sys_image_guid"));
    message.byte(attr::DEV_NODE_TYPE, device.number("node_type"));
    message.text(attr::DEV_PROTOCOL, if device.is_iwarp() { "iw" } else { "roce" });
    messages.push(message);
    Ok(())
}

fn port(device: &Device, messages: &mut Vec<Message>) -> Result<(), i32> {
    let mut message = device.message();
    message.number(attr::PORT_INDEX, 1);
    message.byte(attr::PORT_STATE, device.number("ports/1/state"));
    message.byte(attr::PORT_PHYS_STATE, device.number("ports/1/phys_state"));
    if let Some(netdev) = device.netdev() {
        // SAFETY: a C string.
        let index =
            CString::new(netdev.as_str()).map(|n| unsafe { libc::if_nametoindex(n.as_ptr()) });
        message.number(attr::NDEV_INDEX, index.unwrap_or(0));
        message.text(attr::NDEV_NAME, &netdev);
    }
    messages.push(message);
    Ok(())
}

/// How many objects of each kind there are, over all processes, in the order in which one tells
/// them.
fn summary(device: &Device, messages: &mut Vec<Message>) -> Result<(), i32> {
    let texts = device.texts()?;
    let mut message = device.message();
    message.nest(attr::RES_SUMMARY, |message| {
        for kind in ["pd", "cq", "qp", "mr", "ctx", "srq"] {
            message.nest(attr::RES_SUMMARY_ENTRY, |message| {
                message.text(attr::RES_SUMMARY_ENTRY_NAME, kind);
                message.long(attr::RES_SUMMARY_ENTRY_CURR, status::sum(&texts, ["resource", kind]));
            });
        }
    });
    messages.push(message);
    Ok(())
}

/// A queue pair, as a process tells it.
struct QueuePair {
    pid: u32,
    /// Number, type, state, the peer's number, next sequence numbers to be received and sent.
    values: [u32; 6],
}

impl QueuePair {
    fn all(texts: &[String]) -> Vec<Self> {
        let of_process = |text: &String| -> Vec<Self> {
            let pid = status::lines(text, "pid").find_map(|pid| pid.parse().ok()).unwrap_or(0);
            let values = |line: &str| {
                let values =
                    line.split(' ').map(|value| value.parse().ok()).collect::<Option<Vec<_>>>()?;
                Some(Self { pid, values: values.get(..6)?.try_into().ok()? })
            };
            status::lines(text, "qp").filter_map(values).collect()
        };
        texts.iter().flat_map(of_process).collect()
    }

    fn describe(&self, message: &mut Message) {
        /// Types with one peer: RC and UC, and the ends of XRC.
        const CONNECTED: [u32; 4] = [2, 3, 9, 10];
        let [number, kind, state, peer, rq_psn, sq_psn] = self.values;
        message.number(attr::PORT_INDEX, 1);
        message.number(attr::RES_LQPN, number);
        if CONNECTED.contains(&kind) {
            message.number(attr::RES_RQPN, peer);
            message.number(attr::RES_RQ_PSN, rq_psn);
        }
        message.number(attr::RES_SQ_PSN, sq_psn);
        message.byte(attr::RES_TYPE, kind as u8);
        message.byte(attr::RES_STATE, state as u8);
        message.number(attr::RES_PID, self.pid);
    }
}

fn queue_pairs(device: &Device, messages: &mut Vec<Message>) -> Result<(), i32> {
    let qps = QueuePair::all(&device.texts()?);
    for some in qps.chunks(QPS_PER_ANSWER) {
        let mut message = device.message();
        message.nest(attr::RES_QP, |message| {
            some.iter()
                .for_each(|qp| message.nest(attr::RES_QP_ENTRY, |message| qp.describe(message)));
        });
        messages.push(message);
    }
    Ok(())
}

/// What `ports/1/hw_counters` has and has counted, by the names of its files. (All of them would
/// not fit a reader's page.) Objects have no counters of their own.
fn statistics(device: &Device, messages: &mut Vec<Message>) -> Result<(), i32> {
    let texts = device.texts()?;
    let folder = device.folder.join("ports/1/hw_counters");
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    names.sort();
    let values = names.iter().map(|name| (name, status::sum(&texts, ["hw", name])));
    let mut counted = values.filter(|(_, value)| *value != 0).peekable();
    // Each turn takes one value at least, but for the only one of a device that has counted
    // nothing.
    loop {
        let mut message = device.message();
        message.number(attr::PORT_INDEX, 1);
        message.nest(attr::STAT_HWCOUNTERS, |message| {
            while message.len() < FULL_BYTES
                && let Some((name, value)) = counted.next()
            {
                message.nest(attr::STAT_HWCOUNTER_ENTRY, |message| {
                    message.text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
                    message.long(attr::STAT_HWCOUNTER_ENTRY_VALUE, value);
                });
            }
        });
        messages.push(message);
        if counted.peek().is_none() {
            return Ok(());
        }
    }
}
