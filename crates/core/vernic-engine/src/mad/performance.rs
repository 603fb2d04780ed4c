//! The agent of performance management: what all processes of the host have counted on the device
//! (IBTA chapter 16).
//!
//! The counters are those of `ports/1/counters` in sysfs: the sums over the processes of this user
//! that have the device open now. Nothing can be set, since each process counts by itself.
//!
//! Asking all processes is dear, and anybody on the network may ask the agent. So the sums are kept
//! for a moment ([`Kept`]), and all who ask meanwhile are answered from them.

use std::time::{Duration, Instant};

use vernic_wire::PortNum;
use vernic_wire::mad::{MAD_LEN, MadHeader, Method};
use vernic_wire::pma::{
    CLASS_VERSION, ClassPortInfo, DATA_AT, PmAttribute, PortCounters, PortCountersExtended,
};
use vernic_wire::smp::MadStatus;

/// How long a process is waited for: one that runs answers in a millisecond.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long all processes together are waited for.
const PATIENCE_OF_ALL: Duration = Duration::from_secs(2);

/// How long sums are kept.
const KEPT: Duration = Duration::from_millis(100);

/// The port that stands for all.
const ALL_PORTS: PortNum = PortNum(255);

/// Longest time to an answer: 4.096 us times 2 to the power of this, about 4.3 s.
const RESPONSE_TIME: u8 = 20;

/// The names of the counters in the status texts of processes.
const NAMES: [&str; 6] = [
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_discards",
    "port_rcv_errors",
];

/// The values of [`NAMES`], in their order.
type Counters = [u64; NAMES.len()];

/// The sums of a moment ago.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    /// When the processes had told; `None` if they were never asked.
    at: Option<Instant>,
    /// `None` if a process did not tell its counters in time.
    sums: Option<Counters>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The datagram is the answer now.
    Answered,
    /// There is no answer: the method has none, or a process did not tell its counters in time.
    Unanswered,
    /// The sums that are kept are too old.
    MustCount,
}

impl Kept {
    /// Asks the processes of the host. May wait for a moment.
    pub(super) fn count(device: &str) -> Self {
        let texts = vernic_io::status::ask_all(device, PATIENCE, PATIENCE_OF_ALL);
        let texts = texts.inspect_err(|error| {
            tracing::warn!(device, %error, "a process does not tell its counters");
        });
        Self { at: Some(Instant::now()), sums: texts.ok().map(|texts| sums(&texts)) }
    }

    /// Turns a request into its answer, from sums that are not too old. Never waits.
    pub(super) fn answer(&self, mad: &mut [u8; MAD_LEN]) -> Outcome {
        let is_recent = self.at.is_some_and(|at| at.elapsed() < KEPT);
        self.answer_from(is_recent, mad)
    }

    /// Turns a request that waited for these sums into its answer.
    pub(super) fn answer_waiting(&self, mad: &mut [u8; MAD_LEN]) -> Outcome {
        self.answer_from(true, mad)
    }

    /// Zeros, counted just now.
    #[cfg(test)]
    pub(super) fn of_now() -> Self {
        Self { at: Some(Instant::now()), sums: Some(Counters::default()) }
    }

    fn answer_from(&self, is_recent: bool, mad: &mut [u8; MAD_LEN]) -> Outcome {
        let mut is_too_old = false;
        let is_answered = answer_with(mad, || {
            is_too_old = !is_recent;
            self.sums.filter(|_| is_recent)
        });
        match (is_answered, is_too_old) {
            (true, _) => Outcome::Answered,
            (false, false) => Outcome::Unanswered,
            (false, true) => Outcome::MustCount,
        }
    }
}

fn sums(texts: &[String]) -> Counters {
    let mut sums = Counters::default();
    let lines = texts.iter().flat_map(|text| text.lines());
    for rest in lines.filter_map(|line| line.strip_prefix("port ")) {
        let Some((name, value)) = rest.split_once(' ') else { continue };
        let at = NAMES.iter().position(|known| *known == name);
        if let (Some(at), Ok(value)) = (at, value.parse::<u64>()) {
            sums[at] = sums[at].wrapping_add(value);
        }
    }
    sums
}

