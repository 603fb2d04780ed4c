//! The machine behind a queue pair: the one place that knows which services there are.

use crate::congestion::Controller;
use crate::cx::QpInit;
use crate::rc::Rc;
use crate::state::QpType;
use crate::uc::Uc;
use crate::ud::Ud;

/// The service's own state.
#[derive(Debug)]
pub(super) enum Machine {
    Rc(Box<Rc>),
    Uc(Box<Uc>),
    Ud(Box<Ud>),
}

impl Machine {
    pub(super) fn new(init: &QpInit, controller: Controller) -> Self {
        match init.qp_type {
            QpType::Rc | QpType::XrcIni | QpType::XrcTgt => {
                Self::Rc(Box::new(Rc::new(init, controller)))
            }
            QpType::Uc => Self::Uc(Box::new(Uc::new(init, controller))),
            QpType::Ud => Self::Ud(Box::new(Ud::new(init))),
        }
    }
}

/// Calls a method of [`Transport`](crate::transport::Transport) on whichever machine there is.
macro_rules! each {
    ($machine:expr, $m:ident => $call:expr) => {
        match $machine {
            Machine::Rc($m) => $call,
            Machine::Uc($m) => $call,
            Machine::Ud($m) => $call,
        }
    };
}

pub(super) use each;
