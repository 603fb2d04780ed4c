//! The options that `vernic run` and `vernic env` share, and the settings they stand for.

use super::Variables;
use crate::failure::{Doing, Failure, Outcome, complain};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use vernic::{Config, ConfigError, Device, DeviceInfo, DeviceTransport, KEYS, OpenError};

/// What a user may want to vary around a program.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Device that programs shall use, as vernic0 or viw0, or its netdev, as eth0
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    device: Option<String>,
    /// Run the program on a host of this fabric, with the host's InfiniBand adapter (vernic_ib0)
    /// and no other device; `vernic fabric up` starts fabrics
    #[arg(long, value_name = "NAME", requires = "host", conflicts_with_all = ["device", "iwarp"])]
    fabric: Option<String>,
    /// The host of the fabric, as h1
    #[arg(long, value_name = "HOST", requires = "fabric")]
    host: Option<String>,
    /// Use iWARP devices (viw0...): TCP carries what programs send. Not with --rsockets: a port of
    /// the program would be TCP's and RDMA's at once
    #[arg(long, conflicts_with = "rsockets")]
    iwarp: bool,
    /// Lose this share of the packets sent: 0 to 1, or 0% to 100%
    #[arg(long, value_name = "SHARE", help_heading = "Faults")]
    loss: Option<String>,
    /// Send this share of the packets twice
    #[arg(long, value_name = "SHARE", help_heading = "Faults")]
    duplicate: Option<String>,
    /// Send this share of the packets after the next one
    #[arg(long, value_name = "SHARE", help_heading = "Faults")]
    reorder: Option<String>,
    /// Damage this share of the packets
    #[arg(long, value_name = "SHARE", help_heading = "Faults")]
    corrupt: Option<String>,
    /// Send packets so many microseconds later
    #[arg(long, value_name = "MICROSECONDS", help_heading = "Faults")]
    delay: Option<String>,
    /// Where chance begins: the same seed, the same faults
    #[arg(long, value_name = "NUMBER", help_heading = "Faults")]
    seed: Option<String>,
    /// All of these at once, as loss=0.01,delay_us=50,seed=7
    #[arg(long, value_name = "SPEC", help_heading = "Faults")]
    #[arg(conflicts_with_all = ["loss", "duplicate", "reorder", "corrupt", "delay", "seed"])]
    fault: Option<String>,
    /// Capture every packet into this pcapng file; %p becomes the process id, %d the device
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Use UDP port 4791 also between processes of this host
    #[arg(long)]
    force_wire: bool,
    /// Move memory that the program registers for remote access to where processes of this host can
    /// map it: faster, if it does not write to memory while it registers it, nor forks and goes on
    /// in the child
    #[arg(long)]
    share_memory: bool,
    /// Vendor that devices name, as 0x2c9
    #[arg(long, value_name = "NUMBER")]
    vendor_id: Option<String>,
    /// Part number that devices name; with 4115 perftest uses inline data and ibv_wr_*
    #[arg(long, value_name = "NUMBER")]
    vendor_part_id: Option<String>,
    /// Any other setting of `vernic config` (repeatable)
    #[arg(long = "set", value_name = "SETTING=VALUE")]
    set: Vec<String>,
    /// Do not show /sys/class/infiniband and /dev/infiniband
    #[arg(long)]
    pub(super) no_paths: bool,
    /// Let a program that speaks TCP connect over RDMA: where that is possible, else over TCP
    /// (`auto`), or over RDMA alone (`only`)
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "auto", value_parser = ["auto", "only"])]
    pub(super) rsockets: Option<String>,
}

/// What the options stand for.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) variables: Variables,
    /// The devices that programs will see.
    pub(super) devices: Vec<DeviceInfo>,
}

/// A setting that an option stands for.
struct Given<'a> {
    /// The option and its value, as errors name it.
    words: String,
    /// The setting's name.
    name: &'a str,
    value: String,
}

/// What is wrong with an option's value, and what is allowed.
fn refused(words: &str, error: ConfigError) -> Failure {
    Failure::new(match error {
        ConfigError::BadValue { reason, allowed: Some(allowed), .. } => {
            format!("{words}: {reason}; allowed: {allowed}")
        }
        ConfigError::BadValue { reason, .. } => format!("{words}: {reason}"),
        ConfigError::UnknownKey { name, .. } => {
            let meant = vernic::meant_setting(&name);
            format!("{words}: there is no setting {name:?}{meant}; `vernic config` lists all")
        }
        other => format!("{words}: {other}"),
    })
}

