//! One direction of a TCP connection: bytes in order, taken and delivered in any pieces; then its
//! end.

use std::collections::VecDeque;

use super::plan::Fault;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    bytes: VecDeque<u8>,
    room: usize,
    /// Bytes taken, and of those the first that belong to the start-up.
    taken: u64,
    startup: Option<u64>,
    /// Nothing is delivered from this byte behind the start-up on.
    until: Option<u64>,
    /// The sender has closed its half behind the last byte; or it seems so.
    pub(crate) closed: bool,
    /// The receiver has been told of the end.
    pub(crate) told: bool,
}

impl Pipe {
    pub(crate) fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
    }

    /// The start-up has been sent: what follows are FPDUs.
    pub(crate) fn end_startup(&mut self) {
        self.startup.get_or_insert(self.taken);
    }

    /// Bytes that it would take now.
    pub(crate) fn room(&self) -> usize {
        self.room.saturating_sub(self.bytes.len())
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes bytes of the sender, who has made sure that there is room. Returns whether the fault
    /// struck.
    pub(crate) fn take(&mut self, side: usize, bytes: &[u8], fault: &Fault) -> bool {
        let mut struck = false;
        for &byte in bytes {
            let at = self.startup.map(|startup| self.taken - startup);
            self.taken += 1;
            let mut byte = byte;
            match *fault {
                Fault::Change { from, at: strikes, mask }
                    if from == side && at == Some(strikes) =>
                {
                    byte ^= mask;
                    struck = true;
                }
                Fault::CutOff { from, at: strikes } if from == side && at == Some(strikes) => {
                    (self.closed, self.until, struck) = (true, at, true);
                }
                Fault::Silence { from, at: strikes } if from == side && at == Some(strikes) => {
                    (self.until, struck) = (at, true);
                }
                _ => {}
            }
            if self.until.is_none() {
                self.bytes.push_back(byte);
            }
        }
        struck
    }

    /// The sender closes its half; what a silence holds back does not arrive either.
    pub(crate) fn close(&mut self) {
        self.closed |= self.until.is_none();
    }

    /// Delivers up to `len` bytes.
    pub(crate) fn deliver(&mut self, len: usize) -> Vec<u8> {
        let len = len.min(self.bytes.len());
        self.bytes.drain(..len).collect()
    }

    /// What is on its way is lost.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }
}
