//! What subnet administration has in common for all records: matches, selectors, answers.

use vernic_wire::mad::{MadHeader, Method};
use vernic_wire::sa::{SaHeader, SaMad, SaStatus, Selected, Selector};
use vernic_wire::{Rmpp, RmppFlags, RmppType};

/// Records of one answer at most: more than the pairs of 648 ports with each other.
pub(super) const MOST_RECORDS: usize = 1 << 19;

/// Returns whether a value is as a request selects it.
pub(super) const fn satisfies(wanted: Selected, value: u8) -> bool {
    match wanted.selector {
        Selector::GREATER => value > wanted.value,
        Selector::LESS => value < wanted.value,
        Selector::EXACTLY => value == wanted.value,
        _ => true,
    }
}

/// The records that answer a request, as bytes.
#[derive(Debug, Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    /// Bytes of a record, and from one to the next.
    len: usize,
    count: usize,
}

impl Records {
    pub(super) fn of(len: usize) -> Self {
        Self { bytes: Vec::new(), len, count: 0 }
    }
    /// Adds a record. Returns whether there is room for another one.
    pub(super) fn push(&mut self, emit: impl FnOnce(&mut [u8])) -> bool {
        let at = self.bytes.len();
        self.bytes.resize(at + self.len.next_multiple_of(8), 0);
        emit(&mut self.bytes[at..]);
        self.count += 1;
        self.count < MOST_RECORDS
    }
    /// Makes the answer to a request: a table, or one record.
    pub(super) fn answer(self, asked: &SaMad) -> Vec<u8> {
        if asked.mad.method == Method::GET_TABLE {
            return self.table(asked);
        }
        match self.count {
            0 => refuse(asked, SaStatus::NO_RECORDS),
            1 => one(asked, &self.bytes),
            _ => refuse(asked, SaStatus::TOO_MANY_RECORDS),
        }
    }
    fn table(self, asked: &SaMad) -> Vec<u8> {
        let rmpp = Rmpp {
            version: Rmpp::VERSION,
            kind: RmppType::DATA,
            flags: RmppFlags::ACTIVE,
            ..Rmpp::default()
        };
        let sa = SaHeader { attribute_offset: SaHeader::offset_of(self.len), ..asked.sa };
        let mut mad = head(asked, rmpp, sa, SaStatus::SUCCESS);
        mad.truncate(HEADERS);
        mad.extend(self.bytes);
        mad
    }
}

/// Bytes of all headers.
const HEADERS: usize = MadHeader::LEN + Rmpp::LEN + SaHeader::LEN;

fn head(asked: &SaMad, rmpp: Rmpp, sa: SaHeader, status: SaStatus) -> Vec<u8> {
    let method = Method(asked.mad.method.0 | 0x80);
    // The answer to a write is that to a read.
    let method = if asked.mad.method == Method::SET { Method::GET_RESP } else { method };
    let mad = MadHeader { method, status: status.to_mad_status(), ..asked.mad };
    let answer = SaMad { mad, rmpp, sa, data: asked.data };
    let mut bytes = vec![0; SaMad::LEN];
    answer.emit(&mut bytes);
    bytes
}

/// Makes an answer with one record.
pub(super) fn one(asked: &SaMad, record: &[u8]) -> Vec<u8> {
    let mut mad = head(asked, Rmpp::default(), asked.sa, SaStatus::SUCCESS);
    mad[HEADERS..].fill(0);
    let len = record.len().min(SaMad::LEN - HEADERS);
    mad[HEADERS..HEADERS + len].copy_from_slice(&record[..len]);
    mad
}

/// Makes an answer without a record that says why.
pub(super) fn refuse(asked: &SaMad, status: SaStatus) -> Vec<u8> {
    head(asked, Rmpp::default(), asked.sa, status)
}
