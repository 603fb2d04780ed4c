use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::batch::Icrc;
use crate::testing::{MemoryLink, append};

/// Sends packets with payload 0, 1, 2... in batches of `batch_size`. Returns the packets that
/// arrive: the payload, and whether the ICRC is right.
fn run(config: &str, packets: u8, batch_size: usize) -> (Vec<(u8, bool)>, LinkCounters) {
    let (inner, _) = MemoryLink::boxed();
    let mut link = FaultLink::new(inner, config.parse().unwrap());
    let mut batch = TxBatch::new(&link.limits());
    let mut now = Nanos(0);
    for (at, fill) in (0..packets).enumerate() {
        append(&mut batch, 64, fill);
        if (at + 1).is_multiple_of(batch_size) {
            link.send(now, &mut batch);
            assert!(batch.is_empty());
        }
    }
    link.send(now, &mut batch);
    while let Some(deadline) = link.deadline() {
        now = deadline;
        link.send(now, &mut batch);
    }
    let mut arrived = Vec::new();
    let mut rx = RxBatch::new();
    while link.recv(now, &mut rx) != 0 {
        for packet in rx.packets() {
            arrived.push((packet.bytes[40], link.verify(&packet) == Icrc::Good));
        }
    }
    (arrived, link.counters())
}

fn fills(arrived: &[(u8, bool)]) -> Vec<u8> {
    arrived.iter().map(|(fill, _)| *fill).collect()
}

#[test]
fn without_faults_everything_arrives_in_order() {
    let (arrived, counters) = run("", 100, 7);
    assert_eq!(fills(&arrived), (0..100).collect::<Vec<u8>>());
    assert!(arrived.iter().all(|(_, good)| *good));
    assert_eq!((counters.fault_drops, counters.fault_changes), (0, 0));
}

#[test]
fn the_same_seed_hits_the_same_packets_whatever_the_batches() {
    let config = "loss=0.2,dup=0.1,corrupt=0.1,seed=42";
    let (one, _) = run(config, 200, 1);
    let (many, _) = run(config, 200, 64);
    assert_eq!(one, many);
    let (other, _) = run("loss=0.2,dup=0.1,corrupt=0.1,seed=43", 200, 64);
    assert_ne!(one, other);
}

#[test]
fn lost_packets_are_counted_and_the_rest_is_good() {
    let (arrived, counters) = run("loss=0.3,seed=1", 200, 20);
    assert_eq!(arrived.len() as u64 + counters.fault_drops, 200);
    assert!((20..100).contains(&counters.fault_drops), "{counters:?}");
    assert!(arrived.iter().all(|(_, good)| *good), "survivors are stamped for their new places");
    assert!(fills(&arrived).is_sorted());
}

#[test]
fn doubled_packets_arrive_twice() {
    let (arrived, counters) = run("dup=1", 50, 10);
    let wanted: Vec<u8> = (0..50).flat_map(|fill| [fill, fill]).collect();
    assert_eq!(fills(&arrived), wanted);
    assert_eq!(counters.fault_changes, 50);
}

#[test]
fn corrupted_packets_arrive_with_a_wrong_icrc() {
    let (arrived, counters) = run("corrupt=0.5,seed=3", 100, 10);
    let bad = arrived.iter().filter(|(_, good)| !good).count();
    assert_eq!(arrived.len(), 100);
    assert_eq!(bad as u64, counters.fault_changes);
    assert!(bad > 20 && bad < 80, "{bad}");
}

#[test]
fn reordered_packets_are_overtaken_by_a_few_and_none_is_lost() {
    let (arrived, counters) = run("reorder=0.2,seed=5", 200, 10);
    let mut fills = fills(&arrived);
    assert!(!fills.is_sorted());
    assert!(counters.fault_changes > 10);
    let late = |(at, fill): (usize, &u8)| (at as i64 - i64::from(*fill)).abs();
    // Several packets may be late at a time: each holds up at most the others that are late, too.
    assert!(fills.iter().enumerate().map(late).max() <= Some(2 * MAX_OVERTAKEN as i64 + 4));
    fills.sort_unstable();
    assert_eq!(fills, (0..200).collect::<Vec<u8>>());
}

#[test]
fn delayed_packets_leave_when_due_and_not_before() {
    let (inner, sent) = MemoryLink::boxed();
    let mut link = FaultLink::new(inner, "delay_us=50".parse().unwrap());
    let mut batch = TxBatch::new(&link.limits());
    append(&mut batch, 64, 1);
    link.send(Nanos(1000), &mut batch);
    assert_eq!(link.deadline(), Some(Nanos(51_000)));
    append(&mut batch, 64, 2);
    link.send(Nanos(2000), &mut batch);
    let mut rx = RxBatch::new();
    assert_eq!(link.recv(Nanos(50_999), &mut rx), 0);
    assert!(sent.lock().unwrap().is_empty());
    assert_eq!(link.recv(Nanos(51_000), &mut rx), 1);
    assert_eq!(link.recv(Nanos(52_000), &mut rx), 1);
    assert_eq!(link.deadline(), None);
}

