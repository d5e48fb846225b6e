//! Does any file make the gguf reader panic, abort, or allocate what it does not hold?
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = firstdiff_model::check_gguf(bytes);
});
