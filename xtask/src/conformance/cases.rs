//! What is run: programs with options, each in one or several places.
//!
//! A case is one program as server and client in two processes (or alone, if it only lists
//! devices); those of the connection manager are in `manager.rs`, those of sockets in `sockets.rs`,
//! applications that others wrote in `applications.rs`, those of uDAPL in `dapl.rs`, all over iWARP
//! in `iwarp.rs`. Its name is its command line and its place, and unique.

use super::network::{MTU, Place};

mod applications;
mod dapl;
mod iwarp;
mod manager;
mod sockets;

pub(super) use manager::TCP;

/// Path MTUs of InfiniBand, bytes.
const MTUS: [u64; 5] = [256, 512, 1024, 2048, 4096];

/// Message sizes of `-a`: powers of two up to this, bytes.
const LARGEST: u64 = 1 << 23;

/// A part number that perftest knows: with it, it uses inline data and `ibv_wr_*`.
const KNOWN_PART: &str = "--vendor-part-id 4115";

/// One program in one place.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Environment variables, as `NAME=VALUE` and blanks.
    pub(super) variables: &'static str,
    /// The program.
    pub(super) program: &'static str,
    /// Its transport service; empty where the program says it in its name.
    pub(super) service: &'static str,
    /// Its options, of server and client alike.
    pub(super) options: String,
    /// Options of `vernic run`, those of the place apart.
    pub(super) around: &'static str,
    /// Which processes it is.
    pub(super) cast: Cast,
    /// Where.
    pub(super) place: Place,
    /// What its output must have.
    pub(super) output: Output,
    /// Whether it is in the share that CI runs.
    pub(super) in_ci: bool,
    /// Its two processes may take so long, seconds.
    pub(super) limit_s: u64,
}

/// The processes of a case, and how they are told where the other side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cast {
    /// One process.
    Alone,
    /// A server and a client, which meet over a TCP connection of their own. This option says which
    /// GID is the place's.
    Pair {
        /// The option.
        gid_option: &'static str,
    },
    /// They meet by the connection manager, or in the program's own way.
    Troupe(Troupe),
}

/// A server and a client, or several of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Troupe {
    /// Options of the servers. `SERVER` in them is the server's address, `OWN` the own one.
    pub(super) server: &'static str,
    /// As `server`.
    pub(super) client: &'static str,
    /// The client's program, where it is another one.
    pub(super) client_program: Option<&'static str>,
    /// How many of them.
    pub(super) servers: usize,
    /// How many of them, at the same time.
    pub(super) clients: usize,
    /// How it is known that the servers are there.
    pub(super) ready: Ready,
    /// Whether the servers wait for further clients until they are ended.
    pub(super) endless: bool,
    /// Whether the case's options are for the clients alone.
    pub(super) clients_only: bool,
}

/// What the kernel tells of a server that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// It listens on this TCP port.
    Tcp(u16),
    /// It has bound this UDP port.
    Udp(u16),
    /// A service of this port space and port is open.
    Service(u16, u16),
    /// So many sockets of its namespace are in this multicast group.
    Group(std::net::IpAddr),
}

/// What a program's output must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// One process; these words, each in its output.
    Listing(&'static [&'static str]),
    /// A client and a server; both end with bytes and iterations moved.
    PingPong {
        /// What each side says it moved; `None` for the program that says nothing.
        bytes: Option<u64>,
    },
    /// A client and a server; the client's table has a row for each of these sizes, in bytes.
    Table {
        /// The first column.
        sizes: Vec<u64>,
        /// The second column, if the number is fixed and not the time.
        iterations: Option<u64>,
    },
    /// Each process says all of these.
    Said {
        /// Servers.
        server: &'static [&'static str],
        /// Clients.
        client: &'static [&'static str],
    },
}

impl Case {
    /// The command line and the place.
    pub(super) fn name(&self) -> String {
        let words = [self.variables, self.program, &self.options, self.around].into_iter();
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        format!("{} @{}", words.join(" "), self.place.name())
    }

    /// The program and its options, without the place: a row of the page of what was run.
    pub(super) fn line(&self) -> String {
        let name = self.name();
        name.rsplit_once(" @").map_or(name.clone(), |(line, _)| line.to_owned())
    }
}

