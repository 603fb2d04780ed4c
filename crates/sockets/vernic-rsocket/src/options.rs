//! Socket options of streams: which there are, what they mean, how they are stored.
//!
//! Options that have no meaning over RDMA and change nothing that a program can observe (Nagle's
//! algorithm, congestion control) are stored and told back. Options that are not known are refused.

use std::ffi::c_int;
use std::time::Duration;

use crate::Error;
use crate::stream::Limits;
use crate::wire::IomapScale;

/// The level of options that only sockets over RDMA have (`SOL_RDMA`).
pub const SOL_RDMA: c_int = 0x10000;

/// Requests of the send queue.
pub const RDMA_SQSIZE: c_int = 0;
/// Messages of the receive queue.
pub const RDMA_RQSIZE: c_int = 1;
/// Bytes up to which data is sent inline.
pub const RDMA_INLINE: c_int = 2;
/// Buffers that the peer may map.
pub const RDMA_IOMAPSIZE: c_int = 3;
/// The path of the connection (`struct ibv_path_data`), to be read only: the system's routes decide
/// it.
pub const RDMA_ROUTE: c_int = 4;
/// Bytes that wait to be read. Of this implementation alone, to be read only.
pub const RDMA_UNREAD: c_int = 0x100;
/// Bytes that were sent and not acknowledged. Of this implementation alone, to be read only.
pub const RDMA_UNSENT: c_int = 0x101;
/// Datagrams that came and were dropped: no room, no sense, or a sender that says to be another. Of
/// this implementation alone, to be read only.
pub const RDMA_DROPPED: c_int = 0x102;

/// Largest value of `TCP_KEEPIDLE` and its like that Linux takes, seconds.
const MAX_KEEPALIVE_S: c_int = 32_767;

/// Keep-alive messages begin after so long, unless the system says otherwise: two hours.
const KEEPALIVE: Duration = Duration::from_secs(7200);

/// What a program has set.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) limits: Limits,
    pub(crate) reuse_addr: bool,
    /// For IPv6 alone; else as the system has it.
    pub(crate) only_v6: Option<bool>,
    pub(crate) keepalive: bool,
    pub(crate) keepalive_after: Duration,
    /// `SO_LINGER`: whether it is on, and how long.
    pub(crate) linger: Option<Duration>,
    pub(crate) recv_timeout: Option<Duration>,
    pub(crate) send_timeout: Option<Duration>,
    pub(crate) tos: u8,
    /// Stored and told back: (level, option, value).
    kept: Vec<(c_int, c_int, c_int)>,
}

/// Options that are stored and told back, with the value that they start with.
const KEPT: &[(c_int, c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 0),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, 0),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 0),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 75),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 0),
];

