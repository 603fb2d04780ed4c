//! Process slots: how processes of one host share the 24 bits of queue pair numbers, and find
//! each other.
//!
//! A QPN is a slot (10 high bits) and an index (14 low bits). A process takes a slot by binding
//! the abstract Unix socket `\0vernic/<slot>`. Abstract names live in the network namespace, as
//! IP addresses do, and vanish with the process: there is no file, no lock, no stale state.
//!
//! The name holds no GID or netdev: a slot is taken for all addresses of the namespace. So a
//! packet's QPN alone names its process, whatever address the packet came to, and a process may add
//! addresses without taking slots again. 1022 slots of 16,384 QPs are enough for a host. Slot 0
//! (QPNs 0 and 1 are SMI and GSI) and slot 1023 (0xFFFFFF means multicast) are never taken. The
//! search for a free slot begins at random, so that a process that restarts gets other QPNs than
//! before.
//!
//! A slot's four low bits are its [class](Slot::class). A table takes slots of one class while
//! there are free ones, and the tables of a process have different classes. Senders give each class
//! UDP source ports of its own ([`Slot::flow`]). So no flow is for two links of a process, which
//! has one link for each time that it opened a device.
//!
//! Each slot has three sockets:
//! - `\0vernic/<slot>` answers questions: "do you serve this address, and on which private UDP
//!   port?". Peers on one host thus need not use port 4791. With the answer comes the file of an
//!   [`ReceiverPage`], which says how full the sockets behind the port are.
//! - `\0vernic/<slot>/queue` takes connections of processes that hand over packets which reached
//!   the wrong process, each with a queue in memory (`handoff.rs`).
//!   the wrong process, each with a queue in memory (`handoff.rs`).
//! - `\0vernic/<slot>/packets` takes such packets one by one.
//!
//! A fourth, `\0vernic/<slot>/neighbour`, exists if packets go through memory (`local/`).
//!
//! A service of connection management has a name of the same kind, by which its listener is found
//! (`slots/name.rs`).
//!
//! All these sockets heed only processes of the same user, as the kernel names them
//! (`SO_PASSCRED`).
//!
//! A [`SlotTable`] belongs to one link; the engine shares it to claim slots and to look for peers.
//! [`SlotTable::query`] blocks, for a bounded time, and answers the questions of others meanwhile.
//! So two processes that ask each other at once both get an answer.

use std::fmt::{self, Write as _};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vernic_sys::random;
use vernic_sys::user;
use vernic_sys::{self as sys, ClosableFd, Gate, Origin, OwnFd};
use vernic_wire::Qpn;

use super::handoff::{self, HandoverResult, Head};
use super::receiver_page::{ReceiverPage, ReceiverPages};
use super::slot::Slot;

use crate::address::LocalAddr;
use crate::batch::RxPacket;
use crate::path::ReceiverPageId;

mod lookup;
mod message;
mod name;

pub use lookup::{Lookup, PeerProcess};
pub use name::{MAX_NAMES, NameError, ServiceName, ServiceScope};

use lookup::{Remembered, find_port};
use message::{Answer, MAX_MESSAGE_BYTES, Question};
use name::{Named, Server};

#[cfg(fuzzing)]
pub(crate) use message::parse_and_emit;

/// The reason why no slot could be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// All slots are taken.
    #[error(
        "all {} slots of this network namespace are taken: too many processes use RDMA on this \
         host; `ss -xl | grep vernic/` lists them", Slot::LAST.value()
    )]
    NoneFree,
    /// The operating system refused.
    #[error("cannot open the socket of a slot: {0}")]
    Os(#[from] io::Error),
    /// The [`SlotKeeper`] refused.
    #[error("the link has no place for more queue pairs: {0}")]
    Keeper(io::Error),
}

