//! Why a call from C failed: the one place where an error becomes an `errno`.

use std::borrow::Cow;
use std::error::Error;
use std::ffi::c_int;
use std::fmt::Display;
use std::io;

use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAGAIN, EBUSY, EFAULT, EHOSTUNREACH, EINVAL, EIO,
    ENETUNREACH, ENODEV, ENOMEM, EOPNOTSUPP, EPERM,
};
use tracing::Level;
use tracing::field::display;
use vernic_engine::{
    BindError, Busy, CreateError, DeregisterError, FreeError, LinkError, McastError, ModifyError,
    OpenError, PathError, PdError, PostError, PostRecvError, PostSendError, RecvRefusal,
    RegisterError, ResizeError, SendRefusal, XrcdError, more,
};

/// Why a call failed: what C gets, and what the log says.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Positive.
    pub(crate) errno: c_int,
    why: Cow<'static, str>,
    level: Level,
    /// Programs that work meet it, too: they destroy objects in any order at their end, and try
    /// which limits there are.
    is_usual: bool,
}

/// The target of warnings of what programs that work meet, too.
pub(crate) const USUAL: &str = "vernic::usual";

impl Failure {
    /// With a reason in words.
    pub(crate) fn new(errno: c_int, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into(), level: Level::WARN, is_usual: errno == EBUSY }
    }

    /// What the system refused, with its reason.
    #[cold]
    pub(crate) fn system(what: &str, error: &io::Error) -> Self {
        Self::new(of_io(error), format!("{what}: {error}"))
    }

    /// A NULL where an object or struct has to be.
    #[cold]
    pub(crate) fn null(what: &'static str) -> Self {
        Self::new(EINVAL, format!("NULL instead of {what}"))
    }

    /// Something else where an object has to be.
    #[cold]
    pub(crate) fn none_at(what: &'static str, address: usize) -> Self {
        Self::new(
            EINVAL,
            format!("{address:#x} is not the address of {what}: was it destroyed before?"),
        )
    }

    /// An argument out of range.
    #[cold]
    pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(EINVAL, why)
    }

    /// Something that this device does not have.
    #[cold]
    pub(crate) fn unsupported(what: impl Display) -> Self {
        Self::new(EOPNOTSUPP, format!("{what}: not supported by this device"))
    }

    /// An object that others use.
    #[cold]
    pub(crate) fn busy(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(EBUSY, why)
    }

    /// Makes it one that is printed unless `VERNIC_LOG` forbids it: nothing works after it, and the
    /// program will say no more than that.
    #[cold]
    pub(crate) fn fatal(self) -> Self {
        Self { level: Level::ERROR, ..self }
    }

    /// Makes it one that is a line at level `debug` alone: its user was told of the like before.
    #[cold]
    pub(crate) fn repeated(self) -> Self {
        Self { level: Level::DEBUG, ..self }
    }

    /// Makes it one that programs meet which try what there is.
    #[cold]
    pub(crate) fn usual(self) -> Self {
        Self { is_usual: true, ..self }
    }

    /// Whether nothing works after it.
    pub(crate) fn is_fatal(&self) -> bool {
        self.level == Level::ERROR
    }

    /// The reason in words.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// Writes a line into the log.
    pub(crate) fn log(&self, call: &str) {
        let topic = || more(call).or_else(|| more(name_of(self.errno)?)).map(display);
        match self.level {
            Level::ERROR => tracing::error!(more = topic(), "{call}: {}", self.in_words()),
            Level::WARN if self.is_usual => {
                tracing::warn!(target: USUAL, more = topic(), "{call}: {}", self.in_words());
            }
            Level::WARN => tracing::warn!(more = topic(), "{call}: {}", self.in_words()),
            _ => tracing::debug!("{call}: {}", self.in_words()),
        }
    }

    /// The reason, with what `errno` says unless that is in it.
    fn in_words(&self) -> String {
        let errno = io::Error::from_raw_os_error(self.errno).to_string();
        match self.why.contains(&errno) {
            true => self.why.to_string(),
            false => format!("{} ({errno})", self.why),
        }
    }
}

/// The name of an errno that the page of errors has something about.
fn name_of(errno: c_int) -> Option<&'static str> {
    Some(match errno {
        EACCES => "EACCES",
        EADDRINUSE => "EADDRINUSE",
        EADDRNOTAVAIL => "EADDRNOTAVAIL",
        EBUSY => "EBUSY",
        EFAULT => "EFAULT",
        EHOSTUNREACH => "EHOSTUNREACH",
        EINVAL => "EINVAL",
        EIO => "EIO",
        ENOMEM => "ENOMEM",
        EOPNOTSUPP => "EOPNOTSUPP",
        _ => return None,
    })
}

/// Errors of the engine that have an errno.
trait Errno: Error {
    fn errno(&self) -> c_int;
}

