//! Topics of the page of errors, docs/errors.md, that lines of the log point to.
//!
//! Owns the names of the topics, and which of them were pointed to. A line about a failure has the
//! field `more`, with the command that prints the topic: `vernic errors RETRY_EXC_ERR`. Whoever
//! prints lines puts it behind everything else, in parentheses.
//!
//! Limits: each topic is pointed to once in a process, since one who has read it once needs no
//! further pointer.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use vernic_proto::WcStatus;

/// All topics: sections of the page by their headings, and what rows of its tables are about.
pub const TOPICS: [&str; 33] = [
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "REM_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_OP_ERR",
    "WR_FLUSH_ERR",
    "LOC_PROT_ERR",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "MW_BIND_ERR",
    "LOC_ACCESS_ERR",
    "BAD_RESP_ERR",
    "REM_ABORT_ERR",
    "GENERAL_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    DROPPED_PACKETS,
    CQ_ERR,
    "ibv_get_device_list",
    "EACCES",
    "EADDRINUSE",
    "EADDRNOTAVAIL",
    "EBUSY",
    "EFAULT",
    "EHOSTUNREACH",
    "EINVAL",
    "EIO",
    "ENOMEM",
    "EOPNOTSUPP",
    "RDMA_CM_EVENT_ADDR_ERROR",
    "RDMA_CM_EVENT_CONNECT_ERROR",
    "RDMA_CM_EVENT_REJECTED",
    "RDMA_CM_EVENT_UNREACHABLE",
];

/// The topic of packets that are dropped.
pub(crate) const DROPPED_PACKETS: &str = "DROPPED_PACKETS";

/// The topic of a completion queue that has overflowed.
pub(crate) const CQ_ERR: &str = "CQ_ERR";

/// A bit for each topic that was pointed to.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// A topic that a line of the log points to. It is written as the command that prints the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topic(&'static str);

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vernic errors {}", self.0)
    }
}

/// Returns the topic of this name, the first time in this process; `None` later, and for names that
/// are not among [`TOPICS`].
#[cold]
pub fn more(name: &str) -> Option<Topic> {
    let at = TOPICS.iter().position(|topic| *topic == name)?;
    let bit = 1 << at;
    (TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0).then_some(Topic(TOPICS[at]))
}

/// Returns the topic of a completion's status, as [`more`] does.
#[cold]
pub(crate) fn more_of(status: WcStatus) -> Option<Topic> {
    more(&status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../../docs/errors.md");

    #[test]
    fn every_topic_is_a_section_or_in_a_table_of_the_page() {
        let heading = |line: &&str| line.starts_with("## ");
        let headings: Vec<String> = PAGE
            .lines()
            .filter(heading)
            .map(|line| line[3..].to_uppercase().replace(' ', "_"))
            .collect();
        for topic in TOPICS {
            let is_section = headings.iter().any(|heading| heading == topic)
                || PAGE.contains(&format!("<a id=\"{}\">", topic.to_lowercase()));
            let is_row = PAGE.lines().any(|line| line.starts_with('|') && line.contains(topic));
            assert!(is_section || is_row, "{topic}");
        }
    }

    #[test]
    fn every_failed_status_is_a_topic_that_is_told_once() {
        let failed = [
            WcStatus::LocalLength,
            WcStatus::LocalQpOperation,
            WcStatus::LocalProtection,
            WcStatus::Flushed,
            WcStatus::MwBind,
            WcStatus::BadResponse,
            WcStatus::LocalAccess,
            WcStatus::RemoteInvalidRequest,
            WcStatus::RemoteAccess,
            WcStatus::RemoteOperation,
            WcStatus::RetryExceeded,
            WcStatus::RnrRetryExceeded,
            WcStatus::RemoteAborted,
            WcStatus::Fatal,
            WcStatus::ResponseTimeout,
            WcStatus::General,
        ];
        for status in failed {
            assert!(TOPICS.contains(&status.to_string().as_str()), "{status}");
        }
        assert_eq!(more("EFAULT").unwrap().to_string(), "vernic errors EFAULT");
        assert_eq!([more("EFAULT"), more("ESRCH"), more("SUCCESS")], [None; 3]);
    }
}
