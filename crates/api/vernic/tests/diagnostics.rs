//! What the compiler says about misuse: the mistake, and what to do.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that this test was built with: the newest beside it.
fn library() -> (PathBuf, PathBuf) {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap().to_path_buf();
    let is_library = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libvernic-") && name.ends_with(".rlib")
    };
    let paths = std::fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path());
    let age = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).unwrap();
    let newest = paths.filter(|path| is_library(path)).max_by_key(age);
    (newest.expect("the library is built beside its tests"), deps)
}

/// What the compiler says about a function with this body.
fn refusal(arguments: &str, body: &str) -> String {
    let folder = std::env::temp_dir().join(format!("vernic-diagnostics-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let name = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "");
    let source = folder.join(format!("{name}.rs"));
    let code = format!("#![allow(unused)]\nuse vernic::*;\nfn f({arguments}) {{ {body} }}\n");
    std::fs::write(&source, code).unwrap();
    let (library, deps) = library();
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "-o"])
        .arg(folder.join(format!("{name}.rmeta")))
        .arg("--extern")
        .arg(format!("vernic={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", deps.display()))
        .arg(&source)
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{body} compiles");
    text
}

fn check(arguments: &str, body: &str, parts: &[&str]) {
    let text = refusal(arguments, body);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn misuse_is_answered_with_what_is_missing_and_what_to_call() {
    for (arguments, body, parts) in [
        (
            "pd: &Pd, cq: &Cq",
            "pd.qp::<Rc>().send_cq(cq).create();",
            &["no completion queue for its receives", ".recv_cq(&cq)"][..],
        ),
        (
            "pd: &Pd, cq: &Cq",
            "pd.qp::<Ud>().recv_cq(cq).create();",
            &["no completion queue for its sends", ".send_cq(&cq)"],
        ),
        (
            "qp: &Qp<Rc, Init>",
            "qp.post_send(WrId(1), Inline(b\"x\"));",
            &["a queue pair in `", "Init` sends nothing", "qp.connect(remote)?"],
        ),
        (
            "qp: &Qp<Uc, Rtr>",
            "qp.send_batch();",
            &["Rtr` sends nothing", "requests are posted in `Rts`"],
        ),
        (
            "qp: &Qp<Rc, Reset>, mr: &Mr",
            "qp.post_recv(WrId(1), mr);",
            &["Reset` takes no receives", "call `init` first"],
        ),
        (
            "qp: &Qp<Uc, Rts>, mr: &Mr, remote: RemoteMr",
            "qp.post_read(WrId(1), mr, remote.at(0));",
            &["Uc` has no READ", "pd.qp::<Rc>()"],
        ),
        (
            "qp: &Qp<Rc, Rts>, remote: RemoteMr",
            "qp.post_read(WrId(1), Inline(b\"x\"), remote.at(0));",
            &["is nowhere to put incoming bytes", "a source only"],
        ),
        (
            "qp: &Qp<Rc, Rts>",
            "qp.post_send(WrId(1), b\"x\");",
            &["is nothing to send from", "`Inline(&bytes)`"],
        ),
    ] {
        check(arguments, body, parts);
    }
}
