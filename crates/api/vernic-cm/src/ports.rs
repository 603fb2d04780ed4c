//! Port spaces: which id of this process has which port on which address.
//!
//! The rules are those of the kernel's rdma_cm. A port can be bound once per address. A wildcard
//! address covers every address of its family (`[::]` covers both families, unless set otherwise).
//! Ids that ask for it may share a port as long as none of them listens. Port spaces are separate
//! from each other, and from the ports of TCP and UDP sockets.
//!
//! Ports of other processes are the caller's business (`id/bind.rs`).

use std::collections::{HashMap, HashSet};

use vernic_io::{LocalAddr, random};
use vernic_wire::cm::{PortSpace, ServiceId};

use crate::error::Error;
use crate::key::IdKey;

/// The ephemeral ports, if the system does not report its range.
const DEFAULT_RANGE: (u16, u16) = (32_768, 60_999);

/// The address and port that an id has bound, or wants to bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// The id.
    pub(crate) key: IdKey,
    /// The address; unspecified for a wildcard.
    pub(crate) addr: LocalAddr,
    /// Whether a wildcard covers only its own address family.
    pub(crate) af_only: bool,
    /// Whether the id shares the port with others that share.
    pub(crate) reuse: bool,
    /// Whether the id listens, and so shares the port with no other.
    pub(crate) listens: bool,
}

impl Binding {
    fn is_wildcard(&self) -> bool {
        self.addr.ip.is_unspecified()
    }

    /// Whether both bindings may have one port.
    fn tolerates(&self, other: &Self) -> bool {
        if self.reuse && other.reuse && !self.listens && !other.listens {
            return true;
        }
        let families_differ = self.addr.ip.is_ipv4() != other.addr.ip.is_ipv4();
        let both = |b: &Self| b.is_wildcard() && b.addr.ip.is_ipv6() && !b.af_only;
        if families_differ && !both(self) && !both(other) {
            return true;
        }
        !self.is_wildcard() && !other.is_wildcard() && self.addr != other.addr
    }
}

/// The ports that processes of this host have claimed, from the kernel's table of the names of
/// services (`vernic_io::host`); empty where the table cannot be read.
pub(crate) fn claimed_ports(space: PortSpace) -> HashSet<u16> {
    let table = std::fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    claimed_in(&String::from_utf8_lossy(&table), space)
}

/// The ports that a table of sockets shows as claimed. Of the sockets of a name only the one that
/// claims the name counts. The others, whose names have one more part, may stay open for a moment
/// after the name was released: a thread that sleeps on them closes them when it wakes up.
fn claimed_in(table: &str, space: PortSpace) -> HashSet<u16> {
    let services = table.lines().filter_map(|line| line.split_once("/service/"));
    let numbers = services.filter_map(|(_, rest)| {
        let (service, place) = rest.split_once('/')?;
        u64::from_str_radix(service, 16).ok().filter(|_| !place.contains('/'))
    });
    let of_space = |service: &u64| space.service_id(*service as u16) == ServiceId(*service);
    numbers.filter(of_space).map(|service| service as u16).collect()
}

/// The bound ports of a process.
#[derive(Debug)]
pub(crate) struct Ports {
    bound: HashMap<(PortSpace, u16), Vec<Binding>>,
    range: (u16, u16),
}

impl Ports {
    pub(crate) fn new() -> Self {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let range = text.ok().as_deref().and_then(parse_range).unwrap_or(DEFAULT_RANGE);
        Self { bound: HashMap::new(), range }
    }

