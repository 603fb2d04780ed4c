//! Variables and the file that say which sockets go over RDMA.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;
use std::time::Duration;

use crate::real::inside;

/// The file of rdma-core's library: a line `program domain type protocol`, `*` for any, per choice.
const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// What to do with TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// RDMA where it is possible, else TCP.
    Auto,
    /// RDMA or nothing.
    Only,
    /// TCP.
    Off,
}

/// What the environment says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) mode: Mode,
    /// How long an answer by RDMA is waited for.
    pub(crate) patience: Duration,
    /// Sizes of new sockets: send queue, receive queue, inline data; 0 for the default.
    pub(crate) sizes: [c_int; 3],
    pub(crate) fork_safe: bool,
    /// The devices are iWARP's, over which a port of the program would be TCP's and RDMA's at once:
    /// no socket goes over them.
    pub(crate) is_iwarp: bool,
    /// Lines of the file that are about this program: domain, type, protocol; 0 for any. `None`
    /// without a file.
    choices: Option<Vec<[c_int; 3]>>,
}

/// The environment's, read once.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let text = inside(|| std::fs::read_to_string(FILE)).ok();
        let config = Config::new(|name| std::env::var(name).ok(), text.as_deref(), &program());
        match std::env::var("VERNIC_RSOCKETS").as_deref() {
            _ if !config.is_iwarp => {}
            Ok("off") => {}
            Ok("only") => warn(ON_IWARP_ONLY),
            _ => warn(ON_IWARP),
        }
        config
    })
}

/// The name that the program was started by, without folders.
fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// What the user is told who asks for both.
const ON_IWARP: &str = "librspreload: no socket goes over RDMA, since the devices are iWARP's (VERNIC_TRANSPORT, \
    VERNIC_DEVICE): a port would be TCP's and RDMA's at once\n";
const ON_IWARP_ONLY: &str = "librspreload: sockets are refused (VERNIC_RSOCKETS=only), since the devices are \
    iWARP's (VERNIC_TRANSPORT, VERNIC_DEVICE): a port would be TCP's and RDMA's at once\n";

fn warn(text: &str) {
    // SAFETY: pointer and length describe `text`. Where nobody hears it, nothing is lost.
    inside(|| unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) });
}

impl Config {
    fn new(variable: impl Fn(&str) -> Option<String>, file: Option<&str>, program: &str) -> Self {
        let number = |name: &str| variable(name)?.trim().parse::<c_int>().ok();
        let size = |name: &str| number(name).unwrap_or(0).max(0);
        // As the library that has the devices reads them.
        let is_iwarp = match variable("VERNIC_DEVICE").filter(|name| !name.is_empty()) {
            Some(device) if device.starts_with("viw") => true,
            Some(device) if device.starts_with("vernic") => false,
            _ => {
                variable("VERNIC_TRANSPORT").is_some_and(|name| name.eq_ignore_ascii_case("iwarp"))
            }
        };
        let mode = match variable("VERNIC_RSOCKETS").as_deref() {
            Some("only") => Mode::Only,
            Some("off") => Mode::Off,
            _ if is_iwarp => Mode::Off,
            _ => Mode::Auto,
        };
        Self {
            is_iwarp,
            mode,
            patience: number("VERNIC_RSOCKETS_CONNECT_MS")
                .and_then(|ms| u64::try_from(ms).ok())
                .map_or(Duration::from_secs(2), Duration::from_millis),
            sizes: [size("RS_SQ_SIZE"), size("RS_RQ_SIZE"), size("RS_INLINE")],
            fork_safe: number("RDMAV_FORK_SAFE").unwrap_or(0) != 0,
            choices: file.map(|text| choices(text, program)),
        }
    }

    /// Whether a socket of this kind goes over RDMA.
    pub(crate) fn wants(&self, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let of_ip = matches!(domain, libc::AF_INET | libc::AF_INET6);
        let protocol = match (kind, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => libc::IPPROTO_TCP,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => libc::IPPROTO_UDP,
            _ => return false,
        };
        if !of_ip || self.mode == Mode::Off {
            return false;
        }
        let Some(choices) = &self.choices else { return kind == libc::SOCK_STREAM };
        let asked = [domain, kind, protocol];
        choices.iter().any(|choice| choice.iter().zip(asked).all(|(c, a)| *c == 0 || *c == a))
    }
}

/// The lines that are about `program`. A line that cannot be read is about nobody.
fn choices(text: &str, program: &str) -> Vec<[c_int; 3]> {
    let choice = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| !name.starts_with('#'))?;
        let is_meant = || {
            let start = program.get(..name.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(name))
        };
        if name != "*" && !is_meant() {
            return None;
        }
        let domain = word(
            words.next()?,
            &[
                ("INET", libc::AF_INET),
                ("AF_INET", libc::AF_INET),
                ("PF_INET", libc::AF_INET),
                ("INET6", libc::AF_INET6),
                ("AF_INET6", libc::AF_INET6),
                ("PF_INET6", libc::AF_INET6),
            ],
        )?;
        let kind = word(
            words.next()?,
            &[
                ("STREAM", libc::SOCK_STREAM),
                ("SOCK_STREAM", libc::SOCK_STREAM),
                ("DGRAM", libc::SOCK_DGRAM),
                ("SOCK_DGRAM", libc::SOCK_DGRAM),
            ],
        )?;
        let protocol = word(
            words.next()?,
            &[
                ("TCP", libc::IPPROTO_TCP),
                ("IPPROTO_TCP", libc::IPPROTO_TCP),
                ("UDP", libc::IPPROTO_UDP),
                ("IPPROTO_UDP", libc::IPPROTO_UDP),
            ],
        )?;
        Some([domain, kind, protocol])
    };
    text.lines().filter_map(choice).collect()
}

/// The number of a word; 0 for `*`.
fn word(word: &str, known: &[(&str, c_int)]) -> Option<c_int> {
    if word == "*" {
        return Some(0);
    }
    known.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, number)| *number)
}

/// The start of the names of threads that belong to the device and to sockets over RDMA: their own
/// UDP sockets go through untouched.
const OWN_THREADS: &[u8] = b"vernic";

/// Whether this thread is one of the library's own.
pub(crate) fn is_own_thread() -> bool {
    /// `PR_GET_NAME` fills so many bytes.
    const NAME_BYTES: usize = 16;
    let mut name = [0_u8; NAME_BYTES];
    // SAFETY: room for the name.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    CStr::from_bytes_until_nul(&name).is_ok_and(|name| name.to_bytes().starts_with(OWN_THREADS))
}
