//! What a message costs in instructions: one thread drives both queue pairs of this process, and
//! all that the library does for the message, at both ends, happens in `measured`.
//!
//! `instructions WORK MESSAGES`. `cargo xtask instructions` runs it under callgrind and counts; by
//! itself it prints nothing.

use vernic::{
    Access, Ah, Cq, Device, Error, InitAttr, Mr, Pd, Qkey, Qp, Rc, Reset, Route, Rts, Service, Uc,
    Ud, UdInit, Wc, WhyWire, WrId,
};

/// Requests of a list.
const LIST: usize = 16;

/// Requests of a stream in flight.
const STREAM: usize = 64;

/// A kind of message, and how many are posted at once.
#[derive(Clone, Copy)]
enum Work {
    Write {
        len: usize,
        list: usize,
    },
    Read {
        len: usize,
        list: usize,
    },
    FetchAdd,
    Send {
        len: usize,
    },
    /// Lists of SENDs, a few of them in flight at a time.
    SendStream {
        len: usize,
        list: usize,
    },
    /// Lists of SENDs of UC, likewise.
    UcStream {
        list: usize,
    },
    /// Lists of datagrams, likewise.
    UdStream {
        list: usize,
    },
}

impl Work {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "write_8_list" => Self::Write { len: 8, list: LIST },
            "write_8" => Self::Write { len: 8, list: 1 },
            "write_64k" => Self::Write { len: 64 << 10, list: 1 },
            "read_8_list" => Self::Read { len: 8, list: LIST },
            "read_8" => Self::Read { len: 8, list: 1 },
            "read_64k" => Self::Read { len: 64 << 10, list: 1 },
            "fetch_add" => Self::FetchAdd,
            "send_64" => Self::Send { len: 64 },
            "send_8_list" => Self::SendStream { len: 8, list: LIST },
            "uc_send_8" => Self::UcStream { list: 1 },
            "uc_send_8_list" => Self::UcStream { list: LIST },
            "ud_send_8" => Self::UdStream { list: 1 },
            "ud_send_8_list" => Self::UdStream { list: LIST },
            "send_64k" => Self::Send { len: 64 << 10 },
            _ => return None,
        })
    }

    fn len(self) -> usize {
        match self {
            Self::Write { len, .. }
            | Self::Read { len, .. }
            | Self::Send { len }
            | Self::SendStream { len, .. } => len,
            Self::FetchAdd | Self::UcStream { .. } | Self::UdStream { .. } => 8,
        }
    }
}

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let work = words.next().and_then(|name| Work::named(&name));
    let messages = words.next().and_then(|count| count.parse().ok());
    let (Some(work), Some(messages)) = (work, messages) else {
        panic!("usage: instructions WORK MESSAGES");
    };
    let device = Device::open("lo")?;
    let pd = device.alloc_pd()?;
    match work {
        Work::UcStream { list } => {
            let ends = Unreliable::<Uc>::uc(&device, &pd)?;
            warm(&device, [&ends.a, &ends.b], &|count| ends.run_uc(list, count))?;
            measured(messages, &|count| ends.run_uc(list, count))
        }
        Work::UdStream { list } => {
            let ends = Unreliable::<Ud>::ud(&device, &pd)?;
            let ah = pd.create_ah(ends.a.endpoint().gid)?;
            warm(&device, [&ends.a, &ends.b], &|count| ends.run_ud(list, count, &ah))?;
            measured(messages, &|count| ends.run_ud(list, count, &ah))
        }
        _ => {
            let ends = Ends::new(&device, &pd, work.len())?;
            warm(&device, [&ends.a, &ends.b], &|count| ends.run(work, count))?;
            measured(messages, &|count| ends.run(work, count))
        }
    }
}

type Run<'a> = &'a dyn Fn(usize) -> Result<(), Error>;

/// Runs until round trips are known, buffers are in use, and the packets of both queue pairs go
/// through shared memory if they may: the peers agree on that while the first messages go by UDP.
fn warm<S: Service>(device: &Device, qps: [&Qp<S, Rts>; 2], run: Run<'_>) -> Result<(), Error> {
    run(STREAM)?;
    let comes = |qp: &Qp<S, Rts>| match qp.route() {
        Route::Wire(why) => why != WhyWire::Datagrams && device.why_wire().is_none(),
        _ => false,
    };
    while qps.into_iter().any(comes) {
        run(STREAM)?;
    }
    Ok(())
}

