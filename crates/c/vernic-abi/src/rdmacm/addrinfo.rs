//! Names and services to addresses: `rdma_getaddrinfo`, which asks the system's `getaddrinfo`.
//!
//! What a call returns is made of pieces of `malloc`, as programs expect: some replace an address
//! in it by one of their own before they free it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use vernic_cm::{EventKind, GidAddr};
use vernic_wire::{Gid, Pkey};

use super::id::and_complete;
use crate::boundary::{self, Failure};
use crate::layout::cm::{port_space, rai, rdma_addrinfo, rdma_cm_id};
use crate::layout::qp::qpt;
use crate::log;
use crate::pointer::sockaddr::{INFINIBAND_BYTES, infiniband_bytes};
use crate::pointer::{Handle, In, Out, SockAddr, Text, plain};

plain! { rdma_addrinfo, *mut rdma_addrinfo }

/// An answer with nothing in it.
const EMPTY: rdma_addrinfo = rdma_addrinfo {
    ai_flags: 0,
    ai_family: 0,
    ai_qp_type: 0,
    ai_port_space: 0,
    ai_src_len: 0,
    ai_dst_len: 0,
    ai_src_addr: SockAddr::NULL,
    ai_dst_addr: SockAddr::NULL,
    ai_src_canonname: ptr::null_mut(),
    ai_dst_canonname: ptr::null_mut(),
    ai_route_len: 0,
    ai_route: ptr::null_mut(),
    ai_connect_len: 0,
    ai_connect: ptr::null_mut(),
    ai_next: ptr::null_mut(),
};

/// Why there is no answer.
pub(crate) struct Unresolved {
    /// What `rdma_getaddrinfo` returns: a code of `gai_strerror`, or -1.
    code: c_int,
    /// What `errno` is then.
    pub(crate) failure: Failure,
}

impl From<Failure> for Unresolved {
    fn from(failure: Failure) -> Self {
        Self { code: -1, failure }
    }
}

/// An answer of `rdma_getaddrinfo`; freed when dropped, unless C gets it.
pub(crate) struct Answer(*mut rdma_addrinfo);

// SAFETY: owns memory of `malloc`, which any thread may free.
unsafe impl Send for Answer {}

impl Answer {
    /// One without an address.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn empty() -> Result<Self, Failure> {
        // SAFETY: `calloc` may be asked for any size; NULL is looked at.
        let memory = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) };
        match memory.is_null() {
            true => Err(Failure::new(libc::ENOMEM, "no memory for the answer")),
            false => Ok(Self(memory.cast())),
        }
    }

    /// What it says.
    fn fields(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: allocated as all zeros, which are a value, and only this value has it.
        unsafe { &mut *self.0 }
    }

    /// For C, which frees it with `rdma_freeaddrinfo`.
    pub(crate) fn into_raw(self) -> *mut rdma_addrinfo {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl Answer {
    /// A copy of an answer that the program has not seen, and so cannot have changed.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn copy(&self) -> Result<Self, Failure> {
        let mut copy = Self::empty()?;
        // SAFETY: of `empty`, and only this value has it.
        let from = unsafe { self.0.read() };
        let to = copy.fields();
        *to = rdma_addrinfo {
            ai_flags: from.ai_flags,
            ai_family: from.ai_family,
            ai_qp_type: from.ai_qp_type,
            ai_port_space: from.ai_port_space,
            ..EMPTY
        };
        (to.ai_src_addr, to.ai_src_len) = address(&from.ai_src_addr.copy(from.ai_src_len)?)?;
        (to.ai_dst_addr, to.ai_dst_len) = address(&from.ai_dst_addr.copy(from.ai_dst_len)?)?;
        Ok(copy)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        rdma_freeaddrinfo(self.0);
    }
}

/// Memory of `malloc` with these bytes in it; NULL for none.
fn allocate(bytes: &[u8]) -> Result<*mut c_void, Failure> {
    if bytes.is_empty() {
        return Ok(ptr::null_mut());
    }
    // SAFETY: any size may be asked for; NULL is looked at.
    let memory = unsafe { libc::malloc(bytes.len()) };
    if memory.is_null() {
        return Err(Failure::new(libc::ENOMEM, "no memory for an address"));
    }
    // SAFETY: so many bytes were just allocated.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
    Ok(memory)
}

/// An address and its length, as fields of an answer.
fn address(bytes: &[u8]) -> Result<(SockAddr, libc::socklen_t), Failure> {
    Ok((SockAddr::told(allocate(bytes)?.cast()), bytes.len() as libc::socklen_t))
}

/// What the system's call gave.
struct Resolved {
    family: c_int,
    socktype: c_int,
    protocol: c_int,
    address: Vec<u8>,
    canonical: Vec<u8>,
}

/// Whether addresses of InfiniBand are wanted.
fn is_native(hints: &rdma_addrinfo) -> bool {
    hints.ai_flags & rai::FAMILY != 0 && hints.ai_family == libc::AF_IB
}

