//! Expectations are written from the tables of ibv_modify_qp(3), not from the table under test.

use vernic_wire::PortNum;

use super::*;

const ALL: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcIni, QpType::XrcTgt];

fn valid() -> QpAttr {
    let mut attr = QpAttr { port: PortNum(1), ..QpAttr::default() };
    attr.av.port = PortNum(1);
    attr.alt_port = PortNum(1);
    attr
}

/// What those that send requests take from RTR on, but on the way to SQD. The manual does not list
/// it; Linux has it for RC and raw packets.
const RATE: AttrMask = AttrMask::RATE_LIMIT;

/// What connections take from RTR on, but on the way to SQD.
const MIGRATION: AttrMask = AttrMask::ALT_PATH.union(AttrMask::PATH_MIG_STATE);

fn try_modify(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<QpState, ModifyError> {
    let attr = QpAttr { state: to, cur_state: from, ..valid() };
    check_modify(qp_type, from, &attr, mask | AttrMask::STATE)
}

/// The manual's line of a transition: accepted with exactly these, refused with any one missing.
fn needs(qp_type: QpType, from: QpState, to: QpState, required: AttrMask, optional: AttrMask) {
    let name = format!("{qp_type:?} {from:?} -> {to:?}");
    assert_eq!(try_modify(qp_type, from, to, required), Ok(to), "{name}");
    assert_eq!(try_modify(qp_type, from, to, required | optional), Ok(to), "{name}");
    for one in required.iter() {
        let missing = ModifyError::Missing { from, to, missing: one };
        assert_eq!(try_modify(qp_type, from, to, required - one), Err(missing), "{name}");
    }
    for other in (AttrMask::all() - required - optional - AttrMask::STATE).iter() {
        let forbidden = ModifyError::Forbidden { from, to, forbidden: other };
        assert_eq!(try_modify(qp_type, from, to, required | other), Err(forbidden), "{name}");
    }
}

#[test]
fn iwarp_needs_nothing_and_takes_what_rc_takes_up_to_rts_and_in_it() {
    use QpState::*;
    for (from, to) in [(Reset, Init), (Init, Init), (Init, Rtr), (Rtr, Rts), (Rts, Rts)] {
        let rc = attrs_of(Column::Type(QpType::Rc), from, to).unwrap();
        let iwarp = attrs_of(Column::Iwarp, from, to).unwrap();
        assert_eq!(iwarp.required, AttrMask::empty(), "{from:?} -> {to:?}");
        // The one path of an iWARP connection is that of its TCP connection.
        let all = (rc.required | rc.optional) - MIGRATION;
        assert_eq!(iwarp.optional, all, "{from:?} -> {to:?}");
    }
}

#[test]
fn rc_attributes_are_those_of_the_manual() {
    use AttrMask as M;
    use QpState::*;
    let check = |from, to, required, optional| needs(QpType::Rc, from, to, required, optional);
    let none = M::empty();
    let at_init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    check(Reset, Init, at_init, none);
    check(Init, Init, none, at_init);
    let at_rtr =
        M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    check(Init, Rtr, at_rtr, MIGRATION | RATE | M::PKEY_INDEX | M::ACCESS_FLAGS);
    let at_rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC;
    let running = MIGRATION | RATE | M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER;
    check(Rtr, Rts, at_rts, running);
    check(Rts, Rts, none, running);
    check(Rts, Sqd, none, M::EN_SQD_ASYNC_NOTIFY);
    check(Sqd, Rts, none, running);
    let drained = MIGRATION
        | RATE
        | M::PORT
        | M::AV
        | M::TIMEOUT
        | M::RETRY_CNT
        | M::RNR_RETRY
        | M::MAX_RD_ATOMIC
        | M::MAX_DEST_RD_ATOMIC
        | M::ACCESS_FLAGS
        | M::PKEY_INDEX
        | M::MIN_RNR_TIMER;
    check(Sqd, Sqd, none, drained);
}

#[test]
fn uc_attributes_are_those_of_the_manual() {
    use AttrMask as M;
    use QpState::*;
    let check = |from, to, required, optional| needs(QpType::Uc, from, to, required, optional);
    let none = M::empty();
    let at_init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let running = MIGRATION | RATE | M::CUR_STATE | M::ACCESS_FLAGS;
    check(Reset, Init, at_init, none);
    check(Init, Init, none, at_init);
    let at_rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    check(Init, Rtr, at_rtr, MIGRATION | RATE | M::PKEY_INDEX | M::ACCESS_FLAGS);
    check(Rtr, Rts, M::SQ_PSN, running);
    check(Rts, Rts, none, running);
    check(Rts, Sqd, none, M::EN_SQD_ASYNC_NOTIFY);
    check(Sqd, Rts, none, running);
    check(Sqd, Sqd, none, MIGRATION | RATE | M::AV | M::ACCESS_FLAGS | M::PKEY_INDEX);
    check(Sqe, Rts, none, RATE | M::CUR_STATE | M::ACCESS_FLAGS);
}

#[test]
fn xrc_initiators_take_what_belongs_to_the_requester() {
    use AttrMask as M;
    use QpState::*;
    let check = |from, to, required, optional| needs(QpType::XrcIni, from, to, required, optional);
    let none = M::empty();
    let at_init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let running = MIGRATION | RATE | M::CUR_STATE | M::ACCESS_FLAGS;
    check(Reset, Init, at_init, none);
    check(Init, Init, none, at_init);
    let at_rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let responders = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    check(Init, Rtr, at_rtr, MIGRATION | RATE | M::PKEY_INDEX | M::ACCESS_FLAGS | responders);
    let at_rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC;
    check(Rtr, Rts, at_rts, running);
    check(Rts, Rts, none, running);
    check(Rts, Sqd, none, M::EN_SQD_ASYNC_NOTIFY);
    check(Sqd, Rts, none, running);
    let drained = MIGRATION
        | RATE
        | M::PORT
        | M::AV
        | M::TIMEOUT
        | M::RETRY_CNT
        | M::RNR_RETRY
        | M::MAX_RD_ATOMIC
        | M::ACCESS_FLAGS
        | M::PKEY_INDEX;
    check(Sqd, Sqd, none, drained);
}

#[test]
fn xrc_targets_take_what_belongs_to_the_responder() {
    use AttrMask as M;
    use QpState::*;
    let check = |from, to, required, optional| needs(QpType::XrcTgt, from, to, required, optional);
    let none = M::empty();
    let at_init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let running = MIGRATION | M::CUR_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER;
    check(Reset, Init, at_init, none);
    check(Init, Init, none, at_init);
    let at_rtr =
        M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    check(Init, Rtr, at_rtr, MIGRATION | M::PKEY_INDEX | M::ACCESS_FLAGS);
    let requesters = M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC;
    check(Rtr, Rts, M::SQ_PSN | M::TIMEOUT, running | requesters);
    check(Rts, Rts, none, running);
    check(Rts, Sqd, none, M::EN_SQD_ASYNC_NOTIFY);
    check(Sqd, Rts, none, running);
    let drained = MIGRATION
        | M::PORT
        | M::AV
        | M::TIMEOUT
        | M::MAX_DEST_RD_ATOMIC
        | M::ACCESS_FLAGS
        | M::PKEY_INDEX
        | M::MIN_RNR_TIMER;
    check(Sqd, Sqd, none, drained);
}

#[test]
fn ud_attributes_are_those_of_the_manual() {
    use AttrMask as M;
    use QpState::*;
    let check = |from, to, required, optional| needs(QpType::Ud, from, to, required, optional);
    let none = M::empty();
    check(Reset, Init, M::PKEY_INDEX | M::PORT | M::QKEY, none);
    check(Init, Init, none, M::PKEY_INDEX | M::PORT | M::QKEY);
    check(Init, Rtr, none, RATE | M::PKEY_INDEX | M::QKEY);
    check(Rtr, Rts, M::SQ_PSN, RATE | M::CUR_STATE | M::QKEY);
    check(Rts, Rts, none, RATE | M::CUR_STATE | M::QKEY);
    check(Rts, Sqd, none, M::EN_SQD_ASYNC_NOTIFY);
    check(Sqd, Rts, none, RATE | M::CUR_STATE | M::QKEY);
    check(Sqd, Sqd, none, RATE | M::PKEY_INDEX | M::QKEY);
    check(Sqe, Rts, none, RATE | M::CUR_STATE | M::QKEY);
}

#[test]
fn no_other_transition_exists() {
    use QpState::*;
    let everywhere = [
        (Reset, Init),
        (Init, Init),
        (Init, Rtr),
        (Rtr, Rts),
        (Rts, Rts),
        (Rts, Sqd),
        (Sqd, Sqd),
        (Sqd, Rts),
    ];
    for qp_type in ALL {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let exists = everywhere.contains(&(from, to))
                    || matches!(to, Reset | Error)
                    || ((from, to) == (Sqe, Rts) && matches!(qp_type, QpType::Uc | QpType::Ud));
                let result = try_modify(qp_type, from, to, AttrMask::empty());
                let refused = result == Err(ModifyError::Transition { qp_type, from, to });
                assert_eq!(exists, !refused, "{qp_type:?} {from:?} -> {to:?}");
            }
        }
    }
}

