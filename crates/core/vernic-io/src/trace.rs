//! A middleware that writes one line per packet through `tracing`.
//!
//! Level `TRACE`, target `vernic::packet`:
//!
//! ```text
//! -> 127.0.0.1:50012 > 127.0.0.1:4791 SEND_ONLY ... 64 B
//! ```
//!
//! Costs a formatted line per packet where that target is enabled, and one check per batch where
//! it is not.

use std::fmt;
use std::net::SocketAddr;

use crate::batch::{ICRC_BYTES, RxBatch, TxBatch};
use crate::endpoint::{receiver_of, sender_of};
use crate::link::{Link, LinkCounters, Nanos, SendReport, forward_to_inner};

/// The target of the lines, to be enabled by the subscriber.
pub const TARGET: &str = "vernic::packet";

/// A link that traces every packet. See the [module](self).
pub struct TraceLink {
    inner: Box<dyn Link>,
}

impl fmt::Debug for TraceLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceLink").finish_non_exhaustive()
    }
}

impl TraceLink {
    /// Makes a link that traces what goes through `inner`.
    pub fn new(inner: Box<dyn Link>) -> Self {
        Self { inner }
    }
}

/// A line about one packet. Writing it never fails, whatever the bytes.
struct Line<'a> {
    arrow: &'static str,
    src: SocketAddr,
    dst: SocketAddr,
    /// The packet from BTH to ICRC.
    bytes: &'a [u8],
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} > {} ", self.arrow, self.src, self.dst)?;
        let transport = &self.bytes[..self.bytes.len().saturating_sub(ICRC_BYTES)];
        match vernic_wire::Packet::parse(transport) {
            Ok(packet) => write!(f, "{packet} {} B", packet.payload().len()),
            Err(error) => write!(f, "not a packet: {error}; {} B", self.bytes.len()),
        }
    }
}

impl Link for TraceLink {
    forward_to_inner!();

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn send(&mut self, now: Nanos, batch: &mut TxBatch) -> SendReport {
        let waiting = batch.packets();
        if waiting == 0 || !tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
            return self.inner.send(now, batch);
        }
        // Lines are written before sending: afterwards the batch has forgotten the packets. A
        // packet that the socket has no space for is traced again when it is sent again.
        for run in batch.runs() {
            let port = self.inner.departure(run.path).map_or(0, |departure| departure.src.port());
            let src = SocketAddr::new(run.path.local().to_ip(), port);
            let dst = SocketAddr::new(run.path.remote().to_ip(), run.path.door());
            for bytes in run.packets() {
                let line = Line { arrow: "->", src, dst, bytes };
                tracing::trace!(target: TARGET, "{line}");
            }
        }
        let report = self.inner.send(now, batch);
        if report.packets < waiting {
            let (failed, waits) = (report.failed, batch.packets());
            tracing::trace!(target: TARGET, "-> {failed} refused, {waits} wait, of {waiting}");
        }
        report
    }

    fn recv(&mut self, now: Nanos, batch: &mut RxBatch) -> usize {
        let count = self.inner.recv(now, batch);
        if count != 0 && tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
            for packet in batch.packets() {
                let (src, dst) = (sender_of(packet.meta), receiver_of(packet.meta));
                let line = Line { arrow: "<-", src, dst, bytes: packet.bytes };
                tracing::trace!(target: TARGET, "{line}");
            }
        }
        count
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_have_a_line() {
        let addr: SocketAddr = "127.0.0.1:4791".parse().unwrap();
        let bth = vernic_wire::Bth::new(
            vernic_wire::Opcode(4),
            vernic_wire::Qpn::new(0x1234),
            vernic_wire::Psn::new(77),
        );
        let mut packet = bth.to_bytes().to_vec();
        packet.extend([0; 68]);
        let line = |bytes: &[u8]| Line { arrow: "->", src: addr, dst: addr, bytes }.to_string();
        let text = line(&packet);
        assert!(text.starts_with("-> 127.0.0.1:4791 > 127.0.0.1:4791 "), "{text}");
        assert!(text.contains("77") && text.ends_with("64 B"), "{text}");
        for len in 0..20 {
            assert!(!line(&vec![0xFF; len]).is_empty());
        }
        assert!(line(&[0xFF; 3]).contains("not a packet"));
    }
}
