//! Maps tensor names to weights: names of Hugging Face, GGUF, llama2.c, MiniMind, and of other engines.

use crate::plan::{Role, WeightRef};

/// Divisors of the RoPE frequencies, which some GGUF files hold as a tensor.
pub(crate) const ROPE_FREQS: &str = "rope_freqs.weight";

/// A role, its name in a Hugging Face file and in a GGUF, and every other name seen for it, with parts joined by `_`.
type Names = (Role, &'static str, &'static str, &'static [&'static str]);

const NAMES: &[Names] = &[
    (
        Role::Embedding,
        "embed_tokens.weight",
        "token_embd.weight",
        &[
            "tok_embeddings",
            "tok_embedding",
            "tok_emb",
            "token_embedding",
            "token_embedding_table",
            "token_embeddings",
            "wte",
            "embedding",
            "embed",
        ],
    ),
    (
        Role::AttnNorm,
        "input_layernorm.weight",
        "attn_norm.weight",
        &["attention_norm", "rms_att", "rms_attn", "rms_att_weight", "ln_1"],
    ),
    (Role::Q, "self_attn.q_proj.weight", "attn_q.weight", &["wq", "attention_wq", "attn_wq", "q_proj"]),
    (Role::QBias, "self_attn.q_proj.bias", "attn_q.bias", &["bq", "q_proj"]),
    (Role::K, "self_attn.k_proj.weight", "attn_k.weight", &["wk", "attention_wk", "attn_wk", "k_proj"]),
    (Role::KBias, "self_attn.k_proj.bias", "attn_k.bias", &["bk", "k_proj"]),
    (Role::V, "self_attn.v_proj.weight", "attn_v.weight", &["wv", "attention_wv", "attn_wv", "v_proj"]),
    (Role::VBias, "self_attn.v_proj.bias", "attn_v.bias", &["bv", "v_proj"]),
    (Role::QNorm, "self_attn.q_norm.weight", "attn_q_norm.weight", &[]),
    (Role::KNorm, "self_attn.k_norm.weight", "attn_k_norm.weight", &[]),
    (
        Role::AttnOut,
        "self_attn.o_proj.weight",
        "attn_output.weight",
        &["wo", "attention_wo", "attn_wo", "attn_o", "o_proj"],
    ),
    (Role::AttnOutBias, "self_attn.o_proj.bias", "attn_output.bias", &["bo", "o_proj"]),
    (Role::FfnNorm, "post_attention_layernorm.weight", "ffn_norm.weight", &["rms_ffn", "rms_ffn_weight", "ln_2"]),
    (Role::Gate, "mlp.gate_proj.weight", "ffn_gate.weight", &["w1", "feed_forward_w1", "gate_proj", "gate", "w_gate"]),
    (Role::GateBias, "mlp.gate_proj.bias", "ffn_gate.bias", &["gate_proj", "gate"]),
    (Role::Up, "mlp.up_proj.weight", "ffn_up.weight", &["w3", "feed_forward_w3", "up_proj", "up", "w_up"]),
    (Role::UpBias, "mlp.up_proj.bias", "ffn_up.bias", &["up_proj", "up"]),
    (Role::Down, "mlp.down_proj.weight", "ffn_down.weight", &["w2", "feed_forward_w2", "down_proj", "down", "w_down"]),
    (Role::DownBias, "mlp.down_proj.bias", "ffn_down.bias", &["down_proj", "down"]),
    (
        Role::FinalNorm,
        "norm.weight",
        "output_norm.weight",
        &["final_norm", "final_rms", "rms_final", "rms_final_weight", "ln_f"],
    ),
    (Role::Head, "lm_head.weight", "output.weight", &["wcls", "head", "classifier"]),
];

/// The name of the weight in transformers, for these families.
pub fn hugging_face(WeightRef { layer, role }: WeightRef) -> String {
    let stem = row(role).1;
    match layer {
        Some(layer) => format!("model.layers.{layer}.{stem}"),
        None if role == Role::Head => stem.into(),
        None => format!("model.{stem}"),
    }
}

/// Its name in llama.cpp.
pub fn gguf(WeightRef { layer, role }: WeightRef) -> String {
    let stem = row(role).2;
    match layer {
        Some(layer) => format!("blk.{layer}.{stem}"),
        None => stem.into(),
    }
}

fn row(role: Role) -> &'static Names {
    NAMES.iter().find(|names| names.0 == role).expect("every role is in the table")
}

