//! Path migration of UC, where nothing is answered: by the application, or by the peer.

use super::*;
use crate::event::QpEvent;
use crate::state::PathMigState;

impl Rig {
    fn set_migration(&mut self, to: PathMigState) {
        let attr = QpAttr { path_mig_state: to, alt_port: PortNum(2), ..*self.qp.attr() };
        let alternate = match to {
            PathMigState::Rearm => AttrMask::ALT_PATH,
            _ => AttrMask::empty(),
        };
        let mask = alternate | AttrMask::PATH_MIG_STATE;
        self.qp.modify(&attr, mask, NOW, &mut self.host).unwrap();
    }

    /// A packet as this end would send it with MigReq so.
    fn packet(&mut self, migreq: bool) -> Vec<u8> {
        self.post(1, SendOp::Write(Remote { addr: BASE, rkey: RKEY }), 0);
        let mut bytes = self.poll().unwrap();
        bytes[1] = bytes[1] & !0x40 | u8::from(migreq) << 6;
        bytes
    }
}

#[test]
fn each_end_arms_the_other_and_either_migrates() {
    let mut t = Rig::new();
    t.set_migration(PathMigState::Rearm);
    let packet = t.packet(false);
    t.take(&packet);
    assert_eq!(t.qp.attr().path_mig_state, PathMigState::Armed);

    // The application changes the path; the peer hears of it by the next packet.
    let waiting = t.packet(true);
    t.set_migration(PathMigState::Migrated);
    assert_eq!((t.host.paths_changed, t.host.events.len()), (1, 0));
    t.post(2, SendOp::Write(Remote { addr: BASE, rkey: RKEY }), 0);
    let sent = t.poll().unwrap();
    assert!(Packet::parse(&sent).unwrap().bth().migreq);

    let mut peer = Rig::new();
    peer.set_migration(PathMigState::Rearm);
    let packet = peer.packet(false);
    peer.take(&packet);
    let sent = Packet::parse(&waiting).unwrap();
    assert!(peer.qp.follows(NOW, &sent, true, &mut peer.host));
    assert_eq!(peer.host.events, [QpEvent::PathMigrated]);
    assert_eq!((peer.qp.attr().port, peer.host.paths_changed), (PortNum(2), 1));
}