impl Options {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            reuse_addr: false,
            only_v6: None,
            keepalive: false,
            keepalive_after: keepalive_of_system(),
            linger: None,
            recv_timeout: None,
            send_timeout: None,
            tos: 0,
            kept: KEPT.to_vec(),
        }
    }

    /// Changes an option. `is_open` says that sizes are still open: there are no rings yet.
    pub(crate) fn set(
        &mut self,
        level: c_int,
        option: c_int,
        value: &[u8],
        is_open: bool,
    ) -> Result<(), Error> {
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_addr = int(value)? != 0,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keepalive = int(value)? != 0,
            // As for TCP: twice what was asked for. Too late is no error, as for TCP.
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                let bytes = twice(int(value)?);
                if is_open {
                    self.limits.send_bytes = bytes;
                }
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                let bytes = twice(int(value)?);
                if is_open {
                    self.limits.recv_bytes = bytes;
                }
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let [on, seconds] = [int(value)?, int(value.get(4..).unwrap_or_default())?];
                self.linger = (on != 0).then(|| Duration::from_secs(seconds.max(0) as u64));
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => self.recv_timeout = time(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => self.send_timeout = time(value)?,
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let tos = small(value)?;
                self.tos = u8::try_from(tos).map_err(|_| Error::Value { what: "IP_TOS" })?;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.only_v6 = Some(int(value)? != 0),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => match int(value)? {
                seconds @ 1..=MAX_KEEPALIVE_S => {
                    self.keepalive_after = Duration::from_secs(seconds as u64);
                }
                _ => return Err(Error::Value { what: "TCP_KEEPIDLE" }),
            },
            // The path's MTU decides, and the algorithm is the device's.
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
            (SOL_RDMA, RDMA_SQSIZE..=RDMA_IOMAPSIZE) => {
                if !is_open {
                    let needs = "is not connected and does not listen";
                    return Err(Error::State { call: "a size of SOL_RDMA", needs });
                }
                self.set_size(option, int(value)?)?;
            }
            _ => return self.keep(level, option, value),
        }
        Ok(())
    }

    fn set_size(&mut self, option: c_int, value: c_int) -> Result<(), Error> {
        let value =
            u32::try_from(value).map_err(|_| Error::Value { what: "a size of SOL_RDMA" })?;
        let queue = value.min(u16::MAX.into()) as u16;
        match option {
            RDMA_SQSIZE => self.limits.send_requests = queue,
            RDMA_RQSIZE => self.limits.recv_messages = queue,
            RDMA_INLINE => self.limits.inline_bytes = value,
            _ => self.limits.iomap = IomapScale::of(queue),
        }
        Ok(())
    }

    fn keep(&mut self, level: c_int, option: c_int, value: &[u8]) -> Result<(), Error> {
        let kept = self.kept.iter_mut().find(|(l, o, _)| (*l, *o) == (level, option));
        let kept = kept.ok_or(Error::NoOption { level, option })?;
        kept.2 = int(value)?;
        Ok(())
    }

    /// An option as a program reads it.
    pub(crate) fn get(&self, level: c_int, option: c_int) -> Result<Vec<u8>, Error> {
        let limits = self.limits.clamped();
        let value = match (level, option) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => c_int::from(self.reuse_addr),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => c_int::from(self.keepalive),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => limits.send_bytes as c_int,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => limits.recv_bytes as c_int,
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = self.linger.map_or(0, |time| time.as_secs() as c_int);
                let on = c_int::from(self.linger.is_some());
                return Ok([on.to_ne_bytes(), seconds.to_ne_bytes()].concat());
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(timeval(self.recv_timeout)),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(timeval(self.send_timeout)),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.tos.into()
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                c_int::from(self.only_v6.unwrap_or_else(vernic_cm::v6_only))
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.keepalive_after.as_secs() as c_int,
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => return Ok(b"rdma\0".to_vec()),
            (SOL_RDMA, RDMA_SQSIZE) => limits.send_requests.into(),
            (SOL_RDMA, RDMA_RQSIZE) => limits.recv_messages.into(),
            (SOL_RDMA, RDMA_INLINE) => limits.inline_bytes as c_int,
            (SOL_RDMA, RDMA_IOMAPSIZE) => limits.iomap.entries().into(),
            _ => {
                let kept = self.kept.iter().find(|(l, o, _)| (*l, *o) == (level, option));
                kept.ok_or(Error::NoOption { level, option })?.2
            }
        };
        Ok(value.to_ne_bytes().to_vec())
    }
}

