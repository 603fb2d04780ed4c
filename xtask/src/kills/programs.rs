//! The programs that are killed, and the ways that their bytes take.

use crate::conformance::{PORT, Ready};

/// A program that runs until it is ended, as server and as client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// Its name.
    pub(super) name: &'static str,
    /// Options of both sides.
    pub(super) options: &'static str,
    /// Further options of the server and of the client. `GID` stands for the index of the address's
    /// GID.
    pub(super) own: [&'static str; 2],
    /// Further options of `vernic run`.
    pub(super) around: &'static str,
    /// What the kernel tells when the server is there, over RoCE.
    pub(super) ready: Ready,
    /// The ways it can take.
    pub(super) ways: &'static [Way],
    /// Whether it hears of the end of a connection from the connection manager, and may end its
    /// queue pair for that before the queue pair fails.
    pub(super) hears_manager: bool,
}

impl Program {
    /// What the kernel tells when the server is there: over iWARP a port is TCP's own.
    pub(super) fn ready(&self, way: Way) -> Ready {
        match (way, self.ready) {
            (Way::Iwarp, Ready::Service(_, port)) => Ready::Tcp(port),
            (_, ready) => ready,
        }
    }
}

/// The way of the bytes between two processes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Memory that both processes share.
    Memory,
    /// UDP packets.
    Wire,
    /// A TCP connection.
    Iwarp,
}

impl Way {
    /// The word for it in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Wire => "wire",
            Self::Iwarp => "iwarp",
        }
    }

    /// Options of `vernic run`.
    pub(super) fn around(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &["--set", "same_host=on"],
            Self::Wire => &["--set", "same_host=off"],
            Self::Iwarp => &["--iwarp"],
        }
    }
}

const ALL: &[Way] = &[Way::Memory, Way::Wire, Way::Iwarp];
const ROCE: &[Way] = &[Way::Memory, Way::Wire];

/// RDMA_PS_TCP, as the names of services have it.
const PORT_SPACE_TCP: u16 = 0x106;

/// The port of rping and rstream.
const RPING_PORT: u16 = 7174;
const RSTREAM_PORT: u16 = 7471;

/// Perftest, whose processes meet over a TCP connection of their own; or by the connection manager
/// (`-R`).
const fn perftest(name: &'static str) -> Program {
    Program {
        name,
        options: "-F -D 60 -x GID",
        own: ["", "127.0.0.1"],
        around: "",
        ready: Ready::Tcp(PORT),
        ways: ROCE,
        hears_manager: false,
    }
}

const fn perftest_by_manager(name: &'static str) -> Program {
    Program {
        name,
        options: "-F -D 60 -R",
        own: ["", "127.0.0.1"],
        around: "",
        ready: Ready::Service(PORT_SPACE_TCP, PORT),
        ways: ALL,
        hears_manager: false,
    }
}

/// Every program. None of them ends by itself within a trial.
pub(super) const PROGRAMS: &[Program] = &[
    perftest("ib_write_bw"),
    perftest("ib_send_bw"),
    perftest("ib_read_bw"),
    perftest_by_manager("ib_write_bw"),
    perftest_by_manager("ib_send_bw"),
    perftest_by_manager("ib_read_bw"),
    Program {
        name: "rping",
        options: "-C 100000000 -p 7174",
        own: ["-s -a 127.0.0.1", "-c -a 127.0.0.1"],
        around: "",
        ready: Ready::Service(PORT_SPACE_TCP, RPING_PORT),
        ways: ALL,
        hears_manager: false,
    },
    Program {
        name: "rstream",
        options: "-S 65536 -C 100000000 -p 7471",
        own: ["-b 127.0.0.1", "-s 127.0.0.1"],
        around: "",
        ready: Ready::Service(PORT_SPACE_TCP, RSTREAM_PORT),
        ways: ALL,
        hears_manager: true,
    },
    Program {
        name: "iperf3",
        options: "-p 5201 --forceflush",
        own: ["-s -1 -B 127.0.0.1", "-c 127.0.0.1 -t 60"],
        around: "--rsockets=only",
        ready: Ready::Service(PORT_SPACE_TCP, 5201),
        ways: ROCE,
        hears_manager: false,
    },
];
