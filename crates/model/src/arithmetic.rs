//! Runs a step in a numeric profile: f64, f32, f16 or bf16 as PyTorch, or quantised as llama.cpp.

use firstdiff_core::{self as core, ActivationType, Quantised, RopePairing, quantise, quantise_to_ints};
use firstdiff_trace::Cache;
use ndarray::{Array2, Array3, ArrayD, ArrayView2, ArrayViewD, Zip};
use rayon::prelude::*;

use crate::cache::{CHUNK, cache_rounded};
use crate::error::ModelError;
use crate::eval::{Chunk, Evaluation, Out};
use crate::ggml;
use crate::matmul::{whole_blocks, whole_product};
use crate::plan::{Op, Rope, Step};
use crate::storage::{Half, Storage};
use crate::weights::{WeightView, Weights};

/// The arithmetic in which a Plan is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// f64 throughout, weights widened.
    Exact,
    /// f32 throughout, weights widened or rounded to it.
    F32,
    /// As PyTorch runs a model of `torch_dtype` float16: weights and every result rounded to f16, sums in f32.
    F16,
    /// As PyTorch runs a model of `torch_dtype` bfloat16.
    Bf16,
    /// As llama.cpp's CPU backend: activations are rounded to the type that the product with each weight type takes.
    Ggml {
        /// The type of the K/V cache: queries and probabilities are rounded to it before they are multiplied with keys and values.
        cache: Cache,
    },
}

/// The arithmetic of a run, and the type of its K/V cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPrecision {
    /// How each step rounds.
    pub profile: Profile,
    /// The type that every key and value is rounded to before it is read.
    pub cache: Cache,
}

impl From<Profile> for RunPrecision {
    /// With the cache of `Ggml`; of other profiles keys and values are not rounded.
    fn from(profile: Profile) -> RunPrecision {
        let cache = if let Profile::Ggml { cache } = profile { cache } else { Cache::F32 };
        RunPrecision { profile, cache }
    }
}

impl Profile {
    /// The name in dump.json and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Exact => "exact",
            Profile::F32 => "f32",
            Profile::F16 => "f16",
            Profile::Bf16 => "bf16",
            Profile::Ggml { .. } => "ggml",
        }
    }

    /// The same profile with another cache type, where the arithmetic of products depends on it.
    pub fn with_cache(self, cache: Cache) -> Profile {
        if let Profile::Ggml { .. } = self { Profile::Ggml { cache } } else { self }
    }
}

