//! What stands behind the id in a record's first line and behind the far end in a port's line.

use super::link::{self, Offer};
use super::rate::Rate;
use super::scan::{Scan, number};

/// A line that is not of the form that it must have.
pub(super) struct Flaw {
    pub(super) expected: &'static str,
    pub(super) hint: String,
}

impl Flaw {
    pub(super) fn new(expected: &'static str, hint: impl Into<String>) -> Self {
        Self { expected, hint: hint.into() }
    }
}

/// LID and LMC of an end port, as far as a line says.
#[derive(Clone, Copy, Default)]
pub(super) struct Address {
    pub(super) lid: Option<u16>,
    pub(super) lmc: Option<u8>,
}

impl Address {
    /// What counts of the address: LID 0 is none, and LMC 0 without a LID says nothing.
    pub(super) fn known(self) -> Self {
        let lid = self.lid.filter(|lid| *lid != 0);
        Self { lid, lmc: self.lmc.filter(|lmc| lid.is_some() || *lmc != 0) }
    }
}

/// The end of a line.
#[derive(Default)]
pub(super) struct Tail<'a> {
    /// Name in quotes.
    pub(super) name: Option<&'a str>,
    /// Address before the name, or without a name: that of the near end.
    pub(super) near: Address,
    /// Address behind the name: that of the node of this name.
    pub(super) far: Address,
    /// Width and speed of the cable.
    pub(super) offer: Offer,
    /// Modelled rate of the cable.
    pub(super) rate: Option<Rate>,
}

impl<'a> Tail<'a> {
    /// Reads words up to the end of the line. Before `#` each must be known, or be one of `fill`;
    /// behind it, words that are not known are a comment.
    pub(super) fn parse(mut scan: Scan<'a>, fill: &[&str]) -> Result<Self, Flaw> {
        let (mut tail, mut exact, mut is_comment) = (Self::default(), Offer::default(), false);
        loop {
            scan.skip_space();
            if scan.is_empty() {
                tail.offer = exact.or(tail.offer);
                return Ok(tail);
            }
            if scan.eat("#") {
                is_comment = true;
                continue;
            }
            if is_comment && let Some(name) = scan.between("\"", '"') {
                tail.name = tail.name.or(Some(name));
                continue;
            }
            let word = scan.word();
            let mut ahead = scan;
            ahead.skip_space();
            let value = ahead.word();
            // In a comment, a word is what it seems to be if its value looks like one.
            let is_number = value.starts_with(|c: char| c.is_ascii_digit());
            let takes_value = matches!(word, "lid" | "lmc" | "rate") && (is_number || !is_comment);
            if takes_value {
                tail.take(word, value)?;
                scan = ahead;
            } else if is_link(word) {
                exact = link::parse(word).ok_or_else(no_link)?;
            } else {
                match word.split_once('=') {
                    Some((key @ ("w" | "s"), value)) => tail.mask(key, value, is_comment)?,
                    _ if is_comment || fill.contains(&word) => {}
                    _ => return Err(Flaw::new(OPTIONS, "a comment begins with #")),
                }
            }
        }
    }

    /// Takes the value of `lid`, `lmc` or `rate`.
    fn take(&mut self, word: &str, value: &str) -> Result<(), Flaw> {
        let address = if self.name.is_some() { &mut self.far } else { &mut self.near };
        match word {
            "rate" => {
                let rate = value.parse();
                self.rate =
                    Some(rate.map_err(|why| {
                        Flaw::new("a rate behind the word `rate`", format!("{why}"))
                    })?);
            }
            "lid" => {
                let lid = number(value, u64::from(u16::MAX)).ok_or_else(|| {
                    Flaw::new(
                        "a LID behind the word `lid`",
                        "LIDs of ports are 1 to 49151, 0: none",
                    )
                })?;
                address.lid = Some(lid as u16);
            }
            _ => {
                let lmc = number(value, u64::from(u8::MAX))
                    .ok_or_else(|| Flaw::new("an LMC behind the word `lmc`", "LMCs are 0 to 7"))?;
                address.lmc = Some(lmc as u8);
            }
        }
        Ok(())
    }

    /// Takes a mask of widths or speeds. In a comment, as `ibnetdiscover -f` prints it, it may be
    /// one that `ibsim` does not know.
    fn mask(&mut self, key: &str, value: &str, is_comment: bool) -> Result<(), Flaw> {
        let (mask, limit) = match key {
            "w" => (&mut self.offer.width, Offer::WIDTHS),
            _ => (&mut self.offer.speed, Offer::SPEEDS),
        };
        match number(value, limit).filter(|value| *value != 0) {
            Some(value) => *mask = Some(value as u8),
            None if is_comment => {}
            None => return Err(Flaw::new(MASKS, MASKS_HINT)),
        }
        Ok(())
    }
}

const OPTIONS: &str = "`w=`, `s=`, `rate`, `lid`, `lmc`, `4xQDR` or # behind the ids of a line";

/// The form of masks of widths and speeds.
pub(super) const MASKS: &str = "a width of 1 to 15 or a speed of 1 to 7, as masks";
/// What the bits of masks mean.
pub(super) const MASKS_HINT: &str = "widths: 1 is 1x, 2 is 4x, 4 is 8x, 8 is 12x; speeds: 1 is SDR, 2 is DDR, 4 is QDR; others as \
     4xFDR behind #";

/// Whether a word looks like `4xQDR`, known or not.
fn is_link(word: &str) -> bool {
    word.split_once('x').is_some_and(|(lanes, speed)| {
        !lanes.is_empty()
            && lanes.bytes().all(|b| b.is_ascii_digit())
            && speed.starts_with(|c: char| c.is_ascii_uppercase())
    })
}

fn no_link() -> Flaw {
    Flaw::new(
        "1x, 4x, 8x or 12x of SDR, DDR, QDR, FDR or EDR, as 4xQDR",
        "other cables are not modelled: write the nearest of these, and its rate as `rate 200g`",
    )
}
