//! The verbs: `libibverbs.so.1`.

pub(crate) mod ah;
pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod event;
pub(crate) mod fork;
pub(crate) mod gid;
pub(crate) mod import;
pub(crate) mod kern;
mod mapped;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod qp_ex;
pub(crate) mod query;
pub(crate) mod rates;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod srq;
pub(crate) mod strings;
pub(crate) mod wr_list;
pub(crate) mod xrc;
