//! Agents: what a program wants to hear of.

use std::ffi::c_int;

use vernic_attach::Registration;
use vernic_wire::mad::MgmtClass;

use super::port::OpenPort;
use crate::boundary::{self, Failure};
use crate::layout::umad::{USER_RMPP, umad_reg_attr};
use crate::pointer::{In, Out, plain};

plain! { umad_reg_attr, [u64; 2], [u8; 3] }

/// Vendor of requests that name none: OpenFabrics.
const OPENFABRICS_OUI: [u8; 3] = [0x00, 0x14, 0x05];

fn class(number: c_int) -> Result<MgmtClass, Failure> {
    let class = u8::try_from(number).map(MgmtClass);
    class.map_err(|_| Failure::invalid(format!("class {number}: classes have 8 bits")))
}

/// The masks of methods: bit n of the first word for method n. `long` has 64 bits.
fn methods(mask: [u64; 2]) -> [u32; 4] {
    [mask[0] as u32, (mask[0] >> 32) as u32, mask[1] as u32, (mask[1] >> 32) as u32]
}

/// Registers an agent; its number, or `-EPERM`, which is what programs expect.
fn register(
    name: &str,
    number: c_int,
    wanted: impl FnOnce() -> Result<Registration, Failure>,
) -> c_int {
    let agent = boundary::negative(name, || {
        let port = OpenPort::find(number)?;
        let wanted = wanted()?;
        let agent = port.register(&wanted).map_err(|failure| {
            let why = failure.why().to_owned();
            Failure::new(libc::EPERM, why)
        })?;
        Ok(agent as isize)
    });
    agent as c_int
}

/// `umad_register`: an agent for a class of one version. Its number, or a negative errno.
pub(crate) extern "C" fn umad_register(
    port: c_int,
    mgmt_class: c_int,
    mgmt_version: c_int,
    rmpp_version: u8,
    method_mask: In<[u64; 2]>,
) -> c_int {
    register("umad_register", port, || {
        let version = u8::try_from(mgmt_version).map_err(|_| {
            Failure::invalid(format!("version {mgmt_version} of a class: they have 8 bits"))
        })?;
        Ok(Registration {
            class: class(mgmt_class)?,
            class_version: version,
            rmpp_version,
            flags: 0,
            oui: OPENFABRICS_OUI,
            methods: methods(method_mask.read().unwrap_or_default()),
        })
    })
}

/// `umad_register_oui`: an agent for a class of vendors, 0x30 to 0x4F, of version 1.
pub(crate) extern "C" fn umad_register_oui(
    port: c_int,
    mgmt_class: c_int,
    rmpp_version: u8,
    oui: In<[u8; 3]>,
    method_mask: In<[u64; 2]>,
) -> c_int {
    register("umad_register_oui", port, || {
        if !(0x30..=0x4F).contains(&mgmt_class) {
            let why = format!("class {mgmt_class:#x} names no vendor: 0x30 to 0x4f do");
            return Err(Failure::invalid(why));
        }
        Ok(Registration {
            class: class(mgmt_class)?,
            class_version: 1,
            rmpp_version,
            flags: 0,
            oui: oui.require("the OUI")?,
            methods: methods(method_mask.read().unwrap_or_default()),
        })
    })
}

/// `umad_register2`: an agent as the struct says, whose number goes to `agent_id`. 0 or a positive
/// errno.
pub(crate) extern "C" fn umad_register2(
    port: c_int,
    attr: Out<umad_reg_attr>,
    agent_id: Out<u32>,
) -> c_int {
    boundary::errno("umad_register2", || {
        let wanted = attr.require("the attributes")?;
        if agent_id.is_null() {
            return Err(Failure::null("a place for the agent's number"));
        }
        if wanted.flags & !USER_RMPP != 0 {
            attr.write(umad_reg_attr { flags: USER_RMPP, ..wanted });
            let why = format!("flags {:#x}: only UMAD_USER_RMPP (1) is known", wanted.flags);
            return Err(Failure::invalid(why));
        }
        let [high, oui @ ..] = wanted.oui.to_be_bytes();
        if high != 0 {
            return Err(Failure::invalid(format!("OUI {:#x}: OUIs have 24 bits", wanted.oui)));
        }
        let agent = OpenPort::find(port)?.register(&Registration {
            class: MgmtClass(wanted.mgmt_class),
            class_version: wanted.mgmt_class_version,
            rmpp_version: wanted.rmpp_version,
            flags: wanted.flags as u8,
            oui,
            methods: methods(wanted.method_mask),
        })?;
        agent_id.write(agent as u32);
        Ok(())
    })
}

/// `umad_unregister`.
pub(crate) extern "C" fn umad_unregister(port: c_int, agent: c_int) -> c_int {
    let said = boundary::negative("umad_unregister", || {
        OpenPort::find(port)?.unregister(agent)?;
        Ok(0)
    });
    said as c_int
}
