//! Names the mistake of the catalogue that a measured law is. A row of the table for each: the form of the law, and what its parameters must be.

use firstdiff_laws::{Form, Law, Status};
use firstdiff_trace::Site;
use serde_json::{Value, json};

use crate::mistakes::{
    Mistake, Params, attention, embedding, feed_forward, head, linear, norm, precision, residual, rope, scores, stored,
};
use crate::tolerance::laws::SAME_NUMBER;

/// A mistake as a law.
struct Named {
    form: Form,
    mistake: &'static Mistake,
    /// The mistake's parameters, where the law is it.
    params: fn(&Law) -> Option<Params>,
}

/// Whether two numbers are one.
fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME_NUMBER * b.abs()
}

fn number(law: &Law, name: &str) -> Option<f64> {
    law.parameter(name)?.as_f64()
}

fn is(law: &Law, name: &str, value: &str) -> bool {
    law.parameter(name).and_then(Value::as_str) == Some(value)
}

fn has(law: &Law, name: &str, value: bool) -> bool {
    law.parameter(name).and_then(Value::as_bool) == Some(value)
}

fn plain(when: bool) -> Option<Params> {
    when.then(Vec::new)
}

/// A norm of its own input, its bias added, and nothing else otherwise than these.
fn norm_but(law: &Law, other: &[&str]) -> bool {
    let is_right = |name: &&str| other.contains(name) || law.parameter(name).is_none();
    ["divisor", "gain", "input"].iter().all(is_right) && has(law, "bias", true)
}

/// The root mean square with a factor and an epsilon of its own.
fn divisor(law: &Law, statistic: &str) -> Option<(f64, f64, bool)> {
    let inside = law.parameter("epsilon_inside")?.as_bool()?;
    let is_it = norm_but(law, &["divisor"]) && is(law, "statistic", statistic) && has(law, "centred", false);
    is_it.then_some((number(law, "scale")?, number(law, "epsilon")?, inside))
}

const ROOT_MEAN_SQUARE: &str = "the root mean square";

fn eps(law: &Law) -> Option<Params> {
    let (scale, epsilon, inside) = divisor(law, ROOT_MEAN_SQUARE)?;
    (scale == 1.0 && inside).then(|| vec![("eps", json!(epsilon))])
}

fn eps_outside(law: &Law) -> Option<Params> {
    let (scale, epsilon, inside) = divisor(law, ROOT_MEAN_SQUARE)?;
    plain(scale == 1.0 && !inside && epsilon > 0.0 && is_near(epsilon, number(law, "right_epsilon")?))
}

fn norm_sum(law: &Law) -> Option<Params> {
    let (scale, epsilon, inside) = divisor(law, "the length")?;
    plain(scale == 1.0 && (epsilon == 0.0 || inside && is_near(epsilon, number(law, "right_epsilon")?)))
}

fn gain(law: &Law, is_it: &str) -> bool {
    norm_but(law, &["gain"]) && is(law, "gain_is", is_it)
}

fn one_more(law: &Law) -> Option<Params> {
    match (gain(law, "the gain is 1 + w"), gain(law, "the gain is w - 1")) {
        (true, _) => Some(Vec::new()),
        (_, true) => Some(vec![("kind", json!("missing"))]),
        _ => None,
    }
}

/// What all values are multiplied by, where nothing else is done.
fn times(law: &Law) -> Option<f64> {
    let only = law.parameters.iter().all(|(name, _)| *name == "scale");
    number(law, "scale").filter(|_| only)
}

/// A factor on all values, and nothing else.
fn factor(law: &Law) -> Option<f64> {
    times(law).filter(|scale| *scale != 0.0)
}

fn with_factor(law: &Law) -> Option<Params> {
    Some(vec![("factor", json!(factor(law)?))])
}

/// A rotation of the right pairs whose positions and lengths are right too.
fn rotation(law: &Law) -> bool {
    has(law, "shifted", false) && ["position", "magnitude"].iter().all(|name| law.parameter(name).is_none())
}

fn theta(law: &Law) -> Option<Params> {
    // The model's own base, its root (half the exponent) and frequencies that the model scales are other mistakes.
    let (base, right) = (number(law, "base")?, number(law, "right_base")?);
    let is_other = !is_near(base, right) && !is_near(base, right.sqrt());
    (rotation(law) && number(law, "first")? == 1.0 && is_other).then(|| vec![("theta", json!(base))])
}

fn pairing(law: &Law) -> Option<Params> {
    // The angles are right: nothing is said but the pairs.
    plain(has(law, "reflected", false) && law.parameters.iter().all(|(name, _)| ["pairs", "reflected"].contains(name)))
}

