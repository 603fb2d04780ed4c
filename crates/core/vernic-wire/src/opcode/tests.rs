use super::*;

#[test]
fn every_known_request_is_found_by_its_meaning() {
    for code in 0..=255 {
        let opcode = Opcode(code);
        let row = opcode.info();
        let found = request(row.service, row.kind, row.position, row.tail());
        assert_eq!(found, row.is_request().then_some(opcode), "{opcode}");
        let found = response(row.service, row.kind, row.position);
        assert_eq!(found, row.is_response().then_some(opcode), "{opcode}");
    }
}

#[test]
fn rows_count_as_the_standard_does() {
    let count = |service| OPCODES.iter().filter(|row| row.service == service).count();
    assert_eq!(count(Service::Rc), 25);
    assert_eq!(count(Service::Uc), 12);
    assert_eq!(count(Service::Rd), 22);
    assert_eq!(count(Service::Ud), 2);
    assert_eq!(count(Service::Xrc), 25);
    assert_eq!(count(Service::Cnp), 1);
}

#[test]
fn header_lengths_are_those_of_the_standard() {
    let len = |opcode: Opcode| opcode.info().header_len;
    assert_eq!(len(Opcode::RC_SEND_MIDDLE), 12);
    assert_eq!(len(Opcode::RC_WRITE_ONLY_IMM), 32);
    assert_eq!(len(Opcode::RC_CMP_SWAP), 40);
    assert_eq!(len(Opcode::RC_ATOMIC_ACK), 24);
    assert_eq!(len(Opcode::RC_FLUSH), 32);
    assert_eq!(len(Opcode::UD_SEND_ONLY_IMM), 24);
    assert_eq!(len(Opcode::RD_CMP_SWAP), 52);
    assert_eq!(len(Opcode::XRC_SEND_ONLY), 16);
    assert_eq!(len(Opcode::XRC_FLUSH), 36);
    assert_eq!(OPCODES.iter().map(|row| row.header_len).max(), Some(52));
}

#[test]
fn offsets_and_sets_agree_in_every_row() {
    for row in &OPCODES {
        let at = row.at;
        for (header, offset) in [
            (HeaderSet::RDETH, at.rdeth),
            (HeaderSet::DETH, at.deth),
            (HeaderSet::XRCETH, at.xrceth),
            (HeaderSet::FETH, at.feth),
            (HeaderSet::RETH, at.reth),
            (HeaderSet::ATOMIC, at.atomic),
            (HeaderSet::AETH, at.aeth),
            (HeaderSet::ATOMIC_ACK, at.atomic_ack),
            (HeaderSet::IMM, at.imm),
            (HeaderSet::IETH, at.ieth),
        ] {
            assert_eq!(row.has(header), offset != 0, "{} {header:?}", row.name);
        }
    }
}

#[test]
fn first_and_middle_packets_have_no_tail() {
    for row in OPCODES.iter().filter(|row| !row.position.ends()) {
        assert_eq!(row.tail(), Tail::None, "{}", row.name);
    }
}

#[test]
fn positions_follow_from_index_and_count() {
    assert_eq!(Position::of(0, 1), Position::Only);
    assert_eq!(Position::of(0, 3), Position::First);
    assert_eq!(Position::of(1, 3), Position::Middle);
    assert_eq!(Position::of(2, 3), Position::Last);
}
