//! What a run is made of.

use vernic_proto::congestion::Algorithm;
use vernic_wire::Mtu;

use super::load::Traffic;
use super::switch::Ecn;
use super::topology::Shape;
use super::units::Rate;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The shape of the network.
    pub topology: Shape,
    /// Hosts that take part; all if left out.
    pub hosts: Option<u32>,
    /// The congestion control of all queue pairs.
    pub algorithm: Algorithm,
    /// What hosts send.
    pub traffic: Traffic,
    /// The part of the hosts' links that random flows ask for.
    pub load_factor: f64,
    /// Bytes of a flow of `incast` and `pairs`, or of the vector of `allreduce`.
    pub bytes: Option<u64>,
    /// Where all chance descends from.
    pub seed: u64,
    /// Simulated time in nanoseconds.
    pub time_nanos: u64,
    /// The rate of hosts' links.
    pub rate: Rate,
    /// The delay of a link in nanoseconds, from end to end.
    pub delay_nanos: u64,
    /// Payload bytes of a packet.
    pub mtu: Mtu,
    /// Bytes of a switch's buffer.
    pub buffer: u64,
    /// Marks of ECN.
    pub ecn: Option<Ecn>,
    /// Whether switches pause rather than drop.
    pub pfc: bool,
    /// Whether queue pairs keep what comes ahead of a gap (`selective_recovery`).
    pub keep: bool,
}
