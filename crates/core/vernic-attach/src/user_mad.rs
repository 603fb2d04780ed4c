//! A management datagram of a program, with all that is said about it: as the kernel's `user_mad`
//! has it, for both directions.
//!
//! The datagram may be longer than a message (RMPP: the server of the fabric does segments and
//! acknowledgements). It travels in parts then, one after the other:
//!
//! ```text
//!  byte   0..3   4..7    8
//!       +------+-------+------------------------------------------+
//!       | head | total | agent, status, ... , datagram            |   the first part
//!       +------+-------+------------------------------------------+
//!       | head | bytes of the datagram                            |   those that follow
//!       +------+--------------------------------------------------+
//! ```

use vernic_wire::mad::{MadAddress, MadGrh};
use vernic_wire::{Gid, Lid, Qkey, Qpn, ServiceLevel};

use crate::bytes::{Reader, Writer};
use crate::error::AttachError;
use crate::mad::AgentId;
use crate::{HEAD, MAX_MESSAGE};

const FIRST: u8 = 0x30;
const MORE: u8 = 0x31;

/// Bytes of the longest datagram: some 250,000 records of a table of the subnet administrator.
pub const MAX_MAD: usize = 32 * 1024 * 1024;

/// A datagram of a program, or for one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UserMad {
    /// The agent that sends or receives.
    pub agent: AgentId,
    /// Error (`errno`) with which a sent datagram comes back, `ETIMEDOUT` if no answer came; 0 of
    /// one that was received.
    pub status: u32,
    /// How long an answer to it is waited for; 0 if none is expected, or of one received.
    pub timeout_ms: u32,
    /// How often it is repeated when no answer comes.
    pub retries: u32,
    /// Address of the other end.
    pub address: MadAddress,
    /// The datagram, header and all. With RMPP: one header and the whole payload.
    pub mad: Vec<u8>,
}

impl UserMad {
    /// Returns the messages that carry the datagram, in their order.
    ///
    /// # Errors
    /// [`AttachError::TooLong`] if it has more than [`MAX_MAD`] bytes.
    pub fn messages(&self) -> Result<impl Iterator<Item = Vec<u8>> + '_, AttachError> {
        let mad = self.mad.as_slice();
        if mad.len() > MAX_MAD {
            return Err(AttachError::TooLong { bytes: mad.len() });
        }
        let first = self.write_head(mad.len());
        let here = mad.len().min(MAX_MESSAGE - first.len());
        let first = [first.as_slice(), &mad[..here]].concat();
        let more = mad[here..].chunks(MAX_MESSAGE - HEAD);
        Ok(std::iter::once(first).chain(more.map(|part| Writer::new(MORE).bytes(part).done())))
    }
    fn write_head(&self, total: usize) -> Vec<u8> {
        let to = Writer::new(FIRST).u32(total as u32).u32(self.agent.0).u32(self.status);
        let to = to.u32(self.timeout_ms).u32(self.retries);
        let address = &self.address;
        let to = to.u32(address.qpn.value()).u32(address.qkey.0).u16(address.lid.0);
        let to = to.u8(address.service_level.value()).u8(address.path_bits).u16(address.pkey_index);
        let to = match &address.grh {
            None => to.u8(0),
            Some(grh) => {
                let to = to.u8(1).bytes(&grh.gid.0).u8(grh.gid_index).u32(grh.flow_label);
                to.u8(grh.hop_limit).u8(grh.traffic_class)
            }
        };
        to.done()
    }
    /// Reads a first part: the datagram so far, and its length in all.
    fn read_head(mut from: Reader<'_>) -> Option<(Self, usize)> {
        let total = from.u32()? as usize;
        let (agent, status) = (AgentId(from.u32()?), from.u32()?);
        let (timeout_ms, retries) = (from.u32()?, from.u32()?);
        let mut address = MadAddress {
            qpn: Qpn::new(from.u32().filter(|qpn| *qpn >> 24 == 0)?),
            qkey: Qkey(from.u32()?),
            lid: Lid(from.u16()?),
            service_level: ServiceLevel::new(from.u8()?),
            path_bits: from.u8()?,
            pkey_index: from.u16()?,
            grh: None,
        };
        if from.boolean()? {
            address.grh = Some(MadGrh {
                gid: Gid(from.array()?),
                gid_index: from.u8()?,
                flow_label: from.u32()?,
                hop_limit: from.u8()?,
                traffic_class: from.u8()?,
            });
        }
        let mad = from.rest().to_vec();
        let fits = total <= MAX_MAD && mad.len() <= total;
        fits.then_some((Self { agent, status, timeout_ms, retries, address, mad }, total))
    }
}

