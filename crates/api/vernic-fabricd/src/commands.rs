//! What `vernic fabric` asks for is carried out here.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use vernic_fabric::Time;
use vernic_fabric::subnet::NodeId;
use vernic_fabric::topology::{Rate, svg};
use vernic_wire::PortNum;

use crate::cables::Cables;
use crate::capture::Capture;
use crate::clients::Clients;
use crate::control::{Answer, LinkChange, Request};
use crate::load::Load;
use crate::state;
use crate::world::World;

/// What requests look at and change.
#[derive(Debug)]
pub(crate) struct Desk<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) clients: &'a mut Clients,
    pub(crate) load: &'a Load,
    pub(crate) cables: &'a mut Cables,
    pub(crate) capture: &'a mut Option<Capture>,
    pub(crate) stops: &'a mut bool,
    pub(crate) now: Time,
}

impl Desk<'_> {
    /// Carries out a request, given as JSON, and returns the answer, as JSON.
    pub(crate) fn handle(&mut self, request: &str) -> String {
        let answer = match serde_json::from_str(request) {
            Ok(request) => self.execute(request).unwrap_or_else(Answer::Refused),
            Err(error) => Answer::Refused(format!("the request is not understood: {error}")),
        };
        serde_json::to_string(&answer).unwrap_or_default()
    }
    fn execute(&mut self, request: Request) -> Result<Answer, String> {
        match request {
            Request::Show => {
                let uptime_s = self.now.0 / 1_000_000_000;
                let state =
                    state::state(self.world, self.clients, (self.load, self.cables), uptime_s);
                Ok(Answer::State(Box::new(state)))
            }
            Request::Picture => {
                let load = |cable| Some(self.load.of(cable));
                Ok(Answer::Picture(svg(&self.world.plan, load)))
            }
            Request::Link { node, port, change } => {
                self.link(&node, PortNum(port), &change).map(|()| Answer::Done)
            }
            Request::Join { node, port, address, listens } => {
                self.join(&node, PortNum(port), address, listens).map(|()| Answer::Done)
            }
            Request::Capture { path } => {
                if let Some(capture) = self.capture.take() {
                    let stopped = capture.stop(&mut self.world.subnet);
                    stopped.map_err(|error| format!("the capture is not complete: {error}"))?;
                }
                if let Some(path) = path {
                    let started = Capture::start(&mut self.world.subnet, &path, self.now);
                    *self.capture =
                        Some(started.map_err(|error| format!("cannot write {path:?}: {error}"))?);
                }
                Ok(Answer::Done)
            }
            Request::Stop => {
                *self.stops = true;
                Ok(Answer::Done)
            }
        }
    }
    fn link(&mut self, name: &str, port: PortNum, change: &LinkChange) -> Result<(), String> {
        let node = self.node(name)?;
        let (subnet, now) = (&mut self.world.subnet, self.now);
        let done = match change {
            LinkChange::Down => subnet.set_cable(node, port, false, now),
            LinkChange::Up => subnet.set_cable(node, port, true, now),
            LinkChange::BitErrorRate(rate) if (0.0..=1.0).contains(rate) => {
                subnet.set_bit_error_rate(node, port, *rate)
            }
            LinkChange::BitErrorRate(rate) => {
                return Err(format!("{rate} is no bit error rate: 0 (none) to 1 (all)"));
            }
            LinkChange::Rate(None) => subnet.set_rate(node, port, None),
            LinkChange::Rate(Some(text)) => {
                let rate: Rate = text.parse().map_err(|error| format!("{error}"))?;
                subnet.set_rate(node, port, Some(rate))
            }
        };
        done.map_err(|_| self.no_cable(node, name, port))
    }
    fn join(
        &mut self,
        name: &str,
        port: PortNum,
        address: SocketAddr,
        listens: bool,
    ) -> Result<(), String> {
        let end = (self.node(name)?, port);
        let (cables, subnet, now) = (&mut *self.cables, &mut self.world.subnet, self.now);
        let epoll = self.clients.epoll().as_fd();
        let added = cables.add(end, address, listens, subnet, epoll, now);
        added.map_err(|error| format!("{name}:{port}: {error}"))
    }
    fn node(&self, name: &str) -> Result<NodeId, String> {
        let node = self.world.subnet.node(name);
        node.ok_or_else(|| {
            let nodes = self.world.plan.nodes();
            let some: Vec<_> = nodes.iter().take(3).map(|node| node.name.as_str()).collect();
            let shown: String = name.chars().take(64).collect();
            format!(
                "the fabric {:?} has no node {shown:?}; its {} nodes are {}{}",
                self.world.name,
                nodes.len(),
                some.join(", "),
                if nodes.len() > 3 { ", ..." } else { "" }
            )
        })
    }
    fn no_cable(&self, node: NodeId, name: &str, port: PortNum) -> String {
        let ports = self.world.plan.nodes().get(node.0 as usize).map_or(0, |node| node.ports);
        if port.0 == 0 || port.0 > ports {
            return format!("{name} has no port {port}: its ports are 1 to {ports}");
        }
        format!("port {port} of {name} has no cable in the plan")
    }
}
