//! One line of a text, read from left to right.

/// What is left of a line.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a>(&'a str);

impl<'a> Scan<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Self(line)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn skip_space(&mut self) {
        self.0 = self.0.trim_start();
    }

    /// Whether `text` is next; if so, it is taken.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// Takes what comes before the next white space.
    pub(super) fn word(&mut self) -> &'a str {
        let at = self.0.find(char::is_whitespace).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(at);
        self.0 = rest;
        word
    }

    /// Takes what stands between `open`, which is next, and the next `close`.
    pub(super) fn between(&mut self, open: &str, close: char) -> Option<&'a str> {
        let (inside, rest) = self.0.strip_prefix(open)?.split_once(close)?;
        self.0 = rest;
        Some(inside)
    }
}

/// A number in decimal, or in hexadecimal after `0x`, up to `limit`.
pub(super) fn number(text: &str, limit: u64) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => hex(digits),
        None if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        None => None,
    }
    .filter(|value| *value <= limit)
}

/// Hexadecimal digits, with or without `0x` before them.
pub(super) fn guid(text: &str) -> Option<u64> {
    hex(text.strip_prefix("0x").unwrap_or(text))
}

fn hex(digits: &str) -> Option<u64> {
    let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hex { u64::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart_from_left_to_right() {
        let mut scan = Scan::new("[1](ab) \"x y\" rest");
        assert_eq!(scan.between("[", ']'), Some("1"));
        assert!(scan.eat("(ab)") && !scan.eat("("));
        scan.skip_space();
        assert_eq!((scan.between("\"", '"'), scan.between("(", ')')), (Some("x y"), None));
        scan.skip_space();
        assert_eq!((scan.word(), scan.is_empty()), ("rest", true));
    }

    #[test]
    fn numbers_have_digits_and_nothing_else() {
        assert_eq!(
            (number("12", 12), number("0x1F", 99), number("13", 12)),
            (Some(12), Some(31), None)
        );
        assert_eq!(
            (guid("0xff"), guid("FF"), guid("1ffffffffffffffff")),
            (Some(255), Some(255), None)
        );
        for text in ["", "+1", "-1", "1 ", "0x", "0x+1", "x", "99999999999999999999"] {
            assert_eq!((number(text, u64::MAX), text), (None, text));
        }
    }
}
