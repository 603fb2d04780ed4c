//! Configuration: one table of keys, read from defaults < file < environment < code.
//!
//! Owns the table [`KEYS`] and the [`Config`] that it fills. Read once, when a device is opened;
//! nothing here is consulted on the data path. An unknown key or a bad value is an error that
//! names the key, the value and what is allowed: no setting is ever silently ignored.
//!
//! The file is named by `VERNIC_CONFIG`; without it `$HOME/.config/vernic.conf` and then
//! `/etc/vernic.conf` are read if they exist. It holds lines `key = value` and `#` comments.

use std::path::{Path, PathBuf};

use vernic_wire::Mtu;

/// Environment variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "VERNIC_CONFIG";

/// Longest time a setting in microseconds may name: 10 s.
const MAX_US: u64 = 10_000_000;

/// One row of the table of settings.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name in a file and in [`Config::set`].
    pub name: &'static str,
    /// Environment variable.
    pub variable: &'static str,
    /// Unit or form of the value, in words.
    pub unit: &'static str,
    /// What it does.
    pub doc: &'static str,
    set: fn(&mut Config, &str) -> Result<(), &'static str>,
    show: fn(&Config) -> String,
}

macro_rules! config {
    ($($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr, $variable:literal, $unit:literal, $parse:expr, $show:expr;)+) => {
        /// Settings of a device. Every field is a row of [`KEYS`].
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config { $($(#[doc = $doc])+ pub $field: $type,)+ }

        impl Default for Config {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        /// The table of settings.
        pub const KEYS: &[Key] = &[$(Key {
            name: stringify!($field),
            variable: $variable,
            unit: $unit,
            doc: concat!($($doc,)+),
            set: |config, text| {
                let parse: fn(&str) -> Result<$type, &'static str> = $parse;
                config.$field = parse(text)?;
                Ok(())
            },
            show: |config| {
                let show: fn(&$type) -> String = $show;
                show(&config.$field)
            },
        },)+];
    };
}

config! {
    /// Device to open when the program names none; empty takes the first one.
    device: String = String::new(), "VERNIC_DEVICE", "name, as vernic0, or netdev, as eth0", text, String::clone;
    /// Upper bound of the port's active MTU; 0 takes the largest that fits the netdev.
    mtu: Option<Mtu> = None, "VERNIC_MTU", "0, 256, 512, 1024, 2048 or 4096 bytes", mtu, show_mtu;
    /// Time without a verbs call after which the background thread takes over; the bound of how
    /// long a computing application keeps its peers waiting.
    takeover_us: u64 = 500, "VERNIC_TAKEOVER_US", "1 to 10000000 microseconds", micros, show;
    /// Largest number of packets in flight on one RC queue pair. The default is 4 MiB at the
    /// largest MTU: what a socket's receive buffer holds while its process is not scheduled.
    max_window: u32 = 1024, "VERNIC_MAX_WINDOW", "1 to 65536 packets", window, show;
    /// Flows: UDP source ports over which queue pairs are spread.
    flows: u16 = 4, "VERNIC_FLOWS", "1 to 16", flows, show;
    /// Use UDP_SEGMENT and UDP_GRO to move many packets with one system call.
    offload: bool = true, "VERNIC_OFFLOAD", "on or off", switch, show_switch;
    /// Use port 4791 also between processes of this host, instead of their private ports.
    force_wire: bool = false, "VERNIC_FORCE_WIRE", "on or off", switch, show_switch;
    /// Longest wait for another process of this host to say which port it listens on.
    peer_query_us: u64 = 100_000, "VERNIC_PEER_QUERY_US", "1 to 10000000 microseconds", micros, show;
    /// File to capture every packet into, pcapng, for Wireshark; empty captures nothing. `%p`
    /// becomes the process id, `%d` the device's name: two devices must not share a file.
    capture: String = String::new(), "VERNIC_CAPTURE", "path", text, String::clone;
    /// The capture ends before its file is larger than this; 0 is no limit.
    capture_max_bytes: u64 = 1 << 30, "VERNIC_CAPTURE_MAX_BYTES", "0 to 2^63 bytes", bytes, show;
    /// Faults to inject into what is sent, as `loss=0.01,dup=0.001,reorder=0.01,corrupt=0.001,
    /// delay_us=50,seed=7`; empty injects none.
    fault: String = String::new(), "VERNIC_FAULT", "fault specification", text, String::clone;
    /// Vendor that the device names (an OUI, IBTA 11.2.1.2). The default is one that nobody owns.
    vendor_id: u32 = 0x02_76_6e, "VERNIC_VENDOR_ID", "1 to 0xffffff", vendor_id, show_hex;
    /// Part number that the device names, in its vendor's terms: some programs use more of a device
    /// whose number they know, perftest inline data and `ibv_wr_*` on 4115 (ConnectX-4).
    vendor_part_id: u32 = 1, "VERNIC_VENDOR_PART_ID", "0 to 0xffffffff", vendor_part_id, show;
    /// Log every packet at level `trace`.
    trace: bool = false, "VERNIC_TRACE", "on or off", switch, show_switch;
}

fn text(value: &str) -> Result<String, &'static str> {
    Ok(value.to_owned())
}

fn mtu(value: &str) -> Result<Option<Mtu>, &'static str> {
    match value.parse::<u32>() {
        Ok(0) => Ok(None),
        Ok(bytes) => Mtu::from_bytes(bytes).map(Some).ok_or("no MTU of InfiniBand"),
        Err(_) => Err("not a number"),
    }
}

fn number(value: &str, min: u64, max: u64) -> Result<u64, &'static str> {
    let n = value.parse::<u64>().map_err(|_| "not a number")?;
    if (min..=max).contains(&n) { Ok(n) } else { Err("out of range") }
}

fn micros(value: &str) -> Result<u64, &'static str> {
    number(value, 1, MAX_US)
}

