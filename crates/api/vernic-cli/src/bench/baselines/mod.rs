//! Plain sockets and memory, measured between the same two processes in the same run.
//!
//! They are written as a careful user of the standard library would write them, one system call per
//! message, so that a ratio compares with what an application would otherwise have. UDP in packets
//! of a path MTU is the exception: it uses all that the kernel offers, and is the wire's limit.

pub(crate) mod memcpy;
mod tcp;
mod udp;
mod udp_packets;

use super::control::Control;
use super::end::{Active, Passive};
use crate::failure::{Failure, Outcome};
use crate::spec::{Baseline, MAX_SIZE};

/// Opens the active end of a baseline between the addresses of the control connection.
pub(crate) fn active(control: &Control, baseline: Baseline, size: u64) -> Outcome<Box<dyn Active>> {
    let (local, peer) = (control.local_ip()?, control.peer_ip()?);
    let size = buffer_size(size)?;
    Ok(match baseline {
        Baseline::UdpPingPong => Box::new(udp::Pinger::open(local, peer, size)?),
        Baseline::UdpStream => Box::new(udp::Sender::open(local, peer, size)?),
        Baseline::UdpPackets { mtu } => {
            Box::new(udp_packets::Sender::open(local, peer, size, mtu)?)
        }
        Baseline::TcpPingPong => Box::new(tcp::Pinger::open(peer, size)),
        Baseline::TcpStream => Box::new(tcp::Sender::open(peer, size)),
        Baseline::Memcpy => return Err(one_process_only()),
    })
}

/// Opens the passive end of a baseline.
pub(crate) fn passive(
    control: &Control,
    baseline: Baseline,
    size: u64,
) -> Outcome<Box<dyn Passive>> {
    let (local, peer) = (control.local_ip()?, control.peer_ip()?);
    let size = buffer_size(size)?;
    Ok(match baseline {
        Baseline::UdpPingPong => Box::new(udp::Echo::open(local, peer, size)?),
        Baseline::UdpStream => Box::new(udp::Receiver::open(local, peer, size)?),
        Baseline::UdpPackets { mtu } => {
            Box::new(udp_packets::Receiver::open(local, peer, size, mtu)?)
        }
        Baseline::TcpPingPong => Box::new(tcp::Echo::open(local, size)?),
        Baseline::TcpStream => Box::new(tcp::Receiver::open(local, size)?),
        Baseline::Memcpy => return Err(one_process_only()),
    })
}

fn buffer_size(size: u64) -> Outcome<usize> {
    match usize::try_from(size) {
        Ok(bytes) if (1..=MAX_SIZE).contains(&size) => {
            super::memory::check(bytes)?;
            Ok(bytes)
        }
        _ => Err(Failure::new(format!("a baseline with messages of {size} bytes"))),
    }
}

fn one_process_only() -> Failure {
    Failure::new("memcpy is measured in one process")
}
