//! Defines the Plan: the steps of a forward pass as data. Each step names its output tap, its operation, and what it reads.

use std::fmt;

use firstdiff_core::{Activation, RopePairing, RopeScaling};
use firstdiff_trace::{Site, Tap};

/// A model's forward pass: its steps in running order.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// `model_type` of the config, or the equivalent.
    pub family: String,
    /// The sizes.
    pub dims: ModelDims,
    /// The steps. Each reads only taps of steps before it.
    pub steps: Vec<Step>,
}

/// One operation of a forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The tap that the step produces.
    pub tap: Tap,
    /// The operation.
    pub op: Op,
    /// The taps it reads, in the order of the operation's inputs.
    pub reads: Vec<Tap>,
    /// The weights it reads: the matrix or gain, then the bias where there is one.
    pub weights: Vec<WeightRef>,
}

/// An operation with all of its parameters. T, S, H, K and d follow from the inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Rows of the embedding matrix, times `scale`. Reads the token ids.
    Embedding {
        /// 1, except for the Gemmas.
        scale: f64,
    },
    /// RMSNorm over the last axis.
    RmsNorm {
        /// Added to the mean square.
        eps: f64,
    },
    /// x Wᵀ + b. With `heads` the last axis is split into that many heads.
    Linear {
        /// Heads of the output, for q, k and v.
        heads: Option<usize>,
    },
    /// Rotates pairs of each head by the token's position.
    Rope(Rope),
    /// Products of the queries with all keys so far.
    Qk,
    /// Scales, caps and masks the products.
    Scores(Scores),
    /// Softmax over the keys.
    Softmax,
    /// Sum of all values so far, weighted by the probabilities; heads merged.
    Context,
    /// activation(gate) · up.
    Gated {
        /// The activation of the gate.
        activation: Activation,
    },
    /// The residual stream plus `multiplier` times a branch.
    Residual {
        /// 1, except for Granite and MiniCPM.
        multiplier: f64,
    },
    /// Logits: x Wᵀ.
    Head,
}

/// The parameters of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which elements make a pair.
    pub pairing: RopePairing,
    /// How many leading elements of a head are rotated.
    pub rotary_dim: usize,
    /// The base of the frequencies.
    pub theta: f64,
    /// How the frequencies are changed for long contexts.
    pub scaling: RopeScaling,
}

/// How raw attention products are changed before the softmax.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Factor on the products: 1/√d.
    pub scale: f64,
    /// c of c·tanh(x/c), if the family has it.
    pub softcap: Option<f64>,
    /// Whether later keys are hidden.
    pub causal: bool,
    /// How many keys a query sees at most, its own included.
    pub window: Option<usize>,
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelDims {
    /// V, rows of the embedding.
    pub vocab: usize,
    /// D, width of the residual stream.
    pub hidden: usize,
    /// H, query heads.
    pub heads: usize,
    /// K, key/value heads.
    pub kv_heads: usize,
    /// d, width of a head.
    pub head_dim: usize,
    /// F, width of the feed-forward.
    pub ffn: usize,
    /// Layers.
    pub layers: u32,
}

/// A weight by its role; the weight files know its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightRef {
    /// The layer; `None` for the embedding, the final norm and the head.
    pub layer: Option<u32>,
    /// Its role.
    pub role: Role,
}

/// The role of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// \[V,D\]
    Embedding,
    /// \[D\], before attention.
    AttnNorm,
    /// \[H·d,D\]
    Q,
    /// \[H·d\]
    QBias,
    /// \[K·d,D\]
    K,
    /// \[K·d\]
    KBias,
    /// \[K·d,D\]
    V,
    /// \[K·d\]
    VBias,
    /// \[d\], over each query head.
    QNorm,
    /// \[d\], over each key head.
    KNorm,
    /// \[D,H·d\]
    AttnOut,
    /// \[D\]
    AttnOutBias,
    /// \[D\], before the feed-forward.
    FfnNorm,
    /// \[F,D\]
    Gate,
    /// \[F\]
    GateBias,
    /// \[F,D\]
    Up,
    /// \[F\]
    UpBias,
    /// \[D,F\]
    Down,
    /// \[D\]
    DownBias,
    /// \[D\]
    FinalNorm,
    /// \[V,D\]
    Head,
}

impl Plan {
    /// The step that produces `tap`.
    pub fn step(&self, tap: Tap) -> Option<&Step> {
        self.steps.iter().find(|step| step.tap == tap)
    }
}

impl Step {
    /// The input that is read with the rows of earlier decode steps: keys or values.
    pub fn cached(&self) -> Option<Tap> {
        match self.op {
            Op::Qk | Op::Context => self.reads.get(1).copied(),
            _ => None,
        }
    }
}

impl Op {
    /// The operation's name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embedding { .. } => "embedding",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::Rope(_) => "rope",
            Op::Qk => "qk",
            Op::Scores(_) => "scores",
            Op::Softmax => "softmax",
            Op::Context => "context",
            Op::Gated { .. } => "gated",
            Op::Residual { .. } => "residual",
            Op::Head => "head",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ModelDims {
    /// The extent of a tap's axis, by its letter; `None` for tokens, keys and experts, whose number the model does not fix.
    pub fn extent(&self, axis: char) -> Option<usize> {
        match axis {
            'D' => Some(self.hidden),
            'H' => Some(self.heads),
            'K' => Some(self.kv_heads),
            'd' => Some(self.head_dim),
            'C' => Some(self.heads * self.head_dim),
            'F' => Some(self.ffn),
            'V' => Some(self.vocab),
            _ => None,
        }
    }

    /// Elements of a tap for each token; axes of tokens or keys count as 1.
    pub fn width(&self, site: Site) -> usize {
        site.axes().iter().filter_map(|&axis| self.extent(axis)).product()
    }

    /// The shape of a weight, \[out,in\] for a matrix.
    pub fn shape(&self, role: Role) -> Vec<usize> {
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        match role {
            Role::Embedding | Role::Head => vec![self.vocab, self.hidden],
            Role::Q => vec![queries, self.hidden],
            Role::K | Role::V => vec![keys, self.hidden],
            Role::AttnOut => vec![self.hidden, queries],
            Role::Gate | Role::Up => vec![self.ffn, self.hidden],
            Role::Down => vec![self.hidden, self.ffn],
            Role::QBias => vec![queries],
            Role::KBias | Role::VBias => vec![keys],
            Role::GateBias | Role::UpBias => vec![self.ffn],
            Role::QNorm | Role::KNorm => vec![self.head_dim],
            Role::AttnNorm | Role::FfnNorm | Role::FinalNorm | Role::AttnOutBias | Role::DownBias => vec![self.hidden],
        }
    }
}
