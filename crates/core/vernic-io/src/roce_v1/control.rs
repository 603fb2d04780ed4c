//! What the control path and the link share: the netdevs whose frames are received, and the
//! stations that frames are sent to.
//!
//! A netdev's sockets are opened when a path by RoCEv1 is first opened on it. So a device that uses
//! RoCEv2 alone has none. The link takes new sockets at its next receive, since opening counts as a
//! change of the slots.
//!
//! Limits: [`MAX_STATIONS`], [`MAX_ANSWERED`], [`MAX_REMEMBERED`]. Paths name a station by its
//! number, so the station of a queue pair or an address handle is never forgotten. Anybody can ask
//! for an answer, so the stations of answers have numbers of their own, which are used again.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vernic_sys::{self as sys, Instruction, OwnFd};
use vernic_wire::net::{EtherType, MacAddr};
use vernic_wire::{Gid, Qpn};

use crate::address::{Address, LocalAddr};
use crate::buffer;
use crate::host::SlotTable;
use crate::link::{NoPath, OpenPath, PathRequest};
use crate::netdev;
use crate::nexthop::{HardwareAddress, hardware_address};
use crate::path::{PathId, TxPath};
use crate::roce_v1::{filter, mac};

/// Most stations, each a netdev with a source and a destination address: as many as hosts on one
/// Ethernet that a device is likely to have queue pairs to.
pub(crate) const MAX_STATIONS: usize = 1 << 16;

/// Most stations that only answers go to; of more, the number of the one that was longest not asked
/// for is used again. More than [`MAX_REMEMBERED`], so that each one remembered is one of them.
const MAX_ANSWERED: usize = 1024;
const _: () = assert!(MAX_ANSWERED > MAX_REMEMBERED);

/// How long opening a path waits for a neighbour's address: what Linux gives its own verbs.
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(1);

/// How long requests that may not wait take the station of an earlier request for the same
/// destination: those are datagrams of connection management, one after the other, and finding a
/// station anew takes some system calls.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Most destinations remembered; of more, the oldest is forgotten.
const MAX_REMEMBERED: usize = 256;

/// How often is looked whether the address has come.
const NEIGHBOUR_LOOK: Duration = Duration::from_micros(500);

/// The purpose of a packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Packets of this process's queue pairs, and of multicast groups.
    Own,
    /// Packets for QP1. They come to one of the host's processes, which hands them over.
    Shared,
    /// Multicast packets that this host sends.
    OwnGroups,
}

/// A packet socket of a netdev.
#[derive(Debug)]
pub(crate) struct FrameSocket {
    pub(crate) purpose: Purpose,
    pub(crate) ifindex: u32,
    pub(crate) fd: OwnFd,
}

/// Where the frames of a path go, and where from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Station {
    /// The netdev.
    pub(crate) ifindex: u32,
    pub(crate) src: MacAddr,
    /// `None` if it [follows from the GID](mac::of_gid) that a path leads to. So all such GIDs of a
    /// netdev, made-up ones as well, are one station.
    pub(crate) dst: Option<MacAddr>,
}

/// A destination and its station, which is `None` for an address of this host.
#[derive(Debug)]
struct Remembered {
    ifindex: u32,
    remote: Gid,
    station: Option<u32>,
    until: Instant,
}

#[derive(Debug, Default)]
struct State {
    /// The netdevs with sockets.
    netdevs: Vec<u32>,
    /// Sockets that the link has not taken yet.
    fresh: Vec<FrameSocket>,
    stations: Vec<Station>,
    /// The stations that only answers go to, each with the time of its last request in requests.
    answered: Vec<(Station, u64)>,
    requests: u64,
    /// The destinations of the last requests, the newest last.
    remembered: VecDeque<Remembered>,
}