/// Puts datagrams together whose parts come one after the other.
#[derive(Debug, Default)]
pub struct Assembler {
    begun: Option<(UserMad, usize)>,
}

/// A part that does not fit what came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongPart;

impl Assembler {
    /// Takes a message, and returns the datagram if it is complete.
    ///
    /// # Errors
    /// [`WrongPart`]: the connection cannot be used any more.
    pub fn handle(&mut self, message: &[u8]) -> Result<Option<UserMad>, WrongPart> {
        let (kind, body) = Reader::new(message).ok_or(WrongPart)?;
        let (mad, total) = match (kind, self.begun.take()) {
            (FIRST, None) => UserMad::read_head(body).ok_or(WrongPart)?,
            (MORE, Some((mut begun, total))) => {
                let part = body.rest();
                if part.is_empty() || part.len() > total - begun.mad.len() {
                    return Err(WrongPart);
                }
                begun.mad.extend_from_slice(part);
                (begun, total)
            }
            _ => return Err(WrongPart),
        };
        if mad.mad.len() == total {
            return Ok(Some(mad));
        }
        self.begun = Some((mad, total));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(len: usize, grh: bool) -> UserMad {
        let global = MadGrh {
            gid: Gid([7; 16]),
            gid_index: 1,
            flow_label: 0xF_FFFF,
            hop_limit: 64,
            traffic_class: 9,
        };
        UserMad {
            agent: AgentId(3),
            status: libc::ETIMEDOUT as u32,
            timeout_ms: 1000,
            retries: 3,
            address: MadAddress {
                qpn: Qpn::GSI,
                qkey: Qkey(0x8001_0000),
                lid: Lid(17),
                service_level: ServiceLevel::new(3),
                path_bits: 1,
                pkey_index: 2,
                grh: grh.then_some(global),
            },
            mad: (0..len).map(|i| i as u8).collect(),
        }
    }

    #[test]
    fn datagrams_of_any_length_come_out_whole() {
        let mut assembler = Assembler::default();
        for (len, parts) in [(0, 1), (256, 1), (65_000, 1), (MAX_MESSAGE, 2), (300_000, 5)] {
            for grh in [false, true] {
                let mad = some(len, grh);
                let messages: Vec<_> = mad.messages().unwrap().collect();
                assert_eq!(messages.len(), parts);
                for (i, message) in messages.iter().enumerate() {
                    assert!(message.len() <= MAX_MESSAGE);
                    let whole = (i + 1 == parts).then(|| mad.clone());
                    assert_eq!(assembler.handle(message), Ok(whole));
                }
            }
        }
    }

    #[test]
    fn a_datagram_that_is_too_long_is_refused_whole() {
        let mut mad = some(MAX_MAD, false);
        assert!(mad.messages().is_ok());
        mad.mad.push(0);
        let error = mad.messages().map(drop).unwrap_err();
        assert_eq!(error.errno(), libc::EMSGSIZE);
        assert!(error.to_string().contains("33554433 bytes"), "{error}");
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let messages: Vec<_> = some(100_000, false).messages().unwrap().collect();
        let [first, more] = messages.as_slice() else { panic!("two parts") };
        let after = |before: &[&[u8]], last: &[u8]| {
            let mut assembler = Assembler::default();
            for message in before {
                assert_eq!(assembler.handle(message), Ok(None));
            }
            assembler.handle(last)
        };
        assert_eq!(after(&[], more), Err(WrongPart), "no first part");
        assert_eq!(after(&[first], first), Err(WrongPart), "two first parts");
        assert_eq!(after(&[first], &[more.as_slice(), &[0]].concat()), Err(WrongPart), "too long");
        assert_eq!(after(&[first], &[MORE, 0, 0, 0]), Err(WrongPart), "empty");
        let mut endless = first.clone();
        endless[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(after(&[], &endless), Err(WrongPart), "longer than any");
        for len in 0..35 {
            assert_eq!(after(&[], &first[..len]), Err(WrongPart), "{len}");
        }
    }
}
