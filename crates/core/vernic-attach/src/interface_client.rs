//! A program that asks interfaces of IP over InfiniBand.

use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use vernic_sys::{PollFd, poll};
use vernic_wire::ipoib::HardwareAddress;
use vernic_wire::sa::PathRecord;
use vernic_wire::{Guid, Pkey, PortNum};

use crate::connection::Connection;
use crate::error::AttachError;
use crate::hello::Purpose;
use crate::interface::{InterfaceAnswer, InterfaceRequest, IpInterface};
use crate::path;
use crate::question_client::Asked;

/// Most interfaces of an adapter that are asked.
const MAX_INTERFACES: usize = 256;

/// How long all interfaces of an adapter have for their answers. Each answers within a millisecond;
/// this is a machine that is far too busy.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns the interfaces of an adapter, in order, as they are now. One that does not answer within
/// half a second is left out.
///
/// # Errors
/// [`AttachError`]: the name or the folder of the fabric.
pub fn interfaces(fabric: &str, guid: Guid) -> Result<Vec<IpInterface>, AttachError> {
    let folder = path::folder();
    if folder.is_dir() {
        path::check(&folder)?;
    }
    interfaces_in(&folder, fabric, guid)
}

/// Does the same where the socket of the fabric is in `folder`.
///
/// # Errors
/// As [`interfaces`].
pub fn interfaces_in(
    folder: &Path,
    fabric: &str,
    guid: Guid,
) -> Result<Vec<IpInterface>, AttachError> {
    let entries = fs::read_dir(path::interface_folder_in(folder, fabric)?);
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let of_name = |name: std::ffi::OsString| path::interface_of(name.to_str()?);
    let ours = names.filter_map(of_name).filter(|(adapter, ..)| *adapter == guid);
    let mut ours: Vec<_> = ours.take(MAX_INTERFACES).collect();
    ours.sort_unstable_by_key(|(_, port, pkey)| (port.0, pkey.0));
    let ask = |at| connect_in(folder, fabric, at, InterfaceRequest::About).ok();
    // All are asked before the first answer is waited for.
    let asked: Vec<_> = ours.into_iter().filter_map(ask).collect();
    let end = Instant::now() + PATIENCE;
    let answers = asked.into_iter().filter_map(|asked| answer_until(asked, end));
    Ok(answers.filter(|interface| interface.guid == guid).collect())
}

/// Waits for what an interface has.
fn answer_until(mut asked: Asked, end: Instant) -> Option<IpInterface> {
    loop {
        let answer = asked.poll(|message| match InterfaceAnswer::parse(message) {
            Some(InterfaceAnswer::Interface(interface)) => Some(interface),
            _ => None,
        });
        if let Some(answer) = answer {
            return answer.ok();
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        poll(&mut [PollFd::readable(asked.as_fd().as_raw_fd())], Some(left)).ok()?;
    }
}

fn connect_in(
    folder: &Path,
    fabric: &str,
    at: (Guid, PortNum, Pkey),
    request: InterfaceRequest,
) -> Result<Asked, AttachError> {
    let socket = path::interface_in(folder, fabric, at)?;
    let connection = Connection::connect_path(fabric, &socket, Purpose::Question);
    let connection = connection.map_err(|error| match error {
        AttachError::NoFabric { path, .. } | AttachError::NotRunning { path, .. } => {
            AttachError::NoInterface { path }
        }
        other => other,
    })?;
    Asked::new(connection, &request.emit())
}

/// A question where an IP address is. Dropping it withdraws the question.
#[derive(Debug)]
pub struct AddressQuestion(Asked);

impl AddressQuestion {
    /// Asks an interface where an IP address of its link is; one of its own, too.
    ///
    /// # Errors
    /// [`AttachError`], but no refusal: that is an answer.
    pub fn ask(fabric: &str, interface: &IpInterface, ip: IpAddr) -> Result<Self, AttachError> {
        let folder = path::folder();
        if folder.is_dir() {
            path::check(&folder)?;
        }
        Self::ask_in(&folder, fabric, interface, ip)
    }
    /// Does the same where the socket of the fabric is in `folder`.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_in(
        folder: &Path,
        fabric: &str,
        interface: &IpInterface,
        ip: IpAddr,
    ) -> Result<Self, AttachError> {
        let at = (interface.guid, interface.port, interface.pkey);
        connect_in(folder, fabric, at, InterfaceRequest::Resolve(ip)).map(Self)
    }
    /// Returns the answer, once: the interface that has the address, and the path to its port.
    /// `None` if there is none yet, and when it was returned. Never waits.
    pub fn poll(&mut self) -> Option<Result<(HardwareAddress, PathRecord), AttachError>> {
        let answer = self.0.poll(|message| match InterfaceAnswer::parse(message) {
            Some(InterfaceAnswer::Resolved(address, record)) => Some((address, record)),
            _ => None,
        });
        if answer.is_some() {
            self.0.end();
        }
        answer
    }
}

