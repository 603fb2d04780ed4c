//! What each program prints, read.
//!
//! Columns are found by their headings, so that another version of a program is refused rather than
//! misread.

use serde_json::Value;

use crate::Result;

/// Bits in 1e9 bytes.
const BITS_PER_GBYTE: f64 = 8e9;
/// Bytes in what UCX and perftest call a megabyte.
const MIB: f64 = 1_048_576.0;

/// Headings of perftest's bandwidth with `--report_gbits`, and of its latency.
const PERFTEST_BANDWIDTH: &[&str] =
    &["#bytes", "#iterations", "BW peak[Gb/sec]", "BW average[Gb/sec]", "MsgRate[Mpps]"];
/// Headings of its bandwidth without that option: what it calls MB is MiB.
const PERFTEST_LOW_BANDWIDTH: &[&str] =
    &["#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]"];
const PERFTEST_LATENCY: &[&str] =
    &["#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]"];

/// perftest's average bandwidth, in GB/s.
pub(super) fn perftest_bandwidth(text: &str) -> Result<f64> {
    let gbits = perftest(text, PERFTEST_BANDWIDTH, 3)?;
    above_zero(gbits / 8.0)
}

/// The same of perftest without `--report_gbits`, whose two decimals are too few for what is slow.
pub(crate) fn perftest_low_bandwidth(text: &str) -> Result<f64> {
    let mib = perftest(text, PERFTEST_LOW_BANDWIDTH, 3)?;
    above_zero(mib * MIB / 1e9)
}

/// perftest's message rate, in M msg/s.
pub(super) fn perftest_rate(text: &str) -> Result<f64> {
    above_zero(perftest(text, PERFTEST_BANDWIDTH, 4)?)
}

/// perftest's typical latency (the median), in microseconds.
pub(in crate::bench) fn perftest_latency(text: &str) -> Result<f64> {
    above_zero(perftest(text, PERFTEST_LATENCY, 4)?)
}

/// The number in one column of the only line of results.
fn perftest(text: &str, headings: &[&str], column: usize) -> Result<f64> {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let missing = || format!("perftest printed no columns {}:\n{text}", headings.join(", "));
    let mut rest = lines.next().ok_or_else(missing)?.trim_start();
    for heading in headings {
        rest = rest.strip_prefix(heading).ok_or_else(missing)?.trim_start();
    }
    let results = lines.next().ok_or_else(missing)?;
    number(results.split_whitespace().nth(column).ok_or_else(missing)?)
}

/// What the receiver of `iperf3 --json` got, in GB/s.
pub(super) fn iperf3(text: &str) -> Result<f64> {
    let json = json("iperf3", text)?;
    if let Some(error) = json["error"].as_str() {
        return Err(format!("iperf3: {error}"));
    }
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    above_zero(bits.ok_or("iperf3 told no end.sum_received.bits_per_second")? / BITS_PER_GBYTE)
}

/// Bandwidth over the whole of a `ucx_perftest -f -v`, in GB/s.
pub(super) fn ucx_bandwidth(text: &str) -> Result<f64> {
    above_zero(ucx(text, "overall_bw")? * MIB / 1e9)
}

/// Median latency of a `ucx_perftest -f -v`, in microseconds.
pub(super) fn ucx_latency(text: &str) -> Result<f64> {
    above_zero(ucx(text, "50.0_percentile_lat")?)
}

/// Messages over the whole of a `ucx_perftest -f -v`, in M msg/s.
pub(super) fn ucx_rate(text: &str) -> Result<f64> {
    above_zero(ucx(text, "overall_mr")? / 1e6)
}

fn ucx(text: &str, heading: &str) -> Result<f64> {
    let missing = || format!("ucx_perftest printed no column {heading}:\n{text}");
    let mut lines = text.lines().skip_while(|line| !line.starts_with("iterations,"));
    let headings = lines.next().ok_or_else(missing)?;
    let column = headings.split(',').position(|h| h == heading).ok_or_else(missing)?;
    number(lines.next().and_then(|line| line.split(',').nth(column)).ok_or_else(missing)?)
}

/// One-way latency of a `qperf -uu ... tcp_lat`, in microseconds.
pub(super) fn qperf_latency(text: &str) -> Result<f64> {
    above_zero(qperf(text, "latency", "ns")? / 1e3)
}

/// Bandwidth of a `qperf -uu ... tcp_bw`, in GB/s.
pub(super) fn qperf_bandwidth(text: &str) -> Result<f64> {
    above_zero(qperf(text, "bw", "bytes/sec")? / 1e9)
}

fn qperf(text: &str, what: &str, unit: &str) -> Result<f64> {
    let missing = || format!("qperf told no {what} in {unit}:\n{text}");
    let line = text.lines().find_map(|line| line.trim().strip_prefix(what)).ok_or_else(missing)?;
    let value = line.trim_start().strip_prefix('=').and_then(|rest| rest.trim().strip_suffix(unit));
    number(value.ok_or_else(missing)?.trim())
}

