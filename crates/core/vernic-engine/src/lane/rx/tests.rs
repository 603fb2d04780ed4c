//! A neighbour that writes to its ring what no sender writes: each record is dropped under a reason
//! of its own, and nothing is answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_io::host::Slot;
use vernic_local::MessageHead;
use vernic_local::{head_of, put_tail};
use vernic_mem::Access;
use vernic_proto::{AttrMask, MessagePart, PartAck, QpAttr, QpState, QpType, Tag};
use vernic_wire::{Aeth, Gid, Mtu, PortNum, Psn, Rkey, Srqn};

use super::*;
use crate::testing::{ud_qp, without_background};
use crate::{
    AddressVector, Context, Cq, Mr, Pd, Qp, QpCap, QpInit, RecvWr, Sge, XrcIniInit, XrcdOpen,
};

/// A part of one SEND without payload, for the first sequence number of a queue pair.
const PART: MessagePart = MessagePart {
    psn: Psn::new(0),
    length: 0,
    mtu: Mtu::B1024,
    is_rendezvous: false,
    starts: true,
    ends: true,
    solicited: false,
    tag: Tag::None,
    srqn: None,
};

/// A device that is its own local peer, so that the test writes what the device reads.
struct Neighbour {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    /// A queue pair that is connected to itself, and has one receive.
    qp: Arc<Qp>,
    id: LocalPeerId,
}

impl Neighbour {
    fn new() -> Self {
        let context = without_background();
        let (pd, cq) = (context.alloc_pd(), context.create_cq(64, None).unwrap());
        let qp = create(&pd, &cq, Service::Rc);
        connect(&context, &qp, context.gid_table()[0].gid, qp.qpn());
        qp.post_recv(&[RecvWr { wr_id: 7, sges: &[] as &[Sge] }]).unwrap();
        let (slot, engine) = (Slot::of(qp.qpn()), context.engine());
        let since = Instant::now();
        let id = loop {
            engine.serve_local_peers();
            let met = |lane: &mut LaneState| {
                let id = lane.local_peers.owner_of(slot).0?;
                lane.local_peers.has_writer(id).then_some(id)
            };
            if let Some(id) = engine.with_lane(|lane| met(lane)) {
                break id;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "it does not meet itself");
        };
        Self { context, pd, cq, qp, id }
    }

    /// Writes a message to the ring; returns false if there is no room.
    fn write(&self, head: MessageHead, payload: &[u8]) -> bool {
        self.context.engine().with_lane(|lane| {
            let Some(writer) = lane.local_peers.writer_of(self.id) else { return false };
            let has_room = writer.has_room(0) == Ok(true);
            if has_room {
                writer.push_message(head, payload);
                let _ = writer.publish();
            }
            has_room
        })
    }

    /// Receives from the ring once; returns how many records that were.
    fn receive(&self) -> usize {
        let engine = self.context.engine();
        engine.with_lane(|lane| lane.receive_rings(engine, engine.now()))
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.context.engine().counts().drops(reason)
    }

    /// Writes one message, and checks that it is dropped for this reason alone, without an answer.
    fn drops_for(&self, reason: DropReason, what: &str, head: MessageHead, payload: &[u8]) {
        let all = || DropReason::ALL.iter().map(|&reason| self.drops(reason)).sum::<u64>();
        let sent = || self.context.counters().near_tx_packets;
        let before = (all(), self.drops(reason), sent());
        assert!(self.write(head, payload), "{what}");
        assert_eq!(self.receive(), 1, "{what}");
        assert_eq!((all(), self.drops(reason)), (before.0 + 1, before.1 + 1), "{what}");
        self.context.progress();
        assert_eq!(sent(), before.2, "{what}: answered");
    }

    /// Checks that the queue pair takes what its peer sends.
    fn is_unharmed(&self) {
        assert_eq!(self.qp.state(), QpState::Rtr);
        assert!(self.write(head_of(self.qp.qpn(), &PART, None), &[]));
        assert_eq!(self.receive(), 1);
        let mut wc = [crate::EMPTY_WC; 2];
        assert_eq!(self.cq.poll(&mut wc), Ok(1));
        assert_eq!((wc[0].wr_id, wc[0].byte_len), (7, 0));
        // Its acknowledgement comes to itself.
        self.context.progress();
        self.receive();
    }
}

