use std::net::IpAddr;
use std::os::fd::AsFd;

use super::*;
use crate::page::OwnPage;
use vernic_io::{ROCE_PORT, udp as endpoint};

const CAPACITY: u32 = MIN_RING_BYTES;

/// Both ends of a ring, its memory, the page of the reader, and the socket at which its bell
/// arrives.
struct Ring {
    writer: RingWriter,
    reader: RingReader,
    memory: Arc<RingMemory>,
    page: OwnPage,
    ear: vernic_sys::OwnFd,
}

fn ring() -> Ring {
    let len = RingMemory::file_bytes(CAPACITY);
    let file = sys::memory_file(len).unwrap();
    let map = || Arc::new(RingMemory::new(SharedMemory::map(file.as_fd(), len).unwrap(), CAPACITY));
    let page = OwnPage::new().unwrap();
    let (mouth, ear) = sys::packet_pair().unwrap();
    let connection = Arc::new(ClosableFd::new(mouth));
    let bell =
        Arc::new(Bell { page: PeerPage::map(page.file().unwrap().as_fd()).unwrap(), connection });
    // Two mappings of one file, as in two processes.
    let (writer, reader) = (RingWriter::new(map(), bell.clone()), RingReader::new(map(), bell));
    Ring { writer, reader, memory: map(), page, ear }
}

impl Ring {
    fn rings(&self) -> usize {
        let mut buf = [0; 64];
        (0..).take_while(|_| sys::recv_packet(self.ear.as_fd(), &mut buf).is_ok()).count()
    }

    fn next(&mut self) -> Result<Option<(RxMeta, Vec<u8>)>, RingBroken> {
        let mut buffer = [0xEE; MAX_PACKET_BYTES];
        let next = self.reader.next(&mut buffer)?;
        let meta = *self.reader.origin();
        Ok(next.map(|record| match record {
            Record::Packet(len) => (meta, rx_packet(&buffer, len, &meta).transport().to_vec()),
            Record::Message(_, len) => (meta, buffer[..len].to_vec()),
        }))
    }
}

fn path() -> TxPath {
    endpoint::path([10, 0, 0, 1].into(), ([10, 0, 0, 2], 777).into()).with_traffic_class(0x62)
}

#[test]
fn packets_of_all_sizes_come_out_whole_in_order_and_over_the_end_of_the_ring() {
    let mut ring = ring();
    let lens = (1..200).chain([256, 1024, 4000, 4096, MAX_TRANSPORT_BYTES]);
    let lens: Vec<usize> = lens.cycle().take(2000).collect();
    let byte = |n: usize, i: usize| (n * 7 + i) as u8;
    let (mut sent, mut received) = (0, 0);
    while received < lens.len() {
        while sent < lens.len() && ring.writer.has_room(0).unwrap() {
            let bytes: Vec<u8> = (0..lens[sent]).map(|i| byte(sent, i)).collect();
            ring.writer.push(&path(), &bytes);
            sent += 1;
        }
        assert!(ring.writer.publish());
        for _ in 0..7 {
            let Some((meta, bytes)) = ring.next().unwrap() else { break };
            assert_eq!(bytes.len(), lens[received]);
            assert!(bytes.iter().enumerate().all(|(i, &b)| b == byte(received, i)));
            assert_eq!(meta.src.ip(), IpAddr::from([10, 0, 0, 1]));
            assert_eq!(endpoint::receiver_of(&meta), ([10, 0, 0, 2], ROCE_PORT).into());
            assert_eq!((meta.traffic_class, meta.hop_limit), (0x62, TxPath::DEFAULT_HOP_LIMIT));
            received += 1;
        }
        ring.reader.release();
    }
    assert_eq!(ring.next(), Ok(None));
}

#[test]
fn each_packet_comes_as_its_own_path_says() {
    let mut ring = ring();
    let other = endpoint::path([10, 0, 0, 3].into(), ([10, 0, 0, 2], 777).into());
    let local = endpoint::path("fe80::1".parse().unwrap(), "[fe80::2%7]:777".parse().unwrap());
    let paths = [path(), path(), other, path(), local, local.with_hop_limit(3), other];
    for path in &paths {
        ring.writer.push(path, b"text");
    }
    assert!(ring.writer.publish());
    for path in paths {
        let (meta, bytes) = ring.next().unwrap().unwrap();
        assert_eq!(bytes, b"text");
        assert_eq!((meta.src.gid(), meta.dst.gid()), (path.local(), path.remote()));
        assert_eq!(meta.traffic_class, path.traffic_class());
        assert_eq!(meta.hop_limit, path.hop_limit());
        assert_eq!(meta.netdev, path.id().0);
    }
}

