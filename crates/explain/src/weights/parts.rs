//! Reads what names of any architecture say of a weight: its layer, and of which part of a block it is, where a word has one meaning.
//!
//! The words are those of Hugging Face's modules and of GGUF's tensors, whichever model uses them. They never prove what a tensor is: they say which tensors
//! it cannot be, so that a swapped one is not taken for right because its values are found elsewhere.

/// A part of a block; a fused tensor is of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Q,
    K,
    V,
    Out,
    Gate,
    Up,
    Down,
    Router,
    AttnNorm,
    QNorm,
    KNorm,
    Embedding,
    Head,
}

use Part::{AttnNorm, Down, Embedding, Gate, Head, K, KNorm, Out, Q, QNorm, Router, Up, V};

/// Words of one meaning: the ends of a name, its parts joined by dots.
const WORDS: &[(&[Part], &[&str])] = &[
    (
        &[Out],
        &[
            "attn.c_proj",
            "attention.dense",
            "self_attn.dense",
            "attn.out_proj",
            "self_attn.out_proj",
            "attention.out_proj",
            "attention.wo",
        ],
    ),
    (&[Down], &["mlp.c_proj", "densereludense.wo", "experts.#.w2", "feed_forward.w2"]),
    (&[Gate], &["experts.#.w1", "feed_forward.w1"]),
    (&[Up], &["experts.#.w3", "feed_forward.w3", "mlp.c_fc", "intermediate.dense"]),
    (&[Q], &["attn_q", "cross_attn_q", "q_proj", "query", "q_lin", "wq", "selfattention.q", "encdecattention.q"]),
    (&[K], &["attn_k", "cross_attn_k", "k_proj", "key", "k_lin", "wk", "selfattention.k", "encdecattention.k"]),
    (&[V], &["attn_v", "cross_attn_v", "v_proj", "value", "v_lin", "wv", "selfattention.v", "encdecattention.v"]),
    (&[Q, K, V], &["attn_qkv", "qkv_proj", "query_key_value", "wqkv", "c_attn", "qkv", "in_proj_qkv"]),
    (&[Out], &["attn_output", "attn_o", "cross_attn_o", "o_proj", "out_lin", "selfattention.o", "encdecattention.o"]),
    (&[Gate], &["ffn_gate", "ffn_gate_exps", "ffn_gate_shexp", "gate_proj", "wi_0"]),
    (&[Up], &["ffn_up", "ffn_up_exps", "ffn_up_shexp", "up_proj", "wi_1", "dense_h_to_4h", "fc1", "fc_in", "lin1"]),
    (&[Gate, Up], &["gate_up_proj", "ffn_gate_up_exps", "input_linear"]),
    (
        &[Down],
        &[
            "ffn_down",
            "ffn_down_exps",
            "ffn_down_shexp",
            "down_proj",
            "dense_4h_to_h",
            "fc2",
            "fc_out",
            "lin2",
            "output_linear",
        ],
    ),
    // A tied one is both.
    (&[Embedding, Head], &["token_embd", "embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in"]),
    (&[Head], &["output", "lm_head", "embed_out"]),
    (&[Router], &["ffn_gate_inp", "router", "gate", "router.layer", "gate.wg"]),
    (&[AttnNorm], &["attn_norm", "input_layernorm"]),
    (&[QNorm], &["attn_q_norm", "q_norm", "q_layernorm", "query_layernorm"]),
    (&[KNorm], &["attn_k_norm", "k_norm", "k_layernorm", "key_layernorm"]),
];

/// A name, and what it says.
pub(super) type Name = (String, Named);

/// What a name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The first number in it.
    pub(super) layer: Option<u32>,
    /// The name with `#` for that number.
    pub(super) stem: String,
    parts: &'static [Part],
    is_bias: Option<bool>,
    is_shared: bool,
    is_cross: bool,
    /// Whether it is of a part that reads images or sound.
    pub(super) is_tower: bool,
    stack: Option<&'static str>,
}

impl Named {
    pub(super) fn of(name: &str) -> Named {
        let pieces: Vec<&str> = name.split('.').collect();
        let number = |piece: &&str| !piece.is_empty() && piece.len() < 7 && piece.bytes().all(|b| b.is_ascii_digit());
        let at = pieces.iter().position(number);
        let mut stem = pieces.clone();
        at.iter().for_each(|&at| stem[at] = "#");
        let layer = at.and_then(|at| pieces[at].parse().ok());
        let lower: Vec<String> =
            pieces.iter().map(|piece| if number(piece) { "#".into() } else { piece.to_ascii_lowercase() }).collect();
        let mut lower = lower;
        let is_bias = match lower.last().map(String::as_str) {
            Some("bias") => Some(true),
            Some("weight") => Some(false),
            Some(last) if last.ends_with("_bias") => Some(true),
            _ => None,
        };
        if let Some(last) =
            lower.pop_if(|_| is_bias.is_some()).and_then(|last| last.strip_suffix("_bias").map(str::to_owned))
        {
            lower.push(last);
        }
        let words = &lower[..];
        let ends = |word: &str| {
            let wanted: Vec<&str> = word.split('.').collect();
            words.len() >= wanted.len() && words[words.len() - wanted.len()..].iter().eq(wanted.iter())
        };
        let parts =
            WORDS.iter().find(|(_, words)| words.iter().any(|word| ends(word))).map_or(&[][..], |found| found.0);
        let has = |some: &[&str]| words.iter().any(|word| some.iter().any(|part| word.contains(part)));
        let stack = [("enc", "encoder"), ("dec", "decoder")];
        let stack = stack.into_iter().find(|(short, long)| words.iter().any(|word| word == short || word == long));
        Named {
            layer,
            stem: stem.join("."),
            parts,
            is_bias,
            is_shared: has(&["shexp", "shared_expert", "shared_mlp"]),
            is_cross: has(&["cross", "encdecattention", "encoder_attn"]),
            is_tower: has(&["vision", "visual", "image", "audio"]),
            stack: stack.map(|(short, _)| short),
        }
    }

