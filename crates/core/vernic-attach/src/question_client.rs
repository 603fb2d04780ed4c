//! Questions to a host: the program's ends of their connections.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use vernic_wire::PortNum;
use vernic_wire::cm::ServiceId;
use vernic_wire::sa::{McMemberRecord, MemberComponents, PathRecord};
use vernic_wire::smp::Notice;

use crate::connection::Connection;
use crate::error::AttachError;
use crate::hello::{Purpose, Refusal};
use crate::question::{Answer, PathAsked, Question};

/// Bytes of the longest message that is read here. An interface with as many IPv6 addresses as it
/// may have takes 4,698; refusals are shorter.
const MAX_ANSWER: usize = 8192;

/// A connection with one question, and whether there may be more answers.
#[derive(Debug)]
pub(crate) struct Asked {
    connection: Connection,
    is_over: bool,
}

impl Asked {
    /// Sends a question. Waits for room at most, and a new connection has room.
    pub(crate) fn new(connection: Connection, question: &[u8]) -> Result<Self, AttachError> {
        connection.send_waiting(question)?;
        Ok(Self { connection, is_over: false })
    }
    /// Returns the next answer, read by `parse`; `None` if there is none. An error is the last one.
    pub(crate) fn poll<T>(
        &mut self,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<Result<T, AttachError>> {
        if self.is_over {
            return None;
        }
        let mut buf = [0; MAX_ANSWER];
        let answer = match self.connection.recv(&mut buf) {
            Ok(message) => match (parse(message), Refusal::parse(message)) {
                (Some(answer), _) => Ok(answer),
                (None, Some(refusal)) => Err(AttachError::Refused(refusal)),
                (None, None) => Err(AttachError::Malformed { what: "an answer to a question" }),
            },
            Err(error) if vernic_sys::is_for_later(&error) => return None,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(AttachError::Malformed { what: "a long answer to a question" })
            }
            Err(error) => Err(AttachError::io("an answer of the fabric")(error)),
        };
        self.is_over = answer.is_err();
        Some(answer)
    }
    /// Notes that there are no more answers.
    pub(crate) const fn end(&mut self) {
        self.is_over = true;
    }
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// A question for a path. Dropping it withdraws the question.
#[derive(Debug)]
pub struct PathQuestion(Asked);

impl PathQuestion {
    /// Asks subnet administration, by the fabric process's client of a port, for a path.
    ///
    /// # Errors
    /// [`AttachError`], but no refusal: that is an answer.
    pub fn ask(
        fabric: &str,
        host: &str,
        port: PortNum,
        query: &PathAsked,
    ) -> Result<Self, AttachError> {
        Self::ask_over(Connection::connect(fabric, Purpose::Question)?, host, port, query)
    }
    /// Asks over a connection that is there.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_over(
        connection: Connection,
        host: &str,
        port: PortNum,
        query: &PathAsked,
    ) -> Result<Self, AttachError> {
        let question = Question::Path { host, port, query: *query };
        Asked::new(connection, &question.emit()).map(Self)
    }
    /// Returns the answer, once; `None` if there is none yet, and when it was returned. Never
    /// waits.
    pub fn poll(&mut self) -> Option<Result<PathRecord, AttachError>> {
        let answer = self.0.poll(|message| match Answer::parse(message) {
            Some(Answer::Path(record)) => Some(record),
            _ => None,
        });
        if answer.is_some() {
            self.0.end();
        }
        answer
    }
}

/// The descriptor that is readable when there is an answer.
impl AsFd for PathQuestion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A membership of a port in a group, as far as subnet administration goes. Dropping it leaves the
/// group, unless another program of the port is a member as well.
///
/// The packets of the group come to a program that has joined it by its
/// [`DataClient`](crate::DataClient), too.
#[derive(Debug)]
pub struct GroupJoin(Asked);

