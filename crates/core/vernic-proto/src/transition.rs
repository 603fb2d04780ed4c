//! The one table of state transitions and the check of a modify against it (IBTA 10.3.1, 11.2.5.2).
//!
//! Owns which transitions exist for which type of queue pair, which attributes each needs and
//! takes, and the ranges of the attributes. [`Qp::modify`](crate::Qp::modify) calls
//! [`check_modify`] before it touches anything; the check is a pure function.
//!
//! The XRC columns are those of Linux (`ib_modify_qp_is_ok`): the initiator has what of RC belongs
//! to the requester, the target what belongs to the responder, and SQ_PSN and TIMEOUT, which it
//! must be given and never uses. On the way up each also takes, and never uses, what RC would need:
//! perftest brings up both halves with one list of attributes.
//!
//! The iWARP column needs nothing: what the others are told here, the start-up of the connection
//! agrees upon. What RC takes on the way up and in RTS it takes too, as drivers of iWARP do. It
//! uses the access flags, the claimed state and the rate limit alone. SQD there is the closing of a
//! stream, from which there is no way back.
//!
//! `ALT_PATH` and `PATH_MIG_STATE` are for connections by packets: an iWARP connection has the one
//! path of its TCP connection. Which states of migration may follow each other is in `migration`.
//!
//! `RATE_LIMIT` is for those that send requests, from RTR on. Linux has it for RC and for raw
//! packets, on the way up and in RTS. SQD and the way out of SQE take it too.
//!
//! Left out of the rows, and so refused instead of ignored: `CAP` (queues are not resized).

use vernic_wire::StaticRate;

use crate::rate::RateLimit;
use crate::state::{AttrMask, ModifyError, QpAttr, QpState, QpType};

/// Attributes of one transition of one type.
#[derive(Clone, Copy)]
struct Attrs {
    /// Must be named.
    required: AttrMask,
    /// May be named.
    optional: AttrMask,
}

/// One transition; `None` where a type does not have it.
struct Row {
    from: QpState,
    to: QpState,
    rc: Option<Attrs>,
    uc: Option<Attrs>,
    ud: Option<Attrs>,
    xrc_ini: Option<Attrs>,
    xrc_tgt: Option<Attrs>,
    iwarp: Option<Attrs>,
}

/// A column of the table.
#[derive(Clone, Copy)]
enum Column {
    Type(QpType),
    /// An RC queue pair whose transport is iWARP.
    Iwarp,
}

/// `[REQUIRED ...] + [OPTIONAL ...]`, or `none`.
macro_rules! attrs {
    (none) => { None };
    ([$($required:ident)*] + [$($optional:ident)*]) => {
        Some(Attrs {
            required: AttrMask::empty()$(.union(AttrMask::$required))*,
            optional: AttrMask::empty()$(.union(AttrMask::$optional))*,
        })
    };
}

macro_rules! transitions {
    ($($from:ident -> $to:ident { $($column:ident: $need:tt $(+ $may:tt)?),* })*) => {
        &[$(Row {
            from: QpState::$from,
            to: QpState::$to,
            $($column: attrs!($need $(+ $may)?),)*
        },)*]
    };
}

