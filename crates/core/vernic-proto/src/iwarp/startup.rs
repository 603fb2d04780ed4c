//! MPA start-up: the frames that two ends exchange before the first FPDU (RFC 5044, 7.1; RFC 6581).
//!
//! ```text
//!   initiator                                         responder
//!     initiate: request, private data  ----------->     Waiting
//!     Waiting                                           Asked: accept or reject
//!                                      <-----------     reply, private data; Replying
//!     Agreed: sends the RTR or its first message        Agreed: sends nothing before that comes
//! ```
//! Sans-I/O like the queue pair: the owner passes received bytes in ([`Startup::handle_bytes`]),
//! sends what [`Startup::transmit`] shows, and calls [`Startup::handle_timeout`] when the deadline
//! has come: "MPA implementations SHOULD implement a reasonable timeout while waiting for the
//! entire set of startup frames; this prevents certain denial-of-service attacks" (RFC 5044, 7.1.2
//! (10)). One deadline covers a whole frame, so a peer that sends it byte by byte gains nothing.
//! Memory is bounded by two frames.
//!
//! When it is [`Agreed`](StartupState::Agreed), [`iwarp::Qp::start`](super::Qp::start) takes over;
//! what was not consumed here belongs to the first FPDU.

mod frame;
mod negotiate;
#[cfg(test)]
mod tests;

use vernic_wire::iwarp::{MAX_PRIVATE_DATA, MpaEnhanced, MpaKey, MpaStart, TermCode, Terminate};

use super::agreed::{Agreed, Role, RtrSet};
use super::layout::{Fpdu, Layout};
use crate::error::StreamEnd;
use crate::time::Time;

use frame::Frame;

/// Newest revision of MPA that is spoken: 2, of RFC 6581.
pub const MPA_REVISION: u8 = 2;

/// What this end offers and can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// 2 negotiates depths and RTR; 1 is RFC 5044 alone, for peers that know nothing else. A
    /// responder takes requests up to this revision.
    pub revision: u8,
    /// Ask for CRCs. "The default configuration for a connection MUST be to use CRCs" (RFC 5044,
    /// 4.4).
    pub crc: bool,
    /// Require markers in what is received.
    pub markers: bool,
    /// READs and atomics that the peer may have in flight, 0 to 16,382.
    pub ird: u32,
    /// As many at most, if the peer asks for more.
    pub max_ird: u32,
    /// READs and atomics that this end wants in flight, 0 to 16,382.
    pub ord: u32,
    /// Whether the depths are negotiated, or "the ULP will be responsible for it" (RFC 6581, 9.1).
    pub negotiate_depths: bool,
    /// Initiator: ask for the peer-to-peer model with one of these; empty for client and server.
    /// Responder: those that it takes; empty for all.
    pub rtr: RtrSet,
    /// Responder: nanoseconds that the peer has for its request, and again for taking the reply.
    pub timeout_ns: u64,
    /// Initiator: nanoseconds that the peer has for its reply, from when the connection is made. It
    /// is its application that accepts, which may have something else to do.
    pub reply_ns: u64,
}

impl Default for StartupConfig {
    fn default() -> Self {
        Self {
            revision: MPA_REVISION,
            crc: true,
            markers: false,
            ird: 16,
            max_ird: 128,
            ord: 16,
            negotiate_depths: true,
            rtr: RtrSet::empty(),
            timeout_ns: 10_000_000_000,
            reply_ns: 60_000_000_000,
        }
    }
}

