//! Pointers that cross the border: the only module that follows those of the control path.
//!
//! Every type here is one pointer wide and can only be made by C, as an argument of an exported
//! function or as a field of a struct that such an argument leads to, or by [`Handle::hand_out`]
//! for an object that this library gives to C. What is behind it rests on the contract of the
//! verbs, which each SAFETY comment below means by *the contract*:
//!
//! 1. an object pointer is NULL, or came from this library and its object was not destroyed since;
//!    nobody uses an object while or after it is destroyed;
//! 2. a pointer to a struct or array is NULL, or leads to that many valid elements, which no other
//!    thread changes during the call; one to be written is writable and not otherwise used
//!    meanwhile.
//!
//! NULL is tested for here, each time, and becomes an error or "absent". More cannot be tested:
//! whoever breaks the contract breaks rdma-core's library in the same way.
//!
//! Fields of objects that C reads or writes at any time are atomics (see `layout`), so a shared
//! reference to an object is sound whatever C does to them.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

pub(crate) mod pieces;
pub(crate) mod sockaddr;

pub(crate) use sockaddr::{CmAddr, SockAddr};

use crate::failure::Failure;

/// A struct of C at whose place there is an object of ours.
///
/// # Safety
/// [`Object`](Self::Object) is `repr(C)` and holds the struct at byte [`OFFSET`](Self::OFFSET).
pub(crate) unsafe trait CObject {
    /// The object.
    type Object;
    /// What errors call it.
    const NAME: &'static str;
    /// Where in the object the struct of C is.
    const OFFSET: usize = 0;

    /// Whether there is one at this address, as far as that is known without looking there.
    #[inline]
    fn is_there(_address: usize) -> bool {
        true
    }
}

/// A struct of which every bit pattern is a value: integers, floats, pointers, and optional
/// functions.
///
/// # Safety
/// As said.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: made of integers, pointers, `Handle`s and optional functions only.
            unsafe impl crate::pointer::Plain for $name {}
        )*
    };
}
pub(crate) use plain;

plain! { u8, u16, u32, u64, i32, [u8; 6], *mut std::ffi::c_void }
// SAFETY: pointers, whatever their bits are.
unsafe impl<T> Plain for In<T> {}
// SAFETY: as above.
unsafe impl<C> Plain for Handle<C> {}

/// A pointer to an object of ours, or NULL.
#[repr(transparent)]
pub(crate) struct Handle<C>(*mut C);

impl<C> Clone for Handle<C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<C> Copy for Handle<C> {}
impl<C> PartialEq for Handle<C> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

// SAFETY: a number until it is followed, which the contract permits on every thread: verbs objects
// may be used from all threads.
unsafe impl<C> Send for Handle<C> {}
// SAFETY: as above.
unsafe impl<C> Sync for Handle<C> {}

impl<C> Handle<C> {
    /// No object.
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    /// An object in a field that stands for objects of several kinds; C says which.
    pub(crate) fn told(object: *mut std::ffi::c_void) -> Self {
        Self(object.cast())
    }

    /// Whether there is none.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address, to be stored in a field that C reads.
    pub(crate) fn raw(self) -> *mut C {
        self.0
    }

    /// What a field of an object says, which C may have changed.
    pub(crate) fn load(field: &AtomicPtr<C>) -> Self {
        Self(field.load(Ordering::Acquire))
    }

    /// Shows it in a field of an object.
    pub(crate) fn store(self, field: &AtomicPtr<C>) {
        field.store(self.0, Ordering::Release);
    }
}

impl<C: CObject> Handle<C> {
    /// Gives an object to C, which gives it back with [`Handle::take_back`].
    pub(crate) fn hand_out(object: Box<C::Object>) -> Self {
        let object: *mut C::Object = Box::into_raw(object);
        Self(object.wrapping_byte_add(C::OFFSET).cast())
    }

    /// An object that is never destroyed.
    pub(crate) fn of_leaked(object: &'static C::Object) -> Self {
        Self(ptr::from_ref(object).wrapping_byte_add(C::OFFSET).cast::<C>().cast_mut())
    }

    fn object(self) -> *mut C::Object {
        self.0.cast::<C::Object>().wrapping_byte_sub(C::OFFSET)
    }

