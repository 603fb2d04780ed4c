//! The two versions of RoCE: which headers are before the BTH.

/// A version of RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RoceVersion {
    /// Ethernet and GRH (IBTA annex A16): within one Ethernet.
    V1,
    /// Ethernet, IP and UDP (IBTA annex A17).
    #[default]
    V2,
}
