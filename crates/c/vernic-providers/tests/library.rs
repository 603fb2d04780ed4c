//! The library as a program meets it: loaded by name and version.

use std::ffi::{CString, c_int, c_void};
use std::path::PathBuf;

use vernic_symver::{check, parse};

/// cargo leaves the library beside the folder of test programs, or in it.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let places = [folder.to_path_buf(), folder.parent().unwrap().to_path_buf()];
    let found = places.iter().map(|p| p.join("libvernic_providers.so")).find(|p| p.exists());
    found.expect("cargo builds the library before its tests")
}

const LIST: &str = include_str!("../abi/exports.txt");

#[test]
fn the_library_exports_the_list_with_its_versions_and_nothing_else() {
    check(&library(), LIST).unwrap();
}

/// A function of the library, by name and version.
fn function(name: &str, version: &str) -> *mut c_void {
    let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
    let (name, version) = (CString::new(name).unwrap(), CString::new(version).unwrap());
    // SAFETY: C strings; the library runs nothing when it is loaded.
    let address = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        libc::dlvsym(handle, name.as_ptr(), version.as_ptr())
    };
    assert!(!address.is_null(), "{name:?} {version:?}");
    address
}

#[test]
fn every_symbol_is_found_by_its_version() {
    for export in parse(LIST).unwrap() {
        function(&export.symbol, &export.version);
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn no_device_is_theirs_and_objects_are_refused() {
    type Maker = extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> *mut c_void;
    type Test = extern "C" fn(*mut c_void) -> bool;
    let null = std::ptr::null_mut();
    // SAFETY: these are the signatures of rdma-core's headers.
    let (supported, create_qp, efa_query) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Test>(function("mlx5dv_is_supported", "MLX5_1.8")),
            std::mem::transmute::<*mut c_void, Maker>(function("mlx5dv_create_qp", "MLX5_1.3")),
            std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void, *mut c_void, u32) -> c_int>(
                function("efadv_query_device", "EFA_1.1"),
            ),
        )
    };
    assert!(!supported(null));
    assert!(create_qp(null, null, null).is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    assert_eq!(efa_query(null, null, 0), libc::EOPNOTSUPP);
}

#[test]
fn outputs_of_refused_queries_are_set() {
    type Query = extern "C" fn(*mut c_void, *mut u8, *mut u8) -> c_int;
    // SAFETY: this is the signature of rdma-core's header.
    let query = unsafe {
        let address = function("mlx5dv_query_qp_lag_port", "MLX5_1.14");
        std::mem::transmute::<*mut c_void, Query>(address)
    };
    let (mut port, mut active) = (7, 7);
    assert_eq!(query(std::ptr::null_mut(), &mut port, &mut active), libc::EOPNOTSUPP);
    assert_eq!((port, active), (0, 0));
    // SAFETY: as above.
    let sizes_of = unsafe {
        let address = function("_mlx5dv_get_export_sizes", "MLX5_1.27");
        std::mem::transmute::<*mut c_void, extern "C" fn(*mut u32, usize)>(address)
    };
    let mut sizes = [7; 4];
    sizes_of(sizes.as_mut_ptr(), 12);
    assert_eq!(sizes, [0, 0, 0, 7]);
    let nowhere: *mut u8 = std::ptr::null_mut();
    assert_eq!(query(nowhere.cast(), nowhere, nowhere), libc::EOPNOTSUPP);
}