    /// In which order tensors are joined: queries, keys and values, then by their numbers.
    pub(super) fn order(&self) -> impl Ord + use<> {
        let number = |piece: &str| match piece.parse::<u32>() {
            Ok(number) => (number, String::new()),
            Err(_) => (0, piece.to_owned()),
        };
        (self.parts.first().copied(), self.stem.split('.').map(number).collect::<Vec<_>>())
    }

    /// What stands before the number of the layer.
    pub(super) fn stack_name(&self) -> String {
        self.stem.split('#').next().unwrap_or_default().to_owned()
    }

    /// Whether a tensor of that name may be made of one of the other name.
    pub(super) fn may_be_of(&self, other: &Named) -> bool {
        let differ = |one: Option<u32>, other: Option<u32>| one.zip(other).is_some_and(|(one, other)| one != other);
        let kinds = self.is_bias.zip(other.is_bias).is_some_and(|(one, other)| one != other);
        let stacks = self.stack.zip(other.stack).is_some_and(|(one, other)| one != other);
        let parts = !self.parts.is_empty() && !other.parts.is_empty() && !self.shares(other);
        !differ(self.layer, other.layer)
            && self.layer.is_some() == other.layer.is_some()
            && !(kinds || stacks || parts)
            && self.is_shared == other.is_shared
            // Of a norm only one of the two may say what it is before.
            && (self.is_cross == other.is_cross || self.parts.is_empty() || other.parts.is_empty())
    }

    /// Whether both names have words for the same parts.
    pub(super) fn is_of(&self, other: &Named) -> bool {
        let is_bias = |named: &Named| named.is_bias == Some(true);
        !self.parts.is_empty() && self.parts == other.parts && is_bias(self) == is_bias(other)
    }

    /// Whether a tensor of the other name is one of the parts that are stored together under this one.
    pub(super) fn has_part(&self, other: &Named) -> bool {
        let is_bias = |named: &Named| named.is_bias == Some(true);
        let is_one = matches!(other.parts, [part] if self.parts.contains(part));
        self.parts.len() > 1 && is_one && is_bias(self) == is_bias(other)
    }

    /// Whether one of two tensors of a layer may be stored as a part of the other.
    pub(super) fn may_be_joined(&self, other: &Named) -> bool {
        self.layer == other.layer && self.may_be_of(other) && (self.has_part(other) || other.has_part(self))
    }

    /// How many parts a tensor of that name has: queries, keys and values that are stored together have three.
    pub(super) fn count(&self) -> usize {
        self.parts.len()
    }

    /// Whether it is of queries or keys, whose rows stand in the order of a rotation.
    pub(super) fn is_turned(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Q | K | QNorm | KNorm))
    }

    /// Whether the part that it is stands before the other one where both are stored together; `None` where one is no single part, or both are the same.
    pub(super) fn stands_before(&self, other: &Named) -> Option<bool> {
        match (self.parts, other.parts) {
            ([own], [there]) if own != there => Some(own < there),
            _ => None,
        }
    }

    /// Whether both names have words for one part.
    fn shares(&self, other: &Named) -> bool {
        self.parts.iter().any(|part| other.parts.contains(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_tensor_cannot_be() {
        let may = |one: &str, other: &str| Named::of(one).may_be_of(&Named::of(other));
        for (one, other, due) in [
            ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", true),
            ("blk.0.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", false),
            ("blk.0.attn_q.weight", "model.layers.0.self_attn.k_proj.weight", false),
            ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.weight", false),
            ("blk.0.attn_q.weight", "transformer.h.0.attn.c_attn.weight", true),
            ("blk.0.ffn_gate_exps.weight", "model.layers.0.mlp.experts.5.gate_proj.weight", true),
            ("blk.0.ffn_gate_exps.weight", "model.layers.0.block_sparse_moe.experts.5.w3.weight", false),
            ("blk.0.ffn_gate_shexp.weight", "model.layers.0.mlp.experts.5.gate_proj.weight", false),
            ("blk.0.ffn_down.weight", "transformer.h.0.attn.c_proj.weight", false),
            ("blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight", true),
            ("dec.blk.0.attn_q.weight", "encoder.block.0.layer.0.SelfAttention.q.weight", false),
            ("dec.blk.0.cross_attn_q.weight", "decoder.block.0.layer.1.EncDecAttention.q.weight", true),
            ("dec.blk.0.cross_attn_norm.weight", "decoder.block.0.layer.1.layer_norm.weight", true),
            ("blk.0.ffn_down_exps.bias", "model.layers.0.mlp.experts.down_proj_bias", true),
            ("blk.0.ffn_down_exps.weight", "model.layers.0.mlp.experts.down_proj_bias", false),
            ("output_norm.weight", "model.layers.0.input_layernorm.weight", false),
        ] {
            assert_eq!(may(one, other), due, "{one} of {other}");
        }
        assert_eq!(Named::of("model.layers.3.mlp.experts.7.w1.weight").stem, "model.layers.#.mlp.experts.7.w1.weight");
    }
}
