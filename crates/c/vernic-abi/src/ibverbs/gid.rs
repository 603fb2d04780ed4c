//! The tables of a port: GIDs and P_Keys.

use std::ffi::c_int;

use libc::{EINVAL, ENODATA};
use vernic_engine::{GidEntry, GidType, PortNum};

use crate::boundary::{self, Failure};
use crate::ibverbs::shared::Shared;
use crate::layout::context::ibv_context;
use crate::layout::port::{
    GID_TYPE_IB, GID_TYPE_ROCE_V1, GID_TYPE_ROCE_V2, GID_TYPE_SYSFS_IB_ROCE_V1,
    GID_TYPE_SYSFS_ROCE_V2, ibv_gid, ibv_gid_entry,
};
use crate::pointer::{Handle, Out, OutArray, plain};

plain! { ibv_gid, ibv_gid_entry }

/// The row of the table, if it is filled.
///
/// # Errors
/// `EINVAL` for a port or row that does not exist.
fn row(shared: &Shared, port: u32, index: i64) -> Result<Option<GidEntry>, Failure> {
    let port = u8::try_from(port).map_err(|_| Failure::invalid(format!("port {port}")))?;
    let rows = shared.engine.port_attr(PortNum(port))?.gid_table_len;
    match u8::try_from(index) {
        Ok(index) if usize::from(index) < rows => Ok(shared.engine.gid_entry(PortNum(port), index)),
        _ => Err(Failure::invalid(format!("GID index {index}: the table has {rows} rows"))),
    }
}

/// `ibv_query_gid`: an empty row is zero.
pub(crate) extern "C" fn ibv_query_gid(
    context: Handle<ibv_context>,
    port: u8,
    index: c_int,
    gid: Out<ibv_gid>,
) -> c_int {
    boundary::minus_one("ibv_query_gid", || {
        let shared = context.get()?.shared()?;
        let row = row(&shared, port.into(), index.into())?;
        gid.write(row.map_or(ibv_gid::default(), |row| ibv_gid { raw: row.gid.0 }));
        Ok(0)
    })
}

/// `ibv_query_gid_type`: as sysfs numbers them, which for an empty row is 0.
pub(crate) extern "C" fn ibv_query_gid_type(
    context: Handle<ibv_context>,
    port: u8,
    index: u32,
    kind: Out<c_int>,
) -> c_int {
    boundary::minus_one("ibv_query_gid_type", || {
        let shared = context.get()?.shared()?;
        let row = row(&shared, port.into(), index.into())?;
        kind.write(match row.map(|row| row.kind) {
            Some(GidType::RoceV2) => GID_TYPE_SYSFS_ROCE_V2,
            _ => GID_TYPE_SYSFS_IB_ROCE_V1,
        });
        Ok(0)
    })
}

fn entry(row: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: row.gid.0 },
        gid_index: u32::from(row.index),
        port_num: row.port.0.into(),
        gid_type: match row.kind {
            GidType::RoceV1 => GID_TYPE_ROCE_V1,
            GidType::RoceV2 => GID_TYPE_ROCE_V2,
            _ => GID_TYPE_IB,
        },
        ndev_ifindex: row.ifindex,
    }
}

/// `_ibv_query_gid_ex`: one filled row. Programs look for the end of the table with it, so that a
/// row is empty is not worth a line in the log.
pub(crate) extern "C" fn _ibv_query_gid_ex(
    context: Handle<ibv_context>,
    port: u32,
    index: u32,
    mut out: OutArray<u8>,
    flags: u32,
    room: usize,
) -> c_int {
    let mut is_empty = false;
    let errno = boundary::errno("ibv_query_gid_ex", || {
        let shared = context.get()?.shared()?;
        check_request(flags, room)?;
        match row(&shared, port, index.into())? {
            Some(row) => out.fill_prefix(&entry(&row), room),
            None => is_empty = true,
        }
        Ok(())
    });
    if is_empty { ENODATA } else { errno }
}

/// `_ibv_query_gid_table`: all filled rows; how many they are, or a negative errno.
pub(crate) extern "C" fn _ibv_query_gid_table(
    context: Handle<ibv_context>,
    mut out: OutArray<u8>,
    max: usize,
    flags: u32,
    room: usize,
) -> isize {
    boundary::negative("ibv_query_gid_table", || {
        let shared = context.get()?.shared()?;
        check_request(flags, room)?;
        let table = shared.engine.gid_table();
        if table.len() > max {
            let why = format!("{} rows are filled, room is for {max}", table.len());
            return Err(Failure::new(EINVAL, why));
        }
        for (n, row) in table.iter().enumerate() {
            out.at(n * room).fill_prefix(&entry(row), room);
        }
        Ok(table.len() as isize)
    })
}

fn check_request(flags: u32, room: usize) -> Result<(), Failure> {
    if flags != 0 || room < size_of::<ibv_gid_entry>() {
        return Err(Failure::invalid(format!("flags {flags:#x}, entries of {room} bytes")));
    }
    Ok(())
}

/// `ibv_query_pkey`: big-endian.
pub(crate) extern "C" fn ibv_query_pkey(
    context: Handle<ibv_context>,
    port: u8,
    index: c_int,
    pkey: Out<u16>,
) -> c_int {
    boundary::minus_one("ibv_query_pkey", || {
        let shared = context.get()?.shared()?;
        shared.engine.port_attr(PortNum(port))?;
        let row =
            u16::try_from(index).ok().and_then(|index| shared.engine.pkey(PortNum(port), index));
        let row = row.ok_or_else(|| Failure::invalid(format!("P_Key index {index}")))?;
        pkey.write(row.value().to_be());
        Ok(0)
    })
}

/// `ibv_get_pkey_index`: where a partition is in the table.
pub(crate) extern "C" fn ibv_get_pkey_index(
    context: Handle<ibv_context>,
    port: u8,
    pkey: u16,
) -> c_int {
    boundary::minus_one("ibv_get_pkey_index", || {
        let shared = context.get()?.shared()?;
        let rows = shared.engine.port_attr(PortNum(port))?.pkey_table_len;
        let wanted = u16::from_be(pkey);
        let is =
            |&n: &u16| shared.engine.pkey(PortNum(port), n).is_some_and(|p| p.value() == wanted);
        let found = (0..rows).find(is);
        found.map(c_int::from).ok_or_else(|| Failure::invalid(format!("no P_Key {wanted:#06x}")))
    })
}
