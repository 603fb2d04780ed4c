//! Programs that are killed, and requests to hosts where nobody listens: what the peers hear.

use std::path::Path;

use super::bench::Bench;
use super::{Action, Case};
use crate::Result;

/// The address of the server.
const SERVER: &str = "10.0.0.1";

pub(super) fn cases() -> Vec<Case> {
    vec![Case { name: "a killed program, a host without one".into(), action: Action::Killed }]
}

/// Connects to a host without programs, then to one with a server, which only waits when its client
/// is killed.
pub(super) fn run(vernic: &Path) -> Result<String> {
    let mut bench = Bench::new(vernic, &["--tree", "1,2,4", "--sm"])?;
    for (host, address) in [("h1", "10.0.0.1/24"), ("h4", "10.0.0.4/24")] {
        let name = format!("{host}.address");
        let interface = ["fabric", "ipoib", "xtask", host, "--no-device", "--address", address];
        bench.start(&interface, &name)?;
    }
    let client = ["rping", "-c", "-a", SERVER, "-C", "1000000"];
    bench.wait("a host without programs rejects a request", |bench| {
        // The address is found once both interfaces are up.
        let asked = [&["sh", "-c", "\"$@\" 2>&1 || true", "sh"], &client[..]].concat();
        bench.run_on("h4", &asked).is_ok_and(|said| said.contains("REJECTED, error 8"))
    })?;
    bench.start_on("h1", &["stdbuf", "-o0", "rping", "-s", "-v", "-a", SERVER], "server.out")?;
    bench.wait("the server listens", |bench| {
        let programs = bench.fabric("show", &["h1"]);
        programs.is_ok_and(|text| text.contains(&format!("at {SERVER}")))
    })?;
    let client = bench.start_on("h4", &client, "client.out")?;
    bench.wait("a connection", |bench| bench.read("server.out").contains("ping data"))?;
    bench.kill(client);
    bench
        .wait("the server hears of it", |bench| bench.read("server.out").contains("DISCONNECT"))?;
    Ok("REJ 8 at once; DISCONNECT without a packet of the peer".to_owned())
}