fn create(pd: &Arc<Pd>, cq: &Arc<Cq>, service: Service) -> Arc<Qp> {
    let (send_cq, recv_cq, cap) = (cq.clone(), cq.clone(), QpCap::default());
    let init =
        QpInit { service, send_cq, recv_cq, srq: None, cap, signal_all: true, congestion: None };
    pd.create_qp(init).unwrap()
}

/// Brings a queue pair to RTR, connected to `dest` at `dgid`.
fn connect(context: &Context, qp: &Qp, dgid: Gid, dest: Qpn) {
    use AttrMask as M;
    let of_its_kind = |gid: Gid| gid.to_ip().is_ipv4() == dgid.to_ip().is_ipv4();
    let table = context.gid_table();
    let sgid_index = table.iter().find(|entry| of_its_kind(entry.gid)).unwrap().index;
    let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..AddressVector::default() };
    for state in [QpState::Init, QpState::Rtr] {
        let attr = QpAttr { state, av, dest_qpn: dest, ..QpAttr::default() };
        let mask = match state {
            QpState::Init => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            _ => {
                let mask = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
                let responds = !matches!(qp.qp_type(), QpType::Uc | QpType::XrcIni);
                let more = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
                if responds { mask | more } else { mask }
            }
        };
        qp.modify(&attr, mask | M::STATE).unwrap();
    }
}

#[test]
fn heads_that_no_sender_writes_are_malformed() {
    let t = Neighbour::new();
    let good = head_of(t.qp.qpn(), &PART, None);
    let [dest, psn, tag] = good.words;
    let heads = [
        // Of XRC, without the number of a shared receive queue.
        MessageHead { flags: good.flags | 1 << 9, ..good },
        MessageHead { flags: good.flags | 1 << 10, ..good },
        MessageHead { flags: good.flags | 1 << 15, ..good },
        // Path MTUs that are none.
        MessageHead { flags: good.flags & 0b11_1111, ..good },
        MessageHead { flags: good.flags | 7 << 6, ..good },
        MessageHead { words: [dest | 1 << 24, psn, tag], ..good },
        MessageHead { words: [dest, psn | 1 << 31, tag], ..good },
        // Solicited, but not the last; immediate data and a key at a time.
        MessageHead { flags: good.flags & !0b10 | 0b100, ..good },
        MessageHead { flags: good.flags | 0b11_0000, ..good },
    ];
    for head in heads {
        t.drops_for(DropReason::Malformed, &format!("{head:?}"), head, &[]);
    }
    t.is_unharmed();
}

#[test]
fn parts_for_queue_pairs_that_are_none_are_dropped() {
    let t = Neighbour::new();
    for qpn in [0, 1, t.qp.qpn().value() ^ 0x55, 0xFF_FFFF] {
        let head = head_of(Qpn::new(qpn), &PART, None);
        t.drops_for(DropReason::UnknownQpn, &format!("{qpn:#x}"), head, &[1; 8]);
    }
    let qpn = t.qp.qpn();
    t.is_unharmed();
    t.qp.destroy().unwrap();
    t.drops_for(DropReason::UnknownQpn, "destroyed", head_of(qpn, &PART, None), &[]);
}

#[test]
fn parts_for_queue_pairs_of_other_services_are_dropped() {
    let t = Neighbour::new();
    let own = t.context.gid_table()[0].gid;
    let xrcd =
        t.context.open_xrcd(XrcdOpen { file: None, create: true, exclusive: false }).unwrap();
    let init = XrcIniInit {
        send_cq: t.cq.clone(),
        cap: QpCap::default(),
        signal_all: true,
        congestion: None,
    };
    let of_xrc = MessagePart { srqn: Some(Srqn::new(1)), ..PART };
    let others = [
        (create(&t.pd, &t.cq, Service::Uc), of_xrc),
        (create(&t.pd, &t.cq, Service::Rc), of_xrc),
        (xrcd.create_tgt().unwrap(), PART),
        (t.pd.create_xrc_ini(init).unwrap(), of_xrc),
    ];
    for (qp, part) in others {
        connect(&t.context, &qp, own, qp.qpn());
        let what = format!("{:?}", qp.qp_type());
        let number = if part.srqn.is_some() { &[1, 0, 0, 0][..] } else { &[] };
        t.drops_for(DropReason::WrongService, &what, head_of(qp.qpn(), &part, None), number);
        assert_eq!(qp.state(), QpState::Rtr);
    }
    // A queue pair of UD has no peer whose process could be the neighbour.
    let ud = ud_qp(&t.pd, &t.cq, QpCap::default());
    t.drops_for(DropReason::WrongSource, "UD", head_of(ud.qpn(), &PART, None), &[]);
    t.is_unharmed();
}

