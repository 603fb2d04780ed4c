//! Sockets and sets by number, for callers that know them by nothing else.

use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

use crate::epoll::Epoll;
use crate::socket::Socket;

/// What a number stands for.
#[derive(Clone, Debug)]
pub enum Numbered {
    /// A socket.
    Socket(Socket),
    /// A set of sockets.
    Epoll(Arc<Epoll>),
}

impl Numbered {
    fn number(&self) -> RawFd {
        match self {
            Self::Socket(socket) => socket.number(),
            Self::Epoll(epoll) => epoll.number(),
        }
    }
}

/// Sockets and sets by number.
#[derive(Debug, Default)]
pub struct Table {
    entries: RwLock<Vec<Option<Numbered>>>,
}

impl Table {
    /// Enters a socket or a set under its number, and returns that.
    pub fn insert(&self, numbered: Numbered) -> RawFd {
        let number = numbered.number();
        let Ok(at) = usize::try_from(number) else { return number };
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.len() <= at {
            // Numbers are the lowest that are free, so this is no longer than the process's limit.
            entries.resize(at + 1, None);
        }
        entries[at] = Some(numbered);
        number
    }

    /// What a number stands for.
    pub fn find(&self, number: RawFd) -> Option<Numbered> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(usize::try_from(number).ok()?)?.clone()
    }

    /// As [`remove`](Self::remove) in a child of the process whose table this is: the number is
    /// free in the child, and the parent's socket is as it was.
    pub fn close_inherited(&self, number: RawFd) -> bool {
        // A thread of the parent may have held the lock at the fork.
        let Ok(mut entries) = self.entries.try_write() else { return false };
        let entry = usize::try_from(number).ok().and_then(|at| entries.get_mut(at)?.take());
        let Some(entry) = entry else { return false };
        // What is behind the number may have been half changed at the fork: it is left as it is.
        std::mem::forget(entry);
        crate::sys::close(number);
        true
    }

    /// Forgets a number, and leaves every set with it. The number is free when the last copy of
    /// what it stood for is dropped.
    pub fn remove(&self, number: RawFd) -> Option<Numbered> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let removed = entries.get_mut(usize::try_from(number).ok()?)?.take()?;
        let sets: Vec<Arc<Epoll>> = entries
            .iter()
            .filter_map(|entry| match entry {
                Some(Numbered::Epoll(epoll)) => Some(epoll.clone()),
                _ => None,
            })
            .collect();
        drop(entries);
        sets.iter().for_each(|epoll| epoll.forget(number));
        Some(removed)
    }
}
