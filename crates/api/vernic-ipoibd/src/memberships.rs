//! Memberships of the port in groups, by the fabric process: it counts those of all programs of the
//! host, so that none takes the port out of a group in which another one is.
//!
//! Each membership has a connection of its own, and ends with it. One that is asked for again
//! replaces the one before when it is answered, so that the port stays in the group.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use vernic_attach::{AttachError, GroupJoin};
use vernic_sys::{self as sys, EpollOp, OwnFd};
use vernic_wire::Gid;
use vernic_wire::sa::{JoinState, McMemberRecord, MemberComponents};

use crate::administration::PORT;

/// A membership, or the question for one.
#[derive(Debug)]
struct Member {
    mgid: Gid,
    how: JoinState,
    join: GroupJoin,
}

/// What became of a question for a membership, or what is new of a membership.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) mgid: Gid,
    pub(crate) how: JoinState,
    pub(crate) answer: Result<McMemberRecord, AttachError>,
}

/// The memberships of an interface, of which there are as many as it has groups.
#[derive(Debug)]
pub(crate) struct Memberships {
    fabric: String,
    host: String,
    epoll: OwnFd,
    members: BTreeMap<u64, Member>,
    last: u64,
}

impl Memberships {
    /// Returns none.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn new(fabric: &str, host: &str) -> io::Result<Self> {
        let (fabric, host) = (fabric.to_owned(), host.to_owned());
        Ok(Self { fabric, host, epoll: sys::epoll()?, members: BTreeMap::new(), last: 0 })
    }
    /// Asks for a membership, in the one way of the record. The answer comes by
    /// [`take`](Self::take).
    ///
    /// # Errors
    /// [`AttachError`]: then there is no answer.
    pub(crate) fn join(
        &mut self,
        record: &McMemberRecord,
        components: MemberComponents,
    ) -> Result<(), AttachError> {
        let join = GroupJoin::ask(&self.fabric, &self.host, PORT, record, components)?;
        let key = self.last + 1;
        let (epoll, events) = (self.epoll.as_fd(), libc::EPOLLIN as u32);
        let watched = sys::epoll_watch(epoll, EpollOp::Add, join.as_fd(), key, events);
        watched.map_err(|source| AttachError::Io { doing: "waiting for a group", source })?;
        self.members.insert(key, Member { mgid: record.mgid, how: record.join_state, join });
        self.last = key;
        Ok(())
    }
    /// Ends a membership, or the question for one.
    pub(crate) fn leave(&mut self, mgid: Gid, how: JoinState) {
        self.members.retain(|_, member| (member.mgid, member.how) != (mgid, how));
    }
    /// Returns what is new.
    pub(crate) fn take(&mut self) -> Vec<News> {
        let mut ready = Vec::new();
        let watched = sys::epoll_ready(self.epoll.as_fd(), |key, _| ready.push(key));
        if let Err(error) = watched
            && !sys::is_for_later(&error)
        {
            tracing::warn!(%error, "groups are not heard of");
        }
        let mut news = Vec::new();
        for key in ready {
            let Some(Member { mgid, how, join }) = self.members.get_mut(&key) else { continue };
            let (mgid, how, answer) = (*mgid, *how, join.poll());
            match &answer {
                None => continue,
                Some(Ok(_)) => self.members.retain(|other, member| {
                    *other >= key || (member.mgid, member.how) != (mgid, how)
                }),
                Some(Err(_)) => drop(self.members.remove(&key)),
            }
            news.extend(answer.map(|answer| News { mgid, how, answer }));
        }
        news
    }
}

/// The descriptor that is readable when there is something to [`take`](Memberships::take).
impl AsFd for Memberships {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
