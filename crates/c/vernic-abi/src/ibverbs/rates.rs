//! Static rates (IBTA 9.11, table 63): between their codes and numbers.

use std::ffi::c_int;

/// Code of a rate, multiple of 2.5 Gb/s (rounded as programs expect it; 0 if there is none), Mb/s.
#[rustfmt::skip]
const RATES: &[(c_int, c_int, c_int)] = &[
    (2, 1, 2_500), (5, 2, 5_000), (3, 4, 10_000), (6, 8, 20_000), (4, 12, 30_000), (7, 16, 40_000),
    (8, 24, 60_000), (9, 32, 80_000), (10, 48, 120_000), (11, 6, 14_062), (12, 22, 56_250),
    (13, 45, 112_500), (14, 67, 168_750), (15, 10, 25_781), (16, 40, 103_125), (17, 80, 206_250),
    (18, 120, 309_375), (19, 11, 28_125), (20, 20, 53_125), (21, 160, 425_000), (22, 240, 637_500),
    (23, 320, 850_000), (24, 480, 1_275_000),
];

/// `IBV_RATE_MAX`.
const MAX: c_int = 0;

/// `ibv_rate_to_mult`: -1 for an unknown code.
pub(crate) extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.1)
}

/// `mult_to_ibv_rate`: `IBV_RATE_MAX` for a multiple that no rate has.
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    RATES.iter().find(|row| row.1 == multiple).map_or(MAX, |row| row.0)
}

/// `ibv_rate_to_mbps`: -1 for an unknown code.
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

/// `mbps_to_ibv_rate`: `IBV_RATE_MAX` for a number that no rate has.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|row| row.2 == mbps).map_or(MAX, |row| row.0)
}
