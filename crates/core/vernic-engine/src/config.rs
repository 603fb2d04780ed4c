//! Configuration: one table of settings. The values come from defaults, a file, the environment or
//! code, of which each goes before those named earlier.
//!
//! Owns the table [`KEYS`] and the struct [`Config`], which has a field for each row. Settings are
//! read once, when a device is opened, and never on the data path. An unknown setting or a bad
//! value is an error that names the setting, the value and what is allowed: no setting is ever
//! silently ignored.
//!
//! `config/settings.rs` says which file is read, and keeps the origin of each value.

mod peers;
mod settings;

use std::fmt;
use std::path::PathBuf;

use vernic_io::fault::FaultConfig;
pub use vernic_local::DirectAccess;
use vernic_local::{MAX_RING_BYTES, MIN_RING_BYTES};
use vernic_proto::congestion::{Algorithm, ParamError};
use vernic_wire::{Mtu, RoceVersion};

pub use peers::{PeerRefused, Peers};
pub use settings::{Origin, Settings};

/// Environment variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "VERNIC_CONFIG";

/// Largest value of a setting in microseconds: 10 s.
const MAX_US: u64 = 10_000_000;

/// The kind of device that programs get on a netdev if they name no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// RoCE devices: `vernic0`, `vernic1` and so on.
    #[default]
    Roce,
    /// iWARP devices: `viw0`, `viw1` and so on.
    Iwarp,
    /// Both kinds are listed. A program that names no device gets a RoCE device.
    Both,
}

/// Which packets say that routers may mark them instead of dropping them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EcnChoice {
    /// Packets of connected queue pairs, where the setting `congestion` needs marks.
    #[default]
    Auto,
    /// Packets of connected queue pairs.
    On,
    /// No packets.
    Off,
}

/// One row of the table of settings.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name in a file and in [`Config::set`].
    pub name: &'static str,
    /// Name of the environment variable.
    pub variable: &'static str,
    /// Unit or form of the value, in words.
    pub unit: &'static str,
    /// What the setting does.
    pub doc: &'static str,
    set: fn(&mut Config, &str) -> Result<(), Refusal>,
    show: fn(&Config) -> String,
}