/// An `int`.
pub(crate) fn int(value: &[u8]) -> Result<c_int, Error> {
    let bytes = value.get(..4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(c_int::from_ne_bytes).ok_or(Error::Value { what: "the option's value" })
}

/// An `int`, or a single byte, as options of IP take.
fn small(value: &[u8]) -> Result<c_int, Error> {
    match value {
        [byte] => Ok((*byte).into()),
        _ => int(value),
    }
}

fn twice(bytes: c_int) -> u32 {
    (bytes.max(0) as u32).saturating_mul(2)
}

/// A `struct timeval`; 0 means for ever.
fn time(value: &[u8]) -> Result<Option<Duration>, Error> {
    let word = |at: usize| value.get(at..at + 8)?.try_into().ok().map(i64::from_ne_bytes);
    let (Some(seconds), Some(micros @ 0..1_000_000)) = (word(0), word(8)) else {
        return Err(Error::Value { what: "a timeout" });
    };
    let time = Duration::from_secs(seconds.max(0) as u64) + Duration::from_micros(micros as u64);
    Ok(Some(time).filter(|time| !time.is_zero()))
}

fn timeval(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let words = [time.as_secs() as i64, time.subsec_micros().into()];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// What the system has for TCP.
fn keepalive_of_system() -> Duration {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
    let seconds = text.ok().and_then(|text| text.trim().parse().ok());
    seconds.map_or(KEEPALIVE, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn options() -> Options {
        Options::new(Settings::default().limits)
    }

    fn number(options: &Options, level: c_int, option: c_int) -> c_int {
        int(&options.get(level, option).unwrap()).unwrap()
    }

    #[test]
    fn what_was_set_is_told_back() {
        let mut options = options();
        let (socket, tcp) = (libc::SOL_SOCKET, libc::IPPROTO_TCP);
        for (level, option, value) in [
            (socket, libc::SO_REUSEADDR, 1),
            (socket, libc::SO_KEEPALIVE, 1),
            (tcp, libc::TCP_KEEPIDLE, 30),
            (tcp, libc::TCP_NODELAY, 0),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x20),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1),
            (SOL_RDMA, RDMA_SQSIZE, 100),
            (SOL_RDMA, RDMA_INLINE, 0),
            (SOL_RDMA, RDMA_IOMAPSIZE, 16),
        ] {
            options.set(level, option, &c_int::to_ne_bytes(value), true).unwrap();
            assert_eq!(number(&options, level, option), value, "{level} {option}");
        }
        options.set(libc::IPPROTO_IP, libc::IP_TOS, &[0x40], true).unwrap();
        assert_eq!(options.tos, 0x40);
    }

    #[test]
    fn buffers_are_twice_what_was_asked_for_while_there_are_none() {
        let mut options = options();
        let set = |options: &mut Options, bytes: c_int, is_open| {
            let bytes = bytes.to_ne_bytes();
            options.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes, is_open).unwrap();
            number(options, libc::SOL_SOCKET, libc::SO_RCVBUF)
        };
        assert_eq!(set(&mut options, 5000, true), 10_000);
        assert_eq!(set(&mut options, 7000, false), 10_000);
        assert_eq!(set(&mut options, -1, true), 2048);
    }

    #[test]
    fn times_are_pairs_of_seconds_and_microseconds() {
        let mut options = options();
        let value = timeval(Some(Duration::from_micros(1_500_000)));
        options.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value, true).unwrap();
        assert_eq!(options.recv_timeout, Some(Duration::from_millis(1500)));
        assert_eq!(options.get(libc::SOL_SOCKET, libc::SO_RCVTIMEO).unwrap(), value);
        options.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &[0; 16], true).unwrap();
        assert_eq!(options.recv_timeout, None);
        let wrong = [0_i64.to_ne_bytes(), 1_000_000_i64.to_ne_bytes()].concat();
        assert!(options.set(libc::SOL_SOCKET, libc::SO_SNDTIMEO, &wrong, true).is_err());
    }

    #[test]
    fn unknown_options_short_values_and_late_sizes_are_refused() {
        let mut options = options();
        let one = 1_i32.to_ne_bytes();
        let errno = |result: Result<(), Error>| result.unwrap_err().errno();
        assert_eq!(errno(options.set(libc::SOL_SOCKET, 9999, &one, true)), libc::ENOPROTOOPT);
        assert_eq!(
            errno(options.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, &[1], true)),
            libc::EINVAL
        );
        assert_eq!(errno(options.set(SOL_RDMA, RDMA_SQSIZE, &one, false)), libc::EINVAL);
        let zero = 0_i32.to_ne_bytes();
        assert_eq!(
            errno(options.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &zero, true)),
            libc::EINVAL
        );
        assert!(options.get(libc::SOL_SOCKET, 9999).is_err());
    }
}
