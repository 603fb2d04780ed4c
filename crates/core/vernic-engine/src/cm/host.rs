//! The addresses of this host, of all its netdevs: what comes from another cannot be a neighbour's.
//!
//! Limits: they are read from the system when somebody asks, once a second at most; a new one may
//! be unknown for so long, and its processes are reached by the shared port until then.

use std::collections::HashSet;
use std::net::IpAddr;

use vernic_io::netdev;
use vernic_proto::Time;

/// How long they count as they are, in nanoseconds: as long as what is known of processes.
const LIFE_NANOS: u64 = 1_000_000_000;

/// The addresses as they were last read.
#[derive(Debug, Default)]
pub(super) struct HostAddresses {
    all: HashSet<IpAddr>,
    until: Option<Time>,
}

impl HostAddresses {
    /// Whether one is of this host.
    pub(super) fn has(&mut self, ip: IpAddr, now: Time) -> bool {
        let ip = ip.to_canonical();
        if ip.is_loopback() {
            return true;
        }
        if self.until.is_none_or(|until| until <= now) {
            // A system that does not tell them has those that it told before.
            if let Ok(all) = netdev::addresses() {
                self.all = all.collect();
            }
            self.until = Some(now + LIFE_NANOS);
        }
        self.all.contains(&ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_anew_after_a_second() {
        let mut host = HostAddresses::default();
        let (foreign, home) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([127, 9, 9, 9]));
        assert!(host.has(home, Time(0)) && host.until.is_none(), "nobody asked the system");
        assert!(!host.has(foreign, Time(0)));
        host.all.insert(foreign);
        assert!(host.has(foreign, Time(LIFE_NANOS - 1)));
        assert!(!host.has(foreign, Time(LIFE_NANOS)));
    }
}
