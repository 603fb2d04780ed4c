//! A switch: its shared buffer, PFC by ingress port, and marks of ECN.
//!
//! Owns how many bytes of which port are in the buffer, and decides whether a packet is taken, is
//! marked, and whether the sender at the other end must pause.
//!
//! ```text
//!   buffer = shared pool + headroom of each port
//!   with PFC    a packet is of the pool while its ingress port has there at most 1/8 of what is
//!               free; then of the port's headroom, and the other end is paused until the headroom
//!               is empty and the port is a little below its part again
//!   without     a packet is dropped where the line of its egress port exceeds what is free
//! ```
//! Both are dynamic thresholds after Choudhury and Hahne (1998); 1/8 is what the simulation of the
//! HPCC paper uses. Headroom is what still arrives after a pause was asked for: two delays, and the
//! packets that both ends are sending.

use super::packet::MOST_OVERHEAD;
use super::units::Rate;
use crate::rng::Rng;

/// The part of the free pool that an ingress port may have, as a shift: 1/8.
const PART: u32 = 3;
/// Bytes below its part at which a port goes on: two packets, so that it does not pause again for
/// the next one.
const SLACK: u64 = 3_000;

/// Thresholds of random early detection at a port of the rate that they are named for; at faster
/// links they are larger by the same factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ecn {
    /// Bytes in the line up to which nothing is marked.
    pub kmin: u64,
    /// Bytes from which all is marked.
    pub kmax: u64,
    /// Part of the packets that is marked just below `kmax`.
    pub pmax: f64,
}

impl std::str::FromStr for Ecn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split(',').collect();
        let [kmin, kmax, pmax] = fields[..] else {
            return Err(format!("`{text}`: three values, KMIN,KMAX,PMAX, as in 400k,1600k,0.2"));
        };
        let (kmin, kmax) = (super::units::bytes(kmin)?, super::units::bytes(kmax)?);
        let chance = super::units::part(pmax).ok().filter(|pmax| (0.0..=1.0).contains(pmax));
        let pmax =
            chance.ok_or_else(|| format!("PMAX is `{pmax}`, allowed: 0 to 1, or 0% to 100%"))?;
        if kmin > kmax || kmax > u64::from(u32::MAX) {
            return Err(format!("KMIN {kmin} and KMAX {kmax}: KMIN is at most KMAX, below 4g"));
        }
        Ok(Self { kmin, kmax, pmax })
    }
}

/// The marks of one port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marker {
    kmin: u32,
    kmax: u32,
    pmax: f64,
}

impl Marker {
    /// Thresholds named for `base`, at a port of `rate`; `None` never marks.
    pub(super) fn new(ecn: Option<Ecn>, base: Rate, rate: Rate) -> Self {
        let Some(Ecn { kmin, kmax, pmax }) = ecn else {
            return Self { kmin: u32::MAX, kmax: u32::MAX, pmax: 0.0 };
        };
        let scale = |bytes| {
            let scaled = bytes * u64::from(rate.gbps()) / u64::from(base.gbps());
            u32::try_from(scaled).unwrap_or(u32::MAX)
        };
        Self { kmin: scale(kmin), kmax: scale(kmax), pmax }
    }

    /// Whether a packet is marked that finds so many bytes in the line.
    #[inline]
    pub(super) fn marks(&self, depth: u32, rng: &mut Rng) -> bool {
        if depth <= self.kmin {
            return false;
        }
        if depth >= self.kmax {
            return true;
        }
        let part = f64::from(depth - self.kmin) / f64::from(self.kmax - self.kmin);
        rng.unit() < part * self.pmax
    }
}

/// What a switch does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Taken, as part of the shared pool.
    Shared,
    /// Taken, as part of the headroom; the first of them has the other end paused.
    Headroom {
        /// Whether a PFC frame is to be sent.
        pause: bool,
    },
    /// There is no room.
    Drop,
}

/// What packets that came by one port have of the buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ingress {
    shared: u32,
    headroom: u32,
    /// Bytes of headroom.
    limit: u32,
    /// Whether the other end was told to pause.
    pausing: bool,
}

impl Ingress {
    /// The ingress side of a port, for packets of at most `mtu` bytes of payload.
    pub(super) fn new(rate: Rate, delay_nanos: u64, mtu: u32) -> Self {
        let packet = u64::from(mtu + MOST_OVERHEAD);
        let limit = rate.bytes_in(2 * delay_nanos) + 4 * packet;
        Self { limit: u32::try_from(limit).unwrap_or(u32::MAX), ..Self::default() }
    }

    /// Bytes of headroom.
    pub(super) fn limit(&self) -> u64 {
        u64::from(self.limit)
    }
}

/// The buffer of a switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pool: u64,
    used: u64,
    is_lossless: bool,
}

impl Buffer {
    /// A buffer of `size` bytes, of which `headroom` are set aside where there is PFC.
    ///
    /// # Errors
    /// A buffer that the headroom fills.
    pub(super) fn new(size: u64, headroom: u64, pfc: bool) -> Result<Self, String> {
        let set_aside = if pfc { headroom } else { 0 };
        match size.checked_sub(set_aside) {
            Some(pool) if pool > 0 => Ok(Self { pool, used: 0, is_lossless: pfc }),
            _ => Err(format!(
                "a buffer of {size} bytes is too small: PFC sets {set_aside} bytes aside in a \
                 switch for what arrives after a pause; give more, shorten the delay, or turn PFC \
                 off"
            )),
        }
    }

