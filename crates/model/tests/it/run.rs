//! Checks that a run gives exactly the wanted taps, with the same bits for any number of threads and for each step run alone.

use std::collections::{BTreeMap, HashMap};

use firstdiff_model::{Chunk, Model, ModelError, Profile, Prompt, TapValues, eval_step, load, run};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis, concatenate};

const TOKENS: [u32; 9] = [1, 17, 42, 99, 3, 150, 77, 17, 128];
const DECODE: [u32; 2] = [23, 108];
const PROMPT: Prompt<'static> = Prompt { tokens: &TOKENS, decode_tokens: &DECODE };

type Taps = BTreeMap<(u32, Tap), ArrayD<f32>>;

fn record(model: &Model, wanted: impl Fn(Tap) -> bool) -> Taps {
    let mut taps = Taps::new();
    run::<ModelError>(&model.plan, &model.weights, PROMPT, Profile::F32, wanted, |tap, step, values| {
        let TapValues::F32(values) = values else { panic!("the profile f32 gives f32") };
        assert!(taps.insert((step, tap), values.to_owned()).is_none(), "{tap} came twice");
        Ok(())
    })
    .unwrap();
    taps
}

#[track_caller]
fn same_bits(expected: &ArrayD<f32>, actual: &ArrayD<f32>, tap: Tap) {
    assert_eq!(expected.shape(), actual.shape(), "{tap}");
    assert!(expected.iter().zip(actual).all(|(e, a)| e.to_bits() == a.to_bits()), "{tap}");
}

#[test]
fn threads_do_not_matter() {
    let model = load(crate::common::fixture("qwen3")).unwrap();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| record(&model, |_| true))
    };
    let one = with(1);
    for threads in [2, 3] {
        for ((key, expected), (other, actual)) in one.iter().zip(&with(threads)) {
            assert_eq!(key, other);
            same_bits(expected, actual, key.1);
        }
    }
}

#[test]
fn a_step_alone_gives_the_bits_of_the_run() {
    for family in ["llama", "mistral", "qwen2", "qwen3", "minimind"] {
        let model = load(crate::common::fixture(family)).unwrap();
        let taps = record(&model, |_| true);
        let chunks = [(&TOKENS[..], 0), (&DECODE[..1], TOKENS.len()), (&DECODE[1..], TOKENS.len() + 1)];
        for (number, (tokens, start)) in (0..).zip(chunks) {
            for step in &model.plan.steps {
                let inputs: Vec<ArrayD<f32>> = step
                    .reads
                    .iter()
                    .map(|&tap| {
                        let from = if step.cached() == Some(tap) { 0 } else { number };
                        let rows: Vec<_> = (from..=number).map(|n| taps[&(n, tap)].view()).collect();
                        concatenate(Axis(0), &rows).unwrap()
                    })
                    .collect();
                let views: Vec<_> = inputs.iter().map(|input| input.view()).collect();
                let actual = eval_step(step, &views, Chunk { tokens, start }, &model.weights).unwrap();
                same_bits(&taps[&(number, step.tap)], &actual, step.tap);
            }
        }
    }
}

#[test]
fn only_what_is_asked_for_comes() {
    let model = load(crate::common::fixture("mistral")).unwrap();
    let all = record(&model, |_| true);
    let some = record(&model, |tap| tap.matches("layers.1.q*,layers.0.probs"));
    let names: Vec<String> = some.keys().map(|(step, tap)| format!("{step} {tap}")).collect();
    assert_eq!(names[..4], ["0 layers.0.probs", "0 layers.1.q", "0 layers.1.q_rope", "0 layers.1.qk"]);
    assert_eq!(names.len(), 12);
    for (key, actual) in &some {
        same_bits(&all[key], actual, key.1);
    }
    assert!(record(&model, |_| false).is_empty());
}

#[test]
fn attention_that_nobody_looks_into_gives_the_same_bits() {
    for family in ["llama", "mistral", "qwen2", "qwen3", "minimind"] {
        let model = load(crate::common::fixture(family)).unwrap();
        let all = record(&model, |_| true);
        for (key, actual) in &record(&model, |tap| matches!(tap.site, Site::Context | Site::Logits)) {
            same_bits(&all[key], actual, key.1);
        }
    }
}

