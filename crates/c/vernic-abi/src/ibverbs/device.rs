//! The list of devices.
//!
//! A device, once listed, stays in memory: programs keep pointers to devices whose list they have
//! freed. There are as many as the machine has ever had netdevs while the process ran.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use vernic_engine::{Config, DeviceInfo, OpenError, Transport};

use crate::boundary::{self, Failure};
use crate::layout::device::{
    NODE_CA, NODE_RNIC, TRANSPORT_IB, TRANSPORT_IWARP, ibv_device, verbs_device,
};
use crate::log;
use crate::pointer::{CObject, Handle, Out, Text};

/// A device.
#[repr(C)]
pub(crate) struct DeviceObject {
    verbs: verbs_device,
    pub(crate) info: DeviceInfo,
    /// The one listed before.
    next: *const DeviceObject,
}

// SAFETY: `verbs` comes first and starts with `ibv_device`.
unsafe impl CObject for ibv_device {
    type Object = DeviceObject;
    const NAME: &'static str = "a device";
}

/// The device listed last. Devices are only ever added, so readers need no lock: a process may be
/// forked at any time.
static LAST: AtomicPtr<DeviceObject> = AtomicPtr::new(ptr::null_mut());

impl DeviceObject {
    fn new(info: DeviceInfo) -> Self {
        let number = info.uverbs();
        let (node_type, transport_type) = match info.transport {
            Transport::Iwarp => (NODE_RNIC, TRANSPORT_IWARP),
            _ => (NODE_CA, TRANSPORT_IB),
        };
        let verbs = verbs_device {
            device: ibv_device {
                ops: [None; 2],
                node_type,
                transport_type,
                name: chars(&info.name),
                dev_name: chars(&format!("uverbs{number}")),
                dev_path: chars(&format!("/sys/class/infiniband_verbs/uverbs{number}")),
                ibdev_path: chars(&format!("/sys/class/infiniband/{}", info.name)),
            },
            ops: ptr::null(),
            refcount: 1,
            entry: [ptr::null_mut(); 2],
            sysfs: ptr::null_mut(),
            core_support: 0,
        };
        Self { verbs, info, next: ptr::null() }
    }

    /// The device of C for what the engine found: the same each time.
    pub(crate) fn find_or_add(info: DeviceInfo) -> Handle<ibv_device> {
        let mut at = LAST.load(Ordering::Acquire).cast_const();
        // As many turns as there are devices.
        // SAFETY: null, or a device that was leaked below and so lives.
        while let Some(device) = unsafe { at.as_ref() } {
            let (known, found) = (&device.info, &info);
            if known.name == found.name
                && known.port.netdev_index == found.port.netdev_index
                && known.node_guid == found.node_guid
            {
                return Handle::of_leaked(device);
            }
            at = device.next;
        }
        let added = Box::leak(Box::new(Self::new(info)));
        // Another thread may add the same one: two devices of one name, both valid.
        let mut last = LAST.load(Ordering::Acquire);
        loop {
            added.next = last;
            let new = ptr::from_mut(added);
            match LAST.compare_exchange(last, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Handle::of_leaked(added),
                Err(now) => last = now,
            }
        }
    }
}

/// A text in an array of C: cut to fit, with a zero at the end.
pub(crate) fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    array
}

/// The devices that the program shall see: those of the settings' transport, or the one that they
/// name.
pub(crate) fn shown() -> Result<Vec<DeviceInfo>, Failure> {
    let devices = Config::load()
        .map_err(OpenError::from)
        .and_then(|config| vernic_engine::configured_devices(&config));
    devices.map_err(|error| Failure::from(error).fatal())
}

/// `ibv_get_device_list`.
pub(crate) extern "C" fn ibv_get_device_list(count: Out<c_int>) -> *mut Handle<ibv_device> {
    log::init();
    count.write(0);
    let list = boundary::outcome("ibv_get_device_list", || {
        let devices = shown()?;
        let handles: Vec<_> = devices.into_iter().map(DeviceObject::find_or_add).collect();
        let list = Handle::list(&handles)?;
        count.write(handles.len() as c_int);
        Ok(list)
    });
    list.unwrap_or(ptr::null_mut())
}

/// `ibv_free_device_list`.
pub(crate) extern "C" fn ibv_free_device_list(list: *mut Handle<ibv_device>) {
    // SAFETY: NULL, or from `calloc` in `ibv_get_device_list` and not freed before (contract of
    // `pointer.rs`, 1).
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name`: the field of the struct, which may be a copy of the program's; NULL for
/// NULL.
pub(crate) extern "C" fn ibv_get_device_name(device: Handle<ibv_device>) -> Text {
    match device.is_null() {
        true => Text::NULL,
        false => Text::at(device.raw(), offset_of!(ibv_device, name)),
    }
}

/// `ibv_get_device_index`: the number in its name; -1 for NULL.
pub(crate) extern "C" fn ibv_get_device_index(device: Handle<ibv_device>) -> c_int {
    device.find().map_or(-1, |device| device.info.number as c_int)
}

/// `ibv_get_device_guid`: big-endian; 0 for NULL.
pub(crate) extern "C" fn ibv_get_device_guid(device: Handle<ibv_device>) -> u64 {
    device.find().map_or(0, |device| device.info.node_guid.to_be())
}
