//! Subscriptions to notices, and the Reports that they bring (IBTA 13.4.8.3, 13.4.11).

use vernic_proto::mad::MadAddress;
use vernic_wire::mad::{MadHeader, Method, MgmtClass};
use vernic_wire::sa::{self, InformInfo, SaAttribute, SaHeader, SaMad};
use vernic_wire::smp::{Notice, NoticeKind, TrapNumber};
use vernic_wire::{Gid, Lid, Qpn, Rmpp};

use super::{Manager, Via};

/// Subscriptions at most.
const MOST: usize = 1 << 14;
/// A port came into the subnet, or left it; a group was made, or ended (IBTA 14.2.5.1).
pub(super) const PORT_IN: u16 = 64;
pub(super) const PORT_OUT: u16 = 65;
pub(super) const GROUP_MADE: u16 = 66;
pub(super) const GROUP_ENDED: u16 = 67;
/// Where the GID of these notices is in the details: behind 6 reserved bytes.
const GID_AT: usize = 6;

/// All subscriptions.
#[derive(Debug, Default)]
pub(super) struct Notices {
    subscriptions: Vec<(InformInfo, MadAddress)>,
}

fn is_same(one: &(InformInfo, MadAddress), info: &InformInfo, from: &MadAddress) -> bool {
    let of = |info: &InformInfo| (info.gid, info.lid_begin, info.trap_number, info.notice_type);
    one.1.lid == from.lid && one.0.qpn == info.qpn && of(&one.0) == of(info)
}

impl Notices {
    /// Takes a subscription, or ends it. Returns whether there was room.
    pub(super) fn set(&mut self, info: &InformInfo, from: MadAddress) -> bool {
        self.subscriptions.retain(|one| !is_same(one, info, &from));
        let has_room = self.subscriptions.len() < MOST;
        if info.subscribe == 1 && has_room {
            self.subscriptions.push((*info, from));
        }
        has_room || info.subscribe != 1
    }
    /// Ends the subscriptions of a LID that is gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(Lid) -> bool) {
        self.subscriptions.retain(|(_, from)| is_there(from.lid));
    }
    /// Returns who wants to know of a notice.
    fn subscribers(&self, notice: &Notice) -> Vec<MadAddress> {
        let wants = |info: &InformInfo| {
            let any = |value: u16, is: u16| value == InformInfo::ANY || value == is;
            any(info.trap_number, notice.number.0)
                && any(info.notice_type, u16::from(notice.kind.0))
                && (info.lid_begin.0 == InformInfo::ANY
                    || info.lid_begin == Lid(0)
                    || (info.lid_begin..=info.lid_end.max(info.lid_begin)).contains(&notice.issuer))
        };
        let wanting = self.subscriptions.iter().filter(|(info, _)| wants(info));
        let to = |(info, from): &(InformInfo, MadAddress)| {
            let qpn = if info.qpn == Qpn::SMI { Qpn::GSI } else { info.qpn };
            MadAddress { qpn, ..*from }
        };
        wanting.map(to).collect()
    }
}

impl Manager {
    /// Tells subscribers of a notice.
    pub(super) fn report(&mut self, notice: &Notice) {
        for to in self.notices.subscribers(notice) {
            let transaction_id = self.next_own_id();
            let mut report = SaMad {
                mad: MadHeader {
                    base_version: MadHeader::BASE_VERSION,
                    mgmt_class: MgmtClass::SUBNET_ADMIN,
                    class_version: sa::CLASS_VERSION,
                    method: Method::REPORT,
                    transaction_id,
                    attribute_id: SaAttribute::NOTICE.0,
                    ..MadHeader::default()
                },
                rmpp: Rmpp::default(),
                sa: SaHeader::default(),
                data: [0; sa::DATA_LEN],
            };
            notice.emit(&mut report.data);
            let mut mad = vec![0; SaMad::LEN];
            report.emit(&mut mad);
            self.send(Via::Admin, to, mad, self.config.timeout_ms);
        }
    }
    /// Tells subscribers that a port or a group is new, or gone.
    pub(super) fn report_gid(&mut self, number: u16, gid: Gid) {
        let issuer = self.own_lid();
        let mut details = [0; Notice::DETAILS_LEN];
        details[GID_AT..GID_AT + 16].copy_from_slice(&gid.0);
        self.report(&Notice {
            generic: true,
            kind: NoticeKind::SUBNET_MANAGEMENT,
            // A class manager.
            producer: 4,
            number: TrapNumber(number),
            issuer,
            toggle: false,
            count: 0,
            details,
        });
    }
    /// The LID of the manager's port.
    pub(super) fn own_lid(&self) -> Lid {
        self.lids.get(&self.config.guid).copied().unwrap_or(Lid(0))
    }
}