/// One-way latency of a `fi_pingpong`, in microseconds.
pub(super) fn libfabric_latency(text: &str) -> Result<f64> {
    let missing = || format!("fi_pingpong printed no column usec/xfer:\n{text}");
    let mut lines = text.lines().skip_while(|line| !line.starts_with("bytes"));
    let headings = lines.next().ok_or_else(missing)?;
    let column = headings.split_whitespace().position(|h| h == "usec/xfer").ok_or_else(missing)?;
    let value = lines.next().and_then(|line| line.split_whitespace().nth(column));
    above_zero(number(value.ok_or_else(missing)?)?)
}

/// Median round trip of a `sockperf ping-pong --full-rtt`, in microseconds.
pub(super) fn sockperf_round_trip(text: &str) -> Result<f64> {
    // Without the option it prints half of a round trip, and calls that a latency.
    if !text.contains("Summary: Round trip is") {
        return Err(format!("sockperf told of no round trip:\n{text}"));
    }
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once("percentile 50.000")?.1.split_once('=')?;
        name.trim().is_empty().then_some(value.trim())
    });
    above_zero(number(value.ok_or_else(|| format!("sockperf printed no median:\n{text}"))?)?)
}

/// One figure of the only result of `vernic bench --json`.
pub(super) fn vernic_bench(text: &str, figure: &str) -> Result<f64> {
    let json = json("vernic bench", text)?;
    let found = json["results"][0][figure].as_f64();
    above_zero(found.ok_or_else(|| format!("vernic bench told no {figure}:\n{text}"))?)
}

/// Connections per second of `cmtime`, from the making of ids to the last connection.
pub(super) fn cmtime(text: &str) -> Result<f64> {
    const STEPS: [&str; 5] = ["create id", "resolve addr", "resolve route", "create qp", "connect"];
    let missing = || format!("cmtime printed no column us / conn:\n{text}");
    let mut lines = text.lines().skip_while(|line| !line.starts_with("step "));
    let headings = lines.next().ok_or_else(missing)?;
    if !headings.trim_end().ends_with("us / conn") {
        return Err(missing());
    }
    let mut us = 0.0;
    for step in STEPS {
        let row = lines.clone().find_map(|line| {
            let (name, figures) = line.split_once(':')?;
            (name.trim() == step).then_some(figures)
        });
        let figure = row.and_then(|figures| figures.split_whitespace().next_back());
        us += number(figure.ok_or_else(|| format!("cmtime printed no {step}:\n{text}"))?)?;
    }
    above_zero(1e6 / us)
}

/// Nanoseconds per message, as both programs `post_poll` print them.
pub(super) fn post_poll(text: &str) -> Result<f64> {
    match text.trim_end().strip_suffix(" ns per message") {
        Some(ns) => above_zero(number(ns)?),
        None => Err(format!("post_poll printed no time:\n{text}")),
    }
}

/// The count in the file of `perf stat -x, -e instructions:u`.
pub(super) fn instructions(text: &str) -> Result<f64> {
    let line = text.lines().find(|line| line.contains(",instructions:u,"));
    let count = line.and_then(|line| line.split(',').next()).and_then(|n| n.parse().ok());
    above_zero(count.ok_or_else(|| format!("perf counted no instructions here:\n{text}"))?)
}

fn json(program: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| format!("{program} printed no JSON: {e}"))
}

fn number(text: &str) -> Result<f64> {
    text.parse().map_err(|_| format!("`{text}` where a number should be"))
}