#[test]
fn reset_and_error_are_reached_from_everywhere_and_take_no_attribute() {
    for from in QpState::ALL {
        for to in [QpState::Reset, QpState::Error] {
            needs(QpType::Rc, from, to, AttrMask::empty(), AttrMask::empty());
        }
    }
}

#[test]
fn without_state_in_the_mask_the_state_stays() {
    let attr = QpAttr { state: QpState::Error, ..valid() };
    let modify = |state| check_modify(QpType::Rc, state, &attr, AttrMask::MIN_RNR_TIMER);
    assert_eq!(modify(QpState::Rts), Ok(QpState::Rts));
    assert_eq!(modify(QpState::Sqd), Ok(QpState::Sqd));
    let (from, to) = (QpState::Rtr, QpState::Rtr);
    let refused = ModifyError::Transition { qp_type: QpType::Rc, from, to };
    assert_eq!(modify(QpState::Rtr), Err(refused));
}

#[test]
fn a_wrong_claim_about_the_present_state_is_refused_first() {
    let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Rtr, ..valid() };
    let mask = AttrMask::STATE | AttrMask::CUR_STATE;
    let (claimed, actual) = (QpState::Rtr, QpState::Rts);
    assert_eq!(
        check_modify(QpType::Rc, QpState::Rts, &attr, mask),
        Err(ModifyError::CurState { claimed, actual })
    );
}

