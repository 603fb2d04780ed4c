//! The user's folder that holds links and files.
//!
//! It lies in `$XDG_RUNTIME_DIR/vernic`, else in `/tmp/vernic-UID` (`$TMPDIR` before `/tmp`), where
//! only the user may look. Every content has a folder of its own there, named by its hash: runs
//! that need the same share it, runs that need another make another, whole and then renamed, and
//! nobody changes one that is there, but for putting back what is missing: systems clean `/tmp`
//! file by file. A folder that nobody asked for in a day and that no process has in its environment
//! is removed.
//!
//! What a command carries is unpacked into such a folder in `$XDG_CACHE_HOME/vernic`, else in
//! `~/.cache/vernic`, and stays: programs that run for long load from it.

use crate::failure::{Doing as _, Failure, Outcome};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// How long a folder is kept after its last use.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Beginning of the names of folders that are being made.
const UNFINISHED: &str = ".new-";

/// Held shared by who uses folders, exclusively by who removes or mends some.
const LOCK: &str = ".lock";

/// One file, link or folder, relative to the folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) path: String,
    kind: Kind,
}

/// A file inside the command. Its number stands for its content.
#[derive(Clone, Copy)]
pub(super) struct Carried {
    pub(super) id: u64,
    pub(super) bytes: &'static [u8],
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {:#x}", self.bytes.len(), self.id)
    }
}

impl PartialEq for Carried {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.bytes.len()) == (other.id, other.bytes.len())
    }
}

impl Eq for Carried {}

impl Hash for Carried {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.id, self.bytes.len()).hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    File(String),
    Carried(Carried),
    Link(PathBuf),
    Folder,
}

impl Entry {
    pub(super) fn file(path: String, content: impl Into<String>) -> Self {
        Self { path, kind: Kind::File(content.into()) }
    }

    pub(super) fn carried(path: String, content: Carried) -> Self {
        Self { path, kind: Kind::Carried(content) }
    }

    pub(super) fn link(path: String, target: impl Into<PathBuf>) -> Self {
        Self { path, kind: Kind::Link(target.into()) }
    }

    pub(super) fn folder(path: String) -> Self {
        Self { path, kind: Kind::Folder }
    }

    /// What it holds, if it is a file.
    #[cfg(test)]
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::File(content) => Some(content),
            _ => None,
        }
    }

    fn is_there(&self, root: &Path) -> bool {
        let path = root.join(&self.path);
        match &self.kind {
            Kind::File(content) => fs::read(path).is_ok_and(|found| found == content.as_bytes()),
            Kind::Carried(carried) => {
                fs::metadata(path).is_ok_and(|found| found.len() == carried.bytes.len() as u64)
            }
            Kind::Link(target) => fs::read_link(path).is_ok_and(|found| found == *target),
            Kind::Folder => path.is_dir(),
        }
    }

    fn make(&self, root: &Path) -> io::Result<()> {
        let path = root.join(&self.path);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        match &self.kind {
            Kind::File(content) => fs::write(path, content),
            Kind::Carried(carried) => fs::write(path, carried.bytes),
            Kind::Link(target) => symlink(target, path),
            Kind::Folder => fs::create_dir_all(path),
        }
    }
}

/// The folder with these entries: one that is there, or a new one.
pub(super) fn prepare(entries: &[Entry]) -> Outcome<PathBuf> {
    let base = base()?;
    prepare_in(&base, entries).map_err(|error| impossible("prepare a folder in", &base, &error))
}

/// Returns the folder with these entries in the user's cache: one that is there, or a new one. It
/// stays.
pub(super) fn keep(entries: &[Entry]) -> Outcome<PathBuf> {
    let base = match cache() {
        Some(base) => base,
        None => base()?,
    };
    let kept = place(&base, entries).map(|(folder, _)| folder);
    kept.map_err(|error| impossible("unpack the libraries into", &base, &error))
}

/// Makes the folder of folders in the user's cache, if need be; `None` where there can be none.
fn cache() -> Option<PathBuf> {
    let of = |variable| std::env::var_os(variable).map(PathBuf::from);
    let cache = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")))?;
    let base = cache.is_absolute().then(|| cache.join("vernic"))?;
    DirBuilder::new().recursive(true).mode(0o700).create(&base).ok()?;
    let user = fs::metadata("/proc/self").ok()?.uid();
    (is_owned(&base, user) && File::create(base.join(LOCK)).is_ok()).then_some(base)
}

/// Why there can be no folder here, and where there could be one.
fn impossible(what: &str, base: &Path, error: &io::Error) -> Failure {
    let base = base.display();
    Failure::new(format!("cannot {what} {base}: {error}"))
        .hint(format!("{ELSEWHERE}; {base} {HOLDS}"))
}

fn prepare_in(base: &Path, entries: &[Entry]) -> io::Result<PathBuf> {
    let (folder, lock) = place(base, entries)?;
    if lock.try_lock().is_ok() {
        remove_old(base, &folder);
    }
    Ok(folder)
}

