//! Why a connection was rejected (IBTA 12.6.7.2, table 109).

use core::fmt;

/// Reason of a REJ. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($($value:literal $name:ident = $short:literal, $meaning:literal;)*) => {
        impl RejReason {
            $(#[doc = concat!("The peer says: ", $meaning, ".")]
            pub const $name: Self = Self($value);)*

            /// All that are defined, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Short name, or `None` if nobody defined the value.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($short),)*
                    _ => None,
                }
            }
            /// What the peer says with it, as the end of a sentence.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                    _ => "for a reason that no standard defines",
                }
            }
        }
    };
}

reasons! {
    1 NO_QP = "no QP", "no queue pair is available";
    2 NO_EEC = "no EEC", "no end-to-end context is available";
    3 NO_RESOURCES = "no resources", "it has no room for another connection";
    4 TIMEOUT = "timeout", "it waited in vain for an answer of ours";
    5 UNSUPPORTED = "unsupported", "it does not support what was asked for";
    6 INVALID_COMM_ID = "invalid communication id", "it has no connection of that communication id";
    7 INVALID_COMM_INSTANCE = "invalid communication instance",
        "communication ids and queue pair number are not of one connection";
    8 INVALID_SERVICE_ID = "invalid service id", "nobody listens on that service there";
    9 INVALID_TRANSPORT = "invalid transport",
        "the service has another transport (RC, UC) than asked for";
    10 STALE_CONNECTION = "stale connection",
        "it still has a connection of that queue pair number, which must end first";
    11 RDC_NOT_EXIST = "no RDC", "there is no reliable datagram channel";
    12 INVALID_GID = "invalid GID", "the GIDs of the primary path are not those of the message";
    13 INVALID_LID = "invalid LID", "a LID of the primary path is wrong";
    14 INVALID_SL = "invalid SL", "the service level of the primary path is not supported";
    15 INVALID_TRAFFIC_CLASS = "invalid traffic class", "the traffic class is not supported";
    16 INVALID_HOP_LIMIT = "invalid hop limit", "the hop limit of the primary path is too small";
    17 INVALID_PACKET_RATE = "invalid packet rate", "the packet rate of the primary path is wrong";
    18 INVALID_ALT_GID = "invalid alternate GID", "a GID of the alternate path is wrong";
    19 INVALID_ALT_LID = "invalid alternate LID", "a LID of the alternate path is wrong";
    20 INVALID_ALT_SL = "invalid alternate SL", "the service level of the alternate path is wrong";
    21 INVALID_ALT_TRAFFIC_CLASS = "invalid alternate traffic class",
        "the traffic class of the alternate path is not supported";
    22 INVALID_ALT_HOP_LIMIT = "invalid alternate hop limit",
        "the hop limit of the alternate path is too small";
    23 INVALID_ALT_PACKET_RATE = "invalid alternate packet rate",
        "the packet rate of the alternate path is wrong";
    24 PORT_CM_REDIRECT = "CM redirected", "ask the connection manager that it names instead";
    25 PORT_REDIRECT = "port redirected", "connect to the port that it names instead";
    26 INVALID_MTU = "invalid MTU", "the path MTU is none, or more than it supports";
    27 INSUFFICIENT_RESPONDER_RESOURCES = "insufficient responder resources",
        "more READs and atomics at once were asked for than it can take";
    28 CONSUMER = "consumer", "the application there rejected the connection, or has ended";
    29 INVALID_RNR_RETRY = "invalid RNR retry", "it rejects the RNR retry count";
    30 DUPLICATE_LOCAL_COMM_ID = "duplicate communication id",
        "our communication id already names another connection there";
    31 INVALID_CLASS_VERSION = "invalid class version", "it has another version of CM";
    32 INVALID_FLOW_LABEL = "invalid flow label", "the flow label of the primary path is wrong";
    33 INVALID_ALT_FLOW_LABEL = "invalid alternate flow label",
        "the flow label of the alternate path is wrong";
    35 VENDOR_OPTION_NOT_SUPPORTED = "vendor option not supported",
        "it does not support the vendor's option that was asked for";
}

impl RejReason {
    /// The value.
    pub const fn value(self) -> u16 {
        self.0
    }
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.0, self.name().unwrap_or("unknown"), self.meaning())
    }
}
impl fmt::Debug for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name().unwrap_or("unknown"))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn reasons_are_numbered_with_one_gap_and_say_what_they_mean() {
        assert!(RejReason::ALL.iter().map(|reason| reason.0).eq((1..=33).chain([35])));
        let text = RejReason::INVALID_SERVICE_ID.to_string();
        assert_eq!(text, "8 (invalid service id): nobody listens on that service there");
        assert!(RejReason(999).to_string().starts_with("999 (unknown)"));
    }
}
