//! Another user of this host, without privilege, who forges packets: a thread with a user id of its
//! own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use vernic_engine::*;
use vernic_wire::cm::CmMessage;
use vernic_wire::icrc::IcrcFlow;
use vernic_wire::{Bth, Deth, Headers, Opcode};

/// Neither root nor `nobody`.
const UID: libc::uid_t = 65_533;
const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Runs `f` as another user. `None`, and said, where that cannot be.
#[allow(clippy::print_stdout)] // what is skipped
pub fn as_another_user<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    let result = std::thread::scope(|scope| scope.spawn(|| become_another_user().then(f)).join());
    let result = result.unwrap();
    if result.is_none() {
        println!("skipped: this test needs root, to become another user");
    }
    result
}

/// The calls of the kernel, which are about this thread alone; those of the C library are about
/// all.
fn become_another_user() -> bool {
    let none = std::ptr::null::<libc::gid_t>();
    // SAFETY: the first reads no group, as it is told; the others take no pointers.
    unsafe {
        libc::syscall(libc::SYS_setgroups, 0, none) == 0
            && libc::syscall(libc::SYS_setresgid, UID, UID, UID) == 0
            && libc::syscall(libc::SYS_setresuid, UID, UID, UID) == 0
    }
}

/// A socket of another user, and how its packets are made.
pub struct Forger {
    socket: UdpSocket,
    flow: IcrcFlow,
    to: SocketAddr,
    /// Packets sent.
    pub sent: u64,
}

impl Forger {
    /// To a port of this host, from the address that everybody here has.
    pub fn new(port: u16) -> Self {
        let socket = UdpSocket::bind((HOME, 0)).unwrap();
        let from = socket.local_addr().unwrap();
        let flow = IcrcFlow::new(HOME, HOME, from.port(), port);
        Self { socket, flow, to: (HOME, port).into(), sent: 0 }
    }

    /// Sends a packet with a right ICRC.
    pub fn send(&mut self, headers: &Headers, payload: &[u8]) {
        let mut packet = [0; 512];
        let start = headers.emit(&mut packet);
        packet[start..start + payload.len()].copy_from_slice(payload);
        let packet = &mut packet[..start + payload.len() + 4];
        self.flow.stamp(0, packet);
        self.sent += u64::from(self.socket.send_to(packet, self.to).is_ok());
    }

    /// Sends a message of connection management.
    pub fn send_cm(&mut self, message: &CmMessage) {
        let mut mad = [0; CmMessage::LEN];
        message.emit(self.sent, &mut mad);
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(self.sent as u32));
        let mut headers = Headers::new(bth);
        headers.deth = Some(Deth::new(Qkey(0x8001_0000), Qpn::GSI));
        self.send(&headers, &mad);
    }
}
