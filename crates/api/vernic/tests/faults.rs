//! Failures: each is a status, a named object and a sentence that explains it. And memory: whatever
//! is dropped when, nothing reaches bytes that it may not.

mod pair;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pair::{ALL, LONG, Pair, connect_two, failure};
use vernic::*;

#[test]
fn a_peer_that_is_not_there_is_named_with_the_number_of_transmissions() {
    let pair = Pair::new();
    let (gone, gid) = (pair.b.qpn(), pair.b.endpoint().gid);
    drop(pair.b);
    pair.a.post_send(WrId(7), Inline(b"anybody?")).unwrap();
    pair.a.post_send(WrId(8), Inline(b"no")).unwrap();
    let error = failure(&pair.cq_a);
    assert_eq!(error.status(), WcStatus::RetryExceeded);
    let text = error.to_string();
    let (gone, gid) = (gone.to_string(), gid.to_ip().to_string());
    for part in ["work request 7", &gone, &gid, "3 transmissions", "PSN", "it never answered"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let flushed = failure(&pair.cq_a);
    assert_eq!(flushed.status(), WcStatus::Flushed);
    assert!(flushed.to_string().contains("failed before with RetryExceeded"), "{flushed}");
    assert_eq!(pair.a.state(), QpState::Error);
    assert_eq!(pair.a.explain().unwrap().failure.wr_id, Some(7));
}

#[test]
fn the_process_of_a_peer_that_does_not_answer_tells_what_is_wrong_with_it() {
    // Another queue pair than the one before asks, and not the same process twice at a time.
    for destroy in [false, true] {
        let pair = Pair::new();
        let peer = pair.b.qpn();
        let b = pair.b.reset().unwrap();
        let kept = (!destroy).then(|| b.init(InitAttr::default()).unwrap());
        pair.a.post_send(WrId(7), Inline(b"anybody?")).unwrap();
        assert_eq!(failure(&pair.cq_a).status(), WcStatus::RetryExceeded);
        let deadline = Instant::now() + LONG;
        let told = loop {
            let explanation = pair.a.explain().unwrap();
            if let Some(told) = &explanation.circumstances.peer_qp {
                assert!(explanation.to_string().contains(&told.to_string()));
                break told.clone();
            }
            assert!(Instant::now() < deadline, "no answer: {explanation}");
            std::thread::yield_now();
        };
        let finding = match destroy {
            false => PeerFinding::NotReady(QpState::Init),
            true => PeerFinding::Missing,
        };
        assert_eq!((told.qpn, told.pid, told.finding), (peer, std::process::id(), finding));
        drop(kept);
    }
}

#[test]
fn a_failure_is_explained_also_after_its_queue_pair_was_reset_or_destroyed() {
    for destroy in [false, true] {
        let pair = Pair::new();
        drop(pair.b);
        pair.a.post_send(WrId(7), Inline(b"anybody?")).unwrap();
        let mut wcs = [Wc::default()];
        let wc = pair.cq_a.wait(&mut wcs, LONG).unwrap()[0];
        let mut kept = None;
        if destroy {
            drop(pair.a);
        } else {
            kept = Some(pair.a.reset().unwrap());
        }
        let error = pair.cq_a.check(&wc).unwrap_err().to_string();
        assert!(error.contains("no answer after 3 transmissions"), "{error}");
        // What it is brought up for next is another story.
        if let Some(qp) = kept {
            let qp = qp.init(InitAttr::default()).unwrap();
            assert!(qp.explain().is_none());
            let error = pair.cq_a.check(&wc).unwrap_err().to_string();
            assert!(!error.contains("no answer"), "{error}");
        }
    }
}

#[test]
fn a_wait_in_vain_says_what_the_queue_pairs_wait_for() {
    let pair = Pair::new();
    let long = Duration::from_secs(1);
    let error = pair.cq_b.wait(&mut [Wc::default()], long).unwrap_err().to_string();
    let (a, b) = (pair.a.qpn(), pair.b.qpn());
    assert!(error.contains(&format!("queue pair {b} has no request and no receive")), "{error}");
    pair.a.post_send(WrId(7), Inline(b"too early")).unwrap();
    let mut wcs = [Wc::default()];
    // Its retries may be over by then.
    match pair.cq_a.wait(&mut wcs, long) {
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(&format!("queue pair {a} waits ")), "{error}");
        }
        Ok(failed) => assert_eq!(failed[0].status(), WcStatus::RnrRetryExceeded),
    }
    // A short wait is no reason to look.
    let short = pair.cq_b.wait(&mut [Wc::default()], Duration::from_millis(1)).unwrap_err();
    assert!(short.to_string().contains("is a receive posted"), "{short}");
}

