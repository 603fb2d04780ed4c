//! RDMAP opcodes: 4 bits that say what a message is, and one table of all 16 (RFC 5040, 4.1, 4.2;
//! RFC 7306, 4; code points registered by RFC 6580, 3.4).
//!
//! The table is figures 4 and 5 of RFC 5040 with figures 2 and 3 of RFC 7306: which DDP model each
//! message uses, to which queue it goes, which RDMAP header follows, whether it carries payload.

use core::fmt;

use super::queue::QueueNumber;

/// What an RDMAP message is. Any value is data; [`RdmapOpcode::info`] tells what it means.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RdmapOpcode(pub u8);

/// The header between a DDP header and a message's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RdmapHeader {
    /// None.
    None,
    /// [`ReadRequest`](super::ReadRequest).
    ReadRequest,
    /// [`Terminate`](super::Terminate).
    Terminate,
    /// [`Immediate`](super::Immediate).
    Immediate,
    /// [`AtomicRequest`](super::AtomicRequest).
    AtomicRequest,
    /// [`AtomicResponse`](super::AtomicResponse).
    AtomicResponse,
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmapInfo {
    /// The opcode.
    pub opcode: RdmapOpcode,
    /// Name, as in traces.
    pub name: &'static str,
    /// The queue of an untagged message; `None` for a tagged one.
    pub queue: Option<QueueNumber>,
    /// Which header follows the DDP header.
    pub header: RdmapHeader,
    /// It carries payload of the application.
    pub payload: bool,
    /// Asks the receiver for a solicited event.
    pub solicited: bool,
    /// The `Invalidate STag` field is valid.
    pub invalidates: bool,
}

impl RdmapInfo {
    /// Whether it uses the tagged buffer model.
    pub const fn is_tagged(&self) -> bool {
        self.queue.is_none()
    }
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $value:literal $name:ident, $queue:ident, $header:ident $(, $flag:ident)*;)*) => {
        impl RdmapOpcode {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }

        /// A row for each known opcode, `None` for the reserved ones.
        static TABLE: [Option<RdmapInfo>; 16] = {
            let mut table = [None; 16];
            $(
                #[allow(unused_mut)]
                let mut info = RdmapInfo {
                    opcode: RdmapOpcode($value),
                    name: stringify!($name),
                    queue: opcodes!(@queue $queue),
                    header: RdmapHeader::$header,
                    payload: false,
                    solicited: false,
                    invalidates: false,
                };
                $(info.$flag = true;)*
                table[$value] = Some(info);
            )*
            table
        };
    };
    (@queue tagged) => { None };
    (@queue $queue:ident) => { Some(QueueNumber::$queue) };
}

opcodes! {
    /// RDMA WRITE.
    0x0 WRITE, tagged, None, payload;
    /// RDMA READ request.
    0x1 READ_REQUEST, READ_REQUEST, ReadRequest;
    /// RDMA READ response.
    0x2 READ_RESPONSE, tagged, None, payload;
    /// SEND.
    0x3 SEND, SEND, None, payload;
    /// SEND with invalidate.
    0x4 SEND_INV, SEND, None, payload, invalidates;
    /// SEND with solicited event.
    0x5 SEND_SE, SEND, None, payload, solicited;
    /// SEND with solicited event and invalidate.
    0x6 SEND_SE_INV, SEND, None, payload, solicited, invalidates;
    /// Terminate.
    0x7 TERMINATE, TERMINATE, Terminate;
    /// Immediate data.
    0x8 IMMEDIATE, SEND, Immediate;
    /// Immediate data with solicited event.
    0x9 IMMEDIATE_SE, SEND, Immediate, solicited;
    /// Atomic operation request.
    0xA ATOMIC_REQUEST, READ_REQUEST, AtomicRequest;
    /// Atomic operation response.
    0xB ATOMIC_RESPONSE, ATOMIC_RESPONSE, AtomicResponse;
}

impl RdmapOpcode {
    /// Its row; `None` where nobody has defined it.
    #[inline]
    pub fn info(self) -> Option<&'static RdmapInfo> {
        TABLE[usize::from(self.0 & 0x0F)].as_ref()
    }
    /// The SEND with these properties.
    pub const fn send(solicited: bool, invalidates: bool) -> Self {
        match (solicited, invalidates) {
            (false, false) => Self::SEND,
            (false, true) => Self::SEND_INV,
            (true, false) => Self::SEND_SE,
            (true, true) => Self::SEND_SE_INV,
        }
    }
    /// Immediate data with this property.
    pub const fn immediate(solicited: bool) -> Self {
        if solicited { Self::IMMEDIATE_SE } else { Self::IMMEDIATE }
    }
}

impl fmt::Debug for RdmapOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for RdmapOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.pad(info.name),
            None => write!(f, "reserved opcode {:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_stands_at_its_opcode_and_twelve_are_known() {
        for value in 0..16 {
            if let Some(info) = RdmapOpcode(value).info() {
                assert_eq!(info.opcode, RdmapOpcode(value));
            }
        }
        assert_eq!((0..16).filter(|&value| RdmapOpcode(value).info().is_some()).count(), 12);
    }

    #[test]
    fn only_write_and_read_response_are_tagged() {
        let tagged = (0..16).filter_map(|value| RdmapOpcode(value).info());
        let tagged = tagged.filter(|info| info.is_tagged()).map(|info| info.opcode);
        assert!(tagged.eq([RdmapOpcode::WRITE, RdmapOpcode::READ_RESPONSE]));
    }

    #[test]
    fn a_send_is_found_by_its_properties() {
        for (solicited, invalidates) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let info = RdmapOpcode::send(solicited, invalidates).info().unwrap();
            assert_eq!((info.solicited, info.invalidates), (solicited, invalidates));
            assert_eq!((info.queue, info.payload), (Some(QueueNumber::SEND), true));
        }
        assert!(RdmapOpcode::immediate(true).info().unwrap().solicited);
        assert!(!RdmapOpcode::immediate(false).info().unwrap().solicited);
    }

    #[test]
    fn reserved_opcodes_have_a_name_that_says_so() {
        use core::fmt::Write;
        #[derive(Default)]
        struct Text([u8; 32], usize);
        impl Write for Text {
            fn write_str(&mut self, s: &str) -> fmt::Result {
                self.0[self.1..self.1 + s.len()].copy_from_slice(s.as_bytes());
                self.1 += s.len();
                Ok(())
            }
        }
        let mut text = Text::default();
        write!(text, "{}", RdmapOpcode(0xC)).unwrap();
        assert_eq!(&text.0[..text.1], b"reserved opcode 0xc");
    }
}
