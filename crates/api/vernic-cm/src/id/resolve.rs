//! Resolving a destination to a device and a route.
//!
//! Both steps are complete when the call returns, unless the system does not know the next hop; an
//! event reports the outcome, as programs expect. On InfiniBand both steps ask others
//! (`subnet.rs`).

use std::net::SocketAddr;
use std::time::Duration;

use libc::c_int;
use vernic_engine::{QpType, Transport};
use vernic_io::{NextHop, PortProbe, ROCE_PORT, ServiceScope};

use crate::error::Error;
use crate::event::{EventKind, Param};
use crate::id::bind::Purpose;
use crate::id::waits::{self, Answer, Poll, WaitNumber, poll_of_hop};
use crate::id::{Id, Inner};
use crate::registry::EntryContent;
use crate::route;
use crate::state::State;
use crate::sync::lock;

/// Longest wait for a host's report that it has no RoCE: a few round trips of a near network,
/// address resolution included. The report comes at once, or never.
const TRANSPORT_WAIT: Duration = Duration::from_millis(100);

impl Id {
    /// Resolves `dst` to a source address (`src` if given, else the system's choice) and to the
    /// device that has this address. [`EventKind::AddrResolved`] reports the result. A new id is
    /// bound to the source address, and to its port or to a free one. A wildcard `dst` means this
    /// machine.
    ///
    /// The event comes at once if the system knows the next hop. Otherwise the system asks for its
    /// hardware address (ARP, neighbour discovery), and the event comes with the answer. Without an
    /// answer [`EventKind::AddrError`] comes, with the status `-ETIMEDOUT` after `timeout`, or
    /// `-EHOSTUNREACH` if the system has given up before (after 3 s, by default). Then the id is
    /// bound, and may try again.
    ///
    /// If the settings allow both transports, a new connection id takes iWARP if the peer's host
    /// has no RoCE. A remote host counts as having RoCE if it is silent for 100 ms.
    ///
    /// # Errors
    /// [`Error::State`] for an id that is neither new nor bound; [`Error::NoRoute`];
    /// [`Error::Device`] for a source that no device has, which lists the addresses that exist;
    /// [`Error::Family`], [`Error::Scope`]; on InfiniBand [`Error::NoInterface`] and
    /// [`Error::Fabric`]; the errors of [`bind_addr`](Self::bind_addr). The id
    /// stays as it was.
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut inner = self.enter("resolve_addr")?;
        let src = match inner.state {
            State::Idle => src,
            State::Bound => inner.local,
            _ => return Err(self.wrong_state(&inner, "resolve_addr", "is new or bound")),
        };
        if let Some(src) = src.filter(|src| src.is_ipv4() != dst.is_ipv4()) {
            return Err(Error::Family { src, dst });
        }
        match inner.transport {
            Transport::InfiniBand => {
                return self.resolve_in_subnet(&mut inner, src, dst, timeout);
            }
            Transport::Iwarp => self.check_streams()?,
            _ => {}
        }
        let found = route::source(src.filter(|src| !src.ip().is_unspecified()), dst)?;
        let looks = self.shared.looks_for_transport && self.qp_type() == QpType::Rc;
        if looks && inner.state == State::Idle {
            inner.transport = self.transport_of(found, dst);
        }
        let devices = &self.shared.devices;
        let device = devices.with(route::local(found), inner.transport)?;
        if inner.state == State::Idle {
            let port = src.map_or(0, |src| src.port());
            let addr = route::with_port(found, port);
            self.bind_inner(&mut inner, "resolve_addr", addr, Purpose::Connecting)?;
        }
        self.narrow(&mut inner, found);
        let netdev = device.context.info().port.netdev_index;
        inner.device = Some(device);
        inner.peer = Some(match dst.ip().is_unspecified() {
            true => route::with_port(found, dst.port()),
            false => dst,
        });
        match NextHop::seek(route::local(found), netdev, dst) {
            Some(hop) => {
                let poll = poll_of_hop(move || hop.state());
                if let Err(error) = self.begin_wait(&mut inner, State::AddrQuery, timeout, poll) {
                    tracing::warn!(id = ?self, %error, "whether the next hop is there is not waited for");
                    self.resolved(&mut inner);
                }
            }
            None => self.resolved(&mut inner),
        }
        Ok(())
    }

    /// The transport for a peer, if the settings allow both: RoCE, or iWARP if no process of this
    /// host has the peer's port by RoCE, or if another host reports that it has no RoCE. A silent
    /// host is waited for during [`TRANSPORT_WAIT`].
    fn transport_of(&self, found: SocketAddr, dst: SocketAddr) -> Transport {
        let local = route::local(found);
        if dst.ip().is_unspecified() || dst.ip() == found.ip() {
            let service = self.port_space().service_id(dst.port());
            let device = self.shared.devices.with(local, Transport::Roce);
            let is_claimed = device.is_ok_and(|device| {
                // If this cannot be known, the port counts as claimed: the request will show.
                device
                    .context
                    .cm()
                    .is_claimed(service, ServiceScope::Address(local))
                    .unwrap_or(true)
            });
            return if is_claimed { Transport::Roce } else { Transport::Iwarp };
        }
        let probe = PortProbe::send(local, route::with_port(dst, ROCE_PORT));
        match probe.is_ok_and(|probe| probe.wait_for_refusal(TRANSPORT_WAIT)) {
            true => Transport::Iwarp,
            false => Transport::Roce,
        }
    }

    pub(super) fn resolved(&self, inner: &mut Inner) {
        inner.state = State::AddrResolved;
        self.push_event(EventKind::AddrResolved, 0);
    }

    /// Waits for an answer on the worker's thread, in `state` meanwhile.
    ///
    /// # Errors
    /// [`Error::Os`] if the process has no thread or descriptor left.
    pub(crate) fn begin_wait(
        &self,
        inner: &mut Inner,
        state: State,
        timeout: Duration,
        poll: Poll,
    ) -> Result<(), Error> {
        self.shared.start_keeper()?;
        inner.state = state;
        self.shared.waits.add(self.key(), waits::Purpose::Destination, timeout, poll);
        self.shared.worker.wake();
        Ok(())
    }

    /// Ends a wait with its outcome, unless a call has dropped it meanwhile.
    pub(crate) fn end_wait(
        &self,
        number: WaitNumber,
        purpose: waits::Purpose,
        outcome: Result<Answer, c_int>,
    ) {
        let mut inner = lock(&self.inner);
        // Waits are dropped under the same lock, so that no outcome comes to a later wait.
        if !self.shared.waits.remove(number) {
            return;
        }
        if let waits::Purpose::Group(gid) = purpose {
            return self.end_group_wait(&mut inner, gid, outcome);
        }
        match (inner.state, outcome) {
            (State::AddrQuery, Ok(answer)) => {
                if let Answer::Address(record) = answer {
                    inner.take_path(&record);
                }
                self.resolved(&mut inner);
            }
            (State::AddrQuery, Err(errno)) => {
                inner.state = State::Bound;
                self.push_event(EventKind::AddrError, -errno);
            }
            (State::RouteQuery, Ok(Answer::Route(record))) => {
                inner.take_path(&record);
                self.route_resolved(&mut inner);
            }
            (State::RouteQuery, Err(errno)) => {
                inner.state = State::AddrResolved;
                self.push_event(EventKind::RouteError, -errno);
            }
            // The id was destroyed meanwhile.
            _ => {}
        }
    }

    pub(super) fn route_resolved(&self, inner: &mut Inner) {
        inner.state = State::RouteResolved;
        self.push_event(EventKind::RouteResolved, 0);
    }

    /// Resolves the route to the resolved destination; [`EventKind::RouteResolved`] reports the
    /// result.
    ///
    /// On InfiniBand subnet administration is asked. Without an answer [`EventKind::RouteError`]
    /// comes, with the status `-ETIMEDOUT` after `timeout`. Then the address is still resolved, and
    /// the id may try again. Otherwise no other machine is asked, and `timeout` does not matter.
    ///
    /// # Errors
    /// [`Error::State`] for an id whose address is not resolved; [`Error::Fabric`].
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        let mut inner = self.enter("resolve_route")?;
        if inner.state != State::AddrResolved {
            return Err(self.wrong_state(&inner, "resolve_route", "has resolved its address"));
        }
        if inner.transport == Transport::InfiniBand {
            return self.resolve_route_in_subnet(&mut inner, timeout);
        }
        self.route_resolved(&mut inner);
        Ok(())
    }

    /// Queues an event without content.
    pub(crate) fn push_event(&self, kind: EventKind, status: i32) {
        let what = EntryContent::Decided { kind, status, param: Param::None };
        self.shared.registry.push(self.key(), what);
    }
}
