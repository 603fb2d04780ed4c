//! Automatic path migration (IBTA 17.2.8): the change to the alternate path that the attributes
//! have, when retries are used up, when the peer has changed, or when the application says so.
//!
//! The owner knows the addresses of both paths. A packet that has those of the path goes to
//! [`Qp::handle_packet`]; before one that does not, the owner asks [`Qp::follows`] whether it is
//! the sign that the peer has migrated. Whoever decides, [`Host::change_path`] tells the owner that
//! the alternate path is the path now.
//!
//! Parts of messages ([`MessagePart`](crate::MessagePart)) have no MigReq: what goes through memory
//! arms nobody, and has no path to lose.

use super::Qp;
use super::limit::Needs;
use super::machine::{Machine, each};
use crate::cx::Cx;
use crate::event::QpEvent;
use crate::host::Host;
use crate::state::{PathMigState, QpAttr};
use crate::time::Time;
use crate::transport::Transport;
use vernic_wire::{Packet, Pkey};

impl Qp {
    /// Sets the partition on the alternate path: what the row `alt_pkey_index` of the P_Key table
    /// of the port `alt_port` has. The default partition if never called; a reset forgets it.
    pub fn set_alternate_pkey(&mut self, pkey: Pkey) {
        self.migration.pkey = pkey;
    }

    /// Whether a packet is to be handled that did not come by the path: it says that the peer has
    /// migrated, and this queue pair has followed it. `by_alternate` says that the packet has the
    /// addresses of the alternate path.
    ///
    /// A peer that has changed to any other path is an event, once for each alternate path.
    #[cold]
    pub fn follows(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        by_alternate: bool,
        host: &mut impl Host,
    ) -> bool {
        let state = self.attr.path_mig_state;
        if state == PathMigState::Migrated
            || !packet.bth().migreq
            || self.admit(packet, self.migration.pkey).is_err()
        {
            return false;
        }
        if by_alternate {
            self.migrate_and_tell(now, host);
        } else if state == PathMigState::Armed {
            self.refuse_migration(host);
        }
        by_alternate
    }

    /// The port of the path is down: a queue pair that is armed need not wait for its retries to
    /// tell it, if its alternate path is by another port.
    pub fn leave_port(&mut self, now: Time, host: &mut impl Host) {
        let QpAttr { port, alt_port, path_mig_state, .. } = self.attr;
        if self.takes(true) && path_mig_state == PathMigState::Armed && port != alt_port {
            self.migrate_and_tell(now, host);
        }
    }

    /// Notes what a packet by the path says of the peer's state.
    #[cold]
    pub(super) fn note_migreq(&mut self, migreq: bool, now: Time, host: &mut impl Host) {
        match (self.attr.path_mig_state, migreq) {
            (PathMigState::Rearm, false) => self.attr.path_mig_state = PathMigState::Armed,
            (PathMigState::Armed, true) if host.is_alternate_alike() => {
                self.migrate_and_tell(now, host);
            }
            (PathMigState::Armed, true) => self.refuse_migration(host),
            _ => {}
        }
    }

    /// The peer has migrated, and not to the alternate path of this end.
    fn refuse_migration(&mut self, host: &mut impl Host) {
        if !core::mem::replace(&mut self.migration.has_failed, true) {
            host.event(QpEvent::PathMigrationFailed);
        }
    }

    /// The application asks for a state that
    /// [`Migration::wanted`](crate::migration::Migration::wanted) has admitted.
    pub(super) fn set_migration(&mut self, to: PathMigState, now: Time, host: &mut impl Host) {
        match (self.attr.path_mig_state, to) {
            (PathMigState::Armed, PathMigState::Migrated) => self.migrate(now, host),
            _ => self.attr.path_mig_state = to,
        }
        self.migration.has_failed = false;
        if to == PathMigState::Rearm {
            // The bit MigReq of what leaves tells the peer of this end's state.
            self.send_packets_alone(Needs::PACKETS_TO_MIGRATE);
        }
    }

    /// Migrates though the application did not say so: that is an event.
    pub(super) fn migrate_and_tell(&mut self, now: Time, host: &mut impl Host) {
        self.migrate(now, host);
        host.event(QpEvent::PathMigrated);
    }

    fn migrate(&mut self, now: Time, host: &mut impl Host) {
        self.end_run(now, host);
        self.attr.take_alternate();
        self.pkey = self.migration.pkey;
        self.apply_limit(now);
        host.change_path();
        let cx = cx!(self, now);
        each!(&mut self.machine, m => m.path_changed(cx));
    }
}
