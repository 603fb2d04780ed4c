//! A ring whose other end writes anything anywhere, for the fuzz target `ring_records`.

use super::*;
use crate::page::OwnPage;

const CAPACITY: u32 = MIN_RING_BYTES;
/// Most records that a ring holds.
const MAX_RECORDS: usize = CAPACITY as usize / ALIGN;

/// Both ends of a ring, and its memory.
struct Ring {
    writer: RingWriter,
    reader: RingReader,
    memory: Arc<RingMemory>,
}

impl Ring {
    fn new() -> io::Result<Self> {
        let len = RingMemory::file_bytes(CAPACITY);
        let file = sys::memory_file(len)?;
        let memory = Arc::new(RingMemory::new(SharedMemory::map(file.as_fd(), len)?, CAPACITY));
        let own = OwnPage::new()?;
        let page = PeerPage::map(own.file().ok_or(io::ErrorKind::NotFound)?.as_fd())?;
        let connection = Arc::new(ClosableFd::new(sys::packet_pair()?.0));
        let bell = Arc::new(Bell { page, connection });
        let writer = RingWriter::new(memory.clone(), bell.clone());
        Ok(Self { writer, reader: RingReader::new(memory.clone(), bell), memory })
    }

    /// Writes `line` to as many lines as `count`, from the one that is read next.
    fn scribble(&self, line: &[u8], count: usize) {
        let first = self.reader.cursor.at();
        for at in (first..).step_by(ALIGN).take(count) {
            self.memory.records().copy_in(at, line);
        }
    }

    /// Reads up to `count` records.
    fn read(&mut self, count: usize) -> Result<(), RingBroken> {
        let mut buffer = [0xEE; MAX_PACKET_BYTES];
        for _ in 0..count {
            let before = self.reader.unreleased();
            let (len, bytes) = match self.reader.next(&mut buffer)? {
                None => return Ok(()),
                Some(Record::Packet(len)) => {
                    let packet = rx_packet(&buffer, len, self.reader.origin());
                    assert_eq!(packet.transport().len(), len);
                    assert_ne!(len, 0, "no packet is empty");
                    (len, record_bytes(len))
                }
                Some(Record::Message(head, len)) => {
                    let [mark, word] = head.emit(len);
                    assert_eq!(MessageHead::parse(mark, word), head);
                    (len, message_bytes(len))
                }
            };
            assert!(len <= MAX_TRANSPORT_BYTES);
            assert_eq!(self.reader.unreleased(), before + bytes as u64);
            assert!(self.reader.unreleased() <= u64::from(CAPACITY));
        }
        Ok(())
    }

    /// Writes one record, if there is room, as a process does that does not know of the other's
    /// scribbles.
    fn write(&mut self, len: usize, is_message: bool, path: &TxPath) -> Result<(), RingBroken> {
        if self.writer.has_room(0)? {
            let bytes = [0x5A; MAX_TRANSPORT_BYTES];
            match is_message {
                true => self.writer.push_message(MessageHead::default(), &bytes[..len]),
                false => self.writer.push(path, &bytes[..len.max(1)]),
            }
            let _ = self.writer.publish();
        }
        Ok(())
    }
}

/// Carries out steps of two bytes and their data, until the ring is broken or there are none left:
/// a line is written over the records that are read next, a word of the ring's head is written,
/// records are read and perhaps released, or the honest end writes a record.
pub(crate) fn run(mut steps: &[u8]) {
    let Ok(mut ring) = Ring::new() else { return };
    let path = vernic_io::udp::path([10, 0, 0, 1].into(), ([10, 0, 0, 2], 777).into());
    while let [action, argument, rest @ ..] = steps {
        steps = rest;
        let (kind, more, argument) = (action & 3, usize::from(action >> 2), usize::from(*argument));
        let done = match kind {
            0 => {
                let (line, rest) = steps.split_at((argument % ALIGN + 1).min(steps.len()));
                steps = rest;
                ring.scribble(line, more + 1);
                Ok(())
            }
            1 => {
                let Some((value, rest)) = steps.split_first_chunk() else { return };
                steps = rest;
                let word = [HEAD, WAITS, INSIDE][argument % 3];
                ring.memory.word(word).store(u64::from_ne_bytes(*value), Ordering::Relaxed);
                Ok(())
            }
            2 => {
                let read = ring.read(if more == 0 { MAX_RECORDS + 1 } else { more });
                if argument & 1 != 0 {
                    ring.reader.release();
                }
                read
            }
            _ => ring.write((argument * 17).min(MAX_TRANSPORT_BYTES), more & 1 != 0, &path),
        };
        if done.is_err() {
            return;
        }
    }
}
