//! A process that ends without a word has acknowledged what it received; and `fork` divides
//! devices.

mod common;

use std::path::Path;

use common::Folder;

#[test]
fn a_forked_child_that_just_exits_leaves_its_parent_with_a_success() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goodbye.c");
    let folder = Folder::new("goodbye");
    // Several times: whether an acknowledgement was still owed is a matter of microseconds.
    let Some(program) = folder.compile(&source) else { return };
    for _ in 0..10 {
        let output = folder.run(&program);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{:?}\n{said}", output.status);
    }
}

#[test]
fn the_capture_of_a_process_that_just_exits_has_its_last_packets() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goodbye.c");
    let folder = Folder::new("goodbye-capture");
    let Some(program) = folder.compile(&source) else { return };
    let template = folder.path().join("packets-%p.pcapng");
    let output = folder.run_with(&program, &[("VERNIC_CAPTURE", template.to_str().unwrap())]);
    assert!(output.status.success(), "{:?}", output.status);
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let captures: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "pcapng")).collect();
    // The SEND and its ACK, at each end; the device that the parent opened before has none.
    let whole = captures.iter().filter(|path| packets(&std::fs::read(path).unwrap()) >= 2).count();
    assert_eq!(whole, 2, "parent and child: {captures:?}");
}

/// Enhanced packet blocks of a pcapng file.
fn packets(mut file: &[u8]) -> usize {
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut count = 0;
    while !file.is_empty() {
        count += usize::from(word(file, 0) == 6);
        file = &file[word(file, 4) as usize..];
    }
    count
}
