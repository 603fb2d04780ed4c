//! One server, many clients, all in one process and on one thread: the server accepts whoever
//! comes and grants a table; each client takes a row of it by an atomic, writes its name there and
//! reads the row before its own, without the server's doing.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;
use vernic::net::{Connection, Listener};
use vernic::{Access, Error, Inline, Mr, RemoteMr};

const CLIENTS: u64 = 8;
/// Bytes of a row. The first row is the count of those that are taken.
const ROW: usize = 32;

fn main() -> Result<(), Error> {
    common::block_on(async {
        let listener = Listener::bind("127.0.0.1:0").await?;
        let place = listener.local_addr();
        let mut clients = JoinSet::new();
        (0..CLIENTS).for_each(|number| _ = clients.spawn(client(place, number)));
        serve(listener).await?;
        while let Some(ended) = clients.join_next().await {
            ended.map_err(std::io::Error::other)??;
        }
        Ok(())
    })
}

/// Serves the clients until all of them have gone, and prints what they wrote.
async fn serve(mut listener: Listener) -> Result<(), Error> {
    let mut table: Option<Arc<Mr>> = None;
    let mut serving = JoinSet::new();
    for _ in 0..CLIENTS {
        let connection = listener.accept().await?;
        // Connections of a listener on one device share a protection domain, and so the table.
        let table = match &table {
            Some(table) => table.clone(),
            None => {
                let access = Access::NONE.remote_read().remote_write().remote_atomic();
                let rows = CLIENTS as usize + 1;
                table.insert(Arc::new(connection.alloc_mr(rows * ROW, access)?)).clone()
            }
        };
        serving.spawn(async move {
            connection.send(Inline(&table.remote().to_bytes())).await?;
            connection.wait_disconnected().await;
            Ok::<_, Error>(())
        });
    }
    while let Some(ended) = serving.join_next().await {
        ended.map_err(std::io::Error::other)??;
    }
    let Some(table) = table else { return Ok(()) };
    for row in 1..=CLIENTS as usize {
        println!("{row}: {}", text(&table.to_vec(row * ROW..(row + 1) * ROW)?));
    }
    Ok(())
}

async fn client(server: SocketAddr, number: u64) -> Result<(), Error> {
    let connection = Connection::connect(server).await?;
    let row = connection.alloc_mr(ROW, Access::NONE.local_write())?;
    let message = connection.recv(&row).await?;
    let table = RemoteMr::from_bytes(&row.to_vec(..message.byte_len() as usize)?)?;

    let place = connection.fetch_add(table.at(0), 1).await? + 1;
    let name = format!("client {number} was here");
    connection.write(Inline(name.as_bytes()), table.at(place * ROW as u64)).await?;
    connection.read(&row, table.at((place - 1) * ROW as u64)).await?;
    connection.disconnect().await
}

fn text(row: &[u8]) -> String {
    let end = row.iter().position(|byte| *byte == 0).unwrap_or(row.len());
    String::from_utf8_lossy(&row[..end]).into_owned()
}
