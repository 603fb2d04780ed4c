//! What is measured inside the guest, between which ends, and the bars.

/// What is read from a run of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// GB/s.
    Bandwidth,
    /// Microseconds one way, median.
    Latency,
}

/// A program of perftest with its options.
pub(super) struct Work {
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    /// Bytes of a message.
    pub(super) bytes: u64,
    pub(super) figure: Figure,
    /// Messages of a run: some seconds of the slowest ends.
    pub(super) messages: u32,
    /// Whether it runs with CRCs over iWARP, too.
    with_crc: bool,
}

#[rustfmt::skip] // a table reads best one row a line
pub(super) const WORKS: [Work; 7] = [
    work("ib_write_bw 4 KiB",  "ib_write_bw",  4 << 10,  Figure::Bandwidth, 2000, false),
    work("ib_write_bw 64 KiB", "ib_write_bw",  64 << 10, Figure::Bandwidth, 800,  true),
    work("ib_write_bw 1 MiB",  "ib_write_bw",  1 << 20,  Figure::Bandwidth, 100,  true),
    work("ib_send_bw 1 MiB",   "ib_send_bw",   1 << 20,  Figure::Bandwidth, 100,  true),
    work("ib_read_bw 1 MiB",   "ib_read_bw",   1 << 20,  Figure::Bandwidth, 100,  false),
    work("ib_write_lat 8 B",   "ib_write_lat", 8,        Figure::Latency,   500,  false),
    work("ib_send_lat 8 B",    "ib_send_lat",  8,        Figure::Latency,   500,  false),
];

const fn work(
    name: &'static str,
    program: &'static str,
    bytes: u64,
    figure: Figure,
    messages: u32,
    with_crc: bool,
) -> Work {
    Work { name, program, bytes, figure, messages, with_crc }
}

impl Work {
    /// Whether these ends do it.
    pub(super) fn is_between(&self, ends: Ends) -> bool {
        self.with_crc || !matches!(ends, Ends::Siw { crc: true } | Ends::Iwarp { crc: true })
    }

    /// The name of its readings between these ends.
    pub(super) fn series(&self, ends: Ends) -> String {
        format!("{}, {}", self.name, ends.name())
    }

    pub(super) fn unit(&self) -> &'static str {
        match self.figure {
            Figure::Bandwidth => "GB/s",
            Figure::Latency => "us",
        }
    }
}

/// What both ends of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// The kernel's RoCEv2. Both ends are one device, which hands packets from one to the other
    /// itself.
    Rxe,
    /// Vernic's RoCEv2, by UDP.
    Udp,
    /// Vernic as it is without settings: through memory, since both ends are on one host.
    Default,
    /// The kernel's iWARP, with CRCs or without.
    Siw { crc: bool },
    /// Vernic's.
    Iwarp { crc: bool },
}

impl Ends {
    /// In the order of measuring and of the tables: whoever is compared next to each other.
    pub(super) const ALL: [Self; 7] = [
        Self::Rxe,
        Self::Udp,
        Self::Default,
        Self::Siw { crc: false },
        Self::Iwarp { crc: false },
        Self::Siw { crc: true },
        Self::Iwarp { crc: true },
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Udp => "Vernic by UDP",
            Self::Default => "Vernic",
            Self::Siw { crc: false } => "siw",
            Self::Siw { crc: true } => "siw with CRC",
            Self::Iwarp { crc: false } => "Vernic iWARP",
            Self::Iwarp { crc: true } => "Vernic iWARP with CRC",
        }
    }

    /// The ends that these are compared with.
    pub(super) fn reference(self) -> Option<Self> {
        match self {
            Self::Rxe | Self::Siw { .. } => None,
            Self::Udp | Self::Default => Some(Self::Rxe),
            Self::Iwarp { crc } => Some(Self::Siw { crc }),
        }
    }

    /// What these are meant to reach.
    pub(super) fn bar(self, figure: Figure) -> Option<Bar> {
        match (self, figure) {
            (Self::Default, Figure::Bandwidth) => Some(Bar::AtLeast(2.0)),
            (Self::Default, Figure::Latency) => Some(Bar::AtMost(0.7)),
            (Self::Udp, Figure::Latency) => Some(Bar::AtMost(3.0)),
            (Self::Udp | Self::Iwarp { .. }, Figure::Bandwidth) => Some(Bar::AtLeast(1.0)),
            _ => None,
        }
    }
}

/// A bar, in times the figure of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    /// `reached` or `short`.
    pub(super) fn verdict(self, ratio: f64) -> &'static str {
        let is_reached = match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        };
        if is_reached { "reached" } else { "short" }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least} x"),
            Self::AtMost(most) => write!(f, "at most {most} x"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_has_a_bar_is_measured_beside_its_reference() {
        for work in &WORKS {
            for ends in Ends::ALL.into_iter().filter(|ends| work.is_between(*ends)) {
                assert!(ends.reference().is_none_or(|other| work.is_between(other)), "{ends:?}");
            }
        }
    }

    #[test]
    fn bandwidth_is_to_be_more_and_latency_less() {
        assert_eq!(Ends::Default.bar(Figure::Bandwidth).map(|b| b.verdict(1.99)), Some("short"));
        assert_eq!(Ends::Udp.bar(Figure::Bandwidth).map(|bar| bar.verdict(1.99)), Some("reached"));
        assert_eq!(Ends::Udp.bar(Figure::Latency).map(|bar| bar.verdict(3.01)), Some("short"));
        assert_eq!(Ends::Default.bar(Figure::Latency).map(|bar| bar.verdict(0.7)), Some("reached"));
        assert_eq!(Ends::Default.bar(Figure::Latency).map(|bar| bar.verdict(0.71)), Some("short"));
        let iwarp = Ends::Iwarp { crc: true };
        assert_eq!(iwarp.bar(Figure::Bandwidth).map(|bar| bar.verdict(1.0)), Some("reached"));
        assert_eq!((iwarp.bar(Figure::Latency), Ends::Rxe.bar(Figure::Latency)), (None, None));
    }
}
