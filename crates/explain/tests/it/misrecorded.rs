//! Is no operation blamed for a tap that was only recorded wrongly, and every one that is wrong?

use firstdiff_compare::Status;
use firstdiff_explain::explain::{Effort, Explanation, Match};
use firstdiff_trace::{Site, Tap};

use crate::again::{changed, reshaped, values, with_effort};

/// The taps that are wrong, each once.
fn wrong(explanation: &Explanation) -> Vec<String> {
    let mut taps: Vec<String> = Vec::new();
    for tap in explanation.replay.taps.iter().filter(|t| t.report.status == Status::Diverged) {
        let name = tap.report.place.tap.to_string();
        if !taps.contains(&name) {
            taps.push(name);
        }
    }
    taps
}

/// No cause, no other tap that is wrong, and words that say so.
fn only_recorded_wrongly(explanation: &Explanation, taps: &[&str], readers: &str) {
    assert_eq!(wrong(explanation), taps);
    assert!(explanation.findings.iter().all(|f| f.matched == Match::Unknown && f.cause.is_none()));
    for finding in &explanation.findings {
        let named = finding.misrecorded.iter().any(|place| place.tap.to_string() == readers);
        assert!(named && finding.note.as_ref().unwrap().contains("not to be blamed"), "{finding:?}");
    }
    let found: Vec<String> = explanation.findings.iter().flat_map(|f| &f.taps).map(ToString::to_string).collect();
    assert_eq!(found, taps);
}

#[test]
fn what_a_buffer_held_too_early_or_another_one_blames_no_operation() {
    let torch = "golden/llama-torch";
    let zeros = changed("llama", torch, &|_, tap, _, x| Some(if tap.site == Site::V { vec![0.0; x.len()] } else { x }));
    only_recorded_wrongly(&zeros, &["layers.0.v", "layers.1.v"], "layers.0.context");
    let last = changed("llama", torch, &|dump, tap, step, x| {
        let other = Tap::layer(1, Site::V);
        Some(if tap == Tap::layer(0, Site::V) { values(dump, other, step) } else { x })
    });
    only_recorded_wrongly(&last, &["layers.0.v"], "layers.0.context");
    let exchanged = changed("llama", torch, &|dump, tap, step, x| {
        let other = |site| Some(values(dump, Tap { site, ..tap }, step));
        match tap.site {
            Site::FfnGate => other(Site::FfnUp),
            Site::FfnUp => other(Site::FfnGate),
            _ => Some(x),
        }
    });
    let taps = ["layers.0.ffn_gate", "layers.0.ffn_up", "layers.1.ffn_gate", "layers.1.ffn_up"];
    assert_eq!(wrong(&exchanged), taps);
    assert!(exchanged.findings.iter().all(|f| f.cause.is_none() && !f.misrecorded.is_empty()));
    let normed = changed("llama", torch, &|dump, tap, step, x| {
        let stream = Tap { layer: None, site: Site::H0 };
        Some(if tap == Tap::layer(0, Site::AttnNorm) { values(dump, stream, step) } else { x })
    });
    only_recorded_wrongly(&normed, &["layers.0.attn_norm"], "layers.0.k");
    let nan = changed("llama", torch, &|_, tap, step, mut x| {
        x[7] = if tap == Tap::layer(1, Site::FfnUp) && step == 0 { f32::NAN } else { x[7] };
        Some(x)
    });
    only_recorded_wrongly(&nan, &["layers.1.ffn_up"], "layers.1.ffn_act");
}

#[test]
fn one_value_that_nothing_was_made_of_is_still_wrong() {
    let explanation = changed("llama", "golden/llama-torch", &|_, tap, step, mut x| {
        if tap == Tap::layer(1, Site::AttnOut) && step == 0 {
            x[3] += 0.5;
        }
        Some(x)
    });
    only_recorded_wrongly(&explanation, &["layers.1.attn_out"], "layers.1.h_attn");
}

#[test]
fn what_was_made_of_the_wrong_value_is_a_mistake() {
    let real = changed("qwen3", "faulty/qwen3-weight-unset-layer1.npz", &|_, _, _, x| Some(x));
    let causes: Vec<&str> = real.findings.iter().filter_map(|f| Some(f.cause.as_ref()?.id)).collect();
    assert_eq!((causes, wrong(&real)), (vec!["weight-unset"], vec!["layers.1.attn_out".to_owned()]));
}

#[test]
fn where_nothing_that_reads_it_was_recorded_nothing_speaks_against_the_operation() {
    let explanation = changed("llama", "golden/llama-torch", &|_, tap, _, x| {
        let before = matches!(tap.site, Site::H0 | Site::AttnNorm | Site::Q | Site::K | Site::V);
        let zeros = vec![0.0; x.len()];
        (before && tap.layer.unwrap_or(0) == 0).then_some(if tap.site == Site::V { zeros } else { x })
    });
    let causes: Vec<&str> = explanation.findings.iter().filter_map(|f| Some(f.cause.as_ref()?.id)).collect();
    assert_eq!(causes, ["weight-unset"]);
}