impl<E: Errno> From<E> for Failure {
    #[cold]
    fn from(error: E) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

fn of_io(error: &io::Error) -> c_int {
    match error.kind() {
        io::ErrorKind::WouldBlock => EAGAIN,
        _ => error.raw_os_error().unwrap_or(EIO),
    }
}

macro_rules! errnos {
    ($($error:ty: |$e:ident| $map:expr;)*) => {
        $(impl Errno for $error {
            fn errno(&self) -> c_int {
                let $e = self;
                $map
            }
        })*
    };
}

errnos! {
    io::Error: |e| of_io(e);
    vernic_attach::AttachError: |e| e.errno();
    vernic_cm::Error: |e| e.errno();
    vernic_rsocket::Error: |e| e.errno();
    Busy: |_e| EBUSY;
    PdError: |e| match e {
        PdError::Busy { .. } => EBUSY,
        PdError::Unknown(_) => EINVAL,
    };
    RegisterError: |e| match e {
        RegisterError::KeysExhausted { .. } => ENOMEM,
        RegisterError::WindowsBound { .. } => EBUSY,
        _ => EINVAL,
    };
    DeregisterError: |e| match e {
        DeregisterError::WindowsBound { .. } => EBUSY,
        DeregisterError::UnknownHandle => EINVAL,
    };
    FreeError: |e| match e {
        FreeError::Memory(source) => source.errno(),
    };
    BindError: |e| match e {
        BindError::WrongPd { .. } => EPERM,
        _ => EINVAL,
    };
    PathError: |e| match e {
        PathError::NotAllowed(_) => EACCES,
        PathError::NoPath { .. } => EHOSTUNREACH,
        _ => EINVAL,
    };
    CreateError: |e| match e {
        CreateError::Orphan | CreateError::Closed => EIO,
        CreateError::Service(_) | CreateError::NotOnIwarp { .. } => EOPNOTSUPP,
        CreateError::NoQpn { .. } => ENOMEM,
        CreateError::Path(PathError::NoPath { .. }) => EHOSTUNREACH,
        CreateError::Memory(source) => source.errno(),
        CreateError::Os { source, .. } => of_io(source),
        _ => EINVAL,
    };
    XrcdError: |e| match e {
        XrcdError::NotThere(_) => EAGAIN,
        XrcdError::Orphan | XrcdError::Closed => EIO,
        XrcdError::NotOnIwarp(_) => EOPNOTSUPP,
        _ => EINVAL,
    };
    OpenError: |e| match e {
        OpenError::NoSuchDevice { .. }
        | OpenError::Unusable { .. }
        | OpenError::NoDevice { .. } => ENODEV,
        OpenError::Os { source, .. } => of_io(source),
        OpenError::Link { source: LinkError::PortTaken { .. }, .. } => EADDRINUSE,
        OpenError::Link { .. } | OpenError::Slot { .. } | OpenError::NetDev(_) => EIO,
        _ => EINVAL,
    };
    ModifyError: |e| match e {
        ModifyError::Orphan | ModifyError::Closed => EIO,
        ModifyError::Path { source: PathError::NotAllowed(_), .. } => EACCES,
        ModifyError::Path { source: PathError::NoPath { .. }, .. } => EHOSTUNREACH,
        _ => EINVAL,
    };
    ResizeError: |e| if matches!(e, ResizeError::Orphan) { EIO } else { EINVAL };
    McastError: |e| match e {
        McastError::Full { .. } | McastError::GroupFull { .. } => ENOMEM,
        McastError::Link(LinkError::NoRoute { .. }) => ENETUNREACH,
        McastError::Link(_) | McastError::Orphan => EIO,
        _ => EINVAL,
    };
}

/// The errno of a send that was refused.
pub(crate) fn of_send(error: &PostSendError) -> c_int {
    match error.source {
        SendRefusal::Protocol(PostError::Full(_)) => ENOMEM,
        SendRefusal::Orphan => EIO,
        _ => EINVAL,
    }
}

/// The errno of a receive that was refused.
pub(crate) fn of_recv(error: &PostRecvError) -> c_int {
    match error.source {
        RecvRefusal::Full(_) => ENOMEM,
        RecvRefusal::Orphan => EIO,
        _ => EINVAL,
    }
}

/// Sets `errno` of this thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library gives the address of this thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_with_a_name_is_a_topic_of_the_page_of_errors() {
        let names: Vec<_> = (1..200).filter_map(name_of).collect();
        assert_eq!(names.len(), 10);
        assert!(names.iter().all(|name| vernic_engine::TOPICS.contains(name)), "{names:?}");
    }

    #[test]
    fn what_the_system_says_is_told_once() {
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        let failure = Failure::system("cannot open it", &error);
        assert_eq!(failure.errno, libc::EMFILE);
        assert_eq!(failure.in_words(), format!("cannot open it: {error}"));
        let invalid = Failure::invalid("no such thing").in_words();
        assert!(invalid.starts_with("no such thing (") && invalid.contains("22"), "{invalid}");
    }
}
