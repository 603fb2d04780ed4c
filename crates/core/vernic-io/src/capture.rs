//! A middleware that writes the traffic of a link into a pcapng file that Wireshark opens as
//! RoCEv2 and RoCEv1.
//!
//! A UDP socket shows no IP or UDP headers. So the capture makes them up, with the right values
//! where it matters: addresses, ports, TOS, and the IPv4 Identification that the ICRC covers. Link
//! type is Ethernet with MAC addresses of zeros. Each packet carries its direction; a process that
//! is both ends of a connection writes its packets twice.
//!
//! Packets between processes of one host may use a private UDP port (see
//! [`host`](crate::host)). Wireshark knows RoCEv2 by its port, so the capture says 4791 instead.
//! The ICRC is changed by the difference that this makes: a right one stays right, a wrong one
//! stays wrong.
//!
//! The file always ends with a whole block, so that it can be read while it grows and after its
//! process was killed (`blocks.rs`). If another link is writing a file of that name, the second
//! file's name gets `-2`, and so on.
//!
//! Limits: [`CaptureConfig::max_bytes`]. An error of the file system ends the capture, not the
//! traffic.

mod blocks;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use vernic_wire::icrc::IcrcFlow;
use vernic_wire::{Frame, FrameV1, Grh};

use self::blocks::Blocks;
use crate::ROCE_PORT;
use crate::address::Address;
use crate::batch::{ICRC_BYTES, MAX_PACKET_BYTES, RxBatch, TxBatch, TxRun};
use crate::endpoint::{receiver_of, sender_of};
use crate::icrc::{Found, IcrcChecker};
use crate::link::{Departure, Link, LinkCounters, Nanos, SendReport, forward_to_inner};
use crate::path::TxPath;
use crate::roce_v1;

/// Longest headers that are made up: Ethernet, IPv6, UDP.
const MAX_HEADER_BYTES: usize = 14 + 40 + 8;

/// `if_tsresol`: times are in units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// Longest time that a packet waits to be written to the file.
const FLUSH_AFTER_NANOS: u64 = 20_000_000;

/// Direction in `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Bytes of a block and its options around the frame: how much a packet adds to the file at most.
const BLOCK_OVERHEAD_BYTES: u64 = 48;

/// The settings of a capture.
#[derive(Clone, Debug)]
pub struct CaptureConfig {
    /// The file. It is replaced if it exists and no process is writing it.
    pub path: PathBuf,
    /// The capture ends before the file has more bytes than this; `None`: no limit.
    pub max_bytes: Option<u64>,
}

/// The reason why a capture could not begin.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the capture {path}: {source}{}", what_to_do(path, source), path = path.display())]
pub struct CaptureError {
    path: PathBuf,
    source: io::Error,
}

/// Returns advice for the usual errors, as "; ...".
fn what_to_do(path: &Path, error: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).display();
    match error.kind() {
        io::ErrorKind::IsADirectory => {
            format!("; name a file in it, as {}", path.join("%d-%p.pcapng").display())
        }
        io::ErrorKind::NotFound => format!("; is there a folder {folder}?"),
        io::ErrorKind::PermissionDenied => {
            format!("; name a file that this user may write (see `ls -ld {folder}`)")
        }
        _ => String::new(),
    }
}

/// A link that captures all packets. See the [module](self).
pub struct CaptureLink {
    inner: Box<dyn Link>,
    file: CaptureFile,
    checker: IcrcChecker,
}

impl fmt::Debug for CaptureLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureLink").field("file", &self.file).finish_non_exhaustive()
    }
}

impl CaptureLink {
    /// Makes a link that captures what goes through `inner`.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn new(inner: Box<dyn Link>, config: CaptureConfig) -> Result<Self, CaptureError> {
        let path = config.path.clone();
        let file = CaptureFile::create(config).map_err(|source| CaptureError { path, source })?;
        Ok(Self { inner, file, checker: IcrcChecker::new() })
    }

    /// Returns the number of packets written so far.
    pub fn packets(&self) -> u64 {
        self.file.packets
    }

    /// Returns the number of packets that were not written: the file was full, writing failed, or
    /// the link does not know their headers (see [`Link::departure`]).
    pub fn skipped(&self) -> u64 {
        self.file.skipped
    }

    fn capture_run(&mut self, now: Nanos, run: &TxRun<'_>) {
        if run.path.id().is_frames() {
            for packet in run.packets() {
                let grh = roce_v1::tx::grh(run.path, packet.len());
                self.file.write(now, OUTBOUND, &Captured::Frame(grh, packet));
            }
            return;
        }
        // Either the link has refused the packets, because the source of the path is not active, or
        // the link is of a kind that sends no UDP.
        let Some(Departure { src, dst, segmented }) = self.inner.departure(run.path) else {
            self.file.skip_without_headers(run);
            return;
        };
        for (packet, index) in run.packets().zip(0u16..) {
            let ident = if segmented { index } else { 0 };
            let packet = Datagram {
                src,
                dst,
                traffic_class: run.path.traffic_class(),
                hop_limit: run.path.hop_limit(),
                ident,
                bytes: packet,
            };
            self.file.write(now, OUTBOUND, &Captured::Datagram(packet));
        }
    }
}

