//! The counter of ticks that a processor has beside the kernel's clock.

/// Returns the processor's counter of ticks; 0 on processors whose counter is not known here.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: the instruction only reads a register. Programs may execute it unless the process
    // has asked the kernel for a signal in its place (PR_SET_TSC), which breaks the kernel's own
    // clock in the vDSO in the same way.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}