/// What must know of a slot before queue pairs have numbers in it: a fabric process, which brings
/// packets by slot.
pub trait SlotKeeper: Send + Sync + fmt::Debug {
    /// Takes a slot that no other process of this network namespace has. Returns false if somebody
    /// outside has it. May wait.
    ///
    /// # Errors
    /// No slot can be taken.
    fn take(&self, slot: Slot) -> io::Result<bool>;
}

/// Longest name of an abstract socket.
const MAX_NAME_BYTES: usize = 107;
/// The longest scope that leaves room for any name after it. The longest name is that of a service
/// on a link-local address, with 86 bytes.
const MAX_SCOPE_BYTES: usize = 20;
/// Most messages handled in one go, per socket.
const MAX_SERVED: usize = 32;
#[derive(Debug)]
struct Claim {
    slot: Slot,
    control: Arc<OwnFd>,
    packets: Arc<OwnFd>,
    door: Arc<OwnFd>,
}

/// The name of a socket, without allocation.
struct Name {
    bytes: [u8; MAX_NAME_BYTES],
    len: usize,
}

impl Name {
    fn new() -> Self {
        Self { bytes: [0; MAX_NAME_BYTES], len: 0 }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let to = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

#[derive(Debug, Default)]
struct State {
    claims: Vec<Claim>,
    /// A claimed slot that nobody was given yet.
    reserved: Option<Slot>,
    keeper: Option<Arc<dyn SlotKeeper>>,
    served: Vec<(LocalAddr, u16)>,
    lookups: Vec<Remembered>,
    names: Vec<Named>,
    servers: Vec<Server>,
}

impl State {
    /// The sockets that questions come to, and the slot that questions must name: `Slot::NONE` for
    /// a service.
    fn controls(&self) -> impl Iterator<Item = (&Arc<OwnFd>, Slot)> {
        let slots = self.claims.iter().map(|claim| (&claim.control, claim.slot));
        slots.chain(self.names.iter().filter_map(Named::control).map(|fd| (fd, Slot::NONE)))
    }
}

/// The slots of one link, and the link's knowledge of other processes of this host.
#[derive(Debug)]
pub struct SlotTable {
    state: Mutex<State>,
    /// Held by the thread that prepares a slot.
    preparing: Mutex<()>,
    /// The socket for questions that are not waited for, and for packets that are handed over.
    /// Closed with the table.
    ask: ClosableFd,
    generation: AtomicU64,
    /// One bit per slot, set if the slot is this table's.
    ours: [AtomicU64; (1 << Slot::BITS) / 64],
    receiver_pages: ReceiverPages,
    scope: String,
    /// The class of the table's slots, as long as a slot of this class is free.
    class: u16,
}

/// A socket of a table, as its link has it. It is closed when its slot or name is given back, even
/// if the link has not noticed yet.
#[derive(Debug)]
pub(crate) struct SharedFd {
    fd: Weak<OwnFd>,
    raw: RawFd,
}

impl SharedFd {
    fn of(fd: &Arc<OwnFd>) -> Self {
        Self { fd: Arc::downgrade(fd), raw: fd.as_raw_fd() }
    }

    /// The socket, unless it was given back.
    pub(crate) fn get(&self) -> Option<Arc<OwnFd>> {
        self.fd.upgrade()
    }

    /// Returns the descriptor's number: for polling only, since the socket may be closed.
    pub(crate) fn raw(&self) -> RawFd {
        self.raw
    }
}

/// All tables of this process: a slot of another link of the same process is found here. Locked
/// inside the fork gate only, so that no child inherits the lock held. A child finds its parent's
/// tables here, and leaves them alone.
static TABLES: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

/// An entry of `TABLES`.
struct Listed {
    origin: Origin,
    class: u16,
    table: Weak<SlotTable>,
}

/// Calls `f` with the list of tables. `f` opens and closes no descriptor, since it runs inside the
/// fork gate ([`Gate`]).
fn with_tables<T>(f: impl FnOnce(&mut Vec<Listed>) -> T) -> T {
    let _gate = Gate::enter();
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    tables.retain(|listed| listed.origin.is_here() && listed.table.strong_count() != 0);
    f(&mut tables)
}

fn tables() -> Vec<Arc<SlotTable>> {
    with_tables(|tables| tables.iter().filter_map(|listed| listed.table.upgrade()).collect())
}

/// Returns the class that occurs the fewest times among these; any of several.
fn rarest_class(used: impl Iterator<Item = u16>) -> u16 {
    let mut counts = [0; Slot::CLASSES as usize];
    used.for_each(|class| counts[usize::from(class % Slot::CLASSES)] += 1);
    let start = (random() % u64::from(Slot::CLASSES)) as u16;
    let classes = (0..Slot::CLASSES).map(|i| (start + i) % Slot::CLASSES);
    classes.min_by_key(|&class| counts[usize::from(class)]).unwrap_or(start)
}

fn new_socket(name: &[u8]) -> io::Result<OwnFd> {
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?;
    sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, 1)?;
    sys::bind_abstract(fd.as_fd(), name)?;
    Ok(fd)
}

fn new_door(name: &[u8]) -> io::Result<OwnFd> {
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)?;
    sys::bind_abstract(fd.as_fd(), name)?;
    // One waiting connection for each process that there can be.
    sys::listen(fd.as_fd(), 1 << Slot::BITS)?;
    Ok(fd)
}

