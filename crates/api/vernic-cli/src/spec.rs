//! What can be measured: operations, services, kinds, and the numbers that go with them.
//!
//! A [`Task`] is the unit that both processes of a bench take part in; it travels to the passive
//! side as JSON. [`Spec::check`] is the one place that knows which combinations exist.

use crate::failure::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::fmt;
use vernic::Mtu;
use vernic::limits::MAX_INLINE;

/// A verbs operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Op {
    /// SEND into a posted receive.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// FETCH & ADD on 8 bytes.
    Atomic,
}

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "UPPERCASE")]
#[clap(rename_all = "UPPER")]
pub(crate) enum Service {
    /// Reliable connection.
    #[value(alias = "rc")]
    Rc,
    /// Unreliable connection.
    #[value(alias = "uc")]
    Uc,
    /// Unreliable datagram.
    #[value(alias = "ud")]
    Ud,
    /// RC over TCP (iWARP), without CRCs.
    #[serde(rename = "iWARP")]
    #[value(name = "iWARP", alias = "iwarp")]
    Iwarp,
    /// The same with CRCs.
    #[serde(rename = "iWARP+CRC")]
    #[value(name = "iWARP+CRC", alias = "iwarp+crc")]
    IwarpCrc,
}

impl Service {
    /// If TCP carries it: whether CRCs are asked for.
    pub(crate) fn tcp(self) -> Option<bool> {
        match self {
            Self::Rc | Self::Uc | Self::Ud => None,
            Self::Iwarp => Some(false),
            Self::IwarpCrc => Some(true),
        }
    }

    /// Whether requests are answered, so that credits are not needed.
    pub(crate) fn is_reliable(self) -> bool {
        self == Self::Rc || self.tcp().is_some()
    }
}

/// What is measured of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// One message at a time: SEND and WRITE as a ping-pong, READ and ATOMIC as a round trip.
    #[value(name = "lat")]
    Latency,
    /// As many as go: bytes and messages per second.
    #[value(name = "bw")]
    Throughput,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Atomic => "ATOMIC",
        })
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Iwarp => "iWARP",
            Self::IwarpCrc => "iWARP+CRC",
        })
    }
}

/// A baseline: the same bytes over plain sockets, between the same two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Baseline {
    /// One UDP datagram each way; both processes spin.
    UdpPingPong,
    /// UDP datagrams one way, one system call each, counted at the receiver.
    UdpStream,
    /// What UDP allows: packets of a path MTU, many in each system call, copied once and checked by
    /// a CRC-32 on either side; counted at the receiver.
    UdpPackets {
        /// Bytes of payload in a packet.
        mtu: u32,
    },
    /// The same ping-pong over TCP with Nagle's algorithm off.
    TcpPingPong,
    /// One TCP stream, blocking calls of one message each.
    TcpStream,
    /// A copy between two buffers of one process.
    Memcpy,
}

impl Baseline {
    /// The name of the baseline in `--json`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::UdpPingPong | Self::UdpStream => "udp",
            Self::UdpPackets { .. } => "udp_packets",
            Self::TcpPingPong | Self::TcpStream => "tcp",
            Self::Memcpy => "memcpy",
        }
    }

    /// Bytes of payload in a packet, where that is fixed.
    pub(crate) fn mtu(self) -> Option<u32> {
        match self {
            Self::UdpPackets { mtu } => Some(mtu),
            _ => None,
        }
    }

    /// What is measured of it.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::UdpPingPong | Self::TcpPingPong => Kind::Latency,
            Self::UdpStream | Self::UdpPackets { .. } | Self::TcpStream | Self::Memcpy => {
                Kind::Throughput
            }
        }
    }
}

