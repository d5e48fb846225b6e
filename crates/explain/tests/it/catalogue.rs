//! Is a mistake tried wherever it can be made, and by every name it has? And is it said not to show only where it could not?

use firstdiff_explain::explain::{Explanation, Match};
use firstdiff_trace::{Dump, Site, Tap};

use crate::again::{changed, values};

/// The causes that are stated, each with its parameters.
fn causes(explanation: &Explanation) -> Vec<String> {
    let stated = explanation.findings.iter().filter(|f| f.matched == Match::Reproduced);
    let params = |f: &firstdiff_explain::explain::Finding| {
        let cause = f.cause.as_ref().unwrap();
        let params: Vec<String> = cause.params.iter().map(|(name, value)| format!(" {name} {value}")).collect();
        format!("{}{}", cause.id, params.concat())
    };
    stated.map(params).collect()
}

/// The feed-forward of layer 0 with its products made by `product` of gate and up.
fn products(product: impl Fn(f32, f32) -> f32) -> Explanation {
    changed("llama", "golden/llama-torch", &|dump, tap, step, x| {
        let of = |site| values(dump, Tap { site, ..tap }, step);
        match tap.site {
            _ if tap.layer != Some(0) || step > 0 => None,
            Site::FfnAct => {
                Some(of(Site::FfnGate).into_iter().zip(of(Site::FfnUp)).map(|(g, u)| product(g, u)).collect())
            }
            Site::HAttn | Site::FfnNorm | Site::FfnGate | Site::FfnUp => Some(x),
            _ => None,
        }
    })
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

#[test]
fn clamps_are_found_with_their_limit_and_as_gpt_oss_has_them() {
    let limited = products(|g, u| silu(g.min(1.5)) * u.clamp(-1.5, 1.5));
    assert_eq!(causes(&limited), ["activation-clamp limit 1.5"]);
    let whole = products(|g, u| {
        let g = g.min(7.0);
        g / (1.0 + (-1.702 * g).exp()) * (u.clamp(-7.0, 7.0) + 1.0)
    });
    assert_eq!(causes(&whole), ["activation-clamp kind \"gpt-oss\""]);
    let where_made = changed("llama", "golden/llama-torch", &|_, tap, step, x| match tap.site {
        Site::FfnUp if step == 0 => Some(x.into_iter().map(|x| x.clamp(-1.5, 1.5)).collect()),
        Site::FfnNorm if step == 0 => Some(x),
        _ => None,
    });
    assert!(causes(&where_made).contains(&"activation-clamp limit 1.5".to_owned()), "{:?}", causes(&where_made));
}

/// Another width is nearly a factor of the norm's output, but for its epsilon.
#[test]
fn a_factor_of_a_norm_is_no_other_width() {
    let halved = changed("llama", "golden/llama-torch", &|_, tap, step, x| match tap.site {
        _ if step > 0 || tap.layer != Some(0) => None,
        Site::FfnNorm => Some(x.into_iter().map(|x| 0.5 * x).collect()),
        Site::HAttn => Some(x),
        _ => None,
    });
    assert_eq!(causes(&halved), ["result-scaled factor 0.5"]);
}

/// One value that is too small would be its own limit.
#[test]
fn one_value_is_no_limit() {
    let one = products(|g, u| if u > 2.9 { 0.9 * silu(g) * u } else { silu(g) * u });
    assert!(causes(&one).is_empty(), "{:?}", causes(&one));
}

#[test]
fn what_a_wrong_operation_might_have_shown_is_not_said_to_be_hidden() {
    // The cache shows where decoded tokens read it: there, all is of something else.
    let explanation = changed("llama", "golden/llama-torch", &|_, tap, step, x| {
        let read = matches!(tap.site, Site::Qk | Site::Context) && step > 0;
        Some(x.into_iter().enumerate().map(|(i, x)| if read && i % 3 == 0 { 1.5 * x } else { x }).collect())
    });
    assert!(!explanation.not_testable.iter().any(|id| id.starts_with("kv-cache")), "{:?}", explanation.not_testable);
}

/// e^x over the sum of it, in rows of `keys`, what `round` makes of it.
fn softmaxed(scores: &[f32], keys: usize, round: fn(f32) -> f32) -> Vec<f32> {
    let row = |row: &[f32]| {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|x| (x - top).exp()).sum();
        row.iter().map(|x| round((x - top).exp() / sum)).collect::<Vec<f32>>()
    };
    scores.chunks(keys).flat_map(row).collect()
}

fn kept(x: f32) -> f32 {
    x
}