/// The state of RoCEv1 that a link and its paths share.
#[derive(Debug)]
pub(crate) struct Shared {
    slots: Arc<SlotTable>,
    socket_bytes: u32,
    is_used: AtomicBool,
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(slots: Arc<SlotTable>, socket_bytes: u32) -> Self {
        Self { slots, socket_bytes, is_used: AtomicBool::new(false), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any path was opened, so that packets by RoCEv1 may be in a batch.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Returns the sockets that were opened since the last call.
    pub(crate) fn take_fresh(&self) -> Vec<FrameSocket> {
        std::mem::take(&mut self.state().fresh)
    }

    /// Adds the stations that `known` does not have yet.
    pub(crate) fn copy_stations(&self, known: &mut Vec<Station>) {
        let state = self.state();
        known.extend(state.stations.get(known.len()..).unwrap_or_default());
    }

    /// Returns the station of a number that [`copy_stations`](Self::copy_stations) does not yield:
    /// one that answers go to.
    pub(crate) fn answered(&self, number: u32) -> Option<Station> {
        let at = (number as usize).checked_sub(MAX_STATIONS)?;
        self.state().answered.get(at).map(|(station, _)| *station)
    }

    /// Receives the frames of a netdev from now on. Returns whether it did not before.
    ///
    /// # Errors
    /// The system's error; `EPERM` without `CAP_NET_RAW`.
    pub(crate) fn open_netdev(&self, ifindex: u32) -> io::Result<bool> {
        let mut state = self.state();
        if state.netdevs.contains(&ifindex) {
            return Ok(false);
        }
        let own = filter::of_slots(&self.slots.own_slots(), false);
        let own = self.socket(Purpose::Own, ifindex, EtherType::ROCE_V1.0, &own)?;
        let gsi = filter::of_qpn(Qpn::GSI);
        let shared = self.socket(Purpose::Shared, ifindex, EtherType::ROCE_V1.0, &gsi)?;
        share(&shared);
        state.fresh.extend([own, shared]);
        state.netdevs.push(ifindex);
        drop(state);
        self.is_used.store(true, Ordering::Release);
        self.slots.changed();
        tracing::debug!(ifindex, "RoCEv1 is received");
        Ok(true)
    }

    /// Opens the socket for multicast packets that this host sends by a netdev.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open_own_groups(&self, ifindex: u32) -> io::Result<FrameSocket> {
        let all = libc::ETH_P_ALL as u16;
        self.socket(Purpose::OwnGroups, ifindex, all, &filter::of_own_groups())
    }

    fn socket(
        &self,
        purpose: Purpose,
        ifindex: u32,
        ethertype: u16,
        program: &[Instruction],
    ) -> io::Result<FrameSocket> {
        let fd = sys::frame_socket()?;
        // Before the socket is bound: nothing else comes in between.
        sys::attach_filter(fd.as_fd(), program)?;
        sys::enable_frame_details(fd.as_fd())?;
        buffer::set_receive(fd.as_fd(), self.socket_bytes);
        sys::bind_frames(fd.as_fd(), ifindex, ethertype)?;
        Ok(FrameSocket { purpose, ifindex, fd })
    }

    /// Opens a path by RoCEv1. A path to an address of this host is one of RoCEv2: no Ethernet
    /// returns a frame to its sender.
    pub(crate) fn open_path(
        &self,
        to: &PathRequest,
        by_udp: impl FnOnce() -> Result<OpenPath, NoPath>,
    ) -> Result<OpenPath, NoPath> {
        let remembered = if to.may_wait { None } else { self.remembered(to) };
        let station = match remembered {
            Some(station) => station,
            None => self.find(to)?,
        };
        let Some(number) = station else { return by_udp() };
        let mut path = TxPath::new(to.local, to.remote, PathId::of_frames(number), 0)
            .with_traffic_class(to.traffic_class)
            .with_flow(to.flow_label as u16);
        if to.hop_limit != 0 {
            path = path.with_hop_limit(to.hop_limit);
        }
        let (remote, local) = (Address::RoceV1(to.remote), Address::RoceV1(to.local));
        Ok(OpenPath { path, remote, local })
    }

    fn remembered(&self, to: &PathRequest) -> Option<Option<u32>> {
        let state = self.state();
        let is_it =
            |known: &&Remembered| (known.ifindex, known.remote) == (to.netdev_index, to.remote);
        let known = state.remembered.iter().rev().find(is_it)?;
        (Instant::now() < known.until).then_some(known.station)
    }

    /// Finds the number of the station that a request is for, and remembers it. `None` for an
    /// address of this host.
    fn find(&self, to: &PathRequest) -> Result<Option<u32>, NoPath> {
        let station = self.look_up(to)?;
        let (ifindex, remote) = (to.netdev_index, to.remote);
        let until = Instant::now() + REMEMBERED;
        let remembered = &mut self.state().remembered;
        if remembered.len() == MAX_REMEMBERED {
            remembered.pop_front();
        }
        remembered.push_back(Remembered { ifindex, remote, station, until });
        Ok(station)
    }

    fn look_up(&self, to: &PathRequest) -> Result<Option<u32>, NoPath> {
        let ifindex = to.netdev_index;
        if !to.remote.is_multicast() && netdev::is_local(to.remote.to_ip()) {
            return Ok(None);
        }
        self.open_netdev(ifindex).map_err(|error| NoPath::Frames(os_error(&error)))?;
        let src = mac_of(ifindex).map_err(|error| NoPath::Frames(os_error(&error)))?;
        let dst = match mac::of_gid(to.remote) {
            Some(_) => None,
            None => Some(find_neighbour(to)?),
        };
        let (station, mut state) = (Station { ifindex, src, dst }, self.state());
        match to.may_wait {
            true => state.number_of(station).map(Some),
            false => Ok(Some(state.answer_number_of(station))),
        }
    }
}

impl State {
    /// Returns the number of a station for as long as the device is open.
    fn number_of(&mut self, station: Station) -> Result<u32, NoPath> {
        let known = self.known(station);
        if known.is_none() && self.stations.len() == MAX_STATIONS {
            return Err(NoPath::TooManyStations);
        }
        Ok(known.unwrap_or_else(|| {
            self.stations.push(station);
            self.stations.len() as u32 - 1
        }))
    }

