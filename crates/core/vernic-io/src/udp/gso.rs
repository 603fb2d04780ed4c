//! `UDP_SEGMENT`: one send, many datagrams.
//!
//! GSO is asked for per send by control message, never per socket, so that one socket carries runs
//! of all sizes. Kernels differ in how many segments they cut (64; 128 since 6.9), and before 4.18
//! they cut none. So a link tries it on a socket of the loopback device when it is made. The probe
//! cannot test the device of a route. A device without checksum offload refuses with `EIO`, and
//! then the link gives segmentation up for that source address.

use std::net::SocketAddr;

use vernic_sys as sys;

use crate::udp::trial;

/// Segment counts to try, best first.
const CANDIDATES: [u16; 2] = [128, 64];

/// Returns the most segments that the kernel cuts in one send, 1 if it cuts none.
pub(crate) fn probe(loopback: SocketAddr) -> u16 {
    CANDIDATES.into_iter().find(|&n| try_send(loopback, n).is_ok()).unwrap_or(1)
}

fn try_send(loopback: SocketAddr, segments: u16) -> std::io::Result<()> {
    let bytes = &[0; CANDIDATES[0] as usize][..usize::from(segments)];
    let message = sys::Outgoing { segment: Some(1), ..sys::Outgoing::new(loopback, bytes) };
    trial::send(loopback, message)
}

/// Whether this refusal of a run may mean that segmentation is not possible on its route, so that
/// the same packets one by one may pass. Such errors are `EIO` (no checksum offload), `EINVAL` (too
/// many segments), `EMSGSIZE` (some kernels, same reason), `EOPNOTSUPP` and `ENOPROTOOPT`.
pub(crate) fn is_refusal(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}