fn answer_with(mad: &mut [u8; MAD_LEN], count: impl FnOnce() -> Option<Counters>) -> bool {
    let (head, body) = mad.split_at_mut(DATA_AT);
    let Ok(mut header) = MadHeader::parse(head) else { return false };
    let versions = (header.base_version, header.class_version);
    let status = match header.method {
        Method::GET | Method::SET if versions != (MadHeader::BASE_VERSION, CLASS_VERSION) => {
            MadStatus::BAD_VERSION
        }
        Method::GET => match read(PmAttribute(header.attribute_id), body, count) {
            Some(status) => status,
            None => return false,
        },
        Method::SET => MadStatus::METHOD_NOT_SUPPORTED,
        _ => return false,
    };
    header.method = Method::GET_RESP;
    header.status = status.0;
    header.emit(head);
    true
}

/// Writes an attribute; `None` if the counters are not known.
fn read(
    attribute: PmAttribute,
    body: &mut [u8],
    count: impl FnOnce() -> Option<Counters>,
) -> Option<MadStatus> {
    let port = PortNum(body[1]);
    match attribute {
        PmAttribute::CLASS_PORT_INFO => {
            body.fill(0);
            class_port_info().emit(body);
            return Some(MadStatus::OK);
        }
        PmAttribute::PORT_COUNTERS | PmAttribute::PORT_COUNTERS_EXTENDED => {}
        _ => return Some(MadStatus::ATTRIBUTE_NOT_SUPPORTED),
    }
    if !matches!(port, PortNum(1) | ALL_PORTS) {
        return Some(MadStatus::INVALID_FIELD);
    }
    let [xmit_data, rcv_data, xmit_packets, rcv_packets, xmit_discards, rcv_errors] = count()?;
    body.fill(0);
    if attribute == PmAttribute::PORT_COUNTERS {
        // Each counter stops at the largest value of its field.
        let long = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let short = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
        let counters = PortCounters {
            port,
            xmit_data: long(xmit_data),
            rcv_data: long(rcv_data),
            xmit_packets: long(xmit_packets),
            rcv_packets: long(rcv_packets),
            xmit_discards: short(xmit_discards),
            rcv_errors: short(rcv_errors),
            ..PortCounters::default()
        };
        counters.emit(body);
    } else {
        let counters = PortCountersExtended {
            port,
            xmit_data,
            rcv_data,
            xmit_packets,
            rcv_packets,
            xmit_discards,
            rcv_errors,
            ..PortCountersExtended::default()
        };
        counters.emit(body);
    }
    Some(MadStatus::OK)
}

fn class_port_info() -> ClassPortInfo {
    let mut info = ClassPortInfo::from_bytes(&[0; ClassPortInfo::LEN]);
    info.base_version = MadHeader::BASE_VERSION;
    info.class_version = CLASS_VERSION;
    info.capabilities =
        ClassPortInfo::PERFORMANCE_ALL_PORTS | ClassPortInfo::PERFORMANCE_EXTENDED_WIDTH_NO_IETF;
    info.response_time = RESPONSE_TIME;
    info
}

#[cfg(test)]
mod tests {
    use vernic_wire::mad::MgmtClass;

    use super::*;

    const COUNTED: Counters = [70_000, 1 << 40, 3, 4, 70_000, 6];

    /// The status of the answer to a request, and its data; `None` for no answer.
    fn asked(method: Method, attribute: PmAttribute, port: u8) -> Option<(u16, Vec<u8>)> {
        let mut mad = [0; MAD_LEN];
        let header = MadHeader {
            base_version: 1,
            mgmt_class: MgmtClass::PERFORMANCE,
            class_version: 1,
            method,
            attribute_id: attribute.0,
            transaction_id: 7,
            ..MadHeader::default()
        };
        header.emit(&mut mad);
        mad[DATA_AT + 1] = port;
        answer_with(&mut mad, || Some(COUNTED)).then(|| {
            let answer = MadHeader::parse(&mad).unwrap();
            assert_eq!((answer.method, answer.transaction_id), (Method::GET_RESP, 7));
            (answer.status, mad[DATA_AT..].to_vec())
        })
    }

