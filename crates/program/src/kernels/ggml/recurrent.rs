//! Computes operations with a recurrent state (state-space models, RWKV, linear attention). The result holds the outputs, then the final states.

use super::super::call::{Call, Results};
use super::super::special;
use super::product::check_index;
use super::{ensure, float, four, int, offset};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// Joins the outputs of the tokens and the final states in the shape of the output.
fn result(call: &Call<'_>, mut out: Vec<f64>, states: Vec<f64>) -> Results {
    out.extend(states);
    let shape = call.output_shape(0)?;
    ensure(shape.iter().product::<usize>() == out.len(), "results and states", &[out.len()], shape)?;
    Ok(vec![Tensor::of(shape.to_vec(), out)])
}

/// Refuses to keep states other than that after the last token.
fn last_state_alone(call: &Call<'_>) -> Result<(), KernelError> {
    match int(call, "snapshots")? {
        1 => Ok(()),
        other => Err(KernelError::Value { name: "snapshots", value: other.to_string() }),
    }
}

/// For each head h and value i: sₖ = sₖ e^(Δ Aₕₖ) + Bₖ Δ xᵢ and yᵢ = Σₖ sₖ Cₖ, where Δ = ln(1 + e^dt). A has one number for each head, or one for each k;
/// heads share the B and C of their group. Source: Gu and Dao, Mamba, 2023.
pub(super) fn ssm_scan(call: &Call<'_>) -> Results {
    last_state_alone(call)?;
    let src = |at: usize| call.tensor(at, "src");
    let (state, x, dt, a, b, c) = (src(0)?, src(1)?, src(2)?, src(3)?, src(4)?, src(5)?);
    let (cells, values) = (four(&state.shape)?, four(&x.shape)?);
    let ([stored, heads, dim, depth], [sequences, tokens, h, d]) = (cells, values);
    ensure(heads == h && dim == d, "states and values", &cells, &values)?;
    let times = four(&dt.shape)?;
    ensure(times == [1, sequences, tokens, heads], "values and their times", &values, &times)?;
    let (decays, inputs, outputs) = (four(&a.shape)?, four(&b.shape)?, four(&c.shape)?);
    let fits = decays[..3] == [1, 1, heads] && (decays[3] == 1 || decays[3] == depth);
    ensure(fits, "heads and their decays", &cells, &decays)?;
    let groups = inputs[2];
    let fits =
        inputs == outputs && inputs == [sequences, tokens, groups, depth] && groups > 0 && heads.is_multiple_of(groups);
    ensure(fits, "B and C", &inputs, &outputs)?;
    let ids = src(6)?.to_ints();
    ensure(ids.len() == sequences, "sequences and their states", &[sequences], &[ids.len()])?;
    let (state, x, dt, a, b, c) =
        (state.to_floats(), x.to_floats(), dt.to_floats(), a.to_floats(), b.to_floats(), c.to_floats());
    let (mut out, mut states) = (vec![0.0; x.len()], Vec::new());
    for (sequence, &id) in ids.iter().enumerate() {
        let cell = heads * dim * depth;
        let start = check_index(id, stored)? * cell;
        let mut s = state[start..start + cell].to_vec();
        for token in 0..tokens {
            for head in 0..heads {
                let delta = special::softplus(dt[(sequence * tokens + token) * heads + head]);
                let shared = offset(inputs, [sequence, token, head / (heads / groups), 0]);
                for i in 0..dim {
                    let at = offset(values, [sequence, token, head, i]);
                    let row = &mut s[(head * dim + i) * depth..][..depth];
                    let mut sum = 0.0;
                    for (k, s) in row.iter_mut().enumerate() {
                        let decay = a[head * decays[3] + if decays[3] == 1 { 0 } else { k }];
                        *s = *s * (delta * decay).exp() + b[shared + k] * delta * x[at];
                        sum += *s * c[shared + k];
                    }
                    out[at] = sum;
                }
            }
        }
        states.extend(s);
    }
    result(call, out, states)
}

/// Tokens of heads of `dim` values, in sequences of equal length.
struct Tokens {
    tokens: usize,
    heads: usize,
    dim: usize,
    sequences: usize,
}