/// Every case, in the order of running.
pub(super) fn all() -> Vec<Case> {
    let mut cases = listings();
    cases.extend(Place::ALL.iter().flat_map(|place| ping_pongs(*place)));
    cases.extend(Place::ALL.iter().flat_map(|place| perftest(*place)));
    // How packets of verbs go makes no difference to who is above.
    let others = || Place::ALL.into_iter().filter(|place| *place != Place::Memory);
    cases.extend(others().flat_map(manager::cases));
    let others = || others().filter(|place| *place != Place::Ethernet);
    cases.extend(others().flat_map(sockets::cases));
    cases.extend(others().flat_map(applications::cases));
    let over_tcp = others().filter(|place| *place != Place::InfiniBand);
    cases.extend(over_tcp.flat_map(iwarp::cases));
    cases.extend(dapl::PLACES.into_iter().flat_map(dapl::cases));
    cases
}

fn listings() -> Vec<Case> {
    let listing = |program, options: &str, words| Case {
        variables: "",
        program,
        service: "",
        options: options.into(),
        around: "",
        cast: Cast::Alone,
        place: Place::Loopback,
        output: Output::Listing(words),
        in_ci: true,
        limit_s: 10,
    };
    vec![
        listing("ibv_devices", "", &["vernic0"]),
        listing("ibv_devinfo", "-l", &["1 HCA found", "vernic0"]),
        listing(
            "ibv_devinfo",
            "-v",
            &["vernic0", "PORT_ACTIVE", "Ethernet", "4096 (5)", "max_qp_wr", "GID["],
        ),
        // Debian has these where root finds programs.
        listing(
            "/usr/sbin/ibstat",
            "",
            &["CA 'vernic0'", "State: Active", "Rate: 40", "Link layer: Ethernet"],
        ),
        listing("/usr/sbin/ibstat", "-l", &["vernic0"]),
        listing("/usr/sbin/ibstat", "-p", &["0x"]),
        listing("/usr/sbin/ibstatus", "", &["'vernic0' port 1", "4: ACTIVE", "40 Gb/sec"]),
        listing("rdma", "link", &["vernic0/1 state ACTIVE physical_state LINK_UP netdev lo"]),
        listing("rdma", "link -j", &["\"ifname\":\"vernic0\"", "\"netdev\":\"lo\""]),
        listing("rdma", "dev", &["vernic0: node_type ca", "node_guid"]),
        listing("rdma", "resource show", &["vernic0: pd 0 cq 0 qp 0 mr 0 ctx 0 srq 0"]),
        listing("rdma", "statistic", &["link vernic0/1"]),
    ]
}

/// The programs of ibverbs-utils. They check each byte with `-c`.
fn ping_pongs(place: Place) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |program, options: &str, bytes, in_ci| {
        // One GID index for every program: the place knows which.
        cases.push(Case {
            variables: "",
            program,
            service: "",
            options: options.into(),
            around: "",
            cast: Cast::Pair { gid_option: "-g" },
            place,
            output: Output::PingPong { bytes },
            in_ci,
            limit_s: if program.starts_with("ibv_u") { unreliable_limit_s(place) } else { 20 },
        });
    };
    // 1000 exchanges of 4096 bytes, or of what is said; both directions are counted.
    let bytes = |size: u64, exchanges: u64| Some(2 * size * exchanges);
    let rc = "ibv_rc_pingpong";
    add(rc, "-c", bytes(4096, 1000), true);
    add(rc, "-c -e", bytes(4096, 1000), true);
    add(rc, "-c -m 4096 -s 1048576 -n 100", bytes(1 << 20, 100), true);
    for mtu in MTUS {
        let options = format!("-c -m {mtu} -s 10000 -n 200");
        add(rc, &options, bytes(10_000, 200), place == Place::Loopback);
    }
    let once = place == Place::Loopback;
    add(rc, "-c -t", bytes(4096, 1000), once); // timestamps, extended completion queue
    add(rc, "-c -N", bytes(4096, 1000), once); // ibv_wr_*
    add(rc, "-c -o", bytes(4096, 1000), once); // on-demand paging
    add(rc, "-c -O", bytes(4096, 1000), once); // the whole address space
    add(rc, "-c -o -P", bytes(4096, 1000), once); // and prefetch
    add(rc, "-c -j", bytes(4096, 1000), once); // device memory
    add("ibv_uc_pingpong", "-c", bytes(4096, 1000), true);
    add("ibv_uc_pingpong", "-c -e", bytes(4096, 1000), true);
    // This one counts one direction.
    let ud_bytes = Some(2048 * 1000);
    add("ibv_ud_pingpong", "-c", ud_bytes, true);
    add("ibv_ud_pingpong", "-c -e", ud_bytes, true);
    add("ibv_srq_pingpong", "-c", bytes(4096, 1000), true);
    add("ibv_srq_pingpong", "-c -e", bytes(4096, 1000), true);
    add("ibv_srq_pingpong", "-c -o", bytes(4096, 1000), once);
    add("ibv_xsrq_pingpong", "", None, true);
    add("ibv_xsrq_pingpong", "-e", None, true);
    add("ibv_xsrq_pingpong", "-m 4096 -n 200", None, once);
    cases
}

