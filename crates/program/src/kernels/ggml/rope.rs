//! Computes rotary position embedding in all of ggml's modes.

use super::super::call::{Call, Results, size};
use super::{ensure, float, four, int, is_given, or_zero, result_like};
use crate::value::error::KernelError;

/// Which values of a head form a pair, and which position rotates it.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// Neighbouring values.
    Normal,
    /// Values at a distance of half the rotated ones.
    Neox,
    /// The same, with a separate position for each section of pairs.
    Sections,
    /// Sections that alternate from pair to pair.
    Interleaved,
    /// Sections whose frequencies restart, over the whole head.
    Vision,
}

/// What all pairs have in common.
struct Rope {
    mode: Mode,
    /// Number of rotated values in a head, and where they begin.
    dims: usize,
    offset: usize,
    base: f64,
    scale: f64,
    extrapolation: f64,
    attention: f64,
    /// The pairs between which YaRN blends from extrapolation to interpolation.
    ramp: [f64; 2],
    sections: [usize; 4],
}

impl Rope {
    fn from_call(call: &Call<'_>, width: usize) -> Result<Rope, KernelError> {
        let mode = match int(call, "mode")? {
            0 => Mode::Normal,
            2 => Mode::Neox,
            8 => Mode::Sections,
            40 => Mode::Interleaved,
            24 => Mode::Vision,
            other => return Err(KernelError::Value { name: "mode", value: other.to_string() }),
        };
        let (dims, offset) = (size("n_dims", int(call, "n_dims")?)?, size("offset", or_zero(call, "offset")?)?);
        let fits = match mode {
            Mode::Vision => dims.checked_mul(2) == Some(width) && offset == 0,
            _ => dims.is_multiple_of(2) && dims.checked_add(offset).is_some_and(|end| end <= width),
        };
        ensure(fits && dims > 0, "a head and what is rotated of it", &[width], &[dims, offset])?;
        let mut sections = [0; 4];
        for (section, name) in sections.iter_mut().zip(["section0", "section1", "section2", "section3"]) {
            *section = size(name, or_zero(call, name)?)?;
        }
        let has_sections = !matches!(mode, Mode::Normal | Mode::Neox);
        let total = sections.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        ensure(
            !has_sections || total.is_some_and(|n| n > 0 && n <= width),
            "a head and its sections",
            &[width],
            &sections,
        )?;
        let base = float(call, "freq_base")?;
        let context = int(call, "n_ctx_orig")? as f64;
        let ramp = yarn_ramp(dims, context, base, [float(call, "beta_fast")?, float(call, "beta_slow")?]);
        let (scale, extrapolation) = (float(call, "freq_scale")?, float(call, "ext_factor")?);
        let mut attention = float(call, "attn_factor")?;
        if extrapolation != 0.0 {
            attention *= yarn_attention(scale);
        }
        Ok(Rope { mode, dims, offset, base, scale, extrapolation, attention, ramp, sections })
    }

    /// Number of pairs, the first value of each, and the distance to the second.
    fn pairs(&self) -> (usize, usize, usize) {
        match self.mode {
            Mode::Normal => (self.dims / 2, 2, 1),
            Mode::Vision => (self.dims, 1, self.dims),
            _ => (self.dims / 2, 1, self.dims / 2),
        }
    }

    /// Which of a token's positions rotates a pair, and the exponent of its frequency.
    fn section(&self, pair: usize) -> (usize, usize) {
        if matches!(self.mode, Mode::Normal | Mode::Neox) {
            return (0, pair);
        }
        let [s0, s1, s2, s3] = self.sections;
        let at = pair % (s0 + s1 + s2 + s3);
        if self.mode == Mode::Interleaved {
            let which = at % 3;
            return (if at < 3 * self.sections[which] { which } else { 3 }, pair);
        }
        let starts = [0, s0, s0 + s1, s0 + s1 + s2];
        let which = (0..4).rev().find(|&i| at >= starts[i]).unwrap_or(0);
        (which, if self.mode == Mode::Vision { at - starts[which] } else { pair })
    }

