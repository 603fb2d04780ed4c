//! Compares the crate with a simple model: a map from keys to rights, and one array per buffer.
//! Random sequences change keys in all ways, and access memory with valid and invalid keys. Every
//! result, every error and every byte must agree.
#![cfg(not(miri))]

use std::collections::BTreeMap;

use proptest::prelude::*;
use vernic_mem::{
    Access, Bind, BindError, Check, DeregisterError, HostBuffer, InvalidateError, Memory, MrHandle,
    MwHandle, MwType, PdId, SgCursor, Sge,
};
use vernic_wire::{Lkey, Qpn, Rkey};

/// Length of each buffer in bytes.
const LEN: u64 = 64;
/// Number of buffers, of domains and of queue pairs to choose from.
const BUFFERS: usize = 2;
const PDS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Register { pd: usize, buffer: usize, start: u64, len: u64, iova: u64, access: Access },
    Deregister { which: usize },
    Retire { which: usize },
    AllocWindow { pd: usize, type_2: bool },
    FreeWindow { which: usize },
    Bind { which: usize, region: usize, pd: usize, qp: u32, offset: u64, len: u64, access: Access },
    Invalidate { key: usize, pd: usize, qp: Option<u32> },
    Read { key: usize, pd: usize, qp: u32, offset: u64, len: usize },
    Write { key: usize, pd: usize, qp: u32, offset: u64, len: usize },
    Add { key: usize, pd: usize, qp: u32, offset: u64 },
    Gather { keys: Vec<(usize, u64, u32)>, pd: usize, offset: u64, len: usize, write: bool },
}

fn access() -> impl Strategy<Value = Access> {
    let bits = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
    prop_oneof![
        4 => Just(bits),
        1 => any::<u32>().prop_map(move |b| Access::from_bits_truncate(b) & bits),
    ]
}

fn window_access() -> impl Strategy<Value = Access> {
    let bits = Access::REMOTE | Access::ZERO_BASED;
    prop_oneof![
        2 => Just(Access::REMOTE),
        2 => any::<u32>().prop_map(move |b| Access::from_bits_truncate(b) & bits),
    ]
}

/// Chooses a number below `count`, mostly 0. If domains and keys never matched, a sequence would
/// find no errors.
fn pick(count: usize) -> impl Strategy<Value = usize> + Clone {
    prop_oneof![6 => Just(0), 1 => 0..count]
}

/// Chooses an offset, mostly inside a small region, sometimes far outside.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![12 => 0..LEN / 2, 6 => 0..LEN + 2, 1 => any::<u64>(), 1 => u64::MAX - 8..=u64::MAX]
}

fn step() -> impl Strategy<Value = Step> {
    let (which, key) = (any::<usize>(), any::<usize>());
    let pd = pick(PDS);
    let qp = pick(2).prop_map(|qp| qp as u32);
    let len = prop_oneof![3 => 0..24_usize, 1 => 0..LEN as usize + 2];
    prop_oneof![
        2 => (pd.clone(), 0..BUFFERS, 0..LEN / 2, 0..=LEN, 0..1_u64 << 40, access()).prop_map(
            |(pd, buffer, start, len, iova, access)| {
                let len = len.min(LEN - start);
                Step::Register { pd, buffer, start, len, iova: iova & !7, access }
            }
        ),
        1 => which.prop_map(|which| Step::Deregister { which }),
        1 => which.prop_map(|which| Step::Retire { which }),
        1 => (pd.clone(), any::<bool>()).prop_map(|(pd, type_2)| Step::AllocWindow { pd, type_2 }),
        1 => which.prop_map(|which| Step::FreeWindow { which }),
        3 => (which, any::<usize>(), pd.clone(), qp.clone(), offset(), 0..LEN, window_access())
            .prop_map(|(which, region, pd, qp, offset, len, access)| {
                Step::Bind { which, region, pd, qp, offset, len, access }
            }),
        1 => (key, pd.clone(), prop::option::of(qp.clone()))
            .prop_map(|(key, pd, qp)| Step::Invalidate { key, pd, qp }),
        5 => (key, pd.clone(), qp.clone(), offset(), len.clone())
            .prop_map(|(key, pd, qp, offset, len)| Step::Read { key, pd, qp, offset, len }),
        5 => (key, pd.clone(), qp.clone(), offset(), len.clone())
            .prop_map(|(key, pd, qp, offset, len)| Step::Write { key, pd, qp, offset, len }),
        3 => (key, pd.clone(), qp, offset())
            .prop_map(|(key, pd, qp, offset)| Step::Add { key, pd, qp, offset }),
        4 => (
            prop::collection::vec((any::<usize>(), 0..LEN, 0..24_u32), 0..5),
            pd,
            0..64_u64,
            len,
            any::<bool>(),
        )
            .prop_map(|(keys, pd, offset, len, write)| {
                Step::Gather { keys, pd, offset, len, write }
            }),
    ]
}