/// Returns the folder with these entries in `base`, whole, and the lock of `base`, which is free.
fn place(base: &Path, entries: &[Entry]) -> io::Result<(PathBuf, File)> {
    let mut hasher = DefaultHasher::new();
    (entries, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
    let folder = base.join(format!("{:016x}", hasher.finish()));
    // Only who removes or mends folders holds it exclusively, for moments. It ends with this
    // process's exec.
    let lock = File::create(base.join(LOCK))?;
    lock.lock_shared()?;
    if !folder.is_dir() {
        make(base, &folder, entries)?;
    } else if !entries.iter().all(|entry| entry.is_there(&folder)) {
        lock.unlock()?;
        lock.lock()?;
        mend(&folder, entries)?;
    }
    File::open(&folder)?.set_modified(SystemTime::now())?;
    lock.unlock()?;
    Ok((folder, lock))
}

/// Makes a folder under another name; who is first to rename wins, and all have the same.
fn make(base: &Path, folder: &Path, entries: &[Entry]) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Relaxed);
    let unfinished = base.join(format!("{UNFINISHED}{}-{count}", std::process::id()));
    // Of a process that had our number and died.
    let _ = fs::remove_dir_all(&unfinished);
    DirBuilder::new().mode(0o700).create(&unfinished)?;
    let made = entries.iter().try_for_each(|entry| entry.make(&unfinished));
    let renamed = made.and_then(|()| fs::rename(&unfinished, folder));
    if renamed.is_err() {
        let _ = fs::remove_dir_all(&unfinished);
    }
    match renamed {
        Err(error) if !folder.is_dir() => Err(error),
        _ => Ok(()),
    }
}

/// Puts back what is missing of a folder, where programs that run look for it. The caller is alone.
fn mend(folder: &Path, entries: &[Entry]) -> io::Result<()> {
    for entry in entries.iter().filter(|entry| !entry.is_there(folder)) {
        // Half of it may be there; if it stays, making it fails.
        let _ = fs::remove_file(folder.join(&entry.path));
        entry.make(folder)?;
    }
    Ok(())
}

/// Removes what was not used for long, except what some process still has in its environment.
fn remove_old(base: &Path, own: &Path) {
    let Ok(children) = fs::read_dir(base) else { return };
    let old: Vec<PathBuf> = children
        .flatten()
        .map(|child| child.path())
        .filter(|path| path != own && path.is_dir() && age(path).is_some_and(|age| age > KEPT))
        .collect();
    for folder in old {
        if !in_use(&folder) {
            // Left for the next time if it cannot be removed.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn age(path: &Path) -> Option<Duration> {
    fs::symlink_metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

/// Whether a process of this user has the folder in its environment. Others' cannot be read.
fn in_use(folder: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let needle = folder.as_os_str().as_bytes();
    processes.flatten().any(|process| {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        environment.windows(needle.len()).any(|window| window == needle)
    })
}

/// The folder of folders, made if need be, and known to be the user's alone.
fn base() -> Outcome<PathBuf> {
    // The owner of one's own entry in /proc is oneself.
    let user = fs::metadata("/proc/self").doing(|| "tell who runs this (/proc)".into())?.uid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| is_listable(folder) && is_owned(folder, user));
    let base = match runtime {
        Some(folder) => folder.join("vernic"),
        None => {
            let temporary = std::env::temp_dir();
            let place = if is_listable(&temporary) { temporary } else { "/tmp".into() };
            place.join(format!("vernic-{user}"))
        }
    };
    match DirBuilder::new().mode(0o700).create(&base) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(impossible("create", &base, &error));
        }
        _ => {}
    }
    if is_owned(&base, user) {
        return Ok(base);
    }
    let base = base.display();
    Err(Failure::new(format!("{base} belongs to somebody else, or others may write there")).hint(
        format!(
            "{ELSEWHERE}, as TMPDIR=$(mktemp -d) (two users in user namespaces of their own, \
             made by `unshare -r`, have the same number), or remove it; {base} {HOLDS}"
        ),
    ))
}

/// What helps where there can be no folder of folders.
const ELSEWHERE: &str =
    "set XDG_RUNTIME_DIR or TMPDIR to a folder of your own, in which you can write";
/// What it is for.
const HOLDS: &str = "would hold libraries that your programs load";

/// Whether a path can stand in a list of paths, and is from the root.
fn is_listable(path: &Path) -> bool {
    let separates = |byte: &u8| matches!(byte, b':' | b';' | b' ' | b'\t' | b'\n' | b'$');
    path.is_absolute() && !OsStr::as_bytes(path.as_os_str()).iter().any(separates)
}

