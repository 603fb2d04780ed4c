//! Open ports. The number of one is its descriptor, which `poll` says to be readable when there is
//! a datagram.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vernic_attach::{AgentId, UserMad};
use vernic_engine::{Config, Context, OpenError};
use vernic_wire::PortNum;

use super::ca::name;
use super::endpoint::Endpoint;
use super::shown;
use crate::boundary::{self, Failure};
use crate::layout::umad::MAX_AGENTS;
use crate::object::lock;
use crate::pointer::Text;
use crate::waiting::{Attempt, attempts_within};

/// The ports that this process has opened.
static PORTS: Mutex<BTreeMap<RawFd, Arc<OpenPort>>> = Mutex::new(BTreeMap::new());

/// An open port. Each lock is held for one exchange with the endpoint, so that one thread can wait
/// for datagrams while others send and register.
pub(super) struct OpenPort {
    endpoint: Endpoint,
    /// A child of `fork` does not have the descriptor.
    process: u32,
    /// Agents by the number that the program has for them.
    agents: Mutex<[Option<AgentId>; MAX_AGENTS]>,
    /// One datagram leaves in several messages.
    sending: Mutex<()>,
    /// The program was told that the fabric process has ended.
    told: AtomicBool,
}

impl OpenPort {
    /// Returns the open port of this number.
    pub(super) fn find(number: c_int) -> Result<Arc<Self>, Failure> {
        let found = lock(&PORTS).get(&number).cloned();
        found.filter(|port| port.process == std::process::id()).ok_or_else(|| {
            Failure::invalid(format!(
                "{number} is no open port: was it closed before, or opened before a fork?"
            ))
        })
    }

    /// Adds an agent, and returns the program's number of it.
    pub(super) fn register(
        &self,
        registration: &vernic_attach::Registration,
    ) -> Result<usize, Failure> {
        let mut agents = lock(&self.agents);
        let free = agents.iter().position(Option::is_none).ok_or_else(|| {
            Failure::new(libc::ENOMEM, format!("a port has {MAX_AGENTS} agents at most"))
        })?;
        agents[free] = Some(self.endpoint.register(registration)?);
        Ok(free)
    }

    /// Removes an agent.
    pub(super) fn unregister(&self, number: c_int) -> Result<(), Failure> {
        let mut agents = lock(&self.agents);
        let place = usize::try_from(number).ok().and_then(|number| agents.get_mut(number));
        let agent = place.and_then(Option::take).ok_or_else(|| no_agent(number))?;
        self.endpoint.unregister(agent)
    }

    /// Returns an agent by the program's number.
    pub(super) fn agent(&self, number: c_int) -> Result<AgentId, Failure> {
        let at = usize::try_from(number).ok();
        let agents = lock(&self.agents);
        at.and_then(|at| *agents.get(at)?).ok_or_else(|| no_agent(number))
    }

    /// Sends a datagram.
    pub(super) fn send(&self, mad: &UserMad) -> Result<(), Failure> {
        let _alone = lock(&self.sending);
        self.endpoint.send(mad)
    }

    /// Returns the next datagram, with the program's number of its agent; `None` if there is none.
    pub(super) fn receive(&self) -> Result<Option<(usize, UserMad)>, Failure> {
        // Each round takes a datagram: those of agents that are gone are for nobody.
        loop {
            let Some(mad) = self.endpoint.recv()? else { return Ok(None) };
            let number = lock(&self.agents).iter().position(|agent| *agent == Some(mad.agent));
            if let Some(number) = number {
                return Ok(Some((number, mad)));
            }
        }
    }

    /// Puts back a datagram that did not fit: the next [`receive`](Self::receive) has it.
    pub(super) fn put_back(&self, mad: UserMad) {
        self.endpoint.put_back(mad);
    }

    /// Returns whether the program was told before that the fabric process has ended. Programs that
    /// wait in a loop (OpenSM) would else be told without a pause.
    pub(super) fn was_told(&self) -> bool {
        self.told.swap(true, Ordering::Relaxed)
    }

    fn has_datagram(&self) -> Result<bool, Failure> {
        self.endpoint.has_datagram()
    }

    /// Returns the descriptor.
    pub(super) fn fd(&self) -> RawFd {
        self.endpoint.fd()
    }

    /// Prepares for a wait on the descriptor.
    pub(super) fn about_to_wait(&self) {
        self.endpoint.about_to_wait();
    }
}

fn no_agent(number: c_int) -> Failure {
    Failure::invalid(format!("the port has no agent {number}: it was not registered"))
}

/// `umad_open_port`, `umad_open_smi_port`: the number of the port, or a negative errno.
pub(crate) extern "C" fn umad_open_port(ca: Text, number: c_int) -> c_int {
    crate::log::init();
    let opened = boundary::negative("umad_open_port", || {
        let device = shown::device(name(&ca).as_deref())?;
        let port = PortNum(device.port(number)?.number);
        let endpoint = match shown::seat()? {
            Some(seat) => Endpoint::Fabric(seat.open(port)?),
            None => {
                let config = Config::load().map_err(OpenError::from)?;
                Endpoint::roce(Context::open(Some(&device.name), config)?)?
            }
        };
        let fd = endpoint.fd();
        let open = OpenPort {
            endpoint,
            process: std::process::id(),
            agents: Mutex::default(),
            sending: Mutex::new(()),
            told: AtomicBool::new(false),
        };
        lock(&PORTS).insert(fd, Arc::new(open));
        Ok(fd as isize)
    });
    opened as c_int
}

/// `umad_close_port`.
pub(crate) extern "C" fn umad_close_port(number: c_int) -> c_int {
    let closed = boundary::negative("umad_close_port", || {
        OpenPort::find(number)?;
        // Closed when the last call that uses it is over.
        lock(&PORTS).remove(&number);
        Ok(0)
    });
    closed as c_int
}

/// `umad_get_fd`: a descriptor to be polled.
pub(crate) extern "C" fn umad_get_fd(number: c_int) -> c_int {
    let fd = boundary::negative("umad_get_fd", || Ok(OpenPort::find(number)?.fd() as isize));
    fd as c_int
}

/// `umad_poll`: waits for a datagram; 0, or a negative errno.
pub(crate) extern "C-unwind" fn umad_poll(number: c_int, timeout_ms: c_int) -> c_int {
    attempts_within(timeout_ms, || {
        let mut wait = Attempt::Done(0);
        let failed = boundary::negative("umad_poll", || {
            let port = OpenPort::find(number)?;
            if !port.has_datagram()? {
                wait = Attempt::Wait(port.fd());
            }
            Ok(0)
        });
        if failed < 0 { Attempt::Done(failed as c_int) } else { wait }
    })
}
