//! Small conversions that all readers of packets need.

use vernic_proto::DropReason;
use vernic_wire::ParseError;

/// Returns the drop reason under which bytes are counted that do not parse as a packet.
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