fn window(value: &str) -> Result<u32, &'static str> {
    number(value, 1, 1 << 16).map(|n| n as u32)
}

fn bytes(value: &str) -> Result<u64, &'static str> {
    number(value, 0, 1 << 63)
}

/// Decimal, or hexadecimal after 0x.
fn identifier(value: &str, min: u64, max: u64) -> Result<u32, &'static str> {
    let n = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| "not a number")?,
        None => value.parse().map_err(|_| "not a number")?,
    };
    if (min..=max).contains(&n) { Ok(n as u32) } else { Err("out of range") }
}

fn vendor_id(value: &str) -> Result<u32, &'static str> {
    identifier(value, 1, 0xff_ffff)
}

fn vendor_part_id(value: &str) -> Result<u32, &'static str> {
    identifier(value, 0, u32::MAX.into())
}

fn flows(value: &str) -> Result<u16, &'static str> {
    number(value, 1, vernic_io::udp::SOURCE_PORTS as u64).map(|n| n as u16)
}

fn switch(value: &str) -> Result<bool, &'static str> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Ok(true),
        "0" | "off" | "no" | "false" => Ok(false),
        _ => Err("neither on nor off"),
    }
}

fn show<T: ToString>(value: &T) -> String {
    value.to_string()
}

fn show_hex(value: &u32) -> String {
    format!("{value:#x}")
}

fn show_switch(value: &bool) -> String {
    if *value { "on" } else { "off" }.to_owned()
}