#[test]
fn values_out_of_range_name_their_field() {
    let field = |mask, change: fn(&mut QpAttr)| {
        let mut attr = valid();
        change(&mut attr);
        match check_values(&attr, mask) {
            Err(ModifyError::Value { attribute, .. }) => attribute,
            other => panic!("{other:?}"),
        }
    };
    use AttrMask as M;
    assert_eq!(field(M::RETRY_CNT, |a| a.retry_cnt = 8), "retry_cnt");
    assert_eq!(field(M::RNR_RETRY, |a| a.rnr_retry = 8), "rnr_retry");
    assert_eq!(field(M::PORT, |a| a.port = PortNum(0)), "port");
    assert_eq!(field(M::AV, |a| a.av.port = PortNum(0)), "av.port");
    assert_eq!(field(M::ALT_PATH, |a| a.alt_port = PortNum(0)), "alt_port");
    assert_eq!(field(M::ALT_PATH, |a| a.alt_av.sl = 16), "alt_av.sl");
    assert_eq!(field(M::ALT_PATH, |a| a.alt_av.flow_label = 1 << 20), "alt_av.flow_label");
    assert_eq!(field(M::AV, |a| a.av.sl = 16), "av.sl");
    assert_eq!(field(M::AV, |a| a.av.flow_label = 1 << 20), "av.flow_label");
    assert_eq!(field(M::AV, |a| a.av.static_rate.0 = 1), "av.static_rate");
    assert_eq!(field(M::ALT_PATH, |a| a.alt_av.static_rate.0 = 25), "alt_av.static_rate");
    assert_eq!(
        field(M::RATE_LIMIT, |a| a.rate_limit.kbps = RateLimit::MAX_KBPS + 1),
        "rate_limit in kb/s"
    );
    assert_eq!(
        field(M::RATE_LIMIT, |a| a.rate_limit.burst_bytes = 1),
        "the burst of no rate_limit"
    );
    assert_eq!(field(M::MAX_RD_ATOMIC, |a| a.max_rd_atomic = 129), "max_rd_atomic");
    assert_eq!(field(M::MAX_DEST_RD_ATOMIC, |a| a.max_dest_rd_atomic = 129), "max_dest_rd_atomic");
}

#[test]
fn values_that_the_mask_does_not_name_are_not_looked_at() {
    let mut attr = QpAttr { retry_cnt: 200, port: PortNum(0), ..QpAttr::default() };
    attr.av.static_rate.0 = 77;
    assert_eq!(check_values(&attr, AttrMask::MIN_RNR_TIMER), Ok(()));
}
