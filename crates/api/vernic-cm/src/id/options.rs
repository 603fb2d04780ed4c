//! Options of ids.

use vernic_engine::QpType;
use vernic_wire::AckTimeout;

use crate::error::Error;
use crate::id::Id;
use crate::state::State;
use crate::sync::lock;

/// The ACK timeout of connections whose program sets none: 4.096 us * 2^17 = 0.54 s, as Linux uses
/// for RoCE (a packet life time of 2^16, one way).
const ACK_TIMEOUT: u8 = 17;

/// An option of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdOption {
    /// Type of service: the IP traffic class of the connection, from the next resolution on.
    Tos(u8),
    /// Whether the id shares its port with other ids of this process that share, as long as none
    /// listens.
    ReuseAddr(bool),
    /// Whether a wildcard covers only its own IP version. An IPv4 wildcard always does.
    AfOnly(bool),
    /// The ACK timeout that the connection asks for: an exponent n, 1 to 31, of 4.096 us * 2^n.
    AckTimeout(u8),
}

/// The options of an id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) tos: u8,
    pub(crate) reuse_addr: bool,
    pub(crate) af_only: Option<bool>,
    pub(crate) ack_timeout: AckTimeout,
}

impl Default for Options {
    fn default() -> Self {
        let ack_timeout = AckTimeout::new(ACK_TIMEOUT);
        Self { tos: 0, reuse_addr: false, af_only: None, ack_timeout }
    }
}

impl Id {
    /// Sets an option.
    ///
    /// # Errors
    /// [`Error::State`] if it is too late for the option, [`Error::Value`], [`Error::Orphan`].
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        let mut inner = self.enter("set_option")?;
        match option {
            IdOption::Tos(tos) => inner.options.tos = tos,
            IdOption::ReuseAddr(reuse) => {
                if inner.state == State::Listen && reuse {
                    return Err(self.wrong_state(
                        &inner,
                        "set_option(ReuseAddr)",
                        "does not listen",
                    ));
                }
                inner.options.reuse_addr = reuse;
            }
            IdOption::AfOnly(only) => {
                if !matches!(inner.state, State::Idle | State::Bound) {
                    let needs = "is new or bound";
                    return Err(self.wrong_state(&inner, "set_option(AfOnly)", needs));
                }
                inner.options.af_only = Some(only);
            }
            IdOption::AckTimeout(exponent) => {
                if !matches!(self.qp_type(), QpType::Rc | QpType::XrcIni) {
                    return Err(Error::Value {
                        what: "ACK timeout",
                        value: exponent.into(),
                        allowed: format!("none: {:?} has no ACKs", self.qp_type()),
                    });
                }
                if !(1..=31).contains(&exponent) {
                    let (what, allowed) = ("ACK timeout", "1 to 31".to_owned());
                    return Err(Error::Value { what, value: exponent.into(), allowed });
                }
                inner.options.ack_timeout = AckTimeout::new(exponent);
            }
        }
        let (reuse, af_only) = (inner.options.reuse_addr, inner.options.af_only);
        if let (Some(mut binding), Some(local)) = (inner.bound, inner.local) {
            binding.reuse = reuse;
            binding.af_only = af_only.unwrap_or(binding.af_only);
            inner.bound = Some(binding);
            lock(&self.shared.ports).update(self.port_space(), local.port(), binding);
        }
        Ok(())
    }
}
