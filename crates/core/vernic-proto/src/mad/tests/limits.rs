//! What is wrong, and what is too much.

use super::*;
use crate::mad::{RegisterError, SendError};
use vernic_wire::RmppStatus;

const TABLE: u128 = 1 << Method::GET_TABLE.0;

/// A segment of a request to an agent of subnet administration.
fn segment(tid: u64, rmpp: Rmpp) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    header(MgmtClass::SUBNET_ADMIN, Method::GET_TABLE, tid).emit(&mut bytes);
    rmpp.emit(&mut bytes[MadHeader::LEN..]);
    bytes
}

fn handle(port: &mut Agents, mad: &[u8; MAD_LEN]) -> Result<(), MadDrop> {
    port.handle_mad(Time(0), Qpn::GSI, to(A), mad)
}

#[test]
fn wrong_rmpp_headers_are_answered_by_the_abort_that_names_the_mistake() {
    let data = Rmpp::data(1, 3, 660, 220);
    let last = Rmpp::data(2, 2, 0, 0);
    let rows = [
        (Rmpp { version: 2, ..data }, RmppStatus::UNSUPPORTED_VERSION),
        (Rmpp { kind: RmppType(9), ..data }, RmppStatus::BAD_TYPE),
        (Rmpp { status: RmppStatus(1), ..data }, RmppStatus::ILLEGAL_STATUS),
        (Rmpp { data1: 2, ..data }, RmppStatus::INCONSISTENT_FIRST),
        (Rmpp { data1: 0, flags: RmppFlags::ACTIVE, ..data }, RmppStatus::INCONSISTENT_FIRST),
        (Rmpp { data1: 1, ..last }, RmppStatus::INCONSISTENT_FIRST),
        (Rmpp { data2: 221, ..last }, RmppStatus::INCONSISTENT_LAST),
        (Rmpp { data2: 19, ..last }, RmppStatus::INCONSISTENT_LAST),
    ];
    for (rmpp, status) in rows {
        let mut port = Agents::new(AgentsConfig::default());
        port.register(&sa(TABLE)).unwrap();
        assert_eq!(handle(&mut port, &segment(7, rmpp)), Err(MadDrop::BadRmpp), "{rmpp}");
        let answer = port.poll_transmit(Time(0)).unwrap();
        assert_eq!(rmpp_of(&answer.mad), Rmpp::end(RmppType::ABORT, status));
        assert_eq!(header_of(&answer.mad).method, Method::GET_TABLE_RESP);
        assert_eq!(port.next_deadline(), None);
    }
}

#[test]
fn a_segment_behind_the_last_one_ends_the_transfer() {
    let mut port = Agents::new(AgentsConfig::default());
    port.register(&sa(TABLE)).unwrap();
    assert_eq!(handle(&mut port, &segment(7, Rmpp::data(1, 4, 880, 220))), Ok(()));
    assert_eq!(handle(&mut port, &segment(7, Rmpp::data(3, 4, 880, 220))), Ok(()));
    let last = handle(&mut port, &segment(7, Rmpp::data(2, 2, 0, 220)));
    assert_eq!(last, Err(MadDrop::BadRmpp));
    assert_eq!(port.next_deadline(), None);
}

#[test]
fn segments_of_no_transfer_and_beyond_the_window_are_dropped() {
    let mut port = Agents::new(AgentsConfig::default());
    port.register(&sa(TABLE)).unwrap();
    let second = segment(7, Rmpp::data(2, 400, 880, 220));
    assert_eq!(handle(&mut port, &second), Err(MadDrop::NoTransfer));
    assert_eq!(handle(&mut port, &segment(7, Rmpp::data(1, 400, 880, 220))), Ok(()));
    let ack = port.poll_transmit(Time(0)).unwrap();
    assert_eq!(rmpp_of(&ack.mad), Rmpp::ack(1, 65));
    let beyond = segment(7, Rmpp::data(66, 400, 880, 220));
    assert_eq!(handle(&mut port, &beyond), Err(MadDrop::BeyondWindow));
    let edge = segment(7, Rmpp::data(65, 400, 880, 220));
    assert_eq!(handle(&mut port, &edge), Ok(()));
    assert_eq!(handle(&mut port, &edge), Err(MadDrop::Duplicate));
    let ack = segment(7, Rmpp::ack(1, 2));
    assert_eq!(handle(&mut port, &ack), Err(MadDrop::Duplicate));
}

#[test]
fn an_ack_of_what_was_not_sent_ends_the_transfer_of_that_peer() {
    let mut port = Agents::new(AgentsConfig::default());
    let agent = port.register(&sa(TABLE)).unwrap();
    let table = message(Method::GET_TABLE_RESP, 7, 900);
    for (ack, status) in [
        (Rmpp::ack(2, 9), RmppStatus::SEGMENT_TOO_BIG),
        (Rmpp::ack(1, 0), RmppStatus::WINDOW_TOO_SMALL),
        (Rmpp { status: RmppStatus(9), ..Rmpp::ack(1, 1) }, RmppStatus::ILLEGAL_STATUS),
    ] {
        port.send(agent, to(A), &table, 0, 3).unwrap();
        port.send(agent, to(B), &table, 0, 3).unwrap();
        assert!(port.poll_transmit(Time(0)).is_some() && port.poll_transmit(Time(0)).is_some());
        assert_eq!(handle(&mut port, &segment(7, ack)), Err(MadDrop::BadRmpp));
        let abort = port.poll_transmit(Time(0)).unwrap();
        assert_eq!(rmpp_of(&abort.mad), Rmpp::end(RmppType::ABORT, status));
        let ended = port.poll_deliver(agent).unwrap();
        assert_eq!((ended.outcome, ended.address), (Outcome::Aborted(status), to(A)));
        // The one to the other port goes on.
        assert!(port.next_deadline().is_some());
        port.handle_mad(Time(0), Qpn::GSI, to(B), &segment(7, Rmpp::ack(1, 6))).unwrap();
        assert_eq!(rmpp_of(&port.poll_transmit(Time(0)).unwrap().mad).data1, 2);
        let stop = segment(7, Rmpp::end(RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED));
        port.handle_mad(Time(0), Qpn::GSI, to(B), &stop).unwrap();
        assert!(port.poll_deliver(agent).is_some() && port.next_deadline().is_none());
    }
}

