//! The files of Vernic's libraries, and the names programs know them by. The build script reads
//! this file too.

/// A library, and the names it is linked under.
pub(crate) const LIBRARIES: [(&str, &[&str]); 4] = [
    ("libvernic_abi.so", &["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"]),
    ("libvernic_providers.so", &["libmlx5.so.1", "libefa.so.1"]),
    ("libvernic_paths.so", &["libvernic_paths.so"]),
    ("libvernic_rspreload.so", &["librspreload.so"]),
];
