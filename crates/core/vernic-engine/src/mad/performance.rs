//! The agent of performance management: what all processes of the host have counted on the device
//! (IBTA chapter 16).
//!
//! The counters are those of `ports/1/counters` in sysfs: the sums over the processes of this user
//! that have the device open now. Nothing can be set, since each process counts by itself.

use std::time::Duration;

use vernic_wire::PortNum;
use vernic_wire::mad::{MAD_LEN, MadHeader, Method};
use vernic_wire::pma::{
    CLASS_VERSION, ClassPortInfo, DATA_AT, PmAttribute, PortCounters, PortCountersExtended,
};
use vernic_wire::smp::MadStatus;

/// How long all processes together are waited for: one that runs answers in a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

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

/// Turns a request into its answer. Returns false if there is none: the method has no answer, or a
/// process did not tell its counters in time.
pub(super) fn answer(device: &str, mad: &mut [u8; MAD_LEN]) -> bool {
    answer_with(mad, || {
        let texts = vernic_io::status::ask_all(device, PATIENCE);
        let texts = texts.inspect_err(|error| {
            tracing::warn!(device, %error, "a process does not tell its counters");
        });
        texts.ok().map(|texts| sums(&texts))
    })
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
    fn what_processes_tell_is_summed_by_name() {
        let text = |sent: u64| format!("device x\nport port_xmit_data {sent}\nport new 9\nend\n");
        assert_eq!(sums(&[text(3), text(4)])[0], 7);
    }
}
