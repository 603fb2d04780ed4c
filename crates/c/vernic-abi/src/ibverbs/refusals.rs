//! Refusals that programs run into by the thousand: posts, and queue pairs that are made to learn a
//! limit. The log has the first of each cause per open device at level `warn`, the others at
//! `debug`; all of them there where a full queue is the cause, by which many programs know that it
//! is time to poll.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

use vernic_engine::{PostError, PostRecvError, PostSendError, RecvRefusal, SendRefusal, more};

/// Why, whatever the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// What C gave is no request.
    Malformed,
    /// A queue has no room at present.
    Full,
    /// A batch of `ibv_wr_*` that no queue of this size can take.
    TooLong,
    /// A queue pair for more inline data than there can be.
    InlineLimit,
    Orphan,
    Destroyed,
    SendState,
    SendSges,
    Inline,
    Length,
    AtomicLength,
    WrongPd,
    Operation,
    NoDestination,
    NoSendQueue,
    NoSrqn,
    NoReadDepth,
    NotOnIwarp,
    PeerLacks,
    RecvState,
    RecvSges,
    SharedQueue,
    NoRecvQueue,
    /// One that this library does not know yet.
    Other,
}

impl Cause {
    /// Its own, which makes 32 causes at most.
    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl From<&PostSendError> for Cause {
    fn from(error: &PostSendError) -> Self {
        match &error.source {
            SendRefusal::Orphan => Self::Orphan,
            SendRefusal::Protocol(error) => error.into(),
            SendRefusal::TooManySges { .. } => Self::SendSges,
            SendRefusal::Inline { .. } => Self::Inline,
            SendRefusal::Length { .. } => Self::Length,
            SendRefusal::AtomicLength { .. } => Self::AtomicLength,
            SendRefusal::WrongPd => Self::WrongPd,
            SendRefusal::Destroyed => Self::Destroyed,
            _ => Self::Other,
        }
    }
}

impl From<&PostError> for Cause {
    fn from(error: &PostError) -> Self {
        match error {
            PostError::State(_) => Self::SendState,
            PostError::Full(_) => Self::Full,
            PostError::Operation(_) => Self::Operation,
            PostError::Length { .. } => Self::Length,
            PostError::NoDestination => Self::NoDestination,
            PostError::NoSendQueue => Self::NoSendQueue,
            PostError::NoSrqn => Self::NoSrqn,
            PostError::NoReadDepth => Self::NoReadDepth,
            PostError::NotOnIwarp(_) => Self::NotOnIwarp,
            PostError::PeerLacks(_) => Self::PeerLacks,
        }
    }
}

impl From<&PostRecvError> for Cause {
    fn from(error: &PostRecvError) -> Self {
        match &error.source {
            RecvRefusal::Orphan => Self::Orphan,
            RecvRefusal::State(_) => Self::RecvState,
            RecvRefusal::Full(_) => Self::Full,
            RecvRefusal::TooManySges { .. } => Self::RecvSges,
            RecvRefusal::Shared => Self::SharedQueue,
            RecvRefusal::NoQueue => Self::NoRecvQueue,
            RecvRefusal::Destroyed => Self::Destroyed,
        }
    }
}

/// The causes that the user of a device was told: a bit for each. Taken without a lock, since any
/// thread posts, and one may be of the process that this one is forked from.
#[derive(Debug, Default)]
pub(crate) struct Refusals(AtomicU32);

impl Refusals {
    /// Writes a line about a refused post.
    #[cold]
    pub(crate) fn log(&self, call: &str, cause: Cause, why: &dyn Display) {
        if cause != Cause::Full && self.is_news(cause) {
            let errno = if cause == Cause::Orphan { "EIO" } else { "EINVAL" };
            let more = more(errno).map(tracing::field::display);
            tracing::warn!(
                more,
                "{call}, {why} (the first of this kind on this device; `VERNIC_LOG=debug` shows all)"
            );
        } else {
            tracing::debug!("{call}, {why}");
        }
    }

    /// Whether it is the first of its kind.
    pub(crate) fn is_news(&self, cause: Cause) -> bool {
        self.0.fetch_or(cause.bit(), Ordering::Relaxed) & cause.bit() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_news_once() {
        let refusals = Refusals::default();
        let causes = [Cause::Malformed, Cause::InlineLimit, Cause::PeerLacks, Cause::Other];
        assert!(causes.iter().all(|&cause| refusals.is_news(cause)), "each has its bit");
        assert!(!causes.iter().any(|&cause| refusals.is_news(cause)));
    }
}