impl Tokens {
    /// Reads the layout from operand 0; the operands at `same` have the same shape, and the one at `state` has a matrix for each head of each sequence.
    fn from_call(call: &Call<'_>, same: &[usize], state: usize) -> Result<Tokens, KernelError> {
        let shape = four(&call.tensor(0, "src")?.shape)?;
        let [one, tokens, heads, dim] = shape;
        ensure(one == 1 && heads * dim > 0, "tokens of heads", &shape, &[1])?;
        for &at in same {
            let other = four(&call.tensor(at, "src")?.shape)?;
            ensure(other == shape, "operands of each token", &shape, &other)?;
        }
        let state = call.tensor(state, "state")?;
        let each = (heads * dim).saturating_mul(dim);
        let sequences = state.len() / each;
        let fits = sequences > 0 && state.len() == sequences * each && tokens.is_multiple_of(sequences);
        ensure(fits, "tokens and states", &shape, &state.shape)?;
        Ok(Tokens { tokens, heads, dim, sequences })
    }

    /// Iterates over the tokens. `step` gets the head, the start of its values, its state matrix, and the slice for its results.
    fn for_each_token(
        &self,
        call: &Call<'_>,
        state: &[f64],
        mut step: impl FnMut(usize, usize, &mut [f64], &mut [f64]),
    ) -> Results {
        let (mut out, mut states) = (vec![0.0; self.tokens * self.heads * self.dim], state.to_vec());
        let square = self.dim * self.dim;
        for token in 0..self.tokens {
            let sequence = token / (self.tokens / self.sequences);
            for head in 0..self.heads {
                let start = (token * self.heads + head) * self.dim;
                let matrix = &mut states[(sequence * self.heads + head) * square..][..square];
                step(head, start, matrix, &mut out[start..start + self.dim]);
            }
        }
        result(call, out, states)
    }
}

/// yⱼ = Σᵢ rᵢ (uᵢ kᵢ vⱼ + Sᵢⱼ), then Sᵢⱼ = wᵢ Sᵢⱼ + kᵢ vⱼ. Source: Peng et al., Eagle and Finch (RWKV-6), 2024.
pub(super) fn wkv6(call: &Call<'_>) -> Results {
    let sizes = Tokens::from_call(call, &[1, 2, 4], 5)?;
    let src = |at: usize| call.tensor(at, "src").map(Tensor::to_floats);
    let (k, v, r, u, w, state) = (src(0)?, src(1)?, src(2)?, src(3)?, src(4)?, src(5)?);
    let dim = sizes.dim;
    ensure(u.len() == sizes.heads * dim, "the bonus of each head", &[u.len()], &[sizes.heads, dim])?;
    sizes.for_each_token(call, &state, |head, at, s, y| {
        for i in 0..dim {
            for j in 0..dim {
                let kv = k[at + i] * v[at + j];
                y[j] += r[at + i] * (u[head * dim + i] * kv + s[i * dim + j]);
                s[i * dim + j] = w[at + i] * s[i * dim + j] + kv;
            }
        }
    })
}

/// Sᵢⱼ = wⱼ Sᵢⱼ + vᵢ kⱼ + bⱼ Σₗ Sᵢₗ aₗ, then yᵢ = Σⱼ Sᵢⱼ rⱼ. Source: Peng et al., Goose (RWKV-7), 2025.
pub(super) fn wkv7(call: &Call<'_>) -> Results {
    let sizes = Tokens::from_call(call, &[1, 2, 3, 4, 5], 6)?;
    let src = |at: usize| call.tensor(at, "src").map(Tensor::to_floats);
    let (r, w, k, v, a, b, state) = (src(0)?, src(1)?, src(2)?, src(3)?, src(4)?, src(5)?, src(6)?);
    let dim = sizes.dim;
    sizes.for_each_token(call, &state, |_, at, s, y| {
        for (i, s) in s.chunks_exact_mut(dim).enumerate() {
            let sum: f64 = s.iter().zip(&a[at..]).map(|(s, a)| s * a).sum();
            for (j, s) in s.iter_mut().enumerate() {
                *s = *s * w[at + j] + v[at + i] * k[at + j] + sum * b[at + j];
                y[i] += *s * r[at + j];
            }
        }
    })
}

