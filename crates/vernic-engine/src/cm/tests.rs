//! Ways of datagrams, without a peer.

use std::collections::HashSet;
use std::net::IpAddr;

use vernic_io::{ROCE_PORT, TxPath};
use vernic_proto::cm::{CmPath, Datagram};
use vernic_wire::cm::{CmMessage, Dreq, PortSpace, Req};
use vernic_wire::mad::MAD_LEN;

use super::*;
use crate::{Config, Context, Place};

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

struct Deaf;

impl CmSink for Deaf {
    fn event(&self, _: Event) {}
}

fn open() -> Arc<Context> {
    let context = Context::open(Some("lo"), Config::default()).unwrap();
    context.cm().attach(Arc::new(Deaf)).unwrap();
    context
}

fn datagram(message: impl Into<CmMessage>, repeats: u8) -> Datagram {
    let mut mad = [0; MAD_LEN];
    message.into().emit(1, &mut mad);
    let path = CmPath::new(Gid::from_ip(HOME), Gid::from_ip(HOME));
    Datagram { path, mad, repeats }
}

#[test]
fn a_datagram_that_was_not_answered_takes_every_way_there_is() {
    let context = open();
    let engine = context.engine();
    let req = Req { local_comm_id: CommId(5), ..Req::default() };
    let paths: Vec<_> = (0..16).map(|n| engine.mad_path(&datagram(req, n))).collect();
    assert_eq!(paths.iter().map(TxPath::flow).collect::<HashSet<_>>().len(), 16);
    assert!(paths.iter().all(|path| path.dst().port() == ROCE_PORT), "no listener is known");
}

#[test]
fn messages_to_a_process_of_this_host_go_straight_there_but_not_each_time() {
    let (here, there) = (open(), open());
    let service = PortSpace::TCP.service_id(64_001);
    there.cm().listen(service, Place::Address(HOME.into()), 1).unwrap();
    let slot =
        there.engine().with_lane(|lane| lane.table.first_slot(&there.engine().slots)).unwrap();
    let theirs = CommId(u32::from(slot.value()) << NUMBER_BITS | 77);
    assert_eq!(slot_of(theirs), slot);
    let req = Req { service_id: service, ..Req::default() };
    let dreq = Dreq { remote_comm_id: theirs, ..Dreq::default() };
    for (message, nobodys) in [
        (CmMessage::from(req), Req { service_id: ServiceId(1), ..req }.into()),
        (dreq.into(), Dreq { remote_comm_id: CommId(1), ..dreq }.into()),
    ] {
        let port =
            |message: CmMessage, n| here.engine().mad_path(&datagram(message, n)).dst().port();
        assert_ne!(port(message, 0), ROCE_PORT);
        assert_eq!(port(message, 1), ROCE_PORT);
        assert_eq!(port(message, 2), port(message, 0));
        assert_eq!(port(nobodys, 0), ROCE_PORT);
    }
}
