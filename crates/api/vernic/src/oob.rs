//! Out-of-band exchange over TCP: how two ends tell each other their endpoints.
//!
//! For examples, tests and benchmarks. Any other channel does as well: an
//! [`Endpoint`] and a [`RemoteMr`] are a few bytes. Nothing here is authenticated or
//! encrypted: whoever can connect to the port gets the keys of the regions that are exchanged.
//!
//! Each message is a length (2 bytes, big-endian) and that many bytes, at most [`MAX_LEN`].

use std::io::{self, Read, Write};

use crate::{Endpoint, RemoteMr};

/// Longest message, bytes: a peer that is no Vernic program cannot make us allocate more.
pub const MAX_LEN: usize = 4096;

/// Sends `mine` and returns what the peer sends.
///
/// Both ends may call this at the same time: messages fit the buffers of TCP.
///
/// # Errors
/// What the stream says; `InvalidInput` for more than [`MAX_LEN`] bytes, `InvalidData` if the peer
/// announces more.
pub fn exchange(stream: &mut (impl Read + Write), mine: &[u8]) -> io::Result<Vec<u8>> {
    if mine.len() > MAX_LEN {
        let text = format!("{} bytes to exchange, the limit is {MAX_LEN}", mine.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    stream.write_all(&(mine.len() as u16).to_be_bytes())?;
    stream.write_all(mine)?;
    stream.flush()?;
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let len = usize::from(u16::from_be_bytes(len));
    if len > MAX_LEN {
        let text = format!(
            "the peer announces {len} bytes, the limit is {MAX_LEN}: is it a Vernic program?"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut theirs = vec![0; len];
    stream.read_exact(&mut theirs)?;
    Ok(theirs)
}

/// Exchanges endpoints.
///
/// # Errors
/// As [`exchange`]; `InvalidData` if what comes is no endpoint.
pub fn exchange_endpoints(
    stream: &mut (impl Read + Write),
    mine: Endpoint,
) -> io::Result<Endpoint> {
    Endpoint::from_bytes(&exchange(stream, &mine.to_bytes())?).map_err(invalid)
}

/// Exchanges regions.
///
/// # Errors
/// As [`exchange`]; `InvalidData` if what comes is no region.
pub fn exchange_regions(stream: &mut (impl Read + Write), mine: RemoteMr) -> io::Result<RemoteMr> {
    RemoteMr::from_bytes(&exchange(stream, &mine.to_bytes())?).map_err(invalid)
}

/// Returns when the peer calls it too: "I am ready" or "I am done".
///
/// # Errors
/// What the stream says; `InvalidData` if the peer is somewhere else.
pub fn barrier(stream: &mut (impl Read + Write)) -> io::Result<()> {
    match exchange(stream, &[])?.len() {
        0 => Ok(()),
        len => Err(invalid(format!("the peer sent {len} bytes where a barrier was due"))),
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn both_ends_learn_the_others_endpoint_and_region() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let a: Endpoint = "qpn=1,psn=2,mtu=256,gid=::1".parse().unwrap();
        let b: Endpoint = "qpn=3,psn=4,mtu=4096,gid=::2".parse().unwrap();
        let region = RemoteMr { addr: 1 << 40, rkey: crate::Rkey(7), len: 9 };
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            barrier(&mut stream).unwrap();
            exchange_regions(&mut stream, region).unwrap();
            exchange_endpoints(&mut stream, b).unwrap()
        });
        let mut stream = TcpStream::connect(addr).unwrap();
        barrier(&mut stream).unwrap();
        assert_eq!(exchange_regions(&mut stream, region).unwrap(), region);
        assert_eq!(exchange_endpoints(&mut stream, a).unwrap(), b);
        assert_eq!(peer.join().unwrap(), a);
    }

    #[test]
    fn a_peer_that_speaks_something_else_is_an_error_and_no_allocation() {
        let mut http = io::Cursor::new(Vec::from(*b"\0\0GET / HTTP/1.1\r\n"));
        let error = exchange(&mut http, &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(exchange(&mut http, &[0; MAX_LEN + 1]).is_err());
    }
}
