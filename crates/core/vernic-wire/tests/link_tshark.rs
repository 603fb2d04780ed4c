//! tshark as the judge of the packets of an InfiniBand link: LRH, GRH, flow control, and subnet
//! administration, in a file of ERF records. It shows the VCRC, and does not verify it.
//!
//! Needs `tshark`, as `tshark.rs` does.

mod common;

use vernic_wire::cm::{GSI_QKEY, ServiceId};
use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::sa::{
    CLASS_VERSION, DATA_LEN, InformComponents, InformInfo, InformInfoRecord, JoinState,
    McMemberRecord, MemberComponents, NodeRecord, PathComponents, PathRecord, PortInfoRecord,
    SaAttribute, SaHeader, SaMad, SaStatus, Selected, ServiceComponents, ServiceRecord,
};
use vernic_wire::{
    Bth, Deth, Erf, ErfTimestamp, ErfType, FlowControl, FlowControlOp, Gid, Grh, Headers, Lid,
    LinkPacket, Lrh, Opcode, Pkey, PortNum, Psn, Qkey, Qpn, Reth, Rkey, Rmpp, ServiceLevel,
    VirtualLane, icrc, link_packet, vcrc,
};

/// What tshark must read: the field's name and, as tshark prints it, a number or a text.
type Fields = Vec<(&'static str, Value)>;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    Number(u64),
    Text(String),
}

fn number(value: impl Into<u64>) -> Value {
    Value::Number(value.into())
}
fn gid(value: Gid) -> Value {
    Value::Text(value.to_string())
}
fn bytes(value: &[u8]) -> Value {
    Value::Text(value.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A record of a capture: what it holds, the bytes, and what tshark must read.
struct Record(ErfType, Vec<u8>, Fields);

const SGID: Gid = Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
const DGID: Gid = Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 9, 10, 11, 12, 13, 14, 15, 16]);
const LRH: Lrh = Lrh {
    virtual_lane: 2,
    version: 0,
    service_level: 5,
    reserved2: 0,
    next_header: Lrh::NEXT_BTH,
    dlid: 0x0102,
    reserved5: 0,
    packet_length: 0,
    slid: 0x0304,
};
/// The service of every record that has one.
const SERVICE: ServiceId = ServiceId(0x0000_0000_0106_1234);

/// A whole packet, and what tshark must read of LRH, GRH, BTH and CRCs.
fn packet(lrh: Lrh, headers: &Headers, payload: &[u8]) -> Record {
    let mut bytes = vec![0; Lrh::LEN];
    lrh.emit(&mut bytes);
    if lrh.next_header == Lrh::NEXT_GRH {
        let grh = Grh {
            version: 6,
            traffic_class: 0xA1,
            flow_label: 0xB_CDEF,
            payload_length: 0,
            next_header: Grh::NEXT_HEADER_IBA,
            hop_limit: 63,
            sgid: SGID,
            dgid: DGID,
        };
        bytes.resize(Lrh::LEN + Grh::LEN, 0);
        grh.emit(&mut bytes[Lrh::LEN..]);
    }
    let at = bytes.len();
    bytes.resize(at + headers.len(), 0);
    headers.emit(&mut bytes[at..]);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + icrc::LEN + vcrc::LEN, 0);
    link_packet::finish(&mut bytes).unwrap();
    let packet = LinkPacket::parse(&bytes).unwrap();
    assert!(packet.has_right_icrc());
    let (crcs, bth) = (bytes.last_chunk::<6>().unwrap(), &headers.bth);
    let mut fields = vec![
        ("infiniband.lrh.vl", number(lrh.virtual_lane)),
        ("infiniband.lrh.lver", number(0_u8)),
        ("infiniband.lrh.sl", number(lrh.service_level)),
        ("infiniband.lrh.lnh", number(lrh.next_header)),
        ("infiniband.lrh.dlid", number(lrh.dlid)),
        ("infiniband.lrh.pktlen", number((bytes.len() / 4) as u64)),
        ("infiniband.lrh.slid", number(lrh.slid)),
        ("infiniband.bth.opcode", number(bth.opcode.0)),
        ("infiniband.bth.destqp", number(bth.dest_qpn.value())),
        ("infiniband.bth.psn", number(bth.psn.value())),
        ("infiniband.invariant.crc", number(u32::from_be_bytes(*crcs.first_chunk().unwrap()))),
        ("infiniband.variant.crc", number(u16::from_be_bytes(*crcs.last_chunk().unwrap()))),
    ];
    if let Some(grh) = packet.grh() {
        fields.extend([
            ("infiniband.grh.ipver", number(6_u8)),
            ("infiniband.grh.tclass", number(0xA1_u8)),
            ("infiniband.grh.flowlabel", number(0xB_CDEF_u32)),
            ("infiniband.grh.paylen", number(grh.payload_length)),
            ("infiniband.grh.nxthdr", number(0x1B_u8)),
            ("infiniband.grh.hoplmt", number(63_u8)),
            ("infiniband.grh.sgid", gid(SGID)),
            ("infiniband.grh.dgid", gid(DGID)),
        ]);
    }
    if let Some(deth) = headers.deth {
        fields.extend([
            ("infiniband.deth.q_key", number(deth.qkey.0)),
            ("infiniband.deth.srcqp", number(deth.src_qpn.value())),
        ]);
    }
    Record(ErfType::INFINIBAND, bytes, fields)
}

