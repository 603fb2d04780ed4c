//! One-sided operations: the client works in the server's memory while the server sleeps. At the
//! end it reaches too far, to show how a failure explains itself.
//!
//! `write_read_atomic server`, then `write_read_atomic client HOST`; or without arguments for both
//! ends at once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::TcpStream;

use common::{Role, TIMEOUT};
use vernic::{
    Access, Cq, Error, InitAttr, Pd, Qp, Rc, RemoteAddr, RemoteMr, Rts, WcStatus, WrId, oob,
};

/// Bytes of the server's region: a counter, then a message.
const LEN: usize = 4096;
const COUNTER: u64 = 0;
const MESSAGE: usize = 64;

fn main() -> Result<(), Error> {
    common::run(end)
}

fn end(stream: &mut TcpStream, role: Role) -> Result<(), Error> {
    let device = common::open_device(stream)?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(64)?;
    let rights = match role {
        Role::Server => Access::NONE.remote_write().remote_read().remote_atomic(),
        Role::Client => Access::NONE,
    };
    let qp = pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create()?;
    let remote = oob::exchange_endpoints(stream, qp.endpoint())?;
    let qp = qp.init(InitAttr::granting(rights))?.connect(remote)?;

    let region = pd.alloc_mr(LEN, rights)?;
    let theirs = oob::exchange_regions(stream, region.remote())?;
    match role {
        Role::Client => {
            one_sided(&pd, &cq, &qp, theirs)?;
            oob::barrier(stream)?;
            too_far(&pd, &cq, &qp, theirs)?;
        }
        Role::Server => {
            // Nothing to do until the client says that it is through.
            oob::barrier(stream)?;
            assert_eq!(region.load_u64(COUNTER as usize)?, 100);
            assert_eq!(region.to_vec(MESSAGE..MESSAGE + 5)?, b"hello");
        }
    }
    oob::barrier(stream)?;
    Ok(())
}

fn one_sided(pd: &Pd, cq: &Cq, qp: &Qp<Rc, Rts>, theirs: RemoteMr) -> Result<(), Error> {
    let local = pd.alloc_mr(LEN, Access::NONE.local_write())?;
    local.write_at(0, b"hello")?;

    // One doorbell for all of it. The fence makes the READ wait for the atomics before it; on one
    // queue pair the WRITE is in place by then anyway.
    let mut batch = qp.send_batch();
    batch.write(WrId(1), local.slice(..5)?, theirs.at(MESSAGE as u64));
    batch.fetch_add(WrId(2), local.slice(8..16)?, theirs.at(COUNTER), 42);
    batch.cmp_swap(WrId(3), local.slice(16..24)?, theirs.at(COUNTER), 42, 100);
    batch.read(WrId(4), local.slice(1024..2048)?, theirs.at(0)).fence().signaled();
    batch.commit()?;
    // The only signaled one, and the last: with it all are complete.
    let wc = cq.wait_one(TIMEOUT)?;
    assert_eq!(wc.wr_id(), WrId(4));

    println!("counter before FETCH_ADD: {}", local.load_u64(8)?);
    println!("counter before CMP_SWAP:  {}", local.load_u64(16)?);
    println!("counter by READ:          {}", local.load_u64(1024)?);
    let read = local.to_vec(1024 + MESSAGE..1024 + MESSAGE + 5)?;
    println!("message by READ:          {}", String::from_utf8_lossy(&read));
    Ok(())
}

fn too_far(pd: &Pd, cq: &Cq, qp: &Qp<Rc, Rts>, theirs: RemoteMr) -> Result<(), Error> {
    let local = pd.alloc_mr(8, Access::NONE.local_write())?;
    // `theirs.at(..)` would be refused here, since it knows the region's end; this is not.
    let beyond = RemoteAddr::new(theirs.addr + theirs.len, theirs.rkey);
    qp.post_read(WrId(5), &local, beyond)?;
    match cq.wait_one(TIMEOUT) {
        Err(Error::Completion(error)) => {
            assert_eq!(error.status(), WcStatus::RemoteAccess);
            println!("and beyond the end:       {error}");
            Ok(())
        }
        other => panic!("a READ beyond the end of the region: {other:?}"),
    }
}