/// Why a start-up failed. But for `PrivateTooLong`, which is the caller's mistake, the connection
/// is to be closed: "If the MPA Request Frame is improperly formatted, the implementation MUST
/// close the TCP connection and exit MPA" (RFC 5044, 7.1.2 (2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// Another key than that of the frame which is due.
    #[error(
        "the peer does not speak MPA here: an MPA {expected:?} frame was due, and something else came; both ends may be connecting, or waiting, or it is another protocol's port"
    )]
    Key {
        /// The frame that was due.
        expected: MpaKey,
    },
    /// A revision that this end does not speak.
    #[error("the peer speaks revision {revision} of MPA, this end 1 to {limit}")]
    Revision {
        /// The peer's.
        revision: u8,
        /// Newest one here.
        limit: u8,
    },
    /// More private data than a frame may have.
    #[error("the peer announces {len} bytes of private data, at most 512 are allowed")]
    PrivateLength {
        /// Announced.
        len: u16,
    },
    /// An enhanced frame without the data that makes it one.
    #[error(
        "the peer's enhanced MPA frame has {len} bytes of private data, less than the 4 that it must begin with"
    )]
    NoEnhancedData {
        /// Announced.
        len: u16,
    },
    /// A reply of another kind than the request (RFC 6581, 10).
    #[error(
        "the peer answered an MPA request of RFC 6581 as if it did not know that; ask with revision 1"
    )]
    NotEnhanced,
    /// The peer needs more READs in flight than this end has room for.
    #[error("the peer needs {needed} READs in flight, this end has room for {limit}")]
    Depth {
        /// Needed by the peer.
        needed: u32,
        /// Room here.
        limit: u32,
    },
    /// No ready-to-receive indication in common.
    #[error(
        "no ready-to-receive indication in common: this end has {ours:?}, the peer takes {theirs:?}"
    )]
    NoRtr {
        /// Those of this end.
        ours: RtrSet,
        /// Those of the peer.
        theirs: RtrSet,
    },
    /// The peer took too long.
    #[error("the peer did not complete its MPA frame in time")]
    TimedOut,
    /// This end gave up, by [`Startup::abort`].
    #[error("this end gave up before the first message")]
    Local,
    /// The TCP connection ended before the start-up did.
    #[error("the connection ended during MPA start-up: {0}")]
    Ended(StreamEnd),
    /// The application's own private data does not fit.
    #[error("{len} bytes of private data, at most {limit} fit")]
    PrivateTooLong {
        /// Given.
        len: usize,
        /// Room.
        limit: usize,
    },
}

/// How far a start-up has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupState {
    /// The peer's frame is not here, or not whole.
    Waiting,
    /// Responder: the request is here. It is to be accepted or rejected.
    Asked,
    /// Responder: the reply has not been sent, or not whole.
    Replying,
    /// FPDUs may begin.
    Agreed,
    /// The connection was rejected, by the peer or by this end. "the implementation MUST exit MPA,
    /// leaving the TCP connection open" (RFC 5044, 7.1.2 (3)).
    Rejected,
    /// It failed, and the connection is to be closed once [`Startup::transmit`] is empty.
    Failed(StartupError),
}

/// The start-up of one connection, at one end.
#[derive(Debug)]
pub struct Startup {
    role: Role,
    config: StartupConfig,
    state: StartupState,
    frame: Frame,
    out: Vec<u8>,
    sent: usize,
    /// Reached when the last byte of `out` has been sent.
    after: Option<StartupState>,
    agreed: Option<Agreed>,
    deadline: Option<Time>,
}

impl Startup {
    /// Starts as initiator, with the application's private data.
    ///
    /// # Errors
    /// [`StartupError::PrivateTooLong`].
    pub fn initiate(
        config: StartupConfig,
        private: &[u8],
        now: Time,
    ) -> Result<Self, StartupError> {
        let mut startup = Self::new(Role::Initiator, config, now);
        let enhanced = startup.is_enhanced().then(|| negotiate::offer(&config));
        check_private(private, enhanced.is_some())?;
        startup.deadline = Some(now + config.reply_ns);
        let start = startup.head(MpaKey::Request, config.revision.min(MPA_REVISION));
        startup.out = frame::write(start, enhanced.as_ref(), private);
        Ok(startup)
    }

