//! Which ports of a switch are to be asked for something to send.

use vernic_wire::PortNum;

use super::port_set::PortSet;
use crate::Time;

/// The ports that may have something to send now, and when the others will.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    ready: PortSet,
    /// When each port is due, from port 1 on, if it is not ready.
    due: Vec<Option<Time>>,
}

impl Schedule {
    /// Makes the schedule of ports from 1 to `ports`, all ready.
    pub(crate) fn new(ports: usize) -> Self {
        Self { ready: PortSet::up_to(ports), due: vec![None; ports] }
    }
    /// Asks a port next time.
    pub(crate) fn touch(&mut self, port: PortNum) {
        self.ready.insert(port);
    }
    /// Asks all ports next time.
    pub(crate) fn touch_all(&mut self) {
        self.ready = PortSet::up_to(self.due.len());
    }
    /// Makes the ports ready whose time has come.
    pub(crate) fn advance(&mut self, now: Time) {
        for (due, port) in self.due.iter_mut().zip(1..) {
            if due.take_if(|due| *due <= now).is_some() {
                self.ready.insert(PortNum(port));
            }
        }
    }
    /// Returns a port to be asked.
    pub(crate) fn ready(&self) -> Option<PortNum> {
        self.ready.first()
    }
    /// Leaves a port alone until it is due.
    pub(crate) fn rest(&mut self, port: PortNum, until: Option<Time>) {
        self.ready.remove(port);
        if let Some(due) = usize::from(port.0).checked_sub(1).and_then(|at| self.due.get_mut(at)) {
            *due = until;
        }
    }
    /// Returns when a port is to be asked.
    pub(crate) fn timeout(&self) -> Option<Time> {
        match self.ready.first() {
            Some(_) => Some(Time(0)),
            None => self.due.iter().flatten().min().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_rests_until_it_is_due_or_touched() {
        let mut schedule = Schedule::new(3);
        assert_eq!(schedule.timeout(), Some(Time(0)));
        for (port, until) in [(1, None), (2, Some(Time(20))), (3, Some(Time(30)))] {
            assert_eq!(schedule.ready(), Some(PortNum(port)));
            schedule.rest(PortNum(port), until);
        }
        assert_eq!((schedule.ready(), schedule.timeout()), (None, Some(Time(20))));
        schedule.advance(Time(19));
        assert_eq!(schedule.ready(), None);
        schedule.advance(Time(20));
        assert_eq!(schedule.ready(), Some(PortNum(2)));
        schedule.rest(PortNum(2), None);
        assert_eq!(schedule.timeout(), Some(Time(30)));
        schedule.touch(PortNum(1));
        assert_eq!((schedule.ready(), schedule.timeout()), (Some(PortNum(1)), Some(Time(0))));
        schedule.touch_all();
        schedule.rest(PortNum(1), None);
        assert_eq!(schedule.ready(), Some(PortNum(2)));
    }
}