/// Its own function, by whose name callgrind knows when to count.
#[inline(never)]
fn measured(messages: usize, run: Run<'_>) -> Result<(), Error> {
    run(messages)
}

/// Two connected queue pairs with a completion queue each.
struct Ends {
    a: Qp<Rc, Rts>,
    b: Qp<Rc, Rts>,
    cq_a: Cq,
    cq_b: Cq,
    at_a: Mr,
    at_b: Mr,
}

impl Ends {
    fn new(device: &Device, pd: &Pd, len: usize) -> Result<Self, Error> {
        let (cq_a, cq_b) =
            (device.create_cq(2 * STREAM as u32)?, device.create_cq(2 * STREAM as u32)?);
        let make = |cq| {
            pd.qp::<Rc>()
                .send_cq(cq)
                .recv_cq(cq)
                .max_send_wr(STREAM as u32)
                .max_recv_wr(STREAM as u32)
                .create()
        };
        let (a, b) = (make(&cq_a)?, make(&cq_b)?);
        let rights = Access::NONE.local_write().remote_write().remote_read().remote_atomic();
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        Ok(Self {
            a: a.init(InitAttr::granting(rights))?.connect(to_b)?,
            b: b.init(InitAttr::granting(rights))?.connect(to_a)?,
            cq_a,
            cq_b,
            at_a: pd.alloc_mr(len, rights)?,
            at_b: pd.alloc_mr(len, rights)?,
        })
    }

    fn run(&self, work: Work, messages: usize) -> Result<(), Error> {
        let (here, there) = (self.at_a.slice(..)?, self.at_b.remote().at(0));
        let mut batch = self.a.send_batch();
        match work {
            // They have ends of their own.
            Work::UcStream { .. } | Work::UdStream { .. } => {}
            Work::Write { list, .. } => {
                for _ in 0..messages.div_ceil(list) {
                    for id in 1..list {
                        batch.write(WrId(id as u64), here, there);
                    }
                    batch.write(WrId(list as u64), here, there).signaled();
                    batch.commit_and_clear()?;
                    complete(&self.cq_a)?;
                }
            }
            Work::Read { list, .. } => {
                for _ in 0..messages.div_ceil(list) {
                    for id in 1..list {
                        batch.read(WrId(id as u64), here, there);
                    }
                    batch.read(WrId(list as u64), here, there).signaled();
                    batch.commit_and_clear()?;
                    complete(&self.cq_a)?;
                }
            }
            Work::FetchAdd => {
                for id in 0..messages {
                    batch.fetch_add(WrId(id as u64), here, there, 1).signaled();
                    batch.commit_and_clear()?;
                    complete(&self.cq_a)?;
                }
            }
            Work::SendStream { list, .. } => {
                for _ in 0..messages.div_ceil(STREAM) {
                    for id in 0..STREAM {
                        self.b.post_recv(WrId(id as u64), self.at_b.slice(..)?)?;
                    }
                    for _ in 0..STREAM / list {
                        for id in 1..list {
                            batch.send(WrId(id as u64), here);
                        }
                        batch.send(WrId(list as u64), here).signaled();
                        batch.commit_and_clear()?;
                    }
                    complete_all(&self.cq_b, STREAM)?;
                    complete_all(&self.cq_a, STREAM / list)?;
                }
            }
            Work::Send { .. } => {
                for id in 0..messages {
                    self.b.post_recv(WrId(id as u64), self.at_b.slice(..)?)?;
                    batch.send(WrId(id as u64), here).signaled();
                    batch.commit_and_clear()?;
                    complete(&self.cq_b)?;
                    complete(&self.cq_a)?;
                }
            }
        }
        Ok(())
    }
}

/// The key of datagrams.
const QKEY: Qkey = Qkey(0x1111);

