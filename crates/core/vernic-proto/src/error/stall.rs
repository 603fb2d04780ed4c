//! What a queue pair waits for without having failed, in values and in words.

use core::fmt;

/// So long a queue pair waits before its host is told, in nanoseconds.
pub(crate) const STALL_NANOS: u64 = 2_000_000_000;

/// What a queue pair has waited for, for two seconds. It goes on waiting: with `rnr_retry` 7 for
/// ever (IBTA 9.7.5.2.8), for a peer that is known to be there as long as its host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The peer has no receive posted.
    NotReady {
        /// How often it said so.
        naks: u32,
        /// Nanoseconds since it first did.
        waited: u64,
        /// Requests posted behind the one that needs a receive, which wait with it.
        behind: u32,
        /// Whether the queue pair goes on for ever.
        for_ever: bool,
    },
    /// The peer does not answer.
    Silent {
        /// Transmissions so far, the first included.
        tries: u32,
        /// Nanoseconds since the first.
        waited: u64,
        /// Whether the peer has ever answered on this connection.
        heard: bool,
    },
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        match *self {
            Self::NotReady { naks, waited, behind, for_ever } => {
                let s = seconds(waited);
                write!(
                    f,
                    "for {s:.1} s the peer has had no receive posted (it said so {naks} times): has \
                     its program posted receives, enough of them, and to the right queue pair?"
                )?;
                if for_ever {
                    f.write_str(" rnr_retry is 7, so this waits for ever.")?;
                }
                match behind {
                    0 => Ok(()),
                    1 => f.write_str(" The request posted behind it waits too."),
                    _ => write!(f, " The {behind} requests posted behind it wait too."),
                }
            }
            Self::Silent { tries, waited, heard } => {
                let s = seconds(waited);
                write!(f, "for {s:.1} s the peer has not answered, after {tries} transmissions; ")?;
                f.write_str(if heard {
                    "it did before: it is stopped, very busy or gone, or the path is cut"
                } else {
                    "it never did: is its queue pair in RTR, and of that number and address?"
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_says_for_how_long_and_what_is_usually_wrong() {
        let waited = 2_040_000_000;
        let waits = |behind, for_ever| Stall::NotReady { naks: 7, waited, behind, for_ever };
        let not_ready = |for_ever| waits(0, for_ever);
        let text = not_ready(true).to_string();
        assert!(
            text.starts_with("for 2.0 s the peer has had no receive posted (it said so 7 times)")
        );
        assert!(text.ends_with(" rnr_retry is 7, so this waits for ever."), "{text}");
        assert!(not_ready(false).to_string().ends_with("right queue pair?"));
        let with_writes = waits(3, true).to_string();
        assert!(with_writes.ends_with("for ever. The 3 requests posted behind it wait too."));
        assert!(waits(1, false).to_string().ends_with("? The request posted behind it waits too."));
        let silent = |heard| Stall::Silent { tries: 3, waited: STALL_NANOS, heard }.to_string();
        assert!(silent(true).contains("after 3 transmissions; it did before"));
        assert!(silent(false).contains("it never did: is its queue pair in RTR"));
    }
}
