//! What differs between RC, UC and UD for a workload: how a queue pair comes up, and which requests
//! it takes. Everything else is the same code, generic over the service as the API is.

use crate::bench::control::ANSWER_TIMEOUT;
use crate::failure::{Doing, Failure, Outcome};
use crate::spec::{Op, Spec};
use std::net::{IpAddr, SocketAddr};
use vernic::iwarp::{self, Listener};
use vernic::memory::Gather;
use vernic::{
    Access, AckTimeout, Ah, Connected, Device, Endpoint, Init, InitAttr, Kind, MrSlice, Mtu, Path,
    Pd, Qkey, Qp, Rc, RcOptions, RemoteAddr, Reset, Rts, SendBatch, Service, Uc, UcOptions, Ud,
    UdInit, Wr, WrId,
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

    /// To RTS, towards what `peer` says, with the numbers of `spec`.
    fn connect(
        pd: &Pd,
        qp: Qp<Self, Init>,
        peer: &str,
        path: Path,
        spec: &Spec,
    ) -> Outcome<(Qp<Self, Rts>, Self::Route)>;

    /// To RTS, by the next connection that comes.
    fn accept(qp: Qp<Self, Init>, listener: &Listener) -> Outcome<(Qp<Self, Rts>, Self::Route)> {
        let (_, _) = (qp, listener);
        Err(Failure::new("TCP carries RC alone"))
    }

    /// Adds a request to a batch.
    fn add<G: Gather>(
        batch: &mut SendBatch<'_, Self>,
        route: &Self::Route,
        op: Op,
        request: Request<'_, G>,
    ) -> Outcome<()>;
}

/// What a peer must be allowed for `spec`.
pub(super) fn rights(spec: &Spec) -> Access {
    let access = match spec.op {
        Op::Send => Access::NONE,
        Op::Write => Access::NONE.remote_write(),
        Op::Read => Access::NONE.remote_read(),
        Op::Atomic => Access::NONE.remote_atomic(),
    };
    // What TCP carries ends with a READ.
    if spec.service.tcp().is_some() { access.remote_read() } else { access }
}

/// Which side of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It connects, where one does.
    Active,
    /// It listens.
    Passive,
}

/// How TCP connections of `spec` are made.
fn tcp_options(spec: &Spec) -> iwarp::Options {
    iwarp::Options {
        crc: spec.service.tcp().unwrap_or(false),
        // Checked with the spec: at most 128.
        read_depth: spec.outstanding as u8,
        patience: ANSWER_TIMEOUT,
    }
}

/// Where the passive side takes connections of what TCP carries: at the device's first address.
pub(super) fn listener(device: &Device, spec: &Spec, end: End) -> Outcome<Option<Listener>> {
    if spec.service.tcp().is_none() || end == End::Active {
        return Ok(None);
    }
    let home = SocketAddr::new(home(device)?, 0);
    let listener = Listener::bind(device, home, &tcp_options(spec));
    listener.map(Some).map_err(|error| Failure::new(error.to_string()))
}

/// The address of a device that TCP connections of this bench have.
fn home(device: &Device) -> Outcome<IpAddr> {
    let addresses = &device.info().port.addresses;
    let first = addresses.iter().find(|addr| addr.ip.is_ipv4()).or(addresses.first());
    first.map(|addr| addr.ip).ok_or_else(|| Failure::new("the device has no IP address"))
}

fn endpoint(text: &str) -> Outcome<Endpoint> {
    text.parse().doing(|| "read the other side's endpoint".into())
}

fn to_init(what: impl std::fmt::Display) -> String {
    format!("bring a queue pair up for {what}")
}

/// An operation that the service does not have; [`Spec::check`](crate::spec::Spec::check)
/// came first.
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
        peer: &str,
        path: Path,
        spec: &Spec,
    ) -> Outcome<(Qp<Self, Rts>, ())> {
        if spec.service.tcp().is_some() {
            let peer = peer.parse().doing(|| "read the other side's address".into())?;
            let local = home(qp.device())?;
            let qp = qp
                .connect_tcp(local, peer, &tcp_options(spec))
                .map_err(|error| Failure::new(error.to_string()))?;
            return Ok((qp, ()));
        }
        let peer = endpoint(peer)?;
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

    fn accept(qp: Qp<Self, Init>, listener: &Listener) -> Outcome<(Qp<Self, Rts>, ())> {
        let qp = listener.accept(qp).map_err(|error| Failure::new(error.to_string()))?;
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
        peer: &str,
        path: Path,
        spec: &Spec,
    ) -> Outcome<(Qp<Self, Rts>, ())> {
        let peer = endpoint(peer)?;
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
        peer: &str,
        path: Path,
        _spec: &Spec,
    ) -> Outcome<(Qp<Self, Rts>, (Ah, Endpoint))> {
        let peer = endpoint(peer)?;
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