/// The reason why a value was refused.
struct Refusal {
    reason: String,
    /// Whether `reason` also says which values are allowed, so that the error message need not add
    /// the row's [`unit`](Key::unit).
    tells_what_is_right: bool,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self { reason, tells_what_is_right: false }
    }
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
            set: |config, value| {
                config.$field = $parse(value)?;
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
    /// Device to open when the program names neither a device nor an address; empty takes the
    /// first one.
    device: String = String::new(), "VERNIC_DEVICE", "name, as vernic0 or viw0, or netdev, as eth0", text, String::clone;
    /// Kind of the devices that are listed, and that connections by IP address (rdma_cm) use: RoCE
    /// (vernic0...) or iWARP (viw0...). Each netdev has a device of either kind, with the same
    /// addresses. `both` lists both kinds; connections then use RoCE, or iWARP if the peer's host
    /// has no RoCE, and listeners use RoCE. The setting `device` goes before this one.
    transport: TransportChoice = TransportChoice::Roce, "VERNIC_TRANSPORT", "roce, iwarp or both", transport, show_transport;
    /// Fabric (`vernic fabric up`) to be a host of; empty is no fabric. Programs then see the
    /// host's adapter alone: `vernic_ib0`.
    fabric: String = String::new(), "VERNIC_FABRIC", "name of a fabric", text, String::clone;
    /// Host of the fabric whose adapter programs use: as h1, or another node's description.
    host: String = String::new(), "VERNIC_HOST", "name of a host", text, String::clone;
    /// Version of RoCE of connections by IP address (rdma_cm), of RoCE devices: v2 (over UDP) or v1
    /// (straight on Ethernet, which takes CAP_NET_RAW). Programs that choose a row of the GID table
    /// use the version of that row.
    roce: RoceVersion = RoceVersion::V2, "VERNIC_ROCE", "v1 or v2", roce, show_roce;
    /// Ask iWARP peers for a CRC over each segment (RFC 5044). CRCs are used if either end asks.
    iwarp_crc: bool = true, "VERNIC_IWARP_CRC", "on or off", switch, show_switch;
    /// How long an iWARP message waits until a receive is posted for it; then its connection is
    /// ended. RFC 5041 ends the connection at once, which is 0: iWARP has no "receiver not ready"
    /// after which the peer would repeat the message.
    iwarp_recv_wait_us: u64 = 1_000_000, "VERNIC_IWARP_RECV_WAIT_US", "0 to 10000000 microseconds", micros_or_none, show;
    /// How long an iWARP peer may take to accept or reject a connection, from when TCP has
    /// connected.
    iwarp_reply_timeout_s: u32 = 60, "VERNIC_IWARP_REPLY_TIMEOUT_S", "1 to 3600 seconds", reply_timeout, show;
    /// How long the peer's host may be silent until an iWARP connection counts as lost, whether or
    /// not something was sent to it. 0 leaves this to the system's TCP, which gives up after a
    /// quarter of an hour, or never if nothing is sent. A host that answers while the peer's
    /// program is stopped is not silent.
    iwarp_peer_timeout_s: u32 = 30, "VERNIC_IWARP_PEER_TIMEOUT_S", "0 to 32767 seconds", keep_alive, show;
    /// Upper bound of the port's active MTU; 0 takes the largest that fits the netdev.
    mtu: Option<Mtu> = None, "VERNIC_MTU", "0, 256, 512, 1024, 2048 or 4096 bytes", mtu, show_mtu;
    /// Time without a verbs call after which the background thread moves packets. An application
    /// that computes keeps its peers waiting for so long, and at most for twice as long.
    takeover_us: u64 = 500, "VERNIC_TAKEOVER_US", "1 to 10000000 microseconds", micros, show;
    /// Largest number of packets in flight on one RC queue pair. With the default and packets of
    /// 1024 bytes, one queue pair fills 800 Mb/s of a path with a round trip of 40 ms.
    max_window: u32 = 4096, "VERNIC_MAX_WINDOW", "1 to 65536 packets", window, show;
    /// Congestion control of RC queue pairs: by losses and round trips (`aimd`), by the marks of
    /// routers (`dcqcn`, also of UC), by delay (`swift`), or none. Parameters of `dcqcn` and
    /// `swift` may follow: docs/congestion.md lists them.
    congestion: Algorithm = Algorithm::Aimd, "VERNIC_CONGESTION", "aimd, dcqcn, swift or none; parameters as dcqcn,rpg_time_reset=55", congestion, show;
    /// Let packets of connected queue pairs say that routers may mark them (ECT(0) of RFC 3168).
    /// Otherwise routers drop them where they would mark. `auto` does so if `congestion` is
    /// `dcqcn`.
    ecn: EcnChoice = EcnChoice::Auto, "VERNIC_ECN", "auto, on or off", ecn, show_ecn;
    /// Keep the packets of RC that come ahead of a lost one until it has come again. A peer that is
    /// Vernic too then repeats only what was lost. If off, the peer sends all of them again.
    selective_recovery: bool = true, "VERNIC_SELECTIVE_RECOVERY", "on or off", switch, show_switch;
    /// Largest number of packets behind a lost one that a queue pair keeps with
    /// `selective_recovery`.
    keep_packets: u32 = 4096, "VERNIC_KEEP_PACKETS", "1 to 4096 packets", kept_packets, show;
    /// Memory for the packets that all queue pairs of a device keep with `selective_recovery`. It
    /// is taken when packets come ahead of a lost one, and given back when that has come.
    keep_bytes: u64 = 16 << 20, "VERNIC_KEEP_BYTES", "65536 to 1073741824 bytes", kept_bytes, show;
    /// Number of flows: the UDP source ports over which the queue pairs that are connected to one
    /// process are spread. For peers in many processes more are opened, up to 64 and one for each
    /// address of the device.
    flows: u16 = 4, "VERNIC_FLOWS", "1 to 16", flows, show;
    /// Use UDP_SEGMENT and UDP_GRO to move many packets with one system call.
    offload: bool = true, "VERNIC_OFFLOAD", "on or off", switch, show_switch;
    /// Use UDP port 4791 also between processes of this host, instead of shared memory and the
    /// processes' private ports.
    force_wire: bool = false, "VERNIC_FORCE_WIRE", "on or off", switch, show_switch;
    /// Send packets to processes of this host and user through memory that both share, instead of
    /// UDP. Off if `force_wire`, `capture`, `fault` or `trace` is set, because these are about
    /// packets on the wire.
    same_host: bool = true, "VERNIC_SAME_HOST", "on or off", switch, show_switch;
    /// Size of each ring of shared memory through which one other process of this host sends to
    /// this one. As many packets may be on the way as packets of MTU size fit in it. From the ninth
    /// such process on, rings are smaller, down to 64 KiB.
    ring_bytes: u32 = 1 << 18, "VERNIC_RING_BYTES", "65536 to 16777216 bytes, a power of two", ring, show;
    /// Carry out WRITEs, READs and atomics of RC to processes of this host and user directly in
    /// their memory, without packets. Copy the payload of their large SENDs out of it. Those
    /// processes may do the same in the memory of this process. Both processes need the setting.
    /// Off whenever `same_host` is off. With `on`, memory that is not mapped is reached only where
    /// the kernel permits that anyway. `ptrace` is for systems where Yama forbids it
    /// (`kernel.yama.ptrace_scope` is 1). This process then permits one other process at a time all
    /// that `ptrace` permits. The permission ends when that process disconnects, or with its last
    /// grant.
    direct: DirectAccess = DirectAccess::On, "VERNIC_DIRECT", "off, on or ptrace", direct, show_direct;
    /// Move memory that the program registers for remote access into files, in whole pages. Other
    /// processes of this host can then map the memory and reach it without system calls. Off by
    /// default, because the program must then not write to memory while it registers it, and
    /// children of `fork` share the memory while it is registered.
    share_memory: bool = false, "VERNIC_SHARE_MEMORY", "on or off", switch, show_switch;
    /// Let UC and UD queue pairs wait while a process of this host has not yet received what was
    /// sent to it before. If off, packets are lost when they are sent faster than that process
    /// receives them.
    pace: bool = true, "VERNIC_PACE", "on or off", switch, show_switch;
    /// Addresses that a device exchanges packets with. Packets, connection requests and TCP
    /// connections from other addresses are dropped and counted, and calls that would send to other
    /// addresses fail. Empty allows all addresses. (Source addresses can be forged: docs/ipsec.md
    /// says what helps.)
    peers: Peers = Peers::default(), "VERNIC_PEERS", "networks and addresses with commas between, as 10.1.0.0/16, fd00::/8", peers, show;
    /// Accept packets for a connected queue pair only from the UDP source port from which its peer
    /// sent first. So other users of the peer's host cannot send in its name. A packet from another
    /// port is accepted only if it has the very next sequence number. Turn this off for peers that
    /// spread a queue pair over many ports.
    pin_source_ports: bool = true, "VERNIC_PIN_SOURCE_PORTS", "on or off", switch, show_switch;
    /// Size of the receive buffer and of the send buffer of each socket; without privilege the
    /// system grants up to `net.core.rmem_max` and `net.core.wmem_max`.
    socket_buffer_bytes: u32 = 4 << 20, "VERNIC_SOCKET_BUFFER_BYTES", "4096 to 1073741823 bytes", socket_buffer, show;
    /// How long to wait at most until another process of this host has said which port it receives
    /// on.
    peer_query_us: u64 = 100_000, "VERNIC_PEER_QUERY_US", "1 to 10000000 microseconds", micros, show;
    /// How long an RC queue pair waits for a response at least, even if its `timeout` is shorter:
    /// peers whose responders are threads take longer than hardware. Losses are repaired long
    /// before. A test connected 2000 queue pairs with a timeout of 65 us to themselves by port
    /// 4791. Without this floor 241 failed, with 8 ms 2, with the default none.
    ack_timeout_floor_us: u64 = 16_000, "VERNIC_ACK_TIMEOUT_FLOOR_US", "0 to 10000000 microseconds", micros_or_none, show;
    /// How long an RC queue pair waits for the response of a process of this host that is alive but
    /// does not run. Such a process is stopped, in a debugger, in a frozen cgroup, or on a core
    /// that others use. After that, `timeout` and `retry_cnt` count, as for peers on other hosts.
    /// Without effect if `fault` is set.
    live_peer_timeout_s: u32 = 30, "VERNIC_LIVE_PEER_TIMEOUT_S", "0 to 3600 seconds", live_peer_timeout, show;
    /// How long the peer may take to answer each message that sets up or ends a connection.
    /// Messages are repeated 15 times, the first few of them earlier: with the default, which is
    /// Linux's, a peer that does not answer is given up after 62 s.
    cm_response_timeout: u8 = 20, "VERNIC_CM_RESPONSE_TIMEOUT", "8 to 24: 4.096 us * 2^n", cm_response_timeout, show;
    /// File into which every packet is captured (pcapng, for Wireshark); empty captures nothing.
    /// `%p` becomes the process id, `%d` the device's name. If two links have the same file, the
    /// second adds `-2` to the name.
    capture: String = String::new(), "VERNIC_CAPTURE", "path", text, String::clone;
    /// Largest size of the capture file: the capture ends before the file would be larger; 0 sets
    /// no limit.
    capture_max_bytes: u64 = 1 << 30, "VERNIC_CAPTURE_MAX_BYTES", "0 to 2^63 bytes", bytes, show;
    /// Faults to inject into the packets that are sent, as
    /// `loss=0.01,dup=0.001,reorder=0.01,corrupt=0.001, delay_us=50,seed=7`; empty injects none.
    fault: String = String::new(), "VERNIC_FAULT", "name=value, with commas between: loss, dup, reorder, corrupt from 0 to 1, or 0% to 100%; delay_us; seed", fault, String::clone;
    /// Vendor id that the device reports (an OUI, IBTA 11.2.1.2). The default is an OUI without an
    /// owner.
    vendor_id: u32 = 0x02_76_6e, "VERNIC_VENDOR_ID", "1 to 0xffffff", vendor_id, show_hex;
    /// Part number that the device reports, as its vendor numbers parts. Some programs use more
    /// features of a device whose part number they know: on 4115 (ConnectX-4), perftest uses inline
    /// data and `ibv_wr_*`.
    vendor_part_id: u32 = 1, "VERNIC_VENDOR_PART_ID", "0 to 0xffffffff", vendor_part_id, show;
    /// Log every packet at level `trace`. The `vernic` command prints the log on standard error,
    /// other programs where their `tracing` subscriber does.
    trace: bool = false, "VERNIC_TRACE", "on or off", switch, show_switch;
}