/// Every transition but those to Reset and Error, which each state has and which take no attribute.
#[rustfmt::skip]
static TRANSITIONS: &[Row] = transitions! {
    Reset -> Init {
        rc: [PKEY_INDEX PORT ACCESS_FLAGS] + [],
        uc: [PKEY_INDEX PORT ACCESS_FLAGS] + [],
        ud: [PKEY_INDEX PORT QKEY] + [],
        xrc_ini: [PKEY_INDEX PORT ACCESS_FLAGS] + [],
        xrc_tgt: [PKEY_INDEX PORT ACCESS_FLAGS] + [],
        iwarp: [] + [PKEY_INDEX PORT ACCESS_FLAGS]
    }
    Init -> Init {
        rc: [] + [PKEY_INDEX PORT ACCESS_FLAGS],
        uc: [] + [PKEY_INDEX PORT ACCESS_FLAGS],
        ud: [] + [PKEY_INDEX PORT QKEY],
        xrc_ini: [] + [PKEY_INDEX PORT ACCESS_FLAGS],
        xrc_tgt: [] + [PKEY_INDEX PORT ACCESS_FLAGS],
        iwarp: [] + [PKEY_INDEX PORT ACCESS_FLAGS]
    }
    Init -> Rtr {
        rc: [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER] + [ALT_PATH PATH_MIG_STATE ACCESS_FLAGS PKEY_INDEX RATE_LIMIT],
        uc: [AV PATH_MTU DEST_QPN RQ_PSN] + [ALT_PATH PATH_MIG_STATE ACCESS_FLAGS PKEY_INDEX RATE_LIMIT],
        ud: [] + [PKEY_INDEX QKEY RATE_LIMIT],
        xrc_ini: [AV PATH_MTU DEST_QPN RQ_PSN] + [ALT_PATH PATH_MIG_STATE ACCESS_FLAGS PKEY_INDEX MAX_DEST_RD_ATOMIC MIN_RNR_TIMER RATE_LIMIT],
        xrc_tgt: [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER] + [ALT_PATH PATH_MIG_STATE ACCESS_FLAGS PKEY_INDEX],
        iwarp: [] + [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER ACCESS_FLAGS PKEY_INDEX RATE_LIMIT]
    }
    Rtr -> Rts {
        rc: [SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS MIN_RNR_TIMER RATE_LIMIT],
        uc: [SQ_PSN] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS RATE_LIMIT],
        ud: [SQ_PSN] + [CUR_STATE QKEY RATE_LIMIT],
        xrc_ini: [SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS RATE_LIMIT],
        xrc_tgt: [SQ_PSN TIMEOUT] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS MIN_RNR_TIMER RETRY_CNT RNR_RETRY MAX_RD_ATOMIC],
        iwarp: [] + [SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER RATE_LIMIT]
    }
    Rts -> Rts {
        rc: [] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS MIN_RNR_TIMER RATE_LIMIT],
        uc: [] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS RATE_LIMIT],
        ud: [] + [CUR_STATE QKEY RATE_LIMIT],
        xrc_ini: [] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS RATE_LIMIT],
        xrc_tgt: [] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS MIN_RNR_TIMER],
        iwarp: [] + [CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER RATE_LIMIT]
    }
    Rts -> Sqd {
        rc: [] + [EN_SQD_ASYNC_NOTIFY],
        uc: [] + [EN_SQD_ASYNC_NOTIFY],
        ud: [] + [EN_SQD_ASYNC_NOTIFY],
        xrc_ini: [] + [EN_SQD_ASYNC_NOTIFY],
        xrc_tgt: [] + [EN_SQD_ASYNC_NOTIFY],
        iwarp: [] + []
    }
    Sqd -> Sqd {
        rc: [] + [AV PORT PKEY_INDEX TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC MAX_DEST_RD_ATOMIC
                  ALT_PATH PATH_MIG_STATE ACCESS_FLAGS MIN_RNR_TIMER RATE_LIMIT],
        uc: [] + [AV PKEY_INDEX ALT_PATH PATH_MIG_STATE ACCESS_FLAGS RATE_LIMIT],
        ud: [] + [PKEY_INDEX QKEY RATE_LIMIT],
        xrc_ini: [] + [AV PORT PKEY_INDEX TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC ALT_PATH PATH_MIG_STATE ACCESS_FLAGS RATE_LIMIT],
        xrc_tgt: [] + [AV PORT PKEY_INDEX TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH PATH_MIG_STATE ACCESS_FLAGS MIN_RNR_TIMER],
        iwarp: [] + []
    }
    Sqd -> Rts {
        rc: [] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS MIN_RNR_TIMER RATE_LIMIT],
        uc: [] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS RATE_LIMIT],
        ud: [] + [CUR_STATE QKEY RATE_LIMIT],
        xrc_ini: [] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS RATE_LIMIT],
        xrc_tgt: [] + [CUR_STATE ALT_PATH PATH_MIG_STATE ACCESS_FLAGS MIN_RNR_TIMER],
        iwarp: none
    }
    Sqe -> Rts {
        rc: none,
        uc: [] + [CUR_STATE ACCESS_FLAGS RATE_LIMIT],
        ud: [] + [CUR_STATE QKEY RATE_LIMIT],
        xrc_ini: none,
        xrc_tgt: none,
        iwarp: none
    }
};

/// The attributes of a transition, or `None` where the type does not have it.
fn attrs_of(column: Column, from: QpState, to: QpState) -> Option<Attrs> {
    if matches!(to, QpState::Reset | QpState::Error) {
        return Some(Attrs { required: AttrMask::empty(), optional: AttrMask::empty() });
    }
    let row = TRANSITIONS.iter().find(|row| row.from == from && row.to == to)?;
    match column {
        Column::Type(QpType::Rc) => row.rc,
        Column::Type(QpType::Uc) => row.uc,
        Column::Type(QpType::Ud) => row.ud,
        Column::Type(QpType::XrcIni) => row.xrc_ini,
        Column::Type(QpType::XrcTgt) => row.xrc_tgt,
        Column::Iwarp => row.iwarp,
    }
}