#[test]
fn every_status_of_a_failure_has_its_place_on_the_page_of_errors() {
    let page = include_str!("../../../../docs/errors.md");
    for status in [
        WcStatus::LocalLength,
        WcStatus::LocalQpOperation,
        WcStatus::LocalProtection,
        WcStatus::Flushed,
        WcStatus::MwBind,
        WcStatus::BadResponse,
        WcStatus::LocalAccess,
        WcStatus::RemoteInvalidRequest,
        WcStatus::RemoteAccess,
        WcStatus::RemoteOperation,
        WcStatus::RetryExceeded,
        WcStatus::RnrRetryExceeded,
        WcStatus::RemoteAborted,
        WcStatus::Fatal,
        WcStatus::ResponseTimeout,
        WcStatus::General,
    ] {
        let (heading, anchor) = (format!("\n## {status}\n"), status.to_string().to_lowercase());
        let has_place = page.contains(&heading) || page.contains(&format!("<a id=\"{anchor}\">"));
        assert!(has_place, "{heading}");
        assert!(page.contains(&format!("`{status:?}`")), "{status:?}");
    }
}

#[test]
fn a_dead_remote_key_is_refused_and_explained_at_both_ends() {
    let pair = Pair::new();
    let (local, remote) = (pair.mr(64), pair.mr(64));
    let place = remote.remote();
    assert_eq!(remote.deregister().len(), 64);
    pair.a.post_write(WrId(1), &local, place.at(0)).unwrap();
    let error = failure(&pair.cq_a);
    assert_eq!(error.status(), WcStatus::RemoteAccess);
    let Cause::RemoteNak { asked: Some(asked), .. } = error.explanation().unwrap().failure.cause
    else {
        panic!("{error}");
    };
    assert_eq!((asked.remote.addr, asked.remote.rkey), (place.addr, place.rkey));
    let sent = format!("64 bytes at {:#x} with R_Key {:#010x}", place.addr, place.rkey.value());
    assert!(error.to_string().contains(&sent), "{error}");
    assert!(error.to_string().contains("the peer's log"), "{error}");
    let event = pair.device.events().wait(Some(LONG)).unwrap().expect("an access error at b");
    assert_eq!((event.kind, event.element), (EventKind::QpAccessError, Element::Qp(pair.b.qpn())));
    let at_b = pair.b.explain().unwrap().to_string();
    assert!(at_b.contains("key was deregistered"), "{at_b}");
}

#[test]
fn without_rights_of_the_queue_pair_those_of_the_region_do_not_count() {
    let device = Device::open("lo").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let (a, b) = connect_two(&pd, &cq, &cq, Access::NONE);
    let region = pd.alloc_mr(64, ALL).unwrap();
    a.post_write(WrId(1), Inline(b"x"), region.remote().at(0)).unwrap();
    assert_eq!(failure(&cq).status(), WcStatus::RemoteInvalidRequest);
    let text = b.explain().unwrap().to_string();
    assert!(text.contains("the queue pair does not grant this right"), "{text}");
    assert_eq!(region.to_vec(..).unwrap(), [0; 64]);
}

#[test]
fn a_region_of_another_domain_is_out_of_reach() {
    let pair = Pair::new();
    let elsewhere = pair.device.alloc_pd().unwrap().alloc_mr(64, ALL).unwrap();
    pair.a.post_write(WrId(1), Inline(b"x"), elsewhere.remote().at(0)).unwrap();
    assert_eq!(failure(&pair.cq_a).status(), WcStatus::RemoteAccess);
    let text = pair.b.explain().unwrap().to_string();
    assert!(text.contains("another protection domain"), "{text}");
    assert_eq!(elsewhere.to_vec(..).unwrap(), [0; 64]);
}