impl Link for CaptureLink {
    forward_to_inner!();

    fn send(&mut self, now: Nanos, batch: &mut TxBatch) -> SendReport {
        self.file.flush_if_due(now);
        if self.file.writer.is_none() || batch.is_empty() {
            return self.inner.send(now, batch);
        }
        // The batch forgets packets that it sends, so they are kept until it is known how many
        // went.
        self.inner.stamp(batch);
        let kept: Vec<(TxPath, usize, Vec<u8>)> =
            batch.runs().map(|run| (*run.path, run.stride, run.bytes.to_vec())).collect();
        let report = self.inner.send(now, batch);
        // Refused packets were not sent, but the report does not say which they are: they are
        // written too.
        let mut gone = report.packets + report.failed;
        for (path, stride, bytes) in &kept {
            let run = TxRun { path, bytes, stride: *stride };
            let count = run.count().min(gone);
            gone -= count;
            let bytes = &bytes[..bytes.len().min(count * stride)];
            if !bytes.is_empty() {
                self.capture_run(now, &TxRun { bytes, ..run });
            }
        }
        report
    }

    fn recv(&mut self, now: Nanos, batch: &mut RxBatch) -> usize {
        self.file.flush_if_due(now);
        let count = self.inner.recv(now, batch);
        if count == 0 || self.file.writer.is_none() {
            return count;
        }
        for packet in batch.packets() {
            let meta = packet.meta;
            if let (Address::RoceV1(sgid), Address::RoceV1(dgid)) = (meta.src, meta.dst) {
                let grh = Grh {
                    version: 6,
                    traffic_class: meta.traffic_class,
                    flow_label: meta.flow_label,
                    payload_length: packet.bytes.len() as u16,
                    next_header: Grh::NEXT_HEADER_IBA,
                    hop_limit: meta.hop_limit,
                    sgid,
                    dgid,
                };
                self.file.write(now, INBOUND, &Captured::Frame(grh, packet.bytes));
                continue;
            }
            let ident = match self.checker.check(&packet) {
                Found::Guessed(ident) | Found::Solved(ident) => ident,
                // No Identification makes the ICRC right.
                Found::Bad => 0,
            };
            let packet = Datagram {
                src: sender_of(meta),
                dst: receiver_of(meta),
                traffic_class: meta.traffic_class,
                hop_limit: meta.hop_limit,
                ident,
                bytes: packet.bytes,
            };
            self.file.write(now, INBOUND, &Captured::Datagram(packet));
        }
        count
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline().into_iter().chain(self.file.flush_at).min()
    }

    fn flush(&mut self) {
        self.file.flush();
        self.inner.flush();
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

/// A captured packet.
enum Captured<'a> {
    /// By UDP.
    Datagram(Datagram<'a>),
    /// By RoCEv1: its GRH, and BTH to ICRC.
    Frame(Grh, &'a [u8]),
}

impl Captured<'_> {
    /// Writes the frame into `buf`; returns its length. Packets longer than a link's are cut.
    fn emit(&self, buf: &mut [u8; MAX_HEADER_BYTES + MAX_PACKET_BYTES]) -> usize {
        match self {
            Self::Datagram(datagram) => datagram.emit(buf),
            Self::Frame(grh, bytes) => {
                let head = FrameV1::headers((Frame::NO_MAC, Frame::NO_MAC), grh);
                let bytes = &bytes[..bytes.len().min(MAX_PACKET_BYTES)];
                let end = head.len() + bytes.len();
                buf[..head.len()].copy_from_slice(&head);
                buf[head.len()..end].copy_from_slice(bytes);
                end
            }
        }
    }
}

/// A captured packet by UDP, with the known values of its headers.
struct Datagram<'a> {
    src: SocketAddr,
    dst: SocketAddr,
    traffic_class: u8,
    hop_limit: u8,
    ident: u16,
    /// The packet from BTH to ICRC.
    bytes: &'a [u8],
}

impl Datagram<'_> {
    fn emit(&self, buf: &mut [u8; MAX_HEADER_BYTES + MAX_PACKET_BYTES]) -> usize {
        let mut payload = [0; MAX_PACKET_BYTES];
        let len = self.bytes.len().min(MAX_PACKET_BYTES);
        payload[..len].copy_from_slice(&self.bytes[..len]);
        let payload = &mut payload[..len];
        if self.dst.port() != ROCE_PORT {
            self.move_icrc(payload);
        }
        let dst = SocketAddr::new(self.dst.ip(), ROCE_PORT);
        let mut frame = Frame::new(self.src, dst, self.traffic_class, self.ident, payload);
        match &mut frame.ip {
            vernic_wire::net::Ip::V4(ip) => {
                ip.ttl = self.hop_limit;
                ip.checksum = 0;
                ip.checksum = ip.computed_checksum();
            }
            vernic_wire::net::Ip::V6(ip) => ip.hop_limit = self.hop_limit,
        }
        frame.emit(buf)
    }

