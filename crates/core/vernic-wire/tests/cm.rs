//! CM messages of two Linux kernels (rdma_rxe), from the capture: parsed, emitted again byte for
//! byte, and what they say is what tshark shows. And every message that we make, as arbitrary
//! bytes.

mod common;

use std::net::IpAddr;

use proptest::prelude::*;
use vernic_wire::Frame;
use vernic_wire::cm::{
    AckedMessage, Apr, CmAttribute, CmMessage, CmService, CmaHeader, Drep, Dreq, GSI_QKEY, Lap,
    Mra, PortSpace, Rej, RejReason, RejectedMessage, Rep, Req, Rtu, SidrRep, SidrReq,
    timeout_nanos,
};
use vernic_wire::mad::{MAD_LEN, MadHeader};
use vernic_wire::{AckTimeout, Packet, Pkey, Psn, Qpn, icrc};

const CAPTURE: &[u8] = include_bytes!("data/ulps_rocev2.pcap");

/// The datagrams for QP 1, each with the number that tshark gives its frame.
fn datagrams() -> Vec<(usize, [u8; MAD_LEN])> {
    let frames = common::read_pcap(CAPTURE).into_iter().enumerate();
    let datagram = |(index, bytes)| {
        let frame = Frame::parse(bytes).ok().filter(Frame::is_roce_v2)?;
        let transport = &frame.payload[..frame.payload.len() - icrc::LEN];
        let packet = Packet::parse(transport).unwrap();
        if packet.dest_qpn() != Qpn::GSI {
            return None;
        }
        let deth = packet.headers().deth.unwrap();
        assert_eq!((deth.qkey, deth.src_qpn), (GSI_QKEY, Qpn::GSI), "frame {}", index + 1);
        Some((index + 1, packet.payload().try_into().unwrap()))
    };
    frames.filter_map(datagram).collect()
}

fn message(frame: usize) -> (MadHeader, CmMessage) {
    let all = datagrams();
    let (_, mad) = all.iter().find(|(number, _)| *number == frame).unwrap();
    CmMessage::parse(mad).unwrap()
}

#[test]
fn every_captured_message_is_emitted_byte_for_byte() {
    let mut counts = [0; 11];
    for (number, mad) in datagrams() {
        let (header, message) = CmMessage::parse(&mad).unwrap();
        let mut out = [0; MAD_LEN];
        message.emit(header.transaction_id, &mut out);
        assert_eq!(out, mad, "frame {number}: {message}");
        counts[usize::from(message.attribute().0 - CmAttribute::REQ.0)] += 1;
    }
    // REQ, MRA, REJ, REP, RTU, DREQ, DREP as tshark counts them.
    assert_eq!(counts, [11, 1, 1, 9, 9, 8, 8, 0, 0, 0, 0]);
}

#[test]
fn a_captured_req_says_what_tshark_shows() {
    let (header, CmMessage::Req(req)) = message(29) else { panic!("not a REQ") };
    assert_eq!(header.transaction_id, 0x0000_0002_5CCF_4925);
    assert_eq!(req.local_comm_id.0, 0x2549_CF5C);
    assert_eq!(req.service_id, PortSpace::TCP.service_id(0x1C06));
    assert_eq!(req.local_ca_guid, 0x5054_00FF_FE00_0002);
    assert_eq!(req.local_qpn, Qpn::new(0x11));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.remote_response_timeout, req.local_response_timeout), (0x14, 0x14));
    assert_eq!((req.transport, req.end_to_end_flow_control), (CmService::RC, false));
    assert_eq!(req.starting_psn, Psn::new(0x75_EBE1));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 15));
    assert_eq!((req.pkey, req.path_mtu), (Pkey::DEFAULT, 3));
    assert_eq!((req.srq, req.ext_transport), (false, 0));
    let path = req.primary;
    assert_eq!((path.local_lid, path.remote_lid), (0xFFFF, 0xFFFF));
    assert_eq!(path.local_gid.to_ip(), IpAddr::from([10, 9, 0, 2]));
    assert_eq!(path.remote_gid.to_ip(), IpAddr::from([10, 9, 0, 1]));
    // tshark shows these 32 bits as 0x00197 and 0x19; on the wire they are 19 74 90 00.
    assert_eq!((path.flow_label, path.packet_rate, path.hop_limit), (0x1_9749, 0, 0x40));
    assert_eq!(path.local_ack_timeout, AckTimeout::new(0x13));
    assert!(req.alternate.is_none());
    let cma = CmaHeader::parse(req.private_data.as_ref()).unwrap();
    let (client, server) = (IpAddr::from([10, 9, 0, 2]), IpAddr::from([10, 9, 0, 1]));
    assert_eq!(cma, CmaHeader::new(0x905D, client, server));
}