    #[test]
    fn counters_stop_at_the_largest_value_of_their_fields() {
        assert_eq!(NAMES, crate::verbs::status::PORT_COUNTERS);
        let (status, data) = asked(Method::GET, PmAttribute::PORT_COUNTERS, 1).unwrap();
        let short = PortCounters::parse(&data).unwrap();
        assert_eq!((status, short.xmit_data, short.rcv_data), (0, 70_000, u32::MAX));
        assert_eq!((short.rcv_packets, short.xmit_discards, short.rcv_errors), (4, u16::MAX, 6));
        let (_, data) = asked(Method::GET, PmAttribute::PORT_COUNTERS_EXTENDED, 255).unwrap();
        let long = PortCountersExtended::parse(&data).unwrap();
        assert_eq!((long.rcv_data, long.xmit_packets, long.port), (1 << 40, 3, ALL_PORTS));
        let (_, data) = asked(Method::GET, PmAttribute::CLASS_PORT_INFO, 0).unwrap();
        assert_eq!(ClassPortInfo::parse(&data).unwrap().class_version, 1);
    }

    #[test]
    fn what_there_is_not_is_answered_with_the_reason_or_not_at_all() {
        let status = |method, attribute, port| asked(method, attribute, port).map(|said| said.0);
        let counters = PmAttribute::PORT_COUNTERS;
        assert_eq!(status(Method::GET, counters, 2), Some(MadStatus::INVALID_FIELD.0));
        assert_eq!(status(Method::SET, counters, 1), Some(MadStatus::METHOD_NOT_SUPPORTED.0));
        let unknown = status(Method::GET, PmAttribute(0x99), 1);
        assert_eq!(unknown, Some(MadStatus::ATTRIBUTE_NOT_SUPPORTED.0));
        assert_eq!(status(Method::TRAP, counters, 1), None);
        assert!(!answer_with(&mut [0; MAD_LEN], || None));
    }

    #[test]
    fn sums_are_kept_for_a_moment_and_so_is_that_there_are_none() {
        let mut request = [0; MAD_LEN];
        let header = MadHeader {
            base_version: 1,
            mgmt_class: MgmtClass::PERFORMANCE,
            class_version: 1,
            method: Method::GET,
            attribute_id: PmAttribute::PORT_COUNTERS.0,
            ..MadHeader::default()
        };
        header.emit(&mut request);
        request[DATA_AT + 1] = 1;
        let answered = |kept: Kept| kept.answer(&mut request.clone());
        assert_eq!(answered(Kept::default()), Outcome::MustCount);
        let now = Instant::now();
        let (at, old) = (Some(now + KEPT), now.checked_sub(KEPT));
        let sums = Some(COUNTED);
        assert_eq!(answered(Kept { at, sums }), Outcome::Answered);
        assert_eq!(answered(Kept { at, sums: None }), Outcome::Unanswered);
        for sums in [sums, None] {
            assert_eq!(answered(Kept { at: old, sums }), Outcome::MustCount);
        }
        let waiting = Kept { at: old, sums }.answer_waiting(&mut request.clone());
        assert_eq!(waiting, Outcome::Answered);
        // What needs no sums is answered without.
        request[DATA_AT + 1] = 2;
        assert_eq!(Kept::default().answer(&mut request), Outcome::Answered);
    }

    #[test]
    fn what_processes_tell_is_summed_by_name() {
        let text = |sent: u64| format!("device x\nport port_xmit_data {sent}\nport new 9\nend\n");
        assert_eq!(sums(&[text(3), text(4)])[0], 7);
    }
}
