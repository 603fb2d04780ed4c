//! Ports of links that have subnet management: what a subnet manager has set up.
//!
//! Owned by the link; the engine reads a copy when the device is opened, and again whenever the
//! descriptor of the [`PortWatch`] is readable. Links over IP networks have none of this: their
//! ports follow netdevs.

use std::os::fd::RawFd;

use vernic_wire::{Gid, Lid, Mtu, Pkey};

/// State of a port (IBTA 11.2.1.2; values of `ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum PortState {
    /// No packet passes: the netdev, or the link, is down.
    #[default]
    Down = 1,
    /// The link is up, and a subnet manager may set up the port.
    Init = 2,
    /// The port is set up, and waits to be activated.
    Armed = 3,
    /// Packets pass.
    Active = 4,
}

impl PortState {
    /// Returns the state of a code of PortInfo (IBTA 14.2.5.6); `Down` for others.
    pub const fn from_code(code: u8) -> Self {
        match code {
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            _ => Self::Down,
        }
    }
}

/// A port as a subnet manager has set it up (PortInfo, IBTA 14.2.5.6).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LinkPort {
    /// The state.
    pub state: PortState,
    /// The code of the physical state: 5 for a link that is up.
    pub physical_state: u8,
    /// The first of the port's LIDs.
    pub lid: Lid,
    /// The low bits of a LID that are the port's own to choose, 0 to 7.
    pub lmc: u8,
    /// The LID of the subnet manager.
    pub sm_lid: Lid,
    /// The service level for packets to the subnet manager.
    pub sm_service_level: u8,
    /// The code of the subnet's timeout: 4.096 us times 2 to this power.
    pub subnet_timeout: u8,
    /// What the subnet manager said in answer to the port's initialization type.
    pub init_type_reply: u8,
    /// The code of the widths that the link runs at: 1, 2, 4, 8 for 1x, 4x, 8x, 12x.
    pub active_width: u8,
    /// The code of the speed of a lane: 1, 2, 4, 16, 32 for SDR, DDR, QDR, FDR, EDR.
    pub active_speed: u8,
    /// The number of data lanes that the link may have.
    pub max_lanes: u8,
    /// The capability mask.
    pub capabilities: u32,
    /// The MTU that the port can have at most.
    pub max_mtu: Option<Mtu>,
    /// The MTU of the link.
    pub active_mtu: Option<Mtu>,
    /// The GIDs: the subnet's prefix with each of the port's GUIDs.
    pub gids: Vec<Gid>,
    /// The P_Key table. Rows without a partition are zero.
    pub pkeys: Vec<Pkey>,
    /// How often the subnet manager has asked clients to register again.
    pub reregistrations: u32,
}

impl LinkPort {
    /// Returns the rate of the link in Mb/s: that of all lanes together. `u32::MAX` for codes that
    /// are not known.
    pub fn mbps(&self) -> u32 {
        let lanes = match self.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            _ => return u32::MAX,
        };
        let lane_kbps: u32 = match self.active_speed {
            1 => 2_500_000,
            2 => 5_000_000,
            4 => 10_000_000,
            16 => 14_062_500,
            32 => 25_781_250,
            _ => return u32::MAX,
        };
        lanes * lane_kbps / 1000
    }
}

/// A watch over the ports of a link.
pub trait PortWatch: Send + Sync {
    /// Returns the descriptor that is readable after a port has changed.
    fn raw_fd(&self) -> RawFd;

    /// Makes the descriptor unreadable, and returns the ports by number from 1 on; `None` once the
    /// link has no ports any more: its fabric is gone.
    fn take(&self) -> Option<Vec<LinkPort>>;
}
