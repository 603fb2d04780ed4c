//! `vernic fabric ipoib`: an IP interface for a host of a fabric.

use std::net::IpAddr;
use std::os::fd::AsFd;

use clap::{Args, ValueEnum};
use vernic::Pkey;
use vernic_ipoibd::{Address, Gateway, Host, Mode, Options, Owner, Summary};

use crate::failure::{Failure, Outcome, complain};

/// How an interface sends.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeName {
    /// By datagrams: packets of up to 2,044 bytes, or what the subnet's group has
    Datagram,
    /// By connections: packets of up to 65,520 bytes
    Connected,
}

/// `vernic fabric ipoib`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Name of the fabric
    name: String,
    /// Name of the host, such as h1
    host: String,
    /// Name of the TUN device
    #[arg(long, default_value = "ib0")]
    device: String,
    /// Address of the device, such as 10.0.0.1/24; may be repeated, and `ip` may give others later
    #[arg(long, value_name = "IP/LENGTH", value_parser = parse_address)]
    address: Vec<Address>,
    /// No TUN device, which takes no rights: programs connect to the addresses by rdma_cm, and IP
    /// packets go nowhere; several such hosts may be in one network namespace
    #[arg(long, conflicts_with = "device", requires = "address")]
    no_device: bool,
    /// Router for all that is not on the link; may be repeated, for IPv4 and IPv6
    #[arg(long, value_name = "IP")]
    gateway: Vec<IpAddr>,
    /// Partition key, such as 0x8001
    #[arg(long, default_value = "0xffff", value_parser = parse_pkey)]
    pkey: Pkey,
    /// How the interface sends
    #[arg(long, value_enum, default_value = "datagram")]
    mode: ModeName,
}

/// Gives the host its interface until a signal ends it.
pub(super) fn run(arguments: &Arguments) -> Outcome<()> {
    let failed = |error: vernic_ipoibd::IpoibError| Failure::new(error.to_string());
    let Arguments { name, host, device, pkey, .. } = arguments;
    // Before the device starts a thread, which would take the signals.
    let stop = vernic_sys::termination().map_err(|error| Failure::new(error.to_string()))?;
    let options = Options {
        pkey: *pkey,
        mode: match arguments.mode {
            ModeName::Datagram => Mode::Datagram,
            ModeName::Connected => Mode::Connected,
        },
        gateways: arguments.gateway.iter().map(|via| everything_by(*via)).collect(),
        ..Options::new(name, host)
    };
    if arguments.no_device {
        let mut owner = Owner::without_device(options, &arguments.address).map_err(failed)?;
        complain(format_args!(
            "host {host} of fabric {name:?} has its addresses in partition {pkey}, without a \
             device; Ctrl-C ends it"
        ));
        return serve(&mut owner, &stop, host);
    }
    let mut owner = Owner::with_tun(options, device).map_err(failed)?;
    for address in &arguments.address {
        owner.set_address(*address).map_err(failed)?;
    }
    let device = owner.name().to_owned();
    complain(format_args!(
        "{device} is host {host} of fabric {name:?}, partition {pkey}; Ctrl-C ends it"
    ));
    serve(&mut owner, &stop, &device)
}

/// Runs an interface, and tells of its troubles.
fn serve<H: Host>(owner: &mut Owner<H>, stop: &impl AsFd, device: &str) -> Outcome<()> {
    let (mut last, mut is_first) = (None, true);
    owner
        .run(stop.as_fd(), |summary| {
            // An interface comes up a moment after its start, or does not.
            let is_starting = std::mem::take(&mut is_first) && summary.mtu.is_none();
            for trouble in &summary.troubles {
                complain(format_args!("{device}: {trouble}"));
            }
            if !is_starting && last != Some(summary.mtu) {
                last = Some(summary.mtu);
                complain(format_args!("{device}: {}", state(summary)));
            }
        })
        .map_err(|error| Failure::new(error.to_string()))
}

fn state(summary: &Summary) -> String {
    match summary.mtu {
        Some(mtu) => format!("up, MTU {mtu}"),
        None => "down: waits for the broadcast group of the partition; is a subnet manager \
                 running, and does it let this port in?"
            .to_owned(),
    }
}

/// The router for all addresses of its version.
fn everything_by(via: IpAddr) -> Gateway {
    let ip = match via {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    Gateway { to: Address { ip, prefix_len: 0 }, via }
}

fn parse_address(text: &str) -> Result<Address, String> {
    let wrong = || format!("{text:?} is no address with a length, such as 10.0.0.1/24");
    let (ip, prefix_len) = text.split_once('/').ok_or_else(wrong)?;
    let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
    let prefix_len = prefix_len.parse().map_err(|_| wrong())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    if prefix_len > most {
        return Err(format!("{prefix_len} bits in common: an address has {most}"));
    }
    Ok(Address { ip, prefix_len })
}

fn parse_pkey(text: &str) -> Result<Pkey, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match u16::from_str_radix(digits, 16) {
        Ok(value) if value & 0x7FFF != 0 => Ok(Pkey(value)),
        _ => {
            Err(format!("{text:?} is no partition key: 4 hexadecimal digits, not 0x0000 or 0x8000"))
        }
    }
}
