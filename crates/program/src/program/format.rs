//! Defines the JSON structure of program.json; `read` builds a program from it.
//!
//! # Version 1
//!
//! program.safetensors beside it holds the values of constants and inputs.
//!
//! ```json
//! {"version": 1,
//!  "source": "torch 2.9.1, transformers 4.57.1",
//!  "model": "Qwen3MoeForCausalLM",
//!  "weights": {"1": "model.layers.0.self_attn.q_proj.weight"},
//!  "constants": [12, 13],
//!  "inputs": {"0": "input_ids"},
//!  "values": [["f32", [1, 12, 32]], ["f32", [32, 32]], ["f32", [8, 4], [1, 8], 0]],
//!  "files": ["transformers/models/qwen3_moe/modeling_qwen3_moe.py"],
//!  "scopes": [["model.layers.0.self_attn", ["apply_rotary_pos_emb"], 0]],
//!  "ops": [
//!   {"o": "mul.Tensor", "i": [20, 67], "y": [68], "s": 0, "l": 282},
//!   {"o": "linear", "i": [68, 1], "y": [69], "s": 7, "l": 134},
//!   {"o": "mul.Tensor", "i": [{"v": [75, [1, 4, 12, 8], [384, 8, 32, 1]]}, {"v": [60, [1, 1, 12, 8], [96, 96, 8, 1], 4]}], "y": [84], "s": 12, "l": 79},
//!   {"o": "mul.Tensor", "i": [100, {"c": 0.3535533905932738}], "y": [101]},
//!   {"o": "softmax.int", "i": [102, {"c": -1}, {"t": "f32"}], "y": [103]},
//!   {"o": "add_.Tensor", "i": [104, {"c": 1}], "y": [104], "w": [0]},
//!   {"o": "cat", "i": [[105, 106], {"c": -1}], "y": [107]},
//!   {"o": "gelu", "i": [108], "a": {"approximate": {"c": "tanh"}}, "y": [109]},
//!   {"o": "_local_scalar_dense", "i": [110], "y": [], "x": 3}],
//!  "steps": [{"ops": [0, 235], "tokens": 12, "output": 234}],
//!  "taps": [{"tap": "layers.0.q", "step": 0, "op": 17, "v": {"v": [69, [12, 4, 8], [32, 8, 1]]}}]}
//! ```
//!
//! * `values[b]`: the canonical view of buffer b: dtype, shape, and, where it is not contiguous from 0, strides and offset (in elements of the dtype).
//!   dtypes: f64 f32 f16 bf16 f8_e4m3 f8_e5m2 i64 i32 i16 i8 u8 bool c64 c128.
//! * An operand: an integer b (the canonical view of buffer b); `{"v": [b, shape, strides, offset, dtype]}` with offset and dtype optional (0, the
//!   buffer's); `{"c": scalar}` (number, bool, string; non-finite floats as "inf", "-inf", "nan"); `{"t": dtype}`; null (None); a list of operands. Strides
//!   and offsets are in elements of the view's dtype, and may be 0 (expanded). A buffer may be viewed as c64 over f32 and the reverse (view_as_complex,
//!   view_as_real): then extents are in elements of the view's own dtype over the same bytes.
//! * The size of a buffer is given by how far its views reach.
//! * `o`: the name of the aten operation without `aten.` and `.default` (torch schema argument order for `i`; keyword arguments in `a`), or of ggml's after
//!   `ggml.`. `y`: outputs (null where the op gives none). `w`: indexes into `i` of operands that are written in place; then `y` repeats them, and the
//!   result is stored there. `out=`-style operations do not occur.
//! * `x`: the scalar or list that an operation gave to Python (`item`, `is_nonzero`, `tolist`): data-dependent control flow. Evaluation must find the same
//!   value, else it stops with an error that says so.
//! * `s`: index into scopes (module path, functions inside, index into files); `l`: line. Optional.
//! * `weights`: buffer -> name in the model's safetensors. `constants` and `inputs`: program.safetensors has their values under the buffer's number as key
//!   ("12"), in the canonical view's shape (contiguous in the file; the canonical view's strides give the layout in the buffer; complex as a trailing axis
//!   of 2).
//! * `steps`: range of ops, number of tokens, and the operand of the model's main output (logits).
//! * `taps`: name, step, the op after which it is read (its value may be overwritten later), and its view, in the tap's axes.
//! * Inputs, weights and constants are available before the first op. Operations of a later step may read buffers of an earlier one (the K/V cache).
//!
//! # Programs of llama.cpp
//!
//! The same file from ggml's graph:
//!
//! - **Operations** are `ggml.MUL_MAT`, `ggml.UNARY.SILU`, `ggml.GLU.SWIGLU`; operands are in the order of ggml's `src`, for products the matrix first. The
//!   values in `op_params` are named keywords in `a` (`eps`, `freq_base`, `scale`); if the recorder does not know an operation's parameters, they stay
//!   numbers, `op_params`. `s` names the node.
//! - **Axes** are slowest first, the reverse of ggml's, and leading axes of extent 1 are omitted; `axis` of CONCAT counts from the end. PAD, ROLL and the
//!   sections of ROPE keep ggml's numbers, 0 for the fastest axis.
//! - **Read**, an operation that is exactly a few of aten's becomes those (`lower`): a matrix product `linear`, a softmax the scale, the mask and `softmax`, a
//!   rotation its tables and products. The rest keeps its name.
//! - **Weights** have GGUF's names. A quantised one is f32, contiguous in elements: the reader dequantises.
//! - **Caches and states** are buffers that all steps share; an empty one begins with `zeros`. SET_ROWS is written in place (`w`), CPY writes where its
//!   output's view is.
//! - **Inputs** are tokens, positions, masks, rows of the cache: what llama.cpp computes outside of its graph, with values for each step (`inp_pos@1`). For
//!   a decoder the encoder's output is an input.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The field that every version has.
#[derive(Deserialize)]
pub(crate) struct Header {
    pub(crate) version: u64,
}

