//! The bench measures everything that it should, between two processes, and says why when it
//! cannot.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn vernic(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn json(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn figure(row: &Value, name: &str) -> f64 {
    let value = row[name].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"));
    assert!(value > 0.0 && value.is_finite(), "{name} of {row}");
    value
}

#[test]
fn the_standard_suite_measures_every_operation_of_every_service() {
    let output = vernic(&["bench", "--json", "-n", "40", "--rounds", "1"]).output().unwrap();
    let report = json(&output);
    let results = report["results"].as_array().unwrap();
    for (op, service) in [
        ("SEND", "RC"),
        ("WRITE", "RC"),
        ("READ", "RC"),
        ("ATOMIC", "RC"),
        ("SEND", "UC"),
        ("WRITE", "UC"),
        ("SEND", "UD"),
        ("SEND", "iWARP+CRC"),
        ("WRITE", "iWARP"),
        ("READ", "iWARP+CRC"),
    ] {
        let rows = || results.iter().filter(|row| row["op"] == op && row["service"] == service);
        let path = if service.starts_with("iWARP") { "tcp" } else { "memory" };
        let has_latency = rows().any(|row| row.get("latency_us_p50").is_some());
        assert!(has_latency || path == "tcp", "{service} {op}");
        assert!(rows().any(|row| row.get("mmsg_per_s").is_some()), "{service} {op}");
        for row in rows() {
            assert_eq!((row["path"].as_str(), row["qps"].as_u64()), (Some(path), Some(1)));
            if row.get("latency_us_p50").is_some() {
                assert!(figure(row, "latency_us_p50") <= figure(row, "latency_us_p99"));
            }
        }
    }
    for name in ["tcp", "udp", "memcpy"] {
        let baselines = report["baselines"].as_array().unwrap();
        let row =
            baselines.iter().find(|row| row["name"] == name && row.get("gbytes_per_s").is_some());
        figure(row.unwrap_or_else(|| panic!("no {name}")), "gbytes_per_s");
    }
    assert_eq!(report["resources"]["qps"], 10_000);
}

#[test]
fn many_queue_pairs_inline_messages_and_odd_depths_work_together() {
    let line = "bench --json --no-baselines -n 500 --rounds 1 -s 33 --op send,write -q 3 -t 7 -r 20 -l 3 \
                -Q 5 -I 64 -m 256";
    let output = vernic(&line.split_whitespace().collect::<Vec<_>>()).output().unwrap();
    let report = json(&output);
    let rows = report["results"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["qps"] == 3 && figure(row, "mmsg_per_s") > 0.0), "{report}");
    assert!(rows.iter().all(|row| row["mtu_bytes"] == 256), "{report}");
}

#[test]
fn a_passive_side_that_sleeps_is_served_by_its_background_thread() {
    let line =
        "bench --json --no-baselines -n 8 --rounds 1 -c RC --op write,read,atomic -s 64 --passive";
    let output = vernic(&line.split_whitespace().collect::<Vec<_>>()).output().unwrap();
    assert_eq!(json(&output)["results"].as_array().unwrap().len(), 3);
}

#[test]
fn a_peer_that_never_answers_is_explained() {
    let line = "bench --no-baselines -n 5 --rounds 1 -c RC --op write --test lat -s 64 -u 8";
    let mut command = vernic(&line.split_whitespace().collect::<Vec<_>>());
    let output = command.env("VERNIC_FAULT", "loss=1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("failed: RC WRITE 64 B"), "{text}");
    assert!(text.contains("RetryExceeded") && text.contains("127.0.0.1"), "{text}");
    assert!(text.contains("VERNIC_FAULT) is set to loss=1"), "{text}");
    assert!(!text.contains("p50 us"), "a table of nothing: {text}");
}

#[test]
fn a_service_of_roce_on_a_device_of_iwarp_fails_at_once_and_says_what_to_name() {
    let listed = vernic(&["devices", "--json"]).env("VERNIC_TRANSPORT", "iwarp").output().unwrap();
    let devices = json(&listed);
    let mut names = devices.as_array().unwrap().iter().filter_map(|device| device["name"].as_str());
    let device = names.find(|name| name.starts_with("viw")).unwrap();
    for service in ["rc", "ud"] {
        let line =
            ["bench", "-d", device, "-c", service, "--op", "send", "--test", "lat", "-s", "8"];
        let output = vernic(&line).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(device) && text.contains("-c iwarp"), "{text}");
    }
}

#[test]
fn iwarp_is_measured_with_and_without_crcs_and_left_out_where_packets_are_captured() {
    let line = "bench --json --no-baselines -n 20 --rounds 1 -q 2 -s 100000 --op send,write,read \
                -c iwarp,iwarp+crc --test bw";
    let output = vernic(&line.split_whitespace().collect::<Vec<_>>()).output().unwrap();
    let report = json(&output);
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{report}");
    assert!(rows.iter().all(|row| row["path"] == "tcp" && figure(row, "gbytes_per_s") > 0.0));
    let line = "bench --json --no-baselines -n 5 --rounds 1 -s 64 --op write --test bw";
    let mut command = vernic(&line.split_whitespace().collect::<Vec<_>>());
    let output = command.env("VERNIC_FAULT", "dup=0.01").output().unwrap();
    let report = json(&output);
    let rows = report["results"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["path"] == "udp"), "{report}");
    let line = "bench --no-baselines -n 5 --rounds 1 -s 64 --op write --test bw -c iwarp";
    let mut command = vernic(&line.split_whitespace().collect::<Vec<_>>());
    let output = command.env("VERNIC_FAULT", "dup=0.01").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("VERNIC_FAULT") && text.contains("packets of RoCE"), "{text}");
}