/// What the model knows about a valid key.
#[derive(Clone, Debug)]
struct Rights {
    pd: PdId,
    /// The queue pair of a bound type 2 window.
    qp: Option<u32>,
    iova: u64,
    len: u64,
    buffer: usize,
    /// Offset in the buffer at which the memory starts.
    start: u64,
    access: Access,
    is_window: bool,
    is_bound: bool,
}

struct Window {
    handle: MwHandle,
    mw_type: MwType,
    key: u32,
    /// Index in `World::regions`.
    region: Option<usize>,
}

struct World {
    memory: Memory,
    buffers: Vec<HostBuffer>,
    pds: Vec<PdId>,
    /// The model's copy of the buffers.
    bytes: Vec<Vec<u8>>,
    /// The keys that are valid in the model.
    live: BTreeMap<u32, Rights>,
    /// All keys that ever existed, to choose from.
    keys: Vec<u32>,
    regions: Vec<Option<(MrHandle, u32)>>,
    windows: Vec<Option<Window>>,
    fill: u8,
}

impl World {
    fn new() -> Self {
        let memory = Memory::new();
        Self {
            pds: (0..PDS).map(|_| memory.alloc_pd()).collect(),
            memory,
            buffers: (0..BUFFERS).map(|_| HostBuffer::new(LEN as usize).unwrap()).collect(),
            bytes: vec![vec![0; LEN as usize]; BUFFERS],
            live: BTreeMap::new(),
            keys: vec![0xDEAD_BEEF],
            regions: Vec::new(),
            windows: Vec::new(),
            fill: 0,
        }
    }

    fn key(&self, which: usize) -> u32 {
        self.keys[self.keys.len() - 1 - which % self.keys.len().min(8)]
    }

    /// The address of `offset` for a key, valid or not.
    fn addr(&self, key: u32, offset: u64) -> u64 {
        self.live.get(&key).map_or(offset, |rights| rights.iova.wrapping_add(offset))
    }

    /// The answer that the crate should give: buffer and offset of the access, or the reason of the
    /// refusal.
    fn judge(
        &self,
        key: u32,
        pd: PdId,
        qp: Option<u32>,
        (addr, len): (u64, u64),
        needs: Access,
    ) -> Result<(usize, usize), Option<Check>> {
        let rights = self.live.get(&key).ok_or(None)?;
        if qp.is_none() && rights.is_window {
            return Err(Some(Check::KeyKind));
        }
        if !rights.is_bound {
            return Err(Some(Check::NotBound));
        }
        if rights.pd != pd {
            return Err(Some(Check::WrongPd));
        }
        if rights.qp.is_some() && rights.qp != qp {
            return Err(Some(Check::WrongQp));
        }
        if !rights.access.contains(needs) {
            return Err(Some(Check::Rights(needs - rights.access)));
        }
        let first = i128::from(addr) - i128::from(rights.iova);
        if first < 0 || first + i128::from(len) > i128::from(rights.len) {
            return Err(Some(Check::Bounds));
        }
        Ok((rights.buffer, rights.start as usize + first as usize))
    }

    fn next_fill(&mut self, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| {
                self.fill = self.fill.wrapping_add(1);
                self.fill
            })
            .collect()
    }

    fn compare(&self) {
        for (buffer, bytes) in self.buffers.iter().zip(&self.bytes) {
            let mut real = vec![0; LEN as usize];
            buffer.read_at(0, &mut real).unwrap();
            assert_eq!(&real, bytes);
        }
    }
}

/// Asserts that crate and model agree on the result. An invalid key may be unknown or stale.
fn agree(real: Result<(), Check>, model: Result<(), Option<Check>>) {
    match (real, model) {
        (Ok(()), Ok(())) => {}
        (Err(Check::KeyUnknown | Check::KeyStale), Err(None)) => {}
        (Err(real), Err(Some(model))) => assert_eq!(real, model),
        (real, model) => panic!("crate {real:?}, model {model:?}"),
    }
}