/// As bf16 has it.
fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// The scores of a prefill with their mask filled otherwise, and the probabilities of that. `open` is what the scores are without a mask.
fn filled(scores: &[f32], open: &[f32], fill: impl Fn(f32) -> f32) -> Vec<f32> {
    scores.iter().zip(open).map(|(s, open)| if *s > -1e4 { *s } else { fill(*open) }).collect()
}

/// What is explained of a run whose masked scores hold `fill` of what they would be; of layer 0 up to its probabilities, without `unrecorded`.
fn with_fill(dump: &str, unrecorded: &[Site], round: fn(f32) -> f32, fill: fn(f32) -> f32) -> Explanation {
    changed("llama", dump, &|dump, tap, step, x| {
        let of = |site| values(dump, Tap { site, ..tap }, step);
        let leaking = || {
            let open: Vec<f32> = of(Site::Qk).into_iter().map(|x| round(x * 0.25)).collect();
            filled(&of(Site::Scores), &open, |x| round(fill(x)))
        };
        match tap.site {
            _ if step > 0 || tap.layer == Some(1) || unrecorded.contains(&tap.site) => None,
            Site::Scores => Some(leaking()),
            Site::Probs => Some(softmaxed(&leaking(), 11, round)),
            Site::H0 | Site::AttnNorm | Site::Q | Site::K | Site::QRope | Site::KRope | Site::Qk => Some(x),
            _ => None,
        }
    })
}

#[track_caller]
fn names_the_fill(explanation: &Explanation, due: f64, how: &str) {
    let [finding] = &explanation.findings[..] else { panic!("{:?}", explanation.findings) };
    let cause = finding.cause.as_ref().unwrap_or_else(|| panic!("{finding:?}"));
    let said = |name: &str| cause.params.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
    assert_eq!(cause.id, "mask-fill");
    let fill = said("fill").and_then(|value| value.as_f64()).unwrap();
    assert!((fill - due).abs() < 5e-3 * due.abs(), "{fill} for {due}");
    assert_eq!(said("how").unwrap(), how);
}

#[test]
fn a_masks_fill_is_read_off_the_scores_whatever_it_is() {
    let torch = "golden/llama-torch";
    names_the_fill(&with_fill(torch, &[], kept, |_| -16.0), -16.0, "replaced");
    names_the_fill(&with_fill(torch, &[], kept, |_| -3.37), -3.37, "replaced");
    names_the_fill(&with_fill(torch, &[], kept, |x| x - 10.0), -10.0, "added");
    names_the_fill(&with_fill(torch, &[Site::Probs], kept, |_| -16.0), -16.0, "replaced");
    names_the_fill(&with_fill("right/llama-torch-bf16.npz", &[], bf16, |_| -7.0), -7.0, "replaced");
}

#[test]
fn a_masks_fill_is_read_off_the_probabilities_where_no_scores_were_recorded() {
    let torch = "golden/llama-torch";
    names_the_fill(&with_fill(torch, &[Site::Scores], kept, |_| -16.0), -16.0, "replaced");
    names_the_fill(&with_fill(torch, &[Site::Scores], kept, |x| x - 10.0), -10.0, "added");
}

#[test]
fn a_fill_that_leaves_nothing_is_no_mistake() {
    for fill in [-1e4, -1e9, -65504.0, f32::MIN] {
        let right = with_fill(
            "golden/llama-torch",
            &[],
            kept,
            match fill {
                -1e4 => |_| -1e4,
                -1e9 => |_| -1e9,
                -65504.0 => |_| -65504.0,
                _ => |_| f32::MIN,
            },
        );
        assert!(right.findings.is_empty(), "{fill}: {:?}", right.findings);
    }
}

/// Scores recorded before the softmax's own mask, which leaks: the scores are right.
#[test]
fn a_fill_within_the_softmax_is_the_softmaxs_mistake() {
    let explanation = changed("llama", "golden/llama-torch", &|dump, tap, step, x| {
        let of = |site| values(dump, Tap { site, ..tap }, step);
        let open = || of(Site::Qk).into_iter().map(|x| x * 0.25).collect::<Vec<f32>>();
        match tap.site {
            _ if step > 0 || tap.layer == Some(1) => None,
            Site::Scores => Some(open()),
            Site::Probs => Some(softmaxed(&filled(&of(Site::Scores), &open(), |_| -16.0), 11, kept)),
            Site::Qk => Some(x),
            _ => None,
        }
    });
    names_the_fill(&explanation, -16.0, "replaced");
    assert_eq!(explanation.findings[0].shown_at[0].tap.site, Site::Probs);
}