    /// Starts as responder: waits for a request.
    pub fn respond(config: StartupConfig, now: Time) -> Self {
        Self::new(Role::Responder, config, now)
    }

    fn new(role: Role, config: StartupConfig, now: Time) -> Self {
        Self {
            role,
            config,
            state: StartupState::Waiting,
            frame: Frame::new(),
            out: Vec::new(),
            sent: 0,
            after: None,
            agreed: None,
            deadline: Some(now + config.timeout_ns),
        }
    }

    /// "To use any enhanced connection establishment feature, this MUST be set to two or higher"
    /// (RFC 6581, 6); the initiator "MUST NOT use the enhanced RDMA connection establishment
    /// formats [...] when no enhanced functionality is desired" (RFC 6581, 10).
    fn is_enhanced(&self) -> bool {
        let desired = self.config.negotiate_depths || !self.config.rtr.is_empty();
        self.config.revision >= 2 && desired
    }

    fn head(&self, key: MpaKey, revision: u8) -> MpaStart {
        MpaStart {
            key,
            markers: self.config.markers,
            crc: self.config.crc,
            rejected: false,
            enhanced: false,
            reserved: 0,
            revision,
            private_len: 0,
        }
    }

    /// Whether it began with a request of this end.
    pub fn is_initiator(&self) -> bool {
        self.role == Role::Initiator
    }