    /// Changes the ICRC from the one for the real destination port to the one for port 4791.
    fn move_icrc(&self, payload: &mut [u8]) {
        let Some((transport, icrc)) = payload.split_last_chunk_mut::<ICRC_BYTES>() else { return };
        let flow = |port| IcrcFlow::new(self.src.ip(), self.dst.ip(), self.src.port(), port);
        let change = flow(self.dst.port()).compute(self.ident, transport)
            ^ flow(ROCE_PORT).compute(self.ident, transport);
        *icrc = (u32::from_le_bytes(*icrc) ^ change).to_le_bytes();
    }
}

/// The capture file, until it is full or fails.
struct CaptureFile {
    config: CaptureConfig,
    writer: Option<PcapNgWriter<Blocks>>,
    bytes: u64,
    packets: u64,
    skipped: u64,
    /// Whether the log says that packets without known headers were skipped.
    has_logged_unknown_headers: bool,
    /// The time at which blocks that wait in memory are to be written; `None`: none wait.
    flush_at: Option<Nanos>,
    /// Time of day at the zero of the link's clock, from the first packet.
    epoch: Option<Duration>,
}

impl fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureFile")
            .field("path", &self.config.path)
            .field("packets", &self.packets)
            .field("skipped", &self.skipped)
            .finish_non_exhaustive()
    }
}

impl CaptureFile {
    fn create(mut config: CaptureConfig) -> io::Result<Self> {
        let (blocks, path) = Blocks::create(&config.path)?;
        if path != config.path {
            tracing::info!(
                asked = %config.path.display(), path = %path.display(),
                "somebody else writes this capture: writing another (%p and %d in the name give \
                 each process and device its own)"
            );
            config.path = path;
        }
        let mut writer = PcapNgWriter::new(blocks).map_err(to_io)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed("vernic")),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        let bytes = writer.write_pcapng_block(interface).map_err(to_io)? as u64;
        writer.get_mut().write_out()?;
        let writer = Some(writer);
        Ok(Self {
            config,
            writer,
            bytes,
            packets: 0,
            skipped: 0,
            has_logged_unknown_headers: false,
            flush_at: None,
            epoch: None,
        })
    }

    /// Counts packets whose headers the link does not know, and logs the first of them.
    fn skip_without_headers(&mut self, run: &TxRun<'_>) {
        if !std::mem::replace(&mut self.has_logged_unknown_headers, true) {
            let path = self.config.path.display();
            tracing::warn!(%path, to = %run.path, "packets are missing in the capture: the link \
                refused them, or is of a kind that sends no UDP");
        }
        self.skipped += run.count() as u64;
    }

    fn write(&mut self, now: Nanos, direction: u32, packet: &Captured<'_>) {
        let Some(writer) = &mut self.writer else {
            self.skipped += 1;
            return;
        };
        let mut buf = [0; MAX_HEADER_BYTES + MAX_PACKET_BYTES];
        let len = packet.emit(&mut buf);
        let limit = self.config.max_bytes.unwrap_or(u64::MAX);
        if self.bytes + len as u64 + BLOCK_OVERHEAD_BYTES > limit {
            tracing::warn!(path = %self.config.path.display(), limit, "capture is full");
            self.skipped += 1;
            self.end();
            return;
        }
        let since = Duration::from_nanos(now.0);
        let epoch = *self.epoch.get_or_insert_with(|| {
            let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            today.unwrap_or_default().saturating_sub(since)
        });
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: epoch + since,
            original_len: len as u32,
            data: Cow::Borrowed(&buf[..len]),
            options: vec![EnhancedPacketOption::Flags(direction)],
        };
        let result = writer.write_pcapng_block(block).map_err(to_io).and_then(|written| {
            if writer.get_ref().is_full() {
                writer.get_mut().write_out()?;
                self.flush_at = None;
            } else {
                self.flush_at.get_or_insert(now.plus(FLUSH_AFTER_NANOS));
            }
            Ok(written)
        });
        match result {
            Ok(written) => {
                self.packets += 1;
                self.bytes += written as u64;
            }
            Err(error) => {
                self.skipped += 1;
                self.fail(&error);
            }
        }
    }

    fn flush_if_due(&mut self, now: Nanos) {
        if self.flush_at.is_some_and(|at| now >= at) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.flush_at = None;
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.get_mut().write_out()
        {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        tracing::warn!(path = %self.config.path.display(), %error, "capture ends");
        self.end();
    }

    /// Closes the file. Blocks that cannot be written are lost.
    fn end(&mut self) {
        self.flush_at = None;
        if let Some(mut writer) = self.writer.take() {
            let _ = writer.get_mut().write_out();
        }
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        self.end();
    }
}

fn to_io(error: pcap_file::PcapError) -> io::Error {
    match error {
        pcap_file::PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests;
