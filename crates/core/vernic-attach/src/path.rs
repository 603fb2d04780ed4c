//! Names of fabrics, and the folder with their sockets.
//!
//! The folder is `$VERNIC_FABRIC_DIR`, else `$XDG_RUNTIME_DIR/vernic`, else `/tmp/vernic-UID`. It
//! belongs to the user, and no other user may enter it. A fabric's socket is `NAME.fabric` there.
//! The interfaces of IP over InfiniBand of its hosts have theirs in the folder `NAME.ipoib`.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use vernic_wire::{Guid, Pkey, PortNum};

use crate::error::AttachError;

/// The variable with the folder of the sockets.
pub const FOLDER_VARIABLE: &str = "VERNIC_FABRIC_DIR";

/// Ends the name of a socket.
const SUFFIX: &str = ".fabric";

/// Ends the name of the folder with the files that subnet managers open.
const ISSM: &str = "issm";

/// Ends the name of the folder with the sockets of interfaces.
const IPOIB: &str = "ipoib";

/// The longest name of a fabric.
const MAX_NAME: usize = 64;

/// Most fabrics that [`list`] returns.
const MAX_LISTED: usize = 1024;

/// The longest path of a socket, in bytes.
const MAX_PATH: usize = 107;

/// Returns the folder of the sockets. A program with more rights than its caller (set-uid) does not
/// look at the environment, which the caller chose.
pub fn folder() -> PathBuf {
    let variable = |name| {
        let value = if vernic_sys::has_foreign_rights() { None } else { env::var_os(name) };
        value.filter(|value| !value.is_empty()).map(PathBuf::from)
    };
    let runtime = || variable("XDG_RUNTIME_DIR").map(|folder| folder.join("vernic"));
    let own = || PathBuf::from(format!("/tmp/vernic-{}", vernic_sys::effective_uid()));
    variable(FOLDER_VARIABLE).or_else(runtime).unwrap_or_else(own)
}

/// Returns the path of a fabric's socket.
///
/// # Errors
/// [`AttachError::Name`], [`AttachError::PathTooLong`].
pub fn socket(name: &str) -> Result<PathBuf, AttachError> {
    socket_in(&folder(), name)
}

/// Returns the path of a fabric's socket in a folder.
///
/// # Errors
/// As [`socket`].
pub fn socket_in(folder: &Path, name: &str) -> Result<PathBuf, AttachError> {
    if !is_name(name) {
        return Err(AttachError::Name(name.chars().take(MAX_NAME + 1).collect()));
    }
    let path = folder.join(format!("{name}{SUFFIX}"));
    if path.as_os_str().len() > MAX_PATH {
        return Err(AttachError::PathTooLong(path));
    }
    Ok(path)
}

/// Returns the folder of the files that subnet managers open, of a fabric whose socket is in a
/// folder.
///
/// # Errors
/// As [`socket`].
pub fn issm_folder_in(folder: &Path, name: &str) -> Result<PathBuf, AttachError> {
    Ok(socket_in(folder, name)?.with_extension(ISSM))
}

/// Returns the path of the file that a subnet manager opens for as long as it manages the subnet
/// from a port, and makes the file if there is none: a FIFO, which the fabric process watches.
///
/// # Errors
/// As [`socket`], and errors of the system.
pub fn issm(fabric: &str, adapter: Guid, port: PortNum) -> Result<PathBuf, AttachError> {
    issm_in(&folder(), fabric, adapter, port)
}

/// Does the same where the socket of the fabric is in `folder`.
///
/// # Errors
/// As [`issm`].
pub fn issm_in(
    folder: &Path,
    fabric: &str,
    adapter: Guid,
    port: PortNum,
) -> Result<PathBuf, AttachError> {
    let path = issm_folder_in(folder, fabric)?.join(issm_name(adapter, port));
    match vernic_sys::make_fifo(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(AttachError::io("making the file that a subnet manager opens")(error))
        }
        _ => Ok(path),
    }
}

/// Returns the name of the file of a port in the folder of a fabric.
pub fn issm_name(adapter: Guid, port: PortNum) -> String {
    format!("{:016x}.{}", adapter.0, port.0)
}

/// Returns the adapter and the port of a file of this name; `None` if it is none of these.
pub fn issm_port(name: &str) -> Option<(Guid, PortNum)> {
    let (guid, port) = name.split_once('.')?;
    let (guid, port) = (u64::from_str_radix(guid, 16).ok()?, port.parse().ok()?);
    Some((Guid(guid), PortNum(port)))
}

/// Returns the folder of the sockets of interfaces, of a fabric whose socket is in a folder.
///
/// # Errors
/// As [`socket`].
pub fn interface_folder_in(folder: &Path, name: &str) -> Result<PathBuf, AttachError> {
    Ok(socket_in(folder, name)?.with_extension(IPOIB))
}

/// Returns the path of the socket of an interface, of a fabric whose socket is in a folder.
///
/// # Errors
/// As [`socket`].
pub fn interface_in(
    folder: &Path,
    fabric: &str,
    (adapter, port, pkey): (Guid, PortNum, Pkey),
) -> Result<PathBuf, AttachError> {
    let name = interface_name(adapter, port, pkey);
    let path = interface_folder_in(folder, fabric)?.join(name);
    if path.as_os_str().len() > MAX_PATH {
        return Err(AttachError::PathTooLong(path));
    }
    Ok(path)
}