/// Whether a queue pair of `qp_type` in `state` may be modified so, and the state it is then in.
///
/// Without [`AttrMask::STATE`] the state stays; that too must be a row of the table, so it exists
/// in Init, RTS and SQD. [`AttrMask::CUR_STATE`] names the state the caller believes in; it changes
/// nothing and must be right.
///
/// # Errors
/// See [`ModifyError`]; checked in the order claimed state, transition, missing, forbidden, values.
pub(crate) fn check_modify(
    qp_type: QpType,
    state: QpState,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState, ModifyError> {
    check(qp_type, Column::Type(qp_type), state, attr, mask)
}

/// As [`check_modify`], of a queue pair whose transport is iWARP.
pub(crate) fn check_modify_iwarp(
    state: QpState,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState, ModifyError> {
    check(QpType::Rc, Column::Iwarp, state, attr, mask)
}

fn check(
    qp_type: QpType,
    column: Column,
    from: QpState,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState, ModifyError> {
    if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != from {
        return Err(ModifyError::CurState { claimed: attr.cur_state, actual: from });
    }
    let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
    let attrs = attrs_of(column, from, to).ok_or(ModifyError::Transition { qp_type, from, to })?;
    let missing = attrs.required.difference(mask);
    if !missing.is_empty() {
        return Err(ModifyError::Missing { from, to, missing });
    }
    let taken = attrs.required.union(attrs.optional).union(AttrMask::STATE);
    let forbidden = mask.difference(taken);
    if !forbidden.is_empty() {
        return Err(ModifyError::Forbidden { from, to, forbidden });
    }
    check_values(attr, mask)?;
    Ok(to)
}

/// One range: the attribute it belongs to, how to read the value, the bounds (inclusive).
struct Range {
    mask: AttrMask,
    attribute: &'static str,
    value: fn(&QpAttr) -> u64,
    min: u64,
    max: u64,
    allowed: &'static str,
}

const fn range(
    mask: AttrMask,
    attribute: &'static str,
    value: fn(&QpAttr) -> u64,
    (min, max): (u64, u64),
    allowed: &'static str,
) -> Range {
    Range { mask, attribute, value, min, max, allowed }
}

/// Outstanding READs and atomics that a queue pair may be configured for; rxe has the same limit.
const MAX_RD_ATOMIC: u64 = 128;

/// The ranges that the types of the fields leave open.
#[rustfmt::skip]
static RANGES: &[Range] = &[
    range(AttrMask::PORT, "port", |a| u64::from(a.port.0), (1, 255), "1 and up"),
    range(AttrMask::AV, "av.port", |a| u64::from(a.av.port.0), (1, 255), "1 and up"),
    range(AttrMask::ALT_PATH, "alt_port", |a| u64::from(a.alt_port.0), (1, 255), "1 and up"),
    range(AttrMask::ALT_PATH, "alt_av.sl", |a| u64::from(a.alt_av.sl), (0, 15), "0 to 15"),
    range(AttrMask::ALT_PATH, "alt_av.flow_label", |a| u64::from(a.alt_av.flow_label), (0, 0xF_FFFF), "20 bits"),
    range(AttrMask::AV, "av.sl", |a| u64::from(a.av.sl), (0, 15), "0 to 15"),
    range(AttrMask::AV, "av.flow_label", |a| u64::from(a.av.flow_label), (0, 0xF_FFFF), "20 bits"),
    range(AttrMask::RATE_LIMIT, "rate_limit in kb/s", |a| u64::from(a.rate_limit.kbps), (0, RateLimit::MAX_KBPS as u64), "0 (none) to 400000000"),
    range(AttrMask::RATE_LIMIT, "the burst of no rate_limit", |a| if a.rate_limit.kbps == 0 { a.rate_limit.burst_bytes.into() } else { 0 }, (0, 0), "0"),
    range(AttrMask::RETRY_CNT, "retry_cnt", |a| u64::from(a.retry_cnt), (0, 7), "0 to 7"),
    range(AttrMask::RNR_RETRY, "rnr_retry", |a| u64::from(a.rnr_retry), (0, 7), "0 to 7 (7 = for ever)"),
    range(AttrMask::MAX_RD_ATOMIC, "max_rd_atomic", |a| u64::from(a.max_rd_atomic), (0, MAX_RD_ATOMIC), "0 to 128"),
    range(AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", |a| u64::from(a.max_dest_rd_atomic), (0, MAX_RD_ATOMIC), "0 to 128"),
];

fn check_values(attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
    for range in RANGES.iter().filter(|range| mask.contains(range.mask)) {
        let value = (range.value)(attr);
        if value < range.min || value > range.max {
            let (attribute, allowed) = (range.attribute, range.allowed);
            return Err(ModifyError::Value { attribute, value, allowed });
        }
    }
    let rates = [
        (AttrMask::AV, "av.static_rate", attr.av.static_rate),
        (AttrMask::ALT_PATH, "alt_av.static_rate", attr.alt_av.static_rate),
    ];
    for (named, attribute, rate) in rates {
        if mask.contains(named) && !rate.is_known() {
            let (value, allowed) = (rate.0.into(), StaticRate::KNOWN);
            return Err(ModifyError::Value { attribute, value, allowed });
        }
    }
    Ok(())
}

/// The attributes that a transition needs, for tests that bring queue pairs up.
#[cfg(test)]
pub(crate) fn required(qp_type: QpType, from: QpState, to: QpState) -> Option<AttrMask> {
    attrs_of(Column::Type(qp_type), from, to).map(|attrs| attrs.required)
}

#[cfg(test)]
mod tests;
