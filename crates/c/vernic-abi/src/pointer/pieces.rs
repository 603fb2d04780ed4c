//! Bytes of the program in pieces: `struct iovec`, `struct msghdr`, and what else calls for sockets
//! take.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::slice;

use libc::{EFAULT, EINVAL, iovec, socklen_t};

use super::{In, Out, OutArray, SockAddr, plain, sockaddr};
use crate::boundary::Failure;

plain! { libc::iovec, libc::msghdr, libc::pollfd, libc::epoll_event, libc::timeval }

/// Pieces that find room without an allocation.
const FEW: usize = 8;

/// Most pieces of one call (`IOV_MAX`).
const MOST: usize = 1024;

/// The pieces of a call, or a single one.
#[derive(Clone, Copy)]
pub(crate) enum Pieces {
    /// The bytes from here on, so many.
    One(*mut c_void, usize),
    /// An array, and its length.
    Array(In<iovec>, usize),
}

impl Pieces {
    /// The array of `readv` and its kin.
    pub(crate) fn array(array: In<iovec>, count: c_int) -> Result<Self, Failure> {
        match usize::try_from(count) {
            Ok(count) if count <= MOST => Ok(Self::Array(array, count)),
            _ => Err(Failure::new(EINVAL, format!("{count} pieces"))),
        }
    }

    /// The array of a message.
    pub(crate) fn of(message: &libc::msghdr) -> Result<Self, Failure> {
        match message.msg_iovlen {
            count if count <= MOST => Ok(Self::Array(In::tell(message.msg_iov), count)),
            count => Err(Failure::new(libc::EMSGSIZE, format!("{count} pieces"))),
        }
    }

    fn get(&self) -> Result<(iovec, Cow<'_, [iovec]>), Failure> {
        let none = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        match self {
            Self::One(iov_base, iov_len) => {
                Ok((iovec { iov_base: *iov_base, iov_len: *iov_len }, Cow::Borrowed(&[])))
            }
            Self::Array(array, count) => {
                let list = array.array(*count);
                Ok((none, list.ok_or_else(|| Failure::new(EFAULT, "no pieces"))?))
            }
        }
    }

    /// Hands the pieces to `call`, to be read.
    ///
    /// # Errors
    /// `EFAULT` for bytes that are nowhere.
    pub(crate) fn read<R>(self, call: impl FnOnce(&[IoSlice<'_>]) -> R) -> Result<R, Failure> {
        let (one, list) = self.get()?;
        let piece = |piece: &iovec| {
            if piece.iov_len == 0 {
                return Ok(IoSlice::new(&[]));
            }
            check(piece)?;
            // SAFETY: so many bytes, which nobody changes during the call (contract of
            // `pointer.rs`, 2).
            let bytes = unsafe { slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) };
            Ok(IoSlice::new(bytes))
        };
        if list.len() > FEW {
            let pieces = list.iter().map(piece).collect::<Result<Vec<_>, Failure>>()?;
            return Ok(call(&pieces));
        }
        let mut pieces = [IoSlice::new(&[]); FEW + 1];
        for (place, from) in pieces.iter_mut().zip(list.iter().chain([&one])) {
            *place = piece(from)?;
        }
        Ok(call(&pieces[..=list.len()]))
    }

    /// Hands the pieces to `call`, to be written.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    pub(crate) fn write<R>(
        self,
        call: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
    ) -> Result<R, Failure> {
        let (one, list) = self.get()?;
        let piece = |piece: &iovec| {
            if piece.iov_len == 0 {
                return Ok(IoSliceMut::new(&mut []));
            }
            check(piece)?;
            // SAFETY: so many writable bytes, which nobody else uses during the call (contract of
            // `pointer.rs`, 2). Pieces that overlap are a program's breach of it.
            let bytes = unsafe { slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) };
            Ok(IoSliceMut::new(bytes))
        };
        if list.len() > FEW {
            let mut pieces = list.iter().map(piece).collect::<Result<Vec<_>, Failure>>()?;
            return Ok(call(&mut pieces));
        }
        let mut pieces: [IoSliceMut<'_>; FEW + 1] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        for (place, from) in pieces.iter_mut().zip(list.iter().chain([&one])) {
            *place = piece(from)?;
        }
        Ok(call(&mut pieces[..=list.len()]))
    }
}

/// Refuses bytes that cannot be there.
fn check(piece: &iovec) -> Result<(), Failure> {
    let fits = isize::try_from(piece.iov_len).is_ok();
    match !piece.iov_base.is_null() && fits {
        true => Ok(()),
        false => Err(Failure::new(EFAULT, format!("{} bytes at NULL, or too many", piece.iov_len))),
    }
}

impl SockAddr {
    /// Fills an address of C's, as much of it as there is room for, and says how long it is. NULL
    /// for either wants nothing.
    pub(crate) fn fill(self, length: Out<socklen_t>, address: std::net::SocketAddr) {
        let Ok(room) = length.require("a length") else { return };
        if self.raw().is_null() {
            return;
        }
        let (bytes, used) = sockaddr::to_bytes(address);
        let mut place: OutArray<u8> = OutArray(self.raw().cast());
        let common = used.min(room as usize);
        if let Some(place) = place.slice(common) {
            place.copy_from_slice(&bytes[..common]);
        }
        length.write(used as socklen_t);
    }

    /// As [`require`](Self::require), of an address for which the program says how long it is.
    ///
    /// # Errors
    /// `EINVAL` for one that is too short, or NULL; as there.
    pub(crate) fn require_within(self, length: socklen_t) -> Result<std::net::SocketAddr, Failure> {
        let short = || Failure::invalid(format!("an address of {length} bytes is too short"));
        if (length as usize) < size_of::<libc::sockaddr_in>() {
            return Err(short());
        }
        let address = self.require("an address")?;
        let (_, used) = sockaddr::to_bytes(address);
        // Programs built for old headers leave the scope at the end of IPv6 addresses out.
        if (length as usize) < used.min(24) { Err(short()) } else { Ok(address) }
    }
}

impl<T> OutArray<T> {
    /// An array at an address that C gave in a field.
    pub(crate) fn told(start: *mut c_void) -> Self {
        Self(start.cast())
    }
}