/// Everything that the two sides must agree on to measure one verbs operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The operation.
    pub(crate) op: Op,
    /// The service that carries it.
    pub(crate) service: Service,
    /// What is measured.
    pub(crate) kind: Kind,
    /// Bytes of each message.
    pub(crate) size: u64,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub(crate) mtu: u32,
    /// Queue pairs, each with its own window of `tx_depth`.
    pub(crate) qps: u32,
    /// Sends in flight per queue pair.
    pub(crate) tx_depth: u32,
    /// Receives posted per queue pair.
    pub(crate) rx_depth: u32,
    /// Sends posted with one doorbell.
    pub(crate) post_list: u32,
    /// One completion is asked for every so many sends.
    pub(crate) cq_mod: u32,
    /// Messages up to this size travel inside the work request.
    pub(crate) inline_size: u32,
    /// READs and ATOMICs outstanding per queue pair.
    pub(crate) outstanding: u32,
    /// Exponent of the ACK timeout, 4.096 us * 2^n.
    pub(crate) qp_timeout: u32,
    /// The passive side of WRITE, READ and ATOMIC sleeps: its background thread does the work.
    pub(crate) passive: bool,
}

/// Most queue pairs of one measurement.
pub(crate) const MAX_QPS: u32 = 1024;
/// Deepest queue of one measurement.
pub(crate) const MAX_DEPTH: u32 = 32_768;
/// Most READs and ATOMICs outstanding on a queue pair: what a device takes.
pub(crate) const MAX_OUTSTANDING: u32 = 128;
/// Largest exponent of the ACK timeout: its field has 5 bits.
const MAX_TIMEOUT: u32 = 31;
/// Largest message (IBTA 9.3.1: 2^31 bytes).
pub(crate) const MAX_SIZE: u64 = 1 << 31;

/// Reads a path MTU.
pub(crate) fn parse_mtu(text: &str) -> Result<u32, String> {
    mtu_from_bytes(text.parse().map_err(|_| "not a number")?)
}

fn mtu_from_bytes(bytes: u32) -> Result<u32, String> {
    match Mtu::from_bytes(bytes) {
        Some(_) => Ok(bytes),
        None => Err(format!("{bytes} is no RDMA path MTU; choose 256, 512, 1024, 2048 or 4096")),
    }
}

impl Spec {
    /// True for a latency that is quoted as a round trip; a ping-pong is quoted one way.
    pub(crate) fn is_round_trip(&self) -> bool {
        self.kind == Kind::Latency && matches!(self.op, Op::Read | Op::Atomic)
    }

    /// Says why this combination cannot be measured, if so.
    pub(crate) fn check(&self) -> Outcome<()> {
        let no = |why: String| Err(Failure::usage(why));
        let Self { op, service, size, mtu, .. } = *self;
        match (service, op) {
            (Service::Rc, _) | (Service::Uc, Op::Send | Op::Write) | (Service::Ud, Op::Send) => {}
            (Service::Iwarp | Service::IwarpCrc, Op::Send | Op::Write | Op::Read) => {}
            _ => {
                return no(format!(
                    "{service} has no {op}; RC has all, iWARP all but ATOMIC, UC SEND and WRITE, UD SEND"
                ));
            }
        }
        if service == Service::Ud && size > u64::from(mtu) {
            return no(format!("a UD message is one packet: {size} bytes exceed the MTU of {mtu}"));
        }
        if op == Op::Atomic && size != 8 {
            return no(format!("an ATOMIC has 8 bytes, not {size}"));
        }
        if size == 0 || size > MAX_SIZE {
            return no(format!("a message of {size} bytes; the range is 1 byte to 2 GiB"));
        }
        self.check_ranges()
    }

