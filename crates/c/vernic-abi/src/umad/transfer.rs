//! Sending and receiving.

use std::ffi::c_int;

use vernic_attach::UserMad;
use vernic_attach::user_mad::MAX_MAD;

use super::address::{from_c, to_c};
use super::port::OpenPort;
use crate::boundary::{self, Failure};
use crate::layout::umad::{HEADER_BYTES, ib_user_mad};
use crate::pointer::{BytesMut, Out};
use crate::waiting::{Attempt, attempts_within};

/// Bytes of a single datagram.
const MAD_BYTES: usize = 256;

/// `umad_send`: a datagram, or with RMPP a message of `length` bytes. 0 or a negative errno. What
/// the fabric refuses comes back with a status.
pub(crate) extern "C" fn umad_send(
    port: c_int,
    agent: c_int,
    umad: Out<ib_user_mad>,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let sent = boundary::negative("umad_send", || {
        let port = OpenPort::find(port)?;
        let id = port.agent(agent)?;
        let header = umad.require("the datagram")?;
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_MAD);
        let length = length.ok_or_else(|| {
            Failure::invalid(format!(
                "a message of more than {MAX_MAD} bytes, or of less than none"
            ))
        })?;
        // A negative number of the kernel's interface is a large one, too.
        let (timeout_ms, retries) = (timeout_ms as u32, retries as u32);
        umad.write(ib_user_mad { agent_id: agent as u32, timeout_ms, retries, ..header });
        port.send(&UserMad {
            agent: id,
            status: 0,
            timeout_ms,
            retries,
            address: from_c(&header.addr),
            mad: BytesMut::behind(umad).slice(length).to_vec(),
        })?;
        Ok(0)
    });
    sent as c_int
}

/// `umad_recv`: the agent that gets a datagram, or a negative errno. `length` is the room behind
/// the header; then, how long the datagram is. One that does not fit stays.
pub(crate) extern "C-unwind" fn umad_recv(
    port: c_int,
    umad: Out<ib_user_mad>,
    length: Out<c_int>,
    timeout_ms: c_int,
) -> c_int {
    attempts_within(timeout_ms, || {
        let mut wait = None;
        let received = boundary::quietly_negative(|| {
            let port = OpenPort::find(port)?;
            if umad.is_null() {
                return Err(Failure::null("a place for the datagram"));
            }
            let room = usize::try_from(length.require("the length")?).unwrap_or(0);
            let (agent, mad) = match port.receive() {
                Ok(Some(received)) => received,
                Ok(None) if timeout_ms != 0 => {
                    port.about_to_wait();
                    wait = Some(Attempt::Wait(port.fd()));
                    return Ok(0);
                }
                Ok(None) => return Err(Failure::new(libc::EWOULDBLOCK, "there is no datagram")),
                Err(_) if timeout_ms != 0 && port.was_told() => {
                    wait = Some(Attempt::FOR_EVER);
                    return Ok(0);
                }
                Err(failure) => {
                    failure.log("umad_recv");
                    return Err(failure);
                }
            };
            give(umad, room, agent, &mad);
            length.write(mad.mad.len() as c_int);
            if mad.mad.len() > room {
                let why = format!("{} bytes do not fit {room}", mad.mad.len());
                port.put_back(mad);
                return Err(Failure::new(libc::ENOSPC, why));
            }
            Ok(agent as isize)
        });
        wait.unwrap_or(Attempt::Done(received as c_int))
    })
}

/// Writes a datagram to where C wants it; of one that does not fit, as much as a single datagram.
fn give(umad: Out<ib_user_mad>, room: usize, agent: usize, mad: &UserMad) {
    umad.write(ib_user_mad {
        agent_id: agent as u32,
        status: mad.status,
        timeout_ms: mad.timeout_ms,
        retries: mad.retries,
        length: (HEADER_BYTES + mad.mad.len()) as u32,
        addr: to_c(&mad.address),
    });
    let fits = if mad.mad.len() <= room { mad.mad.len() } else { room.min(MAD_BYTES) };
    BytesMut::behind(umad).slice(fits).copy_from_slice(&mad.mad[..fits]);
}
