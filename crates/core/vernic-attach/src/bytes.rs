//! Reading and writing the numbers and texts of messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::HEAD;

/// Bytes of the longest text in a message: more would leave no room for the rest.
const MAX_TEXT: usize = 32 * 1024;

/// A message that is being written.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(kind: u8) -> Self {
        Self(vec![kind, 0, 0, 0])
    }
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    /// Writes an IP address: its version, then 16 bytes; version 0 of none.
    pub(crate) fn ip(self, ip: Option<IpAddr>) -> Self {
        match ip {
            None => self.u8(0).bytes(&[0; 16]),
            Some(IpAddr::V4(ip)) => self.u8(4).bytes(&[0; 12]).bytes(&ip.octets()),
            Some(IpAddr::V6(ip)) => self.u8(6).bytes(&ip.octets()),
        }
    }
    /// Writes a text behind its length. One that is too long is cut.
    pub(crate) fn text(self, text: &str) -> Self {
        let end = (0..=text.len().min(MAX_TEXT)).rev().find(|at| text.is_char_boundary(*at));
        let text = &text[..end.unwrap_or(0)];
        self.u16(text.len() as u16).bytes(text.as_bytes())
    }
    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// A message that is being read. Every method returns `None` if the bytes end before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the kind of a message, and its body.
    pub(crate) fn new(message: &'a [u8]) -> Option<(u8, Self)> {
        let (head, body) = message.split_first_chunk::<HEAD>()?;
        (head[1..] == [0; HEAD - 1]).then_some((head[0], Self(body)))
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn boolean(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
    /// Reads an IP address, or that there is none.
    pub(crate) fn ip(&mut self) -> Option<Option<IpAddr>> {
        let (version, bytes) = (self.u8()?, self.array::<16>()?);
        let [zeros @ .., a, b, c, d] = bytes;
        match version {
            0 if bytes == [0; 16] => Some(None),
            4 if zeros == [0; 12] => Some(Some(Ipv4Addr::new(a, b, c, d).into())),
            6 => Some(Some(Ipv6Addr::from(bytes).into())),
            _ => None,
        }
    }
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let len = usize::from(self.u16()?);
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        if len > MAX_TEXT { None } else { std::str::from_utf8(text).ok() }
    }
    /// Returns all that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
    /// Returns `value` if nothing is left.
    pub(crate) fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}
