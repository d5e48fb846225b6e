//! Is it another arithmetic, and no mistake? The step as it should be, in every other profile.

use firstdiff_model::{Cache, Profile};
use serde_json::json;

use super::List;

pub(super) fn listed(list: &mut List<'_>) {
    let others = [
        ("bf16", Profile::Bf16),
        ("f16", Profile::F16),
        ("ggml", Profile::Ggml { cache: Cache::F32 }),
        ("ggml, f16 cache", Profile::Ggml { cache: Cache::F16 }),
        ("f32", Profile::F32),
    ];
    for (name, profile) in others {
        list.add("precision", vec![("format", json!(name))], move |at| match at.profile {
            Profile::Exact => at.right(),
            own => (own != profile).then(|| at.run_as(profile, at.step, at.inputs))?,
        });
    }
}
