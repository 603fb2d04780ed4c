//! Devices and ports. What is handed out beside the caller's structs is of `calloc`, until its
//! release.

use std::ffi::{c_char, c_int};

use vernic_engine::limits::PORT_CAP_FLAGS;
use vernic_engine::{DeviceInfo, Gid, Pkey, Transport};

use crate::boundary::{self, Failure};
use crate::ibverbs::device::{chars, shown};
use crate::layout::device::NODE_CA;
use crate::layout::umad::{NAME_BYTES, umad_ca, umad_port};
use crate::pointer::{Out, OutArray, Text, plain};

plain! { umad_ca, umad_port, [c_char; NAME_BYTES] }

/// The only port of a device.
const PORT: c_int = 1;
/// `ACTIVE` and `LinkUp` of a device that packets can pass; else `DOWN` and `Disabled`.
const UP: [u32; 2] = [4, 5];
const DOWN: [u32; 2] = [1, 3];
/// Gb/s, as the port says of itself (`ibverbs/query.rs`).
const RATE: u32 = 40;

/// The devices of InfiniBand's kind: iWARP has nothing to manage.
pub(super) fn devices() -> Result<Vec<DeviceInfo>, Failure> {
    let mut devices = shown()?;
    devices.retain(|device| device.transport == Transport::Roce && device.name.len() < NAME_BYTES);
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(devices)
}

/// The device of this name; for none, the first that packets can pass, or the first.
fn device(name: &Text) -> Result<DeviceInfo, Failure> {
    let mut devices = devices()?;
    let at = match name.read() {
        Some(name) => devices.iter().position(|device| device.name.as_bytes() == name.to_bytes()),
        None => devices.iter().position(|device| device.port.up).or(Some(0)),
    };
    let at = at.filter(|at| *at < devices.len()).ok_or_else(|| {
        let name = name.read().unwrap_or(c"of any name").to_string_lossy();
        Failure::new(libc::ENODEV, format!("there is no RoCE device {name}"))
    })?;
    Ok(devices.swap_remove(at))
}

/// One value, of `calloc`.
pub(super) fn allocate<T: Copy>(value: T) -> Result<*mut T, Failure> {
    // SAFETY: `calloc` may be asked for any size; NULL is looked at.
    let place: *mut T = unsafe { libc::calloc(1, size_of::<T>()) }.cast();
    if place.is_null() {
        return Err(Failure::new(libc::ENOMEM, "no memory for a device"));
    }
    // SAFETY: room for one was just allocated, and `calloc` aligns for every type of C.
    unsafe { place.write(value) };
    Ok(place)
}

/// The port, with its P_Keys of `calloc`.
fn port(device: &DeviceInfo) -> Result<umad_port, Failure> {
    let gid = device.gids().first().map_or(Gid([0; 16]), |row| row.gid);
    let [state, phys_state] = if device.port.up { UP } else { DOWN };
    let half = |at: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&gid.0[at..at + 8]);
        u64::from_ne_bytes(half)
    };
    Ok(umad_port {
        ca_name: chars(&device.name),
        portnum: PORT,
        base_lid: 0,
        lmc: 0,
        sm_lid: 0,
        sm_sl: 0,
        state,
        phys_state,
        rate: RATE,
        capmask: PORT_CAP_FLAGS.to_be(),
        gid_prefix: half(0),
        port_guid: half(8),
        pkeys_size: 1,
        pkeys: allocate(Pkey::DEFAULT.value())?,
        link_layer: chars("Ethernet"),
    })
}

/// `umad_get_cas_names`: as many as there is room for; how many these are.
pub(crate) extern "C" fn umad_get_cas_names(
    mut names: OutArray<[c_char; NAME_BYTES]>,
    max: c_int,
) -> c_int {
    let count = boundary::negative("umad_get_cas_names", || {
        let devices = devices()?;
        let room = devices.len().min(usize::try_from(max).unwrap_or(0));
        let names = names.slice(room).ok_or_else(|| Failure::null("a place for the names"))?;
        let texts = devices.iter().map(|device| chars(&device.name));
        names.iter_mut().zip(texts).for_each(|(place, text)| *place = text);
        Ok(room as isize)
    });
    count as c_int
}

