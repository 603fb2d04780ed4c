//! What differs between RC, UC and UD for a workload: how a queue pair comes up, and which requests it
//! takes. Everything else is the same code, generic over the service as the API is.

use crate::bench::spec::{Op, Spec};
use crate::failure::{Doing, Failure, Outcome};
use vernic::memory::Gather;
use vernic::{
    Access, AckTimeout, Ah, Connected, Endpoint, Init, InitAttr, Kind, MrSlice, Mtu, Path, Pd,
    Qkey, Qp, Rc, RcOptions, RemoteAddr, Reset, Rts, SendBatch, Service, Uc, UcOptions, Ud, UdInit,
    Wr, WrId,
};

/// The Q_Key of the bench: datagrams without it are not for it.
const QKEY: Qkey = Qkey(0x1111_1111);

/// One message to post.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'m, G> {
    pub(super) wr_id: WrId,
    /// Bytes that go out: memory or inline.
    pub(super) from: G,
    /// Where bytes that come back go.
    pub(super) into: MrSlice<'m>,
    /// Memory of the peer.
    pub(super) remote: RemoteAddr,
    pub(super) signaled: bool,
    /// Immediate data.
    pub(super) imm: Option<u32>,
}

/// A service as the workloads need it.
pub(super) trait Flavor: Service + Sized {
    /// What a request needs to find its way, beside the queue pair.
    type Route: 'static;

    /// To Init, granting the peer what `access` says.
    fn init(qp: Qp<Self, Reset>, access: Access) -> Outcome<Qp<Self, Init>>;

    /// To RTS, towards `peer`, with the numbers of `spec`.
    fn connect(
        pd: &Pd,
        qp: Qp<Self, Init>,
        peer: Endpoint,
        path: Path,
        spec: &Spec,
    ) -> Outcome<(Qp<Self, Rts>, Self::Route)>;

    /// Adds a request to a batch.
    fn add<G: Gather>(
        batch: &mut SendBatch<'_, Self>,
        route: &Self::Route,
        op: Op,
        request: Request<'_, G>,
    ) -> Outcome<()>;
}

/// What a peer must be allowed for `op`.
pub(super) fn rights(op: Op) -> Access {
    match op {
        Op::Send => Access::NONE,
        Op::Write => Access::NONE.remote_write(),
        Op::Read => Access::NONE.remote_read(),
        Op::Atomic => Access::NONE.remote_atomic(),
    }
}

fn to_init(what: impl std::fmt::Display) -> String {
    format!("bring a queue pair up for {what}")
}

/// An operation that the service does not have; [`Spec::check`](crate::bench::spec::Spec::check) came first.
fn no_such(op: Op) -> Failure {
    Failure::new(format!("the service has no {op}"))
}

/// [`Flavor::add`] for what RC and UC share: SEND and WRITE.
fn add_message<S: Connected, G: Gather>(
    batch: &mut SendBatch<'_, S>,
    op: Op,
    request: Request<'_, G>,
) -> Outcome<()> {
    let Request { wr_id, from, remote, signaled, imm, .. } = request;
    match (op, imm) {
        (Op::Send, None) => flag(batch.send(wr_id, from), signaled),
        (Op::Send, Some(imm)) => flag(batch.send_imm(wr_id, from, imm), signaled),
        (Op::Write, None) => flag(batch.write(wr_id, from, remote), signaled),
        (Op::Write, Some(imm)) => flag(batch.write_imm(wr_id, from, remote, imm), signaled),
        (op, _) => return Err(no_such(op)),
    }
    Ok(())
}

/// Asks for a completion, if one is wanted.
fn flag<S: Service, K: Kind>(wr: Wr<'_, S, K>, signaled: bool) {
    if signaled {
        let _ = wr.signaled();
    }
}

impl Flavor for Rc {
    type Route = ();

    fn init(qp: Qp<Self, Reset>, access: Access) -> Outcome<Qp<Self, Init>> {
        qp.init(InitAttr::granting(access)).doing(|| to_init("RC"))
    }