    /// The object.
    ///
    /// # Errors
    /// `EINVAL` for NULL, and for what is known to be none; naming what is missing.
    #[inline]
    pub(crate) fn get(&self) -> Result<&C::Object, Failure> {
        self.find().ok_or_else(|| match self.is_null() {
            true => Failure::null(C::NAME),
            false => Failure::none_at(C::NAME, self.0.addr()),
        })
    }

    /// The object, or `None` for NULL and for what is known to be none.
    #[inline]
    pub(crate) fn find(&self) -> Option<&C::Object> {
        if self.0.is_null() || !C::is_there(self.0.addr()) {
            return None;
        }
        // SAFETY: not NULL, so an object of ours that lives (contract, 1), made by `hand_out` of
        // this `C`: its place is `OFFSET` before. It is not destroyed while the caller's copy of
        // the handle, an argument of the running call or a field of something that lives, exists.
        Some(unsafe { &*self.object() })
    }

    /// An array of objects with NULL behind them, of memory that `free` frees.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn list(objects: &[Self]) -> Result<*mut Self, Failure> {
        // SAFETY: `calloc` may be asked for any size; NULL is looked at.
        let list = unsafe { libc::calloc(objects.len() + 1, size_of::<Self>()) };
        let list: *mut Self = list.cast();
        if list.is_null() {
            return Err(Failure::new(libc::ENOMEM, "no memory for the list"));
        }
        for (n, &object) in objects.iter().enumerate() {
            // SAFETY: `n` is below the length that was allocated; the last place stays NULL.
            unsafe { list.add(n).write(object) };
        }
        Ok(list)
    }

    /// Takes an object back from C, which has ended its life.
    ///
    /// # Safety
    /// The call that destroys the object does this, once, with what C gave it, and no reference
    /// from [`Handle::get`] is used afterwards.
    pub(crate) unsafe fn take_back(self) -> Box<C::Object> {
        // SAFETY: from `Box::into_raw` in `hand_out`; not taken back before (contract, 1).
        unsafe { Box::from_raw(self.object()) }
    }

    /// As [`take_back`](Self::take_back): the object is dropped, and its place stays until that is,
    /// too.
    ///
    /// # Safety
    /// As of [`take_back`](Self::take_back).
    pub(crate) unsafe fn end(self) -> Place<C::Object> {
        let object = self.object();
        // SAFETY: as in `take_back`: from `Box::into_raw`, and nobody uses it any more.
        unsafe { ptr::drop_in_place(object) };
        // SAFETY: the place of a box, of which nothing is valid now.
        Place { _memory: unsafe { Box::from_raw(object.cast()) } }
    }
}

/// Where an object was: its address is nobody else's until this is dropped.
pub(crate) struct Place<T> {
    _memory: Box<MaybeUninit<T>>,
}

// SAFETY: there is nothing in it.
unsafe impl<T> Send for Place<T> {}

/// A struct that C filled, or NULL; also the first of an array of them.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// The address.
    pub(crate) fn raw(self) -> *const T {
        self.0
    }

    /// A pointer into what C gave, to be told back to C.
    pub(crate) fn tell(raw: *const T) -> Self {
        Self(raw)
    }
}

impl<T: Plain> In<T> {
    /// A copy, or `None` for NULL.
    pub(crate) fn read(self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: leads to a struct (contract, 2), of which every content is a value (`Plain`).
        Some(unsafe { self.0.read_unaligned() })
    }

    /// A copy.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn require(self, name: &'static str) -> Result<T, Failure> {
        self.read().ok_or_else(|| Failure::null(name))
    }

    /// The elements of an array, copied where it is not aligned; `None` for one that is nowhere.
    pub(crate) fn array(&self, count: usize) -> Option<Cow<'_, [T]>> {
        if count == 0 {
            return Some(Cow::Borrowed(&[]));
        }
        if self.0.is_null() {
            return None;
        }
        if !self.0.is_aligned() {
            // SAFETY: so many elements (contract, 2), of any content (`Plain`).
            let element = |i| unsafe { self.0.add(i).read_unaligned() };
            return Some((0..count).map(element).collect());
        }
        // SAFETY: so many elements (contract, 2), aligned (tested), of any content (`Plain`).
        Some(Cow::Borrowed(unsafe { slice::from_raw_parts(self.0, count) }))
    }
}

