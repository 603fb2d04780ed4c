//! The IP addresses of this host, on all its netdevs. A packet from any other address cannot come
//! from a process of this host.
//!
//! Limits: the addresses are read from the system when they are needed, once a second at most. So a
//! new address may be unknown for a second. Until then, messages to processes at that address go to
//! the shared port.

use std::collections::HashSet;
use std::net::IpAddr;

use vernic_io::netdev;
use vernic_proto::Time;

/// Time in nanoseconds until the addresses are read again, the same as for what is known of other
/// processes.
const LIFE_NANOS: u64 = 1_000_000_000;

/// The addresses that were last read from the system.
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
            // If the system cannot list the addresses now, the old ones are kept.
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
