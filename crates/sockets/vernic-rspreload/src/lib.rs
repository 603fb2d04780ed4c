//! `librspreload.so`: a program written for TCP runs over RDMA, unmodified, by rsockets.
//!
//! Preloaded (`LD_PRELOAD`), it stands before the functions of libc that make and use sockets. A
//! stream socket of IPv4 or IPv6 gets a socket over RDMA beside its TCP socket; which of the two is
//! used is decided when it connects or is connected to:
//!
//! - `listen` listens on both, on one port, and `accept` takes what comes on either;
//! - `connect` asks by RDMA first. Where that is not possible (the address is of no device, nobody
//!   listens there, no answer in time) it asks by TCP, and the socket is an ordinary one from then
//!   on.
//!
//! So programs reach each other over RDMA where both are under this library, and anybody else over
//! TCP. The TCP socket stays the descriptor that the program has: what it asks the system about it
//! (`fstat`, options that rsockets do not know) has an answer. All other descriptors go through
//! untouched, at the price of looking at one bit.
//!
//! It calls `librdmacm.so.1` by name, loaded with the first socket; it does nothing when it is
//! loaded itself, and prints nothing.
//!
//! | variable | meaning |
//! |---|---|
//! | `VERNIC_RSOCKETS` | `auto` (both, as above), `only` (no TCP: what cannot go over RDMA fails), `off` |
//! | `VERNIC_RSOCKETS_CONNECT_MS` | wait so long for an answer by RDMA before TCP is asked (2000) |
//! | `RS_SQ_SIZE`, `RS_RQ_SIZE`, `RS_INLINE` | sizes of new sockets over RDMA |
//! | `RDMAV_FORK_SAFE` | connections go over to RDMA with their first use, maybe in a child (`forked.rs`) |
//!
//! `/etc/rdma/rsocket/preload_config` chooses programs and sockets, as for rdma-core's library;
//! without it, all streams are meant, and datagrams are not: a datagram to somebody who does not
//! speak this protocol would not be understood.
//!
//! Limits: programs that make system calls themselves (static ones, Go) are not reached, nor is
//! what libc does by itself: streams of stdio over a socket (`fdopen`), name resolution.
//! `sendmmsg`, `recvmmsg`, `splice` and io_uring use the TCP socket, which is not connected. A
//! connection does not survive `exec`, and a child of `fork` has none of its parent's unless
//! `RDMAV_FORK_SAFE` is set.
//!
//! | file | what |
//! |---|---|
//! | `real` `rdmacm` | the functions behind: libc's, and those for sockets over RDMA |
//! | `config` | variables and the file |
//! | `table` | which descriptors are sockets of this library, and what each is |
//! | `sockets` `connect` `transfer` `options` | the calls that programs make |
//! | `address` | addresses as they give them |
//! | `ready` `epoll` | waiting |
//! | `forked` `turn` | connections that go over to RDMA with their first use, one process's at a time |
//!
//! Every exported function has the name, the signature and the contract of libc's; the SAFETY
//! comments call that *the contract*.

mod address;
mod config;
mod connect;
mod epoll;
mod forked;
mod lock;
mod options;
mod rdmacm;
mod ready;
mod real;
mod sockets;
mod table;
mod token;
mod transfer;
mod turn;