impl World {
    fn run(&mut self, step: Step) {
        match step {
            Step::Register { pd, buffer, start, len, iova, access } => {
                self.register(pd, buffer, (start, len), iova, access);
            }
            Step::Deregister { which } => self.deregister(which),
            Step::Retire { which } => self.force_deregister(which),
            Step::AllocWindow { pd, type_2 } => self.alloc_window(pd, type_2),
            Step::FreeWindow { which } => self.free_window(which),
            Step::Bind { which, region, pd, qp, offset, len, access } => {
                self.bind(which, region, pd, qp, (offset, len), access);
            }
            Step::Invalidate { key, pd, qp } => self.invalidate(key, pd, qp),
            Step::Read { key, pd, qp, offset, len } => self.read(key, pd, qp, offset, len),
            Step::Write { key, pd, qp, offset, len } => self.write(key, pd, qp, offset, len),
            Step::Add { key, pd, qp, offset } => self.add(key, pd, qp, offset),
            Step::Gather { keys, pd, offset, len, write } => {
                self.gather(&keys, pd, offset, len, write);
            }
        }
    }

    fn register(
        &mut self,
        pd: usize,
        buffer: usize,
        (start, len): (u64, u64),
        iova: u64,
        access: Access,
    ) {
        let pd = self.pds[pd];
        let addr = self.buffers[buffer].as_mut_ptr().wrapping_add(start as usize);
        // SAFETY: the buffers live as long as the world, and only racy copies access them.
        let result = unsafe { self.memory.register(pd, addr, len, iova, access) };
        assert_eq!(result.is_ok(), access.is_consistent());
        let Ok(mr) = result else { return };
        let rights = Rights {
            pd,
            qp: None,
            iova,
            len,
            buffer,
            start,
            access,
            is_window: false,
            is_bound: true,
        };
        assert!(self.live.insert(mr.rkey.value(), rights).is_none());
        assert!(!self.keys.contains(&mr.rkey.value()), "a key came back too soon");
        self.keys.push(mr.rkey.value());
        self.regions.push(Some((mr.handle, mr.rkey.value())));
    }

    fn deregister(&mut self, which: usize) {
        let count = self.regions.len();
        if count == 0 {
            return;
        }
        let which = which % count;
        let Some((handle, key)) = self.regions[which] else { return };
        let bound = self.windows.iter().flatten().filter(|w| w.region == Some(which)).count();
        let result = self.memory.deregister(handle);
        if bound > 0 {
            let windows = bound as u32;
            assert_eq!(result, Err(DeregisterError::WindowsBound { windows }));
        } else {
            assert_eq!(result, Ok(()));
            assert_eq!(self.memory.deregister(handle), Err(DeregisterError::UnknownHandle));
            self.live.remove(&key);
            self.regions[which] = None;
        }
    }

    fn force_deregister(&mut self, which: usize) {
        let count = self.regions.len();
        if count == 0 {
            return;
        }
        let which = which % count;
        let Some((handle, key)) = self.regions[which].take() else { return };
        let mut unbound_windows = 0;
        for window in self.windows.iter_mut().flatten().filter(|w| w.region == Some(which)) {
            window.region = None;
            let pd = self.live[&window.key].pd;
            self.live.insert(window.key, unbound(pd));
            unbound_windows += 1;
        }
        assert_eq!(self.memory.force_deregister(handle), unbound_windows);
        assert_eq!(self.memory.force_deregister(handle), 0);
        self.live.remove(&key);
    }

    fn alloc_window(&mut self, pd: usize, type_2: bool) {
        let pd = self.pds[pd];
        let mw_type = if type_2 { MwType::Type2 } else { MwType::Type1 };
        let mw = self.memory.alloc_mw(pd, mw_type).unwrap();
        let key = mw.rkey.value();
        self.live.insert(key, unbound(pd));
        self.keys.push(key);
        self.windows.push(Some(Window { handle: mw.handle, mw_type, key, region: None }));
    }

    fn free_window(&mut self, which: usize) {
        let count = self.windows.len();
        if count == 0 {
            return;
        }
        let Some(window) = self.windows[which % count].take() else { return };
        self.memory.dealloc_mw(window.handle).unwrap();
        assert_eq!(self.memory.dealloc_mw(window.handle), Err(BindError::UnknownHandle));
        self.live.remove(&window.key);
    }

