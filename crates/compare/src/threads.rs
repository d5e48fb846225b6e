//! Shares work among the threads of the current rayon pool, where the feature `threads` is on. Results stand in order, so the numbers are the same without.

/// `f` of every number below `count`.
pub(crate) fn map<T: Send>(count: usize, f: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
    #[cfg(feature = "threads")]
    {
        use rayon::prelude::*;
        // Few at a time: one tap may take longer than a hundred others.
        (0..count).into_par_iter().with_max_len(1 + count / 256).map(f).collect()
    }
    #[cfg(not(feature = "threads"))]
    (0..count).map(f).collect()
}