/// Whether it is a folder, no link, of this user, and nobody else may write there.
fn is_owned(folder: &Path, user: u32) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == user && meta.mode() & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of folders, removed at the end.
    struct Base(PathBuf);

    impl Base {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Relaxed);
            let name = format!("vernic-folder-{}-{count}", std::process::id());
            let base = std::env::temp_dir().join(name);
            fs::create_dir(&base).unwrap();
            Self(base)
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn entries(content: &str) -> Vec<Entry> {
        vec![
            Entry::file("a/b".into(), content),
            Entry::link("a/c".into(), "/dev/null"),
            Entry::folder("d".into()),
        ]
    }

    fn make_old(folder: &Path) {
        let long_ago = SystemTime::now() - 2 * KEPT;
        File::open(folder).unwrap().set_modified(long_ago).unwrap();
    }

    #[test]
    fn the_same_content_is_made_once_and_another_beside_it() {
        let base = Base::new();
        let first = prepare_in(&base.0, &entries("1")).unwrap();
        assert_eq!(fs::read_to_string(first.join("a/b")).unwrap(), "1");
        assert_eq!(fs::read_link(first.join("a/c")).unwrap(), Path::new("/dev/null"));
        assert!(first.join("d").is_dir());
        let inode = fs::metadata(&first).unwrap().ino();
        assert_eq!(prepare_in(&base.0, &entries("1")).unwrap(), first);
        assert_eq!(fs::metadata(&first).unwrap().ino(), inode);
        let second = prepare_in(&base.0, &entries("2")).unwrap();
        assert!(second != first && first.is_dir());
    }

    #[test]
    fn what_was_cleaned_away_is_put_back_in_its_place() {
        let base = Base::new();
        let folder = prepare_in(&base.0, &entries("1")).unwrap();
        let inode = fs::metadata(&folder).unwrap().ino();
        fs::remove_dir_all(folder.join("a")).unwrap();
        fs::remove_dir(folder.join("d")).unwrap();
        assert_eq!(prepare_in(&base.0, &entries("1")).unwrap(), folder);
        assert!(entries("1").iter().all(|entry| entry.is_there(&folder)));
        fs::write(folder.join("a/b"), "").unwrap();
        prepare_in(&base.0, &entries("1")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("a/b")).unwrap(), "1");
        assert_eq!(fs::metadata(&folder).unwrap().ino(), inode);
    }

    #[test]
    fn what_the_command_carries_is_unpacked_once_and_mended() {
        let base = Base::new();
        let of = |id, bytes| [Entry::carried("lib/x.so".into(), Carried { id, bytes })];
        let (folder, _) = place(&base.0, &of(1, b"seven..")).unwrap();
        fs::write(folder.join("lib/x.so"), "cut").unwrap();
        assert_eq!(place(&base.0, &of(1, b"seven..")).unwrap().0, folder);
        assert_eq!(fs::read(folder.join("lib/x.so")).unwrap(), b"seven..");
        assert_ne!(place(&base.0, &of(2, b"seven..")).unwrap().0, folder, "another build");
    }

    #[test]
    fn many_at_once_agree() {
        let base = Base::new();
        let made: Vec<PathBuf> = std::thread::scope(|scope| {
            let make = || scope.spawn(|| prepare_in(&base.0, &entries("x")).unwrap());
            let threads: Vec<_> = (0..8).map(|_| make()).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|folder| folder.join("a/b").is_file() && folder == &made[0]));
        // The folder and the lock; nothing unfinished is left.
        assert_eq!(fs::read_dir(&base.0).unwrap().count(), 2);
    }

    #[test]
    fn what_nobody_used_in_a_day_goes_unless_a_process_knows_it() {
        let base = Base::new();
        let first = prepare_in(&base.0, &entries("1")).unwrap();
        let used = prepare_in(&base.0, &entries("2")).unwrap();
        let fresh = prepare_in(&base.0, &entries("3")).unwrap();
        make_old(&first);
        make_old(&used);
        let mut process =
            std::process::Command::new("sleep").arg("60").env("X", &used).spawn().unwrap();
        let last = prepare_in(&base.0, &entries("4")).unwrap();
        let left = (first.is_dir(), used.is_dir(), fresh.is_dir(), last.is_dir());
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(left, (false, true, true, true));
    }

    #[test]
    fn a_folder_that_others_may_write_is_not_ones_own() {
        use std::os::unix::fs::PermissionsExt as _;
        let base = Base::new();
        let user = fs::metadata("/proc/self").unwrap().uid();
        fs::set_permissions(&base.0, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(is_owned(&base.0, user));
        assert!(!is_owned(&base.0, user + 1));
        fs::set_permissions(&base.0, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!is_owned(&base.0, user));
        symlink(&base.0, base.0.join("link")).unwrap();
        assert!(!is_owned(&base.0.join("link"), user));
    }

    #[test]
    fn a_path_with_separators_cannot_be_listed() {
        assert!(is_listable(Path::new("/run/user/1000")));
        for path in ["relative", "/with space", "/with:colon", "/with$dollar"] {
            assert!(!is_listable(Path::new(path)), "{path}");
        }
    }
}