/// Taps of all steps times a factor.
fn times<'f>(
    factors: &'f [(Site, f32)],
) -> impl Fn(&firstdiff_trace::Dump, Tap, u32, Vec<f32>) -> Option<Vec<f32>> + 'f {
    move |_, tap, _, x| {
        let factor = factors.iter().find(|(site, _)| *site == tap.site).map_or(1.0, |(_, factor)| *factor);
        Some(x.into_iter().map(|x| x * factor).collect())
    }
}

#[test]
fn a_factor_applied_in_another_place_is_no_mistake() {
    // As an engine that scales q, q and k, or the output of the projection before the products, and nothing after them.
    let ways: [&[(Site, f32)]; 3] = [
        &[(Site::QRope, 0.25), (Site::Qk, 0.25)],
        &[(Site::QRope, 0.5), (Site::KRope, 0.5), (Site::Qk, 0.25)],
        &[(Site::Q, 0.25), (Site::QRope, 0.25), (Site::Qk, 0.25)],
    ];
    for way in ways {
        let explanation = changed("llama", "golden/llama-torch", &times(way));
        let found: Vec<_> = explanation.findings.iter().map(|f| (f.cause.is_some(), f.measured.is_some())).collect();
        assert!(!found.is_empty() && found.iter().all(|f| *f == (false, false)), "{way:?}: {:?}", explanation.findings);
        for finding in &explanation.findings {
            assert!(finding.taken_back.iter().all(|place| place.tap.site == Site::Scores), "{finding:?}");
            assert!(!finding.taken_back.is_empty() && finding.note.as_ref().unwrap().contains("take"), "{finding:?}");
        }
        let scores = explanation.replay.taps.iter().filter(|t| t.report.place.tap.site == Site::Scores);
        assert!(scores.filter(|t| t.report.status != Status::Unchecked).all(|t| t.report.status.agrees()));
    }
}

#[test]
fn what_one_reader_was_made_of_and_the_others_were_not_is_taken_back_behind_it() {
    let explanation = changed("llama", "golden/llama-torch", &times(&[(Site::AttnNorm, 2.0), (Site::V, 2.0)]));
    assert!(!explanation.findings.is_empty());
    for finding in &explanation.findings {
        assert!(finding.taps.iter().all(|tap| tap.site == Site::AttnNorm) && !finding.taken_back.is_empty());
        assert!(finding.cause.is_none() && finding.misrecorded.is_empty(), "{finding:?}");
    }
}

#[test]
fn a_factor_that_is_not_taken_back_on_every_way_is_a_mistake() {
    // The products of q and k are right, and what goes on is twice too large in v.
    let explanation = changed("llama", "golden/llama-torch", &|dump, tap, step, x| {
        let before = matches!(tap.site, Site::AttnNorm | Site::Q | Site::K | Site::V | Site::QRope | Site::KRope);
        match tap.layer {
            Some(1) if before => times(&[(tap.site, 2.0)])(dump, tap, step, x),
            Some(1) => (tap.site == Site::Qk).then_some(x),
            layer => layer.or((tap.site == Site::H0).then_some(0)).map(|_| x),
        }
    });
    let blamed: Vec<Tap> =
        explanation.findings.iter().filter(|f| f.is_blamed()).flat_map(|f| f.taps.iter().copied()).collect();
    assert_eq!(blamed, [Tap::layer(1, Site::AttnNorm), Tap::layer(1, Site::Qk)]);
}

#[test]
fn a_tap_of_another_shape_does_not_hide_what_reads_it() {
    let cells = [Site::Qk, Site::Scores, Site::Probs];
    // A row of the decode step's keys is not written.
    let fewer = |_: &firstdiff_trace::Dump, tap: Tap, step: u32, mut x: Vec<f32>| {
        x.truncate(if cells.contains(&tap.site) && step == 1 { x.len() / 12 * 11 } else { x.len() });
        Some(x)
    };
    let shape = |tap: Tap, shape: &[usize]| match shape {
        [heads, 1, 12] if cells.contains(&tap.site) => vec![*heads, 1, 11],
        other => other.to_vec(),
    };
    let explanation = reshaped("llama", "golden/llama-torch", &fewer, &shape);
    let of = |site: Site| {
        let taps = explanation.replay.taps.iter().filter(move |t| t.report.place.step == 1);
        taps.filter(move |t| t.report.place.tap.site == site).map(|t| t.report.status).collect::<Vec<_>>()
    };
    assert_eq!((of(Site::Scores).len(), of(Site::Context).len()), (2, 2));
    assert!(of(Site::Scores).iter().all(|status| *status == Status::Unchecked));
    assert!(of(Site::Context).iter().all(|status| status.agrees()));
}

