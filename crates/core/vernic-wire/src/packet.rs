//! A whole transport packet: BTH, extension headers, payload, pad.
//!
//! Owns the two ways to hold one: [`Packet`], a view that the receive path checks once and then
//! reads lazily, and [`Headers`], a repr that the send path fills in and emits. Both take from the
//! opcode table which headers there are and where. The ICRC is not part of either: it depends on
//! the IP header and belongs to the link, see [`crate::icrc`].
//!
//! ```text
//!   +-----+-------------------------+---------+----------+------+
//!   | BTH | 0 to 4 extension headers| payload | pad 0..3 | ICRC |
//!   +-----+-------------------------+---------+----------+------+
//!   |<------------------ transport bytes --------------->|
//!   |<-------- header_len --------->|          the length of all is a multiple of 4
//! ```

use core::fmt;

use crate::error::saturate;
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, HeaderSet, Ieth, ImmDt, Opcode, OpcodeInfo,
    ParseError, Psn, Qpn, Rdeth, Reth, Xrceth,
};

/// Bytes of pad that bring `payload_len` to a multiple of 4, 0 to 3.
#[inline]
pub const fn pad_of(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

/// A checked view of one received transport packet.
///
/// [`Packet::parse`] checks opcode, version, lengths and pad; after it every accessor is infallible
/// and reads only the bytes it needs.
///
/// ```
/// use vernic_wire::{Opcode, Packet, Reth};
/// let bytes = [
///     0x0c, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 7, // BTH: RC READ request, PSN 7
///     0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 5, 0, 0, 2, 0, // RETH
/// ];
/// let packet = Packet::parse(&bytes)?;
/// assert_eq!(packet.opcode(), Opcode::RC_READ_REQUEST);
/// assert_eq!(packet.psn().value(), 7);
/// assert_eq!(packet.reth().map(|reth| (reth.addr, reth.length)), Some((0x1000, 512)));
/// # Ok::<(), vernic_wire::ParseError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    bth: &'a [u8; Bth::LEN],
    bytes: &'a [u8],
    payload: &'a [u8],
    info: &'static OpcodeInfo,
}

/// Defines the accessors of extension headers: the table's offset is 0 where a header is absent.
macro_rules! extension_accessors {
    ($($(#[$doc:meta])* $name:ident: $header:ident;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub fn $name(&self) -> Option<$header> {
                let at = self.info.at.$name as usize;
                if at == 0 {
                    return None;
                }
                Some($header::from_bytes(self.bytes.get(at..)?.first_chunk()?))
            }
        )*
    };
}

impl<'a> Packet<'a> {
    /// Checks `transport`: BTH to pad, without the ICRC.
    ///
    /// A request whose payload its opcode forbids parses, for its responder has to refuse it by
    /// name (IBTA 9.7.4.1.6); [`payload_fits`](Self::payload_fits) tells.
    ///
    /// # Errors
    /// Any [`ParseError`] but `Field`; each is a reason to drop the packet.
    #[inline]
    pub fn parse(transport: &'a [u8]) -> Result<Self, ParseError> {
        let Some((bth, rest)) = transport.split_first_chunk::<{ Bth::LEN }>() else {
            return Err(ParseError::truncated(Bth::LEN, transport.len()));
        };
        let info = Opcode(bth[0]).info();
        if !Opcode(bth[0]).is_known() {
            return Err(ParseError::UnknownOpcode(bth[0]));
        }
        if bth[1] & 0x0F != 0 {
            return Err(ParseError::BadVersion(bth[1] & 0x0F));
        }
        let extensions = info.header_len as usize - Bth::LEN;
        let Some((_, body)) = rest.split_at_checked(extensions) else {
            return Err(ParseError::truncated(info.header_len as usize, transport.len()));
        };
        let pad = bth[1] >> 4 & 3;
        let payload = match body.len().checked_sub(pad as usize) {
            Some(len) if body.len() % 4 == 0 => &body[..len],
            _ => return Err(ParseError::BadPad { pad, len: saturate(body.len()) }),
        };
        if !info.is_request() && !info.payload_fits(payload.len()) {
            let len = saturate(payload.len());
            return Err(ParseError::PayloadLength { opcode: info.name, len });
        }
        Ok(Self { bth, bytes: transport, payload, info })
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        Bth::from_bytes(self.bth)
    }
    /// What the packet is; always a known opcode.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        Opcode(self.bth[0])
    }
    /// The opcode's row.
    #[inline]
    pub fn info(&self) -> &'static OpcodeInfo {
        self.info
    }
    /// Queue pair that the packet is for.
    #[inline]
    pub fn dest_qpn(&self) -> Qpn {
        Qpn::new(u32::from_be_bytes([0, self.bth[5], self.bth[6], self.bth[7]]))
    }
    /// Place of the packet in its flow.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(u32::from_be_bytes([0, self.bth[9], self.bth[10], self.bth[11]]))
    }
    /// Whether the sender asks for an acknowledge now.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.bth[8] & 0x80 != 0
    }
    /// Whether the sender asks for a solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bth[1] & 0x80 != 0
    }
    /// Payload, pad not included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
    /// Whether the opcode allows a payload of this length; always so except on a request.
    #[inline]
    pub fn payload_fits(&self) -> bool {
        self.info.payload_fits(self.payload.len())
    }
    /// Pad bytes behind the payload, 0 to 3 of any value.
    #[inline]
    pub fn padding(&self) -> &'a [u8] {
        self.bytes.get(self.info.header_len as usize + self.payload.len()..).unwrap_or_default()
    }
    /// All bytes of the packet, BTH to pad.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    extension_accessors! {
        /// The RDETH, if the opcode has one.
        rdeth: Rdeth;
        /// The DETH, if the opcode has one.
        deth: Deth;
        /// The XRCETH, if the opcode has one.
        xrceth: Xrceth;
        /// The FETH, if the opcode has one.
        feth: Feth;
        /// The RETH, if the opcode has one.
        reth: Reth;
        /// The AtomicETH, if the opcode has one.
        atomic: AtomicEth;
        /// The AETH, if the opcode has one.
        aeth: Aeth;
        /// The AtomicAckETH, if the opcode has one.
        atomic_ack: AtomicAckEth;
        /// The immediate data, if the opcode has any.
        imm: ImmDt;
        /// The IETH, if the opcode has one.
        ieth: Ieth;
    }

    /// All headers, read.
    pub fn headers(&self) -> Headers {
        Headers {
            bth: self.bth(),
            rdeth: self.rdeth(),
            deth: self.deth(),
            xrceth: self.xrceth(),
            feth: self.feth(),
            reth: self.reth(),
            atomic: self.atomic(),
            aeth: self.aeth(),
            atomic_ack: self.atomic_ack(),
            imm: self.imm(),
            ieth: self.ieth(),
        }
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} payload={}", self.headers(), self.payload.len())
    }
}
impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The headers of one packet, to be filled in and emitted.
///
/// ```
/// use vernic_wire::{Bth, Headers, Opcode, Packet, Psn, Qpn, Reth, Rkey};
/// let mut headers = Headers::new(Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(0x11), Psn::new(7)));
/// headers.reth = Some(Reth { addr: 0x1000, rkey: Rkey(5), length: 4 });
/// let mut buf = [0; 64];
/// let len = headers.emit(&mut buf);
/// buf[len..len + 4].copy_from_slice(b"data");
/// assert_eq!(Packet::parse(&buf[..len + 4]).unwrap().headers(), headers);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "one field per header, each named as its type")]
pub struct Headers {
    pub bth: Bth,
    pub rdeth: Option<Rdeth>,
    pub deth: Option<Deth>,
    pub xrceth: Option<Xrceth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    pub atomic_ack: Option<AtomicAckEth>,
    pub imm: Option<ImmDt>,
    pub ieth: Option<Ieth>,
}

