//! Devices that are opened at once. Apart from the other tests: they have tables of slots, too, and
//! classes are dealt out among all tables of a process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use vernic_io::SlotTable;

/// Threads that open tables: where there are two cores, two of them run at the same time.
const THREADS: usize = 2;
/// Tables that each opens in a round: no more in all than there are classes.
const TABLES: usize = 8;
/// Far more than it takes for two to choose at the same time.
const ROUNDS: usize = 500;

#[test]
fn tables_that_are_opened_at_once_have_different_classes() {
    let scope = format!("vc{}", std::process::id());
    let (opened, arrived) = (Mutex::new(Vec::<Arc<SlotTable>>::new()), AtomicUsize::new(0));
    let (done, alike) = (Barrier::new(THREADS), Mutex::new(Vec::new()));
    let opens = || {
        for round in 1..=ROUNDS {
            // Not the barrier: that lets one go after the other.
            arrived.fetch_add(1, Ordering::SeqCst);
            for looks in 1.. {
                if arrived.load(Ordering::SeqCst) == round * THREADS {
                    break;
                }
                if looks % 10_000 == 0 { thread::yield_now() } else { std::hint::spin_loop() }
            }
            let tables: Vec<_> =
                (0..TABLES).map(|_| SlotTable::with_scope(&scope).unwrap()).collect();
            opened.lock().unwrap().extend(tables);
            if done.wait().is_leader() {
                let tables = std::mem::take(&mut *opened.lock().unwrap());
                let mut classes: Vec<_> =
                    tables.iter().map(|table| table.claim().unwrap().class()).collect();
                classes.sort_unstable();
                classes.dedup();
                if classes.len() != tables.len() {
                    alike.lock().unwrap().push((round, classes));
                }
            }
            done.wait();
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(opens))));
    assert_eq!(*alike.lock().unwrap(), []);
}