/// A struct that C wants filled, or has filled and wants changed, or NULL.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// The address.
    pub(crate) fn raw(self) -> *mut T {
        self.0
    }

    /// A struct of ours, for a call that C could make as well.
    pub(crate) fn of(value: &mut T) -> Self {
        Self(value)
    }

    /// What a field of a struct leads to.
    pub(crate) fn of_raw(place: *mut T) -> Self {
        Self(place)
    }

    /// Whether C wants nothing.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T: Plain> Out<T> {
    /// What is there.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn require(self, name: &'static str) -> Result<T, Failure> {
        In(self.0).require(name)
    }

    /// Fills it, if there is one.
    pub(crate) fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: leads to a writable struct (contract, 2).
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

/// A struct that grew with the versions of the header. A program has as much of it as the header
/// had that it was built with, and says with `comp_mask` which of the fields behind that are there.
///
/// # Safety
/// Every program has the first [`LEAST`](Self::LEAST) bytes, and as many as [`room`](Self::room)
/// says; zeros are a value of every field.
pub(crate) unsafe trait Growing: Plain {
    /// Bytes up to `comp_mask` and with it.
    const LEAST: usize;

    /// Bytes that the program says it has; looks at the first [`LEAST`](Self::LEAST) only.
    fn room(&self) -> usize;
}

/// `struct { bit of comp_mask => field that it stands for: its type, }`
macro_rules! growing {
    ($($name:ident { $($bit:expr => $field:ident: $type:ty,)* })*) => {$(
        // SAFETY: the manual page says which bit stands for which field; integers and pointers.
        unsafe impl crate::pointer::Growing for $name {
            const LEAST: usize = std::mem::offset_of!($name, comp_mask) + size_of::<u32>();

            fn room(&self) -> usize {
                let mut room = Self::LEAST;
                $(if self.comp_mask & $bit != 0 {
                    room = room.max(std::mem::offset_of!($name, $field) + size_of::<$type>());
                })*
                room
            }
        }
    )*};
}
pub(crate) use growing;

impl<T: Growing> In<T> {
    /// A copy of what is there, with zeros for what is not.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn require_grown(self, name: &'static str) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(Failure::null(name));
        }
        let mut value = MaybeUninit::<T>::zeroed();
        let (from, to) = (self.0.cast::<u8>(), value.as_mut_ptr().cast::<u8>());
        // SAFETY: every program has so many bytes (`Growing`), and they are part of `value`.
        unsafe { ptr::copy_nonoverlapping(from, to, T::LEAST) };
        // SAFETY: of any content (`Plain`), and zeros where nothing was copied (`Growing`).
        let room = unsafe { value.assume_init_ref() }.room().min(size_of::<T>());
        // SAFETY: as above: the program has said that it has so many.
        unsafe { ptr::copy_nonoverlapping(from, to, room) };
        // SAFETY: as above.
        Ok(unsafe { value.assume_init() })
    }
}

impl<T: Growing> Out<T> {
    /// As [`In::require_grown`].
    pub(crate) fn require_grown(self, name: &'static str) -> Result<T, Failure> {
        In(self.0.cast_const()).require_grown(name)
    }
}

/// `function: struct, its field, the field's type;`
macro_rules! one_field {
    ($($function:ident: $name:ident, $field:ident, $type:ty;)*) => {$(
        impl crate::pointer::Out<$name> {
            /// Fills this field of a struct that C has filled, and touches nothing else of it: it
            /// may be shorter than ours, or use what is padding here.
            pub(crate) fn $function(self, value: $type) {
                let raw = self.raw();
                if !raw.is_null() {
                    // SAFETY: leads to a writable struct, of which every program has this field
                    // (contract, 2).
                    unsafe { (&raw mut (*raw).$field).write_unaligned(value) };
                }
            }
        }
    )*};
}
pub(crate) use one_field;

/// An array that C wants filled, or NULL.
#[repr(transparent)]
pub(crate) struct OutArray<T>(*mut T);