fn show_mtu(value: &Option<Mtu>) -> String {
    value.map_or(0, Mtu::bytes).to_string()
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No row has this name.
    #[error("{origin}: there is no setting {name:?}; `vernic config` lists all")]
    UnknownKey {
        /// Name that was given.
        name: String,
        /// Where: a file and line, a variable, or code.
        origin: String,
    },
    /// A value that the row does not take.
    #[error("{origin}: {name} = {value:?}: {reason}; allowed: {allowed}")]
    BadValue {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is wrong.
        reason: &'static str,
        /// What is allowed.
        allowed: &'static str,
        /// Where.
        origin: String,
    },
    /// A line of the file that is no `key = value`.
    #[error("{origin}: {line:?} is not of the form key = value")]
    BadLine {
        /// The line.
        line: String,
        /// Where.
        origin: String,
    },
    /// The file that the environment names cannot be read.
    #[error("cannot read the configuration file {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Variables with our prefix that are no settings: of the command's bench, and of the tests.
/// The third names the folder of device files that `vernic run` shows to programs.
const OTHER_VARIABLES: [&str; 4] =
    ["VERNIC_BENCH_TOKEN", "VERNIC_REQUIRE_TOOLS", "VERNIC_PATHS", "VERNIC_TEST_ROLE"];

impl Config {
    /// Defaults, then the file, then the environment.
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting that is unknown or has a bad value.
    pub fn load() -> Result<Self, ConfigError> {
        let mut config = Self::default();
        config.load_file()?;
        for (variable, value) in std::env::vars() {
            if !variable.starts_with("VERNIC_") || variable == CONFIG_VARIABLE {
                continue;
            }
            config.apply_variable(&variable, &value)?;
        }
        Ok(config)
    }

    /// A mistyped variable is an error: nobody shall believe that faults are injected when none are.
    fn apply_variable(&mut self, variable: &str, value: &str) -> Result<(), ConfigError> {
        match KEYS.iter().find(|key| key.variable == variable) {
            Some(key) => self.apply(key, value, || variable.to_owned()),
            None if OTHER_VARIABLES.contains(&variable) => Ok(()),
            None => {
                let (name, origin) = (variable.to_owned(), "environment".to_owned());
                Err(ConfigError::UnknownKey { name, origin })
            }
        }
    }

    /// Sets one setting by name.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`], [`ConfigError::BadValue`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        self.set_from(name, value, || "set".to_owned())
    }

    /// Every setting with its present value, in the order of [`KEYS`].
    pub fn values(&self) -> impl Iterator<Item = (&'static Key, String)> + '_ {
        KEYS.iter().map(|key| (key, (key.show)(self)))
    }

    /// Reads settings from the text of a file; `origin` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError`] for the first line that is wrong.
    pub fn parse_file(&mut self, text: &str, origin: &str) -> Result<(), ConfigError> {
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let place = || format!("{origin} line {}", number + 1);
            let Some((name, value)) = line.split_once('=') else {
                return Err(ConfigError::BadLine { line: line.to_owned(), origin: place() });
            };
            self.set_from(name.trim(), value.trim(), place)?;
        }
        Ok(())
    }

    fn load_file(&mut self) -> Result<(), ConfigError> {
        let named = std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from);
        if let Some(path) = named {
            let text = std::fs::read_to_string(&path)
                .map_err(|source| ConfigError::File { path: path.clone(), source })?;
            return self.parse_file(&text, &path.display().to_string());
        }
        let home =
            std::env::var_os("HOME").map(|home| Path::new(&home).join(".config/vernic.conf"));
        for path in home.into_iter().chain([PathBuf::from("/etc/vernic.conf")]) {
            if let Ok(text) = std::fs::read_to_string(&path) {
                return self.parse_file(&text, &path.display().to_string());
            }
        }
        Ok(())
    }

    fn set_from(
        &mut self,
        name: &str,
        value: &str,
        origin: impl Fn() -> String,
    ) -> Result<(), ConfigError> {
        match KEYS.iter().find(|key| key.name == name) {
            Some(key) => self.apply(key, value, origin),
            None => Err(ConfigError::UnknownKey { name: name.to_owned(), origin: origin() }),
        }
    }

    fn apply(
        &mut self,
        key: &'static Key,
        value: &str,
        origin: impl Fn() -> String,
    ) -> Result<(), ConfigError> {
        (key.set)(self, value.trim()).map_err(|reason| ConfigError::BadValue {
            name: key.name,
            value: value.to_owned(),
            reason,
            allowed: key.unit,
            origin: origin(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_accepts_the_value_it_shows() {
        let mut config = Config::default();
        for (key, value) in Config::default().values() {
            config.set(key.name, &value).unwrap();
            assert!(key.variable.starts_with("VERNIC_"), "{}", key.name);
        }
        assert_eq!(config, Config::default());
    }

    #[test]
    fn a_mistyped_variable_is_an_error_and_those_of_the_tests_are_not() {
        let mut config = Config::default();
        let error = config.apply_variable("VERNIC_FAULTS", "loss=1").unwrap_err().to_string();
        assert!(error.contains("VERNIC_FAULTS"), "{error}");
        config.apply_variable("VERNIC_REQUIRE_TOOLS", "1").unwrap();
        config.apply_variable("VERNIC_FAULT", "loss=1").unwrap();
        assert_eq!(config.fault, "loss=1");
    }

    #[test]
    fn unknown_keys_and_bad_values_are_named_with_their_place() {
        let mut config = Config::default();
        let error = config.parse_file("# ok\nmtu = 1024\nmtuu = 1", "x.conf").unwrap_err();
        assert_eq!(
            error.to_string(),
            "x.conf line 3: there is no setting \"mtuu\"; `vernic config` lists all"
        );
        assert_eq!(config.mtu, Some(Mtu::B1024));
        let error = config.set("mtu", "1500").unwrap_err().to_string();
        assert!(error.contains("1500") && error.contains("256, 512, 1024"), "{error}");
        assert!(config.set("offload", "maybe").is_err());
        assert!(config.set("takeover_us", "0").is_err());
        assert!(config.parse_file("mtu 1024", "x").is_err());
    }
}