impl Options {
    /// The settings that were `loaded` and those of the options, each checked as the library will
    /// check it.
    pub(super) fn settings(&self, loaded: &vernic::Settings) -> Outcome<Settings> {
        let mut config = loaded.config().clone();
        let mut variables = Variables::new();
        let given = self.given()?;
        let words_of = |setting| {
            let one = given.iter().rfind(|given| given.name == setting);
            one.map(|given| format!("{}: ", given.words)).unwrap_or_default()
        };
        for Given { words, name, value } in &given {
            config.set(name, value).map_err(|error| refused(words, error))?;
            let key = KEYS.iter().find(|key| key.name == *name);
            let key = key.ok_or_else(|| Failure::new(format!("there is no setting {name:?}")))?;
            variables.push((key.variable, OsString::from(value)));
        }
        let devices = devices(&config)?;
        self.check_transport(&config, &words_of("device"), loaded, &devices)?;
        // With others beside, the program may do without those of iWARP.
        if devices.iter().all(|device| device.transport == DeviceTransport::Iwarp)
            && let Some(device) = devices.first()
        {
            device.check_settings(&config).map_err(|error| match error {
                OpenError::NoPackets { setting, .. } => {
                    Failure::new(format!("{}{error}", words_of(setting)))
                }
                error => Failure::new(error.to_string()),
            })?;
        }
        if !config.fault.is_empty() {
            complain(format_args!("vernic: packets are damaged on purpose: {}", config.fault));
        }
        Ok(Settings { variables, devices })
    }

    /// Refuses `--iwarp` beside the name of a RoCE device. The name of a device precedes the
    /// setting `transport`, so the program would run over RoCE and say nothing.
    fn check_transport(
        &self,
        config: &Config,
        words: &str,
        loaded: &vernic::Settings,
        devices: &[DeviceInfo],
    ) -> Outcome<()> {
        let [device] = devices else { return Ok(()) };
        if !self.iwarp || config.device != device.name || device.transport != DeviceTransport::Roce
        {
            return Ok(());
        }
        let origin = || loaded.origin("device").map(ToString::to_string).unwrap_or_default();
        let beside = match words.trim_end_matches(": ") {
            "" => format!("the device {} ({})", device.name, origin()),
            option => option.to_owned(),
        };
        let iwarp = device.clone().into_iwarp().name;
        Err(Failure::new(format!(
            "--iwarp and {beside} contradict: {} is a RoCE device; its netdev's iWARP device is {iwarp}",
            device.name
        )))
    }