fn text(value: &str) -> Result<String, String> {
    Ok(value.to_owned())
}

fn transport(value: &str) -> Result<TransportChoice, String> {
    match value.to_ascii_lowercase().as_str() {
        "roce" => Ok(TransportChoice::Roce),
        "iwarp" => Ok(TransportChoice::Iwarp),
        "both" => Ok(TransportChoice::Both),
        _ => Err("no transport".into()),
    }
}

fn show_transport(value: &TransportChoice) -> String {
    match value {
        TransportChoice::Roce => "roce",
        TransportChoice::Iwarp => "iwarp",
        TransportChoice::Both => "both",
    }
    .to_owned()
}

fn roce(value: &str) -> Result<RoceVersion, String> {
    match value.to_ascii_lowercase().as_str() {
        "v1" => Ok(RoceVersion::V1),
        "v2" => Ok(RoceVersion::V2),
        _ => Err("no version of RoCE".into()),
    }
}

fn show_roce(value: &RoceVersion) -> String {
    match value {
        RoceVersion::V1 => "v1",
        RoceVersion::V2 => "v2",
    }
    .to_owned()
}

fn direct(value: &str) -> Result<DirectAccess, String> {
    match switch(value) {
        _ if value.eq_ignore_ascii_case("ptrace") => Ok(DirectAccess::Ptrace),
        Ok(true) => Ok(DirectAccess::On),
        Ok(false) => Ok(DirectAccess::Off),
        Err(_) => Err("neither off, on nor ptrace".into()),
    }
}

