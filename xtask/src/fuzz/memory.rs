//! How much memory does the reading of one input take? An allocator that counts what this thread holds, and the most it held.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counted.
pub(crate) struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(by: isize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get() + by);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new are held at once while it is copied.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The most bytes that `work` held at once, beyond those held before it.
pub(super) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let out = work();
    (out, usize::try_from(PEAK.get() - before).unwrap_or(0))
}
