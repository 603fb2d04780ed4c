//! Small conversions that all readers of packets need.

use vernic_proto::DropReason;
use vernic_wire::ParseError;

/// Returns the reason under which bytes that are no packet are counted.
#[cold]
pub(crate) fn reason_of(error: ParseError) -> DropReason {
    match error {
        ParseError::Truncated { .. } => DropReason::Truncated,
        ParseError::UnknownOpcode(_) => DropReason::UnknownOpcode,
        ParseError::PayloadLength { .. } => DropReason::Length,
        ParseError::BadVersion(_) | ParseError::BadPad { .. } | ParseError::Field { .. } => {
            DropReason::Malformed
        }
    }
}