impl GroupJoin {
    /// Asks subnet administration, by the fabric process's client of a port, to let the port into a
    /// group: the one way of `record.join_state`. `components` says which fields of the record
    /// count.
    ///
    /// # Errors
    /// [`AttachError`], but no refusal: that is an answer.
    pub fn ask(
        fabric: &str,
        host: &str,
        port: PortNum,
        record: &McMemberRecord,
        components: MemberComponents,
    ) -> Result<Self, AttachError> {
        let connection = Connection::connect(fabric, Purpose::Question)?;
        Self::ask_over(connection, host, port, record, components)
    }
    /// Asks over a connection that is there.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_over(
        connection: Connection,
        host: &str,
        port: PortNum,
        record: &McMemberRecord,
        components: MemberComponents,
    ) -> Result<Self, AttachError> {
        let question = Question::Group { host, port, record: *record, components };
        Asked::new(connection, &question.emit()).map(Self)
    }
    /// Returns what subnet administration has answered; `None` if there is nothing new. Later there
    /// is another record if the port had to join again and something is other than before (MLID),
    /// or an error if the membership is lost. Nothing follows an error. Never waits.
    pub fn poll(&mut self) -> Option<Result<McMemberRecord, AttachError>> {
        self.0.poll(|message| match Answer::parse(message) {
            Some(Answer::Group(record)) => Some(record),
            _ => None,
        })
    }
}

/// The descriptor that is readable when there is something new.
impl AsFd for GroupJoin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A subscription of a port to the notices of the subnet: ports that come and go (64, 65), groups
/// that are made and deleted (66, 67). Dropping it ends the subscription, unless another program of
/// the port has it as well.
#[derive(Debug)]
pub struct Notices(Asked);

impl Notices {
    /// Subscribes to them, by the fabric process's client of a port.
    ///
    /// # Errors
    /// [`AttachError`], but no refusal: that is an answer.
    pub fn ask(fabric: &str, host: &str, port: PortNum) -> Result<Self, AttachError> {
        Self::ask_over(Connection::connect(fabric, Purpose::Question)?, host, port)
    }
    /// Asks over a connection that is there.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_over(
        connection: Connection,
        host: &str,
        port: PortNum,
    ) -> Result<Self, AttachError> {
        Asked::new(connection, &Question::Notices { host, port }.emit()).map(Self)
    }
    /// Returns the next notice; `None` if there is none now. Nothing follows an error. Never waits.
    pub fn poll(&mut self) -> Option<Result<Notice, AttachError>> {
        self.0.poll(|message| match Answer::parse(message) {
            Some(Answer::Notice(notice)) => Some(notice),
            _ => None,
        })
    }
}

/// The descriptor that is readable when there is a notice.
impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A claim of a service: connection requests for it (REQ, SIDR_REQ) come to this program. Dropping
/// it gives up the claim.
#[derive(Debug)]
pub struct ServiceClaim {
    /// Held for its life.
    _connection: Connection,
}