fn shift(law: &Law) -> Option<Params> {
    let by = number(law, "shift").filter(|by| by.fract() == 0.0 && law.parameter("magnitude").is_none())?;
    Some(vec![("shift", json!(by as i64))])
}

/// Whether the keys are seen that are due.
fn is_masked(law: &Law) -> bool {
    law.parameter("causal").is_none()
}

fn scale(law: &Law) -> Option<Params> {
    let one = is_masked(law) && law.parameter("by").is_none() && law.parameter("factors").is_none();
    Some(vec![("scale", json!(number(law, "scale").filter(|_| one)?))])
}

/// Powers of 2 for powers of e are scores times ln 2.
fn base_2(law: &Law) -> Option<Params> {
    plain(scale(law).is_some() && is_near(number(law, "factor")?, std::f64::consts::LN_2))
}

fn cap(law: &Law) -> Option<Params> {
    let is_cap = is_masked(law) && is(law, "function", "# tanh({}/#)");
    Some(vec![("cap", json!(number(law, "constant").filter(|_| is_cap)?))])
}

fn conditions(law: &Law, causal: bool) -> Option<u64> {
    let plain = has(law, "causal", causal) && has(law, "hidden", false);
    law.parameter("conditions")?.as_u64().filter(|_| plain)
}

fn window(law: &Law) -> Option<Params> {
    let one = conditions(law, true)? == 1;
    Some(vec![("window", law.parameter("window").filter(|_| one)?.clone())])
}

fn future(law: &Law) -> Option<Params> {
    let one = conditions(law, false)? == 1;
    Some(vec![("kind", json!("future")), ("by", law.parameter("ahead").filter(|_| one)?.clone())])
}

/// What the catalogue calls functions.
const ACTIVATIONS: [(&str, &str); 12] = [
    ("gelu(x) by tanh", "gelu-tanh"),
    ("gelu(x) by erf", "gelu-erf"),
    ("relu(x)", "relu"),
    ("silu(x)", "silu"),
    ("sigmoid(x)", "sigmoid"),
    ("x", "none"),
    ("x sigmoid(1.702 x)", "gelu-quick"),
    ("relu(x)^2", "relu-squared"),
    ("tanh(x)", "tanh"),
    ("mish(x)", "mish"),
    ("elu(x)", "elu"),
    ("softplus(x)", "softplus"),
];

fn activation(law: &Law) -> Option<Params> {
    let one = number(law, "scale") == Some(1.0);
    let (_, name) = ACTIVATIONS.iter().find(|(words, _)| one && is(law, "a", words))?;
    Some(vec![("activation", json!(name))])
}

fn goes_through(law: &Law, operand: u64) -> Option<Params> {
    plain(law.parameter("operand")?.as_u64() == Some(operand))
}

fn twice(_: &Law) -> Option<Params> {
    Some(vec![("kind", json!("twice"))])
}

/// A weight of fewer bits than it is stored in.
fn few_bits(law: &Law) -> Option<Params> {
    let rounded = law.parameter("rounded")?.as_str()?;
    Some(match rounded {
        "rounded to 11 binary digits (f16's)" => vec![("format", json!("f16 weights"))],
        "rounded to 8 binary digits (bf16's)" => vec![("format", json!("bf16 weights"))],
        _ => vec![("weights", json!(rounded))],
    })
}

/// activation(gate) * up, and one of the two within a limit.
fn limited(law: &Law) -> Option<Params> {
    is(law, "a", "x held within {}").then_some(())?;
    Some(vec![("limit", json!(number(law, "b")?))])
}

/// Gate and up within one limit.
fn both_limited(law: &Law) -> Option<Params> {
    is(law, "operand", "gate and up").then_some(())?;
    Some(vec![("limit", json!(number(law, "limit")?))])
}

/// Gate or up within a limit where they are made.
fn held(law: &Law) -> Option<Params> {
    let limit = number(law, "max").filter(|limit| *limit > 0.0)?;
    let is_one = number(law, "min").is_none_or(|least| is_near(least, -limit));
    is_one.then(|| vec![("limit", json!(limit))])
}

/// A function of all values, without a number.
fn function(law: &Law) -> Option<Params> {
    let (_, name) = [("the sigmoid of {}", "sigmoid"), ("tanh({})", "tanh")]
        .into_iter()
        .find(|(words, _)| is(law, "function", words))?;
    Some(vec![("function", json!(name))])
}

const fn row(form: Form, mistake: &'static Mistake, params: fn(&Law) -> Option<Params>) -> Named {
    Named { form, mistake, params }
}