#[test]
fn a_sink_that_fails_ends_the_run() {
    #[derive(Debug)]
    struct Full;
    impl From<ModelError> for Full {
        fn from(error: ModelError) -> Full {
            panic!("{error}")
        }
    }
    let model = load(crate::common::fixture("llama")).unwrap();
    let mut count = 0;
    let outcome = run(
        &model.plan,
        &model.weights,
        PROMPT,
        Profile::Exact,
        |_| true,
        |_, _, _| {
            count += 1;
            if count == 5 { Err(Full) } else { Ok(()) }
        },
    );
    assert!(outcome.is_err());
    assert_eq!(count, 5);
}

/// A Plan is data: an edited one runs, here without RoPE on the keys.
#[test]
fn an_edited_plan_runs() {
    let model = load(crate::common::fixture("llama")).unwrap();
    let mut plan = model.plan.clone();
    let (k, k_rope) = (Tap::layer(0, Site::K), Tap::layer(0, Site::KRope));
    let step = plan.steps.iter_mut().find(|step| step.tap == Tap::layer(0, Site::Qk)).unwrap();
    assert_eq!(step.reads[1], k_rope);
    step.reads[1] = k;
    let shapes = |plan| {
        let mut shapes = HashMap::new();
        run::<ModelError>(
            plan,
            &model.weights,
            PROMPT,
            Profile::Exact,
            |_| true,
            |tap, step, values| {
                let TapValues::F64(values) = values else { panic!("the profile exact gives f64") };
                shapes.insert((tap, step), (values.shape().to_vec(), values.sum()));
                Ok(())
            },
        )
        .unwrap();
        shapes
    };
    let (right, wrong) = (shapes(&model.plan), shapes(&plan));
    for (key, (shape, _)) in &right {
        assert_eq!(*shape, wrong[key].0, "{}", key.0);
    }
    for step in 0..3 {
        assert_eq!(right[&(k_rope, step)], wrong[&(k_rope, step)]);
        assert_ne!(right[&(Tap::layer(0, Site::Qk), step)], wrong[&(Tap::layer(0, Site::Qk), step)]);
    }
}

#[test]
fn a_plan_that_reads_what_is_not_there_is_refused() {
    let model = load(crate::common::fixture("llama")).unwrap();
    let mut plan = model.plan.clone();
    plan.steps.retain(|step| step.tap != Tap::layer(0, Site::Q));
    let outcome: Result<(), ModelError> = run(&plan, &model.weights, PROMPT, Profile::F32, |_| true, |_, _, _| Ok(()));
    let message = outcome.unwrap_err().to_string();
    assert_eq!(message, "layers.0.q_rope: reads layers.0.q, which no step before it produces");
}

/// Replay runs a step on recorded inputs, whatever their shape.
#[test]
fn inputs_of_other_shapes_are_refused() {
    let model = load(crate::common::fixture("qwen3")).unwrap();
    let shapes: [&[usize]; 8] = [&[], &[0], &[3], &[3, 48], &[3, 0], &[2, 3, 16], &[0, 6, 16], &[3, 2, 1, 7]];
    let arrays = shapes.map(ArrayD::<f64>::zeros);
    let chunk = Chunk { tokens: &[1, 2, 3], start: 5 };
    for step in &model.plan.steps {
        for first in &arrays {
            for second in &arrays {
                let inputs = [first.view(), second.view()];
                for count in 0..=2 {
                    if let Err(error) = eval_step(step, &inputs[..count], chunk, &model.weights) {
                        assert!(error.to_string().starts_with(&step.tap.to_string()), "{error}");
                    }
                }
            }
        }
    }
    let beyond = Chunk { tokens: &[151], start: 0 };
    let embedding = eval_step::<f64>(&model.plan.steps[0], &[], beyond, &model.weights);
    assert!(matches!(embedding, Err(ModelError::Token { token: 151, vocab: 151, .. })));
}