#[test]
fn an_open_fault_is_told_in_all_steps_in_which_it_shows() {
    let effort = Effort { seconds: 0.1, faults: 1, only: vec!["rope-theta".to_owned()], ..Effort::default() };
    let reversed = |_: &firstdiff_trace::Dump, tap: Tap, step: u32, mut x: Vec<f32>| {
        if step > 0 {
            x.reverse();
        }
        (tap.site == Site::Logits).then_some(x)
    };
    let explanation = with_effort("llama", "golden/llama-torch", &reversed, &effort);
    let [finding] = &explanation.findings[..] else { panic!("{:?}", explanation.findings) };
    let steps: Vec<u32> = finding.shown_at.iter().map(|place| place.step).collect();
    assert_eq!((finding.cause.is_some(), steps), (false, vec![1, 2, 3]));
}

/// No operation is blamed, and something is off.
fn nothing_is_blamed(explanation: &Explanation) {
    assert!(!explanation.findings.is_empty());
    for finding in &explanation.findings {
        assert!(!finding.is_blamed() && finding.cause.is_none() && finding.measured.is_none(), "{finding:?}");
    }
}

#[test]
fn a_run_that_is_right_at_its_end_took_back_what_is_off_before() {
    let torch = "golden/llama-torch";
    // Nothing between the queries and the end, in which the factor could be seen to be taken back.
    let few = changed("llama", torch, &|dump, tap, step, x| {
        matches!(tap.site, Site::Q | Site::Logits).then(|| times(&[(Site::Q, 0.25)])(dump, tap, step, x).unwrap())
    });
    nothing_is_blamed(&few);
    // The last position of the prompt alone: the keys of the others are not known.
    let scaled = [(Site::QRope, 0.25), (Site::Qk, 0.25)];
    nothing_is_blamed(&crate::again::last_rows("llama", torch, |_| {}, &times(&scaled)));
    // Values that are twice as large up to the projection that has half the weights.
    let values = changed("llama", torch, &times(&[(Site::V, 2.0), (Site::Context, 2.0)]));
    nothing_is_blamed(&values);
    // In decoding alone, as where the prompt was run by other code.
    let decoded = changed("llama", torch, &|dump, tap, step, x| {
        (step > 0).then(|| times(&[(Site::Q, 0.5), (Site::QRope, 0.5), (Site::Qk, 0.5)])(dump, tap, step, x).unwrap())
    });
    nothing_is_blamed(&decoded);
}

#[test]
fn what_the_end_does_not_see_is_a_mistake() {
    // The end is the last position, and the queries of another are wrong in the last layer: nothing that is recorded behind them is made of those.
    let explanation = changed("llama", "golden/llama-torch", &|_, tap, step, mut x| {
        let kept = matches!(tap.site, Site::H0 | Site::AttnNorm | Site::Q | Site::K | Site::V) && step == 0;
        if tap == Tap::layer(1, Site::Q) {
            let row = x.len() / 11;
            x[row..2 * row].iter_mut().for_each(|x| *x *= 2.0);
        }
        kept.then_some(x)
    });
    let blamed: Vec<Tap> =
        explanation.findings.iter().filter(|f| f.is_blamed()).flat_map(|f| f.taps.iter().copied()).collect();
    assert_eq!(blamed, [Tap::layer(1, Site::Q)]);
}

/// Values of a rotated tap whose tokens stand `by` positions further on: halves of a head are turned again.
fn turned(x: &[f32], head_dim: usize, theta: f64, by: f64) -> Vec<f32> {
    let half = head_dim / 2;
    let turn = |head: &[f32]| -> Vec<f32> {
        let part = |at: usize, first: bool| {
            let (sin, cos) = (by * theta.powf(-(at as f64) / half as f64)).sin_cos();
            let (a, b) = (f64::from(head[at]), f64::from(head[at + half]));
            (if first { a * cos - b * sin } else { b * cos + a * sin }) as f32
        };
        (0..half).map(|at| part(at, true)).chain((0..half).map(|at| part(at, false))).collect()
    };
    x.chunks(head_dim).flat_map(turn).collect()
}

