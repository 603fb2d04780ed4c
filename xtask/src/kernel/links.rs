//! The links between this machine and the guest: one for each MTU, each with addresses of both versions.

/// A tap device here, a virtio network card in the guest.
#[derive(Debug)]
pub(super) struct Link {
    /// MTU of both netdevs, bytes.
    pub(super) mtu: u64,
    /// The largest path MTU that fits, bytes: what rxe takes leaves 80 bytes for headers.
    pub(super) path_mtu: u64,
    /// The netdev's name here.
    pub(super) netdev: &'static str,
    /// Addresses here.
    pub(super) host4: &'static str,
    pub(super) host6: &'static str,
    /// Addresses of the guest.
    pub(super) peer4: &'static str,
    pub(super) peer6: &'static str,
    /// The guest's RDMA device.
    pub(super) device: &'static str,
}

/// Every link. A protocol other than RoCEv2 would get links of its own here.
pub(super) const LINKS: [Link; 2] = [
    Link {
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
        mtu: 9000,
        path_mtu: 4096,
        netdev: "tap9000",
        host4: "198.51.100.1",
        host6: "2001:db8:2::1",
        peer4: "198.51.100.2",
        peer6: "2001:db8:2::2",
        device: "rxe9000",
    },
];
