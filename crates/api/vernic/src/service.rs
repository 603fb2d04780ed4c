//! Services and bring-up states, as types: what does not apply does not exist.

use std::fmt::Debug;

mod sealed {
    /// Nobody else can add a service or a state.
    pub trait Sealed {}
}

pub(crate) use sealed::Sealed;

/// What a queue pair can be: of a [`Service`], or one end of an XRC connection, [`XrcIni`] or
/// [`XrcTgt`].
pub trait Transport: Sealed + Debug + Send + Sync + 'static {
    /// Its transport service as a value.
    const SERVICE: vernic_engine::Service;
}

/// A transport service whose queue pairs send and receive: [`Rc`], [`Uc`] or [`Ud`].
pub trait Service: Transport {}

/// One peer per queue pair: all but [`Ud`].
pub trait Peered: Transport {}

/// A service with one peer per queue pair: [`Rc`] or [`Uc`].
#[diagnostic::on_unimplemented(
    message = "a queue pair of `{Self}` has no peer of its own",
    label = "`Rc` or `Uc` is needed here",
    note = "datagrams name their destination: `post_send_to`"
)]
pub trait Connected: Service + Peered {}

/// Requests of every kind can be sent, and arrive or fail: [`Rc`], [`XrcIni`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no READ, no atomics and no invalidation of keys",
    label = "a reliable service is needed here",
    note = "`Rc` has them: `pd.qp::<Rc>()`"
)]
pub trait Reliable: Peered {}

/// The peer may be granted access to memory: [`Rc`], [`Uc`], [`XrcTgt`].
pub trait Responds: Peered {}

/// Reliable connection: every message arrives, once and in order, or both ends learn why not.
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connection: SEND and WRITE; a message that loses a packet is dropped whole.
#[derive(Clone, Copy, Debug)]
pub struct Uc;

/// Unreliable datagrams: SEND of up to one path MTU to any peer or multicast group.
#[derive(Clone, Copy, Debug)]
pub struct Ud;

/// The initiator of an XRC connection: it sends what RC sends, each request to a shared receive
/// queue that it names, and receives nothing. See [`Xrcd`](crate::Xrcd).
#[derive(Clone, Copy, Debug)]
pub struct XrcIni;

/// The target of an XRC connection: it answers for all shared receive queues of its
/// [domain](crate::Xrcd), and has no queue of its own.
#[derive(Clone, Copy, Debug)]
pub struct XrcTgt;

macro_rules! transports {
    ($($name:ident is $value:ident: $($what:ident)*;)*) => {
        $(
            impl Sealed for $name {}
            impl Transport for $name {
                const SERVICE: vernic_engine::Service = vernic_engine::Service::$value;
            }
            $(impl $what for $name {})*
        )*
    };
}
transports! {
    Rc is Rc: Service Peered Connected Reliable Responds;
    Uc is Uc: Service Peered Connected Responds;
    Ud is Ud: Service;
    XrcIni is Xrc: Peered Reliable;
    XrcTgt is Xrc: Peered Responds;
}

/// A step of the bring-up that the type of a [`Qp`](crate::Qp) tells (IBTA 10.3.1).
///
/// Only the way up is in the type. What happens later (draining, errors) happens at run time, on
/// the peer's initiative too: [`Qp::state`](crate::Qp::state) tells.
pub trait State: Sealed + Debug + Send + Sync + 'static {}

/// Receives may be posted: [`Init`], [`Rtr`], [`Rts`].
#[diagnostic::on_unimplemented(
    message = "a queue pair in `{Self}` takes no receives",
    label = "receives are posted from `Init` on",
    note = "call `init` first, post the receives, then `connect`"
)]
pub trait CanReceive: State {}

/// Created; has a number, accepts nothing.
#[derive(Clone, Copy, Debug)]
pub struct Reset;
/// Receives may be posted; nothing is received yet.
#[derive(Clone, Copy, Debug)]
pub struct Init;
/// Ready to receive.
#[derive(Clone, Copy, Debug)]
pub struct Rtr;
/// Ready to send.
#[derive(Clone, Copy, Debug)]
pub struct Rts;

macro_rules! states {
    ($($name:ident),*) => { $(impl Sealed for $name {} impl State for $name {})* };
}
states!(Reset, Init, Rtr, Rts);
impl CanReceive for Init {}
impl CanReceive for Rtr {}
impl CanReceive for Rts {}