/// A management datagram in its packet, from queue pair 0 or 1 to the same.
fn datagram(lrh: Lrh, qpn: Qpn, mad: &[u8; MAD_LEN]) -> Record {
    let qkey = if qpn == Qpn::SMI { Qkey(0) } else { GSI_QKEY };
    let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, qpn, Psn::new(3)));
    headers.deth = Some(Deth::new(qkey, qpn));
    let Record(kind, bytes, mut fields) = packet(lrh, &headers, mad);
    let header = MadHeader::parse(mad).unwrap();
    fields.extend([
        ("infiniband.mad.baseversion", number(header.base_version)),
        ("infiniband.mad.mgmtclass", number(header.mgmt_class.0)),
        ("infiniband.mad.classversion", number(header.class_version)),
        ("infiniband.mad.method", number(header.method.0)),
        ("infiniband.mad.transactionid", number(header.transaction_id)),
        ("infiniband.mad.attributeid", number(header.attribute_id)),
        ("infiniband.mad.attributemodifier", number(header.attribute_modifier)),
    ]);
    Record(kind, bytes, fields)
}

/// A request for NodeInfo over two hops, on the lane of subnet management.
fn directed_route() -> Record {
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        mgmt_class: MgmtClass::SUBNET_DIRECTED_ROUTE,
        class_version: 1,
        method: Method::GET,
        class_specific: 0x0102,
        transaction_id: 0x1122_3344_5566_7788,
        attribute_id: 0x11,
        ..MadHeader::default()
    };
    let mut mad = [0; MAD_LEN];
    header.emit(&mut mad);
    // M_Key, and the LIDs of a route that is directed from end to end.
    mad[24..32].copy_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
    mad[32..36].fill(0xFF);
    mad[129..131].copy_from_slice(&[3, 7]);
    let (dlid, slid) = (Lid::PERMISSIVE.0, Lid::PERMISSIVE.0);
    let lrh = Lrh { virtual_lane: 15, service_level: 0, dlid, slid, ..LRH };
    let mut record = datagram(lrh, Qpn::SMI, &mad);
    record.2.extend([
        ("infiniband.smpdirected.hoppointer", number(1_u8)),
        ("infiniband.smpdirected.hopcount", number(2_u8)),
        ("infiniband.smpdirected.drslid", number(0xFFFF_u16)),
        ("infiniband.smpdirected.drdlid", number(0xFFFF_u16)),
    ]);
    record
}