/// Two queue pairs of an unreliable service, with a completion queue each.
struct Unreliable<S: Service> {
    a: Qp<S, Rts>,
    b: Qp<S, Rts>,
    cq_a: Cq,
    cq_b: Cq,
    from: Mr,
    to: Mr,
}

impl<S: Service> Unreliable<S> {
    fn new(
        device: &Device,
        pd: &Pd,
        up: impl FnOnce([Qp<S, Reset>; 2]) -> Result<[Qp<S, Rts>; 2], Error>,
    ) -> Result<Self, Error> {
        let [cq_a, cq_b] =
            [device.create_cq(2 * STREAM as u32)?, device.create_cq(2 * STREAM as u32)?];
        let make = |cq| {
            let qp = pd.qp::<S>().send_cq(cq).recv_cq(cq);
            qp.max_send_wr(STREAM as u32).max_recv_wr(STREAM as u32).create()
        };
        let [a, b] = up([make(&cq_a)?, make(&cq_b)?])?;
        let rights = Access::NONE.local_write();
        let (from, to) = (pd.alloc_mr(8, rights)?, pd.alloc_mr(48, rights)?);
        Ok(Self { a, b, cq_a, cq_b, from, to })
    }

    fn post_receives(&self) -> Result<(), Error> {
        (0..STREAM).try_for_each(|id| Ok(self.b.post_recv(WrId(id as u64), self.to.slice(..)?)?))
    }

    fn complete(&self, list: usize) -> Result<(), Error> {
        complete_all(&self.cq_b, STREAM)?;
        complete_all(&self.cq_a, STREAM / list)
    }
}

impl Unreliable<Uc> {
    fn uc(device: &Device, pd: &Pd) -> Result<Self, Error> {
        Self::new(device, pd, |[a, b]| {
            let (to_a, to_b) = (a.endpoint(), b.endpoint());
            let a = a.init(InitAttr::default())?.connect(to_b)?;
            Ok([a, b.init(InitAttr::default())?.connect(to_a)?])
        })
    }

    fn run_uc(&self, list: usize, messages: usize) -> Result<(), Error> {
        let (here, mut batch) = (self.from.slice(..)?, self.a.send_batch());
        for _ in 0..messages.div_ceil(STREAM) {
            self.post_receives()?;
            for _ in 0..STREAM / list {
                for id in 1..list {
                    batch.send(WrId(id as u64), here);
                }
                batch.send(WrId(list as u64), here).signaled();
                batch.commit_and_clear()?;
            }
            self.complete(list)?;
        }
        Ok(())
    }
}

impl Unreliable<Ud> {
    fn ud(device: &Device, pd: &Pd) -> Result<Self, Error> {
        Self::new(device, pd, |qps| {
            let [a, b] = qps.map(|qp| Ok::<_, Error>(qp.init(UdInit { qkey: QKEY })?.activate()?));
            Ok([a?, b?])
        })
    }

    fn run_ud(&self, list: usize, messages: usize, ah: &Ah) -> Result<(), Error> {
        let (here, mut batch) = (self.from.slice(..)?, self.a.send_batch());
        for _ in 0..messages.div_ceil(STREAM) {
            self.post_receives()?;
            for _ in 0..STREAM / list {
                for id in 1..list {
                    batch.send_to(WrId(id as u64), here, ah.to(self.b.qpn(), QKEY));
                }
                let to = ah.to(self.b.qpn(), QKEY);
                batch.send_to(WrId(list as u64), here, to).signaled();
                batch.commit_and_clear()?;
            }
            self.complete(list)?;
        }
        Ok(())
    }
}

/// Waits for so many completions, as many at a time as there are.
fn complete_all(cq: &Cq, mut count: usize) -> Result<(), Error> {
    let mut wcs = [Wc::default(); LIST];
    while count != 0 {
        for wc in cq.poll(&mut wcs)? {
            cq.check(wc)?;
            count -= 1;
        }
    }
    Ok(())
}

/// Waits for one completion, and that it is none of an error.
fn complete(cq: &Cq) -> Result<(), Error> {
    let mut wcs = [Wc::default()];
    while cq.poll(&mut wcs)?.is_empty() {}
    cq.check(&wcs[0])?;
    Ok(())
}