/// A link that sends nothing while `full` is set.
struct FullLink {
    inner: Box<dyn Link>,
    full: Arc<AtomicBool>,
}

impl Link for FullLink {
    forward_to_inner!();

    fn send(&mut self, now: Nanos, batch: &mut TxBatch) -> SendReport {
        if self.full.load(Ordering::Relaxed) {
            return SendReport { blocked: true, ..SendReport::default() };
        }
        self.inner.send(now, batch)
    }

    fn recv(&mut self, now: Nanos, batch: &mut RxBatch) -> usize {
        self.inner.recv(now, batch)
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

#[test]
fn packets_that_met_a_full_link_leave_though_the_caller_has_nothing_more_to_send() {
    let (inner, sent) = MemoryLink::boxed();
    let full = Arc::new(AtomicBool::new(true));
    let inner = Box::new(FullLink { inner, full: Arc::clone(&full) });
    let mut link = FaultLink::new(inner, FaultConfig::default());
    let mut batch = TxBatch::new(&link.limits());
    append(&mut batch, 64, 1);
    assert!(link.send(Nanos(0), &mut batch).blocked);
    assert!(batch.is_empty(), "the caller believes them sent");
    let retry = link.deadline().expect("the caller is called back");
    assert!(retry > Nanos(0), "not at once: the link below is full");
    let mut rx = RxBatch::new();
    link.recv(retry, &mut rx);
    assert!(link.deadline() > Some(retry));
    full.store(false, Ordering::Relaxed);
    assert_eq!(link.recv(link.deadline().unwrap(), &mut rx), 1);
    assert_eq!(sent.lock().unwrap().len(), 1);
    assert_eq!(link.deadline(), None);
}

#[test]
fn a_full_queue_of_held_packets_lets_the_rest_pass() {
    let (inner, sent) = MemoryLink::boxed();
    let mut link = FaultLink::new(inner, "delay_us=1000".parse().unwrap());
    let mut batch = TxBatch::new(&link.limits());
    for _ in 0..MAX_HELD + 10 {
        append(&mut batch, 64, 0);
        link.send(Nanos(0), &mut batch);
    }
    assert_eq!(sent.lock().unwrap().len(), 10);
    link.send(Nanos(1_000_000), &mut batch);
    assert_eq!(sent.lock().unwrap().len(), MAX_HELD + 10);
}

#[test]
fn full_batches_of_large_packets_doubled_lose_nothing() {
    let (inner, sent) = MemoryLink::boxed();
    let mut link = FaultLink::new(inner, "dup=1,reorder=0.5,seed=2".parse().unwrap());
    let mut batch = TxBatch::new(&link.limits());
    let mut count = 0;
    while batch.room().is_some() {
        append(&mut batch, 4112, 0);
        count += 1;
    }
    let report = link.send(Nanos(0), &mut batch);
    assert!(batch.is_empty());
    link.send(Nanos(REORDER_NANOS), &mut batch);
    assert_eq!(sent.lock().unwrap().len(), 2 * count);
    assert_eq!(report.failed, 0);
}

#[test]
fn a_config_says_what_is_wrong_with_it() {
    let error = |text: &str| text.parse::<FaultConfig>().unwrap_err().to_string();
    assert_eq!(error("loss"), "fault injection: \"loss\" is not of the form name=value");
    assert!(error("los=1").contains("there is no \"los\"; known are loss, dup"));
    assert!(error("dup=-0.1").contains("dup=-0.1 is not a probability"));
    assert!(error("dup=NaN").contains("not a probability"));
    assert!(error("delay_us=1.5").contains("not a whole number from 0 to 10000000"));
    assert!(error("seed=-1").contains("not a whole number"));
    assert_eq!(error("loss=0,loss=1"), "fault injection: loss is given twice");
    let config: FaultConfig = " loss=0.5 , seed=9,".parse().unwrap();
    assert_eq!(config.to_string().parse(), Ok(config));
}

#[test]
fn a_probability_may_be_a_part_or_a_percentage() {
    let config: FaultConfig = "loss=5%,dup=0.1 %,reorder=100%,corrupt=1e-6".parse().unwrap();
    let read = [config.loss, config.dup, config.reorder, config.corrupt];
    assert_eq!(read, [0.05, 0.001, 1.0, 1e-6]);
    for text in ["101%", "-1%", "%", "nan%", "5%%", "1.5", "", "inf"] {
        assert_eq!(share(text), None, "{text}");
    }
}
