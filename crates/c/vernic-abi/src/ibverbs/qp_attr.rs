//! Attributes of queue pairs: `ibv_modify_qp`, `ibv_query_qp`.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use vernic_engine::{
    AckTimeout, AddressVector, AttrMask, Context, HopState, Mtu, PathMigState, PortNum, Psn, Qkey,
    QpAttr, QpState, QpType, Qpn, RateLimit, RnrTimer, Transport,
};

use super::ah;
use crate::boundary::{self, Failure};
use crate::layout::qp::{ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_rate_limit_attr};
use crate::pointer::{Handle, In, Out, plain};

plain! { ibv_qp_attr, ibv_qp_rate_limit_attr }

/// The state with this number.
///
/// # Errors
/// `EINVAL` if there is none.
pub(crate) fn state(value: u32) -> Result<QpState, Failure> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];
    let known = all.into_iter().find(|&state| state as u32 == value);
    known.ok_or_else(|| Failure::invalid(format!("{value} is no state of a queue pair")))
}

/// The state of path migration with this number.
///
/// # Errors
/// `EINVAL` if there is none.
fn path_mig_state(value: u32) -> Result<PathMigState, Failure> {
    use PathMigState::{Armed, Migrated, Rearm};
    let known = [Migrated, Rearm, Armed].into_iter().find(|&state| state as u32 == value);
    known.ok_or_else(|| Failure::invalid(format!("{value} is no state of path migration")))
}

/// A number that has to fit in so many bits.
fn bits(attribute: &str, value: u32, count: u32) -> Result<u32, Failure> {
    if value >> count == 0 {
        return Ok(value);
    }
    Err(Failure::invalid(format!("{attribute} is {value:#x}: it has {count} bits")))
}

/// The attributes that `mask` names, in the engine's terms.
fn to_engine(attr: &ibv_qp_attr, mask: AttrMask, transport: Transport) -> Result<QpAttr, Failure> {
    let mut to = QpAttr::default();
    let has = |bit| mask.contains(bit);
    if has(AttrMask::STATE) {
        to.state = state(attr.qp_state)?;
    }
    if has(AttrMask::CUR_STATE) {
        to.cur_state = state(attr.cur_qp_state)?;
    }
    if has(AttrMask::PATH_MTU) {
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
        let mtu =
            mtu.ok_or_else(|| Failure::invalid(format!("{} is no path MTU", attr.path_mtu)))?;
        to.path_mtu = mtu;
    }
    // What an iWARP queue pair is connected to is its connection's.
    if has(AttrMask::AV) {
        to.av = ah::to_vector(&attr.ah_attr, transport)?;
    }
    if has(AttrMask::DEST_QPN) {
        to.dest_qpn = Qpn::new(bits("dest_qp_num", attr.dest_qp_num, 24)?);
    }
    if has(AttrMask::MIN_RNR_TIMER) {
        let code = bits("min_rnr_timer", attr.min_rnr_timer.into(), 5)?;
        to.min_rnr_timer = RnrTimer::new(code as u8);
    }
    if has(AttrMask::TIMEOUT) {
        to.timeout = AckTimeout::new(bits("timeout", attr.timeout.into(), 5)? as u8);
    }
    if has(AttrMask::ALT_PATH) {
        to.alt_av = ah::to_vector(&attr.alt_ah_attr, transport)?;
        to.alt_timeout = AckTimeout::new(bits("alt_timeout", attr.alt_timeout.into(), 5)? as u8);
    }
    if has(AttrMask::PATH_MIG_STATE) {
        to.path_mig_state = path_mig_state(attr.path_mig_state)?;
    }
    // These take every value that their field holds, or are checked by the engine.
    to.access = attr.qp_access_flags;
    to.pkey_index = attr.pkey_index;
    to.port = PortNum(attr.port_num);
    to.alt_pkey_index = attr.alt_pkey_index;
    to.alt_port = PortNum(attr.alt_port_num);
    to.qkey = Qkey(attr.qkey);
    to.rq_psn = Psn::new(attr.rq_psn);
    to.sq_psn = Psn::new(attr.sq_psn);
    to.max_rd_atomic = attr.max_rd_atomic;
    to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    to.retry_cnt = attr.retry_cnt;
    to.rnr_retry = attr.rnr_retry;
    to.sqd_async_notify = attr.en_sqd_async_notify != 0;
    to.rate_limit = RateLimit::kbps(attr.rate_limit);
    Ok(to)
}

/// Attributes of the engine's in C's terms.
pub(crate) fn from_engine(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.state as u32,
        path_mtu: attr.path_mtu as u32,
        path_mig_state: attr.path_mig_state as u32,
        qkey: attr.qkey.value(),
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qpn.value(),
        qp_access_flags: attr.access,
        ah_attr: ah::from_vector(&attr.av),
        alt_ah_attr: ah::from_vector(&attr.alt_av),
        alt_pkey_index: attr.alt_pkey_index,
        alt_port_num: attr.alt_port.0,
        alt_timeout: attr.alt_timeout.exponent(),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: u8::from(attr.sqd_async_notify),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer.code(),
        port_num: attr.port.0,
        timeout: attr.timeout.exponent(),
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rate_limit: attr.rate_limit.kbps,
        ..ibv_qp_attr::default()
    }
}

