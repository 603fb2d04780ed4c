//! Addresses and ports of ids.

use std::net::SocketAddr;

use crate::error::Error;
use crate::id::{Id, Inner, State};
use crate::ports::Binding;
use crate::registry::lock;
use crate::route;

impl Id {
    /// Binds it to an address and a port. Port 0 takes a free one, a wildcard address stands for all of
    /// this machine; any other address decides the device.
    ///
    /// # Errors
    /// [`Error::State`] for an id that is bound already; [`Error::Device`] for an address that no
    /// device has, with those that there are; [`Error::InUse`], [`Error::NoPort`], [`Error::Scope`].
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<(), Error> {
        let mut inner = self.enter("bind_addr")?;
        self.bind_inner(&mut inner, "bind_addr", addr)
    }

    pub(crate) fn bind_inner(
        &self,
        inner: &mut Inner,
        call: &'static str,
        addr: SocketAddr,
    ) -> Result<(), Error> {
        if inner.state != State::Idle {
            return Err(self.wrong_state(inner, call, "is new"));
        }
        route::check_scope(addr)?;
        let place = route::local(addr);
        let device = match addr.ip().is_unspecified() {
            true => None,
            false => Some(self.shared.devices.with(place, &self.shared.config)?),
        };
        let binding = Binding {
            key: self.cell.key,
            addr: place,
            af_only: inner.options.af_only.unwrap_or(false),
            reuse: inner.options.reuse_addr,
            listens: false,
        };
        let port =
            lock(&self.shared.ports).bind(self.port_space(), addr.port(), binding, |_| false)?;
        inner.local = Some(route::with_port(place.with_port(0), port));
        inner.device = device;
        inner.bound = Some(binding);
        inner.state = State::Bound;
        Ok(())
    }

    /// Narrows the wildcard that it is bound to down to the address that was found.
    pub(crate) fn narrow(&self, inner: &mut Inner, found: SocketAddr) {
        let (Some(mut binding), Some(local)) = (inner.bound, inner.local) else { return };
        binding.addr = route::local(found);
        inner.bound = Some(binding);
        inner.local = Some(route::with_port(found, local.port()));
        lock(&self.shared.ports).update(self.port_space(), local.port(), binding);
    }
}