    /// Binds a port, and returns its number. Port 0 takes a free ephemeral port for which
    /// `elsewhere` is false (no other process has it).
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::NoPort`].
    pub(crate) fn bind(
        &mut self,
        space: PortSpace,
        port: u16,
        binding: Binding,
        mut elsewhere: impl FnMut(u16) -> bool,
    ) -> Result<u16, Error> {
        if port != 0 {
            self.check(space, port, &binding)?;
            self.bound.entry((space, port)).or_default().push(binding);
            return Ok(port);
        }
        let (first, last) = self.range;
        let count = u32::from(last - first) + 1;
        let start = random() as u32 % count;
        for n in 0..count {
            let port = first + ((start + n) % count) as u16;
            // Ephemeral ports are never shared.
            if !self.bound.contains_key(&(space, port)) && !elsewhere(port) {
                self.bound.insert((space, port), vec![binding]);
                return Ok(port);
            }
        }
        Err(Error::NoPort { port_space: space, first, last })
    }

    /// Checks that `binding` is compatible with the other bindings of the port.
    ///
    /// # Errors
    /// [`Error::InUse`].
    pub(crate) fn check(
        &self,
        space: PortSpace,
        port: u16,
        binding: &Binding,
    ) -> Result<(), Error> {
        let others = self.bound.get(&(space, port)).into_iter().flatten();
        let mut others = others.filter(|other| other.key != binding.key);
        match others.find(|other| !binding.tolerates(other)) {
            Some(other) => {
                let (addr, by) = (binding.addr.with_port(port), "this process".to_owned());
                let everywhere = binding.is_wildcard() || other.is_wildcard();
                Err(Error::InUse { port_space: space, addr, by, everywhere })
            }
            None => Ok(()),
        }
    }

    /// Changes the binding of an id: the address, or whether the id listens or shares.
    pub(crate) fn update(&mut self, space: PortSpace, port: u16, binding: Binding) {
        for own in self.bound.get_mut(&(space, port)).into_iter().flatten() {
            if own.key == binding.key {
                *own = binding;
            }
        }
    }

    /// Releases a port.
    pub(crate) fn release(&mut self, space: PortSpace, port: u16, key: IdKey) {
        if let Some(all) = self.bound.get_mut(&(space, port)) {
            all.retain(|binding| binding.key != key);
            if all.is_empty() {
                self.bound.remove(&(space, port));
            }
        }
    }
}

/// Whether IPv6 sockets, and so ids, cover only IPv6 by default (`net.ipv6.bindv6only`).
pub fn v6_only() -> bool {
    let text = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    text.is_ok_and(|text| text.trim() == "1")
}

/// The first port that every program may bind, if the system does not report it.
const FIRST_FREE: u16 = 1024;

/// The capability to bind the ports below, as a bit (`CAP_NET_BIND_SERVICE`).
const BIND_SERVICE: u64 = 1 << 10;

/// Refuses a port that the program may not bind, by the rules for TCP and UDP.
///
/// # Errors
/// [`Error::Privileged`].
pub(crate) fn check_privilege(port: u16) -> Result<(), Error> {
    if port == 0 || port >= FIRST_FREE {
        return Ok(());
    }
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let first = read("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = first.trim().parse().unwrap_or(FIRST_FREE);
    match port >= first || has_bind_service(&read("/proc/thread-self/status")) {
        true => Ok(()),
        false => Err(Error::Privileged { port, first }),
    }
}

/// Whether the effective capabilities in the text of `/proc/self/status` include that one.
fn has_bind_service(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    // Without this line the system may still refuse the port itself.
    bits.is_none_or(|bits| bits & BIND_SERVICE != 0)
}

/// Parses two numbers, the first not greater than the second.
fn parse_range(text: &str) -> Option<(u16, u16)> {
    let mut words = text.split_whitespace();
    let first = words.next()?.parse().ok().filter(|&first| first != 0)?;
    let last = words.next()?.parse().ok()?;
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn the_kernels_table_tells_which_ports_are_claimed_and_not_whose_sockets_are_left() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 2 0 0 2 1 9 @vernic/service/1061d2f/127.0.0.1\n\
            0: 2 0 0 2 1 9 @vernic/service/1061d30/netdev1\n\
            0: 2 0 0 2 1 9 @vernic/service/1061d32/netdev1/packets\n\
            0: 2 0 0 2 1 9 @vernic/service/1061d32/netdev1/questions\n\
            0: 2 0 0 2 1 9 @vernic/service/1111d31/127.0.0.1\n\
            0: 2 0 0 2 1 9 @vernic/service/zz/127.0.0.1\n\
            0: 2 0 0 2 1 9 /run/service/1061d33\n";
        let tcp = claimed_in(table, PortSpace::TCP);
        assert_eq!(tcp, HashSet::from([0x1d2f, 0x1d30]));
        assert_eq!(claimed_in(table, PortSpace::UDP), HashSet::from([0x1d31]));
    }

    fn binding(key: u64, ip: &str) -> Binding {
        let addr = ip.parse::<IpAddr>().unwrap().into();
        Binding { key: IdKey(key), addr, af_only: false, reuse: false, listens: false }
    }

    fn try_bind(ports: &mut Ports, binding: Binding) -> bool {
        ports.bind(PortSpace::TCP, 7471, binding, |_| false).is_ok()
    }

    #[test]
    fn a_port_is_had_once_per_address_and_port_space() {
        let mut ports = Ports::new();
        assert!(try_bind(&mut ports, binding(1, "10.0.0.1")));
        assert!(!try_bind(&mut ports, binding(2, "10.0.0.1")));
        assert!(try_bind(&mut ports, binding(3, "10.0.0.2")));
        assert!(!try_bind(&mut ports, binding(4, "0.0.0.0")));
        assert!(try_bind(&mut ports, binding(5, "::1")));
        ports.bind(PortSpace::UDP, 7471, binding(6, "10.0.0.1"), |_| false).unwrap();
        for key in [1, 3] {
            ports.release(PortSpace::TCP, 7471, IdKey(key));
        }
        assert!(try_bind(&mut ports, binding(4, "0.0.0.0")));
        assert!(!try_bind(&mut ports, binding(7, "10.0.0.7")));
    }

    #[test]
    fn the_ipv6_wildcard_covers_ipv4_unless_told_not_to() {
        let mut ports = Ports::new();
        assert!(try_bind(&mut ports, binding(1, "::")));
        assert!(!try_bind(&mut ports, binding(2, "10.0.0.1")));
        assert!(!try_bind(&mut ports, binding(2, "0.0.0.0")));
        ports.update(PortSpace::TCP, 7471, Binding { af_only: true, ..binding(1, "::") });
        assert!(try_bind(&mut ports, binding(2, "0.0.0.0")));
        assert!(!try_bind(&mut ports, binding(3, "::1")));
    }

    #[test]
    fn sharers_share_until_one_listens() {
        let mut ports = Ports::new();
        let share = |key| Binding { reuse: true, ..binding(key, "10.0.0.1") };
        assert!(try_bind(&mut ports, share(1)));
        assert!(try_bind(&mut ports, share(2)));
        assert!(!try_bind(&mut ports, binding(3, "10.0.0.1")));
        let listening = Binding { listens: true, ..share(1) };
        assert!(ports.check(PortSpace::TCP, 7471, &listening).is_err());
        ports.release(PortSpace::TCP, 7471, IdKey(2));
        assert!(ports.check(PortSpace::TCP, 7471, &listening).is_ok());
        ports.update(PortSpace::TCP, 7471, listening);
        assert!(!try_bind(&mut ports, share(2)));
    }

    #[test]
    fn ephemeral_ports_are_distinct_and_run_out_with_an_error() {
        let mut ports = Ports::new();
        ports.range = (40_000, 40_009);
        let mut seen = Vec::new();
        for key in 0..9 {
            let taken = |port| port == 40_003;
            let port = ports.bind(PortSpace::TCP, 0, binding(key, "10.0.0.1"), taken).unwrap();
            assert!((40_000..40_010).contains(&port) && port != 40_003 && !seen.contains(&port));
            seen.push(port);
        }
        let error = ports.bind(PortSpace::TCP, 0, binding(9, "::1"), |port| port == 40_003);
        let error = error.unwrap_err();
        assert!(error.to_string().contains("40000 to 40009"), "{error}");
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
    }

    #[test]
    fn ports_of_privileged_programs_need_the_capability() {
        for (status, has) in [
            ("Name:\tx\nCapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000000400\nCapBnd:\t0", true),
            ("CapPrm:\t0000000000000400\nCapEff:\t0000000000000000\n", false),
            ("", true),
        ] {
            assert_eq!(has_bind_service(status), has, "{status}");
        }
        for port in [0, 1024, 7471] {
            check_privilege(port).unwrap();
        }
        let error = Error::Privileged { port: 7, first: 1024 };
        assert_eq!(error.errno(), libc::EACCES);
    }

    #[test]
    fn the_range_of_the_system_is_read_and_nonsense_is_not() {
        assert_eq!(parse_range("32768\t60999\n"), Some((32_768, 60_999)));
        for text in ["", "5", "9 5", "0 5", "a b", "1 70000"] {
            assert_eq!(parse_range(text), None, "{text:?}");
        }
    }
}
