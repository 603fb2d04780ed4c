//! `cargo xtask ipsec`: the recipe of docs/ipsec.md, carried out line by line and measured.
//!
//! Two network namespaces of the guest of `cargo xtask kernel`, joined by a veth pair: Debian's
//! kernel has ESP, which CI's machines may lack. Vernic's release build is carried in.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::bench::perftest_low_bandwidth;
use crate::kernel::{
    self, BUILD_FOLDER, Image, KERNEL_LINE_OF_SEVERAL, Peer, Process, Wanted, release_build,
};
use crate::pages::Part;
use crate::plan::Done;
use crate::{Result, conformance};

/// The page, and its parts.
const PAGE: &str = "docs/ipsec.md";
const RECIPE: Part =
    Part { page: PAGE, begin: "<!-- recipe: begin -->", end: "<!-- recipe: end -->" };
const MEASURED: Part = Part {
    page: PAGE,
    begin: "<!-- measured: begin (written by `cargo xtask ipsec --write`, do not edit) -->",
    end: "<!-- measured: end -->",
};

/// Addresses of the two namespaces, which are called `a` and `b`.
const ADDRESSES: [&str; 2] = ["10.82.1.1", "10.82.1.2"];
const NAMES: [&str; 2] = ["a", "b"];

/// Netdev MTU, and the path MTU that goes with it.
const MTUS: [(u64, u64); 2] = [(1500, 1024), (9000, 4096)];

/// Rounds of a measurement, and of CI: an odd number, so that a median is a reading.
const ROUNDS: usize = 3;

/// How long a program may take, in a guest that is emulated, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// How often is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(200);

/// A program that is measured, with its options.
const WORKS: [(&str, &str); 3] = [
    ("ib_write_bw", "-s 1048576 -n 60"),
    ("ib_send_bw", "-s 1048576 -n 60"),
    ("ib_write_bw", "-s 64 -n 3000"),
];

/// A step of `cargo xtask test`: one round, without figures.
pub(crate) fn check() -> Result<Done> {
    let image = match kernel::prepare_image() {
        Err(why) => return Ok(Done::Skipped(why)),
        Ok(image) => image,
    };
    let mut field = Field::new(&image)?;
    // The emulated processor encrypts a megabyte or two a second.
    field.prove([MTUS[0]], 10)?;
    Ok(Done::Passed)
}

/// `cargo xtask ipsec`.
pub(crate) fn run(write: bool) -> Result {
    let mut field = Field::new(&kernel::prepare_image()?)?;
    field.prove(MTUS, 50)?;
    let content = field.measure()?;
    println!("{content}");
    if write {
        MEASURED.write(&content)?;
    }
    Ok(())
}

/// The guest with its two namespaces.
struct Field {
    peer: Peer,
}

impl Field {
    fn new(image: &Image) -> Result<Self> {
        let vernic = conformance::build()?;
        let carried = release_build(&vernic)?;
        let kernel_line = KERNEL_LINE_OF_SEVERAL;
        let wanted = Wanted { processors: 2, without: "", carried, kernel_line };
        let mut field = Self { peer: Peer::boot(image, &wanted)? };
        field.ask("mkdir -p /var/run")?;
        for name in NAMES {
            field.ask(&format!("/usr/bin/ip netns add {name}"))?;
            field.ask(&format!("/usr/bin/ip -n {name} link set lo up"))?;
        }
        field.ask("/usr/bin/ip link add ve netns a type veth peer name ve netns b")?;
        for (name, address) in NAMES.iter().zip(ADDRESSES) {
            field.ask(&format!("/usr/bin/ip -n {name} link set ve addrgenmode none"))?;
            field.ask(&format!("/usr/bin/ip -n {name} addr add {address}/24 dev ve"))?;
            field.ask(&format!("/usr/bin/ip -n {name} link set ve up"))?;
        }
        Ok(field)
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        self.peer.guest.ask(line)
    }

    fn set_mtu(&mut self, mtu: u64) -> Result {
        for name in NAMES {
            self.ask(&format!("/usr/bin/ip -n {name} link set ve mtu {mtu}"))?;
        }
        Ok(())
    }

    /// Carries the recipe out in one namespace.
    fn protect(&mut self, side: usize) -> Result {
        let page = RECIPE.read()?;
        recipe(&page, side).iter().try_for_each(|line| self.ask(line).map(drop))
    }

    fn expose(&mut self, side: usize) -> Result {
        for what in ["state", "policy"] {
            self.ask(&format!("/usr/bin/ip -n {} xfrm {what} flush", NAMES[side]))?;
        }
        Ok(())
    }