/// Returns the name of the socket of an interface in the folder of a fabric.
pub fn interface_name(adapter: Guid, port: PortNum, pkey: Pkey) -> String {
    format!("{:016x}.{}.{:04x}", adapter.0, port.0, pkey.0)
}

/// Returns the adapter, the port and the partition of a socket of this name; `None` if it is none
/// of these.
pub fn interface_of(name: &str) -> Option<(Guid, PortNum, Pkey)> {
    let (rest, pkey) = name.rsplit_once('.')?;
    let (guid, port) = issm_port(rest)?;
    Some((guid, port, Pkey(u16::from_str_radix(pkey, 16).ok()?)))
}

fn is_name(name: &str) -> bool {
    let may = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    name.len() <= MAX_NAME
        && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && name.bytes().all(may)
}

/// Makes the folder of the sockets if there is none, for this user alone, and checks that it
/// belongs to this user.
///
/// # Errors
/// [`AttachError::Folder`].
pub fn prepare(folder: &Path) -> Result<(), AttachError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| refuse(folder, error.to_string()))?;
    check(folder)
}

/// Checks that a folder belongs to this user, and that others may not change it. Another user could
/// have made a folder in `/tmp` before, and listen at the sockets in it.
///
/// # Errors
/// [`AttachError::Folder`].
pub fn check(folder: &Path) -> Result<(), AttachError> {
    let found = fs::metadata(folder).map_err(|error| refuse(folder, error.to_string()))?;
    let (owner, own) = (found.uid(), vernic_sys::effective_uid());
    if !found.is_dir() {
        return Err(refuse(folder, "it is not a folder".to_owned()));
    }
    if owner != own && own != 0 {
        return Err(refuse(folder, format!("it belongs to user {owner}, and not to {own}")));
    }
    if found.mode() & 0o022 != 0 {
        let mode = found.mode() & 0o777;
        let reason = format!("other users may change it (mode {mode:o}); `chmod go-w` mends that");
        return Err(refuse(folder, reason));
    }
    Ok(())
}

fn refuse(folder: &Path, reason: String) -> AttachError {
    AttachError::Folder { path: folder.to_owned(), reason }
}

/// Returns the names of the fabrics that have a socket in a folder, in order, up to 1,024. Some may
/// not run any more.
pub fn list(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_LISTED);
    let name_of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_suffix(SUFFIX).filter(|name| is_name(name)).map(str::to_owned)
    };
    let mut names: Vec<_> = entries.filter_map(name_of).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_subnet_managers_are_named_by_adapter_and_port() {
        let folder = issm_folder_in(Path::new("/t"), "lab.2").unwrap();
        assert_eq!(folder, PathBuf::from("/t/lab.2.issm"));
        let port = (Guid(0x22_9012_3456_7890), PortNum(12));
        assert_eq!(issm_name(port.0, port.1), "0022901234567890.12");
        assert_eq!(issm_port("0022901234567890.12"), Some(port));
        for name in ["", "1", "1.", ".1", "1.256", "x.1", "1.1.1"] {
            assert_eq!(issm_port(name), None, "{name}");
        }
    }

    #[test]
    fn sockets_of_interfaces_are_named_by_adapter_port_and_partition() {
        let at = (Guid(0x22_9012_3456_7890), PortNum(1), Pkey(0x8001));
        let path = interface_in(Path::new("/t"), "lab", at).unwrap();
        assert_eq!(path, PathBuf::from("/t/lab.ipoib/0022901234567890.1.8001"));
        assert_eq!(interface_of("0022901234567890.1.8001"), Some(at));
        for name in ["", "1.1", "1.1.", "1.1.10000", "1.256.1", "x.1.1", "1.1.1.1"] {
            assert_eq!(interface_of(name), None, "{name}");
        }
        let folder = PathBuf::from("/".to_owned() + &"f".repeat(80));
        assert!(interface_in(&folder, "lab", at).is_err());
    }

    #[test]
    fn names_are_words_that_no_folder_hides_in() {
        for name in ["lab", "a", "0", "tree-3.4_b", &"x".repeat(64)] {
            assert_eq!(
                socket_in(Path::new("/t"), name).unwrap(),
                PathBuf::from(format!("/t/{name}.fabric"))
            );
        }
        for name in ["", ".", "..", "../lab", "a/b", "-a", "a b", "\u{e9}", "a\0", &"x".repeat(65)]
        {
            assert!(
                matches!(socket_in(Path::new("/t"), name), Err(AttachError::Name(_))),
                "{name}"
            );
        }
    }

    #[test]
    fn paths_that_no_socket_can_have_are_told() {
        let folder = PathBuf::from("/".to_owned() + &"f".repeat(95));
        assert!(socket_in(&folder, "lab").is_ok());
        let error = socket_in(&folder, "lab4s").unwrap_err();
        assert!(error.to_string().contains("VERNIC_FABRIC_DIR"), "{error}");
    }

    #[test]
    fn a_folder_that_others_may_change_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = env::temp_dir().join(format!("vernic-attach-path-{}", std::process::id()));
        prepare(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::write(folder.join("b.fabric"), "").unwrap();
        fs::write(folder.join("a.fabric"), "").unwrap();
        fs::write(folder.join("a.other"), "").unwrap();
        assert_eq!(list(&folder), ["a", "b"]);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(prepare(&folder), Err(AttachError::Folder { .. })));
        fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(check(&folder), Err(AttachError::Folder { .. })));
        assert!(list(&folder).is_empty());
    }
}