fn show_direct(value: &DirectAccess) -> String {
    match value {
        DirectAccess::Off => "off",
        DirectAccess::On => "on",
        DirectAccess::Ptrace => "ptrace",
    }
    .to_owned()
}

fn congestion(value: &str) -> Result<Algorithm, Refusal> {
    value.parse().map_err(|error: ParamError| Refusal {
        reason: error.to_string(),
        tells_what_is_right: !matches!(error, ParamError::Algorithm(_)),
    })
}

fn ecn(value: &str) -> Result<EcnChoice, String> {
    match switch(value) {
        _ if value.eq_ignore_ascii_case("auto") => Ok(EcnChoice::Auto),
        Ok(true) => Ok(EcnChoice::On),
        Ok(false) => Ok(EcnChoice::Off),
        Err(_) => Err("neither auto, on nor off".into()),
    }
}

fn show_ecn(value: &EcnChoice) -> String {
    match value {
        EcnChoice::Auto => "auto",
        EcnChoice::On => "on",
        EcnChoice::Off => "off",
    }
    .to_owned()
}

/// Checks the value and returns it unchanged, so that a bad value is refused when it is set, not
/// when a device is opened.
fn fault(value: &str) -> Result<String, Refusal> {
    match value.parse::<FaultConfig>() {
        Ok(_) => Ok(value.to_owned()),
        Err(error) => Err(Refusal { reason: error.to_string(), tells_what_is_right: true }),
    }
}

