//! What stands behind symbols that have to exist and do nothing: see the kinds in
//! `abi/exports.txt`.
//!
//! Programs bind all their symbols when they start, so each has to be there. Those here return what
//! says "not supported" in the convention of their call; they take no arguments, and so may stand
//! for functions of any. Calls with results to fill are not refused here but in the file of their
//! family, which fills them.

use libc::{EOPNOTSUPP, c_int};

use crate::boundary::{refused, set_errno};

/// NULL, and `errno`.
pub(crate) extern "C" fn null() -> usize {
    set_errno(EOPNOTSUPP);
    0
}

/// A positive errno, and `errno`.
pub(crate) extern "C" fn errno() -> c_int {
    refused(EOPNOTSUPP)
}

/// -1, and `errno`. As wide as the widest of the results that it stands for.
pub(crate) extern "C" fn minus_one() -> isize {
    set_errno(EOPNOTSUPP);
    -1
}

/// A negative errno.
pub(crate) extern "C" fn negative() -> isize {
    -(EOPNOTSUPP as isize)
}

/// Nothing.
pub(crate) extern "C" fn zero() -> usize {
    0
}
