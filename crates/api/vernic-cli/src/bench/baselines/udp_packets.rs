//! What UDP allows: packets of a path MTU, many in each system call (`UDP_SEGMENT`, `UDP_GRO`), and
//! on either side one copy and a CRC-32 of each.
//!
//! That is the least that RoCEv2 over a UDP socket does to the payload, without a protocol: nothing
//! is acknowledged or repeated. The stream is not throttled, so what the receiver's socket drops is
//! not counted, and the rate is that of the slower side.

use super::udp::{MAX_DATAGRAM, RECEIVE_TIMEOUT, Socket};
use crate::bench::control::{Control, EndpointInfo, Message};
use crate::bench::end::{Active, Passive, Run};
use crate::failure::{Doing, Failure, Outcome};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Instant;

/// Bytes of the CRC at the end of each packet.
const CRC: usize = 4;
/// Most packets that every kernel with `UDP_SEGMENT` cuts out of one send.
const MAX_PACKETS: usize = 64;
/// What is asked for as the receiver's socket buffer; the system may grant less.
const SOCKET_BUFFER: i32 = 4 << 20;

/// Bytes of a message, and of a packet without its CRC.
#[derive(Clone, Copy, Debug)]
struct Shape {
    message: usize,
    payload: usize,
}

impl Shape {
    fn new(message: usize, mtu: u32) -> Outcome<Self> {
        let payload = mtu as usize;
        if payload == 0 || message == 0 || !message.is_multiple_of(payload) {
            let what = format!("messages of {message} bytes are no whole packets of {mtu}");
            return Err(Failure::new(what));
        }
        Ok(Self { message, payload })
    }

    fn packet(self) -> usize {
        self.payload + CRC
    }

    /// Bytes of a send that is full.
    fn run(self) -> usize {
        (MAX_DATAGRAM / self.packet()).min(MAX_PACKETS) * self.packet()
    }
}

/// Copies messages into packets and sends them.
pub(super) struct Sender {
    socket: Socket,
    shape: Shape,
    message: Vec<u8>,
}

impl Sender {
    pub(super) fn open(local: IpAddr, peer: IpAddr, size: usize, mtu: u32) -> Outcome<Self> {
        let shape = Shape::new(size, mtu)?;
        let socket = Socket::open(local, peer, shape.run())?;
        let fd = socket.socket.as_fd();
        let bytes = i32::try_from(shape.packet()).unwrap_or(i32::MAX);
        vernic_sys::set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, bytes)
            .doing(|| "let the kernel cut UDP packets (UDP_SEGMENT, Linux 4.18)".into())?;
        Ok(Self { socket, shape, message: vec![0x5a; size] })
    }
}

impl Active for Sender {
    fn endpoint(&self) -> EndpointInfo {
        self.socket.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.socket.connect(peer)
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<Run> {
        let began = Instant::now();
        let mut filled = 0;
        for _ in 0..iterations {
            for payload in self.message.chunks_exact(self.shape.payload) {
                let end = filled + self.shape.packet();
                pack(payload, &mut self.socket.buffer[filled..end]);
                filled = end;
                if filled == self.socket.buffer.len() {
                    self.socket.send_some(filled)?;
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            self.socket.send_some(filled)?;
        }
        let elapsed = began.elapsed();
        control.send(&Message::Stop)?;
        Ok(Run { elapsed, samples: Vec::new(), messages: None })
    }
}

/// Checks packets and copies them into a message.
pub(super) struct Receiver {
    socket: Socket,
    shape: Shape,
    message: Vec<u8>,
}

impl Receiver {
    pub(super) fn open(local: IpAddr, peer: IpAddr, size: usize, mtu: u32) -> Outcome<Self> {
        let shape = Shape::new(size, mtu)?;
        let socket = Socket::open(local, peer, MAX_DATAGRAM)?;
        let fd = socket.socket.as_fd();
        vernic_sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1)
            .doing(|| "receive many UDP packets at once (UDP_GRO, Linux 5.0)".into())?;
        vernic_sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BUFFER)
            .doing(|| "set the buffer of a UDP socket".into())?;
        Ok(Self { socket, shape, message: vec![0; size] })
    }
}

impl Passive for Receiver {
    fn endpoint(&self) -> EndpointInfo {
        self.socket.endpoint()
    }

    fn connect(&mut self, peer: &EndpointInfo) -> Outcome<()> {
        self.socket.connect(peer)?;
        self.socket.wait_at_most(RECEIVE_TIMEOUT)
    }

    fn run(&mut self, control: &Control, iterations: u64) -> Outcome<u64> {
        let Shape { message, payload } = self.shape;
        let wanted = u128::from(iterations) * (message / payload) as u128;
        let (mut packets, mut at) = (0_u128, 0);
        while packets < wanted {
            let Some(bytes) = self.socket.try_receive_some()? else {
                if control.has_news() {
                    break;
                }
                continue;
            };
            for packet in self.socket.buffer[..bytes].chunks_exact(self.shape.packet()) {
                unpack(packet, &mut self.message[at..at + payload])?;
                packets += 1;
                at = (at + payload) % message;
            }
        }
        control.expect(&Message::Stop)?;
        Ok(u64::try_from(packets * payload as u128 / message as u128).unwrap_or(u64::MAX))
    }
}

fn pack(payload: &[u8], packet: &mut [u8]) {
    let (copy, crc) = packet.split_at_mut(payload.len());
    copy.copy_from_slice(payload);
    crc.copy_from_slice(&crc32fast::hash(copy).to_le_bytes());
}

fn unpack(packet: &[u8], payload: &mut [u8]) -> Outcome<()> {
    let (data, crc) = packet.split_at(payload.len());
    if crc32fast::hash(data).to_le_bytes() != crc {
        return Err(Failure::new("a UDP packet came with a wrong CRC"));
    }
    payload.copy_from_slice(data);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_checked_and_copied() {
        let (payload, mut packet, mut copy) = ([7_u8; 32], [0; 36], [0; 32]);
        pack(&payload, &mut packet);
        unpack(&packet, &mut copy).unwrap();
        assert_eq!(copy, payload);
        packet[5] ^= 1;
        assert!(unpack(&packet, &mut copy).unwrap_err().what().contains("wrong CRC"));
    }

    #[test]
    fn a_send_holds_whole_packets_that_the_kernel_cuts() {
        for (mtu, packets) in [(1024, 63), (4096, 15), (256, 64)] {
            let shape = Shape::new(1 << 20, mtu).unwrap();
            assert_eq!(shape.run(), packets * (mtu as usize + 4));
        }
        assert!(Shape::new(1000, 1024).is_err());
    }
}
