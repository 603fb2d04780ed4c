//! Where IP packets come from and go to: a TUN device, or what a test has in its place.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use vernic_ipoib::Address;
use vernic_sys::{OwnFd, Tun};

/// The host of an interface, as far as IP packets go.
pub trait Host {
    /// Reads the next packet that the host sends, and returns its length.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; others end the interface.
    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize>;
    /// Gives the host a packet.
    ///
    /// # Errors
    /// The packet is lost.
    fn send(&mut self, packet: &[u8]) -> io::Result<()>;
    /// Returns the descriptor that is readable when there is a packet.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// Returns the addresses that the host has on the interface now.
    ///
    /// # Errors
    /// Those that were known stay.
    fn addresses(&self) -> io::Result<Vec<Address>>;
    /// Sets the longest packet that the host may send.
    ///
    /// # Errors
    /// The interface ends.
    fn set_mtu(&mut self, mtu: u32) -> io::Result<()>;
}

impl Host for Tun {
    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Self::recv(self, buf)
    }
    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        Self::send(self, packet)
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        AsFd::as_fd(self)
    }
    fn addresses(&self) -> io::Result<Vec<Address>> {
        let addresses = vernic_sys::addresses_of(self.name())?.into_iter();
        Ok(addresses.map(|one| Address { ip: one.ip, prefix_len: one.prefix_len }).collect())
    }
    fn set_mtu(&mut self, mtu: u32) -> io::Result<()> {
        Self::set_mtu(self, mtu)
    }
}

/// A host that has addresses on the interface, and sends and takes no IP packets. Programs connect
/// to the addresses by `rdma_cm`.
#[derive(Debug)]
pub struct NoDevice {
    pub(crate) addresses: Vec<Address>,
    /// Never readable.
    silent: OwnFd,
}

impl NoDevice {
    /// Returns a host with these addresses.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(addresses: Vec<Address>) -> io::Result<Self> {
        Ok(Self { addresses, silent: vernic_sys::eventfd()? })
    }
}

impl Host for NoDevice {
    fn recv(&mut self, _buf: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
    fn send(&mut self, _packet: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.silent.as_fd()
    }
    fn addresses(&self) -> io::Result<Vec<Address>> {
        Ok(self.addresses.clone())
    }
    fn set_mtu(&mut self, _mtu: u32) -> io::Result<()> {
        Ok(())
    }
}
