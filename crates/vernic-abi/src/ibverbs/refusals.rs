//! Posts that were refused. Programs that post until a queue is full do so by the thousand, so the log has the first of
//! each cause per queue at level `warn`, the others at `debug`.

use std::fmt::Display;
use std::mem::{Discriminant, discriminant};
use std::sync::{Mutex, TryLockError};

use vernic_engine::{PostError, PostRecvError, PostSendError, RecvRefusal, SendRefusal};

/// Why, whatever the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// What C gave is no request.
    Malformed,
    Send(Discriminant<SendRefusal>),
    Protocol(Discriminant<PostError>),
    Recv(Discriminant<RecvRefusal>),
}

impl From<&PostSendError> for Cause {
    fn from(error: &PostSendError) -> Self {
        match &error.source {
            SendRefusal::Protocol(error) => Self::Protocol(discriminant(error)),
            other => Self::Send(discriminant(other)),
        }
    }
}

impl From<&PostRecvError> for Cause {
    fn from(error: &PostRecvError) -> Self {
        Self::Recv(discriminant(&error.source))
    }
}

/// The causes that a queue's user was told: each once, so no more than there are.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Vec<Cause>>);

impl Refusals {
    /// Writes a line about a refused post.
    #[cold]
    pub(crate) fn log(&self, call: &str, cause: Cause, why: &dyn Display) {
        if self.is_news(cause) {
            tracing::warn!("{call}, {why} (the first of this kind; `VERNIC_LOG=debug` shows all)");
        } else {
            tracing::debug!("{call}, {why}");
        }
    }

    fn is_news(&self, cause: Cause) -> bool {
        // Who is at it has something to tell, too, or was another thread of the process that this one is forked from.
        let mut told = match self.0.try_lock() {
            Ok(told) => told,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let is_news = !told.contains(&cause);
        if is_news {
            told.push(cause);
        }
        is_news
    }
}