#[test]
fn sends_transfers_agents_and_deliveries_are_bounded() {
    let config = AgentsConfig {
        id_base: 0,
        id_bits: 24,
        max_agents: 2,
        max_sends: 3,
        max_receives: 2,
        max_deliveries: 4,
        max_bytes: 2000,
    };
    let mut port = Agents::new(config);
    let agent = port.register(&sa(TABLE | 1 << Method::GET.0)).unwrap();
    port.register(&sa(0)).unwrap();
    assert_eq!(port.register(&sa(0)), Err(RegisterError::TooMany(2)));
    let request = |tid| mad(header(MgmtClass::SUBNET_ADMIN, Method::GET, tid));
    for tid in 0..3 {
        assert_eq!(port.send(agent, to(B), &request(tid), 100, 0), Ok(()));
    }
    let more = port.send(agent, to(B), &request(3), 100, 0);
    assert_eq!(more, Err(SendError::TooMany { sends: 3, bytes: 768 }));

    for tid in 0..2 {
        assert_eq!(handle(&mut port, &segment(tid, Rmpp::data(1, 400, 880, 220))), Ok(()));
    }
    let third = segment(2, Rmpp::data(1, 400, 880, 220));
    assert_eq!(handle(&mut port, &third), Err(MadDrop::NoRoom));
    let taken: Vec<_> = (2..8)
        .map(|number| handle(&mut port, &segment(0, Rmpp::data(number, 400, 0, 220))).is_ok())
        .collect();
    // 2000 bytes are 7 segments, of which the other transfer has one.
    assert_eq!(taken, [true, true, true, true, true, false]);
    let mut last = None;
    while let Some(sent) = port.poll_transmit(Time(0)) {
        last = Some(sent).filter(|sent| rmpp_of(&sent.mad).kind == RmppType::STOP).or(last);
    }
    assert_eq!(header_of(&last.unwrap().mad).transaction_id, 0);

    for tid in 0..6 {
        let mut bytes = [0; MAD_LEN];
        header(MgmtClass::SUBNET_ADMIN, Method::GET, tid).emit(&mut bytes);
        let full = if tid < 4 { Ok(()) } else { Err(MadDrop::QueueFull) };
        assert_eq!(handle(&mut port, &bytes), full);
    }
    assert_eq!(port.ready().collect::<Vec<_>>(), [agent]);
    assert!(port.unregister(agent));
    assert_eq!((port.ready().count(), port.next_deadline()), (0, None));
    assert_eq!(port.poll_transmit(Time(0)), None);
}

#[test]
fn messages_that_are_too_short_or_too_long_are_refused() {
    let mut port = Agents::new(AgentsConfig::default());
    let agent = port.register(&sa(0)).unwrap();
    let raw = port.register(&Registration { rmpp: false, ..sa(0) }).unwrap();
    let long = message(Method::GET_MULTI, 7, 300);
    assert_eq!(port.send(raw, to(B), &long, 0, 0), Err(SendError::TooLong { have: 356 }));
    let short = &long[..55];
    let class = MgmtClass::SUBNET_ADMIN;
    let refused = SendError::TooShort { class, need: 56, have: 55 };
    assert_eq!(port.send(agent, to(B), short, 0, 0), Err(refused));
    assert!(port.send(agent, to(B), &long[..23], 0, 0).is_err());
    assert_eq!(port.send(agent, to(B), &long[..56], 100, 0), Ok(()));
    // Without active RMPP it is one datagram, which need not be full.
    let mut plain = long;
    plain[24..36].fill(0);
    plain[15] += 1;
    assert_eq!(port.send(agent, to(B), &plain, 0, 0), Err(SendError::TooLong { have: 356 }));
    assert_eq!(port.send(agent, to(B), &plain[..100], 0, 0), Ok(()));
}

#[test]
fn counters_have_names() {
    let mut port = Agents::new(AgentsConfig::default());
    let _ = handle(&mut port, &segment(7, Rmpp::default()));
    let counters = port.counters();
    assert!(counters.iter().any(|counter| counter == ("mad_drop_no_agent", 1)));
    assert!(counters.iter().any(|counter| counter == ("mad_received", 1)));
    assert_eq!(MadDrop::NoAgent.to_string(), "mad_drop_no_agent");
}

#[test]
fn ids_of_agents_keep_their_high_bits_and_come_round() {
    let config = AgentsConfig { id_base: 0x5A00_0012, id_bits: 8, ..AgentsConfig::default() };
    let mut port = Agents::new(config);
    let first = port.register(&sa(0)).unwrap();
    assert_eq!((first.0, port.has_agents()), (0x5A00_0001, true));
    for n in 0..600 {
        let agent = port.register(&sa(0)).unwrap();
        assert!(agent != first && agent.0 >> 8 == 0x5A_0000 && agent.0 & 0xFF != 0, "{n}: {agent}");
        assert!(port.unregister(agent));
    }
    assert!(port.unregister(first) && !port.has_agents());
}