fn peers(value: &str) -> Result<Peers, String> {
    value.parse()
}

fn ring(value: &str) -> Result<u32, String> {
    let bytes = number(value, MIN_RING_BYTES.into(), MAX_RING_BYTES.into())? as u32;
    if bytes.is_power_of_two() { Ok(bytes) } else { Err("no power of two".into()) }
}

fn mtu(value: &str) -> Result<Option<Mtu>, String> {
    match value.parse::<u32>() {
        Ok(0) => Ok(None),
        Ok(bytes) => Mtu::from_bytes(bytes).map(Some).ok_or_else(|| "no MTU of InfiniBand".into()),
        Err(_) => Err("not a number".into()),
    }
}

fn cm_response_timeout(value: &str) -> Result<u8, String> {
    Ok(number(value, 8, 24)? as u8)
}

fn number(value: &str, min: u64, max: u64) -> Result<u64, String> {
    let n = value.parse::<u64>().map_err(|_| "not a number")?;
    if (min..=max).contains(&n) { Ok(n) } else { Err("out of range".into()) }
}

fn micros(value: &str) -> Result<u64, String> {
    number(value, 1, MAX_US)
}

fn micros_or_none(value: &str) -> Result<u64, String> {
    number(value, 0, MAX_US)
}

/// Parses a number of seconds in the range that the kernel allows for TCP keep-alive.
fn keep_alive(value: &str) -> Result<u32, String> {
    number(value, 0, 32767).map(|n| n as u32)
}

fn reply_timeout(value: &str) -> Result<u32, String> {
    number(value, 1, 3600).map(|n| n as u32)
}