    fn bind(
        &mut self,
        which: usize,
        region: usize,
        pd: usize,
        qp: u32,
        (offset, len): (u64, u64),
        access: Access,
    ) {
        if self.windows.is_empty() || self.regions.is_empty() {
            return;
        }
        let which = which % self.windows.len();
        let region = region % self.regions.len();
        let Some(window) = &self.windows[which] else { return };
        let (old, mw_type, pd) = (window.key, window.mw_type, self.pds[pd]);
        let lkey = self.regions[region].map_or(0x1234_5678, |(_, key)| key);
        let addr = self.addr(lkey, offset);
        let (qp_pd, qpn) = (pd, Qpn::new(qp));
        let bind = Bind { qp_pd, qpn, lkey: Lkey(lkey), addr, len, access, key: None };
        let result = self.memory.bind_mw(window.handle, &bind);

        let window_pd = self.live[&old].pd;
        let permitted = (mw_type == MwType::Type1 || !self.live[&old].is_bound)
            && window_pd == pd
            && (len == 0 || self.may_bind(&bind));
        assert_eq!(result.is_ok(), permitted, "{result:?}");
        let Ok(rkey) = result else { return };
        let mut rights = unbound(pd);
        if len > 0 {
            let base = &self.live[&lkey];
            rights.buffer = base.buffer;
            rights.start = base.start + addr - base.iova;
            rights.len = len;
        }
        rights.access = access;
        rights.iova = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        rights.qp = (mw_type == MwType::Type2).then_some(qp);
        rights.is_bound = len > 0 || mw_type == MwType::Type2;
        self.live.remove(&old);
        self.live.insert(rkey.value(), rights);
        self.keys.push(rkey.value());
        if let Some(window) = &mut self.windows[which] {
            window.key = rkey.value();
            window.region = (len > 0).then_some(region);
        }
    }

    fn may_bind(&self, bind: &Bind) -> bool {
        let Some(region) = self.live.get(&bind.lkey.value()) else { return false };
        let end = u128::from(bind.addr) + u128::from(bind.len);
        region.pd == bind.qp_pd
            && region.access.contains(Access::MW_BIND)
            && (!bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
                || region.access.contains(Access::LOCAL_WRITE))
            && bind.addr >= region.iova
            && end <= u128::from(region.iova) + u128::from(region.len)
    }

    fn invalidate(&mut self, key: usize, pd: usize, qp: Option<u32>) {
        let (key, pd) = (self.key(key), self.pds[pd]);
        let rkey = Rkey(key);
        let result = match qp {
            None => self.memory.invalidate_local(pd, rkey),
            Some(qp) => self.memory.invalidate_remote(pd, Qpn::new(qp), rkey),
        };
        let window = self.windows.iter_mut().flatten().find(|window| window.key == key);
        let expected = match (self.live.get(&key), &window) {
            (None, _) => Err(InvalidateError::UnknownKey(rkey)),
            (Some(_), None) => Err(InvalidateError::NotInvalidatable(rkey)),
            (Some(_), Some(window)) if window.mw_type == MwType::Type1 => {
                Err(InvalidateError::NotInvalidatable(rkey))
            }
            (Some(rights), _) if !rights.is_bound => Err(InvalidateError::UnknownKey(rkey)),
            (Some(rights), _) if rights.pd != pd => Err(InvalidateError::WrongPd(rkey)),
            (Some(rights), _) if qp.is_some() && rights.qp != qp => {
                Err(InvalidateError::WrongQp(rkey))
            }
            _ => Ok(()),
        };
        assert_eq!(result, expected);
        if let (Ok(()), Some(window)) = (result, window) {
            window.region = None;
            self.live.insert(key, unbound(pd));
        }
    }

    fn read(&mut self, key: usize, pd: usize, qp: u32, offset: u64, len: usize) {
        let (key, pd) = (self.key(key), self.pds[pd]);
        let addr = self.addr(key, offset);
        let mut out = vec![0; len];
        let real = self.memory.read_remote(pd, Qpn::new(qp), Rkey(key), addr, &mut out);
        if len == 0 {
            assert_eq!(real, Ok(()));
            return;
        }
        let place = self.judge(key, pd, Some(qp), (addr, len as u64), Access::REMOTE_READ);
        agree(real.map_err(|e| e.check), place.map(drop));
        if let Ok((buffer, start)) = place {
            assert_eq!(out, self.bytes[buffer][start..start + len]);
        }
    }

