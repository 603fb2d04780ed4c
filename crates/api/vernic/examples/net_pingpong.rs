//! SEND there and back, each an `await`, over a connection that is made by IP address and port.
//! Compare `cm_pingpong`, which posts work requests and polls for their completions.
//!
//! `net_pingpong server [PORT]`, then `net_pingpong client HOST [PORT]`; or without arguments for
//! both ends at once.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod common;

use std::net::SocketAddr;
use std::time::Instant;

use common::{ROUNDS, SIZE};
use vernic::cm::Manager;
use vernic::net::{Connection, Network, Options};
use vernic::{Access, Error, Mr};

fn main() -> Result<(), Error> {
    common::meet(server, client)
}

fn server(manager: &Manager, place: SocketAddr, ready: common::Ready<'_>) -> Result<(), Error> {
    common::block_on(async {
        let network = Network::of(manager.clone());
        let mut listener = network.listen(place, Options::default()).await?;
        ready(listener.local_addr());
        let connection = listener.accept().await?;
        println!("{} has connected", connection.peer());

        let message = Message::new(&connection)?;
        message.receive(&connection, 1).await?;
        for round in 2..=ROUNDS {
            // The receive is posted before the answer to the round before, and so before the client
            // sends again. A SEND that finds no receive comes again later.
            let next = message.receive(&connection, round);
            let (received, sent) = tokio::join!(next, message.send(&connection, round - 1));
            sent.and(received)?;
        }
        message.send(&connection, ROUNDS).await?;
        connection.wait_disconnected().await;
        Ok(())
    })
}

fn client(manager: &Manager, peer: SocketAddr) -> Result<(), Error> {
    common::block_on(async {
        let network = Network::of(manager.clone());
        let connection = network.connect(peer, &Options::default()).await?;
        let message = Message::new(&connection)?;
        let start = Instant::now();
        for round in 1..=ROUNDS {
            // Both at once, so that the receive is there before the answer.
            let answer = message.receive(&connection, round);
            let (received, sent) = tokio::join!(answer, message.send(&connection, round));
            sent.and(received)?;
        }
        common::report(connection.device(), "awaited RC SEND", start);
        connection.disconnect().await
    })
}

/// The memory of both directions.
struct Message {
    outgoing: Mr,
    incoming: Mr,
}

impl Message {
    fn new(connection: &Connection) -> Result<Self, Error> {
        let outgoing = connection.alloc_mr(SIZE, Access::NONE)?;
        let incoming = connection.alloc_mr(SIZE, Access::NONE.local_write())?;
        Ok(Self { outgoing, incoming })
    }

    async fn send(&self, connection: &Connection, round: u64) -> Result<(), Error> {
        self.outgoing.write_at(0, &round.to_be_bytes())?;
        Ok(connection.send(&self.outgoing).await?)
    }

    async fn receive(&self, connection: &Connection, round: u64) -> Result<(), Error> {
        connection.recv(&self.incoming).await?;
        assert_eq!(self.incoming.to_vec(..8)?, round.to_be_bytes());
        Ok(())
    }
}