fn live_peer_timeout(value: &str) -> Result<u32, String> {
    number(value, 0, 3600).map(|n| n as u32)
}

fn window(value: &str) -> Result<u32, String> {
    number(value, 1, 1 << 16).map(|n| n as u32)
}

fn kept_packets(value: &str) -> Result<u32, String> {
    number(value, 1, 1 << 12).map(|n| n as u32)
}

fn kept_bytes(value: &str) -> Result<u64, String> {
    number(value, 1 << 16, 1 << 30)
}

fn bytes(value: &str) -> Result<u64, String> {
    number(value, 0, 1 << 63)
}

/// Parses a decimal number, or a hexadecimal one after 0x.
fn identifier(value: &str, min: u64, max: u64) -> Result<u32, String> {
    let n = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| "not a number")?,
        None => value.parse().map_err(|_| "not a number")?,
    };
    if (min..=max).contains(&n) { Ok(n as u32) } else { Err("out of range".into()) }
}

fn vendor_id(value: &str) -> Result<u32, String> {
    identifier(value, 1, 0xff_ffff)
}

fn vendor_part_id(value: &str) -> Result<u32, String> {
    identifier(value, 0, u32::MAX.into())
}

/// Parses a buffer size. The kernel doubles it, and the double must fit 31 bits.
fn socket_buffer(value: &str) -> Result<u32, String> {
    number(value, 4096, (1 << 30) - 1).map(|n| n as u32)
}

fn flows(value: &str) -> Result<u16, String> {
    number(value, 1, u64::from(vernic_io::udp::FLOWS)).map(|n| n as u16)
}

fn switch(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Ok(true),
        "0" | "off" | "no" | "false" => Ok(false),
        _ => Err("neither on nor off".into()),
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

/// Returns the setting whose name, or whose environment variable, a mistyped one is most like.
fn nearest(name: &str) -> Option<&'static str> {
    let all = KEYS.iter().flat_map(|key| [key.name, key.variable]).chain(settings::OTHER_VARIABLES);
    let far = |known: &&str| strsim::damerau_levenshtein(name, known);
    let near = all.min_by_key(far)?;
    // Two slips of a finger, of which a short name has no room for one more.
    (far(&near) <= 2.min(name.len() / 3)).then_some(near)
}

/// Options of `vernic run` that have no setting of their name, and what says the same as a setting.
const RUN_OPTIONS: [(&str, &str); 9] = [
    ("loss", "VERNIC_FAULT=loss=0.01"),
    ("duplicate", "VERNIC_FAULT=dup=0.01"),
    ("reorder", "VERNIC_FAULT=reorder=0.01"),
    ("corrupt", "VERNIC_FAULT=corrupt=0.01"),
    ("delay", "VERNIC_FAULT=delay_us=50"),
    ("seed", "VERNIC_FAULT=loss=0.01,seed=7"),
    ("iwarp", "VERNIC_TRANSPORT=iwarp"),
    ("ib-dev", "VERNIC_DEVICE=vernic0"),
    ("rsockets", "VERNIC_RSOCKETS=auto"),
];

/// Returns the option of `vernic run` that has the name of a supposed setting, or of its variable,
/// and what says the same as a setting.
fn run_option(name: &str) -> Option<(&'static str, &'static str)> {
    let bare = name.to_ascii_lowercase().replace('_', "-");
    let bare = bare.strip_prefix("vernic-").unwrap_or(&bare);
    RUN_OPTIONS.into_iter().find(|(option, _)| *option == bare)
}

/// Returns what was meant by a setting that there is not, behind a space and in parentheses;
/// nothing if nothing is like it.
pub fn meant(name: &str) -> impl fmt::Display + '_ {
    Meant(name)
}

struct Meant<'a>(&'a str);

impl fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((option, setting)) = run_option(self.0) {
            return write!(
                f,
                " (`--{option}` is an option of `vernic run`; as a setting: {setting})"
            );
        }
        nearest(self.0).map_or(Ok(()), |near| write!(f, " (did you mean `{near}`?)"))
    }
}

