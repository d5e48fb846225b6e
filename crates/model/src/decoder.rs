//! Builds the Plan of a Llama-like decoder: the steps of llama, mistral, qwen2, qwen3 and minimind.

use firstdiff_core::RopePairing;
use firstdiff_trace::{QkRows, Site, Tap};

use crate::config::Config;
use crate::plan::{Op, Plan, Role, Rope, Scores, Step, WeightRef};

/// The Plan: layers of pre-norm attention and a gated feed-forward.
pub(crate) fn plan(config: &Config) -> Plan {
    let outer = |site| Tap { layer: None, site };
    let weight = |role| WeightRef { layer: None, role };
    let norm = Op::RmsNorm { eps: config.rms_norm_eps };
    let h0 = outer(Site::H0);
    let mut steps =
        vec![Step { tap: h0, op: Op::Embedding { scale: 1.0 }, reads: vec![], weights: vec![weight(Role::Embedding)] }];
    let mut h = h0;
    for layer in 0..config.dims.layers {
        h = block(config, layer, h, &mut steps);
    }
    let (final_norm, head) = (outer(Site::FinalNorm), weight(Role::Head));
    steps.push(Step { tap: final_norm, op: norm, reads: vec![h], weights: vec![weight(Role::FinalNorm)] });
    steps.push(Step { tap: outer(Site::Logits), op: Op::Head, reads: vec![final_norm], weights: vec![head] });
    Plan { family: config.family.into(), dims: config.dims, steps }
}

/// Adds the steps of one layer that reads the residual stream `h`; returns the tap of the stream after it.
fn block(config: &Config, layer: u32, h: Tap, steps: &mut Vec<Step>) -> Tap {
    let dims = &config.dims;
    let mut push = |site, op, reads: &[Tap], roles: &[Role]| {
        let weights = roles.iter().map(|&role| WeightRef { layer: Some(layer), role }).collect();
        let tap = Tap::layer(layer, site);
        steps.push(Step { tap, op, reads: reads.to_vec(), weights });
        tap
    };
    let norm = || Op::RmsNorm { eps: config.rms_norm_eps };
    let heads = |n| Op::Linear { heads: Some(n) };
    let linear = || Op::Linear { heads: None };
    let residual = || Op::Residual { multiplier: 1.0 };
    let rope = || {
        Op::Rope(Rope {
            pairing: match config.qk_rows {
                QkRows::Half => RopePairing::Half,
                QkRows::Adjacent => RopePairing::Adjacent,
            },
            rotary_dim: dims.head_dim,
            theta: config.rope_theta,
            scaling: config.rope_scaling.clone(),
        })
    };
    // A projection's matrix, and its bias if it has one.
    let roles = |with_bias: bool, both: [Role; 2]| if with_bias { both.to_vec() } else { both[..1].to_vec() };

    let x = push(Site::AttnNorm, norm(), &[h], &[Role::AttnNorm]);
    let mut q = push(Site::Q, heads(dims.heads), &[x], &roles(config.qkv_bias, [Role::Q, Role::QBias]));
    let mut k = push(Site::K, heads(dims.kv_heads), &[x], &roles(config.qkv_bias, [Role::K, Role::KBias]));
    let v = push(Site::V, heads(dims.kv_heads), &[x], &roles(config.qkv_bias, [Role::V, Role::VBias]));
    if config.qk_norm {
        q = push(Site::QNorm, norm(), &[q], &[Role::QNorm]);
        k = push(Site::KNorm, norm(), &[k], &[Role::KNorm]);
    }
    q = push(Site::QRope, rope(), &[q], &[]);
    k = push(Site::KRope, rope(), &[k], &[]);
    let qk = push(Site::Qk, Op::Qk, &[q, k], &[]);
    let scale = 1.0 / (dims.head_dim as f64).sqrt();
    let scores = Scores { scale, softcap: None, causal: true, window: config.window.in_layer(layer) };
    let scores = push(Site::Scores, Op::Scores(scores), &[qk], &[]);
    let probs = push(Site::Probs, Op::Softmax, &[scores], &[]);
    let context = push(Site::Context, Op::Context, &[probs, v], &[]);
    let out = roles(config.attn_out_bias, [Role::AttnOut, Role::AttnOutBias]);
    let attn_out = push(Site::AttnOut, linear(), &[context], &out);
    let h = push(Site::HAttn, residual(), &[h, attn_out], &[]);

    let x = push(Site::FfnNorm, norm(), &[h], &[Role::FfnNorm]);
    let gate = push(Site::FfnGate, linear(), &[x], &roles(config.mlp_bias, [Role::Gate, Role::GateBias]));
    let up = push(Site::FfnUp, linear(), &[x], &roles(config.mlp_bias, [Role::Up, Role::UpBias]));
    let act = push(Site::FfnAct, Op::Gated { activation: config.activation }, &[gate, up], &[]);
    let out = push(Site::FfnOut, linear(), &[act], &roles(config.mlp_bias, [Role::Down, Role::DownBias]));
    push(Site::H, residual(), &[h, out], &[])
}
