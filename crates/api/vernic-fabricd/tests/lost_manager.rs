//! A subnet manager that has ended: ports keep its LID, and all who ask are told that it is gone.

mod common;

use common::{Fabric, Manager, ONE, eventually};
use vernic_attach::hello::Purpose;
use vernic_attach::{AttachError, MadClient, PathAsked, PathQuestion, Refusal, RefusalKind};
use vernic_fabric::topology::Topology;
use vernic_fabricd::control::SubnetManager;
use vernic_wire::{Gid, Pkey};

fn gid(fabric: &Fabric, host: &str) -> Gid {
    let client = MadClient::over(fabric.connect(Purpose::Mad));
    let port = client.adapter(host).unwrap().ports.remove(0);
    let halves = [port.gid_prefix.to_be_bytes(), port.guids[0].0.to_be_bytes()];
    Gid(halves.concat().try_into().unwrap())
}

fn refusal(fabric: &Fabric) -> Refusal {
    let [sgid, dgid] = ["h2", "h1"].map(|host| gid(fabric, host));
    let asked = PathAsked { sgid, dgid, pkey: Pkey(0x8001), service: None, traffic_class: None };
    let connection = fabric.connect(Purpose::Question);
    let mut question = PathQuestion::ask_over(connection, "h2", ONE, &asked).unwrap();
    match eventually("an answer", || question.poll()) {
        Err(AttachError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_manager_that_has_ended_is_gone_though_ports_know_its_lid() {
    let fabric = Fabric::start(Topology::single("lab", 2).unwrap());
    assert_eq!(fabric.state().manager, None);
    let refused = refusal(&fabric);
    assert_eq!(refused.kind, RefusalKind::Down);
    assert!(refused.text.contains("--fabric lab"), "{refused}");

    let setter = Manager::bring_up(&fabric, 2);
    let port = fabric.open("h1");
    port.set_issm(true).unwrap();
    let manager = |is_there| Some(SubnetManager { lid: 1, is_there });
    eventually("a manager", || (fabric.state().manager == manager(true)).then_some(()));
    drop((port, setter));
    eventually("its end", || (fabric.state().manager == manager(false)).then_some(()));

    // The port is there, and its agents know nothing of paths.
    let refused = refusal(&fabric);
    assert_eq!(refused.kind, RefusalKind::Unanswered);
    let words = ["partition 0x8001", "no subnet manager answers at LID 1:", "opensm", "--sm"];
    assert!(words.iter().all(|word| refused.text.contains(word)), "{refused}");
    fabric.stop();
}
