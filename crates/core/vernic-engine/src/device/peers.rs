//! Peers: processes of this host that queue pairs lead to, and peers that send what they must not.

use std::net::IpAddr;

use vernic_io::Address;
use vernic_io::host::{PeerProcess, Slot};
use vernic_proto::{DropReason, ErrorClass};
use vernic_wire::Qpn;

use crate::counters::Counted;
use crate::device::alarms::Offence;
use crate::device::opened::Device;
use crate::local::control::MAX_WANTED;
use crate::local::watch::{HostProcess, PeerLocation, WatchedPeer};
use crate::support::events::lock;

impl Device {
    /// Notes that a queue pair is connected to `peer` at `ip`, whose process was found to be
    /// `found`.
    pub(crate) fn watch_peer(&self, ip: IpAddr, peer: Qpn, found: &PeerLocation) {
        let pid = match found {
            PeerLocation::NotHere => return,
            PeerLocation::Perhaps => None,
            // The peer is in this process: it ends with this process, or in order.
            PeerLocation::Here(process) if process.pid() == std::process::id() => return,
            PeerLocation::Here(process) => Some(process.pid()),
        };
        if self.watch().add(WatchedPeer::new(ip, Slot::of(peer), pid), self.now()) {
            self.waker().wake();
        }
    }

    /// Returns what was found out about a process by asking it.
    pub(crate) fn host_process(&self, process: &PeerProcess) -> HostProcess {
        let page = process.receiver_page.and_then(|id| self.slots().receiver_page_of(id));
        HostProcess::new(process.pid, page)
    }

    /// Plans to connect to the process `pid` of this host, unless that was done. The slot's own
    /// socket says that the process has `slot`.
    pub(crate) fn want_local_peer(&self, slot: Slot, pid: u32) {
        let Some(local) = &self.local() else { return };
        let mut wanted = lock(&local.wanted);
        if wanted.contains(&(slot, pid)) || wanted.len() == MAX_WANTED {
            return;
        }
        wanted.push((slot, pid));
        local.ring();
        drop(wanted);
        self.waker().wake();
    }

    /// Whether the process `pid`, which has `slot`, is a local peer. Must not be called while
    /// holding the lane.
    pub(crate) fn is_local_peer(&self, slot: Slot, pid: u32) -> bool {
        let Some(local) = &self.local() else { return false };
        let peers = lock(&local.connections);
        let known = peers.as_ref().and_then(|peers| peers.find(slot));
        known.is_some_and(|local_peer| local_peer.pid() == pid)
    }
}

impl Device {
    /// Counts a dropped packet, and the offence of its sender if it was one.
    #[cold]
    pub(crate) fn drop_from(&self, src: Address, reason: DropReason) {
        self.counts().drop_packet(reason);
        if let Some(offence) = Offence::of_drop(reason) {
            if offence == Offence::BadKey {
                self.counts().note(Counted::BadKey);
            }
            self.note_offence(src.ip(), offence);
        }
    }

    /// Counts a request that was refused for good.
    #[cold]
    pub(crate) fn note_nak(&self, src: Address, class: ErrorClass) {
        self.counts().note(Counted::FatalNakSent);
        self.note_offence(src.ip(), Offence::FatalNak);
        if Offence::is_of_key(class) {
            self.counts().note(Counted::BadKey);
            self.note_offence(src.ip(), Offence::BadKey);
        }
    }
}