/// Something like the tanh approximation of GELU in the last layer, and off it by more in the first decode step. Nothing that was recorded reads it.
#[test]
fn what_comes_near_is_said_to_leave_for_each_place_and_not_the_first() {
    let gelu = |x: f32| 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh());
    let explanation = changed("llama", "golden/llama-torch", &|dump, tap, step, x| {
        let of = |site| values(dump, Tap { site, ..tap }, step);
        match tap.site {
            _ if step > 1 || tap.layer != Some(1) => None,
            Site::FfnAct => {
                let noise = if step == 0 { 1e-3 } else { 3e-2 };
                let off = |i: usize| 1.0 + noise * ((i * 7919 % 13) as f32 / 6.0 - 1.0);
                let products = of(Site::FfnGate).into_iter().zip(of(Site::FfnUp)).enumerate();
                Some(products.map(|(i, (g, u))| gelu(g) * u * off(i)).collect())
            }
            Site::FfnGate | Site::FfnUp => Some(x),
            _ => None,
        }
    });
    let [finding] = &explanation.findings[..] else { panic!("{:?}", explanation.findings) };
    assert_eq!((finding.matched, finding.alternatives[0].id), (Match::Closest, "activation"));
    let (least, most) = finding.least_and_most_left().unwrap();
    assert_eq!((finding.remainders.len(), least.place.step, most.place.step), (2, 0, 1));
    assert!(most.residual_nmse > 100.0 * least.residual_nmse && most.residual_nmse == finding.residual_nmse);
}

/// What is recorded up to a tap of the first layer.
fn up_to(last: Site, x: impl Fn(&Dump, Tap, Vec<f32>) -> Vec<f32>) -> Explanation {
    let order = [Site::H0, Site::AttnNorm, Site::Q, Site::K, Site::QRope, Site::KRope, Site::Scores, Site::Probs];
    let order: Vec<Site> = order.into_iter().chain([Site::HAttn, Site::FfnNorm]).collect();
    let is_before = |tap: Tap| order.iter().take_while(|site| **site != last).any(|site| *site == tap.site);
    changed("llama", "golden/llama-torch", &|dump, tap, step, values| {
        let is_kept = step == 0 && tap.layer != Some(1) && (is_before(tap) || tap.site == last);
        is_kept.then(|| if tap.site == last { x(dump, tap, values) } else { values })
    })
}

#[test]
fn a_cause_of_scores_is_none_where_the_scores_are_right() {
    let uniform = |_: &Dump, _: Tap, x: Vec<f32>| {
        let keys = (1..).find(|keys| keys * keys == x.len() / 6).unwrap();
        x.chunks(keys)
            .flat_map(|row| row.iter().map(|p| f32::from(*p > 0.0) / row.iter().filter(|p| **p > 0.0).count() as f32))
            .collect()
    };
    let explanation = up_to(Site::Probs, uniform);
    assert!(causes(&explanation).is_empty(), "{:?}", causes(&explanation));
    let note = explanation.findings[0].note.as_deref().unwrap();
    assert!(note.starts_with("the scores that were recorded are right"), "{note}");
}

#[test]
fn what_another_tap_holds_is_read_from_there_and_no_two_mistakes() {
    let explanation = up_to(Site::FfnNorm, |dump, tap, _| values(dump, Tap { site: Site::AttnNorm, ..tap }, 0));
    assert!(causes(&explanation).is_empty(), "{:?}", causes(&explanation));
    let words = &explanation.findings[0].measured.as_ref().unwrap().law.words;
    assert!(words.starts_with("it is computed of attn_norm"), "{words}");
}

#[test]
fn a_run_of_bf16_numbers_is_judged_as_one_and_a_mistake_in_it_is_told() {
    let right = changed("llama", "golden/llama-torch", &|_, _, _, x| Some(x.into_iter().map(bf16).collect()));
    assert_eq!(causes(&right), ["precision format \"bf16\""]);
    let is_wrong = |tap: Tap| tap == Tap::layer(1, Site::V);
    let wrong = changed("llama", "golden/llama-torch", &|_, tap, _, x| {
        (!matches!(tap.site, Site::Context))
            .then(|| x.into_iter().map(|x| bf16(if is_wrong(tap) { 1.25 * x } else { x })).collect())
    });
    let found: Vec<String> = wrong.findings[1..].iter().flat_map(|f| &f.taps).map(ToString::to_string).collect();
    assert_eq!((wrong.findings[0].cause.as_ref().unwrap().id, found[0].as_str()), ("precision", "layers.1.v"));
}
