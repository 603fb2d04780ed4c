//! `libmlx5.so.1` and `libefa.so.1` where neither device is: everything refuses, nothing is
//! missing.
//!
//! perftest, UCX, libfabric and pyverbs are linked against both libraries and do not start without
//! them. The real ones work only with the libibverbs of their own release, whose private symbols
//! they import. These work with any: they import nothing of it, say of each device that it is not
//! theirs, and refuse the rest with EOPNOTSUPP, as the real ones do for a device of another vendor.
//!
//! One library under both names (symbolic links); it keeps no state, so copies do no harm either.
//! `abi/exports.txt` lists the symbols; `refuse` has an answer per kind of result, `mlx5` those
//! functions that have to fill in something, too.

mod mlx5;
mod refuse;

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
