//! Cables whose other end is outside: in another process, or on another machine. The owner carries
//! their frames.

use std::collections::VecDeque;
use std::fmt;

use vernic_wire::{FlowControl, PortNum};

use super::{NodeId, Subnet};
use crate::Time;
use crate::link::{Frame, FrameKind, Life, Signal, Transmit};

/// Frames that wait for the owner, at most. Credits bound data packets to much less; those of
/// management beyond it are lost, as on a cable that is too slow.
const MOST_FRAMES: usize = 4096;

/// A frame for the other end of a cable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutsideFrame {
    /// A signal.
    Signal(Signal),
    /// A flow-control packet.
    FlowControl([u8; FlowControl::LEN]),
    /// A packet, LRH to VCRC.
    Packet(Vec<u8>),
}

/// The reason why a port has no cable to the outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutsideError {
    /// The node has no such port.
    NoPort,
    /// The plan has a cable at the port.
    HasCable,
}

impl fmt::Display for OutsideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPort => {
                "there is no such port; `vernic fabric up --spare 1` gives each switch one more"
            }
            Self::HasCable => {
                "the plan has a cable at the port; `vernic fabric up --spare 1` gives each switch a \
                 free one"
            }
        })
    }
}

impl std::error::Error for OutsideError {}

/// A cable to the outside.
#[derive(Debug, Default)]
pub(super) struct Outside {
    is_up: bool,
    frames: VecDeque<OutsideFrame>,
}

impl Outside {
    /// Takes a frame that leaves.
    pub(super) fn put(&mut self, transmit: &Transmit, bytes: &mut Vec<u8>) {
        if !self.is_up || self.frames.len() >= MOST_FRAMES {
            return;
        }
        self.frames.push_back(match transmit.kind {
            FrameKind::Signal(signal) => OutsideFrame::Signal(signal),
            FrameKind::FlowControl(bytes) => OutsideFrame::FlowControl(bytes),
            FrameKind::Packet => OutsideFrame::Packet(std::mem::take(bytes)),
        });
    }
}

impl Subnet {
    /// Plugs a cable to the outside in at a port that has none in the plan, or pulls it out: its
    /// frames are lost then.
    ///
    /// # Errors
    /// [`OutsideError`].
    pub fn set_outside(
        &mut self,
        node: NodeId,
        port: PortNum,
        is_up: bool,
        now: Time,
    ) -> Result<(), OutsideError> {
        let ends = self.ends.get(node.at()).ok_or(OutsideError::NoPort)?;
        match ends.get(usize::from(port.0)).filter(|_| port.0 != 0) {
            None => return Err(OutsideError::NoPort),
            Some(Some(_)) => return Err(OutsideError::HasCable),
            Some(None) => {}
        }
        let now = now.max(self.now);
        let outside = self.outside.entry((node, port.0)).or_default();
        if outside.is_up != is_up {
            outside.is_up = is_up;
            outside.frames.clear();
            self.nodes[node.at()].handle_cable(port, is_up, now);
            self.agenda.touch(node.at());
        }
        Ok(())
    }
    /// Returns the next frame for the other end of a cable to the outside.
    pub fn poll_outside(&mut self, node: NodeId, port: PortNum) -> Option<OutsideFrame> {
        self.outside.get_mut(&(node, port.0))?.frames.pop_front()
    }
    /// Takes a frame that has arrived by a cable to the outside. It is checked as one of any cable.
    pub fn handle_outside(&mut self, node: NodeId, port: PortNum, frame: Frame<'_>, now: Time) {
        if !self.outside.get(&(node, port.0)).is_some_and(|outside| outside.is_up) {
            return;
        }
        let now = now.max(self.now);
        let found = &mut self.nodes[node.at()];
        match frame {
            Frame::Packet(bytes) => found.handle_packet(port, bytes.to_vec(), Life::new(now), now),
            other => found.handle_frame(port, other, now),
        }
        self.agenda.touch(node.at());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::PortState;
    use crate::subnet::SubnetConfig;
    use crate::topology::Topology;

    /// Two subnets of a line, whose switches have port 1 free.
    fn two() -> [(Subnet, NodeId); 2] {
        let plan = Topology::line("t", 1, 2).unwrap();
        [(), ()].map(|()| {
            let subnet = Subnet::new(&plan, SubnetConfig::UNPACED);
            let switch = subnet.node("sw1").unwrap();
            (subnet, switch)
        })
    }

    const PORT: PortNum = PortNum(1);

    /// Carries frames both ways for a while.
    fn carry(sides: &mut [(Subnet, NodeId); 2], from: u64, to: u64) {
        for now in (from..to).step_by(100_000).map(Time) {
            for (subnet, _) in sides.iter_mut() {
                subnet.run(now);
            }
            for (a, b) in [(0, 1), (1, 0)] {
                let at = sides[a].1;
                while let Some(frame) = sides[a].0.poll_outside(at, PORT) {
                    let (subnet, at) = &mut sides[b];
                    let frame = match &frame {
                        OutsideFrame::Signal(signal) => Frame::Signal(*signal),
                        OutsideFrame::FlowControl(bytes) => Frame::FlowControl(bytes),
                        OutsideFrame::Packet(bytes) => Frame::Packet(bytes),
                    };
                    subnet.handle_outside(*at, PORT, frame, now);
                }
            }
        }
    }

    fn state(side: &(Subnet, NodeId)) -> PortState {
        side.0.port(side.1, PORT).unwrap().state
    }

    #[test]
    fn a_link_comes_up_over_a_cable_between_two_subnets_and_goes_down_with_it() {
        let mut sides = two();
        carry(&mut sides, 0, 10_000_000);
        assert_eq!(state(&sides[0]), PortState::Down);
        for (subnet, at) in &mut sides {
            subnet.set_outside(*at, PORT, true, Time(10_000_000)).unwrap();
        }
        carry(&mut sides, 10_000_000, 30_000_000);
        assert_eq!([state(&sides[0]), state(&sides[1])], [PortState::Init; 2]);
        let (subnet, at) = &mut sides[0];
        subnet.set_outside(*at, PORT, false, Time(30_000_000)).unwrap();
        carry(&mut sides, 30_000_000, 31_000_000);
        assert_eq!(state(&sides[0]), PortState::Down);
    }

    #[test]
    fn a_port_that_has_a_cable_or_is_not_there_takes_none() {
        let [(mut subnet, switch), _] = two();
        let mut at = |node, port| subnet.set_outside(node, PortNum(port), true, Time(0));
        assert_eq!(at(switch, 3), Err(OutsideError::HasCable));
        assert_eq!(at(switch, 0), Err(OutsideError::NoPort));
        assert_eq!(at(switch, 99), Err(OutsideError::NoPort));
        assert_eq!(at(NodeId(99), 1), Err(OutsideError::NoPort));
        assert_eq!(subnet.poll_outside(switch, PORT), None);
        subnet.handle_outside(switch, PORT, Frame::Packet(&[1, 2, 3]), Time(0));
    }
}