/// What UC and UD lose they do not send again: most such cases wait for it until they are ended.
fn unreliable_limit_s(place: Place) -> u64 {
    if place == Place::Loss { 5 } else { 20 }
}

/// A program of perftest.
struct Tool {
    name: &'static str,
    services: &'static [&'static str],
    /// Bandwidth, not latency.
    bandwidth: bool,
    /// Offers `-a`, other sizes than 8 bytes.
    sizes: bool,
    /// Offers `-e`.
    events: bool,
    /// Offers inline data.
    inline: bool,
    /// Offers a shared receive queue.
    shared_queue: bool,
}

const TOOLS: [Tool; 8] = [
    tool("ib_write_bw", &["RC", "UC", "XRC"]),
    tool("ib_write_lat", &["RC", "UC", "XRC"]),
    tool("ib_read_bw", &["RC", "XRC"]),
    tool("ib_read_lat", &["RC", "XRC"]),
    tool("ib_send_bw", &["RC", "UC", "UD", "XRC"]),
    tool("ib_send_lat", &["RC", "UC", "UD", "XRC"]),
    tool("ib_atomic_bw", &["RC", "XRC"]),
    tool("ib_atomic_lat", &["RC", "XRC"]),
];

/// Which options a program has follows from its name: `ib_OPERATION_MEASURE`.
const fn tool(name: &'static str, services: &'static [&'static str]) -> Tool {
    let operation = name.as_bytes()[3];
    let bandwidth = name.as_bytes()[name.len() - 1] == b'w';
    Tool {
        name,
        services,
        bandwidth,
        sizes: operation != b'a',
        events: operation != b'w',
        inline: operation == b'w' || operation == b's',
        shared_queue: operation == b's',
    }
}

/// The programs of perftest.
fn perftest(place: Place) -> Vec<Case> {
    let services = |tool: &'static Tool| tool.services.iter().map(move |s| (tool, *s));
    TOOLS
        .iter()
        .flat_map(services)
        .flat_map(|(tool, service)| of_tool(tool, service, place))
        .collect()
}

/// One program over one service.
fn of_tool(tool: &'static Tool, service: &'static str, place: Place) -> Vec<Case> {
    let iterations: u64 = if place == Place::Loss { 100 } else { 500 };
    let limit_s = if service.starts_with('U') { unreliable_limit_s(place) } else { 20 };
    let plain = Variant { tool, service, place, iterations, limit_s, ..Variant::default_of(tool) };
    // CI runs nearly the whole matrix in one place over RC, less over the other services, and
    // elsewhere what depends on the place. Each case takes a second before it starts.
    let (once, rc) = (place == Place::Loopback, service == "RC");
    let (bandwidth, packets) = (tool.bandwidth, rc || service == "UD");
    let mut cases = vec![plain.case("", once || bandwidth || rc)];
    if tool.sizes {
        let sizes = plain.all_sizes();
        // As few iterations as the programs allow, 5, or a little more: the largest take long.
        let iterations = if tool.bandwidth { 10 } else { 5 };
        let sweep = Variant { sizes, iterations, limit_s: 3 * limit_s, ..plain.clone() };
        let in_ci = if once { packets } else { rc && bandwidth };
        cases.push(sweep.case("-a", in_ci));
    }
    if tool.bandwidth {
        cases.push(plain.case("-b", once && packets));
        cases.push(Variant { queue_pairs: 8, ..plain.clone() }.case("-q 8", once && packets));
        cases.push(plain.case("-Q 1", once && rc));
        cases.push(plain.case("-Q 50", once && rc));
    }
    if tool.events {
        cases.push(plain.case("-e", (once && (bandwidth || rc)) || (rc && place == Place::Ipv4)));
    }
    if tool.inline {
        let sizes = vec![64];
        let inline = Variant { sizes, around: KNOWN_PART, ..plain.clone() };
        cases.push(inline.case("-I 64 -s 64", once && (packets || bandwidth)));
    }
    cases.push(Variant { around: KNOWN_PART, ..plain.clone() }.case("", once && rc));
    if tool.shared_queue && service != "XRC" {
        cases.push(plain.case("--use-srq", once && (bandwidth || rc)));
    }
    for mtu in MTUS {
        let in_ci = match once {
            true => packets && (bandwidth || mtu == MTUS[0]),
            false => rc && bandwidth && mtu == 1024,
        };
        cases.push(Variant { mtu, ..plain.clone() }.case(&format!("-m {mtu}"), in_ci));
    }
    let timed = Variant { timed: true, ..plain.clone() };
    cases.push(timed.case("-D 2", once && rc));
    if tool.name == "ib_send_bw" && service.starts_with('U') && (once || place == Place::Ipv4) {
        // A burst that is over before a flow that meets the wrong process can be steered: by the
        // port that processes share.
        let burst = Variant { iterations: 200, sizes: vec![1024], ..plain.clone() };
        let burst = burst.case("-s 1024", true);
        cases.push(Case { variables: "VERNIC_FORCE_WIRE=on", ..burst });
    }
    if place == Place::InfiniBand {
        // With a GRH.
        cases.push(plain.case("-x 0", bandwidth && packets));
        return cases;
    }
    if tool.name == "ib_send_bw" && service == "UD" && place != Place::Loss {
        // Few, for nothing holds back who sends to a group.
        let few = Variant { iterations: 100, ..plain };
        cases.push(few.case(multicast(place), once || place == Place::Ipv6));
    }
    cases
}

/// Multicast. The group that perftest takes by itself is ff01:0:2:c985::. Beside GIDs of IPv4 it
/// refuses it ("Incompatibility issue with GID types"), on every device; and being interface-local
/// it does not reach another host over sockets.
fn multicast(place: Place) -> &'static str {
    match place {
        Place::Ipv6 => "-g -M 255:14:0:0:0:0:0:0:0:0:0:0:0:0:77:4",
        _ => "-g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:77:1:4",
    }
}

