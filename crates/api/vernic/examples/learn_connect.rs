//! The book, docs/learn-connect.md: a connection by IP address and port, as `rdma_cm` makes them.
//!
//! Words: `nobody` connects to a port at which nobody listens, `reject` to a server that is busy.
#![expect(clippy::print_stdout, reason = "a command-line program")]

#[path = "common/two_ends.rs"]
mod two_ends;

use std::net::SocketAddr;

use two_ends::{PATIENCE, word};
use vernic::cm::{CmError, Listener, Manager, Options};
use vernic::{Access, Error, Inline, Rc, WrId};

fn main() -> Result<(), Error> {
    let mistake = word(&["nobody", "reject"])?;
    let manager = Manager::open()?;
    if mistake == "nobody" {
        return client(&manager, ([127, 0, 0, 1], 9).into());
    }
    // Port 0: one that is free.
    let listener = manager.listen::<Rc>(([127, 0, 0, 1], 0).into())?;
    let address = listener.local_addr();
    let is_busy = mistake == "reject";
    let server = std::thread::spawn(move || server(&listener, is_busy));
    client(&manager, address)?;
    server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn server(listener: &Listener<Rc>, is_busy: bool) -> Result<(), Error> {
    // As accept() of a socket: a client that wants to connect, and what it says with that.
    let request = listener.next(None)?;
    println!("server: a client says {:?}", text(request.private_data()));
    if is_busy {
        return Ok(request.reject(b"come back tomorrow")?);
    }
    // The address decided which device the connection is on.
    let (pd, cq) = (request.device().alloc_pd()?, request.device().create_cq(16)?);
    let memory = pd.alloc_mr(64, Access::NONE.local_write())?;
    let prepared = request.prepare(pd.qp().send_cq(&cq).recv_cq(&cq).create()?)?;
    prepared.qp().post_recv(WrId(1), &memory)?; // before the client can send
    let options = Options { private_data: b"welcome", ..Options::default() };
    let mut connection = prepared.accept(&options)?;
    let received = cq.wait_one(PATIENCE)?;
    println!("server: received {:?}", text(&memory.to_vec(..received.byte_len() as usize)?));
    connection.wait_disconnected(Some(PATIENCE))?;
    println!("server: the client has disconnected");
    Ok(())
}

fn client(manager: &Manager, address: SocketAddr) -> Result<(), Error> {
    // As connect(): first the route, which names the device, then the queue pair, then the peer.
    let route = manager.resolve::<Rc>(address)?;
    let (pd, cq) = (route.device().alloc_pd()?, route.device().create_cq(16)?);
    let prepared = route.prepare(pd.qp().send_cq(&cq).recv_cq(&cq).create()?)?;
    let options = Options { private_data: b"hello", ..Options::default() };
    let connection = match prepared.connect(&options) {
        Ok(connection) => connection,
        Err(CmError::Rejected { reason, private_data, .. }) => {
            println!("client: rejected, {reason}");
            println!("client: the server says {:?}", text(&private_data));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    println!("client: connected, the server says {:?}", text(connection.private_data()));
    connection.qp().post_send(WrId(2), Inline(b"a message"))?;
    cq.wait_one(PATIENCE)?;
    Ok(connection.disconnect()?)
}

/// Private data have a fixed size; what was not used is zero.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}
