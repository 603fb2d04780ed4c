//! Paths, as programs read them in an id: the record that InfiniBand's subnet administration gives;
//! on RoCE, with what RoCE has of it.

use std::mem::offset_of;

use vernic_cm::{CmPath, Id, Place};
use vernic_engine::{Mtu, Pkey, PortNum, Transport};

use crate::layout::cm::{ibv_sa_path_rec, rdma_ib_addr};

/// `IB_SA_EQ`: the value is exactly this.
const EXACTLY: u8 = 2;

/// `IBV_RATE_40_GBPS`, what the port says of itself (`ibverbs/query.rs`).
const RATE: u8 = 7;

/// How long a packet may live on the path, an exponent of 4.096 us * 2^n: half of the ACK timeout
/// that ids ask for (2^17), which covers both ways.
const LIFE_TIME: u8 = 16;

/// The record of a path, as bytes of `ibv_sa_path_rec`.
pub(crate) fn record(path: &CmPath, place: &Place) -> [u8; size_of::<ibv_sa_path_rec>()] {
    let mut bytes = [0; size_of::<ibv_sa_path_rec>()];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let mtu = place.mtu.unwrap_or(Mtu::B1024);
    let rate = path.lids.map_or(RATE, |lids| lids.rate);
    if let Some(lids) = path.lids {
        put(offset_of!(ibv_sa_path_rec, dlid), &lids.remote.value().to_be_bytes());
        put(offset_of!(ibv_sa_path_rec, slid), &lids.local.value().to_be_bytes());
        put(offset_of!(ibv_sa_path_rec, sl), &[lids.service_level]);
    }
    put(offset_of!(ibv_sa_path_rec, dgid), &path.remote.0);
    put(offset_of!(ibv_sa_path_rec, sgid), &path.local.0);
    put(offset_of!(ibv_sa_path_rec, flow_label), &path.flow_label.to_be_bytes());
    put(offset_of!(ibv_sa_path_rec, hop_limit), &[path.hop_limit]);
    put(offset_of!(ibv_sa_path_rec, traffic_class), &[path.traffic_class]);
    put(offset_of!(ibv_sa_path_rec, reversible), &1_i32.to_ne_bytes());
    put(offset_of!(ibv_sa_path_rec, numb_path), &[1]);
    put(offset_of!(ibv_sa_path_rec, pkey), &path.pkey.value().to_be_bytes());
    put(offset_of!(ibv_sa_path_rec, mtu_selector), &[EXACTLY, mtu as u8]);
    put(offset_of!(ibv_sa_path_rec, rate_selector), &[EXACTLY, rate]);
    put(offset_of!(ibv_sa_path_rec, packet_life_time_selector), &[EXACTLY, LIFE_TIME]);
    bytes
}

/// Shows the GIDs of an id, and its partition. Over iWARP its own is the device's, and the peer's
/// is not known.
pub(crate) fn show_gids(shown: &rdma_ib_addr, id: &Id) {
    if let Some(context) = id.context().filter(|c| c.info().transport == Transport::Iwarp) {
        if let Some(row) = context.gid_entry(PortNum(1), 0) {
            shown.sgid.show(&row.gid.0);
        }
        shown.pkey.show(&Pkey::DEFAULT.value().to_be_bytes());
        return;
    }
    let place = id.place();
    if let Some(gid) = place.local {
        shown.sgid.show(&gid.0);
    }
    if let Some(gid) = place.remote {
        shown.dgid.show(&gid.0);
    }
    shown.pkey.show(&place.pkey.value().to_be_bytes());
}
