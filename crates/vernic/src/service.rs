//! Services and bring-up states, as types: what does not apply does not exist.

use std::fmt::Debug;

mod sealed {
    /// Nobody else can add a service or a state.
    pub trait Sealed {}
}

pub(crate) use sealed::Sealed;

/// A transport service: [`Rc`], [`Uc`] or [`Ud`].
pub trait Service: Sealed + Debug + Send + Sync + 'static {
    /// The service as a value.
    const SERVICE: vernic_engine::Service;
}

/// A service with one peer per queue pair: [`Rc`] or [`Uc`].
pub trait Connected: Service {}

/// Reliable connection: every message arrives, once and in order, or both ends learn why not.
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connection: SEND and WRITE; a message that loses a packet is dropped whole.
#[derive(Clone, Copy, Debug)]
pub struct Uc;

/// Unreliable datagrams: SEND of up to one path MTU to any peer or multicast group.
#[derive(Clone, Copy, Debug)]
pub struct Ud;

macro_rules! services {
    ($($name:ident => $value:ident),*) => {
        $(
            impl Sealed for $name {}
            impl Service for $name {
                const SERVICE: vernic_engine::Service = vernic_engine::Service::$value;
            }
        )*
    };
}
services!(Rc => Rc, Uc => Uc, Ud => Ud);
impl Connected for Rc {}
impl Connected for Uc {}

/// A step of the bring-up that the type of a [`Qp`](crate::Qp) tells (IBTA 10.3.1).
///
/// Only the way up is in the type. What happens later (draining, errors) happens at run time, on
/// the peer's initiative too: [`Qp::state`](crate::Qp::state) tells.
pub trait State: Sealed + Debug + Send + Sync + 'static {}

/// Receives may be posted: [`Init`], [`Rtr`], [`Rts`].
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
