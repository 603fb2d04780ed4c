//! What the interface has of subnet administration, by the fabric process: memberships of the port
//! in groups, paths, notices. The fabric process asks for all programs of the host, so that none
//! takes the port out of a group that another one is in.
//!
//! Each question has a connection of its own, and what it asks for ends with it. A membership that
//! is asked for again replaces the one before when it is answered, so that the port stays in the
//! group.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use vernic_attach::{AttachError, GroupJoin, Notices, PathAsked, PathQuestion};
use vernic_sys::{self as sys, EpollOp, OwnFd};
use vernic_wire::Gid;
use vernic_wire::sa::{JoinState, McMemberRecord, MemberComponents, PathRecord};
use vernic_wire::smp::Notice;

use crate::port::PORT;

/// A question, with what its answers are about.
#[derive(Debug)]
enum Question {
    /// A membership, or the question for one.
    Member { mgid: Gid, how: JoinState, join: GroupJoin },
    /// A path to a port.
    Path { dgid: Gid, question: PathQuestion },
    /// Notices.
    Notices(Notices),
}

impl Question {
    /// Whether it is for membership in a group, in this way.
    fn is_for(&self, mgid: Gid, how: JoinState) -> bool {
        matches!(self, Self::Member { mgid: own, how: in_way, .. } if (*own, *in_way) == (mgid, how))
    }
}

impl AsFd for Question {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Member { join, .. } => join.as_fd(),
            Self::Path { question, .. } => question.as_fd(),
            Self::Notices(notices) => notices.as_fd(),
        }
    }
}

/// What subnet administration says.
#[derive(Debug)]
pub(crate) enum News {
    /// A membership, or an error if there is none any more.
    Member { mgid: Gid, how: JoinState, answer: Result<McMemberRecord, AttachError> },
    /// A path to a port.
    Path { dgid: Gid, answer: Result<PathRecord, AttachError> },
    /// A notice; an error if no more come.
    Notice(Result<Notice, AttachError>),
}

/// The questions of an interface: as many as it has groups, and paths that it waits for.
#[derive(Debug)]
pub(crate) struct SubnetQuestions {
    fabric: String,
    host: String,
    epoll: OwnFd,
    questions: BTreeMap<u64, Question>,
    last: u64,
}

impl SubnetQuestions {
    /// Returns none.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn new(fabric: &str, host: &str) -> io::Result<Self> {
        let (fabric, host) = (fabric.to_owned(), host.to_owned());
        Ok(Self { fabric, host, epoll: sys::epoll()?, questions: BTreeMap::new(), last: 0 })
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
        self.add(Question::Member { mgid: record.mgid, how: record.join_state, join })
    }
    /// Ends a membership, or the question for one.
    pub(crate) fn leave(&mut self, mgid: Gid, how: JoinState) {
        self.questions.retain(|_, question| !question.is_for(mgid, how));
    }
    /// Asks for a path. The answer comes by [`take`](Self::take).
    ///
    /// # Errors
    /// [`AttachError`]: then there is no answer.
    pub(crate) fn ask_path(&mut self, asked: &PathAsked) -> Result<(), AttachError> {
        let question = PathQuestion::ask(&self.fabric, &self.host, PORT, asked)?;
        self.add(Question::Path { dgid: asked.dgid, question })
    }
    /// Asks for notices, unless they were asked for.
    ///
    /// # Errors
    /// [`AttachError`]: then there are none.
    pub(crate) fn hear_notices(&mut self) -> Result<(), AttachError> {
        if self.questions.values().any(|question| matches!(question, Question::Notices(_))) {
            return Ok(());
        }
        let notices = Notices::ask(&self.fabric, &self.host, PORT)?;
        self.add(Question::Notices(notices))
    }
    fn add(&mut self, question: Question) -> Result<(), AttachError> {
        let key = self.last + 1;
        let (epoll, events) = (self.epoll.as_fd(), libc::EPOLLIN as u32);
        let watched = sys::epoll_watch(epoll, EpollOp::Add, question.as_fd(), key, events);
        watched.map_err(|source| AttachError::Io { doing: "waiting for the subnet", source })?;
        self.questions.insert(key, question);
        self.last = key;
        Ok(())
    }
    /// Returns what is new.
    pub(crate) fn take(&mut self) -> Vec<News> {
        let mut ready = Vec::new();
        let watched = sys::epoll_ready(self.epoll.as_fd(), |key, _| ready.push(key));
        if let Err(error) = watched
            && !sys::is_for_later(&error)
        {
            tracing::warn!(%error, "the subnet is not heard of");
        }
        let mut news = Vec::new();
        for key in ready {
            // Notices come one behind the other; of other questions there is one answer at a time.
            while let Some((one, is_last)) = self.poll(key) {
                news.push(one);
                if is_last {
                    self.questions.remove(&key);
                    break;
                }
            }
        }
        news
    }
    /// Returns what is new of a question, and whether it is the last.
    fn poll(&mut self, key: u64) -> Option<(News, bool)> {
        match self.questions.get_mut(&key)? {
            Question::Member { mgid, how, join } => {
                let (mgid, how, answer) = (*mgid, *how, join.poll()?);
                let is_last = answer.is_err();
                if !is_last {
                    self.questions.retain(|other, one| *other >= key || !one.is_for(mgid, how));
                }
                Some((News::Member { mgid, how, answer }, is_last))
            }
            Question::Path { dgid, question } => {
                Some((News::Path { dgid: *dgid, answer: question.poll()? }, true))
            }
            Question::Notices(notices) => {
                let notice = notices.poll()?;
                let is_last = notice.is_err();
                Some((News::Notice(notice), is_last))
            }
        }
    }
}

/// The descriptor that is readable when there is something to [`take`](SubnetQuestions::take).
impl AsFd for SubnetQuestions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
