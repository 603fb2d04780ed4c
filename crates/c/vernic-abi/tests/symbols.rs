//! The exported symbols are those of the list, with their versions.

mod common;

use common::library;
use vernic_symver::{check, parse};

const LIST: &str = include_str!("../abi/exports.txt");

#[test]
fn the_library_exports_the_list_with_its_versions_and_nothing_else() {
    check(&library(), LIST).unwrap();
}

/// The nodes of what rdma-core keeps to itself, of releases after Debian 12's.
const NEWER_PRIVATE: [&str; 4] =
    ["IBVERBS_PRIVATE_57", "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64", "IBVERBS_PRIVATE_65"];

/// What programs that are built with a newer rdma-core import.
#[test]
fn no_symbol_of_rdma_core_65_is_missing() {
    let exports = parse(LIST).unwrap();
    let has = |symbol: &str, version: &str| {
        exports.iter().any(|export| export.symbol == symbol && export.version == version)
    };
    for version in NEWER_PRIVATE {
        assert!(has("ibv_query_gid_type", version), "{version}");
    }
    // The name without the underscore is an inline function of the header.
    assert!(has("_ibv_query_comp_cntr_caps", "IBVERBS_1.18"));
    let of = |version: &str| exports.iter().filter(|export| export.version == version).count();
    let nodes = ["IBVERBS_1.15", "IBVERBS_1.16", "IBVERBS_1.17", "IBVERBS_1.18", "RDMACM_1.5"];
    assert_eq!(nodes.map(of), [3, 2, 3, 11, 3]);
}

/// Symbols of the three libraries of Debian 12, which every program of it may import.
#[test]
fn no_symbol_of_the_libraries_of_debian_12_is_missing() {
    let exports = parse(LIST).unwrap();
    let newer = ["IBVERBS_1.15", "IBVERBS_1.16", "IBVERBS_1.17", "IBVERBS_1.18", "RDMACM_1.4"];
    let newer = [&newer[..], &["RDMACM_1.5", "IBUMAD_1.3", "IBUMAD_1.4"], &NEWER_PRIVATE].concat();
    let old = exports.iter().filter(|export| !newer.contains(&export.version.as_str()));
    let of = |prefix: &str| old.clone().filter(|export| export.version.starts_with(prefix)).count();
    assert_eq!((of("IBVERBS_"), of("RDMACM_"), of("IBUMAD_")), (146, 68, 39));
}
