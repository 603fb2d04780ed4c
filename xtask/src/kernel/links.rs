//! The links between this machine and the guest: one for each MTU and each of the kernel's drivers,
//! each with addresses of both versions.

/// A driver of the kernel. Connections by IP address would not know which of two on one netdev is
/// meant, so each has netdevs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// RoCEv2.
    Rxe,
    /// iWARP.
    Siw,
}

impl Driver {
    /// The module of the kernel.
    pub(super) fn module(self) -> &'static str {
        match self {
            Self::Rxe => "rdma_rxe",
            Self::Siw => "siw",
        }
    }

    /// What `rdma link add ... type` calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }
}

/// A tap device here, a virtio network card in the guest.
#[derive(Debug)]
pub(crate) struct Link {
    /// Whose device the guest has on it.
    pub(crate) driver: Driver,
    /// MTU of both netdevs, bytes.
    pub(crate) mtu: u64,
    /// The largest path MTU that fits, bytes: what rxe takes leaves 80 bytes for headers.
    pub(crate) path_mtu: u64,
    /// The netdev's name here.
    pub(crate) netdev: &'static str,
    /// Addresses here.
    pub(crate) host4: &'static str,
    pub(crate) host6: &'static str,
    /// Addresses of the guest.
    pub(crate) peer4: &'static str,
    pub(crate) peer6: &'static str,
    /// The guest's RDMA device.
    pub(crate) device: &'static str,
}

/// Every link.
pub(crate) const LINKS: [Link; 4] = [
    Link {
        driver: Driver::Rxe,
        mtu: 1500,
        path_mtu: 1024,
        netdev: "tap1500",
        host4: "192.0.2.1",
        host6: "2001:db8:1::1",
        peer4: "192.0.2.2",
        peer6: "2001:db8:1::2",
        device: "rxe1500",
    },
    Link {
        driver: Driver::Rxe,
        mtu: 9000,
        path_mtu: 4096,
        netdev: "tap9000",
        host4: "198.51.100.1",
        host6: "2001:db8:2::1",
        peer4: "198.51.100.2",
        peer6: "2001:db8:2::2",
        device: "rxe9000",
    },
    Link {
        driver: Driver::Siw,
        mtu: 1500,
        path_mtu: 1024,
        netdev: "tapiw1500",
        host4: "203.0.113.1",
        host6: "2001:db8:3::1",
        peer4: "203.0.113.2",
        peer6: "2001:db8:3::2",
        device: "siw1500",
    },
    Link {
        driver: Driver::Siw,
        mtu: 9000,
        path_mtu: 4096,
        netdev: "tapiw9000",
        host4: "198.18.0.1",
        host6: "2001:db8:4::1",
        peer4: "198.18.0.2",
        peer6: "2001:db8:4::2",
        device: "siw9000",
    },
];
