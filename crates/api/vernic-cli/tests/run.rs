//! `vernic run` and `vernic env`, with everyday programs in the place of verbs programs.
//!
//! The command is installed into a folder of the test's own (`installed`).

mod installed;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use installed::Installed;

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_program_takes_the_place_of_the_command() {
    let installed = Installed::new();
    let mut command = installed.command(&["run", "sh", "-c", "echo $$; exit 7"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{id}\n"));
    assert_eq!(output.status.code(), Some(7));
    let killed = installed.vernic(&["run", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15));
}

#[test]
fn the_log_of_a_program_has_the_first_warnings_of_each_kind_unless_it_is_asked_for_otherwise() {
    let installed = Installed::new();
    let level = |variable: Option<&str>| {
        let mut command = installed.command(&["run", "sh", "-c", "echo $VERNIC_LOG"]);
        command.env_remove("VERNIC_LOG").envs(variable.map(|value| ("VERNIC_LOG", value)));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!((level(None).trim(), level(Some("off")).trim()), ("brief", "off"));
}

#[test]
fn a_program_finds_the_libraries_under_the_names_it_was_linked_against() {
    let installed = Installed::new();
    let library = installed.0.join("lib/vernic");
    for (name, file) in [
        ("libibverbs.so.1", "libvernic_abi.so"),
        ("librdmacm.so.1", "libvernic_abi.so"),
        ("libibumad.so.3", "libvernic_abi.so"),
        ("libmlx5.so.1", "libvernic_providers.so"),
        ("libefa.so.1", "libvernic_providers.so"),
        ("librspreload.so", "libvernic_rspreload.so"),
    ] {
        let line = format!("readlink ${{LD_LIBRARY_PATH%%:*}}/{name}");
        let target = installed.shell(&[], &line);
        assert_eq!(Path::new(target.trim_end()), library.join(file), "{name}");
    }
}

#[test]
fn where_there_can_be_no_folder_the_refusal_says_how_to_have_one_elsewhere() {
    let installed = Installed::new();
    let temporary = installed.0.join("temporary");
    let user = fs::metadata("/proc/self").map(|meta| meta.uid()).unwrap();
    let base = temporary.join(format!("vernic-{user}"));
    let refusal = |temporary: &Path| {
        let mut command = installed.command(&["run", "true"]);
        let output =
            command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", temporary).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        stderr(&output)
    };
    // Others may write there.
    fs::create_dir_all(&base).unwrap();
    fs::set_permissions(&base, fs::Permissions::from_mode(0o777)).unwrap();
    let shared = refusal(&temporary);
    assert!(shared.contains("unshare -r") && shared.contains("TMPDIR=$(mktemp -d)"), "{shared}");
    // Nobody may make a folder there, as in a file system that is read-only.
    let denied = refusal(Path::new("/proc"));
    // A file is in the way where the folder would be filled.
    fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(base.join(".lock")).unwrap();
    let full = refusal(&temporary);
    for (refusal, word) in [(shared, "belongs"), (denied, "create"), (full, "prepare")] {
        let names = refusal.contains("TMPDIR") && refusal.contains("XDG_RUNTIME_DIR");
        assert!(names && refusal.contains(word), "{refusal}");
    }
}

#[test]
fn what_the_environment_had_comes_after_ours() {
    let installed = Installed::new();
    let mut command =
        installed.command(&["run", "--no-paths", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    let output = command.env("LD_LIBRARY_PATH", "/one::/two").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let (first, rest) = printed.trim_end().split_once(':').unwrap();
    assert!(first.starts_with(installed.0.join("runtime").to_str().unwrap()), "{printed}");
    assert_eq!(rest, "/one:/two");
}

#[test]
fn devices_are_shown_to_programs_and_their_children() {
    let installed = Installed::new();
    let line = "ls /sys/class/infiniband/vernic0/device/net/ | cat";
    let netdev = installed.shell(&[], line);
    assert!(Path::new("/sys/class/net").join(netdev.trim_end()).exists(), "{netdev}");
    let line = "cd /sys/class/infiniband/vernic0/ports/1 && cat gid_attrs/types/0 link_layer";
    assert_eq!(installed.shell(&[], line), "RoCE v2\nEthernet\n");
    let line = "test -c /dev/infiniband/uverbs0 -a -w /dev/infiniband/rdma_cm && echo yes";
    assert_eq!(installed.shell(&[], line), "yes\n");
    assert_eq!(installed.shell(&["--no-paths"], "echo $LD_PRELOAD$VERNIC_PATHS"), "\n");
}

#[test]
fn a_program_is_shown_the_files_of_the_device_that_it_shall_use_and_no_others() {
    let installed = Installed::new();
    let line = "cat /sys/class/infiniband/*/node_desc /sys/class/infiniband_verbs/uverbs*/ibdev; \
                ls -d /dev/infiniband/uverbs*; ls /sys/class/infiniband/*/device/net";
    let shown = installed.shell(&["-d", "lo"], line);
    let [desc, ibdev, node, netdev] = *shown.lines().collect::<Vec<_>>() else {
        panic!("more than one device, or none: {shown}")
    };
    assert_eq!((desc, netdev), (ibdev, "lo"));
    let number = desc.strip_prefix("vernic").unwrap();
    assert_eq!(node, format!("/dev/infiniband/uverbs{number}"));
    // The same where the environment names it, and by its other name.
    let mut command = installed.command(&["run", "--", "sh", "-c", line]);
    let output = command.env("VERNIC_DEVICE", desc).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), shown, "{output:?}");
}

#[test]
fn options_become_settings() {
    let installed = Installed::new();
    let options =
        ["--set", "mtu=1024", "--force-wire", "--share-memory", "--vendor-part-id", "4115"];
    let line = "echo $VERNIC_MTU $VERNIC_FORCE_WIRE $VERNIC_SHARE_MEMORY $VERNIC_VENDOR_PART_ID";
    assert_eq!(installed.shell(&options, line), "1024 on on 4115\n");
}

#[test]
fn faults_are_told_in_one_line_however_they_were_asked_for() {
    let installed = Installed::new();
    let line = "echo $VERNIC_FAULT";
    let faults = "loss=0.01,seed=3";
    for (options, variable) in [
        (&["--loss", "0.01", "--seed", "3"][..], None),
        (&["--fault", faults], None),
        (&[], Some(faults)),
    ] {
        let mut command = installed.command(&[&["run"], options, &["sh", "-c", line]].concat());
        let output = command.envs(variable.map(|v| ("VERNIC_FAULT", v))).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{faults}\n"), "{output:?}");
        let told = format!("vernic: packets are damaged on purpose: {faults}\n");
        assert_eq!(stderr(&output), told);
    }
}

#[test]
fn a_shell_that_evaluates_env_has_what_run_gives() {
    let installed = Installed::new();
    let line = "eval \"$(\"$0\" env --set mtu=1024)\" && ls /sys/class/infiniband >/dev/null \
                && echo $VERNIC_MTU";
    let mut command = Command::new("sh");
    command.args(["-c", line]).arg(installed.0.join("bin/vernic"));
    let output = command.env("XDG_RUNTIME_DIR", installed.0.join("runtime")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1024\n", "{output:?}");
}

#[test]
fn a_program_that_cannot_run_exits_as_in_a_shell() {
    let installed = Installed::new();
    let missing = installed.vernic(&["run", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).contains("no-such-program"), "{}", stderr(&missing));
    let folder = installed.vernic(&["run", "--", "/etc/passwd"]);
    assert_eq!(folder.status.code(), Some(126), "{}", stderr(&folder));
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_is_right() {
    let installed = Installed::new();
    for (arguments, word) in [
        (&["run"][..], "PROGRAM"),
        (&["run", "--los", "1", "--", "true"], "--loss"),
        (&["run", "--loss", "2", "--", "true"], "vernic: --loss 2: "),
        (&["run", "--set", "fault=loss=2", "--", "true"], "vernic: --set fault=loss=2: "),
        (&["run", "--set", "mtu=7", "--", "true"], "1024"),
        (&["run", "--set", "mtuu=1024", "--", "true"], "vernic config"),
        (&["run", "-d", "mlx5_0", "--", "true"], "vernic0"),
        (&["env", "--vendor-id", "0"], "0xffffff"),
    ] {
        let output = installed.vernic(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

#[test]
fn a_command_without_its_libraries_says_how_to_get_them() {
    let installed = Installed::new();
    fs::remove_file(installed.0.join("lib/vernic/libvernic_abi.so")).unwrap();
    let output = installed.vernic(&["run", "true"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("libvernic_abi.so") && text.contains("cargo build"), "{text}");
}

#[test]
fn runs_that_start_together_share_one_folder() {
    let installed = Installed::new();
    let runs: Vec<_> = (0..12)
        .map(|_| {
            let line =
                "cat $VERNIC_PATHS/sys/class/infiniband/vernic0/node_type; echo $VERNIC_PATHS";
            let mut command = installed.command(&["run", "--", "sh", "-c", line]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let printed: Vec<String> = runs
        .into_iter()
        .map(|run| String::from_utf8(run.wait_with_output().unwrap().stdout).unwrap())
        .collect();
    assert!(printed[0].starts_with("1: CA\n/"), "{printed:?}");
    assert!(printed.iter().all(|text| *text == printed[0]), "{printed:?}");
}