    /// That data arrives whole in both directions at either MTU, that it was encrypted, and that
    /// plain packets are refused. So many messages of 1 MiB go in each direction.
    fn prove(&mut self, mtus: impl IntoIterator<Item = (u64, u64)>, megabytes: u64) -> Result {
        let pings = format!("-C {megabytes} -V -S 60000");
        let pings = [format!("-s {pings}"), format!("-c {pings}")];
        let write = format!("-s 1048576 -n {megabytes}");
        for (mtu, path_mtu) in mtus {
            self.set_mtu(mtu)?;
            self.protect(0)?;
            self.protect(1)?;
            for server in [0, 1] {
                self.pair("rping", server, [&*pings[0], &*pings[1]], true)?;
                self.perftest(("ib_write_bw", &write), path_mtu, server)?;
            }
            let counters = self.ask("/usr/bin/ip -n a -s xfrm state")?;
            let bytes = encrypted_bytes(&counters);
            println!("netdev MTU {mtu}: {bytes} bytes were encrypted and decrypted at one end");
            // What the programs wrote in each direction, and the pings.
            if bytes < (2 * megabytes) << 20 {
                return Err(format!("only {bytes} bytes went through ESP:\n{counters}"));
            }
            self.refuses_plain_packets()?;
            self.expose(1)?;
        }
        Ok(())
    }

    /// Ends one side's protection, and expects that nothing of it is heard.
    fn refuses_plain_packets(&mut self) -> Result {
        self.expose(0)?;
        let before = self.refused()?;
        let pair = self.pair("rping", 1, ["-s -C 1", "-c -C 1"], false);
        let after = self.refused()?;
        match pair {
            Ok(()) => Err("plain packets were taken where the policy asks for ESP".into()),
            Err(_) if after == before => Err("no plain packet reached the policy".into()),
            Err(_) => {
                println!("{} plain packets were refused", after - before);
                Ok(())
            }
        }
    }

    /// Packets that the policies of `b` have refused.
    fn refused(&mut self) -> Result<u64> {
        let text = self.ask("/usr/bin/ip netns exec b cat /proc/net/xfrm_stat")?;
        let row = text.lines().find_map(|line| line.strip_prefix("XfrmInTmplMismatch"));
        row.and_then(|count| count.trim().parse().ok()).ok_or(format!("no counter in:\n{text}"))
    }

    /// A table: each work at each MTU, plain and protected in turns.
    fn measure(&mut self) -> Result<String> {
        let mut rows: BTreeMap<(usize, u64), [Vec<f64>; 2]> = BTreeMap::new();
        for round in 0..ROUNDS {
            for (mtu, path_mtu) in MTUS {
                self.set_mtu(mtu)?;
                for (number, work) in WORKS.iter().enumerate() {
                    // Every other round the other way round, so that neither always comes second.
                    for is_protected in [round % 2 == 1, round % 2 == 0] {
                        for side in [0, 1] {
                            if is_protected { self.protect(side) } else { self.expose(side) }?;
                        }
                        let megabytes = 1e3 * self.bandwidth(*work, path_mtu, 1)?;
                        let readings = rows.entry((number, mtu)).or_default();
                        readings[usize::from(is_protected)].push(megabytes);
                        [0, 1].into_iter().try_for_each(|side| self.expose(side))?;
                    }
                }
            }
        }
        let mut table = format!(
            "{}, 2 processors; medians of {ROUNDS} rounds, MB/s. The guest's processors \
             are emulated, AES instructions too, so this tells that it works, and overstates what encryption costs.\n\n\
             | program | device MTU | plain | ESP | ratio |\n|---|--:|--:|--:|--:|\n",
            self.peer.description()?
        );
        for ((number, mtu), [plain, protected]) in rows {
            let (plain, protected) = (median(plain), median(protected));
            let (program, options) = WORKS[number];
            table += &format!(
                "| `{program} {options}` | {mtu} | {plain:.1} | {protected:.1} | {:.2} |\n",
                protected / plain
            );
        }
        Ok(table)
    }

    /// What a bandwidth test of perftest measured, GB/s.
    fn bandwidth(&mut self, work: (&str, &str), path_mtu: u64, server: usize) -> Result<f64> {
        let printed = self.perftest(work, path_mtu, server)?;
        perftest_low_bandwidth(&printed).map_err(|why| format!("{why}, by {}:\n{printed}", work.0))
    }

