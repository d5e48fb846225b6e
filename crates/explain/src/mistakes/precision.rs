//! Is it another arithmetic, and no mistake? The step as it should be, in every other profile.

use firstdiff_model::{Cache, Half, Op, Profile};
use serde_json::json;

use super::{At, List};

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
    if matches!(list.step.op, Op::Linear { .. } | Op::Head) {
        let formats = [
            ("f16 weights", Half::F16, false),
            ("bf16 weights", Half::BF16, false),
            ("f16 weights and inputs", Half::F16, true),
            ("bf16 weights and inputs", Half::BF16, true),
        ];
        for (name, half, inputs_too) in formats {
            let round = move |x: f32| half.round(x);
            list.add("precision", vec![("format", json!(name))], move |at| {
                if at.profile == Profile::Exact {
                    return at.right();
                }
                let read = |x: f64| if inputs_too { f64::from(round(x as f32)) } else { x };
                let inputs = [at.input(0)?.mapv(read)];
                let shape = at.matrix_shape()?;
                let rounded = |flat: &[f32], row: &mut [f32], o: usize| {
                    row.iter_mut().zip(&flat[o * shape[1]..]).for_each(|(to, &x)| *to = round(x));
                };
                At { inputs: &inputs, ..*at }.product(rounded, shape)
            });
        }
    }
}
