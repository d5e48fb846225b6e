//! What does each id of the catalogue mean, and what is to be done about it? One line each.

/// Every id that can be named.
pub fn ids() -> Vec<&'static str> {
    WORDS.iter().map(|(id, _, _)| *id).collect()
}

/// What is done wrong, in a sentence that follows the taps: "layers 0-2, q_rope and k_rope: …".
pub fn what(id: &str) -> &'static str {
    WORDS.iter().find(|(known, _, _)| *known == id).map_or("", |words| words.1)
}

/// What to change in the engine.
pub fn advice(id: &str) -> &'static str {
    WORDS.iter().find(|(known, _, _)| *known == id).map_or("", |words| words.2)
}

/// Id, what is done wrong, what to change.
#[rustfmt::skip]
const WORDS: &[(&str, &str, &str)] = &[
    ("tokens-differ", "other token ids were embedded", "feed the same ids: look at BOS, at the prompt's end, at an offset of one"),
    ("embed-scale", "the embedding is scaled by sqrt(D), or was divided by it", "take the factor on the embedding out: this family has none"),
    ("embed-multiplier", "the embedding is multiplied by a factor", "look for an embedding multiplier that this config has not, or has otherwise"),
    ("norm-plus-one", "the norm's gain has 1 added or taken off, as Gemma's", "weigh by the gain as it is stored"),
    ("norm-eps", "the norm adds another epsilon", "take rms_norm_eps from the config"),
    ("norm-eps-outside", "epsilon is added outside the square root", "x / sqrt(mean(x^2) + eps)"),
    ("norm-weight-twice", "the norm's gain is applied twice", "multiply by the gain once"),
    ("norm-weight-omitted", "the norm's gain is not applied", "multiply by the gain"),
    ("norm-centered", "the mean is taken off first, as in LayerNorm", "RMSNorm does not centre"),
    ("norm-sum", "the squares are summed, not averaged", "divide the sum of squares by the width"),
    ("norm-axis", "the mean square is taken over another axis", "one mean for each row, over its last axis"),
    ("norm-width", "the mean square is taken over another width", "divide by the number of elements that are summed: look at padding, at partial reads"),
    ("norm-wrong-weight", "another norm's gain is applied", "look at which tensor is bound to this norm"),
    ("norm-omitted", "the norm is skipped, or done twice", "norm here, once"),
    ("qk-norm-order", "q and k are normed after the rotation", "norm q and k first, then rotate"),
    ("weight-transposed", "the matrix is read as [in,out] where its bytes are [out,in]", "multiply by the transpose: y[o] = sum over i of x[i] * w[o*in + i]"),
    ("weight-stride", "rows of the matrix are read at a wrong distance", "the leading dimension is the width of a row, in"),
    ("weight-wrong-layer", "another layer's matrix is used", "look at the layer index in the tensor's name"),
    ("weight-swapped", "another projection's matrix is used", "look at which tensor is bound to which projection"),
    ("weight-unset", "the matrix is all zeros", "look whether the tensor was loaded at all"),
    ("bias-omitted", "the bias is not added", "add the bias: the file holds one"),
    ("bias-twice", "the bias is added twice", "add the bias once"),
    ("linear-input", "the projection reads another tensor", "look at what is passed in"),
    ("qk-row-order", "the rows of Q or K are in the order of the other rotation", "permute the rows of Wq and Wk per head, or rotate the other pairs, not both"),
    ("fused-split", "a fused matrix is split in the wrong order", "look at how its rows are stored: blocks, groups, or in turn"),
    ("head-layout", "heads are read with their axes exchanged", "rows of a projection are [H,d], positions before heads: [T,H,d]"),
    ("rope-pairing", "the rotation pairs other elements than this model does", "rotate the pairs this model pairs (halves: i and i + d/2; adjacent: 2i and 2i + 1), or permute the rows of Wq and Wk"),
    ("rope-theta", "the rotation has another base", "take rope_theta from the config"),
    ("rope-scaling", "frequencies are scaled otherwise than the config says", "look at rope_scaling in the config: kind, factor, direction"),
    ("rope-attention-factor", "q and k carry another factor", "cos and sin are multiplied by the scaling's attention factor, once"),
    ("rope-partial", "another share of each head is rotated", "rotate rotary_dim elements, with exponents 2i/rotary_dim"),
    ("rope-exponent", "the exponent is i/d where 2i/d is due", "frequency i is theta^(-2i/d)"),
    ("rope-direction", "the rotation turns the other way", "look at the sign of the sine"),
    ("rope-position", "tokens stand at other positions", "the first token is at position 0, a decoded one behind all before it"),
    ("rope-omitted", "there is no rotation", "rotate q and k before the products"),
    ("rope-twice", "the rotation is done twice", "rotate once: look at cached keys"),
    ("aliasing", "an element is written before it is read for the last time", "keep both elements of a pair before either is written"),
    ("rope-on-v", "v is rotated too", "rotate q and k only"),
    ("rope-precision", "cosines, sines or frequencies are kept in 16 bits", "compute angles, cosines and sines in f32"),
    ("score-scale", "the products are scaled by another factor", "scale by 1/sqrt(head_dim)"),
    ("score-softcap", "the scores are capped", "this config has no cap, or another"),
    ("mask-omitted", "later keys are seen", "mask key s of query t where s > t"),
    ("mask-shifted", "the mask is off by a key", "query t sees keys 0 to t, itself included; in a chunk, t counts from the first position"),
    ("mask-inverted", "the mask's polarity is reversed", "hide the future, keep the past"),
    ("mask-fill", "hidden scores are filled with a number that takes part", "fill with -inf"),
    ("mask-after-softmax", "the mask is multiplied in after the softmax", "mask before the softmax"),
    ("window-size", "another number of keys is seen", "take the window from the config: a query sees that many keys, itself included, in the layers that have it"),
    ("softmax-axis", "the softmax runs over another axis", "over the keys, for each query and head"),
    ("softmax-base", "powers of 2 are taken for powers of e", "e^x, or 2^(x / ln 2)"),
    ("sink-omitted", "the denominator holds a term too many or too few", "look at attention sinks"),
    ("kv-head-map", "query heads read other key/value heads", "query head h reads head h / (H/K)"),
    ("kv-cache-shift", "keys or values are written to another slot of the cache", "position p goes to slot p"),
    ("kv-cache-stale", "the newest token's key or value is not in the cache when it is read", "write the cache before the products"),
    ("context-layout", "heads are merged without the transpose", "[H,T,d] becomes [T,H,d] before it is flattened"),
    ("gate-up-swapped", "the activation is applied to up", "activation(gate) * up"),
    ("activation", "another activation is used", "take hidden_act from the config"),
    ("activation-clamp", "gate and up are clamped or shifted", "this family does not"),
    ("gate-product", "gate and up are not multiplied", "activation(gate) * up"),
    ("residual-source", "other tensors are added", "the stream before the block plus the block's output: look for a buffer that is written over"),
    ("residual-omitted", "the stream is not added", "add the stream before the block"),
    ("residual-parallel", "the feed-forward reads the layer's input", "it reads the stream after attention"),
    ("residual-scale", "a term of the sum has a factor", "add both as they are"),
    ("layer-skipped", "the layer is not run", "look at the loop over layers"),
    ("final-norm-omitted", "the final norm is skipped, or done twice", "norm the last hidden state once before the head"),
    ("head-tied", "the embedding serves as the head", "the head has a matrix of its own"),
    ("head-untied", "the head has a matrix that was never loaded", "the embedding is the head: tie_word_embeddings"),
    ("logit-softcap", "the logits are capped", "this config has no cap"),
    ("logit-scale", "the logits are multiplied by a factor", "leave them as they are"),
    ("logit-row", "the logits are another position's", "row t is of token t"),
    ("storage-type", "the bits are read as another type", "look at the tensor's dtype in the file"),
    ("dequant-nibbles", "bits of a quantised block go to the wrong elements", "take nibbles and high bits in the order the type stores them: the low ones of a run first, then the high ones"),
    ("dequant-scale", "parts of a quantised block get the wrong scale or minimum", "unpack scales and minima as the type packs them: in Q4_K and Q5_K those of sub-blocks 4 to 7 lie in three places"),
    ("dequant-truncated", "only the first part of the tensor is read, the rest stays 0", "read as many bytes as the type needs: blocks * bytes of a block"),
    ("precision", "no mistake: another arithmetic", "give its name by --profile, or in dump.json as precision; one of few bits has none: hold it against a second right run (compare --noise)"),
];

#[cfg(test)]
mod tests {
    #[test]
    fn an_unknown_id_has_no_words() {
        assert_eq!(super::what("rope-pairing").is_empty(), super::advice("rope-pairing").is_empty());
        assert!(super::what("nonsense").is_empty());
    }
}
