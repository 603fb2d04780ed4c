//! The functions that stand before those of libc.
//!
//! Each has the name and signature of libc's, lets [`Room::lead`] look at its path, and calls the
//! next function of that name. Variadic `open` takes its mode as a third fixed argument: on every
//! Linux target of Rust's, an integer travels the same way in both. All share one contract with
//! their callers, that of the C function.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::fresh;
use crate::shown::Room;

/// The function that would have been called without this library, once it was looked up.
pub(crate) struct Next(AtomicPtr<c_void>);

impl Next {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Its address; NULL, with ENOSYS in `errno`, if no library has it.
    pub(crate) fn address(&self, name: &CStr) -> *mut c_void {
        let known = self.0.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if found.is_null() {
            // SAFETY: the address of the calling thread's own `errno`.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
        }
        // Threads that race here find the same address.
        self.0.store(found, Relaxed);
        found
    }
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the macro adds one zero"), // at compile time
    }
}

/// `function(arguments, [path] arguments) -> result or what it returns for an error;`, behind what
/// is done with the result of each.
macro_rules! stand_before {
    ($finish:path; $($function:ident($($before:ident: $b:ty,)* [path] $(, $after:ident: $a:ty)*)
        -> $result:ty, or $failure:expr;)+) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function(
            $($before: $b,)* path: *const c_char $(, $after: $a)*
        ) -> $result {
            type Function =
                unsafe extern "C" fn($($b,)* *const c_char $(, $a)*) -> $result;
            static NEXT: Next = Next::new();
            let address = NEXT.address(const { name(concat!(stringify!($function), "\0")) });
            if address.is_null() {
                return $failure;
            }
            let mut room = Room::new();
            // SAFETY: libc's function of this name has this signature; its arguments are the
            // caller's, who keeps its contract; the path is the caller's or a C string in `room`,
            // which lives until the function returns. Its result is nobody else's yet.
            unsafe {
                let next = std::mem::transmute::<*mut c_void, Function>(address);
                $finish(next($($before,)* room.lead(path) $(, $after)*), path)
            }
        }
    )+};
}

type Names = *mut *mut *mut c_void;
type Filter = Option<unsafe extern "C" fn(*const c_void) -> c_int>;
type Order = Option<unsafe extern "C" fn(*mut *const c_void, *mut *const c_void) -> c_int>;

stand_before! {
    fresh::kept;
    stat([path], status: *mut c_void) -> c_int, or -1;
    stat64([path], status: *mut c_void) -> c_int, or -1;
    lstat([path], status: *mut c_void) -> c_int, or -1;
    lstat64([path], status: *mut c_void) -> c_int, or -1;
    fstatat(folder: c_int, [path], status: *mut c_void, flags: c_int) -> c_int, or -1;
    fstatat64(folder: c_int, [path], status: *mut c_void, flags: c_int) -> c_int, or -1;
    statx(folder: c_int, [path], flags: c_int, mask: c_uint, status: *mut c_void) -> c_int, or -1;

    // The same for programs built before glibc 2.33.
    __xstat(version: c_int, [path], status: *mut c_void) -> c_int, or -1;
    __xstat64(version: c_int, [path], status: *mut c_void) -> c_int, or -1;
    __lxstat(version: c_int, [path], status: *mut c_void) -> c_int, or -1;
    __lxstat64(version: c_int, [path], status: *mut c_void) -> c_int, or -1;
    __fxstatat(version: c_int, folder: c_int, [path], status: *mut c_void, flags: c_int)
        -> c_int, or -1;
    __fxstatat64(version: c_int, folder: c_int, [path], status: *mut c_void, flags: c_int)
        -> c_int, or -1;

    access([path], mode: c_int) -> c_int, or -1;
    eaccess([path], mode: c_int) -> c_int, or -1;
    euidaccess([path], mode: c_int) -> c_int, or -1;
    faccessat(folder: c_int, [path], mode: c_int, flags: c_int) -> c_int, or -1;
    getxattr([path], name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t, or -1;
    lgetxattr([path], name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t, or -1;
    listxattr([path], list: *mut c_char, size: size_t) -> ssize_t, or -1;
    llistxattr([path], list: *mut c_char, size: size_t) -> ssize_t, or -1;

    creat([path], mode: mode_t) -> c_int, or -1;
    creat64([path], mode: mode_t) -> c_int, or -1;

    opendir([path]) -> *mut DIR, or ptr::null_mut();
    scandir([path], names: Names, filter: Filter, order: Order) -> c_int, or -1;
    scandir64([path], names: Names, filter: Filter, order: Order) -> c_int, or -1;
    scandirat(folder: c_int, [path], names: Names, filter: Filter, order: Order) -> c_int, or -1;
    scandirat64(folder: c_int, [path], names: Names, filter: Filter, order: Order) -> c_int, or -1;
    chdir([path]) -> c_int, or -1;

    statfs([path], system: *mut c_void) -> c_int, or -1;
    statfs64([path], system: *mut c_void) -> c_int, or -1;
    statvfs([path], system: *mut c_void) -> c_int, or -1;
    statvfs64([path], system: *mut c_void) -> c_int, or -1;
    inotify_add_watch(watcher: c_int, [path], events: u32) -> c_int, or -1;

    readlink([path], target: *mut c_char, size: size_t) -> ssize_t, or -1;
    readlinkat(folder: c_int, [path], target: *mut c_char, size: size_t) -> ssize_t, or -1;
    realpath([path], resolved: *mut c_char) -> *mut c_char, or ptr::null_mut();
    canonicalize_file_name([path]) -> *mut c_char, or ptr::null_mut();

    // The same for programs built with _FORTIFY_SOURCE.
    __readlink_chk([path], target: *mut c_char, size: size_t, room: size_t) -> ssize_t, or -1;
    __readlinkat_chk(folder: c_int, [path], target: *mut c_char, size: size_t, room: size_t)
        -> ssize_t, or -1;
    __realpath_chk([path], resolved: *mut c_char, room: size_t) -> *mut c_char, or ptr::null_mut();
}

stand_before! {
    fresh::descriptor;
    open([path], flags: c_int, mode: mode_t) -> c_int, or -1;
    open64([path], flags: c_int, mode: mode_t) -> c_int, or -1;
    openat(folder: c_int, [path], flags: c_int, mode: mode_t) -> c_int, or -1;
    openat64(folder: c_int, [path], flags: c_int, mode: mode_t) -> c_int, or -1;

    // The same for programs built with _FORTIFY_SOURCE.
    __open_2([path], flags: c_int) -> c_int, or -1;
    __open64_2([path], flags: c_int) -> c_int, or -1;
    __openat_2(folder: c_int, [path], flags: c_int) -> c_int, or -1;
    __openat64_2(folder: c_int, [path], flags: c_int) -> c_int, or -1;
}

stand_before! {
    fresh::stream;
    fopen([path], mode: *const c_char) -> *mut FILE, or ptr::null_mut();
    fopen64([path], mode: *const c_char) -> *mut FILE, or ptr::null_mut();
    freopen([path], mode: *const c_char, file: *mut FILE) -> *mut FILE, or ptr::null_mut();
    freopen64([path], mode: *const c_char, file: *mut FILE) -> *mut FILE, or ptr::null_mut();
}
