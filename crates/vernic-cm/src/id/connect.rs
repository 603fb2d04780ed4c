//! Listening, connecting, accepting, rejecting, disconnecting.

use std::net::SocketAddr;

use vernic_engine::QpType;

use crate::error::Error;
use crate::event::Event;
use crate::id::{CommEstablished, Id, State};
use crate::param::ConnParam;

impl Id {
    /// Listens for requests to its port, at most `backlog` of them waiting to be taken (0 takes the
    /// largest, 1024). A new id is bound to the IPv4 wildcard and a free port. A wildcard covers every
    /// device, and the addresses that they get later.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::InUse`], those of [`bind_addr`](Self::bind_addr).
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        let _ = backlog;
        let mut inner = self.enter("listen")?;
        match inner.state {
            State::Idle => {
                let any = SocketAddr::from(([0, 0, 0, 0], 0));
                self.bind_inner(&mut inner, "listen", any)?;
            }
            State::Bound => {}
            _ => return Err(self.wrong_state(&inner, "listen", "is new or bound")),
        }
        Err(Error::NoAgent { call: "listen" })
    }

    /// Asks the peer for a connection; of a datagram id, for its queue pair. The outcome is an event.
    ///
    /// # Errors
    /// [`Error::State`] for an id whose route is not resolved; [`Error::NoQp`] for one with neither a
    /// queue pair nor the number of one; [`Error::TooLong`], [`Error::Value`].
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<(), Error> {
        let inner = self.enter("connect")?;
        if inner.state != State::RouteResolved {
            return Err(self.wrong_state(&inner, "connect", "has resolved its route"));
        }
        self.check_param("connect", param, (56, 180))?;
        Err(Error::NoAgent { call: "connect" })
    }

    /// Accepts the request that it was made for: brings its queue pair up to RTS and answers. Of a
    /// connection, [`EventKind::Established`](crate::EventKind::Established) follows.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::NoQp`], [`Error::TooLong`], [`Error::Value`], [`Error::Modify`].
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<(), Error> {
        let inner = self.enter("accept")?;
        if inner.state != State::Connect {
            return Err(self.wrong_state(&inner, "accept", "came with a request"));
        }
        self.check_param("accept", param, (196, 136))?;
        Err(Error::NoAgent { call: "accept" })
    }

    /// Refuses the request that it was made for.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::TooLong`].
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let inner = self.enter("reject")?;
        if inner.state != State::Connect {
            return Err(self.wrong_state(&inner, "reject", "came with a request"));
        }
        self.check_private_data("reject", private_data, (148, 136))?;
        Err(Error::NoAgent { call: "reject" })
    }

    /// Tells the peer that this side's queue pair, which the program brings up itself, is ready: after
    /// [`EventKind::ConnectResponse`](crate::EventKind::ConnectResponse).
    ///
    /// # Errors
    /// [`Error::State`], [`Error::HasQp`] for an id that brings its queue pair up itself.
    pub fn establish(&self) -> Result<(), Error> {
        let inner = self.enter("establish")?;
        Err(self.wrong_state(&inner, "establish", "has had a ConnectResponse"))
    }

    /// Says that the connection is there, as the queue pair has received a packet of it.
    ///
    /// # Errors
    /// [`Error::State`] for an id that has accepted nothing.
    pub fn notify(&self, event: CommEstablished) -> Result<(), Error> {
        let CommEstablished = event;
        let inner = self.enter("notify")?;
        Err(self.wrong_state(&inner, "notify", "has accepted a request"))
    }

    /// Ends the connection, or agrees to its end: moves its queue pair to Error and tells the peer.
    /// [`EventKind::Disconnected`](crate::EventKind::Disconnected) follows, if it did not come before.
    ///
    /// # Errors
    /// [`Error::State`] for an id without a connection.
    pub fn disconnect(&self) -> Result<(), Error> {
        let inner = self.enter("disconnect")?;
        Err(self.wrong_state(&inner, "disconnect", "has a connection"))
    }

    /// Waits for the next event of its channel: the outcome of the last call, for an id with a channel
    /// of its own.
    ///
    /// # Errors
    /// [`Error::Failed`] for an event that tells a failure; [`Error::Os`] as
    /// [`EventChannel::wait`](crate::EventChannel::wait).
    pub fn complete(&self) -> Result<Event, Error> {
        let channel = self.enter("complete")?.channel.clone();
        let event = channel.wait().map_err(|source| Error::Os { what: "wait", source })?;
        match event.status {
            0 => Ok(event),
            status => Err(Error::Failed { kind: event.kind, status }),
        }
    }

    fn check_param(
        &self,
        call: &'static str,
        param: &ConnParam<'_>,
        limits: (usize, usize),
    ) -> Result<(), Error> {
        self.check_private_data(call, param.private_data, limits)?;
        let value = |what, value: u8| Error::Value {
            what,
            value: value.into(),
            allowed: "0 to 7".to_owned(),
        };
        if param.retry_count > 7 {
            return Err(value("retry_count", param.retry_count));
        }
        if param.rnr_retry_count > 7 {
            return Err(value("rnr_retry_count", param.rnr_retry_count));
        }
        Ok(())
    }

    /// `limits` of a connection and of datagrams, bytes.
    fn check_private_data(
        &self,
        call: &'static str,
        data: &[u8],
        limits: (usize, usize),
    ) -> Result<(), Error> {
        let datagrams = self.qp_type() == QpType::Ud;
        let max = if datagrams { limits.1 } else { limits.0 };
        let kind = if datagrams { "datagrams" } else { "a connection" };
        match data.len() > max {
            true => Err(Error::TooLong { call, kind, given: data.len(), max }),
            false => Ok(()),
        }
    }
}
