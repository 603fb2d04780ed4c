//! Any bytes as a message of a fabric process or of one of its programs: what is understood is
//! within its bounds, and datagrams come out of their parts as they went in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic_attach::data::{DataReport, DataRequest};
use vernic_attach::hello::{Hello, Refusal};
use vernic_attach::interface::{InterfaceAnswer, InterfaceRequest};
use vernic_attach::mad::{MadAnswer, MadRequest};
use vernic_attach::question::{Answer, Question};
use vernic_attach::user_mad::{Assembler, MAX_MAD};
use vernic_attach::{PacketBatch, Packets, control};

fuzz_target!(|bytes: &[u8]| {
    let _ = (Hello::parse(bytes), control::parse_request(bytes), control::parse_answer(bytes));
    if let Some(refusal) = Refusal::parse(bytes) {
        assert_eq!(Refusal::parse(&refusal.emit()).unwrap().text, refusal.text);
    }
    if let Some(packets) = Packets::parse(bytes) {
        let mut batch = PacketBatch::new();
        for (port, packet) in packets {
            assert!(batch.push(port, packet));
        }
        assert_eq!(batch.message(), bytes);
    }
    if let Some(DataRequest::Attach { slot, host }) = DataRequest::parse(bytes) {
        assert_eq!(DataRequest::attach(slot, host), bytes);
    }
    match DataReport::parse(bytes) {
        Some(DataReport::Attached { slot, adapter }) => {
            assert_eq!(DataReport::attached(slot, &adapter).len(), bytes.len());
        }
        Some(DataReport::Port(port)) => assert_eq!(DataReport::port(&port).len(), bytes.len()),
        _ => {}
    }
    if let Some(request) = MadRequest::parse(bytes) {
        assert_eq!(request.emit(), bytes);
    }
    if let Some(answer) = MadAnswer::parse(bytes) {
        assert!(MadAnswer::parse(&answer.emit()).is_some());
    }
    if let Some(question) = Question::parse(bytes) {
        assert_eq!(Question::parse(&question.emit()), Some(question));
    }
    if let Some(answer) = Answer::parse(bytes) {
        assert_eq!(Answer::parse(&answer.emit()), Some(answer));
    }
    if let Some(request) = InterfaceRequest::parse(bytes) {
        assert_eq!(request.emit(), bytes);
    }
    if let Some(answer) = InterfaceAnswer::parse(bytes) {
        assert_eq!(InterfaceAnswer::parse(&answer.emit()), Some(answer));
    }
    // The first byte of each piece is its length: a row of parts.
    let mut assembler = Assembler::default();
    let mut rest = bytes;
    while let Some((len, behind)) = rest.split_first() {
        let (part, behind) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = behind;
        match assembler.handle(part) {
            Ok(Some(mad)) => {
                assert!(mad.mad.len() <= MAX_MAD);
                let mut again = Assembler::default();
                let mut last = None;
                for message in mad.messages().unwrap() {
                    last = again.handle(&message).unwrap();
                }
                assert_eq!(last, Some(mad));
            }
            Ok(None) => {}
            Err(_) => assembler = Assembler::default(),
        }
    }
});
