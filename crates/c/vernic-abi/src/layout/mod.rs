//! The C side of the border: structs, constants and function tables of `infiniband/verbs.h` and
//! `rdma/rdma_cma.h`.
//!
//! One file per family of objects. Names are those of the header, so that a reader finds them
//! there. An enumeration of C is an integer here: its values come from programs, and may be
//! anything. Each struct is checked for size and offsets when this is compiled (x86-64 and other
//! 64-bit targets lay them out alike), and against the installed headers by `tests/layout.rs`.
#![allow(non_camel_case_types, reason = "the names of the header")]

pub(crate) mod ah;
pub(crate) mod cm;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod memory;
pub(crate) mod pd;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod qp_ex;
pub(crate) mod srq;
pub(crate) mod umad;
pub(crate) mod wr;

/// A function pointer that nothing calls: its place in a table stays empty.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

/// Room for a `pthread_mutex_t`; programs never use it.
pub(crate) type Mutex = [u64; 5];
/// Room for a `pthread_cond_t`; programs never use it.
pub(crate) type Cond = [u64; 6];

macro_rules! sizes {
    ($($name:ident = $bytes:literal),* $(,)?) => {
        $(const _: () = assert!(std::mem::size_of::<$name>() == $bytes);)*
    };
}
macro_rules! offsets {
    ($($name:ident { $($field:ident = $bytes:literal),* $(,)? })*) => {
        $($(const _: () = assert!(std::mem::offset_of!($name, $field) == $bytes);)*)*
    };
}
pub(crate) use {offsets, sizes};