/// The weight that `name` means in any of these conventions; `None` when it is unknown or ambiguous.
///
/// ```
/// use firstdiff_model::{Role, meaning};
/// for name in ["model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight", "weights.blk.3.attn_q", "layers.3.wq", "layer3_wq", "w_wq3"] {
///     let weight = meaning(name).ok_or(name)?;
///     assert_eq!((weight.layer, weight.role), (Some(3), Role::Q));
/// }
/// assert_eq!(meaning("layers.0.q_rope"), None);
/// # Ok::<(), &str>(())
/// ```
pub fn meaning(name: &str) -> Option<WeightRef> {
    let name = name.to_ascii_lowercase();
    let mut parts: Vec<&str> = name.split(['.', '_', '-', '/']).filter(|part| !part.is_empty()).collect();
    while let Some(first) = parts.first()
        && matches!(*first, "weights" | "weight" | "w" | "model" | "transformer" | "base")
        && parts.len() > 1
    {
        parts.remove(0);
    }
    // Suffixes that authors add to mark the side (reference or candidate).
    while let Some(last) = parts.last()
        && matches!(*last, "cpp" | "torch" | "rs" | "rust" | "ref" | "flat" | "c" | "cuda" | "py")
    {
        parts.pop();
    }
    let bias = parts.last() == Some(&"bias");
    if matches!(parts.last(), Some(&"bias" | &"weight")) {
        parts.pop();
    }
    let layer = take_layer(&mut parts);
    let stem = parts.join("_");
    match layer {
        Some(layer) => role(&stem, bias, true).map(|role| WeightRef { layer: Some(layer), role }),
        None => role(&stem, bias, false).map(|role| WeightRef { layer: None, role }).or_else(|| numbered(&stem, bias)),
    }
}

/// Removes `layers 3`, `blk 3`, `layer3` or `l3` from the parts; returns the layer.
fn take_layer(parts: &mut Vec<&str>) -> Option<u32> {
    const WORDS: &[&str] = &["layers", "layer", "blk", "blocks", "block", "h", "l"];
    for at in 0..parts.len() {
        if WORDS.contains(&parts[at])
            && let Some(layer) = parts.get(at + 1).and_then(|next| number(next))
        {
            parts.drain(at..at + 2);
            return Some(layer);
        }
        let digits = parts[at].trim_start_matches(|c: char| c.is_ascii_alphabetic());
        let word = &parts[at][..parts[at].len() - digits.len()];
        if WORDS.contains(&word)
            && let Some(layer) = number(digits)
        {
            parts.remove(at);
            return Some(layer);
        }
    }
    None
}

/// Reads `wq0`, `wq_0`: the layer after the name.
fn numbered(stem: &str, bias: bool) -> Option<WeightRef> {
    let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    (1..=digits).rev().find_map(|count| {
        let (stem, digits) = stem.split_at(stem.len() - count);
        let role = role(stem.trim_end_matches('_'), bias, true)?;
        Some(WeightRef { layer: Some(number(digits)?), role })
    })
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.len() < 7 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn role(stem: &str, bias: bool, in_layer: bool) -> Option<Role> {
    let joined = |name: &str| name.rsplit_once('.').map(|(stem, kind)| (stem.replace('.', "_"), kind == "bias"));
    let named = |&&(_, hf, gguf, others): &&Names| {
        let kind = joined(hf).is_some_and(|(_, b)| b == bias);
        let own = [hf, gguf].iter().any(|name| joined(name).is_some_and(|(own, _)| own == stem));
        kind && (own || others.contains(&stem))
            || !bias && stem.len() == 2 && stem.starts_with('b') && others.contains(&stem)
    };
    NAMES.iter().filter(|names| is_layered(names.0) == in_layer).find(named).map(|names| names.0)
}

/// Whether each layer has a weight of this role.
pub(crate) fn is_layered(role: Role) -> bool {
    !matches!(role, Role::Embedding | Role::FinalNorm | Role::Head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_conventions_round_trip_for_every_role() {
        for &(role, ..) in NAMES {
            let weight = WeightRef { layer: is_layered(role).then_some(11), role };
            for name in [hugging_face(weight), gguf(weight), format!("weights.{}", gguf(weight))] {
                assert_eq!(meaning(&name), Some(weight), "{name}");
            }
        }
    }

    #[test]
    fn what_engines_call_theirs() {
        let at = |layer, role| Some(WeightRef { layer, role });
        for (name, expected) in [
            ("w_token_embd", at(None, Role::Embedding)),
            ("w_lm_head", at(None, Role::Head)),
            ("w_wq0", at(Some(0), Role::Q)),
            ("w_down0", at(Some(0), Role::Down)),
            ("tok_embedding_cpp", at(None, Role::Embedding)),
            ("layer1_w_gate", at(Some(1), Role::Gate)),
            ("layers.12.feed_forward.w2.weight", at(Some(12), Role::Down)),
            ("layers.2.attention.wo.weight", at(Some(2), Role::AttnOut)),
            ("weights.blk.0.attn_q", at(Some(0), Role::Q)),
            ("tok_embeddings.weight", at(None, Role::Embedding)),
            ("norm.weight", at(None, Role::FinalNorm)),
            ("output.weight", at(None, Role::Head)),
            ("w1.7", at(Some(7), Role::Gate)),
            ("model.layers.0.bq", at(Some(0), Role::QBias)),
            ("h0", None),
            ("logits", None),
            ("layers.0.q", None),
            (ROPE_FREQS, None),
            ("blk.99999999999.attn_q.weight", None),
            ("blk.attn_q.weight", None),
            ("", None),
        ] {
            assert_eq!(meaning(name), expected, "{name}");
        }
    }
}
