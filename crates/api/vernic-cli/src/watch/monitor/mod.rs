//! `vernic monitor`: what programs do on their devices, for Prometheus and for browsers.
//!
//! | file | owns |
//! |---|---|
//! | `server` | connections, their limits, the answers |
//! | `request` | what is asked for, and by which names |
//! | `looks` | samples for many that ask |
//! | `metrics`, `families` | a sample as metrics; their names |
//! | `exposition` | how metrics are written |
//! | `page.html` | the page for browsers |

mod exposition;
mod families;
mod looks;
mod metrics;
mod request;
mod server;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::FilterArguments;
use crate::failure::{Doing, Failure, Outcome, complain};
use looks::Looks;
use request::Hosts;
use server::Monitor;

/// `vernic monitor`.
#[derive(Debug, clap::Args)]
pub(crate) struct MonitorArguments {
    /// Address and TCP port to listen on; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9477")]
    #[arg(value_parser = address)]
    listen: SocketAddr,
    /// Listen on an address that other hosts reach: there is neither password nor encryption
    #[arg(long)]
    allow_remote: bool,
    /// Export metrics of each queue pair too: some thirty series for each
    #[arg(long)]
    per_qp: bool,
    #[command(flatten)]
    filter: FilterArguments,
}

/// Serves until a signal ends the process.
pub(crate) fn run(arguments: &MonitorArguments) -> Outcome<()> {
    let is_local = is_loopback(arguments.listen.ip());
    if !is_local && !arguments.allow_remote {
        return Err(refused(arguments.listen));
    }
    let monitor = Arc::new(Monitor {
        looks: Looks::new(arguments.filter.filter()),
        hosts: if is_local { Hosts::Local } else { Hosts::Any },
        per_qp: arguments.per_qp,
    });
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // Samples are taken one at a time, on a thread apart.
    let runtime = builder.enable_all().max_blocking_threads(1).build();
    runtime.doing(|| "start the server".into())?.block_on(async {
        let (listener, at) = server::listen(arguments.listen).await?;
        complain(format_args!("http://{at}/ for browsers, http://{at}/metrics for Prometheus"));
        server::serve(&listener, monitor).await;
        Ok::<(), Failure>(())
    })
}

fn refused(address: SocketAddr) -> Failure {
    Failure::usage(format!(
        "other hosts reach {address}: with neither password nor encryption they would read the command lines, peers \
         and traffic of all your programs"
    ))
    .hint(
        "listen on 127.0.0.1 and forward it (`ssh -L 9477:127.0.0.1:9477 HOST`), or accept it with --allow-remote",
    )
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "an IP address and a port, as 127.0.0.1:9477 or [::1]:9477".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_other_hosts_reach_are_told_apart() {
        for (text, expected) in [
            ("127.0.0.1:9477", true),
            ("127.3.2.1:1", true),
            ("[::1]:9477", true),
            ("[::ffff:127.0.0.1]:9477", true),
            ("0.0.0.0:9477", false),
            ("[::]:9477", false),
            ("10.0.0.1:9477", false),
        ] {
            assert_eq!(is_loopback(address(text).unwrap().ip()), expected, "{text}");
        }
        for wrong in ["localhost:9477", "127.0.0.1", ":9477", "9477", "", "127.0.0.1:70000"] {
            assert!(address(wrong).unwrap_err().contains("127.0.0.1:9477"), "{wrong}");
        }
        assert!(refused(address("0.0.0.0:9477").unwrap()).to_string().contains("--allow-remote"));
    }
}
