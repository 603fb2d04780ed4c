//! Which tasks a bench consists of, and which baseline each is compared with.
//!
//! Without options: a table of rows that shows each operation over each service at the sizes where
//! latency, bandwidth and message rate are decided. Options narrow it or replace its sizes.

use crate::args::BenchOptions;
use crate::failure::{Failure, Outcome};
use crate::spec::{Baseline, Kind, MAX_DEPTH, Op, Service, Spec, Task};

/// Bytes of the message at which TCP and bandwidth are compared.
const MIB: u64 = 1 << 20;

/// A row of the standard suite: what to measure at which sizes.
struct Row(Kind, Op, Service, &'static [u64]);

/// Every row at the smaller MTU too would double the run: see [`mtus_of`].
const STANDARD: [Row; 20] = {
    use Kind::{Latency, Throughput};
    use Op::{Atomic, Read, Send, Write};
    use Service::{Iwarp, IwarpCrc, Rc, Uc, Ud};
    [
        Row(Latency, Send, Rc, &[64, 4096, 65_536]),
        Row(Latency, Write, Rc, &[64, 4096, 65_536]),
        Row(Latency, Read, Rc, &[64, 4096, 65_536]),
        Row(Latency, Atomic, Rc, &[8]),
        Row(Latency, Send, Uc, &[64, 4096]),
        Row(Latency, Write, Uc, &[64, 4096]),
        Row(Latency, Send, Ud, &[64, 4096]),
        Row(Throughput, Send, Rc, &[64, 4096, 65_536, MIB]),
        Row(Throughput, Write, Rc, &[8, 4096, 65_536, MIB]),
        Row(Throughput, Read, Rc, &[8, 4096, 65_536, MIB]),
        Row(Throughput, Atomic, Rc, &[8]),
        Row(Throughput, Send, Uc, &[64, 65_536, MIB]),
        Row(Throughput, Write, Uc, &[8, 65_536, MIB]),
        Row(Throughput, Send, Ud, &[64, 4096]),
        Row(Latency, Send, Iwarp, &[8, 4096]),
        Row(Latency, Send, IwarpCrc, &[8, 4096]),
        Row(Throughput, Write, Iwarp, &[8, 65_536, MIB]),
        Row(Throughput, Write, IwarpCrc, &[8, 65_536, MIB]),
        Row(Throughput, Send, IwarpCrc, &[MIB]),
        Row(Throughput, Read, IwarpCrc, &[MIB]),
    ]
};

/// Baselines of the standard suite that no row asks for by its size.
const STANDARD_BASELINES: [(Baseline, u64); 4] = [
    (Baseline::TcpPingPong, 64),
    (Baseline::Memcpy, 64 << 10),
    (Baseline::Memcpy, MIB),
    (Baseline::Memcpy, 64 * MIB),
];

/// Largest UDP datagram that a baseline sends.
const MAX_UDP: u64 = 65_507;

/// Message sizes of the TCP streams that bandwidth is compared with; which is fastest depends on
/// the machine.
const TCP_STREAMS: [u64; 3] = [64 << 10, 256 << 10, MIB];

/// The baselines that a verbs measurement is set beside: a UDP ping-pong for latency, UDP datagrams
/// for small messages, and for large ones several TCP streams, of which the fastest counts, and
/// what UDP allows. For what TCP carries, a TCP ping-pong. Empty where no datagram is that large.
pub(crate) fn references(spec: &Spec) -> Vec<Task> {
    let mut references = streams(spec);
    references.extend(limit(spec));
    references
}

/// What UDP allows at the same path MTU, for what UDP carries and is measured by bandwidth.
pub(crate) fn limit(spec: &Spec) -> Option<Task> {
    let is_bandwidth = spec.kind == Kind::Throughput && !is_message_rate(spec.size);
    let baseline = Baseline::UdpPackets { mtu: spec.mtu };
    (is_bandwidth && spec.service.tcp().is_none()).then_some(Task::Baseline { baseline, size: MIB })
}

/// The references that are no limit.
pub(crate) fn streams(spec: &Spec) -> Vec<Task> {
    let (baseline, sizes) = match spec.kind {
        Kind::Latency if spec.service.tcp().is_some() => (Baseline::TcpPingPong, vec![spec.size]),
        Kind::Latency if spec.size <= MAX_UDP => (Baseline::UdpPingPong, vec![spec.size]),
        Kind::Latency => return Vec::new(),
        Kind::Throughput if is_message_rate(spec.size) => (Baseline::UdpStream, vec![spec.size]),
        Kind::Throughput => (Baseline::TcpStream, TCP_STREAMS.to_vec()),
    };
    sizes.into_iter().map(|size| Task::Baseline { baseline, size }).collect()
}

/// True for sizes at which messages per second say more than bytes per second.
pub(crate) fn is_message_rate(size: u64) -> bool {
    size < 4096
}

/// The tasks that `options` ask for, baselines among the tasks that they are compared with.
/// `max_mtu` is the largest path MTU that both ends have.
///
/// Fails, as wrong usage, when a number is out of range, or when nothing is left to measure.
pub(crate) fn tasks(options: &BenchOptions, max_mtu: u32) -> Outcome<Vec<Task>> {
    if let Some(mtu) = options.mtu.iter().find(|&&mtu| mtu > max_mtu) {
        let all = [256, 512, 1024, 2048, 4096].into_iter().filter(|&mtu| mtu <= max_mtu);
        let fit: Vec<String> = all.map(|mtu: u32| mtu.to_string()).collect();
        return Err(Failure::usage(format!(
            "path MTU (-m): {mtu} does not fit both ends; these do: {}",
            fit.join(", ")
        ))
        .hint("`vernic info` at each end says what its MTU is, and what decides it"));
    }
    let mut tasks = Vec::new();
    for spec in specs(options, max_mtu)? {
        let references = if options.no_baselines { Vec::new() } else { references(&spec) };
        for task in references.into_iter().chain([Task::Verbs(spec)]) {
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
    }
    if is_standard(options) && !options.no_baselines {
        for (baseline, size) in STANDARD_BASELINES {
            tasks.push(Task::Baseline { baseline, size });
        }
    }
    Ok(tasks)
}

/// True when nothing narrows the suite.
pub(crate) fn is_standard(options: &BenchOptions) -> bool {
    options.op.is_empty()
        && options.connection.is_empty()
        && options.size.is_empty()
        && !options.all
}

fn specs(options: &BenchOptions, max_mtu: u32) -> Outcome<Vec<Spec>> {
    let explicit_sizes: Option<Vec<u64>> = match (options.all, options.size.as_slice()) {
        (true, _) => Some((1..=23).map(|power| 1 << power).collect()),
        (false, []) => None,
        (false, sizes) => Some(sizes.to_vec()),
    };
    let mut specs: Vec<Spec> = Vec::new();
    let mut refused: Option<Failure> = None;
    for Row(kind, op, service, standard_sizes) in STANDARD {
        let wanted = (options.test.is_empty() || options.test.contains(&kind))
            && (options.op.is_empty() || options.op.contains(&op))
            && (options.connection.is_empty() || options.connection.contains(&service));
        // What shows or damages packets has none to do it to, there.
        let is_asked_for = options.connection.contains(&service);
        if !wanted || service.tcp().is_some() && options.packets_only && !is_asked_for {
            continue;
        }
        let sizes = match &explicit_sizes {
            // An ATOMIC has one size; asked for with another, it is measured at its own.
            Some(_) if op == Op::Atomic => &[8],
            Some(sizes) => sizes.as_slice(),
            None => standard_sizes,
        };
        for &size in sizes {
            for mtu in mtus_of(options, max_mtu, kind, service, size) {
                let spec = spec(options, kind, op, service, size, mtu);
                spec.check_ranges()?;
                match spec.check() {
                    Ok(()) if specs.contains(&spec) => {}
                    Ok(()) => specs.push(spec),
                    Err(failure) => refused = Some(failure),
                }
            }
        }
    }
    match refused {
        // A UD message of 1 MiB in a list of sizes is left out; asked for alone, it is an error.
        Some(failure) if specs.is_empty() => Err(failure),
        _ if specs.is_empty() => Err(Failure::usage("no measurement has all these options").hint(
            "RC has all operations, iWARP all but ATOMIC, UC has SEND and WRITE, UD has SEND",
        )),
        _ => Ok(specs),
    }
}

/// The MTUs to measure at: those asked for, else the largest, and for RC bandwidth 1024 as well,
/// what an Ethernet of 1500 bytes carries.
fn mtus_of(options: &BenchOptions, max: u32, kind: Kind, service: Service, size: u64) -> Vec<u32> {
    if service.tcp().is_some() {
        return vec![options.mtu.first().copied().unwrap_or(max)];
    }
    if !options.mtu.is_empty() {
        return options.mtu.clone();
    }
    let both = kind == Kind::Throughput && service == Service::Rc && size >= MIB && max > 1024;
    if both { vec![max, 1024] } else { vec![max] }
}

fn spec(options: &BenchOptions, kind: Kind, op: Op, service: Service, size: u64, mtu: u32) -> Spec {
    let latency = kind == Kind::Latency;
    let default_depth = match size {
        // One message is on its way; completions are asked for now and then.
        _ if latency => 64,
        0..=4096 => 512,
        4097..=65_536 => 64,
        // Two messages on their way and two being posted keep the pipe full; more only
        // move more memory through the cache.
        65_537..=MIB => 8,
        _ => 4,
    };
    // A list that is asked for must fit the queue that is not.
    let lists = options.post_list.unwrap_or(1).max(options.cq_mod.unwrap_or(1));
    let default_depth = lists.max(default_depth);
    let tx_depth = options.tx_depth.unwrap_or(default_depth);
    let quarter = (tx_depth / 4).clamp(1, 64);
    Spec {
        op,
        service,
        kind,
        size,
        mtu,
        qps: if latency { 1 } else { options.qps },
        tx_depth,
        rx_depth: options.rx_depth.unwrap_or((2 * default_depth.max(8)).min(MAX_DEPTH)),
        post_list: if latency { 1 } else { options.post_list.unwrap_or(quarter) },
        cq_mod: options.cq_mod.unwrap_or(quarter),
        inline_size: options.inline_size,
        outstanding: options.outstanding,
        qp_timeout: options.qp_timeout,
        passive: options.passive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> BenchOptions {
        use crate::args::{Arguments, Command};
        use clap::Parser as _;
        let words = ["vernic", "bench"].into_iter().chain(line.split_whitespace());
        match Arguments::try_parse_from(words).unwrap().command {
            Some(Command::Bench(bench)) => bench.options,
            other => panic!("{other:?} is no bench"),
        }
    }

    fn texts(line: &str) -> Vec<String> {
        tasks(&options(line), 4096).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_standard_suite_has_every_figure_that_the_project_promises() {
        let tasks = texts("");
        for promised in [
            "RC WRITE 1048576 B, MTU 4096, throughput",
            "RC SEND 1048576 B, MTU 4096, throughput",
            "RC WRITE 1048576 B, MTU 1024, throughput",
            "RC SEND 1048576 B, MTU 1024, throughput",
            "RC READ 1048576 B, MTU 4096, throughput",
            "RC SEND 64 B, MTU 4096, latency",
            "RC WRITE 8 B, MTU 4096, throughput",
            "UD SEND 64 B, MTU 4096, throughput",
            "RC ATOMIC 8 B, MTU 4096, latency",
            "TcpStream 1048576 B",
            "UdpPingPong 64 B",
            "UdpPackets 1048576 B, MTU 4096",
            "UdpPackets 1048576 B, MTU 1024",
            "Memcpy 1048576 B",
        ] {
            assert!(tasks.iter().any(|task| task == promised), "{promised} is not in {tasks:#?}");
        }
    }

    #[test]
    fn no_task_is_measured_twice() {
        let tasks = tasks(&options(""), 4096).unwrap();
        for (index, task) in tasks.iter().enumerate() {
            assert!(!tasks[..index].contains(task), "{task} twice");
        }
    }

    #[test]
    fn a_small_device_mtu_gives_one_row_and_not_two() {
        let tasks =
            tasks(&options("--op write -c RC -s 1m --test bw --no-baselines"), 1024).unwrap();
        assert_eq!(tasks.len(), 1);
    }

    #[test]
    fn options_narrow_the_suite_and_bring_their_baseline() {
        assert_eq!(
            texts("--op write -c RC -s 64k --test bw"),
            [
                "TcpStream 65536 B",
                "TcpStream 262144 B",
                "TcpStream 1048576 B",
                "UdpPackets 1048576 B, MTU 4096",
                "RC WRITE 65536 B, MTU 4096, throughput"
            ]
        );
        assert_eq!(
            texts("--op send -c UD -s 64,1m --test lat -m 2048"),
            ["UdpPingPong 64 B", "UD SEND 64 B, MTU 2048, latency"]
        );
    }

    #[test]
    fn what_does_not_exist_is_refused_with_the_reason() {
        let failure = tasks(&options("--op read -c UD"), 4096).unwrap_err();
        assert!(failure.to_string().contains("UD has SEND"), "{failure}");
        let failure = tasks(&options("--op send -c UD -s 1m"), 4096).unwrap_err();
        assert!(failure.what().contains("one packet"), "{failure}");
        let failure = tasks(&options("-m 4096"), 1024).unwrap_err();
        assert!(failure.what().contains("256, 512, 1024"), "{failure}");
        let failure = tasks(&options("-l 64 -t 32"), 4096).unwrap_err();
        assert!(failure.what().contains("(-l): 64 is outside 1 to 32"), "{failure}");
    }

    #[test]
    fn a_list_that_is_asked_for_drops_no_measurement() {
        assert_eq!(texts("-l 100 -Q 100").len(), texts("").len());
    }

    #[test]
    fn all_sizes_are_the_powers_of_two_up_to_8_mib() {
        let tasks = texts("-a --op write -c RC --test bw --no-baselines -m 4096");
        assert_eq!(tasks.len(), 23);
        assert_eq!(tasks[22], "RC WRITE 8388608 B, MTU 4096, throughput");
    }
}
