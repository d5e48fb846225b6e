//! Where are the fixtures, and in what arithmetic does a dump say it was made?

use std::path::{Path, PathBuf};

use firstdiff_model::Profile;
use firstdiff_trace::Dump;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The profile of dump.json's `precision`, of those that the fixtures have.
pub(crate) fn precision(dump: &Dump) -> Profile {
    match dump.meta().precision.as_deref() {
        Some("f16") => Profile::F16,
        Some("bf16") => Profile::Bf16,
        _ => Profile::F32,
    }
}