/// An acknowledgement, and its bytes behind a payload.
fn carried() -> (Option<PartAck>, [u8; 8]) {
    let (ack, mut tail) = (Some(PartAck { psn: Psn::new(0), aeth: Aeth::default() }), [0; 8]);
    assert_eq!(put_tail(&PART, ack, &mut tail), 8);
    (ack, tail)
}

#[test]
fn an_acknowledgement_is_handed_over_though_its_part_is_refused() {
    let t = Neighbour::new();
    offer(&t);
    let (ack, tail) = carried();
    let reasons = [DropReason::BadState, DropReason::RendezvousRefused, DropReason::WrongSource];
    let drops = || reasons.map(|reason| t.drops(reason));
    let before = drops();
    // Nothing is sent in RTR that could be acknowledged.
    let refused = [&record(4096, [0, 1, 0])[..23], &tail].concat();
    assert!(t.write(head_of(t.qp.qpn(), &RENDEZVOUS, ack), &refused));
    assert_eq!(t.receive(), 1);
    assert_eq!(drops(), [before[0] + 1, before[1] + 1, before[2]]);
    // The part is taken all the same, and its bytes alone count.
    let bytes = t.context.counters().near_rx_bytes;
    assert!(t.write(head_of(t.qp.qpn(), &PART, ack), &tail));
    assert_eq!(t.receive(), 1);
    assert_eq!(drops(), [before[0] + 2, before[1] + 1, before[2]]);
    assert_eq!(t.context.counters().near_rx_bytes, bytes);
    let mut wc = [crate::EMPTY_WC; 2];
    assert_eq!((t.cq.poll(&mut wc), wc[0].wr_id), (Ok(1), 7));
    // A queue pair whose peer is another process takes neither.
    let other = create(&t.pd, &t.cq, Service::Rc);
    let slot = Slot::of(t.qp.qpn()).value() ^ 1;
    connect(&t.context, &other, t.context.gid_table()[0].gid, Slot::new(slot).unwrap().qpn(5));
    for (part, bytes) in [(&RENDEZVOUS, &refused[..]), (&PART, &tail)] {
        let before = drops();
        assert!(t.write(head_of(other.qpn(), part, ack), bytes));
        assert_eq!(t.receive(), 1);
        assert_eq!(drops(), [before[0], before[1], before[2] + 1]);
    }
}

#[test]
fn parts_that_no_sender_of_uc_writes_are_dropped() {
    let t = Neighbour::new();
    offer(&t);
    let qp = create(&t.pd, &t.cq, Service::Uc);
    connect(&t.context, &qp, t.context.gid_table()[0].gid, t.qp.qpn());
    qp.post_recv(&[RecvWr { wr_id: 8, sges: &[] as &[Sge] }]).unwrap();
    let head = head_of(qp.qpn(), &RENDEZVOUS, None);
    t.drops_for(DropReason::RendezvousRefused, "large", head, &record(4096, [0, 1, 0]));
    let head = head_of(qp.qpn(), &MessagePart { tag: Tag::Invalidated(Rkey(1)), ..PART }, None);
    t.drops_for(DropReason::Malformed, "invalidates", head, &[]);
    let head = head_of(qp.qpn(), &MessagePart { starts: false, ..PART }, None);
    t.drops_for(DropReason::MessageBroken, "without its start", head, &[1]);
    t.drops_for(DropReason::Length, "too long", head_of(qp.qpn(), &PART, None), &[1]);
    assert!(t.write(head_of(qp.qpn(), &PART, None), &[]));
    assert_eq!(t.receive(), 1);
    let mut wc = [crate::EMPTY_WC; 2];
    assert_eq!((t.cq.poll(&mut wc), wc[0].wr_id), (Ok(1), 8));
    t.is_unharmed();
}

