//! Guesses which tap a name means where the content shows nothing: by its words, its layer number and its size, else by the order of writing.
//!
//! A guess is not a proposal by content: it is shown to a person, and no command uses it.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::{Site, Tap};
use serde::Serialize;

/// Common words for a site, found between other words; the longest match counts.
const WORDS: [(Site, &str); 27] = [
    (Site::H0, "embed emb embd embedding embeddings wte tok_emb token_embd embed_tokens"),
    (
        Site::AttnNorm,
        "attn_norm attention_norm input_layernorm input_norm ln_1 ln1 norm1 norm_1 attn_ln ln_attn rms_att pre_attn",
    ),
    (Site::Q, "q query queries q_proj wq attn_q xq"),
    (Site::K, "k key keys k_proj wk attn_k xk"),
    (Site::V, "v value values v_proj wv attn_v xv"),
    (Site::QNorm, "q_norm query_norm q_layernorm q_ln"),
    (Site::KNorm, "k_norm key_norm k_layernorm k_ln"),
    (Site::QRope, "q_rope q_rot q_rotary rope_q rot_q q_roped q_embed query_rot q_pe"),
    (Site::KRope, "k_rope k_rot k_rotary rope_k rot_k k_roped k_embed key_rot k_pe"),
    (Site::Qk, "qk kq qkt qk_t q_k dots raw_scores"),
    (Site::Scores, "scores score attn_scores scaled_scores masked_scores attn_logits"),
    (Site::Probs, "probs attn_probs softmax soft_max attn_weights attention_weights pattern att attn_w"),
    (Site::Context, "context ctx kqv attn_values attn_ctx attn_heads heads_out z av"),
    (Site::AttnOut, "attn_out attention_out attn_output o_proj wo attn_proj out_proj attn attention"),
    (Site::AttnPostNorm, "attn_post_norm post_attn_norm"),
    (
        Site::HAttn,
        "h_attn resid_mid ffn_inp after_attn post_attn attn_resid resid1 resid_1 residual_1 residual1 h_mid mid",
    ),
    (
        Site::FfnNorm,
        "ffn_norm post_attention_layernorm mlp_norm ln_2 ln2 norm2 norm_2 ln_mlp ffn_ln rms_ffn pre_ffn pre_mlp",
    ),
    (Site::FfnGate, "gate gate_proj ffn_gate mlp_gate w1"),
    (Site::FfnUp, "up up_proj ffn_up mlp_up w3"),
    (Site::FfnAct, "act ffn_act mlp_act swiglu silu gelu glu gated"),
    (Site::RouterLogits, "router router_logits gate_logits gate_inp"),
    (Site::RouterProbs, "router_probs router_weights"),
    (Site::FfnOut, "ffn_out mlp_out down down_proj w2 ffn_down ffn mlp ffn_output mlp_output"),
    (Site::FfnPostNorm, "ffn_post_norm post_ffn_norm post_feedforward_layernorm"),
    (
        Site::H,
        "h resid_post layer_out layer_output block_out block_output l_out out output hidden hidden_states resid2 residual_2 x",
    ),
    (Site::FinalNorm, "final_norm ln_f norm_f final_layernorm output_norm last_norm norm"),
    (Site::Logits, "logits lm_head head unembed output result_output"),
];

/// Why a name is proposed for a tap.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "lowercase")]
pub enum ProposalBasis {
    /// The same values, in any order.
    Content {
        /// NMSE between the sorted values: the worst of the matched tensors.
        nmse: f64,
        /// The second-best tap.
        next: Option<NextTap>,
        /// How many tensors of this name matched.
        matched: usize,
        /// How many there are.
        of: usize,
    },
    /// The only tensor and the only tap with this number of elements. Their values differ.
    Size {
        /// Elements.
        elements: usize,
    },
    /// A guess by the words in the name, its layer's number and its size; its values match no tap.
    Words,
    /// A guess by the order in which tensors of that size were written, and that in which a run produces such taps.
    Order,
}

/// The second-best tap.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NextTap {
    /// Its name.
    pub tap: String,
    /// NMSE between the sorted values.
    pub nmse: f64,
}

/// A name with one of its numbers replaced by the layer's, and the tensors with such names.
pub(crate) struct Family {
    /// With `{N}` or `{N+1}`; a plain name where it has no layer.
    pub(crate) template: String,
    /// Elements by layer.
    members: BTreeMap<Option<u32>, usize>,
    /// The index of its first tensor in the order of writing.
    first: usize,
}