fn above_zero(figure: f64) -> Result<f64> {
    if figure.is_finite() && figure > 0.0 {
        Ok(figure)
    } else {
        Err(format!("a figure of {figure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// perftest 6.06 of Debian 12, blanks and tabs as printed.
    const BANDWIDTH: &str = "\
 Link type       : Ethernet
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    1000             54.89              19.94  \t\t   0.002377
---------------------------------------------------------------------------------------
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       20000          3.14           2654.26      12.47    \t       12.08       \t12.79  \t\t16.06   \t\t26.23  
";
    /// ucx_perftest 1.13.1 of Debian 12.
    const UCX: &str = "\
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
10000,5.111,55.000,66.418,0.14,0.11,18182,15056
";
    /// qperf 0.4.11, with -uu.
    const QPERF: &str = "\
tcp_lat:
    latency  =  6017 ns
quit:
";
    /// fi_pingpong of libfabric 1.17.
    const LIBFABRIC: &str = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      200     =200     25k         0.01s      2.25      28.48       0.04
";
    /// cmtime of rdma-core 44.
    const CMTIME: &str = "\
step              total ms     max ms     min us  us / conn
create id    :        0.70       0.04       0.00       0.70
resolve addr :        6.40       0.61       4.00       6.40
resolve route:        1.09       0.55       4.00       1.09
create qp    :        1.84       0.08       0.00       1.84
connect      :       67.59      55.67     726.00      69.97
disconnect   :       13.43       8.24     202.00      13.43
destroy      :        1.03       0.01       0.00       1.03
";
    /// sockperf 3.7.
    const SOCKPERF: &str = "\
sockperf: \x1b[2;35m====> avg-rtt=132.876 (std-dev=718.226)\x1b[0m
sockperf: Summary: Round trip is 132.876 usec
sockperf: ---> percentile 50.000 =   41.638
";
    /// perf 6.1.
    const PERF: &str =
        "# started on Sat Nov 21 22:00:00 2026\n\n519130128,,instructions:u,149573372,100.00,,\n";

    #[test]
    fn what_programs_printed_is_read() {
        assert_eq!(perftest_bandwidth(BANDWIDTH), Ok(19.94 / 8.0));
        let low = perftest_low_bandwidth(&BANDWIDTH.replace("Gb/sec", "MB/sec"));
        assert_eq!(low, Ok(19.94 * MIB / 1e9));
        assert_eq!(perftest_rate(BANDWIDTH), Ok(0.002377));
        assert_eq!(perftest_latency(LATENCY), Ok(12.47));
        assert_eq!(ucx_latency(UCX), Ok(5.111));
        assert_eq!(ucx_bandwidth(UCX), Ok(0.11 * 1.048_576 / 1e3));
        assert_eq!(ucx_rate(UCX), Ok(0.015056));
        assert_eq!(sockperf_round_trip(SOCKPERF), Ok(41.638));
        assert_eq!(qperf_latency(QPERF), Ok(6.017));
        assert_eq!(qperf_bandwidth("tcp_bw:\n    bw  =  2500000000 bytes/sec\n"), Ok(2.5));
        assert_eq!(libfabric_latency(LIBFABRIC), Ok(28.48));
        assert_eq!(instructions(PERF), Ok(519_130_128.0));
        assert_eq!(cmtime(CMTIME).map(f64::round), Ok(12_500.0));
        assert_eq!(post_poll("365.5 ns per message\n"), Ok(365.5));
        let json =
            r#"{"end": {"sum_received": {"seconds": 1.0, "bits_per_second": 58608892812.8}}}"#;
        assert_eq!(iperf3(json), Ok(58_608_892_812.8 / 8e9));
        let json = r#"{"results": [{"op": "WRITE", "mmsg_per_s": 3.5}], "baselines": []}"#;
        assert_eq!(vernic_bench(json, "mmsg_per_s"), Ok(3.5));
    }

    #[test]
    fn another_units_column_is_not_taken_for_this_one() {
        assert!(perftest_bandwidth(&BANDWIDTH.replace("Gb/sec", "MB/sec")).is_err());
        assert!(perftest_low_bandwidth(BANDWIDTH).is_err());
        assert!(
            perftest_latency(&LATENCY.replace("t_typical[usec]", "t_typical[cycles]")).is_err()
        );
        assert!(perftest_latency(BANDWIDTH).is_err());
        assert!(qperf_latency(&QPERF.replace("ns", "us")).is_err());
        assert!(qperf_bandwidth(QPERF).is_err());
        assert!(libfabric_latency(&LIBFABRIC.replace("usec/", "msec/")).is_err());
        assert!(ucx_latency(&UCX.replace("50.0_", "99.0_")).is_err());
        assert!(ucx_rate(&UCX.replace("overall_mr", "mr")).is_err());
        assert!(sockperf_round_trip(&SOCKPERF.replace("Round trip", "Latency")).is_err());
        assert!(sockperf_round_trip(&SOCKPERF.replace("50.000", "99.000")).is_err());
        assert!(cmtime(&CMTIME.replace("us / conn", "ms / conn")).is_err());
        assert!(cmtime(&CMTIME.replace("create qp", "create cq")).is_err());
        assert!(vernic_bench(r#"{"results": [{"gbytes_per_s": 1.0}]}"#, "mmsg_per_s").is_err());
    }

    #[test]
    fn a_failure_is_told_in_the_programs_words() {
        let json = r#"{"start": {}, "error": "unable to connect to server: Connection refused"}"#;
        assert!(iperf3(json).unwrap_err().contains("Connection refused"));
        assert!(perftest_rate("Couldn't connect").unwrap_err().contains("Couldn't connect"));
        assert!(perftest_rate(&BANDWIDTH.replace("0.002377", "0.000000")).is_err());
        assert!(instructions("<not supported>,,instructions:u,0,100.00,,").is_err());
    }
}
