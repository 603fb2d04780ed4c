//! Copies between private memory and racy memory, which others access at the same time.
//!
//! All copies follow these rules:
//! - Addresses ascend, and each byte is accessed once.
//! - A naturally aligned 8-byte word inside the racy range is accessed by one move.
//! - A store writes the aligned word that holds the last byte last, with release order. On x86-64,
//!   all stores become visible in program order anyway. On other machines, the release store orders
//!   the relaxed stores before it.
//!
//! On x86-64, assembly does the bulk moves. It uses 16-byte moves, which belong to the base
//! instruction set, so no CPU feature needs to be detected. The compiler sees neither a data race
//! nor a `memcpy` that it might reorder. On other machines, and under Miri, relaxed 8-byte atomics
//! do the bulk moves. (Miri cannot emulate weak memory for accesses of different sizes to the same
//! bytes: run it with `-Zmiri-disable-weak-memory-emulation`.)
//!
//! A region without write rights may be read-only memory. It is only loaded from, by relaxed loads
//! of at most 8 bytes, which atomic types permit for read-only memory.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes of the largest unit that is accessed by one move.
const WORD: usize = 8;

/// Number of bytes from `addr` to the next multiple of [`WORD`].
#[inline(always)]
fn to_boundary(addr: usize) -> usize {
    addr.wrapping_neg() & (WORD - 1)
}

/// Copies racy memory at `src` into `dst`.
///
/// # Safety
/// `src..src + dst.len()` is mapped and readable during the call, and does not overlap `dst`.
#[inline]
pub(super) unsafe fn load(src: *const u8, dst: &mut [u8]) {
    let n = dst.len();
    let dst = dst.as_mut_ptr();
    let head = to_boundary(src.addr()).min(n);
    // SAFETY: the three ranges partition `0..n`. They are valid at `src` by contract, and at `dst`
    // as parts of a slice. `src + head` is a multiple of 8, or nothing is left.
    unsafe {
        if head > 0 {
            load_units(src, dst, head);
        }
        let body = (n - head) & !(WORD - 1);
        load_words(src.add(head), dst.add(head), body);
        let tail = n - head - body;
        if tail > 0 {
            load_units(src.add(head + body), dst.add(head + body), tail);
        }
    }
}

/// Copies `src` to racy memory at `dst`, in ascending order. The last aligned word is stored last,
/// as a release.
///
/// # Safety
/// `dst..dst + src.len()` is mapped and writable during the call, and does not overlap `src`.
#[inline]
pub(super) unsafe fn store(dst: *mut u8, src: &[u8]) {
    let n = src.len();
    if n == 0 {
        return;
    }
    let src = src.as_ptr();
    let head = to_boundary(dst.addr()).min(n);
    // SAFETY: the ranges partition `0..n`. They are valid at `dst` by contract, and at `src` as
    // parts of a slice. `dst + head` is a multiple of 8, or nothing is left; then so is `dst + head
    // + body`.
    unsafe {
        if head > 0 {
            store_units(dst, src, head);
        }
        let rest = n - head;
        if rest == 0 {
            return;
        }
        let body = (rest - 1) & !(WORD - 1);
        store_words(dst.add(head), src.add(head), body);
        let tail = rest - body;
        let (dst, src) = (dst.add(head + body), src.add(head + body));
        if tail == WORD {
            let word = src.cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(dst.cast()).store(word, Ordering::Release);
        } else {
            store_units(dst, src, tail);
        }
    }
}

/// Copies `n` bytes of racy memory at `src` to racy memory at `dst`. The last aligned word is
/// stored last, as a release. The bytes before it become visible in any order.
///
/// # Safety
/// `src..src + n` is mapped and readable, and `dst..dst + n` is mapped and writable, during the
/// call. The ranges may overlap if the caller accepts any bytes as the result.
#[inline]
pub(super) unsafe fn transfer(mut dst: *mut u8, mut src: *const u8, mut n: usize) {
    if n >= DIRECT_MIN && (dst.addr() ^ src.addr()) & (WORD - 1) == 0 {
        let head = to_boundary(dst.addr());
        let mut word = [0; WORD];
        // SAFETY: all copies lie in both ranges. First come `head` < 8 bytes. Then comes `body`, a
        // multiple of 8 bytes and at least 8, between addresses that are multiples of 8.
        unsafe {
            load(src, &mut word[..head]);
            store_units(dst, word.as_ptr(), head);
            (dst, src, n) = (dst.add(head), src.add(head), n - head);
            let body = (n - WORD) & !(WORD - 1);
            transfer_words(dst, src, body);
            (dst, src, n) = (dst.add(body), src.add(body), n - body);
        }
    }
    let mut private = [0; DIRECT_MIN];
    // Each round copies at most one buffer.
    while n > 0 {
        let now = n.min(private.len());
        // SAFETY: both parts lie in the ranges, and the buffer is private.
        unsafe {
            load(src, &mut private[..now]);
            store(dst, &private[..now]);
            (dst, src, n) = (dst.add(now), src.add(now), n - now);
        }
    }
}

