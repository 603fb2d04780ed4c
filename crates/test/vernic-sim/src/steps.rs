//! The steps of a reliable connection from Reset to RTS, for runs without a connection manager.

use vernic_proto::{AttrMask as M, QpState};

/// States in their order, with what the modify to each of them must name (IBTA 11.2.5.2).
pub(crate) fn to_rts() -> [(QpState, M); 3] {
    let to_rtr =
        M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let to_rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_RD_ATOMIC;
    [
        (QpState::Init, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (QpState::Rtr, M::STATE | to_rtr),
        (QpState::Rts, M::STATE | to_rts),
    ]
}
