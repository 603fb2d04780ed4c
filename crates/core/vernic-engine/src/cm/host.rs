//! The addresses of this host, of all its netdevs. A packet from any other address cannot come from
//! a process of this host.
//!
//! Limits: addresses are read from the system on demand, once a second at most. A new address may
//! be unknown for as long, and until then its processes are reached by the shared port.

use std::collections::HashSet;
use std::net::IpAddr;

use vernic_io::netdev;
use vernic_proto::Time;

/// Nanoseconds that the addresses count as current: as long as what is known of processes.
const LIFE_NANOS: u64 = 1_000_000_000;

/// The addresses as they were last read.
#[derive(Debug, Default)]
pub(super) struct HostAddresses {
    all: HashSet<IpAddr>,
    until: Option<Time>,
}

impl HostAddresses {
    /// Whether `ip` is an address of this host.
    pub(super) fn has(&mut self, ip: IpAddr, now: Time) -> bool {
        let ip = ip.to_canonical();
        if ip.is_loopback() {
            return true;
        }
        if self.until.is_none_or(|until| until <= now) {
            // If the system does not list the addresses, those read before still count.
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
