//! The UDP socket of a datagram socket: how the queue pairs of peers are found.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{DatagramSocket, MAX_UDP, Port, Waiting};
use crate::Error;
use crate::family::unmapped;
use crate::pieces::Outgoing;
use crate::sys;
use crate::wake::lock;
use crate::wire::{LookupHeader, LookupOp};

impl DatagramSocket {
    pub(super) fn send_udp(
        &self,
        port: &Port,
        to: SocketAddr,
        op: LookupOp,
        bytes: &mut Outgoing<'_>,
        nonblocking: bool,
    ) -> Result<(), Error> {
        let header = LookupHeader { op, qpn: port.qpn(), address: port.source.ip() };
        let mut datagram = [0; MAX_UDP];
        header.emit(&mut datagram);
        let mut end = header.len();
        if bytes.left() > MAX_UDP - end {
            return Err(Error::TooLong { len: bytes.left(), max: MAX_UDP - end });
        }
        bytes.copy(MAX_UDP - end, |piece| {
            datagram[end..end + piece.len()].copy_from_slice(piece);
            end += piece.len();
        });
        let connected = lock(&self.core).connected == Some(to);
        loop {
            // A connected socket takes no destination on some systems.
            let sent = match connected {
                true => self.udp.send(&datagram[..end]),
                false => self.udp.send_to(&datagram[..end], self.family.outwards(to)),
            };
            match sent {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !nonblocking => {
                    sys::sleep(&mut [sys::entry(self.number(), libc::POLLOUT)], None)?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Err(Error::WouldBlock);
                }
                Err(error) => return Err(Error::os("send by UDP", error)),
            }
        }
    }

    /// Reads a datagram of the UDP socket: called by the service thread. Whether there may be more.
    pub(crate) fn read_lookup(self: &Arc<Self>) -> bool {
        let mut datagram = [0; MAX_UDP];
        let (len, from) = match self.udp.recv_from(&mut datagram) {
            Ok((len, from)) => (len, unmapped(from)),
            // An error that a datagram before has caused was taken with it.
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        };
        if let Err(error) = self.handle_lookup(&datagram[..len], from) {
            self.drop_one(&error);
        }
        true
    }

    fn handle_lookup(self: &Arc<Self>, datagram: &[u8], from: SocketAddr) -> Result<(), Error> {
        let wire = |error: crate::wire::WireError| Error::Protocol(error.into());
        let header = LookupHeader::parse(datagram).map_err(wire)?;
        let payload = &datagram[header.len()..];
        let peer = self.peer(from)?;
        if header.op == LookupOp::DATA {
            let nothing = &mut Outgoing::new(&[]);
            self.send_udp(&peer.port, from, LookupOp::CONTROL, nothing, true)?;
        }
        // Where it came from, whatever the header says: nobody sends us to a third.
        self.name_queue_pair(&peer, from, header.qpn);
        if header.op == LookupOp::DATA {
            let (_, receives) = self.queues();
            let mut core = lock(&self.core);
            if core.waiting.len() >= receives {
                drop(core);
                self.drop_one(&Error::NoRoom { from });
                return Ok(());
            }
            core.waiting.push_back(Waiting::Udp(from, payload.to_vec()));
            drop(core);
            self.wakers.wake();
        }
        Ok(())
    }
}
