//! The book, docs/learn-atomics.md: a counter and a lock in the memory of another host.
//!
//! With the word `misaligned` the counter is not at a multiple of 8.
#![expect(clippy::print_stdout, reason = "a command-line program")]

#[path = "common/two_ends.rs"]
mod two_ends;

use two_ends::{End, PATIENCE, outcome, word};
use vernic::{Access, Device, Error, Mr, RcOptions, RemoteMr, WrId};

/// Where the counter and the lock are, in bytes.
const COUNTER: u64 = 0;
const LOCK: u64 = 8;

fn main() -> Result<(), Error> {
    let is_misaligned = word(&["misaligned"])? == "misaligned";
    let device = Device::open("lo")?;
    let rights = Access::NONE.remote_read().remote_write().remote_atomic();
    let (server, clients) = (device.alloc_pd()?, device.alloc_pd()?);
    let memory = server.alloc_mr(64, rights)?;
    let connect = || two_ends::connected_in([&clients, &server], rights, &RcOptions::default());
    let ((one, server_one), (two, _server_two)) = (connect()?, connect()?);
    let (one, two) = (Client::new(one, memory.remote())?, Client::new(two, memory.remote())?);

    if is_misaligned {
        one.end.qp.post_fetch_add(WrId(1), &one.word, memory.remote().at(4), 1)?;
        println!("client: {}", outcome(&one.end.cq));
        if let Some(why) = server_one.qp.explain() {
            println!("server: {why}");
        }
        return Ok(());
    }

    // Both clients add 1 as they would to a variable: read, add, write. One of them is lost.
    let (read_by_one, read_by_two) = (one.read(COUNTER)?, two.read(COUNTER)?);
    one.write(COUNTER, read_by_one + 1)?;
    two.write(COUNTER, read_by_two + 1)?;
    println!("two clients added 1 by READ and WRITE: {}", memory.load_u64(COUNTER as usize)?);

    // FETCH_ADD is one step. It brings the value before.
    memory.write_at(0, &0u64.to_ne_bytes())?;
    let before = [one.add(1)?, two.add(1)?];
    let counter = memory.load_u64(COUNTER as usize)?;
    println!("two clients added 1 by FETCH_ADD: {counter}, which was {before:?} before");

    // From two threads at once, 1000 times each.
    std::thread::scope(|scope| {
        let threads = [&one, &two]
            .map(|client| scope.spawn(move || (0..1000).try_for_each(|_| client.add(1).map(drop))));
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    println!("after 1000 more of each: {}", memory.load_u64(COUNTER as usize)?);

    // CMP_SWAP stores if the value is as expected: a lock, free while it is 0.
    println!("one takes the lock: {}", one.swap(0, 1)? == 0);
    println!("two takes the lock: {}", two.swap(0, 2)? == 0);
    one.write(LOCK, 0)?;
    println!("one frees it, two takes it: {}", two.swap(0, 2)? == 0);
    Ok(())
}

/// A client, with room for the 8 bytes that come or go.
struct Client {
    end: End,
    word: Mr,
    theirs: RemoteMr,
}

impl Client {
    fn new(end: End, theirs: RemoteMr) -> Result<Self, Error> {
        let word = end.pd.alloc_mr(8, Access::NONE.local_write())?;
        Ok(Self { end, word, theirs })
    }

    /// Waits for the request that was posted; what it brought.
    fn finish(&self) -> Result<u64, Error> {
        self.end.cq.wait_one(PATIENCE)?;
        Ok(self.word.load_u64(0)?)
    }

    fn read(&self, offset: u64) -> Result<u64, Error> {
        self.end.qp.post_read(WrId(1), &self.word, self.theirs.at(offset))?;
        self.finish()
    }

    fn write(&self, offset: u64, value: u64) -> Result<(), Error> {
        self.word.write_at(0, &value.to_ne_bytes())?;
        self.end.qp.post_write(WrId(2), &self.word, self.theirs.at(offset))?;
        self.finish().map(drop)
    }

    fn add(&self, number: u64) -> Result<u64, Error> {
        self.end.qp.post_fetch_add(WrId(3), &self.word, self.theirs.at(COUNTER), number)?;
        self.finish()
    }

    /// The value of the lock before: the swap was made if it is `expected`.
    fn swap(&self, expected: u64, new: u64) -> Result<u64, Error> {
        let place = self.theirs.at(LOCK);
        self.end.qp.post_cmp_swap(WrId(4), &self.word, place, expected, new)?;
        self.finish()
    }
}
