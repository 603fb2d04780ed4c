//! Status of a completion (IBTA 11.6.2).

use core::fmt;

/// Status of a completion. Values are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are IBTA's, 11.6.2")]
pub enum WcStatus {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalProtection = 4,
    Flushed = 5,
    MwBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    RemoteAborted = 16,
    Fatal = 19,
    ResponseTimeout = 20,
    General = 21,
}

impl fmt::Display for WcStatus {
    /// Its name in `ibv_wc_status`, without the `IBV_WC_` before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "SUCCESS",
            Self::LocalLength => "LOC_LEN_ERR",
            Self::LocalQpOperation => "LOC_QP_OP_ERR",
            Self::LocalProtection => "LOC_PROT_ERR",
            Self::Flushed => "WR_FLUSH_ERR",
            Self::MwBind => "MW_BIND_ERR",
            Self::BadResponse => "BAD_RESP_ERR",
            Self::LocalAccess => "LOC_ACCESS_ERR",
            Self::RemoteInvalidRequest => "REM_INV_REQ_ERR",
            Self::RemoteAccess => "REM_ACCESS_ERR",
            Self::RemoteOperation => "REM_OP_ERR",
            Self::RetryExceeded => "RETRY_EXC_ERR",
            Self::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
            Self::RemoteAborted => "REM_ABORT_ERR",
            Self::Fatal => "FATAL_ERR",
            Self::ResponseTimeout => "RESP_TIMEOUT_ERR",
            Self::General => "GENERAL_ERR",
        })
    }
}
