use super::*;
use crate::batch::RxMeta;
use crate::endpoint::arrival;

fn head(src_port: u16) -> Head {
    let meta = RxMeta {
        traffic_class: 3,
        ..arrival(([10, 0, 0, 1], src_port).into(), ([10, 0, 0, 2], 4791).into())
    };
    Head { stride: 1024, first_segment: 2, meta }
}

fn pair() -> (QueueWriter, QueueReader) {
    let (writer, file) = QueueWriter::new().unwrap();
    let reader = QueueReader::map(file.as_fd()).unwrap();
    (writer, reader)
}

/// Reads all records. Returns the source port and length of each.
fn drain(reader: &mut QueueReader) -> Vec<(u16, usize)> {
    let mut buffer = vec![0; RX_BUFFER_BYTES];
    let mut seen = Vec::new();
    while let Next::Packets(head, len) = reader.next(&mut buffer).unwrap() {
        seen.push((head.meta.flow, len));
    }
    reader.release().unwrap();
    seen
}

#[test]
fn records_of_any_size_come_out_as_they_went_in_however_often_the_queue_goes_round() {
    let (mut writer, mut reader) = pair();
    let bytes: Vec<u8> = (0..RX_BUFFER_BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut buffer = vec![0; RX_BUFFER_BYTES];
    // One record always stays, so that the writer never begins anew.
    assert_eq!(writer.push(&head(1), &bytes[..1]), Ok(Written::MustRing));
    let mut last = 1;
    for round in 0..1000 {
        let len = (round * 7919) % RX_BUFFER_BYTES + 1;
        assert_eq!(writer.push(&head(1), &bytes[..len]), Ok(Written::Yes));
        let Ok(Next::Packets(head, found)) = reader.next(&mut buffer) else { panic!("{round}") };
        assert!(found == last && buffer[..found] == bytes[..found], "{round}");
        assert_eq!((head.stride, head.first_segment, head.meta.traffic_class), (1024, 2, 3));
        assert!(head.meta.handed_over, "it does not go on from there");
        assert_eq!(reader.release(), Ok(None));
        last = len;
    }
}

#[test]
fn the_bell_rings_for_a_record_that_finds_the_queue_empty_and_stays_until_all_is_read() {
    let (mut writer, mut reader) = pair();
    assert_eq!(writer.push(&head(1), &[1; 100]), Ok(Written::MustRing));
    assert_eq!(writer.push(&head(1), &[2; 100]), Ok(Written::Yes));
    let mut buffer = [0; 100];
    assert!(matches!(reader.next(&mut buffer), Ok(Next::Packets(_, 100))));
    assert_eq!(reader.release(), Ok(None), "one is left: the bell is not to be taken back");
    assert!(matches!(reader.next(&mut buffer[..99]), Ok(Next::NoRoom)));
    assert!(matches!(reader.next(&mut buffer), Ok(Next::Packets(_, 100))));
    assert_eq!(reader.release(), Ok(Some(1)));
    reader.hear();
    assert_eq!(reader.release(), Ok(Some(0)));
    assert_eq!(writer.push(&head(1), &[3; 100]), Ok(Written::MustRing));
    assert_eq!(reader.release(), Ok(None));
}

#[test]
fn a_queue_that_is_never_deep_touches_its_begin_only() {
    let (mut writer, mut reader) = pair();
    for _ in 0..100 {
        for _ in 0..3 {
            writer.push(&head(1), &[7; 1000]).unwrap();
        }
        assert_eq!(drain(&mut reader).len(), 3);
    }
    let words = writer.memory.0.words();
    let behind = &words[(FILE_HEAD + 4 * record_bytes(1000) as usize) / 8..];
    assert!(behind.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_flow_that_floods_the_queue_loses_its_own_packets_and_not_those_of_another() {
    for size in [64, 1100, 60_000] {
        let (mut writer, mut reader) = pair();
        let mut lost = 0;
        for _ in 0..2 * MAX_RECORDS {
            lost += usize::from(writer.push(&head(6666), &vec![6; size]) == Ok(Written::Full));
        }
        assert!(lost > 0);
        // Three more flows flood the queue.
        for _ in 0..2 * MAX_RECORDS {
            for port in 6667..6670 {
                let _ = writer.push(&head(port), &vec![6; size]);
            }
        }
        for _ in 0..100 {
            assert_ne!(writer.push(&head(1), &[1; 1100]), Ok(Written::Full), "{size}");
        }
        let seen = drain(&mut reader);
        let of = |port| seen.iter().filter(|one| one.0 == port).count();
        assert_eq!(of(1), 100);
        assert_eq!(of(6666), 2 * MAX_RECORDS - lost);
        // What was read is free again.
        assert_ne!(writer.push(&head(6666), &vec![6; size]), Ok(Written::Full));
    }
}

#[test]
fn more_flows_than_there_are_shares_share_one() {
    let (mut writer, mut reader) = pair();
    for round in 0..3 {
        for port in 0..2 * MAX_FLOWS as u16 {
            assert_ne!(writer.push(&head(port), &[1; 1000]), Ok(Written::Full), "{round} {port}");
        }
        assert_eq!(drain(&mut reader).len(), 2 * MAX_FLOWS);
    }
    assert!(writer.settle().is_ok() && writer.flows.is_empty() && writer.used == 0);
}

#[test]
fn what_the_other_end_cannot_have_meant_breaks_the_queue_and_nothing_else() {
    let store = |memory: &Memory, word: usize, value: u64| {
        memory.word(word).store(value, Ordering::SeqCst);
    };
    let mut buffer = vec![0; RX_BUFFER_BYTES];
    for tail in [QUEUE_BYTES + 64, 63, u64::MAX, u64::MAX - 63] {
        let (writer, mut reader) = pair();
        store(&writer.memory, TAIL, tail);
        assert!(reader.next(&mut buffer).is_err(), "{tail}");
    }
    // A base out of line, a record without a head, of no length, and one behind the tail.
    for (word, value) in [(BASE, 8), (FILE_HEAD / 8, 0), (FILE_HEAD / 8 + 7, 0)] {
        let (mut writer, mut reader) = pair();
        writer.push(&head(1), &[1; 100]).unwrap();
        store(&writer.memory, word, value);
        assert!(reader.next(&mut buffer).is_err(), "{word}");
    }
    let (mut writer, mut reader) = pair();
    writer.push(&head(1), &[1; 1000]).unwrap();
    store(&writer.memory, TAIL, 64);
    assert!(reader.next(&mut buffer).is_err());
    for head_word in [64, u64::MAX] {
        let (mut writer, reader) = pair();
        store(&reader.memory, HEAD, head_word);
        assert_eq!(writer.push(&head(1), &[1; 100]), Err(Broken));
    }
}

#[test]
fn a_reader_that_sleeps_only_with_nothing_to_hear_misses_no_record() {
    let (mut writer, mut reader) = pair();
    let (bell, hears) = std::sync::mpsc::channel();
    const RECORDS: u32 = 200_000;
    let thread = std::thread::spawn(move || {
        for number in 0..RECORDS {
            loop {
                match writer.push(&head(1), &number.to_be_bytes()).unwrap() {
                    Written::Yes => break,
                    Written::MustRing => {
                        bell.send(()).unwrap();
                        break;
                    }
                    Written::Full => std::thread::yield_now(),
                }
            }
        }
    });
    let (mut next, mut buffer) = (0, [0; 4]);
    let mut pending = 0;
    while next < RECORDS {
        // As long as there is a bell that was not taken back, the reader would wake at once.
        if pending == 0 {
            hears.recv_timeout(std::time::Duration::from_secs(60)).expect("a bell");
            pending += 1;
        }
        while let Next::Packets(..) = reader.next(&mut buffer).unwrap() {
            assert_eq!(u32::from_be_bytes(buffer), next);
            next += 1;
            // The reader leaves some records for want of room.
            if next % 5 == 0 {
                break;
            }
        }
        if let Some(bells) = reader.release().unwrap() {
            for _ in 0..bells {
                match pending {
                    0 => match hears.try_recv() {
                        Ok(()) => reader.hear(),
                        Err(_) => break,
                    },
                    _ => {
                        pending -= 1;
                        reader.hear();
                    }
                }
            }
        }
    }
    thread.join().unwrap();
}
