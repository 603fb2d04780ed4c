//! Exported leftovers: conversions from the kernel's structs, of which there are none here, sysfs,
//! and calls of later releases that are refused but have results.

use std::ffi::{OsStr, c_int, c_void};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use libc::EOPNOTSUPP;

use crate::boundary;
use crate::layout::ah::ibv_ah_attr;
use crate::layout::qp::ibv_qp_attr;
use crate::pointer::{In, Out, OutArray, Text};

/// Bytes of `ibv_sa_path_rec`.
const PATH_REC_BYTES: usize = 64;
/// Bytes of the kernel's form of it.
const KERNEL_PATH_REC_BYTES: usize = 72;

/// `ibv_copy_path_rec_from_kern`: zero.
pub(crate) extern "C" fn ibv_copy_path_rec_from_kern(mut to: OutArray<u8>, _from: In<u8>) {
    to.slice(PATH_REC_BYTES).unwrap_or_default().fill(0);
}

/// `ibv_copy_path_rec_to_kern`: zero.
pub(crate) extern "C" fn ibv_copy_path_rec_to_kern(mut to: OutArray<u8>, _from: In<u8>) {
    to.slice(KERNEL_PATH_REC_BYTES).unwrap_or_default().fill(0);
}

/// `ibv_copy_ah_attr_from_kern`: zero.
pub(crate) extern "C" fn ibv_copy_ah_attr_from_kern(to: Out<ibv_ah_attr>, _from: In<u8>) {
    to.write(ibv_ah_attr::default());
}

/// `ibv_copy_qp_attr_from_kern`: zero.
pub(crate) extern "C" fn ibv_copy_qp_attr_from_kern(to: Out<ibv_qp_attr>, _from: In<u8>) {
    to.write(ibv_qp_attr::default());
}

/// `ibv_get_sysfs_path`: where sysfs is.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> Text {
    Text::of(c"/sys")
}

/// `ibv_read_sysfs_file`: the text of a file without its last newline, and its length; -1 if it
/// cannot be read.
pub(crate) extern "C" fn ibv_read_sysfs_file(
    folder: Text,
    file: Text,
    mut out: OutArray<u8>,
    room: usize,
) -> c_int {
    let read = boundary::quiet(|| {
        let missing = || boundary::Failure::null("a name");
        let folder = OsStr::from_bytes(folder.read().ok_or_else(missing)?.to_bytes());
        let file = OsStr::from_bytes(file.read().ok_or_else(missing)?.to_bytes());
        let buffer = out.slice(room).unwrap_or_default();
        let (limit, mut length) = (buffer.len().saturating_sub(1), 0);
        let mut source = std::fs::File::open(Path::new(folder).join(file))?;
        // Ends at the end of the file or of the buffer.
        while length < limit {
            match source.read(&mut buffer[length..limit])? {
                0 => break,
                more => length += more,
            }
        }
        if length > 0 && buffer[length - 1] == b'\n' {
            length -= 1;
        }
        if let Some(end) = buffer.get_mut(length) {
            *end = 0;
        }
        Ok(length as c_int)
    });
    read.unwrap_or(-1)
}

/// `ibv_read_comp_cntr`, since rdma-core 64.
pub(crate) extern "C" fn ibv_read_comp_cntr(_counter: *mut c_void, value: Out<u64>) -> c_int {
    value.write(0);
    boundary::refused(EOPNOTSUPP)
}

/// `ibv_read_err_comp_cntr`, since rdma-core 64.
pub(crate) extern "C" fn ibv_read_err_comp_cntr(_counter: *mut c_void, value: Out<u64>) -> c_int {
    value.write(0);
    boundary::refused(EOPNOTSUPP)
}
