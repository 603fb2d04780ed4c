//! The exported symbols are those of the list, with their versions.

mod common;

use common::library;
use vernic_symver::{check, parse};

const LIST: &str = include_str!("../abi/exports.txt");

#[test]
fn the_library_exports_the_list_with_its_versions_and_nothing_else() {
    check(&library(), LIST).unwrap();
}

/// Symbols of the three libraries of Debian 12, which every program of it may import.
#[test]
fn no_symbol_of_the_libraries_of_debian_12_is_missing() {
    let exports = parse(LIST).unwrap();
    let newer = ["IBVERBS_1.15", "IBVERBS_1.16", "IBVERBS_1.17", "IBVERBS_1.18", "RDMACM_1.4"];
    let newer = [&newer[..], &["RDMACM_1.5", "IBUMAD_1.3", "IBUMAD_1.4"]].concat();
    let old = exports.iter().filter(|export| !newer.contains(&export.version.as_str()));
    let of = |prefix: &str| old.clone().filter(|export| export.version.starts_with(prefix)).count();
    assert_eq!((of("IBVERBS_"), of("RDMACM_"), of("IBUMAD_")), (146, 68, 39));
}