/// Positions that q and k share do no harm, and are named all the same; of one of them alone nothing else comes out right.
#[test]
fn positions_that_q_and_k_share_are_named() {
    let model = firstdiff_model::load(crate::common::fixtures().join("models/qwen2")).unwrap();
    let is_rope = |step: &&firstdiff_model::Step| matches!(step.op, firstdiff_model::Op::Rope(_));
    let Some(firstdiff_model::Op::Rope(rope)) = model.plan.steps.iter().find(is_rope).map(|step| &step.op) else {
        panic!("qwen2 rotates")
    };
    let (theta, head_dim) = (rope.theta, model.plan.dims.head_dim);
    let moved = |by: f64, sites: &'static [Site]| {
        changed("qwen2", "golden/qwen2-torch.npz", &|_, tap, _, x| {
            Some(if sites.contains(&tap.site) { turned(&x, head_dim, theta, by) } else { x })
        })
    };
    for by in [1.0, 5.0] {
        let both = moved(by, &[Site::QRope, Site::KRope]);
        let [finding] = &both.findings[..] else { panic!("{:#?}", both.findings) };
        let cause = finding.cause.as_ref().unwrap();
        assert_eq!((cause.id, cause.params[0].1.as_f64()), ("rope-position", Some(by)));
        assert!(!finding.is_blamed() && finding.note.as_ref().unwrap().starts_with("harmless"), "{finding:#?}");
        assert_eq!(finding.taps.len(), 4);
    }
    let one = moved(1.0, &[Site::QRope]);
    assert!(one.findings.iter().all(|finding| finding.cause.is_none() && !finding.is_blamed()), "{:#?}", one.findings);
}

/// A norm behind the rotation is found whatever is recorded of it, and under whichever name.
#[test]
fn a_norm_behind_the_rotation_is_found_where_it_was_not_recorded() {
    let is_norm = |tap: Tap| matches!(tap.site, Site::QNorm | Site::KNorm);
    let normed = |dump: &firstdiff_trace::Dump, tap: Tap, step: u32, x: Vec<f32>| match tap.site {
        Site::QRope => values(dump, Tap { site: Site::QNorm, ..tap }, step),
        Site::KRope => values(dump, Tap { site: Site::KNorm, ..tap }, step),
        _ => x,
    };
    let fault = "faulty/qwen3-qk-norm-order.npz";
    let ways: [crate::again::Change<'_>; 5] = [
        &|_, _, _, x| Some(x),
        &|_, tap, _, x| (!is_norm(tap)).then_some(x),
        &|_, tap, _, x| (tap.site != Site::KNorm).then_some(x),
        &|dump, tap, step, x| (!is_norm(tap)).then(|| normed(dump, tap, step, x)),
        &|dump, tap, step, x| Some(normed(dump, tap, step, x)),
    ];
    for (at, way) in ways.into_iter().enumerate() {
        let found = changed("qwen3", fault, way);
        let causes: Vec<Option<&str>> = found.findings.iter().map(|f| f.cause.as_ref().map(|c| c.id)).collect();
        assert_eq!(causes, [Some("qk-norm-order")], "{at}: {:#?}", found.findings);
    }
    let right = changed("qwen3", "golden/qwen3-torch.safetensors", &|_, tap, _, x| (!is_norm(tap)).then_some(x));
    assert!(right.findings.is_empty(), "{:#?}", right.findings);
}

/// A norm that is left out is not done later, where the products of what was turned are right.
#[test]
fn what_is_left_out_is_not_done_later_where_what_reads_it_is_right() {
    let kept = [Site::H0, Site::AttnNorm, Site::Q, Site::K, Site::QRope, Site::KRope];
    let (heads, kv_heads, width) = (6, 2, 16);
    let products = |q: &[f32], k: &[f32]| -> Vec<f32> {
        let tokens = q.len() / (heads * width);
        let row = |x: &[f32], at: usize| x[at * width..][..width].to_vec();
        let dot = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(b)).sum::<f64>();
        let places = (0..heads).flat_map(|h| (0..tokens).flat_map(move |t| (0..tokens).map(move |s| (h, t, s))));
        let of = |(h, t, s)| dot(row(q, t * heads + h), row(k, s * kv_heads + h * kv_heads / heads)) as f32;
        places.map(of).collect()
    };
    let found = changed("qwen3", "faulty/qwen3-qk-norm-order.npz", &|dump, tap, step, x| {
        let turned = [Site::QRope, Site::KRope].map(|site| Tap { site, ..tap });
        match tap.site {
            _ if step > 0 => None,
            Site::Qk => Some(products(&values(dump, turned[0], step), &values(dump, turned[1], step))),
            site => kept.contains(&site).then_some(x),
        }
    });
    let causes = |finding: &firstdiff_explain::explain::Finding| -> Vec<&str> {
        finding.cause.iter().chain(&finding.alternatives).map(|cause| cause.id).collect()
    };
    assert!(found.replay.taps.iter().any(|t| t.report.place.tap.site == Site::Qk && t.report.status.agrees()));
    assert!(!found.findings.is_empty());
    let all: Vec<&str> = found.findings.iter().flat_map(causes).collect();
    assert!(all.iter().all(|id| *id == "norm-omitted"), "{all:?}: {:#?}", found.findings);
}