/// Groups names, in the order of writing, into families over `layers` layers. A name without a family is a family of its own.
pub(crate) fn families(names: &[(String, usize)], layers: u32) -> Vec<Family> {
    let mut groups: BTreeMap<String, BTreeMap<u32, (usize, usize)>> = BTreeMap::new();
    for (at, (name, size)) in names.iter().enumerate() {
        for (template, number) in with_one_number_out(name) {
            groups.entry(template).or_default().insert(number, (at, *size));
        }
    }
    // Layers are counted from 0 or from 1; a number beyond the last layer is not a layer's.
    let base = |numbers: &BTreeMap<u32, (usize, usize)>| {
        let (least, most) = (*numbers.keys().next()?, *numbers.keys().next_back()?);
        match (least, most) {
            (_, most) if most < layers && (least == 0 || numbers.len() < layers as usize) => Some(0),
            (1.., most) if most == layers => Some(1),
            _ => None,
        }
    };
    type Numbers = BTreeMap<u32, (usize, usize)>;
    let mut order: Vec<(&String, &Numbers, u32)> = groups
        .iter()
        .filter_map(|(template, numbers)| Some((template, numbers, base(numbers)?)))
        .filter(|(_, numbers, _)| numbers.len() > 1 || layers == 1)
        .collect();
    order.sort_by_key(|(template, numbers, _)| (std::cmp::Reverse(numbers.len()), template.len()));
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut found = Vec::new();
    for (template, numbers, base) in order {
        if numbers.values().any(|(at, _)| taken.contains(at)) {
            continue;
        }
        taken.extend(numbers.values().map(|(at, _)| at));
        found.push(Family {
            template: template.replace("{}", if base == 0 { "{N}" } else { "{N+1}" }),
            members: numbers.iter().map(|(number, (_, size))| (Some(number - base), *size)).collect(),
            first: numbers.values().map(|(at, _)| *at).min().unwrap_or(0),
        });
    }
    let alone = names.iter().enumerate().filter(|(at, _)| !taken.contains(at));
    found.extend(alone.map(|(first, (name, size))| Family {
        template: name.clone(),
        members: BTreeMap::from([(None, *size)]),
        first,
    }));
    found.sort_by_key(|family| family.first);
    found
}

/// The name without one of its numbers, for each of its numbers.
fn with_one_number_out(name: &str) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    let mut from = None;
    for (at, c) in name.char_indices().chain([(name.len(), ' ')]) {
        match (c.is_ascii_digit(), from) {
            (true, None) => from = Some(at),
            (false, Some(start)) => {
                let number = name[start..at].parse().ok();
                found.extend(number.map(|number| (format!("{}{{}}{}", &name[..start], &name[at..]), number)));
                from = None;
            }
            _ => {}
        }
    }
    found
}

/// Guesses for families, among the `open` taps, given with their numbers of elements: a family, and its site.
pub(crate) fn guesses<'a>(
    families: &'a [Family],
    open: &BTreeMap<Tap, usize>,
    in_order: bool,
) -> Vec<(&'a Family, Site, ProposalBasis)> {
    let sites: BTreeSet<Site> = open.keys().map(|tap| tap.site).collect();
    let fits = |family: &Family, site: Site| {
        family.members.iter().all(|(&layer, &size)| open.get(&Tap { layer, site }) == Some(&size))
    };
    let mut scored: Vec<(usize, &Family, Site)> = Vec::new();
    for family in families {
        let best: Vec<(usize, Site)> = sites
            .iter()
            .filter(|site| fits(family, **site))
            .map(|site| (score(&family.template, *site), *site))
            .filter(|(score, _)| *score > 0)
            .collect();
        let top = best.iter().map(|(score, _)| *score).max().unwrap_or(0);
        let mut of_top = best.iter().filter(|(score, _)| *score == top);
        // Two sites match equally well: the words do not decide.
        if let (Some((score, site)), None) = (of_top.next(), of_top.next()) {
            scored.push((*score, family, *site));
        }
    }
    scored.sort_by_key(|(score, family, _)| (std::cmp::Reverse(*score), family.first));
    let mut taken: BTreeSet<Site> = BTreeSet::new();
    let mut named: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for (_, family, site) in scored {
        if taken.insert(site) {
            named.insert(&family.template);
            found.push((family, site, ProposalBasis::Words));
        }
    }
    if in_order {
        // As many names as there are sites of that size, in the same order.
        let left: Vec<&Family> = families.iter().filter(|family| !named.contains(family.template.as_str())).collect();
        let mut groups: BTreeMap<&BTreeMap<Option<u32>, usize>, Vec<&Family>> = BTreeMap::new();
        left.iter().for_each(|family| groups.entry(&family.members).or_default().push(family));
        for alike in groups.values() {
            let fitting = sites.iter().copied().filter(|s| !taken.contains(s) && fits(alike[0], *s));
            let fitting: Vec<Site> = fitting.collect();
            if fitting.len() == alike.len() {
                found.extend(alike.iter().zip(fitting).map(|(family, site)| (*family, site, ProposalBasis::Order)));
            }
        }
    }
    found.sort_by_key(|(family, ..)| family.first);
    found
}

