//! What a case is: a program, its options, its place, and what must come out.

use super::links::{Driver, LINKS, Link};
use crate::conformance::{Output, Ready};

/// Where a case's server is, over which link and IP version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) link: &'static Link,
    pub(super) is_ipv6: bool,
    /// The server is in the guest, the client here.
    pub(super) to_kernel: bool,
}

impl Place {
    /// The word for it in names of cases.
    pub(super) fn name(self) -> String {
        let version = if self.is_ipv6 { "ipv6" } else { "ipv4" };
        let peer = match self.link.driver {
            Driver::Rxe => "kernel",
            Driver::Siw => "siw",
        };
        let direction = if self.to_kernel { "to" } else { "from" };
        format!("{version}-{}-{direction}-{peer}", self.link.mtu)
    }

    /// The address of this machine's end, or of the guest's.
    pub(super) fn address(self, of_guest: bool) -> &'static str {
        match (of_guest, self.is_ipv6) {
            (false, false) => self.link.host4,
            (false, true) => self.link.host6,
            (true, false) => self.link.peer4,
            (true, true) => self.link.peer6,
        }
    }

    /// Whether connections are of iWARP.
    pub(super) fn is_iwarp(self) -> bool {
        self.link.driver == Driver::Siw
    }

    /// Every place where a driver is the peer.
    pub(super) fn of(driver: Driver) -> Vec<Self> {
        let mut places = Vec::new();
        for link in LINKS.iter().filter(|link| link.driver == driver) {
            for is_ipv6 in [false, true] {
                for to_kernel in [true, false] {
                    places.push(Self { link, is_ipv6, to_kernel });
                }
            }
        }
        places
    }
}

/// How a program is told of its device, its GID and its path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// Programs of ibverbs-utils: `-g`, and `-m` but for datagrams.
    PingPong,
    /// Programs of perftest: `-x`.
    Perftest,
    /// Ours: `-g`, `-m`.
    Probe,
    /// Programs of the connection manager, which find their device by its address.
    Manager(Roles),
}

/// What is done to packets on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    None,
    /// Vernic loses one packet in a hundred of those it sends.
    Loss,
    /// Vernic damages one packet in a hundred: the kernel must notice by the ICRC.
    Corrupt,
    /// The guest's link loses, damages and reorders: Vernic must notice.
    Link,
    /// What Vernic sends leaves late.
    Late,
    /// The guest does not say that nobody listens on a TCP port.
    Silent,
}

impl Fault {
    /// The word for it in names of cases.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Loss => "loss",
            Self::Corrupt => "corrupt",
            Self::Link => "link",
            Self::Late => "late",
            Self::Silent => "silent",
        }
    }

    /// What it is, in words.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::None => "nothing is lost on purpose",
            Self::Loss => "Vernic loses 1 % of what it sends",
            Self::Corrupt => "Vernic damages 1 % of what it sends, after the ICRC",
            Self::Link => "the guest's network card loses 1 %, damages 1 %, and reorders 1 %",
            Self::Late => "what Vernic sends leaves 20 ms later",
            Self::Silent => {
                "the guest does not say when nobody listens, and so is asked again a second later"
            }
        }
    }

    /// Options of `vernic run`.
    pub(super) fn around(self) -> &'static str {
        match self {
            Self::None | Self::Link | Self::Silent => "",
            Self::Loss => "--loss 0.01 --seed 1",
            Self::Corrupt => "--corrupt 0.01 --seed 1",
            Self::Late => "--delay 20000",
        }
    }

    /// Commands of `tc` in the guest that begin it and that end it, about a netdev of its.
    pub(super) fn at_guest(self, netdev: &str) -> Option<[String; 2]> {
        match self {
            Self::Link => {
                let qdisc = |what| format!("qdisc {what} dev {netdev} root netem");
                // Reordering needs a delay to overtake.
                let options = "delay 1ms loss 1% corrupt 1% reorder 99%";
                Some([format!("{} {options}", qdisc("add")), qdisc("del")])
            }
            Self::Silent => {
                let qdisc = |what| format!("qdisc {what} dev {netdev} clsact");
                // RST and ACK without SYN and FIN.
                let refusals = "protocol ip flower ip_proto tcp tcp_flags 0x14/0x17";
                let drop = format!("filter add dev {netdev} egress {refusals} action drop");
                Some([format!("{} && /usr/bin/tc {drop}", qdisc("add")), qdisc("del")])
            }
            _ => None,
        }
    }
}

