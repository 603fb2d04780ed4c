//! Requests to a fabric that runs.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vernic_attach::ControlClient;
use vernic_fabricd::control::{Answer, LinkChange, Request, State};

use crate::failure::{Doing as _, Failure, Outcome, complain};

/// Sends a request to the fabric called `name`, and waits for its answer.
pub(super) fn ask(name: &str, request: &Request) -> Outcome<Answer> {
    let client = ControlClient::connect(name).map_err(|error| Failure::new(error.to_string()))?;
    let text = serde_json::to_string(request).doing(|| "write the request".to_owned())?;
    let answer = client.ask(&text).doing(|| format!("ask the fabric {name:?}"))?;
    match serde_json::from_str(&answer).doing(|| "understand the answer".to_owned())? {
        Answer::Refused(reason) => Err(Failure::new(reason)),
        answer => Ok(answer),
    }
}

fn expect_done(name: &str, request: &Request) -> Outcome<()> {
    match ask(name, request)? {
        Answer::Done => Ok(()),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> Failure {
    Failure::new("the fabric process gave another answer than it was asked for")
        .hint("use one build of Vernic for both")
}

/// Asks for the state of everything.
pub(super) fn state(name: &str) -> Outcome<State> {
    match ask(name, &Request::Show)? {
        Answer::State(state) => Ok(*state),
        _ => Err(unexpected()),
    }
}

/// Asks for a picture.
pub(super) fn picture(name: &str) -> Outcome<String> {
    match ask(name, &Request::Picture)? {
        Answer::Picture(picture) => Ok(picture),
        _ => Err(unexpected()),
    }
}

/// Changes the cable at a port.
pub(super) fn link(name: &str, end: &str, change: &str, value: Option<&str>) -> Outcome<()> {
    let (node, port) = parse_end(end)?;
    let change = parse_change(change, value)?;
    expect_done(name, &Request::Link { node, port, change })
}

/// How long a cable over TCP is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Plugs a cable in whose other end listens, and waits until it carries frames.
pub(super) fn join(name: &str, end: &str, address: &str) -> Outcome<()> {
    let (node, port) = parse_end(end)?;
    let mut addresses = address.to_socket_addrs().doing(|| format!("find {address:?}"))?;
    let address = addresses.next().ok_or_else(|| Failure::new(format!("{address:?} is none")))?;
    expect_done(name, &Request::Join { node: node.clone(), port, address, listens: false })?;
    let until = Instant::now() + PATIENCE;
    loop {
        let peer = peer(name, &node, port)?;
        match peer.rsplit_once(": ").map(|(_, state)| state) {
            Some("carries") => return Ok(()),
            Some("connects") if Instant::now() < until => {}
            _ => {
                return Err(Failure::new(format!("no cable at {end}: {peer}"))
                    .hint("`vernic fabric listen` at the other fabric comes first"));
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns what the fabric says of the other end of a cable.
fn peer(name: &str, node: &str, port: u8) -> Outcome<String> {
    let state = state(name)?;
    let node = state.nodes.into_iter().find(|one| one.name == node);
    let port = node.and_then(|node| node.ports.into_iter().find(|one| one.port == port));
    Ok(port.and_then(|port| port.peer).unwrap_or_default())
}

/// Lets another fabric plug a cable in.
pub(super) fn listen(name: &str, end: &str, address: &str) -> Outcome<()> {
    let (node, port) = parse_end(end)?;
    let address = match address.parse::<u16>() {
        Ok(number) => SocketAddr::from(([127, 0, 0, 1], number)),
        Err(_) => address.parse().map_err(|_| {
            Failure::usage(format!("{address:?} is no address: write 7777 or 0.0.0.0:7777"))
        })?,
    };
    expect_done(name, &Request::Join { node, port, address, listens: true })
}

/// Begins or ends a capture.
pub(super) fn capture(name: &str, path: Option<PathBuf>) -> Outcome<()> {
    // The fabric process has another working directory.
    let path = path.map(std::path::absolute).transpose().doing(|| "find the file".to_owned())?;
    let begins = path.is_some();
    expect_done(name, &Request::Capture { path })?;
    if !begins {
        complain(format_args!("the capture of {name:?} has ended"));
    }
    Ok(())
}

/// Ends a fabric.
pub(super) fn down(name: &str) -> Outcome<()> {
    expect_done(name, &Request::Stop)
}

/// The first names of a list, and the last one.
pub(super) fn some_of(names: Vec<&str>) -> String {
    match names.as_slice() {
        [] => "none".to_owned(),
        [first, second, .., last] if names.len() > 6 => format!("{first}, {second}, ..., {last}"),
        all => all.join(", "),
    }
}

fn parse_end(end: &str) -> Outcome<(String, u8)> {
    let parts = end.rsplit_once(':').and_then(|(node, port)| {
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!node.is_empty()).then(|| (node.to_owned(), port))
    });
    parts.ok_or_else(|| {
        Failure::usage(format!("{end:?} is no port: write node and port, such as h1:1"))
    })
}

fn parse_change(change: &str, value: Option<&str>) -> Outcome<LinkChange> {
    match (change, value) {
        ("down", None) => Ok(LinkChange::Down),
        ("up", None) => Ok(LinkChange::Up),
        ("ber", Some(text)) => {
            let rate = text.parse::<f64>().ok().filter(|rate| (0.0..=1.0).contains(rate));
            rate.map(LinkChange::BitErrorRate).ok_or_else(|| {
                let what = format!("{text:?} is no bit error rate: 0 (none) to 1, such as 1e-6");
                Failure::usage(what)
            })
        }
        ("rate", Some("max")) => Ok(LinkChange::Rate(None)),
        ("rate", Some(text)) => Ok(LinkChange::Rate(Some(text.to_owned()))),
        _ => Err(Failure::usage(format!(
            "{change:?}{} is no change of a cable: down, up, ber SHARE (ber 1e-6), rate BITS (rate \
             10g, rate max)",
            value.map(|value| format!(" {value:?}")).unwrap_or_default()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_node_and_number() {
        assert_eq!(parse_end("h1:1").unwrap(), ("h1".to_owned(), 1));
        assert_eq!(parse_end("rack:2:36").unwrap(), ("rack:2".to_owned(), 36));
        for wrong in ["", "h1", ":1", "h1:", "h1:0", "h1:256", "h1:x"] {
            assert!(parse_end(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn changes_have_a_value_where_they_need_one() {
        let change = |change, value| parse_change(change, value).ok();
        assert_eq!(change("down", None), Some(LinkChange::Down));
        assert_eq!(change("up", None), Some(LinkChange::Up));
        assert_eq!(change("ber", Some("1e-6")), Some(LinkChange::BitErrorRate(1e-6)));
        assert_eq!(change("rate", Some("10g")), Some(LinkChange::Rate(Some("10g".to_owned()))));
        assert_eq!(change("rate", Some("max")), Some(LinkChange::Rate(None)));
        for wrong in [("down", Some("1")), ("ber", None), ("ber", Some("2")), ("rate", None)] {
            assert_eq!(change(wrong.0, wrong.1), None, "{wrong:?}");
        }
        assert_eq!((change("ber", Some("NaN")), change("cut", None)), (None, None));
    }
}