    fn write(&mut self, key: usize, pd: usize, qp: u32, offset: u64, len: usize) {
        let (key, pd) = (self.key(key), self.pds[pd]);
        let addr = self.addr(key, offset);
        let src = self.next_fill(len);
        let real = self.memory.write_remote(pd, Qpn::new(qp), Rkey(key), addr, &src);
        if len == 0 {
            assert_eq!(real, Ok(()));
            return;
        }
        let place = self.judge(key, pd, Some(qp), (addr, len as u64), Access::REMOTE_WRITE);
        agree(real.map_err(|e| e.check), place.map(drop));
        if let Ok((buffer, start)) = place {
            self.bytes[buffer][start..start + len].copy_from_slice(&src);
        }
    }

    fn add(&mut self, key: usize, pd: usize, qp: u32, offset: u64) {
        let (key, pd) = (self.key(key), self.pds[pd]);
        let addr = self.addr(key, offset);
        let real = self.memory.atomic_fetch_add(pd, Qpn::new(qp), Rkey(key), addr, 0x0101_0101);
        let place = self.judge(key, pd, Some(qp), (addr, 8), Access::REMOTE_ATOMIC);
        // The buffers are page-aligned, so the offset in the buffer tells the alignment in memory.
        let aligned =
            place.is_ok_and(|(_, start)| start.is_multiple_of(8)) && addr.is_multiple_of(8);
        let model = if place.is_ok() && !aligned { Err(Some(Check::Alignment)) } else { place };
        agree(real.map(drop).map_err(|e| e.check), model.map(drop));
        if let Ok((buffer, start)) = model {
            let word = &mut self.bytes[buffer][start..start + 8];
            let before = u64::from_ne_bytes(word.try_into().unwrap());
            assert_eq!(real, Ok(before));
            word.copy_from_slice(&before.wrapping_add(0x0101_0101).to_ne_bytes());
        }
    }

    fn gather(
        &mut self,
        keys: &[(usize, u64, u32)],
        pd: usize,
        offset: u64,
        len: usize,
        write: bool,
    ) {
        let pd = self.pds[pd];
        let sges: Vec<Sge> = keys
            .iter()
            .map(|&(key, at, length)| {
                let key = self.key(key);
                Sge { addr: self.addr(key, at), length, lkey: Lkey(key) }
            })
            .collect();
        let needs = if write { Access::LOCAL_WRITE } else { Access::empty() };
        let mut data = if write { self.next_fill(len) } else { vec![0; len] };
        let mut cursor = SgCursor::default();
        // Uses the cursor at another offset first: a cursor at the wrong position must do no harm.
        let _ = self.memory.read_local(pd, &sges, &mut cursor, offset * 7 % 61, &mut [0; 1]);
        let real = if write {
            self.memory.write_local(pd, &sges, &mut cursor, offset, &data)
        } else {
            self.memory.read_local(pd, &sges, &mut cursor, offset, &mut data)
        };
        // A list of one element is checked as a whole before anything is copied.
        if let ([sge], 1..) = (&sges[..], len)
            && offset + len as u64 > u64::from(sge.length)
        {
            assert_eq!(real.map_err(|e| e.check), Err(Check::ListTooShort));
            return;
        }
        // A longer list is checked element by element, as in the crate. Elements before a refused
        // one are copied.
        let (mut at, mut done, mut model) = (0_u64, 0, Ok(()));
        for sge in &sges {
            let (start, end) =
                (at.max(offset), (at + u64::from(sge.length)).min(offset + len as u64));
            if start < end {
                let range = (sge.addr.wrapping_add(start - at), end - start);
                match self.judge(sge.lkey.value(), pd, None, range, needs) {
                    Ok((buffer, place)) => {
                        let n = (end - start) as usize;
                        let bytes = &mut self.bytes[buffer][place..place + n];
                        if write {
                            bytes.copy_from_slice(&data[done..done + n]);
                        } else {
                            assert_eq!(bytes, &data[done..done + n]);
                        }
                        done += n;
                    }
                    Err(check) => {
                        model = Err(check);
                        break;
                    }
                }
            }
            at += u64::from(sge.length);
        }
        if model.is_ok() && done < len {
            model = Err(Some(Check::ListTooShort));
        }
        agree(real.map_err(|e| e.check), model);
    }
}

/// The rights of a window that is not bound.
fn unbound(pd: PdId) -> Rights {
    Rights {
        pd,
        qp: None,
        iova: 0,
        len: 0,
        buffer: 0,
        start: 0,
        access: Access::empty(),
        is_window: true,
        is_bound: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn crate_and_model_agree_on_every_access(
        steps in prop::collection::vec(step(), 1..150)
    ) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
            world.compare();
        }
    }
}
