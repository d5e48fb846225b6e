//! Is a Plan said as a program the same model, and what does its program name?

use std::collections::BTreeSet;

use firstdiff_compare::Status;
use firstdiff_explain::explain::{Effort, Explanation, Match, Options};
use firstdiff_explain::model;
use firstdiff_model::{Model, ModelError, Profile, Prompt, TapValues, load, run};
use firstdiff_program::{Arithmetic, Evaluator, Program};
use firstdiff_trace::{Dump, Meta, Site, Tap};

use crate::again::{Change, recorded, values};
use crate::common::{fixtures, precision};

const TOKENS: [u32; 11] = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5];
const DECODED: [u32; 2] = [23, 108];

/// The largest NMSE of a tap that the program gives and the model's own run gives otherwise.
fn apart(model: &Model) -> f64 {
    let steps: Vec<Vec<u32>> = std::iter::once(TOKENS.to_vec()).chain(DECODED.map(|id| vec![id])).collect();
    let program = Program::of_model(model, &steps);
    let mut evaluator = Evaluator::new(&program, Arithmetic::F64, &model.weights);
    let (mut made, mut step) = (Vec::new(), 0);
    while step < steps.len() {
        let mut keep = |found: firstdiff_program::TapValue<'_>| {
            made.push((found.tap.to_owned(), step as u32, found.value.to_floats().into_owned()));
        };
        evaluator.run_step(step, &mut keep).unwrap();
        step += 1;
    }
    let (mut most, mut count) = (0f64, 0);
    let prompt = Prompt { tokens: &TOKENS, decode_tokens: &DECODED };
    let compare = |tap: firstdiff_trace::Tap, step: u32, values: TapValues<'_>| {
        let TapValues::F64(right) = values else { return Ok::<(), ModelError>(()) };
        let name = tap.to_string();
        let own = &made.iter().find(|(own, at, _)| *own == name && *at == step).expect("every tap").2;
        assert_eq!(own.len(), right.len(), "{name}");
        let (mut error, mut energy) = (0.0, 0.0);
        for (own, right) in own.iter().zip(right.iter()).filter(|(_, right)| right.is_finite()) {
            (error, energy) = (error + (own - right).powi(2), energy + right.powi(2));
        }
        most = most.max(error / energy);
        count += 1;
        Ok(())
    };
    run(&model.plan, &model.weights, prompt, Profile::Exact, |_| true, compare).unwrap();
    assert_eq!(count, made.len());
    most
}

#[test]
fn a_plan_said_as_a_program_gives_the_same_values() {
    for name in ["models/llama", "models/mistral", "models/qwen2", "models/qwen3", "models/minimind"] {
        let most = apart(&load(fixtures().join(name)).unwrap());
        assert!(most < 1e-24, "{name}: {most:e}");
    }
    for file in std::fs::read_dir(fixtures().join("gguf")).unwrap() {
        let path = file.unwrap().path();
        let most = apart(&load(&path).unwrap());
        assert!(most < 1e-24, "{}: {most:e}", path.display());
    }
}

fn causes(explanation: &Explanation) -> BTreeSet<&'static str> {
    let stated = explanation.findings.iter().filter(|f| f.matched == Match::Reproduced);
    stated.filter_map(|f| Some(f.cause.as_ref()?.id)).collect()
}

/// What the program of a model finds in a dump that is recorded again with changes, under other shapes.
fn again(
    model: &str,
    dump: &str,
    say: impl Fn(&mut Meta),
    change: Change<'_>,
    shaped: &dyn Fn(Tap, &[usize]) -> Vec<usize>,
) -> Explanation {
    let (_folder, dump) = recorded(dump, say, change, false, shaped);
    let options = Options::declared(&dump, precision(&dump)).unwrap();
    let model = load(fixtures().join("models").join(model)).unwrap();
    model::explain(&model, &dump, &options, &Effort { seconds: 2.0, ..Effort::default() }, &|_, _, _| {}).unwrap()
}

/// A matrix that is read the wrong way around, of an operation that forgets its bias as well: two mistakes in one operation.
#[test]
fn two_mistakes_in_one_operation_are_both_named() {
    let model = load(fixtures().join("models/qwen2")).unwrap();
    let q: Tap = "layers.0.q".parse().unwrap();
    let weight = model.weights.view(model.plan.step(q).unwrap().weights[0]).unwrap();
    let &[out, width] = weight.shape() else { panic!("a matrix") };
    let bytes = weight.rows::<f32>(0..out).into_raw_vec_and_offset().0;
    let product = |x: &[f32]| (0..out).map(|o| (0..width).map(|i| x[i] * bytes[i * out + o]).sum()).collect();
    let change = |dump: &Dump, tap: Tap, step: u32, x: Vec<f32>| match tap.site {
        _ if step > 0 || tap.layer != Some(0) => None,
        Site::AttnNorm => Some(x),
        Site::Q => {
            let normed = values(dump, Tap::layer(0, Site::AttnNorm), 0);
            Some(normed.chunks(width).flat_map(|x| -> Vec<f32> { product(x) }).collect())
        }
        _ => None,
    };
    let found = again("qwen2", "golden/qwen2-torch.npz", |_| {}, &change, &|_, shape| shape.to_vec());
    assert_eq!(causes(&found), BTreeSet::from(["bias-omitted", "weight-transposed"]));
}

/// gate and up as gpt-oss has them: one mistake, and not two that come to the same below its limit.
#[test]
fn the_gate_of_gpt_oss_is_one_mistake() {
    let change = |dump: &Dump, tap: Tap, step: u32, x: Vec<f32>| {
        let of = |site| values(dump, Tap { site, ..tap }, step);
        match tap.site {
            _ if tap.layer != Some(0) || step > 0 => None,
            Site::FfnGate | Site::FfnUp => Some(x),
            Site::FfnAct => {
                let product = |(gate, up): (f32, f32)| gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0);
                Some(of(Site::FfnGate).into_iter().zip(of(Site::FfnUp)).map(product).collect())
            }
            _ => None,
        }
    };
    let found = again("llama", "golden/llama-torch", |_| {}, &change, &|_, shape| shape.to_vec());
    let [finding] = &found.findings[..] else { panic!("{:?}", found.findings) };
    let cause = finding.cause.as_ref().unwrap();
    assert_eq!((cause.id, &cause.params[0].1), ("activation-clamp", &serde_json::json!("gpt-oss")));
}

/// Scores that were recorded before they were masked are right where the probabilities are; a NaN among them never is.
#[test]
fn scores_recorded_before_the_mask_are_right() {
    let recorded = |hole: bool| {
        let change = move |dump: &Dump, tap: Tap, step: u32, x: Vec<f32>| match tap.site {
            _ if tap.layer != Some(0) || step > 0 => None,
            Site::Scores => {
                let mut open: Vec<f32> =
                    values(dump, Tap { site: Site::Qk, ..tap }, 0).iter().map(|x| x * 0.25).collect();
                let hidden = x.iter().position(|x| !x.is_finite()).expect("a masked key");
                open[hidden] = if hole { f32::NAN } else { open[hidden] };
                Some(open)
            }
            Site::Qk | Site::Probs => Some(x),
            _ => None,
        };
        again("llama", "golden/llama-torch", |_| {}, &change, &|_, shape| shape.to_vec())
    };
    let right = recorded(false);
    assert!(right.findings.is_empty() && right.replay.taps.iter().all(|t| t.report.status != Status::Diverged));
    assert!(right.replay.warnings.iter().any(|note| note.contains("before they were masked")));
    assert!(recorded(true).replay.taps.iter().any(|t| t.report.status == Status::Diverged));
}