    /// Says which number is out of range, if one is: a mistake whatever the combination.
    pub(crate) fn check_ranges(&self) -> Outcome<()> {
        let no = |why: String| Err(Failure::usage(why));
        if let Err(why) = mtu_from_bytes(self.mtu) {
            return no(why);
        }
        let ranges = [
            ("queue pairs (-q)", self.qps, MAX_QPS),
            ("transmit depth (-t)", self.tx_depth, MAX_DEPTH),
            ("receive depth (-r)", self.rx_depth, MAX_DEPTH),
            ("post list (-l)", self.post_list, self.tx_depth),
            ("CQ moderation (-Q)", self.cq_mod, self.tx_depth),
            ("outstanding READs (-o)", self.outstanding, MAX_OUTSTANDING),
        ];
        for (name, value, max) in ranges {
            if value == 0 || value > max {
                return no(format!("{name}: {value} is outside 1 to {max}"));
            }
        }
        if self.qp_timeout > MAX_TIMEOUT {
            let value = self.qp_timeout;
            return no(format!("QP timeout (-u): {value} is outside 0 to {MAX_TIMEOUT}"));
        }
        if self.inline_size > MAX_INLINE {
            let value = self.inline_size;
            return no(format!("inline size (-I): {value} is outside 0 to {MAX_INLINE}"));
        }
        Ok(())
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Latency => "latency",
            Kind::Throughput => "throughput",
        };
        let Self { service, op, size, mtu, .. } = self;
        match service.tcp() {
            Some(_) => write!(f, "{service} {op} {size} B, {kind}"),
            None => write!(f, "{service} {op} {size} B, MTU {mtu}, {kind}"),
        }
    }
}

/// One thing that both processes measure together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Plain sockets or memory.
    Baseline {
        /// Which.
        baseline: Baseline,
        /// Bytes of each message.
        size: u64,
    },
    /// Verbs.
    Verbs(Spec),
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(spec) => spec.fmt(f),
            Self::Baseline { baseline: Baseline::UdpPackets { mtu }, size } => {
                write!(f, "UdpPackets {size} B, MTU {mtu}")
            }
            Self::Baseline { baseline, size } => write!(f, "{baseline:?} {size} B"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn spec(op: Op, service: Service, size: u64) -> Spec {
        Spec {
            op,
            service,
            kind: Kind::Throughput,
            size,
            mtu: 4096,
            qps: 1,
            tx_depth: 128,
            rx_depth: 512,
            post_list: 16,
            cq_mod: 32,
            inline_size: 0,
            outstanding: 16,
            qp_timeout: 14,
            passive: false,
        }
    }

    #[test]
    fn combinations_that_ibta_does_not_have_are_refused_with_the_reason() {
        for (op, service, size, word) in [
            (Op::Read, Service::Uc, 8, "UC has no READ"),
            (Op::Atomic, Service::Uc, 8, "UC has no ATOMIC"),
            (Op::Write, Service::Ud, 8, "UD has no WRITE"),
            (Op::Send, Service::Ud, 4097, "one packet"),
            (Op::Atomic, Service::Rc, 16, "8 bytes"),
            (Op::Write, Service::Rc, 0, "range"),
            (Op::Write, Service::Rc, (2 << 30) + 1, "range"),
        ] {
            let failure = spec(op, service, size).check().unwrap_err();
            assert!(failure.what().contains(word), "{failure}");
        }
        spec(Op::Send, Service::Ud, 4096).check().unwrap();
        spec(Op::Write, Service::Rc, 2 << 30).check().unwrap();
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_their_option() {
        let base = spec(Op::Send, Service::Rc, 64);
        for (wrong, word) in [
            (Spec { mtu: 1500, ..base }, "path MTU"),
            (Spec { qps: 0, ..base }, "-q"),
            (Spec { tx_depth: MAX_DEPTH + 1, ..base }, "-t"),
            (Spec { post_list: 129, ..base }, "-l"),
            (Spec { cq_mod: 0, ..base }, "-Q"),
            (Spec { outstanding: 129, ..base }, "-o"),
            (Spec { qp_timeout: 32, ..base }, "-u"),
            (Spec { inline_size: 1025, ..base }, "-I"),
        ] {
            let failure = wrong.check().unwrap_err();
            assert!(failure.what().contains(word), "{failure}");
        }
    }
}
