//! The list of the devices' names, since rdma-core 25. A node is of `calloc`, and so is its name.

use std::ffi::{CStr, c_int};
use std::ptr;

use super::ca::allocate;
use super::shown::devices;
use crate::boundary::{self, Failure};
use crate::ibverbs::device::chars;
use crate::layout::umad::{NAME_BYTES, umad_device_node};
use crate::pointer::{Out, plain};

plain! { umad_device_node, *mut umad_device_node }

/// Puts a device in front of a list; NULL, with the list freed, where there is no memory.
fn push(list: *mut umad_device_node, name: &str) -> Result<*mut umad_device_node, Failure> {
    let name = allocate(chars::<NAME_BYTES>(name)).inspect_err(|_| free(list))?;
    let node = umad_device_node { next: list, ca_name: name.cast() };
    allocate(node).inspect_err(|_| {
        // SAFETY: just allocated.
        unsafe { libc::free(name.cast()) };
        free(list);
    })
}

/// `umad_get_ca_device_list`: NULL for none, `errno` is 0 then.
pub(crate) extern "C" fn umad_get_ca_device_list() -> *mut umad_device_node {
    let list = boundary::outcome("umad_get_ca_device_list", || {
        let devices = devices()?;
        devices.iter().rev().try_fold(ptr::null_mut(), |list, device| push(list, &device.name))
    });
    match list {
        None => ptr::null_mut(),
        Some(list) => {
            if list.is_null() {
                boundary::set_errno(0);
            }
            list
        }
    }
}

/// The nodes of a list, in their order. As many turns as it has nodes, which the program must not
/// have made a ring of.
fn nodes(list: *mut umad_device_node) -> Vec<(*mut umad_device_node, umad_device_node)> {
    let (mut nodes, mut at) = (Vec::new(), list);
    while let Ok(node) = Out::of_raw(at).require("a node") {
        nodes.push((at, node));
        at = node.next;
    }
    nodes
}

fn free(list: *mut umad_device_node) {
    for (place, node) in nodes(list) {
        // SAFETY: both of `calloc` in `push`, and freed once (contract of `pointer.rs`, 1).
        unsafe {
            libc::free(node.ca_name.cast_mut().cast());
            libc::free(place.cast());
        }
    }
}

/// `umad_free_ca_device_list`.
pub(crate) extern "C" fn umad_free_ca_device_list(list: *mut umad_device_node) {
    free(list);
}

/// `umad_sort_ca_device_list`: by name. `size` is how many there are, or 0; a positive errno.
pub(crate) extern "C" fn umad_sort_ca_device_list(
    head: Out<*mut umad_device_node>,
    size: usize,
) -> c_int {
    boundary::errno("umad_sort_ca_device_list", || {
        let mut nodes = nodes(head.require("the list")?);
        if size != 0 && size != nodes.len() {
            return Err(Failure::invalid(format!("{size} devices of {}", nodes.len())));
        }
        // SAFETY: a text of `push`.
        nodes.sort_by_key(|(_, node)| unsafe { CStr::from_ptr(node.ca_name) });
        let mut next = ptr::null_mut();
        for (place, node) in nodes.into_iter().rev() {
            Out::of_raw(place).write(umad_device_node { next, ..node });
            next = place;
        }
        head.write(next);
        Ok(())
    })
}