    /// How far it has come.
    pub fn state(&self) -> StartupState {
        self.state
    }
    /// What was agreed, once it is [`StartupState::Agreed`].
    pub fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref().filter(|_| self.state == StartupState::Agreed)
    }
    /// The peer's private data, once its frame is here: of 0 to 512 bytes.
    pub fn private(&self) -> &[u8] {
        self.frame.private()
    }
    /// What the peer's frame says of revision, CRC and markers, once it is here.
    pub fn peer(&self) -> Option<MpaStart> {
        self.frame.complete()
    }
    /// What an enhanced frame of the peer says of depths and RTR, once it is here; of a rejecting
    /// reply too, whose ORD may say what the responder would need (RFC 6581, 9.1).
    pub fn peer_enhanced(&self) -> Option<MpaEnhanced> {
        self.frame.enhanced()
    }

    /// The bytes that are to be sent next; empty if there are none.
    pub fn transmit(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// The first `len` bytes of [`transmit`](Self::transmit) have been taken by the connection.
    pub fn handle_sent(&mut self, len: usize) {
        self.sent = (self.sent + len).min(self.out.len());
        if self.sent == self.out.len()
            && let Some(state) = self.after.take()
        {
            self.state = state;
            self.deadline = None;
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called, at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Time has passed. Does nothing before the deadline.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.fail(StartupError::TimedOut);
        }
    }

    /// The connection has ended. Once both ends have agreed that is the queue pair's to hear.
    pub fn handle_end(&mut self, end: StreamEnd) {
        if matches!(
            self.state,
            StartupState::Waiting | StartupState::Asked | StartupState::Replying
        ) {
            self.fail(StartupError::Ended(end));
        }
    }

    /// This end gives up, for a reason of its own: the queue pair cannot take the stream, or memory
    /// is short. Once both ends have agreed in enhanced frames the peer hears of it: "The initiator
    /// or responder MUST generate the TERM message that contains Layer 2, Error Type 0, Error Code
    /// 5 when it encounters any error locally [...] before resetting the connection" (RFC 6581,
    /// 9.3). A responder that was [asked](StartupState::Asked) can say more with
    /// [`reject`](Self::reject).
    pub fn abort(&mut self) {
        if !matches!(self.state, StartupState::Rejected | StartupState::Failed(_)) {
            self.fail(StartupError::Local);
        }
    }

    /// Takes received bytes and returns how many belonged to the start-up.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> usize {
        if self.state != StartupState::Waiting {
            return 0;
        }
        let expected = match self.role {
            Role::Initiator => MpaKey::Reply,
            Role::Responder => MpaKey::Request,
        };
        let taken = match self.frame.take(bytes, expected) {
            Ok(taken) => taken,
            Err(error) => {
                self.fail(error);
                return bytes.len();
            }
        };
        if let Some(start) = self.frame.complete() {
            let result = match self.role {
                Role::Initiator => self.conclude(&start),
                Role::Responder => self.check_request(&start),
            };
            if let Err(error) = result {
                self.fail(error);
            }
        }
        taken
    }

    /// "A host accepting MPA connections MUST continue to accept MPA Requests with version one,
    /// even if it supports version two" (RFC 6581, 6).
    fn check_revision(&self, start: &MpaStart) -> Result<(), StartupError> {
        let limit = self.config.revision.min(MPA_REVISION);
        match start.revision {
            revision if (1..=limit).contains(&revision) => Ok(()),
            revision => Err(StartupError::Revision { revision, limit }),
        }
    }

    fn check_request(&mut self, start: &MpaStart) -> Result<(), StartupError> {
        self.check_revision(start)?;
        // The bit is a reserved one to revision 1, and "not checked on reception" (RFC 5044,
        // 7.1.1); but then what follows is no private data of the application's.
        if start.enhanced && start.revision < 2 {
            return Err(StartupError::Revision { revision: start.revision, limit: MPA_REVISION });
        }
        self.state = StartupState::Asked;
        self.deadline = None;
        Ok(())
    }

    /// Responder, when [asked](StartupState::Asked): accepts, with the application's private data.
    ///
    /// `config` is what this connection is given; the revision and the timeout stay as they were.
    ///
    /// # Errors
    /// [`StartupError::PrivateTooLong`], with nothing changed.
    pub fn accept(
        &mut self,
        config: &StartupConfig,
        private: &[u8],
        now: Time,
    ) -> Result<(), StartupError> {
        let Some(start) = self.frame.complete().filter(|_| self.state == StartupState::Asked)
        else {
            return Ok(());
        };
        check_private(private, start.enhanced)?;
        let StartupConfig { revision, timeout_ns, .. } = self.config;
        self.config = StartupConfig { revision, timeout_ns, ..*config };
        let asked = self.frame.enhanced();
        let answered = asked.map(|asked| negotiate::answer(&self.config, &asked));
        let (data, terms) = match answered {
            Some((data, terms)) => (Some(data), terms),
            None => (None, self.own_terms()),
        };
        self.agreed = Some(Agreed {
            role: Role::Responder,
            revision: start.revision,
            crc: start.crc || self.config.crc,
            tx_markers: start.markers,
            rx_markers: self.config.markers,
            ird: terms.ird,
            ord: terms.ord,
            peer_depths: asked.map(|data| (data.ird, data.ord)),
            rtr: terms.rtr,
        });
        self.reply(start.revision, false, data.as_ref(), private, StartupState::Agreed, now);
        Ok(())
    }

    /// Responder, when [asked](StartupState::Asked): rejects, with the application's private data.
    ///
    /// # Errors
    /// [`StartupError::PrivateTooLong`], with nothing changed.
    pub fn reject(&mut self, private: &[u8], now: Time) -> Result<(), StartupError> {
        let Some(start) = self.frame.complete().filter(|_| self.state == StartupState::Asked)
        else {
            return Ok(());
        };
        check_private(private, start.enhanced)?;
        // "If the responder receives an enhanced MPA message, it MUST respond with an enhanced MPA
        // message" (RFC 6581, 10).
        let data = self.frame.enhanced().map(|asked| negotiate::answer(&self.config, &asked).0);
        self.reply(start.revision, true, data.as_ref(), private, StartupState::Rejected, now);
        Ok(())
    }

    fn reply(
        &mut self,
        revision: u8,
        rejected: bool,
        data: Option<&MpaEnhanced>,
        private: &[u8],
        after: StartupState,
        now: Time,
    ) {
        let head = self.head(MpaKey::Reply, revision);
        // Asked for is agreed: "When this bit is '1' in either the MPA Request Frame or MPA Reply
        // Frame, CRCs MUST be generated and checked by both endpoints" (RFC 5044, 7.1.1). siw gives
        // up where the reply does not say so, too.
        let crc = head.crc || self.frame.complete().is_some_and(|asked| asked.crc);
        let start = MpaStart { rejected, crc, ..head };
        self.out = frame::write(start, data, private);
        self.sent = 0;
        self.after = Some(after);
        self.state = StartupState::Replying;
        self.deadline = Some(now + self.config.timeout_ns);
    }

    fn own_terms(&self) -> negotiate::Terms {
        negotiate::Terms { ird: self.config.ird, ord: self.config.ord, rtr: RtrSet::empty() }
    }

    /// Initiator: the reply is here.
    fn conclude(&mut self, start: &MpaStart) -> Result<(), StartupError> {
        self.check_revision(start)?;
        if start.enhanced != self.is_enhanced() {
            return Err(StartupError::NotEnhanced);
        }
        self.deadline = None;
        if start.rejected {
            self.state = StartupState::Rejected;
            return Ok(());
        }
        let answered = self.frame.enhanced();
        let agreed = Agreed {
            role: Role::Initiator,
            revision: start.revision,
            crc: start.crc || self.config.crc,
            tx_markers: start.markers,
            rx_markers: self.config.markers,
            ird: self.config.ird,
            ord: self.config.ord,
            peer_depths: answered.map(|data| (data.ird, data.ord)),
            rtr: RtrSet::empty(),
        };
        // Of use to the Terminate too, if the terms are not agreeable.
        self.agreed = Some(agreed);
        if let Some(answered) = answered {
            let terms = negotiate::conclude(&self.config, &answered)?;
            let negotiate::Terms { ird, ord, rtr } = terms;
            self.agreed = Some(Agreed { ird, ord, rtr, ..agreed });
        }
        self.state = StartupState::Agreed;
        Ok(())
    }

    fn fail(&mut self, error: StartupError) {
        let may_speak = self.agreed().is_some() || self.state == StartupState::Waiting;
        self.state = StartupState::Failed(error);
        self.after = None;
        self.deadline = None;
        self.out.clear();
        self.sent = 0;
        if may_speak {
            self.out = self.last_word(&error);
        }
    }

    /// What the peer is told of a failure: nothing, mostly. A Terminate is for peers that know RFC
    /// 6581.
    fn last_word(&self, error: &StartupError) -> Vec<u8> {
        match (self.role, error) {
            // "it would send an MPA Reply Frame with the Rev field equal to one and then gracefully
            // close the connection" (RFC 5044, C.2.1): the peer is of before RFC 5044.
            (Role::Responder, StartupError::Revision { revision: 0, .. }) => {
                let start = MpaStart { rejected: true, ..self.head(MpaKey::Reply, 1) };
                frame::write(start, None, &[])
            }
            _ => match (self.agreed, self.frame.enhanced(), negotiate::term_code(error)) {
                (Some(agreed), Some(_), Some(code)) => terminate(&agreed, code),
                _ => Vec::new(),
            },
        }
    }
}

/// Whether the application's private data fits: "The maximum amount of ULP-specified Private Data
/// is therefore reduced by 4 bytes" (RFC 6581, 9).
fn check_private(private: &[u8], enhanced: bool) -> Result<(), StartupError> {
    let limit = usize::from(MAX_PRIVATE_DATA) - if enhanced { MpaEnhanced::LEN } else { 0 };
    match private.len() {
        len if len > limit => Err(StartupError::PrivateTooLong { len, limit }),
        _ => Ok(()),
    }
}

/// A stream of one FPDU, which says why there will be no other.
fn terminate(agreed: &Agreed, code: TermCode) -> Vec<u8> {
    Layout::new(agreed).alone(&Fpdu::terminate(&Terminate::new(code)))
}
