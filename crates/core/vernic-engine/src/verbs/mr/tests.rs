//! Tests that a dropped region cannot be accessed any more, whatever state its windows are in.

use std::sync::Barrier;

use vernic_mem::{AccessError, Check, HostBuffer, RemoteAccess};

use super::*;
use crate::config::Config;

const QP: Qpn = Qpn::new(0x11);
const BYTES: u64 = 4096;

/// A region to bind windows to, over memory that outlives the region.
struct Room {
    mr: Arc<Mr>,
    memory: HostBuffer,
}

impl Room {
    fn new(pd: &Arc<Pd>) -> Self {
        let memory = HostBuffer::new(BYTES as usize).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
        let addr = memory.as_mut_ptr();
        // SAFETY: the region is declared before the buffer, so it is dropped first; the buffer is
        // accessed by racy copies only.
        let mr = unsafe { pd.reg_mr(addr, BYTES, 0, access) }.unwrap();
        Self { mr, memory }
    }

    fn bind(&self, window: &Mw) -> Result<Rkey, BindError> {
        window.bind(QP, self.mr.lkey(), 0, BYTES, Access::REMOTE_WRITE)
    }

    /// Drops the region while windows are bound to it.
    fn drop_region(self) -> HostBuffer {
        drop(self.mr);
        self.memory
    }
}

fn open() -> Arc<Pd> {
    Context::open(Some("lo"), Config::default()).expect("lo can be opened").alloc_pd()
}

/// Returns the result of the checks of a peer's WRITE with this key.
fn knock(pd: &Pd, rkey: Rkey) -> Result<(), Check> {
    let memory = &pd.context().engine().memory();
    memory
        .check_remote(pd.id(), QP, rkey, 0, 8, RemoteAccess::Write)
        .map_err(|AccessError { check, .. }| check)
}

fn is_listed(pd: &Pd, window: &Mw) -> bool {
    let entry = lock(pd.context().engine().windows()).get(&window_index(window.rkey())).copied();
    entry.is_some_and(|handle| handle == window.handle)
}

#[test]
fn dropped_region_unbinds_its_windows_and_they_may_be_bound_again() {
    let pd = open();
    for mw_type in [MwType::Type1, MwType::Type2] {
        let (first, second) = (Room::new(&pd), Room::new(&pd));
        let window = Mw::new(&pd, mw_type).unwrap();
        let old = first.bind(&window).unwrap();
        assert_eq!(knock(&pd, old), Ok(()));
        let _memory = first.drop_region();
        assert_eq!(knock(&pd, old), Err(Check::NotBound));
        let new = second.bind(&window).unwrap();
        assert_eq!(knock(&pd, new), Ok(()));
        assert_eq!(knock(&pd, old), Err(Check::KeyStale));
        let _memory = second.drop_region();
        assert_eq!(knock(&pd, new), Err(Check::NotBound));
    }
}

#[test]
fn dropped_region_leaves_the_windows_over_other_regions_alone() {
    let pd = open();
    let (gone, kept) = (Room::new(&pd), Room::new(&pd));
    let (over_gone, over_kept) =
        (Mw::new(&pd, MwType::Type1).unwrap(), Mw::new(&pd, MwType::Type1).unwrap());
    gone.bind(&over_gone).unwrap();
    let rkey = kept.bind(&over_kept).unwrap();
    let _memory = gone.drop_region();
    assert_eq!(knock(&pd, rkey), Ok(()));
    assert!(kept.mr.deregister().is_err(), "the window is still bound to it");
}

/// The window's entry is missing in the engine's map, as it is while another thread frees the
/// window.
#[test]
fn dropped_region_is_out_of_reach_even_if_a_window_over_it_is_half_freed() {
    let pd = open();
    let room = Room::new(&pd);
    let window = Mw::new(&pd, MwType::Type1).unwrap();
    let rkey = room.bind(&window).unwrap();
    lock(pd.context().engine().windows()).remove(&window_index(rkey));
    let lkey = room.mr.lkey();
    let _memory = room.drop_region();
    assert!(knock(&pd, rkey).is_err());
    assert_eq!(knock(&pd, Rkey(lkey.value())), Err(Check::KeyStale));
}

#[test]
fn region_and_window_dropped_by_two_threads_leave_no_live_key() {
    let pd = open();
    for _ in 0..500 {
        let room = Room::new(&pd);
        let window = Mw::new(&pd, MwType::Type1).unwrap();
        let keys = [room.bind(&window).unwrap(), room.mr.rkey()];
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                drop(window);
            });
            start.wait();
            let _memory = room.drop_region();
            assert!(keys.iter().all(|&rkey| knock(&pd, rkey).is_err()), "unmapped while reachable");
        });
    }
}

#[test]
fn key_of_a_window_that_lost_its_region_is_no_other_windows() {
    let pd = open();
    let room = Room::new(&pd);
    let window = Mw::new(&pd, MwType::Type1).unwrap();
    room.bind(&window).unwrap();
    let _memory = room.drop_region();
    // A freed key is used again after at most one and a half rounds through the smallest table.
    for _ in 0..2048 {
        let other = Mw::new(&pd, MwType::Type1).unwrap();
        assert_ne!(window_index(other.rkey()), window_index(window.rkey()));
    }
    assert!(is_listed(&pd, &window));
}

