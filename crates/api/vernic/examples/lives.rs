//! The lives of ARCHITECTURE.md, once each: two RC WRITEs by the wire or through memory, or a
//! connection from its first call to its last. `cargo xtask lives` runs this program under gdb and
//! compares the order in which functions are entered with the tables of that page.
//!
//! `lives wire`, `lives memory` or `lives connection`; by itself it prints nothing.

use std::net::SocketAddr;
use std::time::Duration;

use vernic::cm::{Manager, Options};
use vernic::{Access, Cq, Device, Error, InitAttr, Rc, Wc, WrId};

/// How long anything may take. A debugger is slow.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long it takes until nothing is on its way.
const QUIET: Duration = Duration::from_millis(100);

fn main() -> Result<(), Error> {
    match std::env::args().nth(1).as_deref() {
        Some("wire") => write(1),
        Some("memory") => write(2),
        Some("connection") => connection(),
        _ => panic!("usage: lives wire|memory|connection"),
    }
}

/// Marks where a life begins: the debugger looks at nothing before.
#[inline(never)]
fn life_begins() {}

/// WRITEs of 8 bytes between two queue pairs of this process, `times` of them with one key.
fn write(times: u64) -> Result<(), Error> {
    let device = Device::open("lo")?;
    let pd = device.alloc_pd()?;
    let rights = Access::NONE.local_write().remote_write();
    let [cq_a, cq_b] = [device.create_cq(16)?, device.create_cq(16)?];
    let make = |cq| pd.qp::<Rc>().send_cq(cq).recv_cq(cq).create();
    let (a, b) = (make(&cq_a)?, make(&cq_b)?);
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let a = a.init(InitAttr::granting(rights))?.connect(to_b)?;
    let b = b.init(InitAttr::granting(rights))?.connect(to_a)?;
    let (here, there) = (pd.alloc_mr(8, rights)?, pd.alloc_mr(8, rights)?);
    // SENDs let the processes connect, so that the WRITEs find their route decided.
    for id in 0..64 {
        b.post_recv(WrId(id), &there)?;
        a.post_send(WrId(id), &here)?;
        complete(&cq_a)?;
        complete(&cq_b)?;
    }
    // The last acknowledgements and timers of the SENDs belong to no life.
    std::thread::sleep(QUIET);
    life_begins();
    for id in 0..times {
        a.post_write(WrId(id), &here, there.remote().at(0))?;
        complete(&cq_a)?;
    }
    Ok(())
}

/// Polls for one completion, and checks that it is no error.
fn complete(cq: &Cq) -> Result<(), Error> {
    let mut wcs = [Wc::default()];
    while cq.poll(&mut wcs)?.is_empty() {}
    cq.check(&wcs[0])?;
    Ok(())
}

/// A connection between two threads of this process, made and ended.
fn connection() -> Result<(), Error> {
    let manager = Manager::open()?;
    life_begins();
    let listener = manager.listen::<Rc>("127.0.0.1:0".parse().expect("an address"))?;
    let address: SocketAddr = listener.local_addr();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| client(&manager, address));
        let request = listener.next(Some(TIMEOUT))?;
        let qp = queue_pair(request.device())?;
        let mut connection = request.prepare(qp)?.accept(&Options::default())?;
        connection.wait_disconnected(Some(TIMEOUT))?;
        drop(connection); // answers the client's disconnection
        client.join().expect("the client does not panic")
    })
}

fn client(manager: &Manager, address: SocketAddr) -> Result<(), Error> {
    let route = manager.resolve::<Rc>(address)?;
    let qp = queue_pair(route.device())?;
    let connection = route.prepare(qp)?.connect(&Options::default())?;
    Ok(connection.disconnect()?)
}

fn queue_pair(device: &Device) -> Result<vernic::Qp<Rc, vernic::Reset>, Error> {
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16)?;
    Ok(pd.qp().send_cq(&cq).recv_cq(&cq).create()?)
}
