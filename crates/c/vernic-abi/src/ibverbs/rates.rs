//! Static rates (IBTA 9.11): between their codes and numbers.

use std::ffi::c_int;

use vernic_engine::StaticRate;

/// The rate of a code.
fn rate(code: c_int) -> Option<StaticRate> {
    u8::try_from(code).ok().map(StaticRate)
}

/// The code of a rate; `IBV_RATE_MAX` for none.
fn code(rate: Option<StaticRate>) -> c_int {
    rate.unwrap_or(StaticRate::MAX).0.into()
}

/// `ibv_rate_to_mult`: -1 for an unknown code.
pub(crate) extern "C" fn ibv_rate_to_mult(code: c_int) -> c_int {
    rate(code).and_then(StaticRate::multiple).map_or(-1, c_int::from)
}

/// `mult_to_ibv_rate`: `IBV_RATE_MAX` for a multiple that no rate has.
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    code(u16::try_from(multiple).ok().and_then(StaticRate::of_multiple))
}

/// `ibv_rate_to_mbps`: -1 for an unknown code.
pub(crate) extern "C" fn ibv_rate_to_mbps(code: c_int) -> c_int {
    rate(code).and_then(StaticRate::mbps).map_or(-1, |mbps| mbps as c_int)
}

/// `mbps_to_ibv_rate`: `IBV_RATE_MAX` for a number that no rate has.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    code(u32::try_from(mbps).ok().and_then(StaticRate::of_mbps))
}