#[test]
fn a_captured_rep_says_what_tshark_shows() {
    let (header, CmMessage::Rep(rep)) = message(30) else { panic!("not a REP") };
    assert_eq!(header.transaction_id, 0x0000_0002_5CCF_4925);
    assert_eq!((rep.local_comm_id.0, rep.remote_comm_id.0), (0xC4CF_FE13, 0x2549_CF5C));
    assert_eq!((rep.local_qpn, rep.starting_psn), (Qpn::new(0x11), Psn::new(0xD8_8A73)));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    assert_eq!((rep.target_ack_delay, rep.failover.0), (0x0F, 0));
    assert_eq!((rep.rnr_retry_count, rep.srq), (7, false));
    assert_eq!(rep.local_ca_guid, 0x5054_00FF_FE00_0001);
}

#[test]
fn a_captured_mra_and_rej_say_what_the_kernel_meant() {
    let (_, CmMessage::Mra(mra)) = message(1438) else { panic!("not an MRA") };
    assert_eq!((mra.message, mra.service_timeout), (AckedMessage::REQ, 24));
    assert_eq!((mra.local_comm_id.0, mra.remote_comm_id.0), (0xDECF_FE13, 0x2049_CF5C));
    // rdma_cm asks for more than a minute.
    assert_eq!(timeout_nanos(mra.service_timeout) / 1_000_000_000, 68);
    let (_, CmMessage::Rej(rej)) = message(3086) else { panic!("not a REJ") };
    assert_eq!((rej.message, rej.reason), (RejectedMessage::REQ, RejReason::CONSUMER));
    assert_eq!((rej.local_comm_id.0, rej.remote_comm_id.0), (0, 0x2D49_CF5C));
    assert!(rej.info.as_slice().is_empty());
    assert_eq!(rej.private_data.as_bytes()[..2], [0xC2, 0]);
}

macro_rules! messages_round_trip {
    ($($name:ident: $message:ty;)*) => {
        proptest! {
            $(
                #[test]
                fn $name(bytes: [u8; <$message>::LEN], cut in 0..<$message>::LEN) {
                    let message = <$message>::parse(&bytes).unwrap();
                    let mut out = [0; <$message>::LEN];
                    message.emit(&mut out);
                    prop_assert_eq!(out, bytes);
                    prop_assert!(<$message>::parse(&bytes[..cut]).is_err());
                    prop_assert!(!message.to_string().is_empty());
                }
            )*
        }
    };
}

messages_round_trip! {
    every_req_round_trips: Req;
    every_mra_round_trips: Mra;
    every_rej_round_trips: Rej;
    every_rep_round_trips: Rep;
    every_rtu_round_trips: Rtu;
    every_dreq_round_trips: Dreq;
    every_drep_round_trips: Drep;
    every_sidr_req_round_trips: SidrReq;
    every_sidr_rep_round_trips: SidrRep;
    every_lap_round_trips: Lap;
    every_apr_round_trips: Apr;
}

proptest! {
    #[test]
    fn every_cma_header_round_trips(bytes: [u8; CmaHeader::LEN], v6: bool) {
        let mut bytes = bytes;
        bytes[1] = bytes[1] & 15 | if v6 { 0x60 } else { 0x40 };
        let header = CmaHeader::parse(&bytes).unwrap();
        let mut out = [0; CmaHeader::LEN];
        header.emit(&mut out);
        prop_assert_eq!(out, bytes);
        prop_assert!(!header.to_string().is_empty());
    }

    #[test]
    fn no_bytes_make_the_message_parser_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        plausible: bool,
        attribute in 0x0E..0x1D_u8,
    ) {
        if plausible && bytes.len() >= MadHeader::LEN {
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16..18].copy_from_slice(&[0, attribute]);
        }
        match CmMessage::parse(&bytes) {
            Ok((header, message)) => {
                prop_assert_eq!(message.attribute().0, header.attribute_id);
                prop_assert!(!message.to_string().is_empty());
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