    /// Returns the number of a station for an answer, which leaves at once.
    fn answer_number_of(&mut self, station: Station) -> u32 {
        if let Some(known) = self.known(station) {
            return known;
        }
        self.requests += 1;
        let entry = (station, self.requests);
        let known = self.answered.iter().position(|(known, _)| *known == station);
        let at = match known {
            None if self.answered.len() < MAX_ANSWERED => {
                self.answered.push(entry);
                self.answered.len() - 1
            }
            known => {
                let last = |at: &usize| self.answered[*at].1;
                let at = known.or_else(|| (0..MAX_ANSWERED).min_by_key(last)).unwrap_or(0);
                self.answered[at] = entry;
                at
            }
        };
        (MAX_STATIONS + at) as u32
    }

    fn known(&self, station: Station) -> Option<u32> {
        self.stations.iter().position(|known| *known == station).map(|at| at as u32)
    }
}

/// Whether this process may open packet sockets.
///
/// # Errors
/// The system's error, `EPERM` without `CAP_NET_RAW`.
pub fn may_use_roce_v1() -> io::Result<()> {
    sys::may_open_frame_socket()
}

fn os_error(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Shares packets with the sockets of other processes for the same netdev: each comes to one of
/// them, by chance, so that repetitions come to different ones.
fn share(socket: &FrameSocket) {
    // Groups of a network namespace are told apart by 16 bits.
    let group = u32::from(EtherType::ROCE_V1.0).wrapping_add(socket.ifindex) & 0xFFFF;
    let request = (libc::PACKET_FANOUT_RND << 16 | group) as i32;
    let fd = socket.fd.as_fd();
    if let Err(error) = sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, request) {
        tracing::debug!(
            ifindex = socket.ifindex, %error,
            "each process that uses RoCEv1 gets its own copy of datagrams for QP1"
        );
    }
}

/// Returns the Ethernet address of a netdev.
fn mac_of(ifindex: u32) -> io::Result<MacAddr> {
    let found = sys::interfaces()?.into_iter().find(|i| i.index == ifindex);
    let mac = found.and_then(|i| i.mac).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV));
    mac.map(MacAddr)
}

/// Asks for the Ethernet address of the destination. Waits for the answer if the request allows
/// that.
fn find_neighbour(to: &PathRequest) -> Result<MacAddr, NoPath> {
    let (local, ip): (_, IpAddr) =
        (LocalAddr::new(to.local.to_ip(), to.netdev_index), to.remote.to_ip());
    let until = Instant::now() + NEIGHBOUR_WAIT;
    // Bounded by the time.
    loop {
        match hardware_address(local, to.netdev_index, ip) {
            HardwareAddress::Known(mac) => return Ok(mac),
            HardwareAddress::NotOnLink => return Err(NoPath::NotOnLink),
            HardwareAddress::Asked if to.may_wait && Instant::now() < until => {
                std::thread::sleep(NEIGHBOUR_LOOK);
            }
            HardwareAddress::Asked => return Err(NoPath::NoNeighbour),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(n: u32) -> Station {
        let [a, b, c, d] = n.to_be_bytes();
        Station { ifindex: 1, src: MacAddr([2; 6]), dst: Some(MacAddr([2, 0, a, b, c, d])) }
    }

    #[test]
    fn a_station_has_one_number() {
        let shared = Shared::new(SlotTable::with_scope("station").unwrap(), 4096);
        let number_of = |n| shared.state().number_of(station(n)).unwrap();
        assert_eq!([1, 2, 1].map(number_of), [0, 1, 0]);
        assert_eq!(shared.state().answer_number_of(station(2)), 1);
        let mut known = vec![station(1)];
        shared.copy_stations(&mut known);
        assert_eq!(known, [station(1), station(2)]);
        shared.copy_stations(&mut known);
        assert_eq!(known.len(), 2);
    }

    #[test]
    fn answers_to_strangers_take_no_room_from_queue_pairs() {
        let shared = Shared::new(SlotTable::with_scope("answers").unwrap(), 4096);
        shared.state().number_of(station(0)).unwrap();
        let frequent = shared.state().answer_number_of(station(1));
        for n in 2..70_000 {
            let number = shared.state().answer_number_of(station(n));
            assert_eq!(shared.answered(number), Some(station(n)));
            if n % 1000 == 0 {
                // One that is asked for again keeps its number.
                assert_eq!(shared.state().answer_number_of(station(1)), frequent);
            }
        }
        assert_eq!(shared.state().answered.len(), MAX_ANSWERED);
        assert_eq!(shared.state().number_of(station(70_000)), Ok(1));
        assert_eq!(shared.answered(1), None, "the link has the stations of queue pairs");
    }
}
