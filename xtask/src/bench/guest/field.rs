//! The guest with our release build, the commands in it, and one run of them.
//!
//! The kernel's rxe has UDP port 4791 of the guest's first network namespace, whoever uses it;
//! Vernic runs in a second one, which has a loopback interface alone.

use std::time::{Duration, Instant};

use super::super::programs::{perftest_latency, perftest_low_bandwidth};
use super::table::{Ends, Figure, Work};
use crate::Result;
use crate::conformance::{self, PORT, Ready};
use crate::kernel::{
    Driver, Image, KERNEL_LINE_OF_SEVERAL, LINKS, Link, Peer, Process, Wanted, release_build,
};

/// Processors of the guest: each end polls on one.
const PROCESSORS: u32 = 2;

/// QEMU carries `rep movsb` out byte by byte, but a kernel that finds these features copies with
/// nothing else. Without them it copies words, so that copies do not outweigh all the rest.
const WITHOUT: &str = ",-erms,-fsrm";

/// What is before `vernic run`. busybox's shell prefers its own `ip`.
const IN_NAMESPACE: &str = "/usr/bin/ip netns exec vernic /vernic/";
/// What makes the namespace.
const NAMESPACE: &str = "mkdir -p /var/run && /usr/bin/ip netns add vernic \
                         && /usr/bin/ip -n vernic link set lo up";

/// Where Vernic's servers are.
const LOOPBACK: &str = "127.0.0.1";
/// The largest path MTU, bytes; that of rxe's link with netdev MTU 9000.
const PATH_MTU: u64 = 4096;

/// No run takes longer, on however busy a machine.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a server may take to listen, and to end after its client.
const PATIENCE: Duration = Duration::from_secs(30);
/// perftest with `-R` meets in this port space of the connection manager's.
const TCP: u16 = 0x0106;
/// How often is looked whether a program has ended. A look costs the guest some time.
const LOOK: Duration = Duration::from_millis(200);

/// The guest.
pub(super) struct Field {
    peer: Peer,
    /// The index of the GID of rxe's device.
    gid: u64,
}

impl Field {
    /// Builds, boots, and makes Vernic's namespace.
    pub(super) fn new(image: &Image) -> Result<Self> {
        let vernic = conformance::build()?;
        let carried = release_build(&vernic)?;
        let mut peer = Peer::boot(
            image,
            &Wanted {
                processors: PROCESSORS,
                without: WITHOUT,
                carried,
                kernel_line: KERNEL_LINE_OF_SEVERAL,
            },
        )?;
        peer.guest.ask(NAMESPACE)?;
        let link = link(Driver::Rxe);
        let gid = peer.gid_index(link, link.peer4)?;
        let gid = gid.ok_or_else(|| format!("{}: no GID for {}", link.device, link.peer4))?;
        Ok(Self { peer, gid })
    }

    /// The guest, in words.
    pub(super) fn describe(&mut self) -> Result<String> {
        self.peer.description()
    }

    /// Where the ends run, in words.
    pub(super) fn cores(&self) -> String {
        format!("each on any of the guest's {PROCESSORS} emulated processors")
    }

    /// An error if the guest does not answer any more.
    pub(super) fn must_answer(&mut self) -> Result {
        self.peer.guest.ask("true").map(drop)
    }

    /// The client's command, as one would type it.
    pub(super) fn command(&self, work: &Work, ends: Ends) -> String {
        self.client(work, ends, "")
    }

    /// One reading. What fails is tried once more: perftest finds no figure where the machine stood
    /// still while it compared its clocks; and with `-R` it connects twice, and where its server
    /// does not listen again in time it resolves the address of an id that it has destroyed, and
    /// ends by a signal (exit status 139).
    pub(super) fn read(&mut self, work: &Work, ends: Ends) -> Result<f64> {
        self.read_once(work, ends).or_else(|why| {
            println!("{why}; once more");
            self.read_once(work, ends)
        })
    }

    fn read_once(&mut self, work: &Work, ends: Ends) -> Result<f64> {
        let printed = self.run(work, ends)?;
        match work.figure {
            Figure::Bandwidth => perftest_low_bandwidth(&printed),
            Figure::Latency => perftest_latency(&printed),
        }
    }

    /// What the client printed.
    fn run(&mut self, work: &Work, ends: Ends) -> Result<String> {
        if let Ends::Siw { crc } = ends {
            let value = u8::from(crc);
            let file = "/sys/module/siw/parameters/mpa_crc_required";
            self.peer.guest.ask(&format!("echo {value} >{file}"))?;
        }
        let server = self.peer.guest.start(&line(work, ends, self.gid, IN_NAMESPACE))?;
        let outcome = self.listens(server, ends).and_then(|()| {
            let client = self.peer.guest.start(&self.client(work, ends, IN_NAMESPACE))?;
            let ended = self.ends("client", client, LIMIT);
            let printed = self.peer.guest.end(client)?;
            match ended {
                Ok(()) => self.ends("server", server, PATIENCE).map(|()| printed),
                Err(why) => Err(format!("{why}: {}", last_words(&printed))),
            }
        });
        let said = self.peer.guest.end(server)?;
        outcome.map_err(|why| format!("{why} | server: {}", last_words(&said)))
    }

