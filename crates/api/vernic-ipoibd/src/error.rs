//! Why there is no interface.

use std::io;

use vernic_attach::AttachError;
use vernic_wire::Pkey;

/// Why an interface was not made, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum IpoibError {
    /// The TUN device was not made.
    #[error("the TUN device {name:?} was not made: {source}{}", advice(source))]
    Tun {
        /// Name asked for.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// The TUN device was not set up.
    #[error("{what} of the TUN device {name} was not set: {source}")]
    SetUp {
        /// What was to be set.
        what: &'static str,
        /// Name of the device.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// The fabric process refused, or is not there.
    #[error(transparent)]
    Fabric(#[from] AttachError),
    /// The host has an interface in the partition already.
    #[error(
        "host {host} has an interface in partition {pkey} already, by process {pid}: end that one, \
         or give this one another host or partition (--pkey)"
    )]
    Taken {
        /// Name of the host.
        host: String,
        /// The partition.
        pkey: Pkey,
        /// The process.
        pid: u32,
    },
    /// The adapter has no such port.
    #[error("host {host} has no port {port}: its adapter has {ports}")]
    NoPort {
        /// Name of the host.
        host: String,
        /// Port asked for.
        port: u8,
        /// Ports of the adapter.
        ports: usize,
    },
    /// The device of the host does not do what is asked of it.
    #[error("{what}: {source}")]
    Device {
        /// What was asked.
        what: &'static str,
        /// Why not.
        source: Box<vernic::Error>,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl IpoibError {
    pub(crate) fn device(what: &'static str) -> impl FnOnce(vernic::Error) -> Self {
        move |source| Self::Device { what, source: Box::new(source) }
    }
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// What helps where a TUN device was not made.
fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EBUSY) => {
            ". Another process has a device of that name, or an interface has it: `ip link` lists them, \
             and `--device` chooses another"
        }
        Some(libc::EPERM | libc::EACCES) => {
            ". It takes CAP_NET_ADMIN: run as root, or in a network namespace of your own (unshare -rn)"
        }
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            ". There is no /dev/net/tun here: `modprobe tun`, or `--no-device` for rdma_cm alone"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tun_device_that_was_not_made_has_its_own_advice_by_cause() {
        let told = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            IpoibError::Tun { name: "ib0".into(), source }.to_string()
        };
        let busy = told(libc::EBUSY);
        assert!(busy.contains("Another process") && !busy.contains("CAP_NET_ADMIN"), "{busy}");
        assert!(told(libc::EPERM).contains("CAP_NET_ADMIN"));
        assert!(told(libc::ENOENT).contains("/dev/net/tun"));
    }
}
