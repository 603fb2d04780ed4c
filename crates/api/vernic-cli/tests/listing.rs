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
    let beside =
        all.iter().find(|device| device["transport"] == "iWARP" && device["netdev"] == "lo");
    let beside = beside.expect("no iWARP device on lo")["name"].as_str().unwrap();
    assert_eq!(beside, name.replace("vernic", "viw"));
    let info = json(&["info", beside, "--json"]);
    assert_eq!(
        (&info[0]["transport"], &info[0]["gids"][0]["type"]),
        (&"iWARP".into(), &"MAC".into())
    );
    let text = String::from_utf8(vernic(&["info", "lo"]).stdout).unwrap();
    for word in ["::ffff:127.0.0.1", "this machine only", "max_qp_wr", "P_Keys"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
}

#[test]
fn info_says_how_packets_go_to_other_processes_of_this_host() {
    for (setting, value, said) in [
        ("VERNIC_SAME_HOST", "on", "through shared memory"),
        ("VERNIC_SAME_HOST", "off", "by the wire: same_host is off"),
        ("VERNIC_FORCE_WIRE", "on", "by the wire: same_host is off or force_wire is on"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
        command.args(["info", "lo"]).env("VERNIC_SAME_HOST", "on").env(setting, value);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(text.contains(said), "{setting}={value}: {text}");
    }
}

#[test]
fn a_device_that_does_not_exist_is_answered_with_those_that_do() {
    // A wrong name is wrong usage, on the command line and in the settings.
    let by_option = vernic(&["info", "mlx5_0"]);
    assert_eq!(by_option.status.code(), Some(2));
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    let by_setting = command.args(["info"]).env("VERNIC_DEVICE", "mlx5_0").output().unwrap();
    assert_eq!(by_setting.status.code(), Some(2));
    for output in [by_option, by_setting.clone()] {
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("mlx5_0") && text.contains("vernic0 and viw0 ("), "{text}");
    }
    let text = String::from_utf8(by_setting.stderr).unwrap();
    assert!(text.contains("environment variable VERNIC_DEVICE"), "{text}");
}

#[test]
fn the_configured_device_is_the_one_that_is_shown_and_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    let output = command.args(["info", "--json"]).env("VERNIC_DEVICE", "lo").output().unwrap();
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 1);
    assert_eq!(shown[0]["netdev"], "lo");
    let line = "bench -n 5 --rounds 1 -c RC --op send --test lat -s 64 --no-baselines";
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    let output = command.args(line.split(' ')).env("VERNIC_DEVICE", "mlx5_0").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("mlx5_0"));
}

#[test]
fn a_configured_mtu_is_named_as_what_decides() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    let output = command.args(["info", "lo"]).env("VERNIC_MTU", "512").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("512 active") && text.contains("VERNIC_MTU"), "{text}");
}