    /// The client's command, with this before `vernic run`.
    fn client(&self, work: &Work, ends: Ends, before: &str) -> String {
        let server = match ends {
            Ends::Rxe => link(Driver::Rxe).peer4,
            Ends::Siw { .. } => link(Driver::Siw).peer4,
            Ends::Udp | Ends::Default | Ends::Iwarp { .. } => LOOPBACK,
        };
        format!("{} {server}", line(work, ends, self.gid, before))
    }

    /// Waits until the server listens.
    fn listens(&mut self, server: Process, ends: Ends) -> Result {
        // Of siw's ids the kernel tells, Vernic's are TCP's.
        let ready = match ends {
            Ends::Siw { .. } => Ready::Service(TCP, PORT),
            _ => Ready::Tcp(PORT),
        };
        let start = Instant::now();
        while !self.peer.guest.is_ready(server, ready)? {
            if let Some(status) = self.peer.guest.exited(server)? {
                return Err(format!("the server ended with exit status {status}"));
            }
            if start.elapsed() > PATIENCE {
                return Err("the server does not listen".into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until a process has ended well.
    fn ends(&mut self, name: &str, process: Process, limit: Duration) -> Result {
        let start = Instant::now();
        loop {
            match self.peer.guest.exited(process)? {
                Some(0) => return Ok(()),
                Some(status) => return Err(format!("the {name} ended with exit status {status}")),
                None if start.elapsed() > limit => {
                    return Err(format!("the {name} ran past {} s", limit.as_secs()));
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }
}

/// The command of an end, without what only a client has; with this before `vernic run`.
fn line(work: &Work, ends: Ends, gid: u64, before: &str) -> String {
    let Work { program, bytes, messages, .. } = work;
    let perftest = format!("{program} -F -s {bytes} -n {messages}");
    match ends {
        Ends::Rxe => {
            let device = link(Driver::Rxe).device;
            format!("{perftest} -m {PATH_MTU} -d {device} -x {gid}")
        }
        Ends::Udp => {
            let run = format!("VERNIC_SAME_HOST=off {before}vernic run -d lo --");
            format!("{run} {perftest} -m {PATH_MTU}")
        }
        Ends::Default => format!("{before}vernic run -d lo -- {perftest} -m {PATH_MTU}"),
        Ends::Siw { .. } => format!("{perftest} -R -d {}", link(Driver::Siw).device),
        Ends::Iwarp { crc } => {
            let crc = if crc { "on" } else { "off" };
            let run = format!("VERNIC_IWARP_CRC={crc} {before}vernic run --iwarp -d lo --");
            format!("{run} {perftest} -R")
        }
    }
}

/// The link of a driver with the largest MTU; its device is what matters, both ends are on it.
fn link(driver: Driver) -> &'static Link {
    let of_driver = LINKS.iter().filter(|link| link.driver == driver);
    of_driver.max_by_key(|link| link.mtu).expect("each driver has a row of LINKS")
}

/// The end of what a program printed, in one line.
fn last_words(printed: &str) -> String {
    let said: Vec<&str> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
    said[said.len().saturating_sub(3)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::table::WORKS;
    use super::*;

    #[test]
    fn every_end_has_its_own_command() {
        let of = |ends| line(&WORKS[0], ends, 7, "before/");
        let perftest = "ib_write_bw -F -s 4096 -n 2000";
        assert_eq!(of(Ends::Rxe), format!("{perftest} -m 4096 -d rxe9000 -x 7"));
        let run = "before/vernic run -d lo --";
        assert_eq!(of(Ends::Default), format!("{run} {perftest} -m 4096"));
        assert_eq!(of(Ends::Udp), format!("VERNIC_SAME_HOST=off {run} {perftest} -m 4096"));
        assert_eq!(of(Ends::Siw { crc: true }), format!("{perftest} -R -d siw9000"));
        let iwarp = "VERNIC_IWARP_CRC=off before/vernic run --iwarp -d lo --";
        assert_eq!(of(Ends::Iwarp { crc: false }), format!("{iwarp} {perftest} -R"));
    }

    #[test]
    fn last_words_are_the_last_lines_that_say_something() {
        assert_eq!(last_words("a\nb\n\nc\nd\n\n"), "b; c; d");
        assert_eq!(last_words(""), "");
    }
}