#[test]
fn parts_for_queue_pairs_that_are_not_connected_to_the_neighbour_are_dropped() {
    let t = Neighbour::new();
    let own = t.context.gid_table()[0].gid;
    let new = || create(&t.pd, &t.cq, Service::Rc);
    let part = |qp: &Qp| head_of(qp.qpn(), &PART, None);
    let idle = new();
    t.drops_for(DropReason::WrongSource, "not connected", part(&idle), &[]);
    // Of another host, with a number that a queue pair of the neighbour could have.
    let far = new();
    connect(&t.context, &far, Gid::from_ip([127, 0, 9, 9].into()), t.qp.qpn());
    t.drops_for(DropReason::WrongSource, "another host", part(&far), &[]);
    // In a slot that the neighbour does not have.
    let strange = new();
    connect(&t.context, &strange, own, Qpn::new(t.qp.qpn().value() ^ 1 << 23));
    t.drops_for(DropReason::WrongSource, "another slot", part(&strange), &[]);
    t.is_unharmed();
    // In a slot that the neighbour claims, and that the kernel says is another process's.
    let taken = new();
    connect(&t.context, &taken, own, t.qp.qpn());
    let (slot, other) = (Slot::of(t.qp.qpn()), std::process::id() ^ 1);
    t.context.engine().with_lane(|lane| lane.local_peers.set_owner(slot, other));
    t.drops_for(DropReason::WrongSource, "another process", part(&taken), &[]);
    for qp in [&far, &strange, &taken] {
        assert_eq!(qp.state(), QpState::Rtr);
    }
}

#[test]
fn parts_of_uc_may_come_before_their_sender_has_claimed_the_slot() {
    let t = Neighbour::new();
    let (own, slot) = (t.context.gid_table()[0].gid, Slot::of(t.qp.qpn()));
    let new = |service, dgid| {
        let qp = create(&t.pd, &t.cq, service);
        connect(&t.context, &qp, dgid, t.qp.qpn());
        (0..2).for_each(|_| qp.post_recv(&[RecvWr { wr_id: 8, sges: &[] as &[Sge] }]).unwrap());
        qp
    };
    let far = new(Service::Uc, Gid::from_ip([127, 0, 9, 9].into()));
    let (uc, rc) = (new(Service::Uc, own), new(Service::Rc, own));
    t.context.engine().with_lane(|lane| lane.local_peers.set_slots(t.id, Vec::new()));
    let part = |qp: &Qp| head_of(qp.qpn(), &PART, None);
    t.drops_for(DropReason::WrongSource, "another host", part(&far), &[]);
    // RC is sent again, and its answers would go to whoever writes to the ring.
    t.drops_for(DropReason::WrongSource, "of RC", part(&rc), &[]);
    assert!(t.write(part(&uc), &[]));
    assert_eq!(t.receive(), 1);
    let mut wc = [crate::EMPTY_WC; 2];
    assert_eq!((t.cq.poll(&mut wc), wc[0].qpn), (Ok(1), uc.qpn()));
    // Packets by the link are not shut out by it.
    assert_eq!(lock(&uc.inner().core).side.peer.route().answer_ring(), None);
    let other = std::process::id() ^ 1;
    t.context.engine().with_lane(|lane| lane.local_peers.set_owner(slot, other));
    t.drops_for(DropReason::WrongSource, "another process", part(&uc), &[]);
}

#[test]
fn parts_for_queue_pairs_that_receive_nothing_are_dropped() {
    let t = Neighbour::new();
    let failed = create(&t.pd, &t.cq, Service::Rc);
    connect(&t.context, &failed, t.context.gid_table()[0].gid, t.qp.qpn());
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    failed.modify(&attr, AttrMask::STATE).unwrap();
    t.drops_for(DropReason::BadState, "in error", head_of(failed.qpn(), &PART, None), &[]);
    t.is_unharmed();
}

/// The record of a rendezvous of so many bytes in one piece, with these words for number of the
/// revocation word, number of pieces and the zero.
fn record(length: u32, [word, pieces, zero]: [u32; 3]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [length, word, pieces, zero].map(u32::to_ne_bytes).concat();
    bytes.extend(77_u64.to_ne_bytes());
    bytes.extend(0x10_0000_u64.to_ne_bytes());
    bytes.extend(length.to_ne_bytes());
    bytes
}

const RENDEZVOUS: MessagePart = MessagePart { is_rendezvous: true, ..PART };

