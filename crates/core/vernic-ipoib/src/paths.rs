//! How packets get to a GID: the SA's answer, as long as it is in use.

use vernic_wire::sa::PathRecord;

/// Nanoseconds after which an unused path is forgotten.
pub(crate) const UNUSED: u64 = 60_000_000_000;
/// Nanoseconds for which the SA is not asked again after it had no path.
pub(crate) const PAUSE: u64 = 1_000_000_000;

/// A path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// The SA was asked.
    Asked,
    /// The SA's answer, and whether it was used lately.
    Known {
        /// The answer.
        record: PathRecord,
        /// A packet went there since the last look.
        is_used: bool,
    },
    /// The SA has none, and is not asked again for a moment.
    Absent,
}