    /// The settings that were given, those of `--set` last.
    fn given(&self) -> Outcome<Vec<Given<'_>>> {
        let mut given = Vec::new();
        let mut option = |option, name, value: Option<&String>| {
            given.extend(value.map(|value| {
                let words = format!("{option} {value}");
                Given { words, name, value: value.clone() }
            }));
        };
        option("-d", "device", self.device.as_ref());
        option("--fabric", "fabric", self.fabric.as_ref());
        option("--host", "host", self.host.as_ref());
        option("--iwarp", "transport", self.iwarp.then(|| "iwarp".to_owned()).as_ref());
        option("--capture", "capture", self.capture()?.as_ref());
        option("--force-wire", "force_wire", self.force_wire.then(|| "on".to_owned()).as_ref());
        let on = |given: bool| given.then(|| "on".to_owned());
        option("--share-memory", "share_memory", on(self.share_memory).as_ref());
        option("--vendor-id", "vendor_id", self.vendor_id.as_ref());
        option("--vendor-part-id", "vendor_part_id", self.vendor_part_id.as_ref());
        given.extend(self.faults());
        for setting in &self.set {
            let (name, value) = setting.split_once('=').ok_or_else(|| {
                Failure::new(format!("--set {setting}: not of the form SETTING=VALUE"))
                    .hint("`vernic config` lists the settings")
            })?;
            let (words, value) = (format!("--set {setting}"), value.trim().to_owned());
            given.push(Given { words, name: name.trim(), value });
        }
        Ok(given)
    }

    /// The options of faults as one specification.
    fn faults(&self) -> Option<Given<'_>> {
        if let Some(value) = &self.fault {
            let words = format!("--fault {value}");
            return Some(Given { words, name: "fault", value: value.clone() });
        }
        let options = [
            ("--loss", "loss", &self.loss),
            ("--duplicate", "dup", &self.duplicate),
            ("--reorder", "reorder", &self.reorder),
            ("--corrupt", "corrupt", &self.corrupt),
            ("--delay", "delay_us", &self.delay),
            ("--seed", "seed", &self.seed),
        ];
        let (words, parts): (Vec<String>, Vec<String>) = options
            .iter()
            .filter_map(|(option, name, value)| {
                let value = value.as_ref()?;
                Some((format!("{option} {value}"), format!("{name}={value}")))
            })
            .unzip();
        let given = Given { words: words.join(" "), name: "fault", value: parts.join(",") };
        (!parts.is_empty()).then_some(given)
    }

    /// The capture's file from the root: programs may change their directory.
    fn capture(&self) -> Outcome<Option<String>> {
        let Some(file) = &self.capture else { return Ok(None) };
        if let Some(fabric) = &self.fabric {
            let what = format!("--capture {} cannot be used with --fabric", file.display());
            let hint =
                format!("the fabric captures its packets: `vernic fabric capture {fabric} FILE`");
            return Err(Failure::usage(what).hint(hint));
        }
        let path = std::path::absolute(file).doing(|| format!("find {}", file.display()))?;
        check_writable(&path).map_err(|why| {
            Failure::new(format!("--capture {}: {why}", file.display()))
                .hint("it takes a file, as traffic.pcapng; %p in it becomes the process id, %d the device")
        })?;
        let unreadable = || Failure::new(format!("--capture {}: not UTF-8", path.display()));
        Ok(Some(path.to_str().ok_or_else(unreadable)?.to_owned()))
    }
}

/// Whether a file can be written there: else the program is the one to say so, in the middle of its
/// own words. Leaves things as they are. The file's real name may be another, in the same folder.
fn check_writable(path: &Path) -> Result<(), String> {
    let refused = |error: io::Error| error.to_string();
    if path.is_dir() {
        return Err("that is a folder".into());
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) {
        return Err(format!("there is no folder {}", folder.display()));
    }
    match fs::metadata(path) {
        // Opening a pipe would wait for its reader.
        Ok(meta) if !meta.is_file() => Ok(()),
        Ok(_) => File::options().append(true).open(path).map(drop).map_err(refused),
        // A link to a file that is yet to be made.
        Err(_) if path.is_symlink() => Ok(()),
        Err(_) => {
            File::create_new(path).map_err(refused)?;
            fs::remove_file(path).map_err(refused)
        }
    }
}

