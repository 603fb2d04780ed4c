use std::sync::atomic::AtomicU64;

use super::*;
use crate::host::Slot;

fn receiver_page(capacity: u64) -> ReceiverPage {
    let fd = sys::shared_file().unwrap();
    let receiver_page = ReceiverPage::map(fd.as_fd(), 1).unwrap();
    receiver_page.set_capacity(capacity);
    receiver_page
}

const WANTED: u64 = 100_000;

#[test]
fn senders_fill_their_share_and_go_on_when_the_receiver_has_taken_something() {
    let receiver_page = receiver_page(8 << 20);
    let mut sent = 0;
    while let Some(granted) = receiver_page.reserve(WANTED) {
        sent += granted;
        assert!(sent < 8 << 20, "senders are never stopped");
    }
    assert!(sent <= 3 << 20 && sent > (3 << 20) - WANTED, "{sent} bytes in flight");
    receiver_page.take(WANTED - 1);
    assert_eq!(receiver_page.reserve(WANTED), Some(WANTED));
    assert_eq!(receiver_page.reserve(WANTED), None);
    receiver_page.give_back(WANTED);
    assert_eq!(receiver_page.reserve(WANTED), Some(WANTED), "what was given back is free again");
}

#[test]
fn the_smallest_buffer_lets_one_packet_in() {
    let receiver_page = receiver_page(2304);
    assert_eq!(receiver_page.reserve(WANTED), Some(ReceiverPage::max_cost()));
    assert_eq!(receiver_page.reserve(WANTED), None);
    receiver_page.take(ReceiverPage::max_cost());
    assert_eq!(receiver_page.reserve(WANTED), Some(ReceiverPage::max_cost()));
}

#[test]
fn many_senders_at_once_never_exceed_the_share() {
    let receiver_page = receiver_page(1 << 20);
    let (limit, senders, rounds) = ((1u64 << 20) * SHARE_EIGHTHS / 8, 4, 20_000);
    let granted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..senders {
            scope.spawn(|| {
                for _ in 0..rounds {
                    if let Some(bytes) = receiver_page.reserve(WANTED) {
                        let all = granted.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(all <= limit, "{all} of {limit} bytes");
                        granted.fetch_sub(bytes, Ordering::SeqCst);
                        receiver_page.give_back(bytes);
                    }
                }
            });
        }
    });
    assert_eq!(receiver_page.load(SENT), 0);
}

#[test]
fn what_never_comes_is_forgotten_once_nothing_comes_for_a_while() {
    let receiver_page = receiver_page(1 << 20);
    while receiver_page.reserve(WANTED).is_some() {}
    let mut seen = (0, 0);
    receiver_page.settle(&mut seen, 1_000);
    receiver_page.settle(&mut seen, 1_000 + SETTLE_NANOS - 1);
    assert_eq!(receiver_page.reserve(WANTED), None, "it may still come");
    receiver_page.settle(&mut seen, 1_000 + SETTLE_NANOS);
    assert_eq!(receiver_page.reserve(WANTED), Some(WANTED.min((1 << 20) * 3 / 8 / 4)));
    // The sent count has changed: the wait begins again.
    receiver_page.settle(&mut seen, 1_000 + 2 * SETTLE_NANOS);
    assert_ne!(receiver_page.load(SENT), receiver_page.received());
}

#[test]
fn no_value_in_the_page_breaks_anything_but_pacing() {
    let values = [0, 1, 767, 1 << 31, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX - 5, u64::MAX];
    for (sent, received, capacity) in
        values.iter().flat_map(|s| values.iter().flat_map(move |r| values.map(|c| (*s, *r, c))))
    {
        let receiver_page = receiver_page(capacity);
        receiver_page.page.word(SENT).store(sent, Ordering::Relaxed);
        receiver_page.page.word(RECEIVED).store(received, Ordering::Relaxed);
        if let Some(granted) = receiver_page.reserve(WANTED) {
            assert!((ReceiverPage::max_cost()..=WANTED).contains(&granted), "{granted}");
            receiver_page.give_back(granted);
        }
        receiver_page.take(5000);
        receiver_page.settle(&mut (sent, 0), u64::MAX);
        receiver_page.forgive();
        assert!(receiver_page.reserve(WANTED).is_some(), "{sent} {received} {capacity}");
    }
}

#[test]
fn more_than_was_sent_cannot_have_been_received() {
    let receiver_page = receiver_page(1 << 20);
    let granted = receiver_page.reserve(WANTED).unwrap();
    receiver_page.take(granted * 3);
    assert_eq!(receiver_page.received(), granted);
}

#[test]
fn a_file_is_known_by_its_number_and_mapped_once() {
    let (a, b) = (ReceiverPages::new(), ReceiverPages::new());
    let file = a.own_fd().unwrap();
    let file = file.as_fd();
    let id = b.add_file(file).unwrap();
    let generation = b.generation();
    assert_eq!(b.add_file(file), Some(id));
    assert_eq!(b.add(a.own().unwrap()), id);
    assert_eq!(b.generation(), generation);
    assert_ne!(b.add(b.own().unwrap()), id);
    let mut list = Vec::new();
    b.copy_to(&mut list);
    list[id.index()].reserve(WANTED).unwrap();
    assert_ne!(a.own().unwrap().load(SENT), 0, "both see one page");
    let other = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(b.add_file(other.as_fd()), None);
}

#[test]
fn a_table_that_is_full_lets_the_oldest_go() {
    let (table, others) = (ReceiverPages::new(), ReceiverPages::new());
    let file = others.own_fd().unwrap();
    let file = file.as_fd();
    for inode in 0..MAX_RECEIVER_PAGES as u64 {
        let make = || ReceiverPage::map(file, u64::MAX - inode).map(Arc::new);
        table.insert(u64::MAX - inode, make).unwrap();
    }
    assert_eq!(table.add_file(file), ReceiverPageId::new(1));
    assert_eq!(table.add(table.own().unwrap()), ReceiverPageId::at(1));
    let mut list = Vec::new();
    table.copy_to(&mut list);
    assert_eq!(list.len(), MAX_RECEIVER_PAGES);
}

#[test]
fn an_owner_says_which_queue_pairs_of_its_first_slot_answer_and_that_it_has_left() {
    let receiver_page = receiver_page(1 << 20);
    let (first, second) = (Slot::FIRST, Slot::LAST);
    let last = Slot::QPNS - 1;
    assert_eq!(receiver_page.answers(first.qpn(0)), None);
    [first, second].iter().for_each(|&slot| receiver_page.set_slot(slot));
    for index in [0, 63, 64, last] {
        assert_eq!(receiver_page.answers(first.qpn(index)), Some(false));
        receiver_page.set_answering(first.qpn(index), true);
        assert_eq!(receiver_page.answers(first.qpn(index)), Some(true));
    }
    receiver_page.set_answering(first.qpn(63), false);
    assert_eq!(
        [62, 63, 64].map(|i| receiver_page.answers(first.qpn(i))),
        [false, false, true].map(Some)
    );
    receiver_page.set_answering(second.qpn(1), true);
    assert_eq!(
        [first.qpn(1), second.qpn(1)].map(|qpn| receiver_page.answers(qpn)),
        [Some(false), None]
    );
    assert!(!receiver_page.has_left());
    receiver_page.leave();
    assert!(receiver_page.has_left());
    assert_eq!([SENT, RECEIVED].map(|word| receiver_page.load(word)), [0, 0]);
}
