//! Awaited operations do not allocate, each: what they need was made with their connection.
#![cfg(feature = "tokio")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use vernic::net::{Connection, Listener};
use vernic::{Access, Inline};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what each thread asks for.
struct Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
#[allow(unsafe_code, reason = "there is no other way to count allocations")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[tokio::test]
async fn operations_do_not_allocate_each_whether_they_sleep_or_not() {
    let mut listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr();
    let (server, client) = tokio::join!(listener.accept(), Connection::connect(place));
    let (server, client) = (server.unwrap(), client.unwrap());
    let theirs = server.alloc_mr(64, Access::NONE.remote_write().remote_atomic()).unwrap();
    let ours = client.alloc_mr(64, Access::NONE).unwrap();
    let at = theirs.remote();
    let inbox = server.alloc_mr(8, Access::NONE.local_write()).unwrap();
    let turns = async |count: u64| {
        for _ in 0..count {
            client.write(&ours, at.at(0)).await.unwrap();
            client.fetch_add(at.at(8), 1).await.unwrap();
            // The SEND cannot complete before the receive is posted, so it sleeps.
            let (sent, received) = tokio::join!(client.send(Inline(b"x")), server.recv(&inbox));
            sent.unwrap();
            received.unwrap();
        }
    };
    // What the runtime and the device keep is made by then.
    turns(100).await;
    let before = ALLOCATIONS.get();
    turns(1000).await;
    // A few are made now and then, by whom is not known; nothing is for each operation.
    let count = ALLOCATIONS.get() - before;
    assert!(count < 100, "{count} allocations in 4000 operations");
}