impl<T: Plain> OutArray<T> {
    /// Whether C wants nothing.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The elements; `None` for an array that is nowhere, or where none can be.
    #[inline]
    pub(crate) fn slice(&mut self, count: usize) -> Option<&mut [T]> {
        if count == 0 {
            return Some(&mut []);
        }
        if self.0.is_null() || !self.0.is_aligned() {
            return None;
        }
        // SAFETY: so many writable elements that nobody else uses meanwhile (contract, 2), aligned
        // (tested), of any content (`Plain`).
        Some(unsafe { slice::from_raw_parts_mut(self.0, count) })
    }
}

/// An element of an array that is not aligned, as those in packed structs are.
#[repr(C, packed)]
pub(crate) struct Unaligned<T>(pub(crate) T);

impl<T: Plain> OutArray<T> {
    /// Whether [`slice`](Self::slice) gives none because of where the array is.
    #[inline]
    pub(crate) fn is_unaligned(&self) -> bool {
        !self.0.is_aligned()
    }

    /// The elements, wherever they are; `None` for an array that is nowhere.
    #[cold]
    pub(crate) fn unaligned(&mut self, count: usize) -> Option<&mut [Unaligned<T>]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: so many writable elements that nobody else uses meanwhile (contract, 2), of any
        // content (`Plain`); `Unaligned` has their layout and may be anywhere.
        Some(unsafe { slice::from_raw_parts_mut(self.0.cast(), count) })
    }
}

impl OutArray<u8> {
    /// The same array from byte `offset` on, which has to be inside.
    pub(crate) fn at(&mut self, offset: usize) -> Self {
        Self(if self.0.is_null() { self.0 } else { self.0.wrapping_add(offset) })
    }

    /// Writes the first bytes of `value`, as many as C has room for, and zeros what room is left.
    pub(crate) fn fill_prefix<T: Plain>(&mut self, value: &T, room: usize) {
        let common = room.min(size_of::<T>());
        if self.0.is_null() || room == 0 {
            return;
        }
        // SAFETY: `room` writable bytes (contract, 2), of which `common` are there in `value`.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), self.0, common);
            self.0.add(common).write_bytes(0, room - common);
        }
    }
}

/// Bytes of the program, to be read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Bytes(*const u8);

impl Bytes {
    /// Bytes that a struct of C leads to.
    pub(crate) fn told(start: *const std::ffi::c_void) -> Self {
        Self(start.cast())
    }

    /// The address.
    pub(crate) fn raw(self) -> *const u8 {
        self.0
    }

    /// The bytes; none for NULL.
    pub(crate) fn slice(&self, count: usize) -> &[u8] {
        if self.0.is_null() {
            return &[];
        }
        // SAFETY: so many bytes, which nobody changes meanwhile (contract, 2).
        unsafe { slice::from_raw_parts(self.0, count) }
    }
}

/// Bytes of the program, to be written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct BytesMut(*mut u8);

impl BytesMut {
    /// Bytes that begin where a struct of C ends.
    pub(crate) fn behind<T>(object: Out<T>) -> Self {
        match object.is_null() {
            true => Self(ptr::null_mut()),
            false => Self(object.0.wrapping_add(1).cast()),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The bytes; none for NULL.
    pub(crate) fn slice(&mut self, count: usize) -> &mut [u8] {
        if self.0.is_null() {
            return &mut [];
        }
        // SAFETY: so many writable bytes, which nobody else uses meanwhile (contract, 2).
        unsafe { slice::from_raw_parts_mut(self.0, count) }
    }
}

/// A text of C, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char, PhantomData<CStr>);

impl Text {
    /// No text.
    pub(crate) const NULL: Self = Self(ptr::null(), PhantomData);

    /// A text of ours that lives for ever.
    pub(crate) const fn of(text: &'static CStr) -> Self {
        Self(text.as_ptr(), PhantomData)
    }

    /// The text that begins so many bytes into a struct of C, which is not looked at.
    pub(crate) fn at<C>(object: *const C, offset: usize) -> Self {
        Self(object.wrapping_byte_add(offset).cast(), PhantomData)
    }

    /// The text, or `None` for NULL.
    pub(crate) fn read(&self) -> Option<&CStr> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: ends with a zero and does not change during the call (contract, 2).
        Some(unsafe { CStr::from_ptr(self.0) })
    }
}
