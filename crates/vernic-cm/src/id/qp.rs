//! The queue pair of an id: attributes for each state, and the transitions that the id makes.

use std::sync::Arc;

use vernic_engine::{AttrMask, Qp, QpAttr, QpState, QpType};
use vernic_wire::{PortNum, Psn};

use crate::error::Error;
use crate::id::{Id, Inner};
use crate::param::UDP_QKEY;

impl Id {
    /// Its queue pair, if one is attached.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.look(|inner| inner.qp.clone()).flatten()
    }

    /// Gives it a queue pair, which the id from now on brings up and down: to Init at once, and a
    /// datagram's to RTS.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::HasQp`], [`Error::WrongQp`] for a queue pair of another type or
    /// device, [`Error::Modify`].
    pub fn attach_qp(&self, qp: Arc<Qp>) -> Result<(), Error> {
        let mut inner = self.enter("attach_qp")?;
        let device = inner.device.as_ref().ok_or(Error::NoDevice { call: "attach_qp" })?;
        if let Some(qp) = &inner.qp {
            return Err(Error::HasQp(qp.qpn()));
        }
        let wrong = |what: String| Error::WrongQp { qpn: qp.qpn(), what };
        if !Arc::ptr_eq(qp.context(), &device.context) {
            let (own, other) = (&qp.context().info().name, &device.context.info().name);
            return Err(wrong(format!("is of {own}, and the id is on {other}")));
        }
        if qp.qp_type() != self.qp_type() {
            let (own, other) = (qp.qp_type(), self.qp_type());
            return Err(wrong(format!("is {own:?}, and the id is for {other:?}")));
        }
        self.bring(&inner, &qp, QpState::Init)?;
        if self.qp_type() == QpType::Ud {
            self.bring(&inner, &qp, QpState::Rtr)?;
            self.bring(&inner, &qp, QpState::Rts)?;
        }
        inner.qp = Some(qp);
        Ok(())
    }

    /// Takes its queue pair away, as it is, out of the groups that it is in by way of the id.
    pub fn detach_qp(&self) -> Option<Arc<Qp>> {
        let mut inner = self.enter("detach_qp").ok()?;
        inner.leave_groups_of_qp();
        inner.qp.take()
    }

    /// The attributes that bring a queue pair of this id to `state`, and which of them that
    /// transition takes: for programs that bring their own queue pair up.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::State`] for states that need a peer, without one;
    /// [`Error::Value`] for states other than Init, RTR and RTS.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        let inner = self.enter("init_qp_attr")?;
        self.attr(&inner, state)
    }

    pub(crate) fn attr(&self, inner: &Inner, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        if inner.device.is_none() {
            return Err(Error::NoDevice { call: "init_qp_attr" });
        }
        let datagrams = self.qp_type() == QpType::Ud;
        let mut attr = QpAttr { state, port: PortNum(1), ..QpAttr::default() };
        let mut mask = AttrMask::STATE;
        match state {
            QpState::Init => {
                mask |= AttrMask::PKEY_INDEX | AttrMask::PORT;
                if datagrams {
                    attr.qkey = UDP_QKEY;
                    mask |= AttrMask::QKEY;
                } else {
                    mask |= AttrMask::ACCESS_FLAGS;
                }
            }
            QpState::Rtr if datagrams => {}
            QpState::Rts if datagrams => {
                attr.sq_psn = Psn::new(0);
                mask |= AttrMask::SQ_PSN;
            }
            QpState::Rtr | QpState::Rts => {
                return Err(self.wrong_state(inner, "init_qp_attr", "has a peer"));
            }
            other => {
                return Err(Error::Value {
                    what: "state of the queue pair",
                    value: other as u64,
                    allowed: "Init, RTR or RTS (1 to 3)".to_owned(),
                });
            }
        }
        Ok((attr, mask))
    }

    pub(crate) fn bring(&self, inner: &Inner, qp: &Qp, state: QpState) -> Result<(), Error> {
        let (attr, mask) = self.attr(inner, state)?;
        Ok(qp.modify(&attr, mask)?)
    }
}