/// The reason why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No setting has this name.
    #[error("{origin}: there is no setting {name:?}{}; `vernic config` lists all", Meant(name))]
    UnknownKey {
        /// The name that was given.
        name: String,
        /// The place where the name was given: a file and line, the environment, or code.
        origin: String,
    },
    /// The setting does not allow this value.
    #[error("{origin}: {name} = {value:?}: {reason}{}", Allowed(*allowed))]
    BadValue {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: String,
        /// What is wrong.
        reason: String,
        /// What is allowed, if the reason does not say it.
        allowed: Option<&'static str>,
        /// The place where the value was given: a file and line, an environment variable, or code.
        origin: String,
    },
    /// A line of the file is not of the form `key = value`.
    #[error("{origin}: {line:?} is not of the form key = value")]
    BadLine {
        /// The line.
        line: String,
        /// The place of the line: the file and the line number.
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

/// Displays the end of an error message, which says what is allowed; empty for `None`.
struct Allowed(Option<&'static str>);

impl std::fmt::Display for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |allowed| write!(f, "; allowed: {allowed}"))
    }
}

/// The smallest [`Config::ack_delay`], as an exponent: 4.096 us * 2^9, which is 2.1 ms. This is the
/// longest time that the responses of a process take which does not poll, and whose background
/// thread must be woken on a busy machine.
const LEAST_ACK_DELAY: u8 = 9;

impl Config {
    /// Returns how long responses of this device may take, as it reports to peers: the exponent n
    /// of 4.096 us * 2^n. It is the smallest n whose time covers the setting
    /// `ack_timeout_floor_us`: this device grants its peers that time, and so asks the same of
    /// them.
    pub fn ack_delay(&self) -> u8 {
        let floor = u128::from(self.ack_timeout_floor_us) * 1000;
        let covers = |n: &u8| 4096_u128 << n >= floor;
        (LEAST_ACK_DELAY..31).find(covers).unwrap_or(31)
    }

    /// Reads defaults, then the file, then the environment: [`Settings::load`] without the origins.
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting that is unknown or has a bad value.
    pub fn load() -> Result<Self, ConfigError> {
        Ok(Settings::load()?.into_config())
    }