/// Sᵢⱼ = gᵢ Sᵢⱼ + kᵢ vⱼ, then yⱼ = scale · Σᵢ qᵢ Sᵢⱼ. Source: Yang et al., Gated Linear Attention, 2023.
pub(super) fn gated_linear_attention(call: &Call<'_>) -> Results {
    let sizes = Tokens::from_call(call, &[1, 2, 3], 4)?;
    let src = |at: usize| call.tensor(at, "src").map(Tensor::to_floats);
    let (k, v, q, g, state) = (src(0)?, src(1)?, src(2)?, src(3)?, src(4)?);
    let (dim, scale) = (sizes.dim, float(call, "scale")?);
    sizes.for_each_token(call, &state, |_, at, s, y| {
        for i in 0..dim {
            for j in 0..dim {
                s[i * dim + j] = g[at + i] * s[i * dim + j] + k[at + i] * v[at + j];
                y[j] += scale * q[at + i] * s[i * dim + j];
            }
        }
    })
}

/// For each head, with S stored column by column: S = e^g S, then S = S + k ⊗ β (v - Sᵀ k), then y = Sᵀ q / √d. g is one number, or one for each row of S;
/// if q and k have fewer heads, they are repeated cyclically. Source: Yang et al., Gated Delta Networks, 2024.
pub(super) fn gated_delta_net(call: &Call<'_>) -> Results {
    last_state_alone(call)?;
    let mut shapes = [[0; 4]; 6];
    for (at, shape) in shapes.iter_mut().enumerate() {
        *shape = four(&call.tensor(at, "src")?.shape)?;
    }
    let [queries, keys, values, gates, betas, states] = shapes;
    let [sequences, tokens, heads, dim] = values;
    for fellow in [queries, keys] {
        let fits = fellow[1] == tokens
            && fellow[3] == dim
            && fellow[0] > 0
            && fellow[2] > 0
            && sequences.is_multiple_of(fellow[0]);
        ensure(fits, "values and their queries or keys", &values, &fellow)?;
    }
    let fits = gates[..3] == [sequences, tokens, heads] && (gates[3] == 1 || gates[3] == dim);
    ensure(fits, "values and their gates", &values, &gates)?;
    ensure(betas == [sequences, tokens, heads, 1], "values and their betas", &values, &betas)?;
    ensure(states == [sequences, heads, dim, dim], "values and their states", &values, &states)?;
    let src = |at: usize| call.tensor(at, "src").map(Tensor::to_floats);
    let (q, k, v, g, beta, state) = (src(0)?, src(1)?, src(2)?, src(3)?, src(4)?, src(5)?);
    let (mut out, mut s) = (vec![0.0; v.len()], state.to_vec());
    let row = |shape: [usize; 4], sequence: usize, token: usize, head: usize| {
        offset(shape, [sequence / (sequences / shape[0]), token, head % shape[2], 0])
    };
    for sequence in 0..sequences {
        for token in 0..tokens {
            for head in 0..heads {
                let (q, k) = (&q[row(queries, sequence, token, head)..], &k[row(keys, sequence, token, head)..]);
                let (at, gate) =
                    (offset(values, [sequence, token, head, 0]), offset(gates, [sequence, token, head, 0]));
                let beta = beta[offset(betas, [sequence, token, head, 0])];
                let matrix = &mut s[(sequence * heads + head) * dim * dim..][..dim * dim];
                for (j, s) in matrix.chunks_exact_mut(dim).enumerate() {
                    for (i, s) in s.iter_mut().enumerate() {
                        *s *= g[gate + if gates[3] == 1 { 0 } else { i }].exp();
                    }
                    let seen: f64 = s.iter().zip(k).map(|(s, k)| s * k).sum();
                    let delta = beta * (v[at + j] - seen);
                    s.iter_mut().zip(k).for_each(|(s, k)| *s += delta * k);
                    let sum: f64 = s.iter().zip(q).map(|(s, q)| s * q).sum();
                    out[at + j] = sum / (dim as f64).sqrt();
                }
            }
        }
    }
    result(call, out, s)
}
