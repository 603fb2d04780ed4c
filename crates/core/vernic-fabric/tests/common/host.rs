//! A host: submits packets of its flows, and takes what arrives.

use vernic_fabric::Time;
use vernic_fabric::adapter::AdapterPort;
use vernic_fabric::attributes::PortAttributes;
use vernic_fabric::link::{LinkConfig, SubmitError};
use vernic_wire::Lid;

use super::attributes;
use super::oracle::{Flow, Oracle, packet};

/// Packets of one flow that are yet to be sent.
pub struct Traffic {
    pub flow: Flow,
    pub lane: u8,
    pub payload: usize,
    pub left: u64,
    pub next: u64,
    /// The next packet, once it was refused because the port is full.
    refused: Option<Vec<u8>>,
}

impl Traffic {
    pub fn new(flow: Flow, payload: usize, packets: u64) -> Self {
        // On lane 15 if the service level says 15.
        let lane = if flow.service_level == 15 { 15 } else { 0 };
        Self { flow, lane, payload, left: packets, next: 0, refused: None }
    }
    /// Returns the next packet to be sent, if any.
    pub fn next_packet(&mut self) -> Option<Vec<u8>> {
        let left = self.left.checked_sub(1)?;
        let bytes = self
            .refused
            .take()
            .unwrap_or_else(|| packet(self.flow, self.lane, self.next, self.payload));
        (self.left, self.next) = (left, self.next + 1);
        Some(bytes)
    }
    /// Keeps a packet that was refused, to be the next again.
    pub fn refuse(&mut self, bytes: Vec<u8>) {
        (self.left, self.next) = (self.left + 1, self.next - 1);
        self.refused = Some(bytes);
    }
}

pub struct Host {
    pub port: AdapterPort,
    pub attributes: PortAttributes,
    pub traffic: Vec<Traffic>,
    /// Nanoseconds between two packets that it takes; 0 takes all, `None` none.
    pub takes_every_ns: Option<u64>,
    takes_next: Time,
    buffer: Vec<u8>,
}

impl Host {
    pub fn new(lid: Lid, config: LinkConfig) -> Self {
        let mut attributes = attributes::port(1);
        attributes.lid = lid;
        Self {
            port: AdapterPort::new(config),
            attributes,
            traffic: Vec::new(),
            takes_every_ns: Some(0),
            takes_next: Time(0),
            buffer: Vec::new(),
        }
    }
    /// Adds packets to be sent to a LID. On lane 15 if the service level says 15.
    pub fn send(&mut self, destination: u16, service_level: u8, payload: usize, packets: u64) {
        let source = self.attributes.lid.0;
        let flow = Flow { source, destination, service_level };
        self.traffic.push(Traffic::new(flow, payload, packets));
    }
    /// Submits what the port takes, and takes what has arrived.
    pub fn work(&mut self, now: Time, oracle: &mut Oracle) {
        for traffic in &mut self.traffic {
            while let Some(bytes) = traffic.next_packet() {
                match self.port.submit(&mut self.attributes, &bytes, now) {
                    Ok(()) => oracle.sent += 1,
                    Err(SubmitError::Discarded) => oracle.refused += 1,
                    Err(SubmitError::Full) => {
                        traffic.refuse(bytes);
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        self.traffic.retain(|traffic| traffic.left > 0);
        let Some(interval) = self.takes_every_ns else { return };
        while now >= self.takes_next && self.port.poll_receive(&mut self.buffer) {
            oracle.deliver(self.attributes.lid.0, &self.buffer);
            if interval > 0 {
                self.takes_next = now + interval;
            }
        }
    }
    pub fn timeout(&self, now: Time) -> Option<Time> {
        let takes = (self.takes_next > now).then_some(self.takes_next);
        [self.port.poll_timeout(&self.attributes), takes].into_iter().flatten().min()
    }
    pub fn is_idle(&self) -> bool {
        self.traffic.is_empty() && self.port.packets() == 0
    }
}
