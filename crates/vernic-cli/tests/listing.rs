//! What there is on this machine, for people and for machines.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn vernic(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = vernic(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_loopback_device_is_listed_and_described() {
    let devices = json(&["devices", "--json"]);
    let all = devices.as_array().unwrap();
    let lo = all.iter().find(|device| device["netdev"] == "lo").expect("no device on lo");
    let name = lo["name"].as_str().unwrap();
    for asked in [name, "lo"] {
        let info = json(&["info", asked, "--json"]);
        assert_eq!(info[0]["name"], name);
        let gids = info[0]["gids"].as_array().unwrap();
        assert!(gids.iter().any(|gid| gid["ip"] == "127.0.0.1" && gid["type"] == "RoCEv2"));
    }
    let text = String::from_utf8(vernic(&["info", "lo"]).stdout).unwrap();
    for word in ["::ffff:127.0.0.1", "this machine only", "max_qp_wr", "P_Keys"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
}

#[test]
fn a_device_that_does_not_exist_is_answered_with_those_that_do() {
    let output = vernic(&["info", "mlx5_0"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("mlx5_0") && text.contains("vernic0"), "{text}");
}

#[test]
fn every_setting_is_listed_with_its_variable() {
    let settings = json(&["config", "--json"]);
    let settings = settings.as_array().unwrap();
    assert!(settings.iter().any(|setting| setting["variable"] == "VERNIC_MTU"));
    for setting in settings {
        let text = String::from_utf8(vernic(&["config"]).stdout).unwrap();
        assert!(text.contains(setting["variable"].as_str().unwrap()), "{setting}");
    }
}

#[test]
fn a_bad_setting_in_the_environment_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    let output = command.args(["config"]).env("VERNIC_MTU", "1500").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("VERNIC_MTU") && text.contains("1500"), "{text}");
}