    /// Cosine and sine for a pair, times the attention factor; `divisor` is the pair's frequency factor.
    fn angle(&self, pair: usize, position: f64, exponent: usize, divisor: f64) -> (f64, f64) {
        let angle = position * self.base.powf(-2.0 * exponent as f64 / self.dims as f64) / divisor;
        let mut theta = self.scale * angle;
        if self.extrapolation != 0.0 {
            let along = (pair as f64 - self.ramp[0]) / (self.ramp[1] - self.ramp[0]).max(LEAST_RAMP);
            let mix = (1.0 - along.clamp(0.0, 1.0)) * self.extrapolation;
            theta = theta * (1.0 - mix) + angle * mix;
        }
        (theta.cos() * self.attention, theta.sin() * self.attention)
    }
}

/// The pairs between which YaRN blends from extrapolation to interpolation: those that rotate so often within the original context.
pub(crate) fn yarn_ramp(dims: usize, context: f64, base: f64, turns: [f64; 2]) -> [f64; 2] {
    let pair = |turns: f64| dims as f64 * (context / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
    [pair(turns[0]).floor().max(0.0), pair(turns[1]).ceil().min(dims as f64 - 1.0)]
}

/// The least width of that ramp.
pub(crate) const LEAST_RAMP: f64 = 0.001;

/// YaRN's factor on cosine and sine, where frequencies are scaled by this.
pub(crate) fn yarn_attention(scale: f64) -> f64 {
    1.0 + 0.1 * scale.recip().ln()
}

/// Rotates each pair (x, y) of a head by θ: (x cos θ - y sin θ, x sin θ + y cos θ), θ = position · base^(-2i/n_dims) · `freq_scale` / factor of pair i.
/// With `ext_factor` YaRN: `freq_scale` applies to slow pairs only, and cosine and sine are multiplied by 1 + 0.1 ln(1/`freq_scale`). x is
/// \[..,tokens,heads,d\]. Source: Su et al., RoFormer, 2021; Peng et al., YaRN, 2023.
pub(super) fn rope(call: &Call<'_>) -> Results {
    rotated(call, 1.0)
}

/// The rotation of [`rope`] in the opposite direction, with the same factor on cosine and sine.
pub(super) fn rope_back(call: &Call<'_>) -> Results {
    rotated(call, -1.0)
}

fn rotated(call: &Call<'_>, direction: f64) -> Results {
    let (x, positions) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?);
    let factors = if is_given(call, 2) { Some(call.tensor(2, "src2")?.to_floats()) } else { None };
    let [batch, tokens, heads, width] = four(&x.shape)?;
    let rope = Rope::from_call(call, width)?;
    let (count, first, apart) = rope.pairs();
    let streams = if matches!(rope.mode, Mode::Normal | Mode::Neox) { 1 } else { 4 };
    ensure(positions.len() == tokens * streams, "tokens and their positions", &[tokens, streams], &positions.shape)?;
    if let Some(factors) = &factors {
        ensure(factors.len() >= count, "pairs and their factors", &[count], &[factors.len()])?;
    }
    let positions = positions.to_ints();
    let mut out = x.to_floats().into_owned();
    for token in 0..tokens {
        for pair in 0..count {
            let (which, exponent) = rope.section(pair);
            let position = positions[which * tokens + token] as f64;
            let (cos, sin) = rope.angle(pair, position, exponent, factors.as_ref().map_or(1.0, |f| f[pair]));
            for row in (0..batch).flat_map(|b| (0..heads).map(move |head| (b * tokens + token) * heads + head)) {
                let i = row * width + rope.offset + pair * first;
                let (a, b) = (out[i], out[i + apart]);
                let sin = direction * sin;
                (out[i], out[i + apart]) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }
    Ok(result_like(x, out))
}
