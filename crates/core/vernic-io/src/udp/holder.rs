//! Finds the process that holds UDP port 4791, for the text of the error that users meet first.
//!
//! Reads `/proc` only after a bind has failed. `/proc/net/udp` names the user of each socket and
//! its inode; the process is found among those whose descriptors we may read.

use std::net::IpAddr;
use std::path::Path;

use vernic_sys as sys;

use crate::ROCE_PORT;
use crate::address::LocalAddr;
use crate::link::LinkError;

/// The most processes whose descriptors are read.
const MAX_PROCESSES: usize = 65_536;

/// Returns the error for a bind to `local`, port 4791, that found the port in use.
pub(crate) fn port_taken(local: LocalAddr) -> LinkError {
    let holders = sockets_on_port(local.ip.is_ipv4());
    let holder = holders
        .iter()
        .find(|h| h.addr == Some(local.ip))
        .or_else(|| holders.iter().find(|h| h.addr.is_none_or(|a| a.is_unspecified())))
        .or_else(|| if local.ip.is_ipv4() { None } else { holders.first() });
    // A dual-stack socket is listed under IPv6 only.
    let dual = (holder.is_none() && local.ip.is_ipv4())
        .then(|| {
            sockets_on_port(false).into_iter().find(|h| h.addr.is_none_or(|a| a.is_unspecified()))
        })
        .flatten();
    let (holder, hint) = describe(holder.or(dual.as_ref()));
    LinkError::PortTaken { addr: local, holder, hint }
}

fn describe(holder: Option<&Holder>) -> (String, &'static str) {
    let Some(holder) = holder else {
        return (
            "an unknown owner".to_owned(),
            "look for it with `ss -ulpn 'sport = 4791'` as root, and stop it",
        );
    };
    match process_of(holder.inode) {
        Some((pid, name)) if holder.uid == sys::uid() => (
            format!("process {pid} ({name}) of this user, which does not share it"),
            "stop that process: only programs that use Vernic share the port",
        ),
        Some((pid, name)) => (
            format!("process {pid} ({name}) of user id {}", holder.uid),
            "run as that user (processes of one user share the port), or stop that process",
        ),
        None if is_rxe_loaded() => (
            "the kernel driver rdma_rxe".to_owned(),
            "remove it with `sudo rmmod rdma_rxe`, or use a network namespace of its own",
        ),
        None => (
            format!("user id {}", holder.uid),
            "run as that user (processes of one user share the port), or stop its process; \
             `sudo ss -ulpn 'sport = 4791'` names it",
        ),
    }
}

fn is_rxe_loaded() -> bool {
    Path::new("/sys/module/rdma_rxe").exists()
}

#[derive(Debug, PartialEq, Eq)]
struct Holder {
    /// `None` if the table's address could not be read.
    addr: Option<IpAddr>,
    uid: u32,
    inode: u64,
}

fn sockets_on_port(v4: bool) -> Vec<Holder> {
    let table = if v4 { "/proc/thread-self/net/udp" } else { "/proc/thread-self/net/udp6" };
    std::fs::read_to_string(table).map_or_else(|_| Vec::new(), |text| parse_table(&text))
}

/// Picks the sockets on port 4791 out of the text of `/proc/net/udp` or `udp6`.
fn parse_table(text: &str) -> Vec<Holder> {
    let parse_line = |line: &str| {
        let mut fields = line.split_whitespace();
        let (addr, port) = fields.nth(1)?.rsplit_once(':')?;
        if u16::from_str_radix(port, 16).ok()? != ROCE_PORT {
            return None;
        }
        // From local address: remote, state, queues, timer, retransmits, uid, timeout, inode.
        let uid = fields.nth(5)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Holder { addr: parse_addr(addr), uid, inode })
    };
    text.lines().skip(1).filter_map(parse_line).collect()
}

/// An address as the kernel prints it: words of 32 bits in host byte order, in hex.
fn parse_addr(hex: &str) -> Option<IpAddr> {
    let word =
        |i: usize| u32::from_str_radix(hex.get(i * 8..i * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (i, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(i)?);
            }
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

/// Returns the id and name of the process that has the socket with this inode open, if we may see
/// it.
fn process_of(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").ok()?.flatten().take(MAX_PROCESSES);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let has_it = fds.flatten().any(|fd| {
            std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str())
        });
        if has_it {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Some((pid, name.trim().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn the_table_of_the_kernel_is_read() {
        let text = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                    uid  timeout inode ref pointer drops\n\
                    12: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    1000        0 77 2 0000000000000000 0\n\
                    13: 00000000:0044 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    0        0 78 2 0000000000000000 0\n";
        let holder = Holder { addr: Some([127, 0, 0, 1].into()), uid: 1000, inode: 77 };
        assert_eq!(parse_table(text), [holder]);
        assert_eq!(parse_addr("00000000000000000000000001000000"), Some("::1".parse().unwrap()));
        assert_eq!(parse_addr("zz"), None);
        assert_eq!(parse_addr("zzzzzzzz"), None);
    }

    #[test]
    fn a_table_of_rubbish_names_nobody() {
        assert_eq!(parse_table("a\nb c\nd e:f g\n1: :12B7\n"), []);
    }
}