/// Runs one step on f32 inputs as [`eval_step`](crate::eval_step) does, in the rounding of `profile`. `Exact` is f32 here.
///
/// # Errors
/// As `eval_step`.
pub fn eval_step_in(
    profile: Profile,
    step: &Step,
    inputs: &[ArrayViewD<'_, f32>],
    chunk: Chunk<'_>,
    weights: &Weights,
) -> Result<ArrayD<f32>, ModelError> {
    let half = match profile {
        Profile::F16 => Some(Half::F16),
        Profile::Bf16 => Some(Half::BF16),
        _ => None,
    };
    let evaluation = Evaluation { step, inputs, chunk, weights, half };
    match (half, profile) {
        (Some(half), _) => eval_in_half(&evaluation, half),
        (None, Profile::Ggml { cache }) => eval_in_ggml(&evaluation, cache),
        _ => evaluation.run(),
    }
}

/// Runs a step as PyTorch does: each of its operations rounds its result.
///
/// Source: transformers, modeling_llama (the norm is carried out in f32 and rounded before it is weighted, softmax in f32).
fn eval_in_half(step: &Evaluation<'_, f32>, half: Half) -> Out<ArrayD<f32>> {
    let mut out = match &step.step.op {
        Op::RmsNorm { eps } => norm(step, *eps, |x, w| half.round(x) * w)?,
        Op::Rope(rope) => {
            let turns = rope_angles(rope, &step.positions()?).mapv(|(cos, sin)| (half.round(cos), half.round(sin)));
            rotated(step, rope, &turns, |x| half.round(x))?
        }
        Op::Gated { activation } => {
            let mut out = step.input(0)?.mapv(|x| half.round(activation.of(x)));
            Zip::from(&mut out).and(step.input(1)?).for_each(|x, &up| *x *= up);
            out
        }
        _ => step.run()?,
    };
    match out.as_slice_memory_order_mut() {
        Some(all) => all.par_chunks_mut(CHUNK).for_each(|part| half.round_all(part)),
        None => out.mapv_inplace(|x| half.round(x)),
    }
    Ok(out)
}

/// Runs a step as llama.cpp's CPU backend does.
///
/// Source: llama.cpp, ggml-cpu: type_traits_cpu (the activation type of each weight type), ggml_compute_forward_rms_norm_f32 (squares are summed in f64),
/// ggml_rope_cache_init (each angle is the one before times a factor).
fn eval_in_ggml(step: &Evaluation<'_, f32>, cache: Cache) -> Out<ArrayD<f32>> {
    match &step.step.op {
        Op::Linear { heads } => ggml_linear(step, *heads),
        Op::Head => ggml_linear(step, None),
        Op::RmsNorm { eps } => norm(step, *eps, |x, w| x * w),
        Op::Rope(rope) => rotated(step, rope, &ggml_rope_angles(rope, &step.positions()?), |x| x),
        Op::Qk | Op::Context if cache != Cache::F32 => {
            // With a block-quantised cache probabilities are not rounded: ggml multiplies such values in flash attention only.
            let first = if step.step.op == Op::Context && cache == Cache::Q8_0 { Cache::F32 } else { cache };
            let rounded = [cache_rounded(first, step.input(0)?.view()), cache_rounded(cache, step.input(1)?.view())];
            Evaluation { inputs: &rounded.each_ref().map(|x| x.view()), ..*step }.run()
        }
        _ => step.run(),
    }
}

/// The activation type for the product with a weight of this type; `None`: activations stay f32.
fn activation_type(storage: Storage) -> Option<ActivationType> {
    use ggml::Type;
    match storage {
        Storage::F16 => Some(ActivationType::F16),
        Storage::BF16 => Some(ActivationType::BF16),
        Storage::Block(kind) => Some(match kind {
            Type::Q4_1 | Type::Q5_1 | Type::Q8_1 => ActivationType::Q8_1,
            _ if kind.block_len() == 256 => ActivationType::Q8K,
            _ => ActivationType::Q8_0,
        }),
        _ => None,
    }
}

/// The rows x \[T,in\] as ggml multiplies them with a weight stored in `storage`: rounded to the activation type of that storage, or unchanged. With
/// their excess, where there is one, the minima of the weight's blocks are multiplied too ([`ggml_minima`]).
///
/// # Errors
/// When the rows are not whole blocks of the type.
pub fn ggml_activations(x: ArrayView2<'_, f32>, storage: Storage) -> Result<Quantised, core::OpError> {
    activation_type(storage)
        .map_or_else(|| Ok(Quantised { values: x.to_owned(), excess: None }), |kind| quantise(x, kind))
}

/// The minimum of every block of Q4_1 or Q5_1, in the order of the elements: an f16 after the scale. None of other types.
pub fn ggml_minima(weight: &WeightView<'_>) -> Option<Vec<f32>> {
    let Storage::Block(kind @ (ggml::Type::Q4_1 | ggml::Type::Q5_1)) = weight.storage() else { return None };
    let blocks = weight.bytes().chunks_exact(kind.block_bytes());
    Some(blocks.map(|b| half::f16::from_le_bytes([b[2], b[3]]).to_f32()).collect())
}

fn ggml_linear(step: &Evaluation<'_, f32>, heads: Option<usize>) -> Out<ArrayD<f32>> {
    let x = step.matrix(0)?;
    let (matrix, rows, _) = step.weight_matrix()?;
    let Some(kind) = activation_type(matrix.storage()) else { return step.linear(x, heads) };
    if let Some(blocks) = whole_blocks(&matrix) {
        let x = quantise_to_ints(x, kind).map_err(|e| step.error(e))?;
        return step.linear_by(x.quants.nrows(), heads, |w, columns, out| whole_product(&x, blocks, w, columns, out));
    }
    let rounded = quantise(x, kind).map_err(|e| step.error(e))?;
    let mut out = step.linear(rounded.values.view(), heads)?;
    if let (Some(excess), Some(minima)) = (rounded.excess, ggml_minima(&matrix)) {
        let minima = Array2::from_shape_vec((rows, excess.ncols()), minima).map_err(|e| step.error(e))?;
        let beyond = core::linear(excess.view(), minima.view(), None).map_err(|e| step.error(e))?;
        out += &beyond.into_shape_with_order(out.raw_dim()).map_err(|e| step.error(e))?;
    }
    Ok(out)
}

/// x / √(mean(x²) + eps) over the last axis, the squares summed in f64; `weighted` applies the gain to each element.
fn norm(step: &Evaluation<'_, f32>, eps: f64, weighted: impl Fn(f32, f32) -> f32 + Sync) -> Out<ArrayD<f32>> {
    let gain = step.vector(0)?;
    let x = step.input(0)?.as_standard_layout();
    let mut out = ArrayD::zeros(x.raw_dim());
    let width = x.shape().last().copied().unwrap_or(1).max(1);
    let (Some(from), Some(to)) = (x.as_slice(), out.as_slice_mut()) else { return Ok(out) };
    from.par_chunks(width).zip(to.par_chunks_mut(width)).for_each(|(from, to)| {
        let squares: f64 = from.iter().map(|&x| f64::from(x * x)).sum();
        let scale = 1.0 / ((squares / width as f64) as f32 + eps as f32).sqrt();
        to.iter_mut().zip(from).zip(&gain).for_each(|((to, &x), &w)| *to = weighted(x * scale, w));
    });
    Ok(out)
}

/// Cosine and sine for every position and pair, \[T,r/2\], of an angle in f32.
fn rope_angles(rope: &Rope, positions: &[u32]) -> Array2<(f32, f32)> {
    let (inv_freq, factor) = core::rope_inv_freq::<f32>(rope.rotary_dim, rope.theta, &rope.scaling);
    Array2::from_shape_fn((positions.len(), inv_freq.len()), |(t, i)| {
        let (sin, cos) = f64::from(positions[t] as f32 * inv_freq[i]).sin_cos();
        (cos as f32 * factor as f32, sin as f32 * factor as f32)
    })
}

/// As `turns`, with each angle computed from that of the pair before, in f32.
fn ggml_rope_angles(rope: &Rope, positions: &[u32]) -> Array2<(f32, f32)> {
    let plain = core::rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &core::RopeScaling::None).0;
    let (scaled, factor) = core::rope_inv_freq::<f64>(rope.rotary_dim, rope.theta, &rope.scaling);
    let step = (rope.theta as f32).powf(-2.0 / rope.rotary_dim as f32);
    let mut out = Array2::default((positions.len(), plain.len()));
    for (&position, mut row) in positions.iter().zip(out.rows_mut()) {
        let mut angle = position as f32;
        for (i, turn) in row.iter_mut().enumerate() {
            let (sin, cos) = (angle * (scaled[i] / plain[i]) as f32).sin_cos();
            *turn = (cos * factor as f32, sin * factor as f32);
            angle *= step;
        }
    }
    out
}