#[test]
fn a_link_local_address_keeps_the_netdev_that_it_holds_on() {
    let mut ring = ring();
    let dst = std::net::SocketAddrV6::new("fe80::2".parse().unwrap(), 5, 0, 9);
    let src = "fe80::1".parse().unwrap();
    ring.writer.push(&endpoint::path(src, dst.into()), &[1; 12]);
    assert!(ring.writer.publish());
    let (meta, _) = ring.next().unwrap().unwrap();
    assert_eq!(meta.src.ip(), src);
    let at = std::net::SocketAddrV6::new(*dst.ip(), ROCE_PORT, 0, 9);
    assert_eq!(endpoint::receiver_of(&meta), at.into());
}

#[test]
fn nothing_is_seen_before_it_is_published() {
    let mut ring = ring();
    ring.writer.push(&path(), &[1; 12]);
    assert_eq!(ring.next(), Ok(None));
    assert!(!ring.reader.has_news());
    assert!(ring.writer.publish());
    assert!(ring.reader.has_news());
    assert!(ring.next().unwrap().is_some());
    assert!(!ring.reader.has_news());
}

#[test]
fn who_sleeps_is_rung_once_per_sleep_and_who_is_awake_never() {
    let mut ring = ring();
    let send = |ring: &mut Ring| {
        ring.writer.push(&path(), &[1; 12]);
        assert!(ring.writer.publish());
    };
    send(&mut ring);
    assert_eq!(ring.rings(), 0);
    for _ in 0..3 {
        ring.page.announce();
        send(&mut ring);
        send(&mut ring);
        assert_eq!(ring.rings(), 1);
        assert!(ring.writer.publish());
        assert_eq!(ring.rings(), 0, "nothing new was published");
        ring.page.awake();
        send(&mut ring);
        assert_eq!(ring.rings(), 0);
    }
}

#[test]
fn a_writer_that_waits_for_room_is_rung_when_half_is_free() {
    let mut ring = ring();
    while ring.writer.has_room(0).unwrap() {
        ring.writer.push(&path(), &[1; 4000]);
    }
    assert!(ring.writer.publish());
    // The writer sleeps; both ends of this ring have one page and one bell.
    ring.page.announce();
    let capacity = u64::from(CAPACITY);
    let mut taken = 0;
    while ring.rings() == 0 {
        taken += ring.next().unwrap().map_or(0, |(_, bytes)| bytes.len() as u64);
        ring.reader.release();
        assert!(taken <= capacity, "the ring is empty, and nobody rang");
    }
    assert!(taken > capacity * 3 / 8 && taken < capacity * 5 / 8, "{taken} bytes");
    assert!(ring.writer.has_room(0).unwrap());
}

#[test]
fn a_full_ring_holds_what_it_says() {
    let mut ring = ring();
    let mut packets = 0;
    while ring.writer.has_room(0).unwrap() {
        ring.writer.push(&path(), &[1; 20]);
        packets += 1;
    }
    // A SEND of 8 bytes takes one cache line, and room is kept for the largest packet.
    assert_eq!(packets, (u64::from(CAPACITY) - ANY_ROOM) / 64 + 1);
}

#[test]
fn no_length_makes_the_reader_leave_the_ring() {
    for len in [1, 23, 24, 25, 4220, 4221, 4224, 0x7FFF, 0x8000, 0xFFFF, 1 << 16, 1 << 63] {
        let mut ring = ring();
        ring.memory.mark(0).store(len, Ordering::Relaxed);
        // The top bit of the length is that of a message, which may be empty.
        let bytes = (len & 0xFFFF) as u16;
        let honest = match bytes & MESSAGE {
            0 => (1..=4220).contains(&bytes),
            _ => bytes & !MESSAGE <= 4220,
        };
        let next = ring.next();
        assert_eq!(next.is_ok(), honest, "{len} bytes: {next:?}");
    }
}

#[test]
fn messages_of_all_sizes_come_out_with_their_heads_among_packets() {
    let mut ring = ring();
    let mut buffer = [0xEE; MAX_PACKET_BYTES];
    let lens = (0..130).chain([255, 256, 4096, MAX_TRANSPORT_BYTES]);
    for (n, len) in lens.enumerate() {
        let word = (n as u32).wrapping_mul(0x9E37_79B9);
        let head = MessageHead { flags: !(n as u16), words: [word, !word, word.rotate_left(9)] };
        let payload: Vec<u8> = (0..len).map(|i| (n * 7 + i) as u8).collect();
        ring.writer.push(&path(), b"packet");
        ring.writer.push_message(head, &payload);
        assert!(ring.writer.publish());
        assert_eq!(ring.reader.next(&mut buffer), Ok(Some(Record::Packet(6))));
        assert_eq!(ring.reader.next(&mut buffer), Ok(Some(Record::Message(head, len))));
        assert_eq!(buffer[..len], payload);
        assert_eq!(ring.reader.next(&mut buffer), Ok(None));
        assert_eq!(ring.reader.unreleased(), (64 + message_bytes(len)) as u64);
        ring.reader.release();
        assert!(ring.writer.has_room(0).unwrap());
    }
    assert_eq!((message_bytes(0), message_bytes(48), message_bytes(49)), (64, 64, 128));
}

