//! A peer of this host that answers no more: what is known of its end.
//!
//! Owns the words for it. A queue pair that fails for silence says so in place of what may have
//! become of its peer ([`Explanation`](super::explanation::Explanation)).

use std::fmt;

/// Why a peer of this host answers no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEnd {
    /// The process has closed the device in order, as a program does at its end.
    Left {
        /// The process id; 0 if the process is of a PID namespace that cannot be seen.
        pid: u32,
        /// Milliseconds from then, as far as this process noticed it, until the queue pair failed.
        before_ms: Option<u64>,
    },
    /// The process is there, and its queue pair takes no requests: it was reset, destroyed, or has
    /// failed.
    QpAway {
        /// The process id, as above.
        pid: u32,
    },
}

impl fmt::Display for PeerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Left { pid, .. } | Self::QpAway { pid }) = self;
        match pid {
            0 => f.write_str("its process, of another PID namespace of this host, ")?,
            pid => write!(f, "its process {pid} of this host ")?,
        }
        match self {
            Self::Left { before_ms, .. } => {
                f.write_str("closed its device, as a program does that ends")?;
                before_ms.map_or(Ok(()), |ms| write!(f, ", {ms} ms before"))
            }
            Self::QpAway { .. } => f.write_str(
                "is there, and its queue pair takes no requests: it was reset or destroyed, or has failed",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_say_what_is_known_and_when_it_was() {
        let left = |pid, before_ms| PeerEnd::Left { pid, before_ms }.to_string();
        assert_eq!(
            left(42, Some(7)),
            "its process 42 of this host closed its device, as a program does that ends, 7 ms before"
        );
        assert!(
            left(0, None).starts_with("its process, of another PID namespace of this host, cl")
        );
        assert!(PeerEnd::QpAway { pid: 42 }.to_string().contains("42 of this host is there, and"));
    }
}
