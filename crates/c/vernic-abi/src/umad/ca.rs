//! Devices and ports in the structs of C. What is handed out beside the caller's structs is of
//! `calloc`, until its release.

use std::ffi::{c_char, c_int};
use std::ptr;

use super::shown::{self, Device, Port};
use crate::boundary::{self, Failure};
use crate::ibverbs::device::chars;
use crate::layout::device::NODE_CA;
use crate::layout::umad::{NAME_BYTES, umad_ca, umad_port};
use crate::pointer::{Out, OutArray, Text, plain};

plain! { umad_ca, umad_port, [c_char; NAME_BYTES] }

/// One value, of `calloc`.
pub(super) fn allocate<T: Copy>(value: T) -> Result<*mut T, Failure> {
    allocate_all(&[value])
}

/// Some values, of `calloc`.
fn allocate_all<T: Copy>(values: &[T]) -> Result<*mut T, Failure> {
    // SAFETY: `calloc` may be asked for any size; NULL is looked at.
    let place: *mut T = unsafe { libc::calloc(values.len().max(1), size_of::<T>()) }.cast();
    if place.is_null() {
        return Err(Failure::new(libc::ENOMEM, "no memory for a device"));
    }
    // SAFETY: room for all was just allocated, and `calloc` aligns for every type of C.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), place, values.len()) };
    Ok(place)
}

/// A text of C as the name of a device; `None` for NULL.
pub(super) fn name(text: &Text) -> Option<std::borrow::Cow<'_, str>> {
    text.read().map(std::ffi::CStr::to_string_lossy)
}

fn device(text: &Text) -> Result<Device, Failure> {
    shown::device(name(text).as_deref())
}

/// The port, with its P_Keys of `calloc`.
fn c_port(device: &Device, port: &Port) -> Result<umad_port, Failure> {
    Ok(umad_port {
        ca_name: chars(&device.name),
        portnum: port.number.into(),
        base_lid: port.lid.into(),
        lmc: port.lmc.into(),
        sm_lid: port.sm_lid.into(),
        sm_sl: port.sm_sl.into(),
        state: port.state,
        phys_state: port.physical_state,
        rate: port.rate,
        capmask: port.capabilities.to_be(),
        gid_prefix: port.gid_prefix.to_be(),
        port_guid: port.guid.to_be(),
        pkeys_size: port.pkeys.len() as u32,
        pkeys: allocate_all(&port.pkeys)?,
        link_layer: chars(port.link_layer),
    })
}

/// `umad_get_cas_names`: as many as there is room for; how many these are.
pub(crate) extern "C" fn umad_get_cas_names(
    mut names: OutArray<[c_char; NAME_BYTES]>,
    max: c_int,
) -> c_int {
    crate::log::init();
    let count = boundary::negative("umad_get_cas_names", || {
        let devices = shown::devices()?;
        let room = devices.len().min(usize::try_from(max).unwrap_or(0));
        let names = names.slice(room).ok_or_else(|| Failure::null("a place for the names"))?;
        let texts = devices.iter().map(|device| chars(&device.name));
        names.iter_mut().zip(texts).for_each(|(place, text)| *place = text);
        Ok(room as isize)
    });
    count as c_int
}

/// `umad_get_ca_portguids`: of port 0, which a device that is no switch has not, and of the ports
/// from 1 on; how many places are filled.
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
        let needed = device.ports.len() + 1;
        let places = guids.slice(usize::try_from(max).unwrap_or(0)).unwrap_or_default();
        if places.len() < needed {
            let why = format!("room for {} GUIDs of {needed}", places.len());
            return Err(Failure::new(libc::ENOMEM, why));
        }
        let shown = device.ports.iter().map(|port| port.guid.to_be());
        places.iter_mut().zip(std::iter::once(0).chain(shown)).for_each(|(to, guid)| *to = guid);
        Ok(needed as isize)
    });
    count as c_int
}

/// `umad_get_ca`: a device with its ports, to be released.
pub(crate) extern "C" fn umad_get_ca(ca_name: Text, ca: Out<umad_ca>) -> c_int {
    crate::log::init();
    let said = boundary::negative("umad_get_ca", || {
        if ca.is_null() {
            return Err(Failure::null("a place for the device"));
        }
        let device = device(&ca_name)?;
        let mut held = umad_ca {
            ca_name: chars(&device.name),
            node_type: NODE_CA as u32,
            numports: device.ports.len() as c_int,
            fw_ver: chars(env!("CARGO_PKG_VERSION")),
            ca_type: chars("vernic"),
            hw_ver: chars(&device.revision.to_string()),
            node_guid: device.node_guid.to_be(),
            system_guid: device.system_guid.to_be(),
            ports: umad_ca::NO_PORTS,
        };
        for port in &device.ports {
            let place = held.ports.get_mut(usize::from(port.number));
            let made = c_port(&device, port)
                .and_then(|port| allocate(port).inspect_err(|_| forget_pkeys(port)));
            match (place, made) {
                (Some(place), Ok(made)) => *place = made,
                (None, Ok(_)) => return Err(Failure::invalid("a port beyond the last place")),
                (_, Err(failure)) => {
                    forget_ports(held);
                    return Err(failure);
                }
            }
        }
        ca.write(held);
        Ok(0)
    });
    said as c_int
}

/// `umad_get_port`: a port by its number, or the best there is (0), to be released.
pub(crate) extern "C" fn umad_get_port(ca: Text, number: c_int, out: Out<umad_port>) -> c_int {
    crate::log::init();
    let said = boundary::negative("umad_get_port", || {
        if out.is_null() {
            return Err(Failure::null("a place for the port"));
        }
        let device = device(&ca)?;
        out.write(c_port(&device, device.port(number)?)?);
        Ok(0)
    });
    said as c_int
}

fn forget_pkeys(port: umad_port) {
    // SAFETY: NULL, or of `calloc` in `allocate_all`, and not freed before (contract of
    // `pointer.rs`, 1).
    unsafe { libc::free(port.pkeys.cast()) };
}

fn forget_ports(ca: umad_ca) {
    for place in ca.ports {
        if let Ok(port) = Out::of_raw(place).require("a port") {
            forget_pkeys(port);
            // SAFETY: of `calloc` in `allocate`, as the P_Keys.
            unsafe { libc::free(place.cast()) };
        }
    }
}

/// `umad_release_port`.
pub(crate) extern "C" fn umad_release_port(port: Out<umad_port>) -> c_int {
    let said = boundary::negative("umad_release_port", || {
        let held = port.require("the port")?;
        forget_pkeys(held);
        port.write(umad_port { pkeys: ptr::null_mut(), pkeys_size: 0, ..held });
        Ok(0)
    });
    said as c_int
}

/// `umad_release_ca`.
pub(crate) extern "C" fn umad_release_ca(ca: Out<umad_ca>) -> c_int {
    let said = boundary::negative("umad_release_ca", || {
        let held = ca.require("the device")?;
        forget_ports(held);
        ca.write(umad_ca { ports: umad_ca::NO_PORTS, ..held });
        Ok(0)
    });
    said as c_int
}
