//! What a queue pair does over a socket when its peer breaks a rule: the exact Terminate, the end
//! of the connection, one event, all that was posted flushed, and a count. Every rule is broken in
//! `vernic-proto/src/iwarp/tests/violations.rs`; here is one of each layer and kind.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use common::iwarp::{News, Owner, end, queue_pair, raw_peer, recv, until_error};
use common::{PATIENCE, wr};
use vernic_engine::iwarp::{Ending, default_stream};
use vernic_engine::*;
use vernic_wire::iwarp::{
    Control, DdpHeader, FpduHeader, Msn, QueueNumber, RdmapOpcode as Op, ReadRequest, Segment,
    Tagged, TermCode as T, Terminate, Untagged,
};

/// An FPDU without a CRC.
fn fpdu(header: &DdpHeader, body: &[u8]) -> Vec<u8> {
    let head = FpduHeader { ulpdu_len: (header.len() + body.len()) as u16 };
    let mut bytes = vec![0; FpduHeader::LEN + header.len()];
    head.emit(&mut bytes);
    header.emit(&mut bytes[FpduHeader::LEN..]);
    bytes.extend_from_slice(body);
    bytes.resize(head.fpdu_len(), 0);
    bytes
}

/// The second message of queue 0, and what else is to be wrong about it.
fn untagged(opcode: Op, change: impl FnOnce(&mut Untagged)) -> DdpHeader {
    let control = Control { tagged: false, ..Control::new(opcode, true) };
    let queue = opcode.info().and_then(|info| info.queue).unwrap_or(QueueNumber(0));
    let msn = Msn(if queue == QueueNumber(0) { 2 } else { 1 });
    let mut header = Untagged { control, invalidate: Rkey(0), queue, msn, offset: 0 };
    change(&mut header);
    DdpHeader::Untagged(header)
}

fn write(stag: Rkey, offset: u64, change: impl FnOnce(&mut Tagged)) -> DdpHeader {
    let control = Control { tagged: true, ..Control::new(Op::WRITE, true) };
    let mut header = Tagged { control, stag, offset };
    change(&mut header);
    DdpHeader::Tagged(header)
}

/// What is sent to memory of `len` bytes from `base` on with key `stag`, what it earns, and as what
/// the application hears of it.
fn offences(stag: Rkey, base: u64, len: u64) -> Vec<(Vec<u8>, T, EventKind)> {
    let (access, request) = (EventKind::QpAccessError, EventKind::QpRequestError);
    let same = |_: &mut Untagged| ();
    let nowhere = Rkey(stag.value() ^ 0x55_0000);
    let read = |stag| {
        let mut body = vec![0; ReadRequest::LEN];
        ReadRequest { size: 8, source_stag: stag, source_offset: base, ..Default::default() }
            .emit(&mut body);
        fpdu(&untagged(Op::READ_REQUEST, same), &body)
    };
    let mut short = vec![0; FpduHeader { ulpdu_len: 13 }.fpdu_len()];
    FpduHeader { ulpdu_len: 13 }.emit(&mut short);
    vec![
        (short, T::RDMAP_OPERATION_OTHER, request),
        (fpdu(&write(nowhere, base, |_| ()), &[1; 8]), T::DDP_TAGGED_STAG, access),
        (fpdu(&write(stag, base + len - 7, |_| ()), &[1; 8]), T::DDP_TAGGED_BOUNDS, access),
        (fpdu(&write(stag, u64::MAX - 3, |_| ()), &[1; 8]), T::DDP_TAGGED_WRAP, access),
        (
            fpdu(&write(stag, base, |header| header.control.ddp_version = 2), &[1; 8]),
            T::DDP_TAGGED_VERSION,
            request,
        ),
        (
            fpdu(&untagged(Op::SEND, |header| header.queue = QueueNumber(4)), &[1; 8]),
            T::DDP_UNTAGGED_QUEUE,
            request,
        ),
        (
            fpdu(&untagged(Op::SEND, |header| header.msn = Msn(4)), &[1; 8]),
            T::DDP_UNTAGGED_MSN,
            request,
        ),
        (
            fpdu(&untagged(Op::SEND, |header| header.offset = 4), &[1; 8]),
            T::DDP_UNTAGGED_OFFSET,
            request,
        ),
        (fpdu(&untagged(Op::SEND, same), &[1; 11]), T::DDP_UNTAGGED_TOO_LONG, request),
        (fpdu(&untagged(Op(0xF), same), &[]), T::RDMAP_OPCODE, request),
        (
            fpdu(&untagged(Op::SEND, |header| header.control.rdmap_version = 2), &[1; 8]),
            T::RDMAP_VERSION,
            request,
        ),
        (read(nowhere), T::RDMAP_STAG, access),
    ]
}

/// The last word of the other end, behind which there is nothing.
fn last_word(peer: &mut TcpStream) -> Terminate {
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    let header = FpduHeader::parse(&bytes).unwrap();
    assert_eq!(bytes.len(), header.fpdu_len(), "one FPDU");
    let ulpdu = &bytes[FpduHeader::LEN..][..usize::from(header.ulpdu_len)];
    let segment = Segment::parse(ulpdu).unwrap();
    assert_eq!(segment.header.control().opcode, Op::TERMINATE);
    Terminate::parse(segment.body).unwrap()
}

#[test]
fn every_offence_ends_the_connection_with_its_terminate_and_is_told_once() {
    let end = end();
    let len = end.mr.len();
    let memory = end.bytes(0, 64);
    for (n, (bytes, code, event)) in (1..).zip(offences(end.mr.rkey(), end.mr.iova(), len)) {
        let (qp, owner) = (queue_pair(&end), Arc::new(Owner::default()));
        for wr_id in [8, 9] {
            recv(&end, &qp, wr_id, 100, 10);
        }
        let mut peer = raw_peer(&end, &qp, default_stream(), Some(owner.clone()));
        // A first message, so that the other end may speak.
        let first = untagged(Op::SEND, |header| header.msn = Msn(1));
        peer.write_all(&fpdu(&first, &[])).unwrap();
        assert_eq!(end.wait(1)[0].wr_id, 8);
        // A READ that it will not answer.
        let read = SendOp::Read(Remote { addr: 0, rkey: Rkey(0x100) });
        let flags = SendFlags::SIGNALED;
        qp.post_send(&[SendWr { flags, ..wr(7, read, &[end.sge(200, 8)]) }]).unwrap();
        let mut request = [0; 2 + 18 + ReadRequest::LEN + 4];
        peer.read_exact(&mut request).unwrap();
        peer.write_all(&bytes).unwrap();
        assert_eq!(last_word(&mut peer).code, code, "{code}");
        assert_eq!(owner.next(), News::Established);
        assert_eq!(owner.next(), News::Ended(Ending::Aborted(code)));
        until_error(&end, &qp);
        let mut done = end.wait(2);
        done.sort_by_key(|wc| wc.wr_id);
        assert_eq!([done[0].wr_id, done[1].wr_id], [7, 9], "{code}");
        assert_eq!(done[0].status, WcStatus::Flushed, "{code}");
        assert_ne!(done[1].status, WcStatus::Success, "{code}");
        let told: Vec<_> =
            std::iter::from_fn(|| end.context.try_async_event()).map(|event| event.kind).collect();
        assert_eq!(told, [event], "{code}");
        assert_eq!(end.context.counters().streams.terminates_sent, n);
        assert_eq!(end.bytes(0, 64), memory, "{code}");
        assert!(owner.is_done());
    }
}
