//! A queue pair to a host of the own network that does not answer for its address.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::Folder;

/// Two network namespaces with a veth pair between them: what runs in the first finds the address
/// .1 there, .2 at the other end, and nobody at .3. The second is the router to everywhere else.
const NETWORK: &str = "
set -e
unshare --net sh -c 'while sleep 0.1; do :; done' &
other=$!
trap 'kill $other' EXIT
while [ $(readlink /proc/$other/ns/net) = $(readlink /proc/self/ns/net) ]; do sleep 0.05; done
ip link add near0 type veth peer name far0
ip link set far0 netns $other
inside() { nsenter --target $other --net ip \"$@\"; }
inside addr add 10.99.0.2/24 dev far0
inside link set far0 up
ip addr add 10.99.0.1/24 dev near0
ip link set near0 up
ip route add default via 10.99.0.2
until ip -oneline link show near0 | grep -q ' state UP '; do sleep 0.05; done
\"$0\" 10.99.0.1 10.99.0.3 10.99.0.2 203.0.113.9
";

#[test]
fn a_queue_pair_to_a_host_that_does_not_answer_for_its_address_stays_in_init() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-c"]);
        command
    };
    let probe =
        unshare().arg("ip link add near0 type veth peer name far0").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no network namespaces, no veth, or no `ip`, here");
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unanswered.c");
    let folder = Folder::new("unanswered");
    let Some(program) = folder.compile(&source) else { return };
    let mut command = unshare();
    command.arg(NETWORK).arg(program).env("LD_LIBRARY_PATH", folder.path());
    let output = command.env("VERNIC_LOG", "warn").env("VERNIC_DEVICE", "near0").output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert!(output.status.success(), "{:?}\n{out}{err}", output.status);
    assert!(err.contains("10.99.0.3") && err.contains("Is the host up"), "{err}");
}