/// How long a next hop has to answer for its hardware address: as long as the kernel's drivers of
/// RoCE wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Time to the second look at what the system knows: an answer on a local network takes about as
/// long.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
/// Longest time between looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Waits until the system knows where to send what goes to a peer; at once if it does.
///
/// # Errors
/// `EHOSTUNREACH` or `ETIMEDOUT` where nobody answers for the address.
fn await_next_hop(context: &Context, av: &AddressVector) -> Result<(), Failure> {
    let Some(hop) = context.unknown_next_hop(av) else { return Ok(()) };
    let (until, mut pause) = (Instant::now() + ANSWER_WITHIN, FIRST_PAUSE);
    // Ends within a second.
    let errno = loop {
        match hop.state() {
            HopState::Open => return Ok(()),
            HopState::Absent => break libc::EHOSTUNREACH,
            HopState::Asked if Instant::now() >= until => break libc::ETIMEDOUT,
            HopState::Asked => {}
        }
        std::thread::sleep(pause);
        pause = LONGEST_PAUSE.min(pause * 2);
    };
    let (device, peer) = (&context.info().name, av.dgid.to_ip());
    let why = format!(
        "the queue pair cannot go to {peer} from {device}: nobody answers for the hardware address of the next hop. Is \
         the host up, and on this network?"
    );
    Err(Failure::new(errno, why))
}

/// `ibv_modify_qp`. A refusal says in the log what is missing or forbidden for which transition.
pub(crate) extern "C" fn ibv_modify_qp(
    qp: Handle<ibv_qp>,
    attr: In<ibv_qp_attr>,
    mask: c_int,
) -> c_int {
    boundary::errno("ibv_modify_qp", || {
        let object = qp.get()?;
        object.shared.check()?;
        let attr = attr.require("the attributes")?;
        let named = mask as u32;
        let mask = AttrMask::from_bits(named).ok_or_else(|| {
            Failure::invalid(format!("attribute mask {named:#x} has unknown bits"))
        })?;
        let transport = object.engine.context().info().transport;
        let wanted = to_engine(&attr, mask, transport)?;
        // Nobody waits for datagrams, of which each has a path of its own.
        if transport == Transport::Roce && object.engine.qp_type() != QpType::Ud {
            let alternate = AddressVector { port: wanted.alt_port, ..wanted.alt_av };
            for (bit, av) in [(AttrMask::AV, wanted.av), (AttrMask::ALT_PATH, alternate)] {
                if mask.contains(bit) {
                    await_next_hop(object.engine.context(), &av)?;
                }
            }
        }
        object.engine.modify(&wanted, mask)?;
        if mask.contains(AttrMask::STATE) {
            object.set_state(object.engine.state());
        }
        Ok(())
    })
}

/// `ibv_modify_qp_rate_limit`: in RTS and SQD. Every packet counts with the bytes that it has, so
/// the typical size of packets, which adapters compute pauses from, changes nothing.
pub(crate) extern "C" fn modify_qp_rate_limit(
    qp: Handle<ibv_qp>,
    attr: In<ibv_qp_rate_limit_attr>,
) -> c_int {
    boundary::errno("ibv_modify_qp_rate_limit", || {
        let object = qp.get()?;
        object.shared.check()?;
        let attr = attr.require("the attributes")?;
        if attr.comp_mask != 0 {
            return Err(Failure::invalid(format!("comp_mask {:#x}", attr.comp_mask)));
        }
        let (kbps, burst_bytes) = (attr.rate_limit, attr.max_burst_sz);
        if kbps == 0 && (burst_bytes != 0 || attr.typical_pkt_sz != 0) {
            let why = "rate_limit is 0, so there is no limit that max_burst_sz and typical_pkt_sz could be of";
            return Err(Failure::invalid(why));
        }
        let rate_limit = RateLimit { kbps, burst_bytes };
        let wanted = QpAttr { rate_limit, ..QpAttr::default() };
        Ok(object.engine.modify(&wanted, AttrMask::RATE_LIMIT)?)
    })
}

/// `ibv_query_qp`: every attribute, whatever the mask asks for.
pub(crate) extern "C" fn ibv_query_qp(
    qp: Handle<ibv_qp>,
    out: Out<ibv_qp_attr>,
    _mask: c_int,
    init: Out<ibv_qp_init_attr>,
) -> c_int {
    boundary::errno("ibv_query_qp", || {
        let object = qp.get()?;
        object.shared.check()?;
        let now = object.engine.query();
        object.set_state(now.state);
        out.write(ibv_qp_attr {
            cap: object.cap(),
            sq_draining: u8::from(object.engine.is_draining()),
            ..from_engine(&now)
        });
        init.write(object.init_attr());
        Ok(())
    })
}