/// The laws that have a name, each at the taps of its mistake.
static NAMED: [Named; 36] = [
    // A rotation whose input goes through: before those of norms, which may be left out of what is rotated.
    row(Form::Omitted, &rope::ROPE_OMITTED, |law| goes_through(law, 0)),
    row(Form::Twice, &rope::ROPE_TWICE, |_| Some(Vec::new())),
    row(Form::NormDivisor, &norm::NORM_EPS, eps),
    row(Form::NormDivisor, &norm::NORM_EPS_OUTSIDE, eps_outside),
    row(Form::NormDivisor, &norm::NORM_SUM, norm_sum),
    row(Form::NormGain, &norm::NORM_WEIGHT_OMITTED, |law| plain(gain(law, "the gain is left out"))),
    row(Form::NormGain, &norm::NORM_WEIGHT_TWICE, |law| plain(gain(law, "the gain is w squared"))),
    row(Form::NormGain, &norm::NORM_PLUS_ONE, one_more),
    row(Form::NormCentre, &norm::NORM_CENTERED, |law| plain(norm_but(law, &[]) && has(law, "centred", true))),
    row(Form::Omitted, &norm::NORM_OMITTED, |law| goes_through(law, 0)),
    row(Form::Twice, &norm::NORM_OMITTED, twice),
    row(Form::Omitted, &head::FINAL_NORM_OMITTED, |law| goes_through(law, 0).map(|_| vec![("kind", json!("omitted"))])),
    row(Form::Twice, &head::FINAL_NORM_OMITTED, twice),
    row(Form::OutputFunction, &embedding::EMBED_MULTIPLIER, with_factor),
    row(Form::OutputFunction, &head::LOGIT_SCALE, with_factor),
    row(Form::OutputFunction, &head::LOGIT_SOFTCAP, |law| Some(vec![("cap", json!(number(law, "cap")?))])),
    row(Form::OutputFunction, &head::RESULT_ACTIVATED, function),
    row(Form::OutputFunction, &linear::WEIGHT_UNSET, |law| plain(times(law)? == 0.0)),
    row(Form::LinearWeight, &stored::DEQUANT_TRUNCATED, |law| {
        Some(vec![("zero_from", law.parameter("zero_from")?.clone())])
    }),
    row(Form::LinearWeight, &precision::PRECISION, few_bits),
    row(Form::GateRoles, &feed_forward::ACTIVATION_CLAMP, limited),
    row(Form::OperationInput, &feed_forward::ACTIVATION_CLAMP, both_limited),
    row(Form::OutputFunction, &feed_forward::ACTIVATION_CLAMP, held),
    row(Form::RotationFrequency, &rope::ROPE_THETA, theta),
    row(Form::RotationFrequency, &rope::ROPE_DIRECTION, |law| plain(rotation(law) && number(law, "factor")? == -1.0)),
    row(Form::RotationPairing, &rope::ROPE_PAIRING, pairing),
    row(Form::RotationPosition, &rope::ROPE_POSITION, shift),
    row(Form::ScoreScale, &attention::SOFTMAX_BASE, base_2),
    row(Form::ScoreScale, &scores::SCORE_SCALE, scale),
    row(Form::ScoreFunction, &scores::SCORE_SOFTCAP, cap),
    row(Form::Mask, &scores::WINDOW_SIZE, window),
    row(Form::Mask, &scores::MASK_OMITTED, |law| plain(conditions(law, false)? == 0)),
    row(Form::Mask, &scores::MASK_SHIFTED, future),
    row(Form::MaskFill, &scores::MASK_FILL, |law| {
        Some(vec![("fill", json!(number(law, "fill")?)), ("how", json!("replaced"))])
    }),
    row(Form::Activation, &feed_forward::ACTIVATION, activation),
    row(Form::Omitted, &residual::RESIDUAL_OMITTED, |law| goes_through(law, 1)),
];

/// The mistake that a law is at a tap of this site, with its parameters; its first where it has several names.
pub(crate) fn named(law: &Law, site: Site) -> Option<(&'static Mistake, Params)> {
    // What is done behind it is another mistake, and a part of the output may be another.
    if law.status != Status::Measured || !law.is_everywhere() || law.parameter("then").is_some() {
        return None;
    }
    // Scores that were recorded without their mask may have it later.
    if law.form == Form::Mask && site == Site::Scores {
        return None;
    }
    // Scores that are measured as probabilities.
    let sites = [site, if site == Site::Probs { Site::Scores } else { site }];
    NAMED
        .iter()
        .filter(|named| named.form == law.form && sites.iter().any(|site| named.mistake.at.contains(site)))
        .find_map(|named| Some((named.mistake, (named.params)(law)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_stands_for_a_mistake_of_the_catalogue() {
        for named in &NAMED {
            let known = crate::mistakes::find(named.mistake.id);
            assert!(known == Some(named.mistake) && !named.mistake.at.is_empty(), "{}", named.mistake.id);
        }
    }
}
