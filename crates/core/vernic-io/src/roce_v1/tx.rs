//! Sending by RoCEv1: packets of any paths and netdevs through one socket.
//!
//! There is no segmentation for this EtherType, so each packet is a frame of its own; a
//! `sendmmsg` takes 32 of them. The headers are made when a frame is sent, the ICRC before, with
//! those of packets by UDP.

use std::os::fd::AsFd;
use std::sync::Arc;

use vernic_sys::{self as sys, MAX_FRAME_HEAD, OutgoingFrame, OwnFd};
use vernic_wire::net::{EtherType, MacAddr};
use vernic_wire::{FrameV1, Grh, icrc};

use crate::batch::{ICRC_BYTES, TxBatch, TxRun};
use crate::buffer;
use crate::link::{LinkCounters, SendReport};
use crate::path::TxPath;
use crate::roce_v1::control::{Shared, Station};
use crate::roce_v1::mac;

/// The netdev that frames leave by, and their Ethernet addresses.
#[derive(Clone, Copy, Debug)]
struct Way {
    ifindex: u32,
    src: MacAddr,
    dst: MacAddr,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Transmit {
    shared: Arc<Shared>,
    socket_bytes: u32,
    /// Opened with the first packet; it receives nothing.
    socket: Option<OwnFd>,
    /// The stations as of the last look.
    stations: Vec<Station>,
}

impl Transmit {
    pub(crate) fn new(shared: Arc<Shared>, socket_bytes: u32) -> Self {
        Self { shared, socket_bytes, socket: None, stations: Vec::new() }
    }

    /// Returns the way of the frames of a path, once the stations are as of now.
    fn way(&self, path: &TxPath) -> Option<Way> {
        let number = path.id().frames()?;
        let known = self.stations.get(number as usize).copied();
        let station = known.or_else(|| self.shared.answered(number))?;
        let dst = station.dst.or_else(|| mac::of_gid(path.remote()))?;
        Some(Way { ifindex: station.ifindex, src: station.src, dst })
    }

    /// Whether a path has a station.
    fn has_way(&mut self, path: &TxPath) -> bool {
        if self.way(path).is_none() {
            self.shared.copy_stations(&mut self.stations);
        }
        self.way(path).is_some()
    }

    /// Sends the packets by RoCEv1 that are first in the batch, up to the first one by UDP.
    pub(crate) fn send(&mut self, batch: &mut TxBatch, counters: &mut LinkCounters) -> SendReport {
        let mut report = SendReport::default();
        while let Some(first) = batch.first_run().filter(|run| run.path.id().is_frames()) {
            if !self.has_way(first.path) || self.open().is_err() {
                fail(&first, libc::EHOSTUNREACH, &mut report);
                batch.retire(1);
                continue;
            }
            match self.send_some(batch, counters) {
                Ok(sent) => retire(batch, sent, &mut report),
                Err(error) if is_for_later(&error) => {
                    report.blocked = true;
                    counters.tx_blocked += 1;
                    break;
                }
                Err(error) => {
                    fail(&first, error.raw_os_error().unwrap_or(0), &mut report);
                    batch.retire(1);
                }
            }
        }
        counters.tx_packets += report.packets as u64;
        counters.tx_bytes += report.bytes as u64;
        counters.tx_errors += report.failed as u64;
        report
    }

    fn open(&mut self) -> std::io::Result<()> {
        if self.socket.is_none() {
            let socket = sys::frame_socket()?;
            buffer::set_send(socket.as_fd(), self.socket_bytes);
            self.socket = Some(socket);
        }
        Ok(())
    }

    /// Sends up to 32 packets; returns how many went out.
    fn send_some(
        &mut self,
        batch: &TxBatch,
        counters: &mut LinkCounters,
    ) -> std::io::Result<usize> {
        let Some(socket) = &self.socket else { return Ok(0) };
        let runs = batch.runs().map_while(|run| Some((self.way(run.path)?, run)));
        let frames = runs.flat_map(|(way, run)| {
            run.packets().map(move |body| {
                let mut head = [0; MAX_FRAME_HEAD];
                let headers = headers(&way, run.path, body.len());
                head[..FrameV1::HEADER_LEN].copy_from_slice(&headers);
                let (ifindex, head_len) = (way.ifindex, FrameV1::HEADER_LEN);
                OutgoingFrame { ifindex, head, head_len, body }
            })
        });
        counters.tx_calls += 1;
        let sent = sys::send_frames(socket.as_fd(), EtherType::ROCE_V1.0, frames)?;
        counters.tx_runs += sent as u64;
        Ok(sent)
    }
}

fn headers(way: &Way, path: &TxPath, len: usize) -> [u8; FrameV1::HEADER_LEN] {
    FrameV1::headers((way.src, way.dst), &grh(path, len))
}

/// Returns the GRH of a packet of `len` bytes, ICRC included. Of the flow label, 16 bits are used.
pub(crate) fn grh(path: &TxPath, len: usize) -> Grh {
    Grh {
        version: 6,
        traffic_class: path.traffic_class(),
        flow_label: path.flow().into(),
        // A packet is shorter than a buffer.
        payload_length: len as u16,
        next_header: Grh::NEXT_HEADER_IBA,
        hop_limit: path.hop_limit(),
        sgid: path.local(),
        dgid: path.remote(),
    }
}

/// Writes the ICRCs of packets of one path.
pub(crate) fn stamp(path: &TxPath, bytes: &mut [u8], stride: usize) {
    for packet in bytes.chunks_mut(stride) {
        let grh = grh(path, packet.len());
        if let Some((transport, sum)) = packet.split_last_chunk_mut::<ICRC_BYTES>() {
            *sum = icrc::of_roce_v1(&grh, transport).to_le_bytes();
        }
    }
}

/// Removes the first packets from a batch, which were sent.
fn retire(batch: &mut TxBatch, mut sent: usize, report: &mut SendReport) {
    while sent != 0
        && let Some(run) = batch.first_run()
    {
        let count = run.count().min(sent);
        report.packets += count;
        report.bytes += run.packets().take(count).map(<[u8]>::len).sum::<usize>();
        sent -= count;
        if count == run.count() { batch.retire(1) } else { batch.retire_part(count) }
    }
}

fn fail(run: &TxRun<'_>, os_error: i32, report: &mut SendReport) {
    report.failed += run.count();
    report.failure = Some((*run.path, os_error));
}

/// Whether the socket or the queue of the netdev is full.
fn is_for_later(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}