    /// Sets one setting by name.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`], [`ConfigError::BadValue`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        self.set_from(name, value, || Origin::Code.to_string()).map(drop)
    }

    /// Returns every setting with its present value, in the order of [`KEYS`].
    pub fn values(&self) -> impl Iterator<Item = (&'static Key, String)> + '_ {
        KEYS.iter().map(|key| (key, (key.show)(self)))
    }

    /// Reads settings from the text of a file; `origin` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError`] for the first line that is wrong; those before it are set.
    pub fn parse_file(&mut self, text: &str, origin: &str) -> Result<(), ConfigError> {
        settings::for_each_line(text, origin, |name, value, line| {
            self.set_from(name, value, || format!("{origin} line {line}")).map(drop)
        })
    }

    /// Sets one setting by name and returns its index in [`KEYS`]. `origin` names the place of the
    /// value in errors.
    fn set_from(
        &mut self,
        name: &str,
        value: &str,
        origin: impl Fn() -> String,
    ) -> Result<usize, ConfigError> {
        match KEYS.iter().position(|key| key.name == name) {
            Some(index) => self.apply(index, value, origin).map(|()| index),
            None => Err(ConfigError::UnknownKey { name: name.to_owned(), origin: origin() }),
        }
    }

    /// Checks what a program may have set past the table. (`wrap_link` looks at the faults.)
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.congestion.check().map_err(|error| ConfigError::BadValue {
            name: "congestion",
            value: self.congestion.to_string(),
            reason: error.to_string(),
            allowed: None,
            origin: Origin::Code.to_string(),
        })
    }

    fn apply(
        &mut self,
        index: usize,
        value: &str,
        origin: impl Fn() -> String,
    ) -> Result<(), ConfigError> {
        let key = &KEYS[index];
        (key.set)(self, value.trim()).map_err(|refusal| ConfigError::BadValue {
            name: key.name,
            value: value.to_owned(),
            allowed: (!refusal.tells_what_is_right).then_some(key.unit),
            reason: refusal.reason,
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
    fn the_setting_direct_has_three_values_and_takes_those_of_a_switch() {
        let value_of = |text: &str| {
            let mut config = Config { direct: DirectAccess::Ptrace, ..Config::default() };
            config.set("direct", text).map(|()| config.direct)
        };
        for (texts, expected) in [
            (&["0", "off", "no", "false", "OFF"][..], DirectAccess::Off),
            (&["1", "on", "yes", "true", "True", " on "][..], DirectAccess::On),
            (&["ptrace", "PTRACE"][..], DirectAccess::Ptrace),
        ] {
            for text in texts {
                assert_eq!(value_of(text).unwrap(), expected, "{text}");
            }
            assert_eq!(value_of(&show_direct(&expected)).unwrap(), expected);
        }
        assert_eq!(Config::default().direct, DirectAccess::On);
        let error = value_of("yama").unwrap_err().to_string();
        assert!(error.ends_with("allowed: off, on or ptrace"), "{error}");
    }

    #[test]
    fn peers_are_told_to_wait_for_us_as_long_as_we_wait_for_them() {
        let delay_of = |floor_us: &str| {
            let mut config = Config::default();
            config.set("ack_timeout_floor_us", floor_us).unwrap();
            config.ack_delay()
        };
        let delays = ["0", "2097", "2098", "8388", "8389", "10000000"].map(delay_of);
        assert_eq!(delays, [9, 9, 10, 11, 12, 22]);
    }

    #[test]
    fn an_option_of_vernic_run_that_is_no_setting_is_told_as_one() {
        for name in ["VERNIC_LOSS", "loss"] {
            let error = Config::default().set(name, "1%").unwrap_err().to_string();
            let told =
                "`--loss` is an option of `vernic run`; as a setting: VERNIC_FAULT=loss=0.01";
            assert!(error.contains(told), "{error}");
        }
        // What stands for an option is a setting, and a value that it takes.
        for (_, setting) in RUN_OPTIONS {
            let (variable, value) = setting.split_once('=').unwrap();
            let key = KEYS.iter().find(|key| key.variable == variable);
            match key {
                Some(key) => Config::default().set(key.name, value).unwrap(),
                None => assert!(settings::OTHER_VARIABLES.contains(&variable), "{setting}"),
            }
            assert!(!KEYS.iter().any(|key| run_option(key.name).is_some()), "a setting precedes");
        }
    }

    #[test]
    fn unknown_keys_and_bad_values_are_named_with_their_place() {
        let mut config = Config::default();
        let error = config.parse_file("# ok\nmtu = 1024\nmtuu = 1", "x.conf").unwrap_err();
        assert_eq!(
            error.to_string(),
            "x.conf line 3: there is no setting \"mtuu\" (did you mean `mtu`?); `vernic config` lists all"
        );
        assert_eq!(config.mtu, Some(Mtu::B1024));
        let error = config.set("mtu", "1500").unwrap_err().to_string();
        assert!(error.contains("1500") && error.contains("256, 512, 1024"), "{error}");
        assert!(config.set("offload", "maybe").is_err());
        for (wrong, right) in [
            ("loss=2", "loss=2 is not a probability: 0 to 1, or 0% to 100%"),
            ("los=1", "known are loss, dup, reorder, corrupt, delay_us, seed"),
        ] {
            let error = config.set("fault", wrong).unwrap_err().to_string();
            assert!(error.ends_with(right), "what is right is said, and once: {error}");
        }
        assert!(config.set("takeover_us", "0").is_err());
        assert!(config.parse_file("mtu 1024", "x").is_err());
    }
}
