//! A process that ends without a word has acknowledged what it received; and `fork` divides devices.

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