/// How well a name's words match a site: the length of the longest of the site's words in it; mere similarity to the site's own name counts little.
pub(crate) fn score(template: &str, site: Site) -> usize {
    let name = normalised_name(template);
    let words = WORDS.iter().find(|(of, _)| *of == site).map_or("", |(_, words)| words);
    let longest =
        words.split_whitespace().filter(|word| name.contains(&format!("_{word}_"))).map(|word| 2 * word.len()).max();
    longest.unwrap_or(usize::from(similarity(&name, site.name()) > 0.7))
}

/// The similarity of two names: the share of letter pairs that they have in common.
fn similarity(one: &str, other: &str) -> f64 {
    let pairs = |text: &str| -> BTreeSet<(char, char)> {
        let letters: Vec<char> = text.chars().filter(|c| c.is_ascii_alphabetic()).collect();
        letters.windows(2).map(|pair| (pair[0], pair[1])).collect()
    };
    let (one, other) = (pairs(one), pairs(other));
    2.0 * one.intersection(&other).count() as f64 / (one.len() + other.len()).max(1) as f64
}

/// `_self_attn_q_proj_` of `layers.{N}.selfAttn/q_proj`: lower case, one separator, without the words that every name has.
fn normalised_name(template: &str) -> String {
    let text = template.replace("{N+1}", "_").replace("{N}", "_");
    let mut out = String::from("_");
    let mut before = '_';
    for c in text.chars() {
        let joint = before.is_ascii_lowercase() && c.is_ascii_uppercase();
        if joint || !c.is_ascii_alphanumeric() {
            out.push('_');
        }
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    out.push('_');
    while out.contains("__") {
        out = out.replace("__", "_");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(layers: usize, of: &[&str]) -> Vec<(String, usize)> {
        (0..layers).flat_map(|n| of.iter().map(move |name| (name.replace("{}", &n.to_string()), 64))).collect()
    }

    #[track_caller]
    fn guessed(names: &[(String, usize)], open: &[&str], in_order: bool, due: &[(&str, &str)]) {
        let taps: BTreeMap<Tap, usize> = (0..3)
            .flat_map(|n| open.iter().map(move |tap| (tap.replace("{N}", &n.to_string()).parse().unwrap(), 64)))
            .collect();
        let families = families(names, 3);
        let found = guesses(&families, &taps, in_order);
        let found: Vec<(&str, &str)> = found.iter().map(|(f, site, _)| (f.template.as_str(), site.name())).collect();
        assert_eq!(found, due);
    }

    #[test]
    fn words_in_a_name() {
        for (name, site) in [
            ("block{N}.selfAttn.q_proj", Site::Q),
            ("model.layers.{N}.post_attention_layernorm", Site::FfnNorm),
            ("L{N}/after_attn", Site::HAttn),
            ("rotQ_{N}", Site::QRope),
            ("tfm_{N}_mlp_down", Site::FfnOut),
        ] {
            let best = Site::ALL.iter().copied().max_by_key(|site| score(name, *site));
            let top = score(name, best.unwrap());
            assert!(score(name, site) == top && top > 0, "{name}: {best:?}");
        }
    }

    #[test]
    fn families_by_words_and_layer() {
        let names = names(3, &["b{}_wq", "b{}_wk", "b{}_strange"]);
        guessed(
            &names,
            &["layers.{N}.q", "layers.{N}.k", "layers.{N}.v"],
            false,
            &[("b{N}_wq", "q"), ("b{N}_wk", "k")],
        );
    }

    #[test]
    fn the_order_of_writing() {
        let names = names(3, &["{}a", "{}b"]);
        guessed(&names, &["layers.{N}.h", "layers.{N}.h_attn"], true, &[("{N}a", "h_attn"), ("{N}b", "h")]);
        guessed(&names, &["layers.{N}.h", "layers.{N}.h_attn"], false, &[]);
        guessed(&names, &["layers.{N}.h"], true, &[]);
    }
}