/// `umad_get_ca_portguids`: of port 0, which a device that is no switch has not, and port 1; how
/// many places are filled.
pub(crate) extern "C" fn umad_get_ca_portguids(
    ca: Text,
    mut guids: OutArray<u64>,
    max: c_int,
) -> c_int {
    let count = boundary::negative("umad_get_ca_portguids", || {
        let device = device(&ca)?;
        if guids.is_null() {
            return Ok(0);
        }
        let places = guids.slice(usize::try_from(max).unwrap_or(0)).unwrap_or_default();
        let [none, first, ..] = places else {
            return Err(Failure::new(libc::ENOMEM, "room for fewer than two GUIDs"));
        };
        let shown = port(&device)?;
        (*none, *first) = (0, shown.port_guid);
        forget_pkeys(shown);
        Ok(2)
    });
    count as c_int
}

/// `umad_get_ca`: a device with its ports, to be released.
pub(crate) extern "C" fn umad_get_ca(name: Text, ca: Out<umad_ca>) -> c_int {
    let said = boundary::negative("umad_get_ca", || {
        if ca.is_null() {
            return Err(Failure::null("a place for the device"));
        }
        let device = device(&name)?;
        let shown = port(&device)?;
        let mut ports = umad_ca::NO_PORTS;
        ports[PORT as usize] = allocate(shown).inspect_err(|_| forget_pkeys(shown))?;
        let guid = device.node_guid.to_be();
        ca.write(umad_ca {
            ca_name: chars(&device.name),
            node_type: NODE_CA as u32,
            numports: PORT,
            fw_ver: chars(env!("CARGO_PKG_VERSION")),
            ca_type: chars("vernic"),
            hw_ver: chars("0"),
            node_guid: guid,
            system_guid: guid,
            ports,
        });
        Ok(0)
    });
    said as c_int
}

/// `umad_get_port`: port 1, by its number or as the best there is (0), to be released.
pub(crate) extern "C" fn umad_get_port(name: Text, number: c_int, out: Out<umad_port>) -> c_int {
    let said = boundary::negative("umad_get_port", || {
        if out.is_null() {
            return Err(Failure::null("a place for the port"));
        }
        let device = device(&name)?;
        if number != 0 && number != PORT {
            let why = format!("{} has no port {number}, only {PORT}", device.name);
            return Err(Failure::new(libc::ENODEV, why));
        }
        out.write(port(&device)?);
        Ok(0)
    });
    said as c_int
}

fn forget_pkeys(port: umad_port) {
    // SAFETY: NULL, or of `calloc` in `allocate`, and not freed before (contract of `pointer.rs`,
    // 1).
    unsafe { libc::free(port.pkeys.cast()) };
}

/// `umad_release_port`.
pub(crate) extern "C" fn umad_release_port(port: Out<umad_port>) -> c_int {
    let said = boundary::negative("umad_release_port", || {
        let held = port.require("the port")?;
        forget_pkeys(held);
        port.write(umad_port { pkeys: std::ptr::null_mut(), pkeys_size: 0, ..held });
        Ok(0)
    });
    said as c_int
}

/// `umad_release_ca`.
pub(crate) extern "C" fn umad_release_ca(ca: Out<umad_ca>) -> c_int {
    let said = boundary::negative("umad_release_ca", || {
        let held = ca.require("the device")?;
        for place in held.ports {
            if let Ok(port) = Out::of_raw(place).require("a port") {
                forget_pkeys(port);
                // SAFETY: of `calloc` in `allocate`, as the P_Keys.
                unsafe { libc::free(place.cast()) };
            }
        }
        ca.write(umad_ca { ports: umad_ca::NO_PORTS, ..held });
        Ok(0)
    });
    said as c_int
}
