//! Is a mistake tried wherever it can be made, and by every name it has? And is it said not to show only where it could not?

#[path = "common/again.rs"]
mod again;
mod common;

use firstdiff_explain::explain::{Explanation, Match};
use firstdiff_trace::{Site, Tap};

use again::{changed, values};

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
    assert!(!explanation.invisible.iter().any(|id| id.starts_with("kv-cache")), "{:?}", explanation.invisible);
}