#[test]
fn every_value_says_where_it_comes_from() {
    let directory = std::env::temp_dir().join(format!("vernic-settings-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("vernic.conf");
    std::fs::write(&file, "# for a test\nmtu = 1024\nflows = 2\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    command.args(["config", "--json"]).env_remove("VERNIC_CONFIG");
    let output = command.env("XDG_CONFIG_HOME", &directory).env("VERNIC_FLOWS", "3").output();
    let output = output.unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let settings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |name: &str| {
        let all = settings.as_array().unwrap();
        all.iter().find(|setting| setting["name"] == name).unwrap().clone()
    };
    assert_eq!(row("mtu")["origin"], format!("file {} line 2", file.display()));
    assert_eq!(row("flows")["origin"], "environment variable VERNIC_FLOWS");
    assert_eq!(
        (row("flows")["value"].as_str(), row("trace")["origin"].as_str()),
        (Some("3"), Some("default"))
    );
}

#[test]
fn the_trace_shows_packets_on_standard_error() {
    let line = "bench -d lo -n 2 --rounds 1 -c RC --op send --test lat -s 64 --no-baselines";
    let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
    let output = command.args(line.split(' ')).env("VERNIC_TRACE", "on").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("trace: -> "), "{output:?}");
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
fn every_command_refuses_a_wrong_setting_with_the_same_words() {
    let commands = [
        "devices",
        "info",
        "info lo",
        "config",
        "run true",
        "run --set mtu=1024 true",
        "env",
        "bench",
        "bench server --once",
        "bench client 127.0.0.1 -p 1",
        "bench second-process -p 1",
    ];
    for (variable, value, said) in [
        ("VERNIC_MTU", "77", "VERNIC_MTU: mtu = \"77\": "),
        ("VERNIC_TYPO", "1", "environment: there is no setting \"VERNIC_TYPO\""),
        ("VERNIC_LOSS", "1", "environment: there is no setting \"VERNIC_LOSS\" (`--loss` is an op"),
        ("VERNIC_CONFIG", "/nonexist", "cannot read the configuration file /nonexist: "),
    ] {
        for arguments in commands {
            let mut command = Command::new(env!("CARGO_BIN_EXE_vernic"));
            command.args(arguments.split(' ')).stdin(Stdio::null()).env(variable, value);
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{arguments}, {variable}: {text}");
            let first = format!("vernic: cannot read the settings: {said}");
            assert!(text.starts_with(&first), "{arguments}, {variable}: {text}");
            assert_eq!(output.stdout, b"", "{arguments}, {variable}");
        }
    }
}

#[test]
fn a_machine_whose_netdevs_are_down_says_which_and_what_helps() {
    // A fresh network namespace has `lo`, and it is down.
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", env!("CARGO_BIN_EXE_vernic")]).args(arguments);
        command.stdin(Stdio::null()).output()
    };
    if !Command::new("unshare")
        .args(["--map-root-user", "--net", "true"])
        .status()
        .is_ok_and(|s| s.success())
    {
        eprintln!("skipped: no namespace can be made here");
        return;
    }
    for arguments in
        [&["devices"][..], &["info"], &["info", "lo"], &["bench"], &["bench", "server"]]
    {
        let output = inside(arguments).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text.contains("lo is down (`ip link set lo up`)"), "{arguments:?}: {text}");
    }
    assert_eq!(inside(&["devices", "--json"]).unwrap().stdout, b"[]\n");
}

#[test]
fn without_the_right_to_packet_sockets_there_is_no_roce_v1_and_info_says_why() {
    let inside = |around: &str, setting: &str| {
        let line = format!(
            "ip link add ve0 type veth peer name ve1 && ip address add 10.16.9.1/24 dev ve0 && \
             ip link set ve0 up && {around} \"$0\" info ve0 --json"
        );
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-c", &line]);
        command.arg(env!("CARGO_BIN_EXE_vernic")).env("VERNIC_ROCE", setting);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let with = inside("", "v1");
    let less = "setpriv --bounding-set=-net_raw --inh-caps=-net_raw";
    let without = inside(less, "v2");
    if !with.status.success() || !without.status.success() {
        eprintln!("skipped: no namespace, `ip` or `setpriv` here");
        return;
    }
    let rows = |output: &Output| -> Vec<(u64, String)> {
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = info[0]["gids"].as_array().unwrap();
        let rows = rows.iter().filter(|row| row["ip"] == "10.16.9.1");
        rows.map(|row| (row["index"].as_u64().unwrap(), row["type"].to_string())).collect()
    };
    let (both, one) = (rows(&with), rows(&without));
    assert_eq!((both.len(), one.len()), (2, 1));
    assert_eq!((both[0].clone(), both[1].0), (one[0].clone(), one[0].0 + 32));
    assert_eq!(both[1].1, "\"RoCEv1\"");
    let text = String::from_utf8_lossy(&without.stdout).into_owned();
    assert!(text.contains("CAP_NET_RAW"), "{text}");
    // To ask for it is an error then.
    let refused = inside(less, "v1");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("VERNIC_ROCE"), "{text}");
    assert!(text.contains("CAP_NET_RAW"), "{text}");
}