impl ServiceClaim {
    /// Claims a service for the program in `slot`, and waits for the answer. With an `address`, the
    /// claim is for those requests of `rdma_cm` whose private data name it as the destination. A
    /// claim for the address of a request comes before one for all addresses.
    ///
    /// # Errors
    /// [`AttachError::Refused`] of the kind `Taken` if another claim of the host has the same
    /// service and address, or if one of the two is for all addresses and of another slot. All
    /// others.
    pub fn claim(
        fabric: &str,
        host: &str,
        slot: u16,
        service: ServiceId,
        address: Option<IpAddr>,
    ) -> Result<Self, AttachError> {
        let connection = Connection::connect(fabric, Purpose::Question)?;
        Self::claim_over(connection, host, slot, service, address)
    }
    /// Claims over a connection that is there.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_over(
        connection: Connection,
        host: &str,
        slot: u16,
        service: ServiceId,
        address: Option<IpAddr>,
    ) -> Result<Self, AttachError> {
        let question = Question::Service { host, slot, service, address };
        connection.send_waiting(&question.emit())?;
        match Answer::parse(&connection.answer()?) {
            Some(Answer::Claimed) => Ok(Self { _connection: connection }),
            _ => Err(AttachError::Malformed { what: "an answer to a claim" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RefusalKind;
    use crate::interface::tests::some_interface;
    use crate::interface::{InterfaceAnswer, IpInterface, MAX_ADDRESSES};
    use crate::question::tests::{some_group, some_path};
    use vernic_wire::{Gid, Pkey};

    fn pair() -> (Connection, Connection) {
        let (one, other) = vernic_sys::packet_pair().unwrap();
        (Connection::new(one), Connection::new(other))
    }

    fn asked(connection: Connection) -> PathQuestion {
        let (sgid, dgid, pkey) = (Gid([1; 16]), Gid([2; 16]), Pkey::DEFAULT);
        let query = PathAsked { sgid, dgid, pkey, service: None, traffic_class: None };
        PathQuestion::ask_over(connection, "h1", PortNum(1), &query).unwrap()
    }

    #[test]
    fn a_path_is_answered_once() {
        let (ours, fabric) = pair();
        let mut question = asked(ours);
        assert!(question.poll().is_none());
        let mut buf = [0; 256];
        let read = Question::parse(fabric.recv(&mut buf).unwrap());
        assert!(matches!(read, Some(Question::Path { host: "h1", .. })));
        fabric.send(&Answer::Path(some_path()).emit()).unwrap();
        assert_eq!(question.poll().unwrap().unwrap(), some_path());
        drop(fabric);
        assert!(question.poll().is_none());
    }

    #[test]
    fn what_is_no_answer_is_an_error_that_says_so() {
        let refusal = Refusal::new(RefusalKind::Unreachable, "no path");
        let cases = [
            (refusal.emit(), "no path"),
            (Answer::Claimed.emit(), "does not understand"),
            (vec![0; MAX_ANSWER + 1], "does not understand"),
        ];
        for (message, text) in cases {
            let (ours, fabric) = pair();
            let mut question = asked(ours);
            fabric.send(&message).unwrap();
            let error = question.poll().unwrap().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
            assert!(question.poll().is_none());
        }
        let (ours, fabric) = pair();
        let mut question = asked(ours);
        drop(fabric);
        assert!(matches!(question.poll(), Some(Err(AttachError::Ended))));
    }

    #[test]
    fn the_longest_interface_is_read() {
        let interface = IpInterface {
            addresses: vec![([0xFD00, 0, 0, 0, 0, 0, 0, 2].into(), 64); MAX_ADDRESSES],
            ..some_interface()
        };
        let answer = InterfaceAnswer::Interface(interface);
        let (ours, fabric) = pair();
        let mut asked = Asked::new(ours, &[1]).unwrap();
        fabric.send(&answer.emit()).unwrap();
        assert_eq!(asked.poll(InterfaceAnswer::parse).unwrap().unwrap(), answer);
    }

    #[test]
    fn a_group_has_news_until_it_is_lost() {
        let (ours, fabric) = pair();
        let (record, all) = (some_group(), MemberComponents::all());
        let mut join = GroupJoin::ask_over(ours, "h1", PortNum(1), &record, all).unwrap();
        for _ in 0..2 {
            fabric.send(&Answer::Group(record).emit()).unwrap();
            assert_eq!(join.poll().unwrap().unwrap(), record);
            assert!(join.poll().is_none());
        }
        fabric.send(&Refusal::new(RefusalKind::Unanswered, "gone").emit()).unwrap();
        assert!(join.poll().unwrap().is_err() && join.poll().is_none());
    }

    #[test]
    fn a_claim_is_granted_or_refused() {
        for is_granted in [true, false] {
            let (ours, fabric) = pair();
            let answer = match is_granted {
                true => Answer::Claimed.emit(),
                false => Refusal::new(RefusalKind::Taken, "another").emit(),
            };
            fabric.send(&answer).unwrap();
            let claim = ServiceClaim::claim_over(ours, "h1", 1, ServiceId(7), None);
            assert_eq!(claim.is_ok(), is_granted);
            let mut buf = [0; 256];
            fabric.recv(&mut buf).unwrap();
            // A claim that was granted lasts.
            let next = fabric.recv(&mut buf).unwrap_err();
            assert_eq!(vernic_sys::is_for_later(&next), is_granted);
        }
    }
}