impl Resolved {
    /// Makes an IPv6 address, as whose text a GID is written, one of InfiniBand, in the default
    /// partition.
    fn make_native(&mut self, hints: &rdma_addrinfo) {
        let Some(bytes) =
            self.address.first_chunk::<28>().filter(|_| self.family == libc::AF_INET6)
        else {
            return;
        };
        let mut gid = Gid([0; 16]);
        gid.0.copy_from_slice(&bytes[8..24]);
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let space = match hints.ai_port_space as u32 {
            0 if self.protocol == libc::IPPROTO_UDP => port_space::UDP,
            0 => port_space::TCP,
            space => space,
        };
        let service = u64::from(space) << 16 | u64::from(port);
        let address = GidAddr { gid, port, pkey: Pkey::DEFAULT };
        self.address = infiniband_bytes(address, service)[..INFINIBAND_BYTES].to_vec();
        self.family = libc::AF_IB;
    }
}

/// The hints of the system's call that stand for those of ours.
fn system_hints(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: of integers and pointers, of which zero is a value.
    let mut to: libc::addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & rai::PASSIVE != 0 {
        to.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & rai::NUMERICHOST != 0 {
        to.ai_flags |= libc::AI_NUMERICHOST;
    }
    to.ai_family = match hints.ai_family {
        // A GID is written as an IPv6 address is.
        _ if is_native(hints) => libc::AF_INET6,
        family @ (libc::AF_INET | libc::AF_INET6) => family,
        _ => 0,
    };
    to.ai_socktype = match hints.ai_qp_type as u32 {
        qpt::RC | qpt::UC | qpt::XRC_SEND | qpt::XRC_RECV => libc::SOCK_STREAM,
        qpt::UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    to.ai_protocol = match (hints.ai_port_space as u32, to.ai_socktype) {
        (port_space::TCP, _) | (port_space::IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (port_space::UDP | port_space::IPOIB, _) | (port_space::IB, libc::SOCK_DGRAM) => {
            libc::IPPROTO_UDP
        }
        _ => 0,
    };
    to
}

/// The system's `getaddrinfo`: the first address.
fn ask(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&rdma_addrinfo>,
) -> Result<Resolved, Unresolved> {
    let text = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    let hints = hints.map(system_hints);
    let hints = hints.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut list = ptr::null_mut();
    // SAFETY: texts that end with a zero, hints, a place for the answer; all live during the call.
    let code = unsafe { libc::getaddrinfo(text(node), text(service), hints, &raw mut list) };
    if code != 0 {
        return Err(refused(code, node, service));
    }
    // SAFETY: the call succeeded, so there is a list with at least one entry, whose address has the
    // length that it says and whose name is NULL or ends with a zero.
    let resolved = unsafe {
        let first = &*list;
        let (start, length) = (first.ai_addr.cast::<u8>(), first.ai_addrlen as usize);
        let canonical = match first.ai_canonname.is_null() {
            true => Vec::new(),
            false => CStr::from_ptr(first.ai_canonname).to_bytes_with_nul().to_vec(),
        };
        Resolved {
            family: first.ai_family,
            socktype: first.ai_socktype,
            protocol: first.ai_protocol,
            address: std::slice::from_raw_parts(start, length).to_vec(),
            canonical,
        }
    };
    // SAFETY: the list of above, which nothing refers to any more.
    unsafe { libc::freeaddrinfo(list) };
    Ok(resolved)
}

/// A refusal of the system's call. Its code is what programs print, with `gai_strerror`.
fn refused(code: c_int, node: Option<&CStr>, service: Option<&CStr>) -> Unresolved {
    // SAFETY: gives a text of its own for every number.
    let said = unsafe { CStr::from_ptr(libc::gai_strerror(code)) }.to_string_lossy();
    let errno = match code {
        libc::EAI_SYSTEM => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        libc::EAI_MEMORY => libc::ENOMEM,
        libc::EAI_AGAIN => libc::EAGAIN,
        libc::EAI_NONAME | libc::EAI_NODATA => libc::EADDRNOTAVAIL,
        _ => libc::EINVAL,
    };
    let failure = Failure::new(errno, format!("node {node:?}, service {service:?}: {said}"));
    Unresolved { code, failure }
}

/// What `rdma_getaddrinfo` answers.
pub(crate) fn resolve(
    node: Text,
    service: Text,
    hints: In<rdma_addrinfo>,
) -> Result<Answer, Unresolved> {
    let (node, service, hints) = (node.read(), service.read(), hints.read());
    if node.is_none() && service.is_none() && hints.is_none() {
        return Err(Failure::invalid("neither node nor service nor hints").into());
    }
    let wanted = hints.unwrap_or(EMPTY);
    if wanted.ai_flags & rai::SA != 0 {
        let what = "names of InfiniBand's subnet administration (RAI_SA)";
        return Err(Failure::unsupported(what).into());
    }
    let mut answer = Answer::empty()?;
    let to = answer.fields();
    to.ai_flags = wanted.ai_flags;
    to.ai_family = wanted.ai_family;
    to.ai_qp_type = wanted.ai_qp_type;
    to.ai_port_space = wanted.ai_port_space;
    if node.is_none() && service.is_none() {
        let bytes = wanted.ai_dst_addr.copy(wanted.ai_dst_len)?;
        (to.ai_dst_addr, to.ai_dst_len) = address(&bytes)?;
    } else {
        let mut found = ask(node, service, hints.as_ref())?;
        if is_native(&wanted) {
            found.make_native(&wanted);
        }
        fill(to, &found)?;
    }
    if to.ai_src_len == 0 {
        let bytes = wanted.ai_src_addr.copy(wanted.ai_src_len)?;
        (to.ai_src_addr, to.ai_src_len) = address(&bytes)?;
    }
    Ok(answer)
}

/// Puts an address where the flags say, and what hints left open.
fn fill(to: &mut rdma_addrinfo, from: &Resolved) -> Result<(), Failure> {
    // Of the flags an answer has the one that says what it is.
    to.ai_flags &= rai::PASSIVE;
    to.ai_family = from.family;
    if to.ai_qp_type == 0 {
        to.ai_qp_type = match from.socktype {
            libc::SOCK_DGRAM => qpt::UD as c_int,
            _ => qpt::RC as c_int,
        };
    }
    if to.ai_port_space == 0 {
        to.ai_port_space = match from.protocol {
            libc::IPPROTO_UDP => port_space::UDP as c_int,
            _ => port_space::TCP as c_int,
        };
    }
    let canonical: *mut c_char = allocate(&from.canonical)?.cast();
    if to.ai_flags & rai::PASSIVE != 0 {
        to.ai_src_canonname = canonical;
        (to.ai_src_addr, to.ai_src_len) = address(&from.address)?;
    } else {
        to.ai_dst_canonname = canonical;
        (to.ai_dst_addr, to.ai_dst_len) = address(&from.address)?;
    }
    Ok(())
}

/// `rdma_getaddrinfo`: 0, or a code for `gai_strerror` with `errno` beside it, or -1 and `errno`.
pub(crate) extern "C" fn rdma_getaddrinfo(
    node: Text,
    service: Text,
    hints: In<rdma_addrinfo>,
    result: Out<*mut rdma_addrinfo>,
) -> c_int {
    log::init();
    result.write(ptr::null_mut());
    let mut code = -1;
    let answer = boundary::outcome("rdma_getaddrinfo", || {
        if result.is_null() {
            return Err(Failure::null("a place for the answer"));
        }
        resolve(node, service, hints).map_err(|unresolved| {
            code = unresolved.code;
            unresolved.failure
        })
    });
    match answer {
        Some(answer) => {
            result.write(answer.into_raw());
            0
        }
        None => code,
    }
}

/// `rdma_resolve_addrinfo`, since rdma-core 58: as `rdma_getaddrinfo`, with an event that tells the
/// outcome and [`rdma_query_addrinfo`] for the answer. The system is asked before this returns.
pub(crate) extern "C-unwind" fn rdma_resolve_addrinfo(
    id: Handle<rdma_cm_id>,
    node: Text,
    service: Text,
    hints: In<rdma_addrinfo>,
) -> c_int {
    and_complete("rdma_resolve_addrinfo", id, |id| {
        let (kind, status) = match resolve(node, service, hints) {
            Ok(answer) => {
                id.keep_answer(answer);
                (EventKind::AddrInfoResolved, 0)
            }
            Err(unresolved) if unresolved.code == -1 => return Err(unresolved.failure),
            Err(unresolved) => {
                tracing::warn!("rdma_resolve_addrinfo: {}", unresolved.failure.why());
                (EventKind::AddrInfoError, -unresolved.failure.errno)
            }
        };
        Ok(id.engine.write_event(kind, status, 0)?)
    })
}

/// `rdma_query_addrinfo`, since rdma-core 58: what `rdma_resolve_addrinfo` found; `ENODATA` if
/// nothing.
pub(crate) extern "C" fn rdma_query_addrinfo(
    id: Handle<rdma_cm_id>,
    result: Out<*mut rdma_addrinfo>,
) -> c_int {
    result.write(ptr::null_mut());
    boundary::minus_one("rdma_query_addrinfo", || {
        let object = id.get()?;
        if result.is_null() {
            return Err(Failure::null("a place for the answer"));
        }
        let answer = object.answer()?.ok_or_else(|| {
            Failure::new(libc::ENODATA, "the id has looked for no address, or found none")
        })?;
        result.write(answer.into_raw());
        Ok(0)
    })
}

/// `rdma_freeaddrinfo`: the whole list.
pub(crate) extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    let mut at = list;
    // As many turns as the list has entries.
    while !at.is_null() {
        // SAFETY: NULL, or from `rdma_getaddrinfo` and not freed before (contract of `pointer.rs`,
        // 1); its parts are NULL or of `malloc`, also those that the program put there.
        unsafe {
            let entry = at.read();
            libc::free(entry.ai_src_addr.raw().cast());
            libc::free(entry.ai_dst_addr.raw().cast());
            libc::free(entry.ai_src_canonname.cast());
            libc::free(entry.ai_dst_canonname.cast());
            libc::free(entry.ai_route);
            libc::free(entry.ai_connect);
            libc::free(at.cast());
            at = entry.ai_next;
        }
    }
}
