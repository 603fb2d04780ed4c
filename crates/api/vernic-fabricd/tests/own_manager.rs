//! The own subnet manager of a fabric process: a fabric that carries packets without any other.

mod common;

use common::{Fabric, eventually};
use vernic_fabric::attributes::PortState;
use vernic_fabric::manager::Routing;
use vernic_fabric::topology::Topology;
use vernic_fabricd::{ManagerOptions, Options};

fn managed(plan: Topology, routing: Routing) -> Fabric {
    let folder =
        std::env::temp_dir().join(format!("vernic-own-{}-{routing:?}", std::process::id()));
    let manager = Some(ManagerOptions::new(routing));
    Fabric::start_with(plan, Options { folder, manager, ..Options::new("own") })
}

#[test]
fn a_fabric_with_its_own_manager_comes_up_by_itself() {
    for routing in [Routing::MinHop, Routing::UpDown] {
        let fabric = managed(Topology::tree("own", 2, 3, 6).unwrap(), routing);
        eventually("an active port", || {
            let (_client, adapter) = fabric.attach("h2");
            let port = &adapter.ports[0];
            let has_lids = port.lid.is_unicast() && port.sm_lid.is_unicast();
            (port.state == PortState::Active as u8 && has_lids).then_some(())
        });
        fabric.stop();
    }
}