    /// Bytes of the pool that are in use.
    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Decides about a packet of `bytes` that came by `ingress`, and is to stand in a line of
    /// `depth` bytes; takes it in.
    #[inline]
    pub(super) fn admit(&mut self, ingress: &mut Ingress, bytes: u32, depth: u32) -> Verdict {
        let (size, free) = (u64::from(bytes), self.pool - self.used);
        let fits = if self.is_lossless {
            ingress.headroom == 0
                && size <= free
                && u64::from(ingress.shared) + size <= free >> PART
        } else {
            u64::from(depth) + size <= free
        };
        if fits {
            ingress.shared += bytes;
            self.used += size;
            return Verdict::Shared;
        }
        if !self.is_lossless || ingress.headroom + bytes > ingress.limit {
            return Verdict::Drop;
        }
        ingress.headroom += bytes;
        Verdict::Headroom { pause: !std::mem::replace(&mut ingress.pausing, true) }
    }

    /// A packet has left. Returns whether the other end of its ingress port may go on.
    #[inline]
    pub(super) fn release(&mut self, ingress: &mut Ingress, bytes: u32, in_headroom: bool) -> bool {
        if in_headroom {
            ingress.headroom -= bytes;
        } else {
            ingress.shared -= bytes;
            self.used -= u64::from(bytes);
        }
        if !ingress.pausing || ingress.headroom > 0 {
            return false;
        }
        let part = (self.pool - self.used) >> PART;
        let goes_on = ingress.shared == 0 || u64::from(ingress.shared) + SLACK <= part;
        ingress.pausing = !goes_on;
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate() -> Rate {
        Rate::new(100).unwrap()
    }

    /// A buffer with PFC, and a port of it with 8 packets of headroom.
    fn lossless() -> (Buffer, Ingress) {
        let ingress = Ingress { limit: 8_000, ..Ingress::default() };
        (Buffer::new(88_000, 8_000, true).unwrap(), ingress)
    }

    #[test]
    fn marks_begin_at_kmin_and_are_certain_at_kmax() {
        let ecn = "100k,200k,0.5".parse().unwrap();
        let (marker, mut rng) = (Marker::new(Some(ecn), rate(), rate()), Rng::new(3));
        let mut marked = |depth| (0..10_000).filter(|_| marker.marks(depth, &mut rng)).count();
        assert_eq!([marked(0), marked(100_000)], [0, 0]);
        // A quarter of the packets at the middle of the ramp.
        assert!((2_300..2_700).contains(&marked(150_000)));
        assert!((4_800..5_100).contains(&marked(199_000)));
        assert_eq!(marked(200_000), 10_000);
    }

    #[test]
    fn thresholds_are_those_of_the_links_rate() {
        let ecn = "100k,100k,1".parse().unwrap();
        let fast = Marker::new(Some(ecn), rate(), rate().fourfold());
        let mut rng = Rng::new(1);
        assert!(!fast.marks(400_000, &mut rng) && fast.marks(400_001, &mut rng));
        assert!(!Marker::new(None, rate(), rate()).marks(u32::MAX, &mut rng));
    }

    #[test]
    fn a_port_beyond_its_part_pauses_once_and_goes_on_when_it_is_below() {
        let (mut buffer, mut ingress) = lossless();
        let mut taken = Vec::new();
        let pause = loop {
            match buffer.admit(&mut ingress, 1_000, 0) {
                Verdict::Headroom { pause } => break pause,
                verdict => taken.push(verdict),
            }
        };
        // The ninth packet made it 9,000 bytes, 1/8 of the 72,000 that were free before it.
        assert_eq!((pause, taken.len()), (true, 9));
        assert_eq!(buffer.admit(&mut ingress, 1_000, 0), Verdict::Headroom { pause: false });
        assert!(!buffer.release(&mut ingress, 1_000, false), "headroom is in use");
        assert!(!buffer.release(&mut ingress, 1_000, true));
        assert!(!buffer.release(&mut ingress, 1_000, true), "not yet below by the slack");
        let mut rest = 7;
        while !buffer.release(&mut ingress, 1_000, false) {
            rest -= 1;
        }
        assert_eq!(rest, 6, "6,000 bytes and 3,000 are less than 1/8 of 74,000");
    }

    #[test]
    fn what_exceeds_the_headroom_is_lost_and_is_counted_nowhere() {
        let (mut buffer, mut ingress) = lossless();
        let verdicts: Vec<_> = (0..20).map(|_| buffer.admit(&mut ingress, 1_000, 0)).collect();
        assert_eq!(verdicts.iter().filter(|v| **v == Verdict::Drop).count(), 20 - 9 - 8);
        assert_eq!((buffer.used(), ingress.headroom), (9_000, 8_000));
    }

    #[test]
    fn without_pfc_a_line_has_at_most_what_is_free() {
        let (mut buffer, mut ingress) =
            (Buffer::new(10_000, 8_000, false).unwrap(), Ingress::default());
        let taken = (0..20)
            .take_while(|at| buffer.admit(&mut ingress, 1_000, at * 1_000) == Verdict::Shared)
            .count();
        assert_eq!(taken, 5, "5,000 in the line, 5,000 free");
    }

    #[test]
    fn wrong_values_are_named_with_what_is_allowed() {
        let error = |text: &str| text.parse::<Ecn>().unwrap_err();
        assert!(error("5k,200k").contains("KMIN,KMAX,PMAX"));
        assert!(error("5k,200k,2").contains("PMAX is `2`, allowed: 0 to 1, or 0% to 100%"));
        assert!(error("9k,2k,0.1").contains("KMIN is at most KMAX"));
        assert!(Buffer::new(100, 200, true).unwrap_err().contains("200 bytes aside"));
    }
}
