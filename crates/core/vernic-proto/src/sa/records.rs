//! Datagrams of the client: how requests are made and answers read.

use vernic_wire::cm::GSI_QKEY;
use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::sa::{
    CLASS_VERSION, DATA_LEN, InformInfo, McMemberRecord, PathComponents, PathRecord, SaAttribute,
    SaHeader, SaMad, SaStatus, Selected, ServiceComponents, ServiceRecord,
};
use vernic_wire::smp::{MadStatus, TrapNumber};
use vernic_wire::{Lid, Qpn, Rmpp};

use super::params::{PathQuery, SaError, SaPort};
use crate::mad::MadAddress;

/// Bits of the status that all classes share.
const COMMON_STATUS: u16 = 0xFF;
/// Where records begin in a datagram.
const DATA_AT: usize = MAD_LEN - DATA_LEN;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) attribute: SaAttribute,
    pub(super) component_mask: u64,
    pub(super) data: [u8; DATA_LEN],
}

impl Request {
    pub(super) fn new(method: Method, attribute: SaAttribute, mask: u64, record: &[u8]) -> Self {
        let mut data = [0; DATA_LEN];
        let len = record.len().min(DATA_LEN);
        data[..len].copy_from_slice(&record[..len]);
        Self { method, attribute, component_mask: mask, data }
    }

    pub(super) fn path(query: &PathQuery) -> Self {
        let mut mask = PathComponents::SGID
            | PathComponents::DGID
            | PathComponents::PKEY
            | PathComponents::REVERSIBLE
            | PathComponents::PATH_COUNT;
        mask.set(PathComponents::SERVICE_ID, query.service_id.is_some());
        mask.set(PathComponents::SERVICE_LEVEL, query.service_level.is_some());
        mask.set(PathComponents::TRAFFIC_CLASS, query.traffic_class.is_some());
        let record = PathRecord {
            sgid: query.sgid,
            dgid: query.dgid,
            pkey: query.pkey,
            reversible: true,
            path_count: 1,
            service_id: query.service_id.unwrap_or_default(),
            service_level: query.service_level.unwrap_or_default(),
            traffic_class: query.traffic_class.unwrap_or_default(),
            ..PathRecord::default()
        };
        let mut bytes = [0; PathRecord::LEN];
        record.emit(&mut bytes);
        Self::new(Method::GET, SaAttribute::PATH_RECORD, mask.bits(), &bytes)
    }

    pub(super) fn member(method: Method, record: &McMemberRecord, mask: u64) -> Self {
        let mut bytes = [0; McMemberRecord::LEN];
        // What is not asked for is 0, selectors too.
        let record = McMemberRecord { life_time: Selected::default(), ..*record };
        record.emit(&mut bytes);
        Self::new(method, SaAttribute::MC_MEMBER_RECORD, mask, &bytes)
    }

    pub(super) fn service(method: Method, record: &ServiceRecord) -> Self {
        let key = ServiceComponents::SERVICE_ID | ServiceComponents::GID | ServiceComponents::PKEY;
        let mask = if method == Method::DELETE { key } else { ServiceComponents::all() };
        let mut bytes = [0; ServiceRecord::LEN];
        record.emit(&mut bytes);
        Self::new(method, SaAttribute::SERVICE_RECORD, mask.bits(), &bytes)
    }

    /// A subscription to notices of one number, of all LIDs and kinds; or its end.
    pub(super) fn inform(number: TrapNumber, subscribe: bool) -> Self {
        let info = InformInfo {
            lid_begin: Lid(InformInfo::ANY),
            lid_end: Lid(InformInfo::ANY),
            is_generic: 1,
            subscribe: u8::from(subscribe),
            notice_type: InformInfo::ANY,
            trap_number: number.0,
            // Who subscribes does not say its queue pair; who ends it does (IBTA 13.4.8.3).
            qpn: if subscribe { Qpn::SMI } else { Qpn::GSI },
            response_time: RESPONSE_TIME,
            producer_type: InformInfo::ANY_PRODUCER,
            ..InformInfo::default()
        };
        let mut bytes = [0; InformInfo::LEN];
        info.emit(&mut bytes);
        Self::new(Method::SET, SaAttribute::INFORM_INFO, 0, &bytes)
    }

    pub(super) fn to_mad(self, transaction: u32) -> Vec<u8> {
        let mad = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            mgmt_class: MgmtClass::SUBNET_ADMIN,
            class_version: CLASS_VERSION,
            method: self.method,
            transaction_id: transaction.into(),
            attribute_id: self.attribute.0,
            ..MadHeader::default()
        };
        let sa = SaHeader { component_mask: self.component_mask, ..SaHeader::default() };
        let mut bytes = vec![0; MAD_LEN];
        SaMad { mad, rmpp: Rmpp::default(), sa, data: self.data }.emit(&mut bytes);
        bytes
    }
}

/// How long we take to answer a report, as exponent: 1.07 s.
const RESPONSE_TIME: u8 = 18;

/// Where requests go.
pub(super) fn address_of(port: &SaPort) -> MadAddress {
    MadAddress {
        qpn: Qpn::GSI,
        qkey: GSI_QKEY,
        lid: port.sm_lid,
        service_level: port.sm_sl,
        ..MadAddress::default()
    }
}

/// An answer: its headers, and its records.
pub(super) fn read(message: &[u8]) -> Result<(MadHeader, SaHeader, &[u8]), SaError> {
    let parsed = SaMad::parse(message).map_err(|_| SaError::Malformed)?;
    let (common, own) = (parsed.mad.status & COMMON_STATUS, SaStatus::of(parsed.mad.status));
    if own != SaStatus::SUCCESS {
        return Err(SaError::Refused(own));
    }
    if common != 0 {
        return Err(SaError::NotUnderstood(MadStatus(common)));
    }
    Ok((parsed.mad, parsed.sa, &message[DATA_AT..]))
}
