//! The shortest program: one RDMA WRITE between two queue pairs of this process.
#![expect(clippy::print_stdout, reason = "a command-line program")]

use std::time::Duration;
use vernic::{Access, Device, InitAttr, Rc, WrId};

fn main() -> Result<(), vernic::Error> {
    let device = Device::open("lo")?; // any netdev; `Device::open_default()` takes the main one
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let make = || pd.qp::<Rc>().send_cq(&cq).recv_cq(&cq).create();
    let (a, b) = (make()?, make()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint()); // 24 bytes each, to be sent to the peer

    let source = pd.alloc_mr(4096, Access::NONE)?;
    let target = pd.alloc_mr(4096, Access::NONE.remote_write())?;
    let _b = b.init(InitAttr::granting(Access::NONE.remote_write()))?.connect(at_a)?;
    let a = a.connect(at_b)?;

    source.write_at(0, b"hello, RDMA")?;
    a.post_write(WrId(1), source.slice(..11)?, target.remote().at(100))?;
    cq.wait_one(Duration::from_secs(5))?; // a failure says which peer, which packet, and why
    assert_eq!(target.to_vec(100..111)?, b"hello, RDMA");
    println!("one RDMA WRITE, 11 bytes, arrived");
    Ok(())
}
