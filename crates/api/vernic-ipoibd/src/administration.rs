//! The port as the fabric tells it, and requests to subnet administration.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use vernic_attach::{AgentId, AttachError, MadClient, MadPort, PortReport, Registration, UserMad};
use vernic_proto::Time;
use vernic_proto::mad::{MadAddress, MadGrh, Outcome};
use vernic_proto::sa::{SaClient, SaConfig, SaPort, SaUser};
use vernic_wire::mad::{MadHeader, Method, MgmtClass};
use vernic_wire::sa::CLASS_VERSION;
use vernic_wire::{Gid, Guid, Pkey, PortNum};

use crate::error::IpoibError;

/// Port of the adapter that interfaces are on.
pub(crate) const PORT: PortNum = PortNum(1);
/// Logical state of an active port (IBTA 14.2.5.6).
const ACTIVE: u8 = 4;
/// The only user of this client.
pub(crate) const US: SaUser = SaUser(0);
/// Bits of a partition key that name the partition.
const PARTITION: u16 = 0x7FFF;

/// What of a port matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    pub(crate) adapter: Guid,
    pub(crate) sa: SaPort,
    pub(crate) gid: Gid,
    pub(crate) lid: vernic_wire::Lid,
    pub(crate) reregisters: u32,
    /// Place of our partition in the port's table.
    pub(crate) pkey_index: Option<u16>,
}

#[derive(Debug)]
pub(crate) struct Administration {
    host: String,
    pkey: Pkey,
    mads: MadPort,
    agent: AgentId,
    pub(crate) client: SaClient,
}

impl Administration {
    pub(crate) fn open(fabric: &str, host: &str, pkey: Pkey) -> Result<Self, IpoibError> {
        let mads = MadClient::connect(fabric)?.open(host, PORT, false)?;
        let asks = |methods: &[Method]| Registration {
            class: MgmtClass::SUBNET_ADMIN,
            class_version: CLASS_VERSION,
            rmpp_version: 1,
            methods: methods.iter().fold([0; 4], |mut mask, method| {
                mask[usize::from(method.0) / 32] |= 1 << (method.0 % 32);
                mask
            }),
            ..Registration::default()
        };
        // One agent of a port hears of notices. Where another program is that, groups that come
        // and go are noticed when they are asked for again.
        let agent = match mads.register(&asks(&[Method::REPORT])) {
            Err(AttachError::Refused(refusal)) => {
                tracing::warn!(%refusal, "notices of the subnet are not heard");
                mads.register(&asks(&[]))?
            }
            other => other?,
        };
        let (host, client) = (host.to_owned(), SaClient::new(SaConfig::default()));
        Ok(Self { host, pkey, mads, agent, client })
    }

    /// The port as it is now.
    pub(crate) fn port(&self) -> Result<Port, IpoibError> {
        let adapter = self.mads.adapter(&self.host)?;
        let (ports, port) = (adapter.ports.len(), PORT.0);
        let found = adapter.ports.into_iter().find(|port| port.number == PORT);
        let report =
            found.ok_or_else(|| IpoibError::NoPort { host: self.host.clone(), port, ports })?;
        Ok(self.port_of(adapter.guid, &report))
    }
    fn port_of(&self, adapter: Guid, report: &PortReport) -> Port {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&report.gid_prefix.to_be_bytes());
        let guid = report.guids.first().map_or(0, |guid| guid.0);
        gid[8..].copy_from_slice(&guid.to_be_bytes());
        let same = |key: &Pkey| (key.0 ^ self.pkey.0) & PARTITION == 0;
        // Of two entries of a partition, that of a full member counts.
        let full = |key: &Pkey| same(key) && key.0 & !PARTITION != 0;
        let at = report.pkeys.iter().position(full).or(report.pkeys.iter().position(same));
        let sa = SaPort {
            is_active: report.state == ACTIVE,
            sm_lid: report.sm_lid,
            sm_sl: report.sm_service_level,
        };
        let pkey_index = at.and_then(|at| u16::try_from(at).ok());
        let (gid, lid, reregisters) = (Gid(gid), report.lid, report.reregisters);
        Port { adapter, sa, gid, lid, reregisters, pkey_index }
    }

    /// Sends what the client wants sent.
    pub(crate) fn send(&mut self) -> Result<(), IpoibError> {
        while let Some(send) = self.client.poll_send() {
            self.mads.send(&UserMad {
                agent: self.agent,
                status: 0,
                timeout_ms: send.timeout_ms,
                retries: send.retries,
                address: to_attach(&send.address),
                mad: send.mad,
            })?;
        }
        Ok(())
    }

    /// Hands the client what has come.
    pub(crate) fn receive(&mut self, now: Time) -> Result<(), IpoibError> {
        loop {
            let mad = match self.mads.recv() {
                Ok(mad) => mad,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(source) => {
                    let what = "the connection to the fabric process has ended";
                    return Err(IpoibError::System { what, source });
                }
            };
            let is_response =
                MadHeader::parse(&mad.mad).is_ok_and(|header| header.method.is_response());
            match (mad.status, is_response) {
                (0, false) => self.client.handle_report(from_attach(&mad.address), &mad.mad),
                (0, true) => self.client.handle_outcome(now, Outcome::Received, &mad.mad),
                _ => self.client.handle_outcome(now, Outcome::TimedOut, &mad.mad),
            }
        }
    }
}

impl AsFd for Administration {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mads.as_fd()
    }
}

fn to_attach(address: &MadAddress) -> vernic_attach::MadAddress {
    vernic_attach::MadAddress {
        qpn: address.qpn,
        qkey: address.qkey,
        lid: address.lid,
        service_level: address.sl,
        path_bits: address.path_bits,
        pkey_index: address.pkey_index,
        grh: address.grh.map(|grh| vernic_attach::MadGrh {
            gid: grh.gid,
            gid_index: grh.gid_index,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        }),
    }
}

fn from_attach(address: &vernic_attach::MadAddress) -> MadAddress {
    MadAddress {
        qpn: address.qpn,
        qkey: address.qkey,
        lid: address.lid,
        sl: address.service_level,
        path_bits: address.path_bits,
        pkey_index: address.pkey_index,
        grh: address.grh.map(|grh| MadGrh {
            gid: grh.gid,
            gid_index: grh.gid_index,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        }),
    }
}