/// A global RC WRITE.
fn global_write() -> Record {
    let opcode = Opcode::RC_WRITE_ONLY;
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x12_3456), Psn::new(0xFE_DCBA)));
    headers.reth = Some(Reth { addr: 0x1234_5678, rkey: Rkey(0xABCD), length: 8 });
    let mut record = packet(Lrh { next_header: Lrh::NEXT_GRH, ..LRH }, &headers, b"8 bytes.");
    record.2.extend([
        ("infiniband.reth.va", number(0x1234_5678_u32)),
        ("infiniband.reth.r_key", number(0xABCD_u16)),
        ("infiniband.reth.dmalen", number(8_u8)),
    ]);
    record
}

fn flow_control() -> Record {
    let packet = FlowControl {
        op: FlowControlOp::INITIALIZE,
        total_sent: 0xABC,
        virtual_lane: VirtualLane::new(3),
        credit_limit: 0xDEF,
    };
    let mut bytes = vec![0; FlowControl::LEN];
    packet.emit(&mut bytes);
    let crc = u16::from_be_bytes(*bytes.last_chunk().unwrap());
    let fields = vec![
        ("infiniband_link.op", number(1_u8)),
        ("infiniband_link.fctbs", number(0xABC_u16)),
        ("infiniband_link.vl", number(3_u8)),
        ("infiniband_link.fccl", number(0xDEF_u16)),
        ("infiniband_link.lpcrc", number(crc)),
    ];
    Record(ErfType::INFINIBAND_LINK, bytes, fields)
}

/// A datagram of subnet administration that holds `record` where its data begin.
fn sa(
    method: Method,
    attribute: SaAttribute,
    component_mask: u64,
    rmpp: Rmpp,
    record: &[u8],
    fields: Fields,
) -> Record {
    let mad = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        mgmt_class: MgmtClass::SUBNET_ADMIN,
        class_version: CLASS_VERSION,
        method,
        status: SaStatus::SUCCESS.to_mad_status(),
        transaction_id: 7,
        attribute_id: attribute.0,
        ..MadHeader::default()
    };
    let attribute_offset = SaHeader::offset_of(record.len());
    let sa = SaHeader { sm_key: 1, attribute_offset, reserved: 0, component_mask };
    let mut data = [0; DATA_LEN];
    data[..record.len()].copy_from_slice(record);
    let mut bytes = [0; MAD_LEN];
    SaMad { mad, rmpp, sa, data }.emit(&mut bytes);
    let mut packet = datagram(LRH, Qpn::GSI, &bytes);
    // Behind most records tshark loses its place in the packet, and shows no CRC.
    if attribute != SaAttribute::PATH_RECORD {
        packet.2.retain(|(name, _)| !name.ends_with(".crc"));
    }
    packet.2.extend([
        ("infiniband.rmpp.rmpptype", number(rmpp.kind.0)),
        ("infiniband.sa.smkey", number(1_u8)),
        ("infiniband.sa.attributeoffset", number(attribute_offset)),
        ("infiniband.sa.componentmask", number(component_mask)),
    ]);
    packet.2.extend(fields);
    packet
}