    /// Runs a test of perftest to its end; what the client printed.
    ///
    /// Its figure may be 0: in a guest that is emulated on a busy machine perftest does not find
    /// the rate of the processor's clock, by which it divides.
    fn perftest(&mut self, work: (&str, &str), path_mtu: u64, server: usize) -> Result<String> {
        let (program, options) = work;
        let options = format!("-F -R -m {path_mtu} {options}");
        let client = format!("{options} {}", ADDRESSES[server]);
        self.programs(program, server, [&options, &client])
    }

    /// A pair of rping or the like, whose options begin with what is theirs; true if the client is
    /// waited for long.
    fn pair(
        &mut self,
        program: &str,
        server: usize,
        options: [&str; 2],
        is_patient: bool,
    ) -> Result {
        let address = ADDRESSES[server];
        let [serving, asking] = options.map(|own| format!("{own} -a {address}"));
        match is_patient {
            true => self.programs(program, server, [&serving, &asking]).map(drop),
            false => {
                let server_process = self.start(program, server, &serving)?;
                std::thread::sleep(Duration::from_secs(2));
                let asked = self.start(program, 1 - server, &asking)?;
                let ended = self.await_end("client", asked, Duration::from_secs(8));
                self.peer.guest.end(asked)?;
                self.peer.guest.end(server_process)?;
                ended
            }
        }
    }

    /// Runs a server and a client to their ends; what the client printed.
    fn programs(&mut self, program: &str, server: usize, options: [&str; 2]) -> Result<String> {
        let serving = self.start(program, server, options[0])?;
        // perftest and rping say nothing when they listen, and their clients do not try again.
        std::thread::sleep(Duration::from_secs(1));
        let asking = self.start(program, 1 - server, options[1])?;
        let ended = self.await_end("client", asking, LIMIT);
        let printed = self.peer.guest.end(asking)?;
        let said = self.peer.guest.end(serving)?;
        match ended {
            Ok(()) => Ok(printed),
            Err(why) => Err(format!("{program}: {why}\n{printed}\nserver: {said}")),
        }
    }

    fn start(&mut self, program: &str, side: usize, options: &str) -> Result<Process> {
        let run =
            format!("/usr/bin/ip netns exec {} {BUILD_FOLDER}/vernic run -d ve --", NAMES[side]);
        self.peer.guest.start(&format!("{run} {program} {options}"))
    }

    fn await_end(&mut self, name: &str, process: Process, limit: Duration) -> Result {
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

/// The page's commands for one namespace, with its addresses, numbers and keys: keys are the
/// guest's, and go with it.
fn recipe(page: &str, side: usize) -> Vec<String> {
    let key = |side: usize| format!("0x{}", ["5a", "c3"][side].repeat(20));
    let spi = |side: usize| (0x1000 + side).to_string();
    let values = [
        ("$LOCAL", ADDRESSES[side].to_owned()),
        ("$PEER", ADDRESSES[1 - side].to_owned()),
        ("$KEY_OUT", key(side)),
        ("$KEY_IN", key(1 - side)),
        ("$SPI_OUT", spi(side)),
        ("$SPI_IN", spi(1 - side)),
    ];
    let commands = page.lines().filter_map(|line| line.strip_prefix("ip "));
    commands
        .map(|rest| {
            let line = format!("/usr/bin/ip -n {} {rest}", NAMES[side]);
            values.iter().fold(line, |line, (name, value)| line.replace(name, value))
        })
        .collect()
}

/// Bytes that the states of a namespace have carried, by `ip -s xfrm state`.
fn encrypted_bytes(text: &str) -> u64 {
    let current = text.split("lifetime current:").skip(1);
    let bytes = current.filter_map(|rest| rest.trim_start().split('(').next()?.parse::<u64>().ok());
    bytes.sum()
}

fn median(mut readings: Vec<f64>) -> f64 {
    readings.sort_by(f64::total_cmp);
    readings[readings.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_recipe_is_whole_for_either_side() {
        let page = RECIPE.whole().unwrap();
        assert!(page.len() <= 12 << 10, "{} bytes", page.len());
        for side in [0, 1] {
            let lines = recipe(&RECIPE.read().unwrap(), side);
            assert_eq!(lines.len(), 4);
            assert!(lines.iter().all(|line| !line.contains('$')), "{lines:?}");
        }
    }

    #[test]
    fn bytes_are_those_of_the_current_life_of_every_state() {
        let text = "lifetime config:\n  limit: soft (INF)(bytes), hard (INF)(bytes)\nlifetime current:\n  \
                    840(bytes), 10(packets)\nlifetime current:\n  2(bytes), 1(packets)\n";
        assert_eq!(encrypted_bytes(text), 842);
    }
}
