//! Shows a program the files of RDMA devices that the kernel does not have, without privilege, and
//! answers it where it asks the kernel about them by netlink.
//!
//! A few programs look for `/sys/class/infiniband` or `/dev/infiniband` themselves, or start `ls`
//! to do so. `vernic run` prepares a folder with these files and names it in `VERNIC_PATHS`; this
//! library, preloaded (`LD_PRELOAD`), stands before the functions of libc that take a path, and
//! puts the folder in front of such paths. Every other path, and everything without that variable,
//! goes through untouched.
//!
//! `rdma` of iproute2 asks the kernel by a socket of the family `NETLINK_RDMA`; with `VERNIC_PATHS`
//! such a socket is answered here.
//!
//! It lives in every process that the program starts, so it does next to nothing: it has no state
//! but the addresses of the next functions, prints nothing, and runs nothing when it is loaded; it
//! allocates only where it reads counters or answers netlink. A path that would become too long is
//! left alone.
//!
//! Limits: programs that make system calls themselves (static ones, Go) are not reached; nor is
//! what libc does by itself in `glob` and `nftw`. `/sys/class` does not list what is shown below
//! it. A path is known by its spelling: from the root, without `.` and `..` before what is shown
//! ends, and without links on the way. What is relative to a folder above (the working one after
//! `chdir("/sys/class")`, or that of a descriptor) is not seen; what is relative to a folder that
//! is shown is found there.
//!
//! | file | owns |
//! |---|---|
//! | `shown` | which paths are concerned, and where they lead |
//! | `libc_functions` | the functions that stand before those of libc and take a path, a line each |
//! | `fresh` | files whose content must be that of now: counters |
//! | `netlink` | sockets of the family `NETLINK_RDMA` |
//! | `nldev` | what is asked there, and the answers |
//! | `status` | what the processes of this host tell of a device |

mod fresh;
mod libc_functions;
mod netlink;
mod nldev;
mod shown;
mod status;
