//! The verbs objects, as applications hold them (IBTA 10.2, 11.2).

pub(crate) mod addresses;
pub(crate) mod ah;
pub(crate) mod awaited;
pub(crate) mod channel;
pub(crate) mod close;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod dm;
pub(crate) mod handle;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod place;
pub(crate) mod qp_init;
pub(crate) mod route;
pub(crate) mod srq;
pub(crate) mod status;
pub(crate) mod tables;
pub(crate) mod wr;
pub(crate) mod xrc;
pub(crate) mod xrc_domain;
