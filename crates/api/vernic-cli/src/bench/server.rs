//! `vernic bench server`: clients one after the other, whoever else knocks at the port.
//!
//! A thread accepts. Each connection has a thread of its own until it has said hello, so that one
//! that says nothing, or something else, holds up nobody. Clients that did say hello wait in a
//! queue for the thread that serves, which measures with one client at a time.
//!
//! Limits: [`MAX_GREETED`] connections that have not said hello, for [`HELLO_TIMEOUT`] each, and
//! [`MAX_WAITING`] clients in the queue; further ones are turned away. A client that falls silent
//! is given up after [`PATIENCE`](super::end::PATIENCE) between measurements, and within seconds in
//! one.

use super::control::{Control, Message};
use super::side;
use super::told;
use super::verbs::{Reach, Verbs};
use crate::args::ServerOptions;
use crate::failure::{Doing, Failure, Outcome};
use crate::select::Chosen;
use crate::table::print;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use vernic::{Device, Settings};

/// Connections that are listened to at a time. Each may make us keep a few MiB of what it says.
const MAX_GREETED: usize = 8;
/// How long a client may take to say hello; a good one does so at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients that wait. They give up by themselves after half a minute.
const MAX_WAITING: usize = 16;
/// Pause after the system refused to accept (no descriptor left): the next attempt may succeed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A client that has said hello, or what happened to one that did not.
type Guest = (IpAddr, Outcome<Control>);

/// Serves clients until it is stopped, or, with `--once`, one.
pub(super) fn run(options: &ServerOptions, settings: &Settings) -> Outcome<()> {
    // What is wrong here is told now, and not to the first client.
    let verbs = match Chosen::find(options.device.device.as_deref(), settings) {
        Some(named) => {
            Some(Verbs::open(Some(&named), options.device.gid_index, Reach::ThisMachine)?)
        }
        None => {
            check_devices(options.device.gid_index)?;
            None
        }
    };
    let port = options.port;
    // An IPv6 wildcard socket takes IPv4 connections too.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .doing(|| format!("listen on TCP port {port}"))
        .map_err(|failure| failure.hint("another server may run there; choose a port with -p"))?;
    let guests = accept_in_background(listener)?;
    print(&format!("waiting for `vernic bench client` on TCP port {port}\n"))?;
    loop {
        let (ip, greeted) = guests.recv().doing(|| "wait for clients".into())?;
        let control = match greeted {
            Ok(control) => control,
            Err(failure) => {
                print(&format!("not a client: {ip}: {failure}\n"))?;
                continue;
            }
        };
        let served = serve(&control, options, verbs.as_ref());
        match &served {
            Ok(()) => print(&format!("served {ip}\n"))?,
            Err(failure) => print(&format!("client {ip}: {failure}\n"))?,
        }
        if options.once {
            return served.map_err(|failure| {
                Failure::new(format!("the client was not served to its end: {}", failure.what()))
            });
        }
    }
}

/// Fails unless some device can be opened, and one has the GID index that was asked for: which
/// device it will be, the client's address decides.
fn check_devices(gid_index: Option<u32>) -> Outcome<()> {
    let devices = Device::list().doing(|| "list the RDMA devices".into())?;
    let mut failed = None;
    for info in devices {
        let named = Chosen::by_option(&info.name);
        match Verbs::open(Some(&named), gid_index, Reach::ThisMachine) {
            Ok(_) => return Ok(()),
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    Err(failed.unwrap_or_else(crate::devices::no_device))
}

fn serve(control: &Control, options: &ServerOptions, verbs: Option<&Verbs>) -> Outcome<()> {
    control.say_hello("")?;
    let own;
    let verbs = match verbs {
        Some(verbs) => verbs,
        None => {
            let reach = Reach::Via(control.local_ip()?);
            own = told(control, Verbs::open(None, options.device.gid_index, reach))?;
            &own
        }
    };
    let served = side::serve(control, verbs);
    if options.counters {
        print(&verbs.counters_text())?;
    }
    served
}

/// Starts to accept. The threads end with the process.
fn accept_in_background(listener: TcpListener) -> Outcome<Receiver<Guest>> {
    let (sender, guests) = sync_channel(MAX_WAITING);
    let accept = move || {
        // One for this thread, one for each connection that is listened to.
        let places = Arc::new(());
        loop {
            let Ok((stream, address)) = listener.accept() else {
                std::thread::sleep(ACCEPT_AGAIN);
                continue;
            };
            if Arc::strong_count(&places) > MAX_GREETED {
                continue;
            }
            let (place, sender) = (Arc::clone(&places), sender.clone());
            let ip = address.ip().to_canonical();
            let greet = move || {
                greet(stream, ip, &sender);
                drop(place);
            };
            // Without a thread for it the connection closes, and the client says so.
            let _ = std::thread::Builder::new().name("vernic-hello".into()).spawn(greet);
        }
    };
    let thread = std::thread::Builder::new().name("vernic-accept".into());
    thread.spawn(accept).doing(|| "start the thread that accepts clients".into())?;
    Ok(guests)
}

/// Hears a connection's hello and queues it, or what went wrong.
fn greet(stream: TcpStream, ip: IpAddr, sender: &SyncSender<Guest>) {
    let heard = Control::new(stream, || ()).and_then(|control| {
        control.hear_hello("", HELLO_TIMEOUT)?;
        Ok(control)
    });
    let Err(refused) = sender.try_send((ip, heard)) else { return };
    let (std::sync::mpsc::TrySendError::Full(guest)
    | std::sync::mpsc::TrySendError::Disconnected(guest)) = refused;
    if let (_, Ok(control)) = guest {
        // It may be gone, too.
        let _ = control.send(&Message::Failed("too many clients wait for this server".into()));
    }
}