fn path(method: Method, rmpp: Rmpp, more: Fields) -> Record {
    let path = PathRecord {
        service_id: SERVICE,
        dgid: DGID,
        sgid: SGID,
        dlid: Lid(0x0102),
        slid: Lid(0x0304),
        raw_traffic: true,
        flow_label: 0x1_2345,
        hop_limit: 9,
        traffic_class: 8,
        reversible: true,
        path_count: 0x25,
        pkey: Pkey(0x8001),
        service_level: ServiceLevel::new(6),
        mtu: Selected::exactly(4),
        rate: Selected::exactly(7),
        life_time: Selected::exactly(18),
        preference: 3,
        ..PathRecord::default()
    };
    let mut bytes = [0; PathRecord::LEN];
    path.emit(&mut bytes);
    let mut fields = vec![
        ("infiniband.pathrecord.dgid", gid(DGID)),
        ("infiniband.pathrecord.sgid", gid(SGID)),
        ("infiniband.pathrecord.dlid", number(0x0102_u16)),
        ("infiniband.pathrecord.slid", number(0x0304_u16)),
        ("infiniband.pathrecord.rawtraffic", number(1_u8)),
        ("infiniband.pathrecord.flowlabel", number(0x1_2345_u32)),
        ("infiniband.pathrecord.hoplimit", number(9_u8)),
        ("infiniband.pathrecord.tclass", number(8_u8)),
        ("infiniband.pathrecord.reversible", number(1_u8)),
        ("infiniband.pathrecord.numbpath", number(0x25_u8)),
        ("infiniband.pathrecord.p_key", number(0x8001_u16)),
        ("infiniband.pathrecord.sl", number(6_u8)),
        ("infiniband.pathrecord.mtuselector", number(2_u8)),
        ("infiniband.pathrecord.mtu", number(4_u8)),
        ("infiniband.pathrecord.rateselector", number(2_u8)),
        ("infiniband.pathrecord.rate", number(7_u8)),
        ("infiniband.pathrecord.packetlifetimeselector", number(2_u8)),
        ("infiniband.pathrecord.packetlifetime", number(18_u8)),
        ("infiniband.pathrecord.preference", number(3_u8)),
    ];
    fields.extend(more);
    let mask = PathComponents::DGID | PathComponents::SGID | PathComponents::PATH_COUNT;
    sa(method, SaAttribute::PATH_RECORD, mask.bits(), rmpp, &bytes, fields)
}