/// Checks the user of the process at the other end of a connection.
///
/// # Errors
/// `PermissionDenied` if that process is of another user.
pub(crate) fn check_user(connection: BorrowedFd<'_>) -> io::Result<()> {
    match user::is_own(sys::peer_credentials(connection)?.uid) {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Whether any process has a socket of this name. Does not wake its owner.
fn is_taken(name: &[u8]) -> io::Result<bool> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?;
    match sys::connect_abstract(socket.as_fd(), name) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(e) => Err(e),
    }
}

impl SlotTable {
    /// Makes an empty table.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn new() -> Result<Arc<Self>, SlotError> {
        Self::with_scope("vernic")
    }

    /// Makes a table with a name space of its own (the first 20 ASCII characters of `scope`). For
    /// tests that must not find the host's processes.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_scope(scope: &str) -> Result<Arc<Self>, SlotError> {
        let (ask, receiver_pages) = (ClosableFd::new(new_socket(b"")?), ReceiverPages::new());
        let scope = scope.chars().filter(char::is_ascii).take(MAX_SCOPE_BYTES).collect();
        Ok(with_tables(|tables| {
            // The class is chosen and the table listed in one step: two tables that are opened at
            // once see each other.
            let class = rarest_class(tables.iter().map(|listed| listed.class));
            let table = Arc::new(Self {
                state: Mutex::default(),
                preparing: Mutex::default(),
                ask,
                generation: AtomicU64::new(0),
                ours: [const { AtomicU64::new(0) }; 16],
                receiver_pages,
                scope,
                class,
            });
            let (origin, weak) = (Origin::here(), Arc::downgrade(&table));
            tables.push(Listed { origin, class, table: weak });
            table
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control_name(&self, slot: Slot) -> Name {
        let mut name = Name::new();
        // Fits: the scope was cut when the table was made.
        let _ = write!(name, "{}/{}", self.scope, slot.value());
        name
    }

    fn packets_name(&self, slot: Slot) -> Name {
        let mut name = self.control_name(slot);
        let _ = write!(name, "/packets");
        name
    }

    fn door_name(&self, slot: Slot) -> Name {
        let mut name = self.control_name(slot);
        let _ = write!(name, "/queue");
        name
    }

    /// Returns the name of the socket of a slot that local peers connect to (`vernic-local`).
    pub fn neighbour_name(&self, slot: Slot) -> Vec<u8> {
        let mut name = self.control_name(slot);
        let _ = write!(name, "/neighbour");
        name.as_bytes().to_vec()
    }

    /// Returns the slots of this table.
    pub fn own_slots(&self) -> Vec<Slot> {
        self.state().claims.iter().map(|claim| claim.slot).collect()
    }

    /// Sends a packet of connection management on to the process that has `slot`. The packet's ICRC
    /// must have been found good: the receiver does not check it. The process must be of this user,
    /// as the kernel says when the slot's socket answers. Until the answer is there, the result is
    /// [`HandoverResult::Full`]. Never blocks.
    pub fn hand_over_to_slot(&self, slot: Slot, packet: &RxPacket<'_>) -> HandoverResult {
        self.hand_over_checked(slot, &Head::of_verified(packet), packet.bytes)
    }

    /// Sends packets on to the process that has `slot` if it is of this user, one datagram each.
    pub(crate) fn hand_over_checked(
        &self,
        slot: Slot,
        head: &Head,
        packets: &[u8],
    ) -> HandoverResult {
        match self.lookup(head.meta.dst.ip(), slot.qpn(0)) {
            Lookup::Here(_) => self.hand_over(slot, head, packets),
            Lookup::NotHere => HandoverResult::NoOwner,
            Lookup::Asked | Lookup::Pending => HandoverResult::Full,
        }
    }

    /// Sends packets on to whatever process has the name of `slot`. Never blocks or allocates.
    fn hand_over(&self, slot: Slot, head: &Head, packets: &[u8]) -> HandoverResult {
        self.send(&self.packets_name(slot), head, packets)
    }

    fn send(&self, to: &Name, head: &Head, packets: &[u8]) -> HandoverResult {
        match self.ask.get() {
            Some(from) => handoff::send(from.as_fd(), to.as_bytes(), head, packets),
            None => HandoverResult::NoOwner,
        }
    }

    /// Closes the table: its slots and names are free for others, and its sockets and receiver page
    /// are closed. Nothing can be claimed or found through the table any more.
    pub fn close(&self) {
        // First, so that a later claim finds the table closed.
        self.ask.close();
        self.leave();
        let state = std::mem::take(&mut *self.state());
        self.ours.iter().for_each(|word| word.store(0, Ordering::Release));
        self.receiver_pages.close();
        self.changed();
        drop(state);
    }

    /// Says to peers of this host that this process leaves in order, so they need not wait for it.
    pub fn leave(&self) {
        if let Some(receiver_page) = self.receiver_pages.own() {
            receiver_page.leave();
        }
    }

    /// Checks that the table is open. To be called under the lock of the state, which
    /// [`close`](Self::close) takes after it has closed the socket that is checked here.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] once the table is closed.
    fn check_open(&self) -> io::Result<()> {
        self.ask.get().map(drop).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Takes a free slot; the engine allocates the QPNs in it.
    ///
    /// # Errors
    /// [`SlotError::NoneFree`]; [`SlotError::Os`] when a socket cannot be opened, or the table is
    /// closed.
    pub fn claim(&self) -> Result<Slot, SlotError> {
        if let Some(slot) = self.state().reserved.take() {
            return Ok(slot);
        }
        self.claim_from(random() % u64::from(Slot::LAST.value()))
    }

    /// Claims a slot that the next [`claim`](Self::claim) returns, unless there is one already. For
    /// those who hold a lock when they claim: a [`SlotKeeper`] may wait. Several threads that call
    /// this at once claim one slot: the keeper of a surplus one would not learn that it is free.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn prepare(&self) -> Result<(), SlotError> {
        let _one_by_one = self.preparing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state().reserved.is_some() {
            return Ok(());
        }
        let slot = self.claim_from(random() % u64::from(Slot::LAST.value()))?;
        self.state().reserved = Some(slot);
        Ok(())
    }

    /// Has all slots from now on taken by `keeper` as well.
    pub fn set_keeper(&self, keeper: Arc<dyn SlotKeeper>) {
        self.state().keeper = Some(keeper);
    }

    /// Takes the first free slot of its class, counted from `start`, or else the first free one.
    fn claim_from(&self, start: u64) -> Result<Slot, SlotError> {
        let count = u64::from(Slot::LAST.value());
        let all = (0..count)
            .filter_map(|i| Slot::new(Slot::FIRST.value() + ((start + i) % count) as u16));
        let is_alike = |slot: &Slot| slot.class() == self.class;
        let others = all.clone().filter(|slot| !is_alike(slot));
        let keeper = self.state().keeper.clone();
        for slot in all.filter(is_alike).chain(others) {
            match self.open(slot) {
                Ok(claim) => {
                    let kept = keeper.as_ref().map_or(Ok(true), |keeper| keeper.take(slot));
                    if !kept.map_err(SlotError::Keeper)? {
                        continue;
                    }
                    let mut state = self.state();
                    self.check_open()?;
                    state.claims.push(claim);
                    self.set_ours(slot, true);
                    if let Some(receiver_page) = self.receiver_pages.own() {
                        receiver_page.set_slot(slot);
                    }
                    return Ok(slot);
                }
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => continue,
                Err(e) => return Err(e.into()),
            }
        }
        Err(SlotError::NoneFree)
    }

    /// Opens the sockets of a slot. `AddrInUse` if any name is taken: a process that ends closes
    /// one socket after the other.
    fn open(&self, slot: Slot) -> io::Result<Claim> {
        let control = Arc::new(new_socket(self.control_name(slot).as_bytes())?);
        let packets = Arc::new(new_socket(self.packets_name(slot).as_bytes())?);
        let door = Arc::new(new_door(self.door_name(slot).as_bytes())?);
        Ok(Claim { slot, control, packets, door })
    }

    /// Gives a slot back. Unknown slots are ignored.
    pub fn release(&self, slot: Slot) {
        self.state().claims.retain(|claim| claim.slot != slot);
        self.set_ours(slot, false);
    }

    /// Whether any process of this host has the slot, this one included.
    ///
    /// # Errors
    /// When the process has no descriptor left to ask with.
    pub fn is_taken(&self, slot: Slot) -> io::Result<bool> {
        is_taken(self.control_name(slot).as_bytes())
    }

    /// Returns those of `slots` that no process of this host has.
    ///
    /// # Errors
    /// When the process has no descriptor left to ask with.
    pub fn vacant(&self, slots: impl Iterator<Item = Slot>) -> io::Result<Vec<Slot>> {
        let socket = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?;
        let is_refused = |slot: &Slot| {
            let name = self.control_name(*slot);
            let connected = sys::connect_abstract(socket.as_fd(), name.as_bytes());
            connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        Ok(slots.filter(is_refused).collect())
    }

    /// Says to peers of this host whether a queue pair of this table answers requests from now on.
    pub fn set_answering(&self, qpn: Qpn, answers: bool) {
        if let Some(receiver_page) = self.receiver_pages.own() {
            receiver_page.set_answering(qpn, answers);
        }
    }

    fn set_ours(&self, slot: Slot, ours: bool) {
        let word = &self.ours[usize::from(slot.value()) / 64];
        let bit = 1 << (slot.value() % 64);
        if ours {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
        self.changed();
    }

    /// Notes that [`sockets`](Self::sockets) returns other sockets than before, or that the link
    /// has other sockets of its own to take.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Whether the slot is one of this table's.
    #[inline]
    pub fn is_ours(&self, slot: Slot) -> bool {
        let bits = self.ours[usize::from(slot.value()) / 64 % 16].load(Ordering::Relaxed);
        bits >> (slot.value() % 64) & 1 != 0
    }

    /// Returns a number that changes whenever the table gets or loses a slot or an open name.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the sockets of each slot and of each open name: for questions, and for packets.
    pub(crate) fn sockets(&self) -> Vec<(SharedFd, SharedFd)> {
        let state = self.state();
        let slots = state.claims.iter().map(|claim| (&claim.control, &claim.packets));
        let names = state.names.iter().filter_map(Named::sockets);
        slots.chain(names).map(|(one, two)| (SharedFd::of(one), SharedFd::of(two))).collect()
    }

    /// Returns, for each slot, the socket to which other processes connect to hand packets over.
    pub(crate) fn doors(&self) -> Vec<(Slot, SharedFd)> {
        self.state().claims.iter().map(|claim| (claim.slot, SharedFd::of(&claim.door))).collect()
    }

    /// Connects to the process that has `slot`, to hand packets over to it.
    ///
    /// # Errors
    /// `ConnectionRefused` if no process has the slot, `PermissionDenied` if a process of another
    /// user has it.
    pub(crate) fn connect(&self, slot: Slot) -> io::Result<OwnFd> {
        let connection = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)?;
        sys::connect_abstract(connection.as_fd(), self.door_name(slot).as_bytes())?;
        check_user(connection.as_fd())?;
        Ok(connection)
    }

    /// Answers questions about `local` with `private_port` from now on.
    pub(crate) fn publish(&self, local: LocalAddr, private_port: u16) {
        let mut state = self.state();
        state.served.retain(|(addr, _)| *addr != local);
        state.served.push((local, private_port));
    }

    /// Undoes [`publish`](Self::publish).
    pub(crate) fn withdraw(&self, local: LocalAddr) {
        self.state().served.retain(|(addr, _)| *addr != local);
    }

    /// Returns this link's receiver page; `None` where the system has no shared memory for it.
    pub fn receiver_page(&self) -> Option<&Arc<ReceiverPage>> {
        self.receiver_pages.own()
    }

    /// Returns the receiver page of a process that was found.
    pub fn receiver_page_of(&self, id: ReceiverPageId) -> Option<Arc<ReceiverPage>> {
        self.receiver_pages.get(id)
    }

    /// Returns a number that changes whenever [`copy_receiver_pages`](Self::copy_receiver_pages)
    /// would copy another list.
    #[inline]
    pub fn receiver_pages_generation(&self) -> u32 {
        self.receiver_pages.generation()
    }

    /// Copies the receiver pages of processes that were found, at the positions that
    /// [`ReceiverPageId::index`] gives.
    pub fn copy_receiver_pages(&self, list: &mut Vec<Arc<ReceiverPage>>) {
        self.receiver_pages.copy_to(list);
    }

    /// Answers the questions that have come in. Links call this from [`recv`](crate::Link::recv).
    /// Never blocks.
    pub fn serve(&self) {
        let state = self.state();
        for (control, slot) in state.controls() {
            let receiver_page = self.receiver_pages.own_fd();
            let receiver_page = receiver_page.as_ref().map(|fd| fd.as_fd());
            serve_socket(control.as_fd(), slot, &state.served, receiver_page);
        }
    }
}

fn serve_socket(
    control: BorrowedFd<'_>,
    slot: Slot,
    served: &[(LocalAddr, u16)],
    receiver_page: Option<BorrowedFd<'_>>,
) {
    for _ in 0..MAX_SERVED {
        let mut buf = [0; MAX_MESSAGE_BYTES];
        let Ok(incoming) = sys::recv_abstract(control, &mut buf, &mut []) else { return };
        let same_user = incoming.credentials.is_some_and(|c| user::is_own(c.uid));
        let bytes = &buf[..incoming.len.min(buf.len())];
        let Some(question) = Question::parse(bytes).filter(|q| same_user && q.slot == slot) else {
            continue;
        };
        let private_port = find_port(served, question.ip).unwrap_or(0);
        let answer = Answer { ip: question.ip, slot, private_port };
        // An asker that is gone, or whose queue is full, gets no answer.
        let file = receiver_page.filter(|_| private_port != 0);
        let _ = sys::send_with_file(control, incoming.sender(), &answer.emit(), &[], file);
    }
}

#[cfg(test)]
mod tests;