    fn connect(
        _pd: &Pd,
        qp: Qp<Self, Init>,
        peer: Endpoint,
        path: Path,
        spec: &Spec,
    ) -> Outcome<(Qp<Self, Rts>, ())> {
        // Both were checked with the spec: at most 31 and 128.
        let (timeout, outstanding) = (spec.qp_timeout as u8, spec.outstanding as u8);
        let options = RcOptions {
            path,
            path_mtu: Mtu::from_bytes(spec.mtu),
            timeout: AckTimeout::new(timeout),
            max_rd_atomic: outstanding,
            max_dest_rd_atomic: outstanding,
            ..RcOptions::default()
        };
        // The error names the attempt and the peer itself.
        let qp =
            qp.connect_with(peer, &options).map_err(|error| Failure::new(error.to_string()))?;
        Ok((qp, ()))
    }

    fn add<G: Gather>(
        batch: &mut SendBatch<'_, Self>,
        _route: &(),
        op: Op,
        request: Request<'_, G>,
    ) -> Outcome<()> {
        let Request { wr_id, into, remote, signaled, .. } = request;
        match op {
            Op::Send | Op::Write => return add_message(batch, op, request),
            Op::Read => flag(batch.read(wr_id, into, remote), signaled),
            Op::Atomic => flag(batch.fetch_add(wr_id, into, remote, 1), signaled),
        }
        Ok(())
    }
}

impl Flavor for Uc {
    type Route = ();

    fn init(qp: Qp<Self, Reset>, access: Access) -> Outcome<Qp<Self, Init>> {
        qp.init(InitAttr::granting(access)).doing(|| to_init("UC"))
    }

    fn connect(
        _pd: &Pd,
        qp: Qp<Self, Init>,
        peer: Endpoint,
        path: Path,
        spec: &Spec,
    ) -> Outcome<(Qp<Self, Rts>, ())> {
        let options = UcOptions { path, path_mtu: Mtu::from_bytes(spec.mtu) };
        // The error names the attempt and the peer itself.
        let qp =
            qp.connect_with(peer, &options).map_err(|error| Failure::new(error.to_string()))?;
        Ok((qp, ()))
    }

    fn add<G: Gather>(
        batch: &mut SendBatch<'_, Self>,
        _route: &(),
        op: Op,
        request: Request<'_, G>,
    ) -> Outcome<()> {
        add_message(batch, op, request)
    }
}

impl Flavor for Ud {
    type Route = (Ah, Endpoint);

    fn init(qp: Qp<Self, Reset>, _access: Access) -> Outcome<Qp<Self, Init>> {
        qp.init(UdInit { qkey: QKEY }).doing(|| to_init("UD"))
    }

    fn connect(
        pd: &Pd,
        qp: Qp<Self, Init>,
        peer: Endpoint,
        path: Path,
        _spec: &Spec,
    ) -> Outcome<(Qp<Self, Rts>, (Ah, Endpoint))> {
        let ah = pd.create_ah_with(peer.gid, &path).doing(|| format!("find a way to {peer}"))?;
        let qp = qp.activate().doing(|| to_init("UD"))?;
        Ok((qp, (ah, peer)))
    }

    fn add<G: Gather>(
        batch: &mut SendBatch<'_, Self>,
        (ah, peer): &(Ah, Endpoint),
        op: Op,
        request: Request<'_, G>,
    ) -> Outcome<()> {
        let Request { wr_id, from, signaled, imm, .. } = request;
        let to = ah.to_endpoint(peer, QKEY);
        match (op, imm) {
            (Op::Send, None) => flag(batch.send_to(wr_id, from, to), signaled),
            (Op::Send, Some(imm)) => flag(batch.send_to_imm(wr_id, from, to, imm), signaled),
            _ => return Err(no_such(op)),
        }
        Ok(())
    }
}