/// A device that is named and not there would otherwise be found out by the program, in its own
/// words.
fn devices(config: &Config) -> Outcome<Vec<DeviceInfo>> {
    Device::list_for(config).map_err(|error| match error {
        OpenError::NetDev(_) => Failure::new(format!("cannot list the RDMA devices: {error}")),
        error @ OpenError::Fabric { .. } => {
            Failure::new(error.to_string()).hint("`vernic fabric list` has the fabrics that run")
        }
        error => Failure::new(error.to_string()).hint("`vernic devices` shows more"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        Only::try_parse_from(["run"].iter().chain(words)).unwrap().options
    }

    /// What the options stand for, over the defaults and this machine's settings.
    fn checked(words: &[&str]) -> Outcome<Settings> {
        options(words).settings(&crate::settings::load().unwrap())
    }

    fn settings(words: &[&str]) -> Vec<(&'static str, String)> {
        let settings = checked(words).unwrap();
        settings
            .variables
            .into_iter()
            .map(|(name, value)| (name, value.into_string().unwrap()))
            .collect()
    }

    #[test]
    fn options_of_faults_become_one_setting() {
        let percent = [("VERNIC_FAULT", "loss=5%,dup=0.1%".to_owned())];
        assert_eq!(settings(&["--loss", "5%", "--duplicate", "0.1%"]), percent);
        let words = ["--loss", "0.01", "--delay", "50", "--seed", "7"];
        let expected = [("VERNIC_FAULT", "loss=0.01,delay_us=50,seed=7".to_owned())];
        assert_eq!(settings(&words), expected);
        assert_eq!(settings(&["--fault", "loss=0.01,delay_us=50,seed=7"]), expected);
        assert!(Only::try_parse_from(["run", "--loss", "0.1", "--fault", "loss=1"]).is_err());
    }

    #[test]
    fn any_setting_can_be_given_by_its_name() {
        assert_eq!(settings(&["--set", "mtu=1024"]), [("VERNIC_MTU", "1024".to_owned())]);
        assert_eq!(
            settings(&["--set", "peers=10.1.0.0/16, fd00::1"]),
            [("VERNIC_PEERS", "10.1.0.0/16, fd00::1".to_owned())]
        );
        for wrong in ["mtu", "mtu=7", "nonsense=1", "peers=10.1.2.3/16"] {
            let failure = checked(&["--set", wrong]).unwrap_err().to_string();
            assert!(failure.contains(wrong.split('=').next().unwrap()), "{failure}");
        }
    }

    #[test]
    fn iwarp_is_a_transport_and_its_devices_have_names() {
        assert_eq!(settings(&["--iwarp"]), [("VERNIC_TRANSPORT", "iwarp".to_owned())]);
        let shown = |words: &[&str]| checked(words).unwrap().devices;
        assert!(shown(&["--iwarp"]).iter().all(|device| device.name.starts_with("viw")));
        assert!(shown(&[]).iter().all(|device| device.name.starts_with("vernic")));
        assert_eq!(shown(&["-d", "viw0"])[0].name, "viw0");
    }

    #[test]
    fn iwarp_beside_the_name_of_a_roce_device_is_a_contradiction() {
        for words in [&["--iwarp", "-d", "vernic0"][..], &["--iwarp", "--set", "device=vernic0"]] {
            let failure = checked(words).unwrap_err().to_string();
            let said =
                format!("--iwarp and {} contradict: vernic0 is a RoCE", words[1..].join(" "));
            assert!(failure.starts_with(&said) && failure.ends_with(" viw0"), "{failure}");
        }
        // A netdev has a device of each transport, and a name precedes the setting.
        let shown = |words: &[&str]| checked(words).unwrap().devices[0].name.clone();
        assert!(shown(&["--iwarp", "-d", "lo"]).starts_with("viw"));
        assert_eq!(shown(&["--iwarp", "-d", "viw0"]), "viw0");
        assert_eq!(shown(&["--set", "transport=iwarp", "-d", "vernic0"]), "vernic0");
    }

    #[test]
    fn what_iwarp_cannot_have_is_refused_before_the_program_runs() {
        let refused = [
            (&["--iwarp", "--loss", "0.1"][..], "--loss 0.1: viw"),
            (&["--iwarp", "--capture", "/tmp/x.pcapng"], "--capture /tmp/x.pcapng: viw"),
            (&["-d", "viw0", "--set", "trace=on"], "--set trace=on: viw0"),
        ];
        for (words, begin) in refused {
            let failure = checked(words).unwrap_err().to_string();
            assert!(failure.starts_with(begin) && failure.contains("TCP"), "{failure}");
        }
        settings(&["--set", "transport=both", "--loss", "0.1"]);
    }

    #[test]
    fn a_capture_lies_where_the_command_was_given() {
        let here = std::env::current_dir().unwrap().join("x.pcapng");
        let expected = [("VERNIC_CAPTURE", here.to_str().unwrap().to_owned())];
        assert_eq!(settings(&["--capture", "x.pcapng"]), expected);
        assert!(!here.exists(), "trying it leaves nothing behind");
    }

    #[test]
    fn a_capture_that_cannot_be_written_is_refused_before_the_program_runs() {
        for (wrong, why) in [
            ("/nowhere/x.pcapng", "there is no folder /nowhere"),
            ("/tmp", "that is a folder"),
            ("/proc/x.pcapng", "No such file or directory"),
        ] {
            let failure = checked(&["--capture", wrong]).unwrap_err().to_string();
            assert!(failure.starts_with(&format!("--capture {wrong}: ")), "{failure}");
            assert!(failure.contains(why) && failure.contains("%p"), "{failure}");
        }
        settings(&["--capture", "/dev/null"]);
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        let failure = checked(&["-d", "mlx5_0"]).unwrap_err().to_string();
        assert!(failure.contains("mlx5_0") && failure.contains("vernic0"), "{failure}");
        let failure = checked(&["--set", "device=mlx5_0"]).unwrap_err().to_string();
        assert!(failure.contains("mlx5_0") && failure.contains("vernic0"), "{failure}");
    }
}