/// Rotates every pair of input 0; each product and each sum goes through `round`.
fn rotated(
    step: &Evaluation<'_, f32>,
    rope: &Rope,
    turns: &Array2<(f32, f32)>,
    round: impl Fn(f32) -> f32 + Sync,
) -> Out<ArrayD<f32>> {
    let x = step.cube(0)?;
    let half = rope.rotary_dim / 2;
    if x.shape()[2] < rope.rotary_dim || x.shape()[0] != turns.nrows() {
        return Err(step.error(format!("cannot rotate {} elements of {:?}", rope.rotary_dim, x.shape())));
    }
    let mut out = Array3::zeros(x.dim());
    let rows: Vec<_> = turns.outer_iter().zip(x.outer_iter()).zip(out.outer_iter_mut()).collect();
    rows.into_par_iter().for_each(|((turns, x), mut out)| {
        out.assign(&x);
        for mut head in out.outer_iter_mut() {
            for (i, &(cos, sin)) in turns.iter().enumerate() {
                let (first, second) = match rope.pairing {
                    RopePairing::Half => (i, i + half),
                    RopePairing::Adjacent => (2 * i, 2 * i + 1),
                };
                let (a, b) = (head[first], head[second]);
                head[first] = round(round(a * cos) - round(b * sin));
                head[second] = round(round(b * cos) + round(a * sin));
            }
        }
    });
    Ok(out.into_dyn())
}
