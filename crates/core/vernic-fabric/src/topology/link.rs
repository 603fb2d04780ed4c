//! Widths and speeds of cables as text: `4xQDR` of `ibnetdiscover`, and masks of `ibsim`.

use crate::attributes::{LinkSpeed, LinkWidth};

/// Widths, least first: the lanes and the bit of PortInfo.LinkWidthEnabled (IBTA 14.2.5.6).
const WIDTHS: [(LinkWidth, &str); 4] =
    [(LinkWidth::X1, "1"), (LinkWidth::X4, "4"), (LinkWidth::X8, "8"), (LinkWidth::X12, "12")];

/// Speeds, least first: the name and a bit, the first three as in PortInfo.LinkSpeedEnabled
/// (IBTA 14.2.5.6), the others of our own.
const SPEEDS: [(LinkSpeed, &str, u8); 5] = [
    (LinkSpeed::Sdr, "SDR", 1),
    (LinkSpeed::Ddr, "DDR", 2),
    (LinkSpeed::Qdr, "QDR", 4),
    (LinkSpeed::Fdr, "FDR", 8),
    (LinkSpeed::Edr, "EDR", 16),
];

/// The widths and speeds that one end of a cable offers, as masks; `None` where it says nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct Offer {
    pub(super) width: Option<u8>,
    pub(super) speed: Option<u8>,
}

impl Offer {
    /// Largest mask of `w=`, as `ibsim` has it.
    pub(super) const WIDTHS: u64 = 15;
    /// Largest mask of `s=`, as `ibsim` has it.
    pub(super) const SPEEDS: u64 = 7;

    /// Takes what `self` leaves out from `defaults`.
    pub(super) fn or(self, defaults: Self) -> Self {
        let (width, speed) = (self.width.or(defaults.width), self.speed.or(defaults.speed));
        Self { width, speed }
    }
}

/// The offer that a text like `4xQDR` makes: exactly that width and speed. `None` for others.
pub(super) fn parse(text: &str) -> Option<Offer> {
    let (lanes, name) = text.split_once('x')?;
    let width = WIDTHS.iter().find(|row| row.1 == lanes)?.0;
    let (_, _, speed) = SPEEDS.iter().find(|row| row.1 == name)?;
    Some(Offer { width: Some(width as u8), speed: Some(*speed) })
}

/// The best width of a mask.
pub(super) fn best_width(mask: u8) -> Option<LinkWidth> {
    WIDTHS.iter().rev().map(|row| row.0).find(|width| *width as u8 & mask != 0)
}

/// The best speed of a mask.
pub(super) fn best_speed(mask: u8) -> Option<LinkSpeed> {
    SPEEDS.iter().rev().find(|row| row.2 & mask != 0).map(|row| row.0)
}

/// Widths of a mask in words, as `1x or 4x`.
pub(super) fn width_words(mask: u8) -> String {
    let rows = WIDTHS.iter().filter(|row| row.0 as u8 & mask != 0);
    rows.map(|row| format!("{}x", row.1)).collect::<Vec<_>>().join(" or ")
}

/// Speeds of a mask in words, as `SDR or DDR`.
pub(super) fn speed_words(mask: u8) -> String {
    let rows = SPEEDS.iter().filter(|row| row.2 & mask != 0);
    rows.map(|row| row.1).collect::<Vec<_>>().join(" or ")
}

/// Lanes of a width, as `4`.
pub(super) fn lanes(width: LinkWidth) -> &'static str {
    WIDTHS.iter().find(|row| row.0 == width).map_or("", |row| row.1)
}

/// Name of a speed, as `QDR`.
pub(super) fn speed_name(speed: LinkSpeed) -> &'static str {
    SPEEDS.iter().find(|row| row.0 == speed).map_or("", |row| row.1)
}

/// The mask of `s=` that `ibsim` reads: it knows no speed above QDR.
pub(super) fn ibsim_speed(speed: LinkSpeed) -> u8 {
    SPEEDS.iter().find(|row| row.0 == speed).map_or(4, |row| row.2.min(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_and_speed_is_read_as_it_is_shown() {
        for (width, ..) in WIDTHS {
            for (speed, ..) in SPEEDS {
                let offer = parse(&format!("{}x{}", lanes(width), speed_name(speed))).unwrap();
                assert_eq!(best_width(offer.width.unwrap()), Some(width));
                assert_eq!(best_speed(offer.speed.unwrap()), Some(speed));
            }
        }
        for text in ["", "x", "4x", "xQDR", "2xHDR", "4xHDR", "4xFDR10", "04xQDR"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn of_a_mask_the_best_counts_and_of_none_nothing() {
        assert_eq!((best_width(3), best_width(15)), (Some(LinkWidth::X4), Some(LinkWidth::X12)));
        assert_eq!((best_speed(7), best_speed(1)), (Some(LinkSpeed::Qdr), Some(LinkSpeed::Sdr)));
        assert_eq!((best_width(0), best_speed(0)), (None, None));
        assert_eq!((width_words(3), speed_words(6)), ("1x or 4x".into(), "DDR or QDR".into()));
        assert_eq!((ibsim_speed(LinkSpeed::Edr), ibsim_speed(LinkSpeed::Ddr)), (4, 2));
    }
}