/// Copies bytes to words that others access at the same time. Copies as many whole words as fit
/// both slices, and returns their number. The words become visible in any order, but before any
/// later store with release order.
#[inline]
pub fn write_words(words: &[AtomicU64], bytes: &[u8]) -> usize {
    let count = words.len().min(bytes.len() / WORD);
    // SAFETY: both slices have `count` words. The words are atomics, so they may be written through
    // a shared reference. A borrowed slice of bytes does not overlap them.
    unsafe { put(words.as_ptr().cast_mut().cast(), bytes.as_ptr(), count * WORD) };
    count
}

/// Copies words that others may change at the same time. Copies as many whole words as fit both
/// slices, and returns their number.
#[inline]
pub fn read_words(words: &[AtomicU64], bytes: &mut [u8]) -> usize {
    let count = words.len().min(bytes.len() / WORD);
    // SAFETY: both slices have `count` words, and the borrowed slice of bytes does not overlap the
    // words.
    unsafe { load_words(words.as_ptr().cast(), bytes.as_mut_ptr(), count * WORD) };
    count
}

/// Length in bytes from which a copy between racy ranges uses no private buffer.
const DIRECT_MIN: usize = 256;

/// Loads `n` < 8 bytes that lie in one aligned word, in the largest aligned units that fit.
///
/// # Safety
/// `src` is racy and readable for `n` bytes, `dst` is private and writable for `n` bytes.
#[inline]
unsafe fn load_units(mut src: *const u8, mut dst: *mut u8, mut n: usize) {
    // At most 5 rounds: units of 1, 2 and 4 bytes ascending, then 2 and 1.
    while n > 0 {
        let unit = unit_at(src.addr(), n);
        // SAFETY: `unit` divides the address and is at most `n`. The atomics are used only for the
        // loads.
        unsafe {
            match unit {
                4 => {
                    let v = AtomicU32::from_ptr(src.cast_mut().cast()).load(Ordering::Relaxed);
                    dst.cast::<u32>().write_unaligned(v);
                }
                2 => {
                    let v = AtomicU16::from_ptr(src.cast_mut().cast()).load(Ordering::Relaxed);
                    dst.cast::<u16>().write_unaligned(v);
                }
                _ => *dst = AtomicU8::from_ptr(src.cast_mut()).load(Ordering::Relaxed),
            }
            src = src.add(unit);
            dst = dst.add(unit);
        }
        n -= unit;
    }
}

/// Stores `n` < 8 bytes that lie in one aligned word, ascending. Each store is a release.
///
/// # Safety
/// `dst` is racy and writable for `n` bytes, `src` is private and readable for `n` bytes.
#[inline]
unsafe fn store_units(mut dst: *mut u8, mut src: *const u8, mut n: usize) {
    // At most 5 rounds, as in `load_units`.
    while n > 0 {
        let unit = unit_at(dst.addr(), n);
        // SAFETY: `unit` divides the address and is at most `n`.
        unsafe {
            match unit {
                4 => {
                    let v = src.cast::<u32>().read_unaligned();
                    AtomicU32::from_ptr(dst.cast()).store(v, Ordering::Release);
                }
                2 => {
                    let v = src.cast::<u16>().read_unaligned();
                    AtomicU16::from_ptr(dst.cast()).store(v, Ordering::Release);
                }
                _ => AtomicU8::from_ptr(dst).store(*src, Ordering::Release),
            }
            src = src.add(unit);
            dst = dst.add(unit);
        }
        n -= unit;
    }
}