#[test]
fn work_whose_region_was_dropped_fails_and_touches_nothing() {
    let pair = Pair::new();
    let (local, remote) = (pair.mr(64), pair.mr(64));
    let kept = local.buffer();
    remote.write_at(0, &[7; 64]).unwrap();
    // The peer is not ready for the SEND, so the READ behind it waits until the region is gone.
    pair.a.post_send(WrId(1), ()).unwrap();
    let mut batch = pair.a.send_batch();
    batch.read(WrId(2), &local, remote.remote().at(0)).fence().signaled();
    batch.commit().unwrap();
    drop(local);
    pair.b.post_recv(WrId(1), ()).unwrap();
    assert!(pair.cq_a.wait_one(LONG).unwrap().is_success());
    let error = failure(&pair.cq_a);
    assert_eq!(error.status(), WcStatus::LocalProtection, "{error}");
    let mut bytes = [1; 64];
    kept.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn windows_grant_part_of_a_region_until_they_are_taken_back() {
    let pair = Pair::new();
    let region = pair.pd.alloc_mr(4096, Access::NONE.local_write().bind_windows()).unwrap();
    let window = pair.pd.alloc_window::<Type1>().unwrap();
    let grant = window.bind(&region, 1024..2048, Access::NONE.remote_write()).unwrap();
    assert_eq!(grant.len, 1024);
    pair.a.post_write(WrId(1), Inline(b"one"), grant.at(1000)).unwrap();
    pair.cq_a.wait_one(LONG).unwrap();
    assert_eq!(region.to_vec(2024..2027).unwrap(), b"one");
    let narrower = window.bind(&region, ..8, Access::NONE.remote_write()).unwrap();
    assert_ne!(narrower.rkey, grant.rkey);
    window.unbind().unwrap();
    pair.a.post_write(WrId(2), Inline(b"two"), narrower.at(0)).unwrap();
    assert_eq!(failure(&pair.cq_a).status(), WcStatus::RemoteAccess);
    assert_eq!(region.to_vec(..8).unwrap(), [0; 8]);
}

#[test]
fn a_window_bound_by_work_request_ends_with_the_peers_invalidate() {
    let pair = Pair::new();
    let region = pair.pd.alloc_mr(4096, Access::NONE.local_write().bind_windows()).unwrap();
    let mut window = pair.pd.alloc_window::<Type2>().unwrap();
    let rights = Access::NONE.remote_read().remote_write();
    let grant = pair.b.post_bind(WrId(2), &mut window, &region, 64..128, rights).unwrap();
    assert_eq!(pair.cq_b.wait_one(LONG).unwrap().opcode(), WcOpcode::BindMw);
    assert_eq!(window.rkey(), grant.rkey);
    pair.a.post_write(WrId(3), Inline(b"two"), grant.at(0)).unwrap();
    pair.cq_a.wait_one(LONG).unwrap();
    assert_eq!(region.to_vec(64..67).unwrap(), b"two");

    pair.b.post_recv(WrId(4), ()).unwrap();
    let mut batch = pair.a.send_batch();
    batch.send_inv(WrId(5), (), grant.rkey).signaled();
    batch.commit().unwrap();
    assert_eq!(pair.cq_b.wait_one(LONG).unwrap().invalidated(), Some(grant.rkey));
    pair.cq_a.wait_one(LONG).unwrap();
    pair.a.post_write(WrId(6), Inline(b"three"), grant.at(0)).unwrap();
    assert_eq!(failure(&pair.cq_a).status(), WcStatus::RemoteAccess);
    assert_eq!(region.to_vec(64..69).unwrap(), b"two\0\0");
}

#[test]
fn an_overflowed_completion_queue_is_an_error_and_no_silence() {
    let device = Device::open("lo").unwrap();
    let (pd, tiny) = (device.alloc_pd().unwrap(), device.create_cq(1).unwrap());
    let cq = device.create_cq(64).unwrap();
    let (a, b) = connect_two(&pd, &tiny, &cq, Access::NONE);
    (0..4).for_each(|i| b.post_recv(WrId(i), ()).unwrap());
    (0..4).for_each(|i| a.post_send(WrId(i), ()).unwrap());
    let event = device.events().wait(Some(LONG)).unwrap().expect("the overflow");
    assert_eq!((event.kind, event.element), (EventKind::CqError, Element::Cq(tiny.id())));
    let mut wcs = [Wc::default(); 4];
    assert_eq!(tiny.wait(&mut wcs, LONG).unwrap().len(), 1);
    let error = tiny.wait(&mut wcs, Duration::ZERO).unwrap_err();
    assert_eq!(error, WaitError::Overflow(error::CqOverrun { depth: 1 }));
}

#[test]
#[allow(unsafe_code)]
fn raw_memory_is_reached_like_any_other() {
    let pair = Pair::new();
    let words: Vec<AtomicU64> = (0..8).map(AtomicU64::new).collect();
    let addr = words.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: `words` lives until the region is dropped, and is only accessed atomically.
    let raw = unsafe { pair.pd.register_raw(addr, 64, ALL) }.unwrap();
    let local = pair.mr(8);
    pair.a.post_fetch_add(WrId(1), &local, raw.remote().at(8), 41).unwrap();
    pair.cq_a.wait_one(LONG).unwrap();
    assert_eq!(words[1].load(Ordering::Acquire), 42);
    assert_eq!(local.load_u64(0).unwrap(), 1);
    let place = local.remote().at(0);
    pair.a.post_write(WrId(2), raw.slice(16..24).unwrap(), place).unwrap();
    pair.cq_a.wait_one(LONG).unwrap();
    assert_eq!(local.load_u64(0).unwrap(), 2);
    drop(raw);
}