/// Version 1.
#[derive(Deserialize)]
pub(crate) struct Document {
    #[serde(default)]
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) model: String,
    /// The folder of the model's files.
    #[serde(default)]
    pub(crate) folder: Option<std::path::PathBuf>,
    #[serde(default)]
    pub(crate) weights: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) constants: Vec<i64>,
    #[serde(default)]
    pub(crate) inputs: BTreeMap<String, String>,
    /// \[dtype, shape, strides, offset\], the last two optional.
    pub(crate) values: Vec<Vec<Value>>,
    #[serde(default)]
    pub(crate) files: Vec<String>,
    /// Module, functions, file.
    #[serde(default)]
    pub(crate) scopes: Vec<(String, Vec<String>, Option<i64>)>,
    pub(crate) ops: Vec<OpRecord>,
    pub(crate) steps: Vec<StepRecord>,
    #[serde(default)]
    pub(crate) taps: Vec<TapRecord>,
}

/// An operation.
#[derive(Deserialize)]
pub(crate) struct OpRecord {
    /// Name.
    pub(crate) o: String,
    /// Operands.
    #[serde(default)]
    pub(crate) i: Vec<Value>,
    /// Keywords.
    #[serde(default)]
    pub(crate) a: BTreeMap<String, Value>,
    /// Outputs.
    #[serde(default)]
    pub(crate) y: Vec<Value>,
    /// Operands written in place.
    #[serde(default)]
    pub(crate) w: Vec<i64>,
    /// Scalar given to Python.
    #[serde(default)]
    pub(crate) x: Option<Value>,
    /// Scope.
    #[serde(default)]
    pub(crate) s: Option<i64>,
    /// Line.
    #[serde(default)]
    pub(crate) l: Option<i64>,
}

/// A forward pass.
#[derive(Deserialize)]
pub(crate) struct StepRecord {
    pub(crate) ops: (i64, i64),
    #[serde(default)]
    pub(crate) tokens: i64,
    #[serde(default)]
    pub(crate) output: Option<Value>,
}

/// A named value.
#[derive(Deserialize)]
pub(crate) struct TapRecord {
    pub(crate) tap: String,
    pub(crate) step: i64,
    pub(crate) op: i64,
    pub(crate) v: Value,
}