/// What must come out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// What the judge of conformance asks for.
    Output(Output),
    /// These lines and no others, of server and client.
    Lines([&'static str; 2]),
    /// The same, while strangers in the guest send Vernic, the server, packets whose ICRC is wrong;
    /// each is counted, and has no other effect.
    Forged([&'static str; 2]),
    /// Once both run, this side (0 is the server) is killed; the other then has this line, and
    /// ends.
    Killed { side: usize, survivor: &'static str },
    /// Once both run, their connection by address is reset; these lines come out.
    Reset([&'static str; 2]),
    /// The client finds nobody there, says so, and fails.
    Refused(&'static str),
    /// The server has the file that the client sent.
    Copied,
}

/// One program in one place.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) program: &'static str,
    pub(super) kind: Program,
    /// Its transport service; empty where the program says it in its name.
    pub(super) service: &'static str,
    pub(super) options: String,
    pub(super) fault: Fault,
    /// Of connections of iWARP, what both ends are told to agree on.
    pub(super) agreed: Agreed,
    pub(super) place: Place,
    pub(super) expected: Expected,
    /// Whether it is in the share that CI runs.
    pub(super) in_ci: bool,
    /// It may take so long, seconds.
    pub(super) limit_s: u64,
}

impl Case {
    /// The command line and the place.
    pub(super) fn name(&self) -> String {
        let Self { program, options, place, .. } = self;
        let space = if options.is_empty() { "" } else { " " };
        let variant = match self.variant() {
            "" => String::new(),
            variant => format!(" {variant}"),
        };
        format!("{program}{space}{options} @{}{variant}", place.name())
    }

    /// The word for what is done to packets or processes, if anything is.
    pub(super) fn variant(&self) -> &'static str {
        match self.expected {
            Expected::Killed { side: 0, .. } => "kill-server",
            Expected::Killed { .. } => "kill-client",
            Expected::Forged(_) => "forged",
            Expected::Reset(_) => "reset",
            Expected::Refused(_) => "refused",
            _ if self.agreed != Agreed::Crc => self.agreed.name(),
            _ => self.fault.name(),
        }
    }

    /// The scenario of our judge: its last option.
    pub(super) fn scenario(&self) -> &str {
        self.options.split(' ').find(|word| word.starts_with(char::is_alphabetic)).unwrap_or("")
    }
}

/// What both ends are told to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Agreed {
    /// CRCs, since Vernic asks for them, as it does unless it is told otherwise; MPA revision 2.
    Crc,
    /// No CRCs.
    Plain,
    /// CRCs, for which siw alone asks.
    SiwCrc,
    /// MPA revision 1, without depths.
    Revision1,
    /// The peer-to-peer model, for which siw asks: a message of no bytes comes first.
    PeerToPeer,
    /// What siw asks its own kind for with a reserved bit: segments longer than TCP's.
    Gso,
}

/// A parameter of the guest's module.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) value: &'static str,
    /// What it is without being told.
    pub(super) default: &'static str,
}

impl Agreed {
    /// Every one but the default.
    pub(super) const SPECIAL: [Self; 5] =
        [Self::Plain, Self::SiwCrc, Self::Revision1, Self::PeerToPeer, Self::Gso];

    /// The word for it in names of cases.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Crc => "crc",
            Self::Plain => "plain",
            Self::SiwCrc => "siw-crc",
            Self::Revision1 => "mpa1",
            Self::PeerToPeer => "peer-to-peer",
            Self::Gso => "gso",
        }
    }

    /// What it is, in words.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Crc => "Vernic asks for CRCs",
            Self::Plain => "neither end asks for CRCs",
            Self::SiwCrc => "siw alone asks for CRCs",
            Self::Revision1 => "siw asks by MPA revision 1, without CRCs",
            Self::PeerToPeer => "siw asks for the peer-to-peer model",
            Self::Gso => "siw says that it can take segments longer than TCP's",
        }
    }

    /// Options of `vernic run`.
    pub(super) fn around(self) -> &'static str {
        match self {
            Self::Crc | Self::PeerToPeer => "",
            Self::Plain | Self::SiwCrc | Self::Revision1 | Self::Gso => "--set iwarp_crc=off",
        }
    }

    /// What the guest's module is told. It heeds this only when it is the one that connects.
    pub(super) fn parameter(self) -> Option<Parameter> {
        let of = |name, value, default| Some(Parameter { name, value, default });
        match self {
            Self::Crc | Self::Plain => None,
            Self::SiwCrc => of("mpa_crc_required", "1", "0"),
            Self::Revision1 => of("mpa_version", "1", "2"),
            Self::PeerToPeer => of("peer_to_peer", "1", "0"),
            Self::Gso => of("try_gso", "1", "0"),
        }
    }
}

/// How server and client of such a program are called. In their options `SERVER` stands for the
/// server's address, `OWN` for that of the side itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Roles {
    /// Options of the server.
    pub(super) server: &'static str,
    /// Options of the client, before those of the case.
    pub(super) client: &'static str,
    /// The client's program, where it is another one.
    pub(super) client_program: Option<&'static str>,
    /// How it is known that the server is there.
    pub(super) ready: Ready,
    /// The server waits for further clients until it is ended.
    pub(super) is_endless: bool,
}
