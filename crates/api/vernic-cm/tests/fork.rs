//! Children of `fork`: the manager goes on in both processes, with devices of their own.
//!
//! Without the test harness, whose threads would make a fork of this process one of a process with
//! many.

#![allow(unsafe_code)]
#![allow(clippy::print_stdout)] // there is no harness to do it

mod common;

use common::*;
use vernic_cm::{ConnParam, EventKind, PortSpace, QpType, State};

fn main() {
    a_child_connects_to_its_parent_through_the_same_manager();
    println!("fork: all passed");
}

fn a_child_connects_to_its_parent_through_the_same_manager() {
    let side = Side::new();
    let (listener, place) = side.listener(PortSpace::TCP, QpType::Rc, "127.0.0.1:0");
    let bystander = side.tcp();
    bystander.resolve_addr(None, place, SOON).unwrap();
    // SAFETY: the child uses nothing of the parent's but what says that it is safe to.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let outcome = std::panic::catch_unwind(|| {
            // The parent's ids and channels are refused, and go without a word.
            assert!(side.channel.is_orphan() && listener.is_orphan());
            assert!(side.channel.try_next().is_none());
            assert_eq!(side.channel.wait().unwrap_err().raw_os_error(), Some(libc::EIO));
            assert_eq!(listener.listen(1).unwrap_err().errno(), libc::EIO);
            assert_eq!(listener.state(), State::Destroyed);
            let error = side.manager.create_id(Some(&side.channel), PortSpace::TCP, QpType::Rc);
            assert_eq!(error.unwrap_err().errno(), libc::EIO);
            bystander.destroy();
            drop(bystander);
            // The manager itself goes on.
            let own = Side {
                channel: side.manager.create_channel().unwrap(),
                manager: side.manager.clone(),
            };
            let (id, end) = own.connecting(place, &ConnParam::default());
            own.expect(EventKind::Established);
            end.post_recv();
            end.complete();
            id.disconnect().unwrap();
            own.expect(EventKind::Disconnected);
        });
        // SAFETY: ends this process without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    side.expect(EventKind::AddrResolved);
    let accepted = side.expect(EventKind::ConnectRequest).id.clone();
    let end = End::new(&accepted);
    accepted.attach_qp(end.qp.clone()).unwrap();
    accepted.accept(&ConnParam::default()).unwrap();
    side.expect(EventKind::Established);
    end.send();
    end.complete();
    side.expect(EventKind::Disconnected);
    accepted.disconnect().unwrap();
    let mut status = 0;
    // SAFETY: waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}
