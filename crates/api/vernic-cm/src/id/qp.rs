//! The queue pair of an id: attributes for each state, and the transitions that the id makes.

use std::sync::Arc;

use vernic_engine::{Access, AttrMask, Psn, Qp, QpAttr, QpState, QpType, RnrTimer};

use crate::device::Device;
use crate::error::Error;
use crate::id::alternate::put_alternate;
use crate::id::apply::vector;
use crate::id::connection::{Connection, Peer};
use crate::id::{Id, Inner};

/// The time that a peer waits after RNR NAK: code 12, 0.64 ms. Code 0, which Linux gives, would be
/// 655 ms.
const MIN_RNR_TIMER: u8 = 12;

impl Id {
    /// The queue pair, if one is attached.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.look(|inner| inner.qp.clone()).flatten()
    }

    /// Attaches a queue pair, whose states the id changes from now on: to Init at once, and a
    /// datagram queue pair to RTS.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::HasQp`], [`Error::WrongQp`] for a queue pair of another type
    /// or device, [`Error::Modify`].
    pub fn attach_qp(&self, qp: Arc<Qp>) -> Result<(), Error> {
        let mut inner = self.enter("attach_qp")?;
        let device = inner.device.as_ref().ok_or(Error::NoDevice { call: "attach_qp" })?;
        if let Some(qp) = &inner.qp {
            return Err(Error::HasQp(qp.qpn()));
        }
        if !Arc::ptr_eq(qp.context(), &device.context) {
            return Err(of_other_device(&qp, device));
        }
        self.fits(&qp)?;
        self.bring(&inner, &qp, QpState::Init)?;
        if self.qp_type() == QpType::Ud {
            self.bring(&inner, &qp, QpState::Rtr)?;
            self.bring(&inner, &qp, QpState::Rts)?;
        }
        inner.qp = Some(qp);
        Ok(())
    }

    /// Attaches a queue pair of the program's own in its current state, in place of the one that
    /// the id had, which is left as it is.
    ///
    /// # Errors
    /// [`Error::WrongQp`] for a queue pair of another type or device; then the id has none.
    pub fn adopt_qp(&self, qp: Arc<Qp>) -> Result<(), Error> {
        let mut inner = self.enter("adopt_qp")?;
        inner.leave_groups_of_qp();
        inner.qp = None;
        self.fits(&qp)?;
        if let Some(device) = &inner.device {
            // A connection by messages may use any queue pair of the device, a connection by a
            // stream only those of the context that has the stream.
            let suits = match device.agent() {
                Some(_) => qp.context().info().name == device.context.info().name,
                None => Arc::ptr_eq(qp.context(), &device.context),
            };
            if !suits {
                return Err(of_other_device(&qp, device));
            }
        }
        inner.qp = Some(qp);
        Ok(())
    }

    fn fits(&self, qp: &Qp) -> Result<(), Error> {
        let (own, other) = (qp.qp_type(), self.qp_type());
        match own == other {
            true => Ok(()),
            false => {
                let what = format!("is {own:?}, and the id is for {other:?}");
                Err(Error::WrongQp { qpn: qp.qpn(), what })
            }
        }
    }

    /// Detaches the queue pair in its current state, and from the groups that it joined through the
    /// id.
    pub fn detach_qp(&self) -> Option<Arc<Qp>> {
        let mut inner = self.enter("detach_qp").ok()?;
        inner.leave_groups_of_qp();
        inner.qp.take()
    }

    /// The attributes that bring a queue pair of this id to `state`, and the mask of that
    /// transition: for programs that bring their own queue pair up.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::State`] for states that need a peer, if there is none;
    /// [`Error::Value`] for states other than Init, RTR and RTS.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        let mut inner = self.enter("init_qp_attr")?;
        inner.drop_unusable_alternate();
        self.attr(&inner, state)
    }

    pub(crate) fn attr(&self, inner: &Inner, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        if inner.device.is_none() {
            return Err(Error::NoDevice { call: "init_qp_attr" });
        }
        let datagrams = self.qp_type() == QpType::Ud;
        let (port, (pkey_index, _)) = (inner.port_num(), inner.pkey_row());
        let mut attr = QpAttr { state, port, pkey_index, ..QpAttr::default() };
        let mut mask = AttrMask::STATE;
        match state {
            QpState::Init if datagrams => {
                attr.qkey = self.qkey(inner);
                mask |= AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
            }
            QpState::Init if self.is_over_stream(inner) => {
                attr.access = inner.connection.as_ref().map_or(0, rights);
                mask |= AttrMask::PORT | AttrMask::ACCESS_FLAGS;
            }
            // The stream itself brings the queue pair to RTS; these attributes suit programs that
            // do so.
            QpState::Rtr if self.is_over_stream(inner) => {
                attr.access = inner.connection.as_ref().map_or(0, rights);
                mask |= AttrMask::ACCESS_FLAGS;
            }
            QpState::Rts if self.is_over_stream(inner) => mask = AttrMask::empty(),
            QpState::Init => {
                attr.access = inner.connection.as_ref().map_or(0, rights);
                mask |= AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
            }
            QpState::Rtr if datagrams => {}
            QpState::Rts if datagrams => {
                attr.sq_psn = Psn::new(0);
                mask |= AttrMask::SQ_PSN;
            }
            QpState::Rtr | QpState::Rts => {
                let connection = inner.connection.as_ref();
                let with_peer = connection.and_then(|c| Some((c, c.peer.as_ref()?)));
                let (connection, peer) = with_peer
                    .ok_or_else(|| self.wrong_state(inner, "init_qp_attr", "has a peer"))?;
                mask |= match state {
                    QpState::Rtr => self.to_rtr(inner, connection, peer, &mut attr),
                    _ => self.to_rts(inner.device.as_ref(), connection, peer, &mut attr),
                };
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

    fn is_over_stream(&self, inner: &Inner) -> bool {
        inner.device.as_ref().is_some_and(|device| device.agent().is_none())
    }

    fn to_rtr(
        &self,
        inner: &Inner,
        connection: &Connection,
        peer: &Peer,
        attr: &mut QpAttr,
    ) -> AttrMask {
        if let (Some(path), Some(device)) = (inner.path(), &inner.device) {
            attr.av = vector(device, &path);
        }
        attr.path_mtu = connection.path_mtu;
        attr.dest_qpn = peer.qpn;
        // Each side chooses the PSN that the other starts with (IBTA 12.7).
        attr.rq_psn = connection.psn;
        let mask = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        if !matches!(self.qp_type(), QpType::Rc | QpType::XrcTgt) {
            return mask;
        }
        attr.max_dest_rd_atomic = connection.responder_resources;
        attr.min_rnr_timer = RnrTimer::new(MIN_RNR_TIMER);
        mask | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER
    }

    fn to_rts(
        &self,
        device: Option<&Arc<Device>>,
        connection: &Connection,
        peer: &Peer,
        attr: &mut QpAttr,
    ) -> AttrMask {
        attr.sq_psn = peer.psn;
        attr.timeout = connection.ack_timeout;
        attr.retry_cnt = connection.retry_count;
        attr.rnr_retry = peer.rnr_retry_count;
        // The peer's limit must not be exceeded.
        attr.max_rd_atomic = connection.initiator_depth.min(peer.initiator_depth);
        let alternate = match (connection.alternate, device) {
            (Some(alternate), Some(device)) => put_alternate(device, &alternate, attr),
            _ => AttrMask::empty(),
        };
        alternate
            | match self.qp_type() {
                QpType::Rc | QpType::XrcIni => {
                    AttrMask::SQ_PSN
                        | AttrMask::TIMEOUT
                        | AttrMask::RETRY_CNT
                        | AttrMask::RNR_RETRY
                        | AttrMask::MAX_RD_ATOMIC
                }
                QpType::XrcTgt => AttrMask::SQ_PSN | AttrMask::TIMEOUT,
                QpType::Uc | QpType::Ud => AttrMask::SQ_PSN,
            }
    }

    pub(crate) fn bring(&self, inner: &Inner, qp: &Qp, state: QpState) -> Result<(), Error> {
        let (attr, mask) = self.attr(inner, state)?;
        Ok(qp.modify(&attr, mask)?)
    }
}

fn of_other_device(qp: &Qp, device: &Device) -> Error {
    let (own, other) = (&qp.context().info().name, &device.context.info().name);
    let what = match own == other {
        true => format!("is of another context of {own} than the id"),
        false => format!("is of {own}, and the id is on {other}"),
    };
    Error::WrongQp { qpn: qp.qpn(), what }
}

/// The peer's access rights to this side's memory, as far as memory regions allow it.
fn rights(connection: &Connection) -> u32 {
    match connection.responder_resources {
        0 => Access::REMOTE_WRITE.bits(),
        _ => (Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC).bits(),
    }
}