/// What a case of perftest varies.
#[derive(Clone)]
struct Variant {
    tool: &'static Tool,
    service: &'static str,
    place: Place,
    around: &'static str,
    iterations: u64,
    queue_pairs: u64,
    mtu: u64,
    /// Empty is the program's default.
    sizes: Vec<u64>,
    timed: bool,
    limit_s: u64,
}

impl Variant {
    fn default_of(tool: &'static Tool) -> Self {
        Self {
            tool,
            service: "RC",
            place: Place::Loopback,
            around: "",
            iterations: 500,
            queue_pairs: 1,
            mtu: MTU,
            sizes: Vec::new(),
            timed: false,
            limit_s: 20,
        }
    }

    /// A datagram is at most one packet.
    fn largest(&self) -> u64 {
        if self.service == "UD" { self.mtu } else { LARGEST }
    }

    fn all_sizes(&self) -> Vec<u64> {
        (1..).map(|shift| 1 << shift).take_while(|size| *size <= self.largest()).collect()
    }

    fn default_size(&self) -> u64 {
        match (self.tool.sizes, self.tool.bandwidth) {
            (false, _) => 8,
            (true, false) => 2,
            (true, true) => self.largest().min(65_536),
        }
    }

    fn case(&self, options: &str, in_ci: bool) -> Case {
        let mut words = vec![format!("-c {}", self.service)];
        if !options.is_empty() {
            words.push(options.to_owned());
        }
        let iterations = self.iterations * self.queue_pairs;
        if !self.timed {
            words.push(format!("-n {}", self.iterations));
        }
        let sizes = match &self.sizes[..] {
            [] => vec![self.default_size()],
            sizes => sizes.to_vec(),
        };
        Case {
            variables: "",
            program: self.tool.name,
            service: self.service,
            options: words.join(" "),
            around: self.around,
            cast: Cast::Pair { gid_option: "-x" },
            place: self.place,
            output: Output::Table { sizes, iterations: (!self.timed).then_some(iterations) },
            in_ci,
            limit_s: self.limit_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: Vec<String> = all().iter().map(Case::name).collect();
        let unique: BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }

    #[test]
    fn a_datagram_has_no_size_beyond_the_mtu() {
        let cases = all();
        let ud = cases.iter().filter(|case| case.options.contains("UD"));
        for case in ud {
            let Output::Table { sizes, .. } = &case.output else { panic!("{}", case.name()) };
            assert!(sizes.iter().all(|size| *size <= MTU), "{}", case.name());
        }
        let all_sizes = cases.iter().find(|case| case.options == "-c RC -a -n 10").unwrap();
        let Output::Table { sizes, .. } = &all_sizes.output else { panic!("no table") };
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 1 << 23));
    }

    #[test]
    fn the_share_of_ci_has_every_program_in_every_place_and_every_service_of_each() {
        let cases = all();
        let every = |key: fn(&Case) -> [&'static str; 2]| {
            let all: BTreeSet<_> = cases.iter().map(key).collect();
            let in_ci: BTreeSet<_> = cases.iter().filter(|case| case.in_ci).map(key).collect();
            assert_eq!(all, in_ci);
        };
        every(|case| [case.program, case.place.name()]);
        every(|case| [case.service, case.place.name()]);
        every(|case| [case.program, case.service]);
    }
}