#[test]
fn rendezvous_with_a_neighbour_that_offered_none_is_refused() {
    let t = Neighbour::new();
    let head = head_of(t.qp.qpn(), &RENDEZVOUS, None);
    for (what, record) in [
        ("nothing", Vec::new()),
        ("a good record", record(4096, [0, 1, 0])),
        ("no bytes", record(0, [0, 1, 0])),
        ("too many bytes", record(u32::MAX, [0, 1, 0])),
        ("no pieces", record(4096, [0, 0, 0])),
        ("pieces that are not there", record(4096, [0, 9, 0])),
        ("a word that there is not", record(4096, [u32::MAX, 1, 0])),
        ("something where a zero is", record(4096, [0, 1, 1])),
    ] {
        t.drops_for(DropReason::RendezvousRefused, what, head, &record);
    }
    assert_eq!(t.context.counters().near_pulls_refused, 8);
    t.is_unharmed();
}

/// Returns a queue pair that is connected to the neighbour and has one receive of 1 MiB, and that
/// receive's memory.
fn with_memory(t: &Neighbour) -> (Arc<Qp>, Arc<Mr>) {
    let length = 1 << 20;
    let dm = t.context.alloc_dm(length, 0).unwrap();
    let mr = t.pd.reg_dm_mr(&dm, 0, length, Access::LOCAL_WRITE).unwrap();
    let qp = create(&t.pd, &t.cq, Service::Rc);
    connect(&t.context, &qp, t.context.gid_table()[0].gid, t.qp.qpn());
    let sge = Sge { addr: mr.iova(), length: length as u32, lkey: mr.lkey() };
    qp.post_recv(&[RecvWr { wr_id: 8, sges: &[sge] }]).unwrap();
    (qp, mr)
}

/// Lets the neighbour offer its memory, of which it has then revoked everything.
fn offer(t: &Neighbour) {
    let engine = t.context.engine();
    let liveness = engine.memory().liveness_word().unwrap();
    let words = engine.memory().revocation_file().unwrap().try_clone_to_owned().unwrap();
    let offers = engine.with_lane(|lane| {
        let grants = lane.local_peers.accessible(t.id).unwrap().grants_mut();
        grants.accept_rendezvous(liveness, Some(words)) && grants.sender_memory().is_some()
    });
    assert!(offers, "it cannot read its own memory");
}

#[test]
fn payload_that_the_neighbour_has_revoked_is_not_copied() {
    let t = Neighbour::new();
    offer(&t);
    let (qp, _mr) = with_memory(&t);
    let head = head_of(qp.qpn(), &RENDEZVOUS, None);
    for word in [0, 1, 1000] {
        let record = record(4096, [word, 1, 0]);
        t.drops_for(DropReason::RendezvousWithdrawn, "revoked", head, &record);
    }
    let refused = record(4096, [0, 9, 0]);
    t.drops_for(DropReason::RendezvousRefused, "not a record", head, &refused);
    assert_eq!((t.context.counters().near_pulled_bytes, qp.state()), (0, QpState::Rtr));
    t.is_unharmed();
}

#[test]
fn a_neighbour_that_names_much_or_often_has_a_share_copied_at_a_time() {
    for (length, most) in [(512 << 10, 2), (1, RING_RECORDS)] {
        let t = Neighbour::new();
        offer(&t);
        let (qp, _mr) = with_memory(&t);
        let (head, count) = (head_of(qp.qpn(), &RENDEZVOUS, None), 2 * RING_RECORDS + 1);
        (0..count).for_each(|_| assert!(t.write(head, &record(length, [0, 1, 0]))));
        let mut left = count;
        while left != 0 {
            let received = t.receive();
            assert_eq!(received, left.min(most), "{length} bytes");
            left -= received;
        }
        assert_eq!(t.drops(DropReason::RendezvousWithdrawn), count as u64);
        t.is_unharmed();
    }
}

#[test]
fn a_ring_full_of_what_no_sender_writes_is_read_a_share_at_a_time() {
    let t = Neighbour::new();
    let mut written = 0;
    while t.write(head_of(Qpn::new(5), &PART, None), &[]) {
        written += 1;
    }
    assert!(written > RING_RECORDS, "{written}");
    let mut left = written;
    while left != 0 {
        let count = t.receive();
        assert_eq!(count, left.min(RING_RECORDS));
        left -= count;
    }
    assert_eq!(t.drops(DropReason::UnknownQpn), written as u64);
    t.is_unharmed();
}
