//! The C libraries: one shared object that is `libibverbs.so.1`, `librdmacm.so.1` and
//! `libibumad.so.3`, so that unmodified verbs programs run on a machine without RDMA hardware.
//!
//! Loaded in the place of rdma-core's libraries by `LD_LIBRARY_PATH`, under their names; calls
//! `vernic-engine`. Owns the translation between the C objects of `infiniband/verbs.h` and the
//! engine's, and nothing that a queue pair or a region is: those are the engine's.
//!
//! | file | what |
//! |---|---|
//! | `layout/` | the C side: structs, constants, tables of functions, checked when compiled |
//! | `pointer.rs` | pointers from C, and the contract under which they are followed |
//! | `boundary.rs` | conventions of return values, no unwinding into C |
//! | `failure.rs` | the errno of every error |
//! | `object.rs` | counts of what uses an object, locks |
//! | `ibverbs/shared.rs` | what C objects keep of the engine, which event is of which object |
//! | `ibverbs/` | the verbs, one file per family |
//! | `rdmacm/` | the connection manager, one file per kind of call |
//! | `umad/` | libibumad: devices and ports, management datagrams of a fabric |
//! | `exit.rs` | what is done when the program ends |
//! | `waiting.rs` | calls that wait: cancelled threads, signals |
//! | `abi/exports.txt`, `refusal.rs` | the exported symbols and their versions, and what refuses |
//! | `log.rs` | lines on standard error, if `VERNIC_LOG` asks |
//!
//! Rules: nothing runs and nothing is printed when the library is loaded. Values from C are data:
//! an unknown enumerator or flag is `EINVAL` or `EOPNOTSUPP`. The data path (`ibverbs/send.rs`,
//! `ibverbs/recv.rs`, `ibverbs/cq.rs`) allocates nothing.
//!
//! `unsafe` is in `pointer.rs`, `ibverbs/wr_list.rs`, and at single places that say why.

mod boundary;
mod exit;
mod failure;
mod ibverbs;
mod layout;
mod log;
mod object;
mod pointer;
mod rdmacm;
mod refusal;
mod umad;
mod waiting;

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