#[test]
fn dropped_window_takes_no_other_off_the_list() {
    let pd = open();
    let (first, second) =
        (Mw::new(&pd, MwType::Type2).unwrap(), Mw::new(&pd, MwType::Type2).unwrap());
    let index = window_index(first.rkey());
    // The program has confused the keys of its two windows.
    first.set_rkey(second.rkey());
    drop(first);
    assert!(is_listed(&pd, &second));
    assert!(!lock(pd.context().engine().windows()).contains_key(&index));
}

/// Changes the region as the C API does, where the C program is responsible for the memory.
fn rereg(mr: &Mr, change: MrChange<'_>) -> Result<(), CreateError> {
    // SAFETY: all ranges of these tests are of buffers that outlive the regions.
    unsafe { mr.rereg(change) }
}

fn write(pd: &Pd, rkey: Rkey, addr: u64, bytes: &[u8]) -> Result<(), Check> {
    let memory = &pd.context().engine().memory();
    memory.write_remote(pd.id(), QP, rkey, addr, bytes).map_err(|error| error.check)
}

#[test]
fn reregistered_region_keeps_its_keys_and_leads_to_the_new_memory() {
    let pd = open();
    let old = HostBuffer::new(BYTES as usize).unwrap();
    let room = Room::new(&pd);
    let range = Some((old.as_mut_ptr(), 16, 0x1_0000));
    let rkey = room.mr.rkey();
    rereg(&room.mr, MrChange { range, ..MrChange::default() }).unwrap();
    assert_eq!(
        (room.mr.rkey(), room.mr.addr(), room.mr.len(), room.mr.iova()),
        (rkey, old.as_mut_ptr().addr(), 16, 0x1_0000)
    );
    assert_eq!(write(&pd, rkey, 0, b"x"), Err(Check::Bounds));
    assert_eq!(write(&pd, rkey, 0x1_0010, b"x"), Err(Check::Bounds));
    write(&pd, rkey, 0x1_0008, b"newplace").unwrap();
    let mut found = [0; 8];
    old.read_at(8, &mut found).unwrap();
    assert_eq!(&found, b"newplace");
    drop(room);
}

#[test]
fn reregistered_region_has_the_new_rights_and_domain_only() {
    let pd = open();
    let room = Room::new(&pd);
    let rkey = room.mr.rkey();
    let access = Some(Access::LOCAL_WRITE | Access::REMOTE_READ);
    rereg(&room.mr, MrChange { access, ..MrChange::default() }).unwrap();
    assert_eq!(Some(room.mr.access()), access);
    assert_eq!(write(&pd, rkey, 0, b"x"), Err(Check::Rights(Access::REMOTE_WRITE)));

    let other = pd.context().alloc_pd();
    let access = Some(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    rereg(&room.mr, MrChange { access, pd: Some(&other), range: None }).unwrap();
    assert_eq!(write(&pd, rkey, 0, b"x"), Err(Check::WrongPd));
    assert_eq!(write(&other, rkey, 0, b"x"), Ok(()));
    pd.destroy().unwrap();
    assert!(other.destroy().is_err(), "the region lives in it now");
}

#[test]
fn refused_reregistration_changes_nothing() {
    let pd = open();
    let room = Room::new(&pd);
    let stranger = open();
    let with = |change| rereg(&room.mr, change).unwrap_err();
    let error = with(MrChange { pd: Some(&stranger), ..MrChange::default() });
    assert!(matches!(error, CreateError::OtherDevice { .. }), "{error}");
    let access = Some(Access::REMOTE_WRITE);
    let error = with(MrChange { access, ..MrChange::default() });
    assert!(matches!(error, CreateError::Memory(RegisterError::NeedsLocalWrite { .. })), "{error}");

    let window = Mw::new(&pd, MwType::Type1).unwrap();
    room.bind(&window).unwrap();
    let access = Some(Access::LOCAL_WRITE);
    let error = with(MrChange { access, ..MrChange::default() });
    let bound = RegisterError::WindowsBound { windows: 1 };
    assert!(matches!(error, CreateError::Memory(is) if is == bound), "{error}");
    assert_eq!(write(&pd, room.mr.rkey(), 0, b"x"), Ok(()), "all as it was");
    drop(window);

    room.mr.deregister().unwrap();
    let error = with(MrChange::default());
    assert!(matches!(error, CreateError::Memory(RegisterError::UnknownHandle)), "{error}");

    let null = pd.alloc_null_mr().unwrap();
    let error = rereg(&null, MrChange { access: Some(Access::empty()), ..MrChange::default() });
    assert!(matches!(error, Err(CreateError::Memory(RegisterError::NoMemory))), "{error:?}");
}

#[test]
fn region_of_no_bytes_can_be_registered_at_null_and_filled_later() {
    let pd = open();
    let buffer = HostBuffer::new(64).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ZERO_BASED;
    // SAFETY: the region has no bytes.
    let mr = unsafe { pd.reg_mr(std::ptr::null_mut(), 0, 0, access) }.unwrap();
    assert_eq!(write(&pd, mr.rkey(), 0, b"x"), Err(Check::Bounds));
    assert_eq!(write(&pd, mr.rkey(), 0, b""), Ok(()));
    rereg(&mr, MrChange { range: Some((buffer.as_mut_ptr(), 64, 0)), ..MrChange::default() })
        .unwrap();
    assert_eq!(write(&pd, mr.rkey(), 56, b"lasteight"), Err(Check::Bounds));
    assert_eq!(write(&pd, mr.rkey(), 56, b"last8byt"), Ok(()));
    drop(mr);
}