/// The largest of 4, 2, 1 that divides `addr` and is at most `n`; `n` > 0.
#[inline(always)]
fn unit_at(addr: usize, n: usize) -> usize {
    if addr & 3 == 0 && n >= 4 {
        4
    } else if addr & 1 == 0 && n >= 2 {
        2
    } else {
        1
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64::{load_words, store_words, transfer_words, transfer_words as put};

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use portable::{load_words, store_words, store_words as put, transfer_words};

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::asm;

    /// Loads `n` bytes from racy memory. `n` and `src` are multiples of 8.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `n` bytes; they do not overlap.
    #[inline(always)]
    pub(super) unsafe fn load_words(src: *const u8, dst: *mut u8, n: usize) {
        // SAFETY: the contract of `copy_words` is that of this function.
        unsafe { copy_words(dst, src, n) }
    }

    /// Stores `n` bytes to racy memory. `n` and `dst` are multiples of 8.
    ///
    /// # Safety
    /// `dst` is writable and `src` readable for `n` bytes; they do not overlap.
    #[inline(always)]
    pub(super) unsafe fn store_words(dst: *mut u8, src: *const u8, n: usize) {
        // SAFETY: the contract of `copy_words` is that of this function.
        unsafe { copy_words(dst, src, n) }
    }

    /// Length in bytes from which a string move (`rep movs`) is faster than a loop. It takes some
    /// 30 ns to start. But it does not fetch cache lines from another core if it will overwrite
    /// them as a whole.
    const STRING_MIN: usize = 512;

    /// Whether a string move may be slow for these addresses. On AMD's Zen 3, it is slow if the
    /// destination lies 1 to 63 bytes behind a multiple of 4096 bytes from the source. At a
    /// distance of 16 bytes, 64 KiB took three times as long, while a loop took its usual time.
    #[inline(always)]
    fn aliases(dst: *const u8, src: *const u8) -> bool {
        (1..64).contains(&(dst.addr().wrapping_sub(src.addr()) & 4095))
    }

    /// Copies `n` bytes, a multiple of 8, to racy memory. Both addresses are multiples of 8, or the
    /// source is private memory at any address. Long copies are string moves of words. The
    /// processor may make their stores visible in any order, but all of them before a store that
    /// follows the instruction.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `n` bytes.
    #[inline(always)]
    pub(super) unsafe fn transfer_words(dst: *mut u8, src: *const u8, n: usize) {
        if n < STRING_MIN || aliases(dst, src) {
            // SAFETY: the contract of `copy_words` is that of this function. Overlap changes only
            // the bytes that result, because the moves go through registers.
            return unsafe { copy_words(dst, src, n) };
        }
        // SAFETY: the instruction reads and writes `n` bytes, ascending (the ABI keeps the
        // direction flag clear). It touches neither the stack nor flags.
        unsafe {
            asm!(
                "rep movsq",
                inout("rcx") n / 8 => _,
                inout("rsi") src => _,
                inout("rdi") dst => _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies `n` bytes, a multiple of 8, in ascending order: by 16-byte moves, and a last one of 8
    /// bytes. The racy side is 8-byte aligned, so a processor that splits a 16-byte move splits it
    /// between words.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `n` bytes; they do not overlap.
    #[inline(always)]
    unsafe fn copy_words(mut dst: *mut u8, mut src: *const u8, n: usize) {
        let blocks = n / 64;
        // SAFETY: the code reads and writes `n` bytes in all, from the start on. `src` and `dst`
        // advance by the bytes copied. The assembly touches no other memory, and not the stack.
        unsafe {
            if blocks > 0 {
                asm!(
                    "2:",
                    "movups {a}, [{src}]",
                    "movups {b}, [{src} + 16]",
                    "movups {c}, [{src} + 32]",
                    "movups {d}, [{src} + 48]",
                    "movups [{dst}], {a}",
                    "movups [{dst} + 16], {b}",
                    "movups [{dst} + 32], {c}",
                    "movups [{dst} + 48], {d}",
                    "add {src}, 64",
                    "add {dst}, 64",
                    "dec {blocks}",
                    "jnz 2b",
                    src = inout(reg) src,
                    dst = inout(reg) dst,
                    blocks = inout(reg) blocks => _,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack),
                );
            }
            if n & 32 != 0 {
                copy_16(dst, src);
                copy_16(dst.add(16), src.add(16));
                (dst, src) = (dst.add(32), src.add(32));
            }
            if n & 16 != 0 {
                copy_16(dst, src);
                (dst, src) = (dst.add(16), src.add(16));
            }
            if n & 8 != 0 {
                asm!(
                    "mov {word}, [{src}]",
                    "mov [{dst}], {word}",
                    src = in(reg) src,
                    dst = in(reg) dst,
                    word = out(reg) _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    /// Copies 16 bytes.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for 16 bytes.
    #[inline(always)]
    unsafe fn copy_16(dst: *mut u8, src: *const u8) {
        // SAFETY: the caller's contract covers the 16 bytes; the assembly touches nothing else.
        unsafe {
            asm!(
                "movups {x}, [{src}]",
                "movups [{dst}], {x}",
                src = in(reg) src,
                dst = in(reg) dst,
                x = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod portable {
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Copies `n` bytes between racy ranges. `n` and both addresses are multiples of 8.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `n` bytes.
    #[inline(always)]
    pub(super) unsafe fn transfer_words(dst: *mut u8, src: *const u8, n: usize) {
        for at in (0..n).step_by(8) {
            // SAFETY: `at + 8 <= n`, and both addresses are multiples of 8. The first atomic only
            // loads.
            unsafe {
                let word = AtomicU64::from_ptr(src.add(at).cast_mut().cast());
                let word = word.load(Ordering::Relaxed);
                AtomicU64::from_ptr(dst.add(at).cast()).store(word, Ordering::Relaxed);
            }
        }
    }

    /// Loads `n` bytes from racy memory. `n` and `src` are multiples of 8.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `n` bytes; they do not overlap.
    #[inline(always)]
    pub(super) unsafe fn load_words(src: *const u8, dst: *mut u8, n: usize) {
        for at in (0..n).step_by(8) {
            // SAFETY: `at + 8 <= n`, and `src + at` is a multiple of 8. The atomic only loads.
            unsafe {
                let word = AtomicU64::from_ptr(src.add(at).cast_mut().cast());
                dst.add(at).cast::<u64>().write_unaligned(word.load(Ordering::Relaxed));
            }
        }
    }

    /// Stores `n` bytes to racy memory. `n` and `dst` are multiples of 8.
    ///
    /// # Safety
    /// `dst` is writable and `src` readable for `n` bytes; they do not overlap.
    #[inline(always)]
    pub(super) unsafe fn store_words(dst: *mut u8, src: *const u8, n: usize) {
        for at in (0..n).step_by(8) {
            // SAFETY: `at + 8 <= n`, and `dst + at` is a multiple of 8.
            unsafe {
                let word = src.add(at).cast::<u64>().read_unaligned();
                AtomicU64::from_ptr(dst.add(at).cast()).store(word, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests each length around the unit sizes, at each alignment of either side.
    #[test]
    fn copies_move_exactly_the_bytes_named_at_any_alignment() {
        let step = if cfg!(miri) { 13 } else { 1 };
        for len in (0..200).step_by(step) {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (5, 7), (8, 4), (2, 6), (7, 1)] {
                let src: Vec<u8> = (0..220).map(|i| i as u8 ^ 0x5A).collect();
                let mut racy = [0u64; 32];
                let base = racy.as_mut_ptr().cast::<u8>();
                // SAFETY: `racy` has 256 bytes; `to + len` < 256; no reference to it is in use.
                unsafe { store(base.add(to), &src[from..from + len]) };
                let mut all = [0xEEu8; 256];
                // SAFETY: `racy` and `all` have 256 bytes; no reference to `racy` is in use.
                unsafe { load(base, &mut all) };
                assert_eq!(all[to..to + len], src[from..from + len], "len {len}, {from} to {to}");
                assert!(all[..to].iter().chain(&all[to + len..]).all(|&b| b == 0));

                let mut back = [0xEEu8; 256];
                // SAFETY: `to + len` and `from + len` are below 256; no reference to `racy` is in
                // use.
                unsafe { load(base.add(to), &mut back[from..from + len]) };
                assert_eq!(back[from..from + len], src[from..from + len]);
                assert!(back[..from].iter().chain(&back[from + len..]).all(|&b| b == 0xEE));
            }
        }
    }

    /// Tests each path of `transfer`: through a buffer, in words, in string moves.
    #[test]
    fn transfers_move_exactly_the_bytes_named_at_any_alignment() {
        let lens: &[usize] = match cfg!(miri) {
            true => &[0, 1, 9, 255, 263, 300],
            false => &[0, 1, 7, 8, 9, 255, 256, 257, 263, 300, 511, 2047, 2048, 2071, 9001],
        };
        for &len in lens {
            for (from, to) in
                [(0, 0), (0, 16), (16, 0), (1, 1), (7, 7), (1, 0), (0, 3), (5, 7), (8, 4)]
            {
                let mut src: Vec<u64> =
                    (0..1720).map(|i: u64| i.wrapping_mul(0x0123_4567_89AB_CDEF)).collect();
                let mut dst = vec![0u64; 1720];
                let page = |at: *mut u8| at.wrapping_add(at.align_offset(4096));
                let (src, dst) = (page(src.as_mut_ptr().cast()), page(dst.as_mut_ptr().cast()));
                let (mut want, mut got) = (vec![0; len], vec![0; 9600]);
                // SAFETY: both have 9600 bytes from the start of the page, and no reference to them
                // is in use.
                unsafe {
                    transfer(dst.add(to), src.add(from), len);
                    load(src.add(from), &mut want);
                    load(dst, &mut got);
                }
                assert!(got[to..to + len] == want, "len {len}, {from} to {to}");
                assert!(got[..to].iter().chain(&got[to + len..]).all(|&b| b == 0));
            }
        }
    }
}