/// Calls `$do!(field)` for every extension header.
macro_rules! for_each_extension {
    ($do:ident) => {
        $do!(rdeth);
        $do!(deth);
        $do!(xrceth);
        $do!(feth);
        $do!(reth);
        $do!(atomic);
        $do!(aeth);
        $do!(atomic_ack);
        $do!(imm);
        $do!(ieth);
    };
}

impl Headers {
    /// The longest headers that any opcode has, in bytes.
    pub const MAX_LEN: usize = 52;

    /// A BTH and no extension header yet.
    #[inline]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            rdeth: None,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }
    /// Bytes that [`Headers::emit`] writes: what the opcode prescribes, 12 to 52.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> usize {
        self.bth.opcode.info().header_len as usize
    }
    /// Which extension headers are filled in.
    pub fn present(&self) -> HeaderSet {
        let mut set = HeaderSet::empty();
        set.set(HeaderSet::RDETH, self.rdeth.is_some());
        set.set(HeaderSet::DETH, self.deth.is_some());
        set.set(HeaderSet::XRCETH, self.xrceth.is_some());
        set.set(HeaderSet::FETH, self.feth.is_some());
        set.set(HeaderSet::RETH, self.reth.is_some());
        set.set(HeaderSet::ATOMIC, self.atomic.is_some());
        set.set(HeaderSet::AETH, self.aeth.is_some());
        set.set(HeaderSet::ATOMIC_ACK, self.atomic_ack.is_some());
        set.set(HeaderSet::IMM, self.imm.is_some());
        set.set(HeaderSet::IETH, self.ieth.is_some());
        set
    }
    /// Writes exactly the headers that the opcode prescribes, in the order of the wire, and returns
    /// their length. A header that is prescribed and not filled in is the caller's mistake: it goes
    /// out with its default value, and is caught where debug assertions are on. One that is filled
    /// in and not prescribed is not written.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Headers::len`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let info = self.bth.opcode.info();
        debug_assert!(self.present().contains(info.headers), "{self} lacks {:?}", info.headers);
        self.bth.emit(buf);
        // Nearly all packets have one extension header, which is one of these, or none.
        if info.headers == HeaderSet::RETH {
            self.reth.unwrap_or_default().emit(&mut buf[info.at.reth as usize..]);
        } else if info.headers == HeaderSet::AETH {
            self.aeth.unwrap_or_default().emit(&mut buf[info.at.aeth as usize..]);
        } else if info.header_len as usize > Bth::LEN {
            macro_rules! emit_if_prescribed {
                ($field:ident) => {
                    if info.at.$field != 0 {
                        self.$field.unwrap_or_default().emit(&mut buf[info.at.$field as usize..]);
                    }
                };
            }
            for_each_extension!(emit_if_prescribed);
        }
        info.header_len as usize
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bth, f)?;
        macro_rules! show_if_present {
            ($field:ident) => {
                if let Some(header) = &self.$field {
                    write!(f, " {header}")?;
                }
            };
        }
        for_each_extension!(show_if_present);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
