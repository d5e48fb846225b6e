//! Applies rotary position embedding (RoPE): rotates pairs of elements of each head by an angle proportional to the position.

use ndarray::{Array3, ArrayView3};

use crate::error::{OpError, ensure};
use crate::kernel::float::Float;
use crate::kernel::par_each;

/// Which elements of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// i and i + r/2: Hugging Face, GPT-NeoX.
    Half,
    /// 2i and 2i + 1: the RoFormer paper, original Llama, GGUF of NORM-type families.
    Adjacent,
}

/// (aᵢ, bᵢ) -> (aᵢ cos φ - bᵢ sin φ, bᵢ cos φ + aᵢ sin φ), φ = position · ωᵢ, for each pair i of each head; cos and sin times `factor`.
///
/// `x` \[T,H,d\], `positions` T of any order, `inv_freq` the r/2 angles per position of [`rope_inv_freq`](crate::rope_inv_freq); the
/// result is \[T,H,d\]. Elements from r on are left as they are. The angle is a product in F, as PyTorch's: in f32 it is off by up to
/// position · ωᵢ · 6e-8 (NMSE 1e-9 at position 4000), so only the same rounding gives PyTorch's values. Cosine and sine of that angle
/// are rounded from f64.
///
/// Source: Su et al., RoFormer, 2021; transformers, apply_rotary_pos_emb.
///
/// # Errors
/// When there are not T positions, or r exceeds d.
pub fn rope<F: Float>(
    x: ArrayView3<'_, F>,
    positions: &[u32],
    inv_freq: &[F],
    factor: f64,
    pairing: RopePairing,
) -> Result<Array3<F>, OpError> {
    let (tokens, _, width) = x.dim();
    ensure(tokens == positions.len(), "rope", x.shape(), &[positions.len()], "x is [T,H,d], positions [T]")?;
    let half = inv_freq.len();
    ensure(2 * half <= width, "rope", x.shape(), &[half], "x is [T,H,d], frequencies at most [d/2]")?;
    let mut out = Array3::zeros(x.dim());
    let rows = positions.iter().zip(x.outer_iter()).zip(out.outer_iter_mut()).collect();
    par_each(rows, x.len(), |((&position, x), mut out)| {
        out.assign(&x);
        let turn = |&w: &F| {
            let (sin, cos) = (F::from_f64(f64::from(position)) * w).as_f64().sin_cos();
            (F::from_f64(cos) * F::from_f64(factor), F::from_f64(sin) * F::from_f64(factor))
        };
        let turns: Vec<(F, F)> = inv_freq.iter().map(turn).collect();
        for mut head in out.outer_iter_mut() {
            for (i, &(cos, sin)) in turns.iter().enumerate() {
                let (first, second) = match pairing {
                    RopePairing::Half => (i, i + half),
                    RopePairing::Adjacent => (2 * i, 2 * i + 1),
                };
                let (a, b) = (head[first], head[second]);
                head[first] = a * cos - b * sin;
                head[second] = b * cos + a * sin;
            }
        }
    });
    Ok(out)
}