fn member() -> Record {
    let mgid = Gid([0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    let member = McMemberRecord {
        mgid,
        port_gid: SGID,
        qkey: Qkey(0x0B1B),
        mlid: Lid(0xC001),
        mtu: Selected::exactly(4),
        traffic_class: 8,
        pkey: Pkey::DEFAULT,
        rate: Selected::exactly(3),
        life_time: Selected::exactly(18),
        service_level: ServiceLevel::new(6),
        flow_label: 0x1_2345,
        hop_limit: 9,
        scope: 2,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let mut bytes = [0; McMemberRecord::LEN];
    member.emit(&mut bytes);
    let fields = vec![
        ("infiniband.mcmemberrecord.mgid", gid(mgid)),
        ("infiniband.mcmemberrecord.portgid", gid(SGID)),
        ("infiniband.mcmemberrecord.q_key", number(0x0B1B_u16)),
        ("infiniband.mcmemberrecord.mlid", number(0xC001_u16)),
        ("infiniband.mcmemberrecord.mtuselector", number(2_u8)),
        ("infiniband.mcmemberrecord.mtu", number(4_u8)),
        ("infiniband.mcmemberrecord.tclass", number(8_u8)),
        ("infiniband.mcmemberrecord.p_key", number(0xFFFF_u16)),
        ("infiniband.mcmemberrecord.rateselector", number(2_u8)),
        ("infiniband.mcmemberrecord.rate", number(3_u8)),
        ("infiniband.mcmemberrecord.packetlifetimeselector", number(2_u8)),
        ("infiniband.mcmemberrecord.packetlifetime", number(18_u8)),
        ("infiniband.mcmemberrecord.sl", number(6_u8)),
        ("infiniband.mcmemberrecord.flowlabel", number(0x1_2345_u32)),
        ("infiniband.mcmemberrecord.hoplimit", number(9_u8)),
        ("infiniband.mcmemberrecord.scope", number(2_u8)),
        ("infiniband.mcmemberrecord.joinstate", number(1_u8)),
        ("infiniband.mcmemberrecord.proxyjoin", number(0_u8)),
    ];
    let mask = MemberComponents::MGID | MemberComponents::PORT_GID | MemberComponents::JOIN_STATE;
    let attribute = SaAttribute::MC_MEMBER_RECORD;
    sa(Method::SET, attribute, mask.bits(), Rmpp::default(), &bytes, fields)
}

fn service() -> Record {
    let mut name = [0; 64];
    name[..4].copy_from_slice(b"name");
    let service = ServiceRecord {
        service_id: SERVICE,
        gid: SGID,
        pkey: Pkey::DEFAULT,
        lease_s: 77,
        key: [5; 16],
        name,
        data8: [6; 16],
        ..ServiceRecord::default()
    };
    let mut record = [0; ServiceRecord::LEN];
    service.emit(&mut record);
    let fields = vec![
        ("infiniband.linkrecord.serviceid", number(SERVICE.0)),
        ("infiniband.linkrecord.servicegid", gid(SGID)),
        ("infiniband.linkrecord.servicep_key", number(0xFFFF_u16)),
        ("infiniband.linkrecord.servicelease", number(77_u8)),
        ("infiniband.linkrecord.servicekey", bytes(&[5; 16])),
        ("infiniband.linkrecord.servicename", bytes(&name)),
    ];
    let mask = ServiceComponents::SERVICE_ID | ServiceComponents::DATA8;
    let attribute = SaAttribute::SERVICE_RECORD;
    sa(Method::DELETE, attribute, mask.bits(), Rmpp::default(), &record, fields)
}

fn inform(of_data_base: bool) -> Record {
    let info = InformInfo {
        gid: DGID,
        lid_begin: Lid(InformInfo::ANY),
        lid_end: Lid(5),
        is_generic: 1,
        subscribe: 1,
        notice_type: InformInfo::ANY,
        trap_number: 66,
        qpn: Qpn::GSI,
        response_time: 18,
        producer_type: 4,
        ..InformInfo::default()
    };
    let mut fields = vec![
        ("infiniband.informinfo.gid", gid(DGID)),
        ("infiniband.informinfo.lidrangebegin", number(0xFFFF_u16)),
        ("infiniband.informinfo.lidrangeend", number(5_u8)),
        ("infiniband.informinfo.isgeneric", number(1_u8)),
        ("infiniband.informinfo.subscribe", number(1_u8)),
        ("infiniband.informinfo.type", number(0xFFFF_u16)),
        ("infiniband.informinfo.trapnumberdeviceid", number(66_u8)),
        ("infiniband.informinfo.qpn", number(1_u8)),
        ("infiniband.informinfo.resptimevalue", number(18_u8)),
        ("infiniband.informinfo.producertypevendorid", number(4_u8)),
    ];
    if of_data_base {
        let record = InformInfoRecord { subscriber_gid: SGID, number: 9, reserved18: [0; 6], info };
        let mut bytes = [0; InformInfoRecord::LEN];
        record.emit(&mut bytes);
        fields.extend([
            ("infiniband.informinforecord.subscribergid", gid(SGID)),
            ("infiniband.informinforecord.enum", number(9_u8)),
        ]);
        let mask = InformComponents::SUBSCRIBER_GID.bits();
        let attribute = SaAttribute::INFORM_INFO_RECORD;
        sa(Method::GET, attribute, mask, Rmpp::default(), &bytes, fields)
    } else {
        let mut bytes = [0; InformInfo::LEN];
        info.emit(&mut bytes);
        sa(Method::SET, SaAttribute::INFORM_INFO, 0, Rmpp::default(), &bytes, fields)
    }
}

fn node() -> Record {
    let mut node = NodeRecord { lid: Lid(0x0304), ..NodeRecord::default() };
    node.node_info[..4].copy_from_slice(&[1, 1, 2, 36]);
    let mut bytes = [0; NodeRecord::LEN];
    node.emit(&mut bytes);
    let fields = vec![
        ("infiniband.sa.lid", number(0x0304_u16)),
        ("infiniband.nodeinfo.nodetype", number(2_u8)),
        ("infiniband.nodeinfo.numports", number(36_u8)),
    ];
    sa(Method::GET_RESP, SaAttribute::NODE_RECORD, 0, Rmpp::default(), &bytes, fields)
}

fn port() -> Record {
    let mut port = PortInfoRecord { lid: Lid(0x0304), port: PortNum(7), ..Default::default() };
    port.port_info[8..16].copy_from_slice(&0xFE80_0000_0000_0000_u64.to_be_bytes());
    let mut bytes = [0; PortInfoRecord::LEN];
    port.emit(&mut bytes);
    let fields = vec![
        ("infiniband.sa.endportlid", number(0x0304_u16)),
        ("infiniband.sa.portnum", number(7_u8)),
    ];
    sa(Method::GET_RESP, SaAttribute::PORT_INFO_RECORD, 0, Rmpp::default(), &bytes, fields)
}

/// A table's first segment of three, and the acknowledge of it.
fn table() -> [Record; 2] {
    let data = Rmpp::data(1, 3, 500, 60);
    let fields = vec![
        ("infiniband.rmpp.rmppversion", number(1_u8)),
        // The byte 11111 011, which tshark divides into 4 and 4 bits instead of 5 and 3.
        ("infiniband.rmpp.rresptime", number(15_u8)),
        ("infiniband.rmpp.rmppflags", number(11_u8)),
        ("infiniband.rmpp.rmppstatus", number(0_u8)),
        ("infiniband.rmpp.segmentnumber", number(1_u8)),
        ("infiniband.rmpp.payloadlength", number(500_u16)),
    ];
    let segment = path(Method::GET_TABLE_RESP, data, fields);
    let fields = vec![
        ("infiniband.rmpp.segmentnumber", number(1_u8)),
        ("infiniband.rmpp.newwindowlast", number(3_u8)),
    ];
    let attribute = SaAttribute::PATH_RECORD;
    [segment, sa(Method::GET_TABLE, attribute, 0, Rmpp::ack(1, 3), &[], fields)]
}

fn capture(records: &[Record]) -> Vec<u8> {
    let mut file = Vec::new();
    for (index, Record(kind, packet, _)) in records.iter().enumerate() {
        let timestamp = ErfTimestamp::from_nanos(1_795_000_000_000_000_000 + index as u64 * 1000);
        let header = Erf::new(*kind, timestamp, packet.len()).unwrap();
        let at = file.len();
        file.resize(at + usize::from(header.record_len), 0xEE);
        header.emit_record(packet, &mut file[at..]);
    }
    file
}

#[test]
fn packets_of_a_link_read_as_written() {
    let [segment, ack] = table();
    let records = [
        directed_route(),
        global_write(),
        flow_control(),
        path(Method::GET_TABLE, Rmpp::default(), vec![]),
        member(),
        service(),
        inform(false),
        inform(true),
        node(),
        port(),
        segment,
        ack,
    ];
    let mut names = vec!["_ws.malformed", "frame.time_epoch", "frame.len", "erf.types.type"];
    let known =
        records.iter().flat_map(|Record(_, _, fields)| fields.iter().map(|(name, _)| *name));
    names.extend(known);
    names.sort_unstable();
    names.dedup();
    let file = capture(&records);
    let Some(rows) = common::dissect_file("link.erf", &file, &[], &names) else { return };
    assert_eq!(rows.len(), records.len());
    for (index, (Record(kind, packet, fields), row)) in records.iter().zip(&rows).enumerate() {
        let text = |name| &row[names.iter().position(|known| *known == name).unwrap()][..];
        assert_eq!(text("_ws.malformed"), "", "record {index}");
        assert_eq!(text("frame.time_epoch"), format!("1795000000.{index:06}000"), "{index}");
        let len = packet.len().max(8) as u64;
        assert_eq!(common::number(text("frame.len")), Some(len), "record {index}");
        assert_eq!(common::number(text("erf.types.type")), Some(kind.0.into()), "record {index}");
        for (name, value) in fields {
            let read = match value {
                Value::Number(_) => common::number(text(name)).map(Value::Number),
                Value::Text(_) => Some(Value::Text(text(name).to_owned())),
            };
            assert_eq!(read.as_ref(), Some(value), "record {index}: {name} reads {}", text(name));
        }
    }
}
