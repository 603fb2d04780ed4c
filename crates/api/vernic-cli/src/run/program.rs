//! What can be told of a program before it runs: whether it will load libraries of ours at all.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set-user-ID and set-group-ID bits of a mode.
const SET_ID: u32 = 0o6000;

/// Most program headers that are looked at; programs have about a dozen.
const MAX_HEADERS: usize = 64;

/// Type of the program header that names the dynamic linker.
const PT_INTERP: u32 = 3;

/// Why a program may not see Vernic, in sentences. What cannot be read warns of nothing.
pub(super) fn warnings(name: &OsStr) -> Vec<String> {
    let Some(path) = find(name) else { return Vec::new() };
    let mut warnings = Vec::new();
    let shown = path.display();
    if fs::metadata(&path).is_ok_and(|meta| meta.mode() & SET_ID != 0) {
        warnings.push(format!(
            "{shown} runs with other rights than yours (set-user-ID or set-group-ID): the system \
             ignores LD_LIBRARY_PATH for it, so it will not see Vernic"
        ));
    }
    if has_capabilities(&path) {
        warnings.push(format!(
            "{shown} has capabilities (getcap): unless root runs it, the system ignores \
             LD_LIBRARY_PATH for it, so it will not see Vernic"
        ));
    }
    if is_static(&path).unwrap_or(false) {
        warnings.push(format!(
            "{shown} is statically linked: it loads no libraries, so it will not see Vernic"
        ));
    }
    warnings
}

/// Whether the file gives capabilities to who runs it, as far as `getcap` is there to tell.
fn has_capabilities(path: &Path) -> bool {
    let listed = |getcap: &&str| Command::new(getcap).arg("--").arg(path).output().ok();
    let mut answers = ["getcap", "/usr/sbin/getcap", "/sbin/getcap"].iter().filter_map(listed);
    answers.next().is_some_and(|output| output.status.success() && !output.stdout.is_empty())
}

/// The file that a shell would run.
fn find(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return Some(path.to_path_buf());
    }
    let is_program = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(is_program)
}

/// Whether it is a 64-bit ELF program that names no dynamic linker.
fn is_static(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    const ELF_64_LITTLE: &[u8] = b"\x7fELF\x02\x01";
    if !header.starts_with(ELF_64_LITTLE) {
        return Ok(false);
    }
    let number = |range: std::ops::Range<usize>| {
        header[range].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let (offset, size, count) = (number(32..40), number(54..56), number(56..58));
    file.seek(SeekFrom::Start(offset))?;
    let mut headers = Vec::new();
    file.take(size * count).read_to_end(&mut headers)?;
    let size = usize::try_from(size).unwrap_or(0).max(4);
    let kind = |header: &[u8]| header.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let mut kinds = headers.chunks(size).take(MAX_HEADERS).filter_map(kind);
    Ok(!kinds.any(|kind| kind == PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_programs_warn_of_nothing() {
        assert_eq!(warnings(OsStr::new("ls")), Vec::<String>::new());
        assert_eq!(warnings(OsStr::new("no-such-program")), Vec::<String>::new());
        assert!(!is_static(&std::env::current_exe().unwrap()).unwrap());
    }

    #[test]
    fn a_program_without_a_dynamic_linker_is_static() {
        let mut elf = fs::read(std::env::current_exe().unwrap()).unwrap();
        let offset = u64::from_le_bytes(elf[32..40].try_into().unwrap()) as usize;
        let (size, count) = (usize::from(elf[54]), usize::from(elf[56]));
        for header in elf[offset..].chunks_mut(size).take(count) {
            if header[0] == 3 {
                header[0] = 0; // PT_NULL
            }
        }
        elf.truncate(offset + size * count);
        let path = std::env::temp_dir().join(format!("vernic-static-{}", std::process::id()));
        fs::write(&path, &elf).unwrap();
        let warned = warnings(path.as_os_str());
        fs::remove_file(&path).unwrap();
        assert!(warned.len() == 1 && warned[0].contains("statically linked"), "{warned:?}");
    }

    #[test]
    fn a_program_with_capabilities_warns() {
        let path = std::env::temp_dir().join(format!("vernic-capable-{}", std::process::id()));
        fs::copy("/bin/sh", &path).unwrap();
        let set = Command::new("/usr/sbin/setcap").arg("cap_net_raw+ep").arg(&path).output();
        let warned = warnings(path.as_os_str());
        fs::remove_file(&path).unwrap();
        match set {
            Ok(set) if set.status.success() => {
                assert!(warned.len() == 1 && warned[0].contains("getcap"), "{warned:?}");
            }
            _ => eprintln!("skipped: capabilities cannot be given here (setcap): {set:?}"),
        }
    }

    #[test]
    fn a_program_with_other_rights_warns() {
        let path = std::env::temp_dir().join(format!("vernic-setuid-{}", std::process::id()));
        fs::copy("/bin/sh", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        let warned = warnings(path.as_os_str());
        fs::remove_file(&path).unwrap();
        assert!(warned.len() == 1 && warned[0].contains("set-user-ID"), "{warned:?}");
    }
}
