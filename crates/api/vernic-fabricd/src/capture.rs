//! A capture of all packets that begin a cable, as records that tshark reads.
//!
//! The file is a row of ERF records (`vernic_wire::Erf`): LRH to VCRC, each with the time at which
//! the first byte left. Limits: the file grows as long as the capture runs; link flow control is
//! not in it.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use vernic_fabric::Time;
use vernic_fabric::subnet::{Subnet, Tapped};
use vernic_wire::{Erf, ErfTimestamp, ErfType};

/// A capture that runs.
#[derive(Debug)]
pub(crate) struct Capture(Arc<Mutex<Writer>>);

#[derive(Debug)]
struct Writer {
    file: BufWriter<File>,
    /// Nanoseconds since 1970 at which the clock of the fabric began.
    origin: u64,
    record: Vec<u8>,
    packets: u64,
    error: Option<io::Error>,
}

impl Capture {
    /// Begins to write to a new file. `now` is the present by the clock of the fabric.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn start(subnet: &mut Subnet, path: &Path, now: Time) -> io::Result<Self> {
        let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin = (since.as_nanos() as u64).saturating_sub(now.0);
        let writer = Writer { file, origin, record: Vec::new(), packets: 0, error: None };
        let shared = Arc::new(Mutex::new(writer));
        let tap = Arc::clone(&shared);
        subnet.set_tap(Some(Box::new(move |tapped| lock(&tap).write(&tapped))));
        Ok(Self(shared))
    }
    /// Brings what was written to the file. Returns how many packets there are.
    ///
    /// # Errors
    /// The first error since the capture began: the disk is full, say.
    pub(crate) fn flush(&self) -> io::Result<u64> {
        let mut writer = lock(&self.0);
        match writer.error.take() {
            Some(error) => Err(error),
            None => writer.file.flush().map(|()| writer.packets),
        }
    }
    /// Ends the capture.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub(crate) fn stop(self, subnet: &mut Subnet) -> io::Result<u64> {
        subnet.set_tap(None);
        self.flush()
    }
}

fn lock(writer: &Mutex<Writer>) -> std::sync::MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    fn write(&mut self, tapped: &Tapped<'_>) {
        if self.error.is_some() {
            return;
        }
        let timestamp = ErfTimestamp::from_nanos(self.origin.saturating_add(tapped.at.0));
        let Some(head) = Erf::new(ErfType::INFINIBAND, timestamp, tapped.bytes.len()) else {
            return;
        };
        self.record.resize(usize::from(head.record_len), 0);
        let len = head.emit_record(tapped.bytes, &mut self.record);
        match self.file.write_all(&self.record[..len]) {
            Ok(()) => self.packets += 1,
            Err(error) => self.error = Some(error),
        }
    }
}