#[test]
fn a_writer_that_goes_on_where_nothing_is_released_breaks_the_ring() {
    let mut ring = ring();
    // Marks everywhere: packets of one line each.
    (0..u64::from(CAPACITY) / 64)
        .for_each(|n| ring.memory.mark(n * 64).store(20, Ordering::Relaxed));
    for n in 0..2 * CAPACITY / 64 {
        let next = ring.next();
        if n < CAPACITY / 64 {
            assert!(next.unwrap().is_some());
        } else {
            assert_eq!(next, Err(RingBroken::Position));
        }
    }
}

#[test]
fn what_an_older_packet_left_is_taken_for_no_packet() {
    let mut ring = ring();
    // Every line of these packets looks like the start of a record.
    let lines: Vec<u8> = 20_u64.to_ne_bytes().repeat(4000 / 8);
    for round in 0..4 * u64::from(CAPACITY) / MAX_RECORD {
        let bytes = if round % 3 == 0 { &lines[..8] } else { &lines };
        ring.writer.push(&path(), bytes);
        assert!(ring.writer.publish());
        assert_eq!(ring.next().unwrap().map(|(_, bytes)| bytes.len()), Some(bytes.len()));
        assert_eq!(ring.next(), Ok(None));
        ring.reader.release();
        assert!(ring.writer.has_room(0).unwrap());
    }
}

#[test]
fn whatever_is_scribbled_over_a_ring_is_a_packet_or_the_end_of_it() {
    let mut ring = ring();
    let memory = ring.memory.clone();
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let (mut packets, mut broken) = (0, 0);
    for _ in 0..1000 {
        // Marks of packets that are and are not too long, everywhere; other words anywhere.
        for line in 0..u64::from(CAPACITY) / 64 {
            memory.mark(line * 64).store(random() % 4400, Ordering::Relaxed);
        }
        for _ in 0..20 {
            let at = HEAD_BYTES / 8 + random() as usize % (CAPACITY as usize / 8);
            memory.word(at).store(random(), Ordering::Relaxed);
        }
        memory.word(HEAD).store(random() % 4096, Ordering::Relaxed);
        let _ = ring.writer.has_room(0);
        // The loop ends, since a ring holds at most so many packets.
        for _ in 0..=CAPACITY / 64 {
            match ring.next() {
                Ok(Some(_)) => packets += 1,
                Ok(None) => break,
                Err(_) => {
                    broken += 1;
                    ring = ring_over(&memory);
                    break;
                }
            }
        }
        ring.reader.release();
    }
    assert!(packets > 100 && broken > 100, "{packets} packets, {broken} times broken");
}

/// Puts new ends over old memory, which an engine would not do.
fn ring_over(memory: &Arc<RingMemory>) -> Ring {
    let mut ring = ring();
    ring.memory = memory.clone();
    ring.writer = RingWriter::new(memory.clone(), ring.writer.bell.clone());
    ring.reader = RingReader::new(memory.clone(), ring.reader.bell.clone());
    ring
}

#[test]
fn a_bell_that_could_not_be_rung_is_rung_later_if_the_reader_sleeps_still() {
    let mut ring = ring();
    let page = || PeerPage::map(ring.page.file().unwrap().as_fd()).unwrap();
    // A descriptor that is no socket fails as a socket does when the system has no memory for a
    // message.
    let broken = ClosableFd::new(sys::memory_file(4096).unwrap());
    let broken = Arc::new(Bell { page: page(), connection: Arc::new(broken) });
    let working = std::mem::replace(&mut ring.writer.bell, broken.clone());
    ring.page.announce();
    ring.writer.push(&path(), b"first");
    assert!(!ring.writer.publish() && !ring.writer.wake_again());
    ring.writer.push(&path(), b"second");
    assert!(!ring.writer.publish(), "the next packet rings as well");
    ring.writer.bell = working.clone();
    assert!(ring.writer.wake_again());
    assert_eq!(ring.rings(), 1);
    assert!(ring.writer.wake_again());
    assert_eq!(ring.rings(), 0, "once is enough");
    // A reader that has woken up before the writer tries again needs no bell.
    ring.page.announce();
    ring.writer.bell = broken;
    ring.writer.push(&path(), b"third");
    assert!(!ring.writer.publish());
    ring.writer.bell = working;
    ring.page.awake();
    assert!(ring.writer.wake_again());
    ring.page.announce();
    assert!(ring.writer.wake_again());
    assert_eq!(ring.rings(), 0);
}