/// The descriptor that is readable when there is an answer.
impl AsFd for AddressQuestion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::MAX_MESSAGE;
    use crate::hello::Hello;
    use crate::question::tests::some_path;
    use vernic_sys as sys;
    use vernic_wire::{Gid, Qpn};

    const ADAPTER: Guid = Guid(0xABCD);

    fn folder(test: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("vernic-{test}-{}", std::process::id()));
        path::prepare(&path::interface_folder_in(&folder, "lab").unwrap()).unwrap();
        folder
    }
    fn listen(folder: &Path, pkey: Pkey) -> vernic_sys::OwnFd {
        let path = path::interface_in(folder, "lab", (ADAPTER, PortNum(1), pkey)).unwrap();
        let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
        sys::bind_path(socket.as_fd(), &path).unwrap();
        sys::listen(socket.as_fd(), 16).unwrap();
        socket
    }
    fn some_interface(pkey: Pkey) -> IpInterface {
        IpInterface {
            guid: ADAPTER,
            port: PortNum(1),
            pkey,
            gid: Gid([1; 16]),
            mtu: None,
            addresses: Vec::new(),
            group: None,
        }
    }
    /// Answers one connection.
    fn serve(socket: &vernic_sys::OwnFd, answer: &InterfaceAnswer) -> InterfaceRequest {
        sys::poll(&mut [PollFd::readable(socket.as_raw_fd())], None).unwrap();
        let connection = Connection::new(sys::accept(socket.as_fd()).unwrap());
        let mut buf = vec![0; MAX_MESSAGE];
        connection.wait_readable(None).unwrap();
        let hello = Hello::parse(connection.recv(&mut buf).unwrap());
        assert_eq!(hello, Some(Hello::For(Purpose::Question)));
        connection.wait_readable(None).unwrap();
        let request = InterfaceRequest::parse(connection.recv(&mut buf).unwrap()).unwrap();
        connection.send(&answer.emit()).unwrap();
        // Until the program has gone.
        connection.wait_readable(None).unwrap();
        request
    }

    #[test]
    fn interfaces_that_do_not_answer_are_left_out() {
        let folder = folder("interfaces");
        assert!(interfaces_in(&folder, "other", ADAPTER).unwrap().is_empty());
        let sockets = [Pkey(0x8002), Pkey(0x8001)].map(|pkey| (pkey, listen(&folder, pkey)));
        drop(listen(&folder, Pkey(0x8003)));
        let _silent = listen(&folder, Pkey(0x8004));
        let threads = sockets.map(|(pkey, socket)| {
            let answer = InterfaceAnswer::Interface(some_interface(pkey));
            thread::spawn(move || serve(&socket, &answer))
        });
        let found = interfaces_in(&folder, "lab", ADAPTER).unwrap();
        assert_eq!(found, [Pkey(0x8001), Pkey(0x8002)].map(some_interface));
        for thread in threads {
            assert_eq!(thread.join().unwrap(), InterfaceRequest::About);
        }
        assert!(interfaces_in(&folder, "lab", Guid(1)).unwrap().is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_address_is_asked_for_and_an_interface_that_is_none_is_told() {
        let folder = folder("address");
        let (pkey, ip) = (Pkey(0x8001), IpAddr::from([10, 0, 0, 2]));
        let interface = some_interface(pkey);
        let error = AddressQuestion::ask_in(&folder, "lab", &interface, ip).unwrap_err();
        assert!(error.to_string().contains("vernic fabric ipoib"), "{error}");
        let socket = listen(&folder, pkey);
        let mut question = AddressQuestion::ask_in(&folder, "lab", &interface, ip).unwrap();
        assert!(question.poll().is_none());
        let answer = (HardwareAddress::new(Qpn::new(5), Gid([4; 16])), some_path());
        let message = InterfaceAnswer::Resolved(answer.0, answer.1);
        let thread = thread::spawn(move || serve(&socket, &message));
        poll(&mut [PollFd::readable(question.as_fd().as_raw_fd())], None).unwrap();
        assert_eq!(question.poll().unwrap().unwrap(), answer);
        assert!(question.poll().is_none());
        drop(question);
        assert_eq!(thread.join().unwrap(), InterfaceRequest::Resolve(ip));
        fs::remove_dir_all(&folder).unwrap();
    }
}
