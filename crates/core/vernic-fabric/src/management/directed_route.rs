//! Directed routes: where a packet goes next that carries the list of its ports (IBTA 14.2.2).
//!
//! ```text
//!   out   hop pointer 0          1 .. count - 1            count                  count + 1
//!         send by path[1]        note the way back,        note the way back,     the agent
//!                                send by path[pointer + 1] agent, or LID suffix
//!   back  hop pointer count + 1  count .. 2                1                      0
//!         send by way[count]     send by way[pointer - 1]  manager, or LID prefix manager
//! ```
//! Each step changes the hop pointer as the packet leaves the node.

use vernic_wire::smp::Smp;
use vernic_wire::{Lid, PortNum};

use super::{DropReason, Ingress, ManagedNode, Route};
use crate::attributes::NodeKind;

/// What of a node decides about routes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    is_switch: bool,
    ports: u8,
}

impl Shape {
    pub(super) fn of(node: &dyn ManagedNode) -> Self {
        let attributes = node.attributes();
        Self { is_switch: attributes.kind == NodeKind::Switch, ports: attributes.ports }
    }
    /// Out of an external port.
    fn out(self, port: u8) -> Route {
        match (1..=self.ports).contains(&port) {
            true => Route::Port(PortNum(port)),
            false => Route::Drop(DropReason::NoSuchPort),
        }
    }
}

/// The next step of a packet on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The packet is at its destination.
    Here,
    /// The packet goes elsewhere.
    Away(Route),
}

/// Takes a step on the way out.
pub(super) fn step_out(smp: &mut Smp, shape: Shape, ingress: Ingress) -> Step {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    let drop = |reason| Step::Away(Route::Drop(reason));
    if usize::from(count) >= Smp::PATH_LEN {
        return drop(DropReason::HopCount);
    }
    if pointer == 0 && count > 0 {
        // The route begins here: at its sender, or where a LID led the packet to.
        return if ingress.local || shape.is_switch && smp.dr_slid != Lid::PERMISSIVE {
            smp.set_hop_pointer(1);
            Step::Away(shape.out(smp.initial_path[1]))
        } else if shape.is_switch {
            drop(DropReason::HopPointer)
        } else {
            drop(DropReason::NotASwitch)
        };
    }
    if pointer > count {
        return match pointer == count + 1 {
            true => Step::Here,
            false => drop(DropReason::HopPointer),
        };
    }
    let is_end = pointer == count;
    let ends_here = is_end && smp.dr_dlid == Lid::PERMISSIVE;
    if !(shape.is_switch || ends_here) {
        return drop(DropReason::NotASwitch);
    }
    if count > 0 {
        smp.return_path[usize::from(pointer)] = ingress.port.0;
    }
    smp.set_hop_pointer(pointer + 1);
    match is_end {
        false => Step::Away(shape.out(smp.initial_path[usize::from(pointer) + 1])),
        true if ends_here => Step::Here,
        true => Step::Away(Route::Lid(smp.dr_dlid)),
    }
}

/// Takes a step on the way back. `own`: the answer is of this node.
pub(super) fn step_back(smp: &mut Smp, shape: Shape, own: bool) -> Route {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if usize::from(count) >= Smp::PATH_LEN {
        return Route::Drop(DropReason::HopCount);
    }
    if pointer > count + 1 {
        return Route::Drop(DropReason::HopPointer);
    }
    if pointer == 0 {
        return Route::Local;
    }
    let is_last = pointer == 1;
    let is_first = pointer == count + 1;
    let ends_here = is_last && smp.dr_slid == Lid::PERMISSIVE;
    if !(shape.is_switch || ends_here || own && is_first) {
        return Route::Drop(DropReason::NotASwitch);
    }
    smp.set_hop_pointer(pointer - 1);
    match is_last {
        true if ends_here => Route::Local,
        true => Route::Lid(smp.dr_slid),
        false => shape.out(smp.return_path[usize::from(pointer) - 1]),
    }
}
