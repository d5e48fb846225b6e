//! Provides valid inputs for the fuzzer: small files of every supported format, with tap names so that they are read completely.

use super::input::{FileContent, Fragment, Input, InputFile, Member, Target};

const TOKENS: &str = "[1, 17, 42]";
/// The format whose first input is the right side when weights are compared.
pub(super) const WEIGHTS: &str = "safetensors of weights";

pub(super) fn bytes(bytes: impl Into<Vec<u8>>) -> Fragment {
    Fragment::Bytes(bytes.into())
}

pub(super) fn text(text: impl Into<String>) -> Fragment {
    Fragment::Text(text.into())
}

pub(super) fn floats(count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| ((i as f32 * 0.37).sin() + 0.01).to_le_bytes()).collect()
}

fn halves(count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| [(i * 37) as u8, 0x30 + (i % 12) as u8]).collect()
}

/// A .npy whose header length is counted.
pub(super) fn npy(version: u8, descr: &str, fortran: &str, shape: &str, data: Vec<u8>) -> Vec<Fragment> {
    let start = [b"\x93NUMPY".as_slice(), &[version, 0]].concat();
    let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    vec![bytes(start), Fragment::Counted(if version == 1 { 2 } else { 4 }, header), bytes(data)]
}

pub(super) fn plain_file(name: &str, pieces: Vec<Fragment>) -> InputFile {
    InputFile { name: name.into(), body: FileContent::Plain(pieces) }
}

fn single_file(form: &'static str, reader: Target, name: &'static str, pieces: Vec<Fragment>) -> Input {
    Input { form, parts: vec![plain_file(name, pieces)], reader, opened: name }
}

pub(super) fn folder(form: &'static str, reader: Target, parts: Vec<InputFile>) -> Input {
    Input { form, parts, reader, opened: "" }
}

fn archive(form: &'static str, name: &'static str, packed: bool, members: Vec<(&str, Vec<Fragment>)>) -> Input {
    let members = members.into_iter().map(|(name, pieces)| Member { name: name.into(), pieces, packed }).collect();
    Input {
        form,
        parts: vec![InputFile { name: name.into(), body: FileContent::Zip(members) }],
        reader: Target::Dump,
        opened: name,
    }
}

/// Every valid input.
pub(super) fn all() -> Vec<Input> {
    let mut all = dumps();
    all.extend(foreign());
    all.extend(weights());
    all.extend(tables());
    all
}

fn dump_json() -> String {
    format!(
        r#"{{"format": 1, "producer": {{"name": "x", "version": "1"}}, "model": "m", "tokens": {TOKENS}, "decode_tokens": [5], "precision": "f32",
        "cache": "f16", "qk_rows": "half", "rows": "all", "dims": {{"layers.*.q": "T H[tp] d"}}, "taps": [
        {{"tap": "h0", "step": 0, "file": "h0.npy", "shape": [3, 4], "dtype": "f32", "rows": [0, 1, 2]}},
        {{"tap": "layers.0.q", "file": "layers.0.q.npy", "shape": [3, 2, 2], "dtype": "bf16", "dims": "T H d"}},
        {{"tap": "h0", "step": 1, "file": "h0.step1.npy", "rows": "last"}}]}}"#
    )
}

fn safetensors() -> Vec<Fragment> {
    let header = format!(
        r#"{{"__metadata__":{{"dump":"{{\"tokens\": {TOKENS}}}"}},"h0":{{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]}},"layers.0.q":{{"dtype":"BF16","shape":[3,2,2],"data_offsets":[48,72]}},"weight":{{"dtype":"I32","shape":[2],"data_offsets":[72,80]}}}}"#
    );
    vec![Fragment::Counted(8, header), bytes(floats(20))]
}

fn dumps() -> Vec<Input> {
    let h0 = || npy(1, "<f4", "False", "(3, 4)", floats(12));
    let q = || npy(2, "<V2", "False", "(3, 2, 2)", halves(12));
    let later = || npy(1, "<f4", "False", "(1, 4)", floats(4));
    let parts = || {
        vec![
            plain_file("dump.json", vec![text(dump_json())]),
            plain_file("h0.npy", h0()),
            plain_file("layers.0.q.npy", q()),
            plain_file("h0.step1.npy", later()),
        ]
    };
    let ranked = |rank: usize| -> Vec<InputFile> {
        let json = r#"{"tokens": [1, 2, 3], "dims": {"h0": "T D[tp]", "logits": "T V partial"}}"#;
        let in_rank = |name: &str, pieces| plain_file(&format!("rank{rank}/{name}"), pieces);
        vec![
            in_rank("dump.json", vec![text(json)]),
            in_rank("h0.npy", h0()),
            in_rank("logits.npy", npy(1, "<f2", "False", "(3, 4)", halves(12))),
        ]
    };
    let step = |n: usize| {
        vec![
            plain_file(&format!("step{n}/dump.json"), vec![text(r#"{"tokens": [4]}"#)]),
            plain_file(&format!("step{n}/h0.npy"), later()),
        ]
    };
    vec![
        single_file("npy", Target::Dump, "h0.npy", h0()),
        single_file("npy", Target::Dump, "layers.0.q.npy", npy(1, ">f8", "True", "(2, 3)", floats(12))),
        single_file("npy", Target::Dump, "logits.npy", npy(3, "<f2", "True", "(3, 2, 2)", halves(12))),
        folder("dump folder", Target::Dump, parts()),
        folder(
            "dump folder",
            Target::Dump,
            parts().into_iter().chain([plain_file("firstdiff.toml", vec![text(names_toml())])]).collect(),
        ),
        folder("rank folders", Target::Dump, [ranked(0), ranked(1)].concat()),
        folder("step folders", Target::Dump, [step(0), step(1), step(2)].concat()),
        archive(
            "npz",
            "a.npz",
            false,
            vec![
                ("dump.json", vec![text(dump_json())]),
                ("h0.npy", h0()),
                ("layers.0.q.npy", q()),
                ("h0.step1.npy", later()),
            ],
        ),
        archive(
            "npz",
            "b.npz",
            true,
            vec![
                ("h0.npy", h0()),
                ("layers.0.h.npy", h0()),
                ("other.npy", later()),
                ("model.layers.1.npy", npy(1, "<f8", "True", "(3, 2)", floats(12))),
            ],
        ),
        single_file("safetensors", Target::Dump, "a.safetensors", safetensors()),
    ]
}

const LOG: &str = "llm_load_print_meta: arch             = llama
ggml_debug:  embd = (f32)  GET_ROWS(token_embd.weight{8, 32, 1, 1}, inp{2, 1, 1, 1}}) = {8, 2, 1, 1}
 [
  [
   [ 0.1000, 0.2000, 0.3000, ..., 0.6000, 0.7000, 0.8000 ],
   [ 1.1000, 1.2000, 1.3000, ..., 1.6000, 1.7000, 1.8000 ],
  ],
 ]
 sum = 99.000000
common_debug_cb_eval:  Qcur-0 = (f32)  MUL_MAT(blk.0.attn_q.weight{8, 8, 1, 1}, embd{8, 2, 1, 1}}) = {2, 2, 1, 1}
 [
  [
   [ 0.5000, 0.2500 ],
   [ 0.7500, 0.1250 ],
  ],
 ]
 sum = 1.625000
ggml_debug:  embd = (f32)  GET_ROWS(token_embd.weight{8, 32, 1, 1}, inp{1, 1, 1, 1}}) = {8, 1, 1, 1}
 [
  [
   [ 0.1000, 0.2000, 0.3000, ..., 0.6000, 0.7000, 0.8000 ],
  ],
 ]
";

/// A pickle as torch.save writes it: a dictionary with a plain tensor, a view, a list and a number.
fn pickle() -> Vec<Fragment> {
    let tensor = |offset: u8, shape: [u8; 2], strides: [u8; 2]| {
        let [rows, columns] = shape;
        let [down, across] = strides;
        vec![
            bytes(b"h\x00((X".to_vec()),
            Fragment::Counted(4, "storage".into()),
            bytes(b"h\x02X".to_vec()),
            Fragment::Counted(4, "0".into()),
            bytes(b"X".to_vec()),
            Fragment::Counted(4, "cpu".into()),
            bytes(
                [
                    b"K\x0ctQ".as_slice(),
                    &[b'K', offset, b'K', rows, b'K', columns, 0x86, b'K', down, b'K', across, 0x86, 0x89],
                ]
                .concat(),
            ),
            bytes(b"ccollections\nOrderedDict\n)RtR".to_vec()),
        ]
    };
    let key = |key: &str| vec![bytes(b"X".to_vec()), Fragment::Counted(4, key.into())];
    let start = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x000ctorch\nFloatStorage\nq\x020}q\x03(".to_vec();
    let mut code = vec![bytes(start)];
    code.extend(key("h0"));
    code.extend(tensor(0, [3, 4], [4, 1]));
    code.extend(key("layers"));
    code.extend([bytes(b"]q\x04(}q\x05".to_vec())]);
    code.extend(key("q"));
    code.extend(tensor(1, [2, 3], [0, 2]));
    code.push(bytes(b"se".to_vec()));
    code.extend(key("step"));
    code.push(bytes(b"K\x07u.".to_vec()));
    code
}

fn foreign() -> Vec<Input> {
    let dump = Target::Dump;
    let numbers = |count: usize| (0..count).map(|i| format!("{:.5}\n", f64::from(i as u32).sin())).collect::<String>();
    let indexed = (0..20).map(|i| format!("[{i}] = {:.4}\n", f64::from(i).cos())).collect::<String>();
    let base64 =
        r#"{"name": "layers.0.q", "shape": [2], "dtype": "float32", "encoding": "base64", "data": "AACAPwAAAEA="}"#;
    let json = format!(
        r#"{{"tokens": {TOKENS}, "h0": [[0.5, NaN, 1.25], [1e3, -2, null], [0.1, -Infinity, 3]], "q": {base64}, "deep": {{"layers.0.h": [1, 2, 3]}}}}"#
    );
    let ids = r#"{"inputs": {"input_ids": {"shape": [1, 2], "dtype": "int64", "encoding": "base64", "data": "AQAAAAAAAAACAAAAAAAAAA=="}}, "logits": [[1.5, 2.5], [3.5, 4.5]]}"#;
    let manifest = r#"{"checkpoints": [{"name": "h0", "token_idx": 2, "count": 12, "dtype": "float32", "file": "h0.bin"}, {"name": "layers.0.h", "token_idx": 2, "file": "h0.bin"}]}"#;
    let tree = r#"{"module_path": "M", "inputs": {"args": [], "kwargs": {"hidden_states": {"shape": "torch.Size([2, 2])", "dtype": "torch.float32", "value": ["tensor([[1.5, 2.5],", " [3.0, 4.0]])"]}}},
        "children": [{"module_path": "M.layers.0", "inputs": {}, "outputs": {"shape": "torch.Size([2, 4])", "dtype": "torch.float32", "value": ["tensor([[1.5, ..., 2.5],", " [3.0, ..., 4.0]])"]}, "children": []},
        {"module_path": "M.norm", "outputs": {"shape": "[3, 4]", "dtype": "torch.float32", "value": "./t.safetensors"}}]}"#;
    let inner = r#"{"data":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]}}"#;
    let lines = "{\"name\": \"h\", \"layer\": 0, \"token_idx\": 1, \"shape\": [4, 9], \"values\": [1.5, 2.5, 1e308]}\n{\"name\": \"h\", \"layer\": 1, \"pos\": 2, \"count\": 2, \"first\": [0.5, null]}\n{\"tap\": \"logits\", \"data\": [[1, 2], [3, 4]]}\n";
    let headed = "begin\nlayer 0 q [2, 2]: 1 2 3 4\nlogits (2, 9) = tensor([[1.5, ..., 2.5],\n [3, ..., 4]])\n[step 1] h0: 0.5 0.25 ..\nlayer 1:\nk shape=(1, 2) 0.5 0.75\nv\n0.5\n0.25\n";
    vec![
        single_file("raw floats", dump, "h0.f32", vec![bytes(floats(24))]),
        single_file("raw floats", dump, "h0.bin", vec![bytes(floats(24))]),
        single_file("raw floats", dump, "h0.npy", vec![bytes(halves(30))]),
        single_file("raw floats", dump, "layers.0.q.bf16", vec![bytes(halves(24))]),
        single_file("text", dump, "h0.txt", vec![text(numbers(20))]),
        single_file("text", dump, "h0.txt", vec![text(indexed)]),
        single_file("text", dump, "h0.csv", vec![text("3 4\n1 2 3 4\n5 6 7 8\n9, 1e-3, inf, -nan\n")]),
        single_file(
            "text",
            dump,
            "logits.txt",
            vec![text("tensor([[ 0.1, -0.2, ..., 1e3],\n        [0.5, nan, ..., -inf]], dtype=torch.float16)\n")],
        ),
        single_file("text", dump, "run.txt", vec![text(headed)]),
        single_file("log", dump, "run.log", vec![text(LOG)]),
        single_file("json", dump, "x.json", vec![text(json)]),
        single_file("json", dump, "x.json", vec![text(ids)]),
        Input {
            form: "json manifest",
            parts: vec![plain_file("m.json", vec![text(manifest)]), plain_file("h0.bin", vec![bytes(floats(12))])],
            reader: dump,
            opened: "",
        },
        Input {
            form: "json tree",
            parts: vec![
                plain_file("t.json", vec![text(tree)]),
                plain_file("t.safetensors", vec![Fragment::Counted(8, inner.into()), bytes(floats(12))]),
            ],
            reader: dump,
            opened: "t.json",
        },
        single_file("json lines", dump, "x.jsonl", vec![text(lines)]),
        archive(
            "pickle",
            "x.pt",
            false,
            vec![("x/data.pkl", pickle()), ("x/data/0", vec![bytes(floats(12))]), ("x/version", vec![text("3\n")])],
        ),
        archive(
            "pickle",
            "name=q___layer_id=0___step=1.pt",
            false,
            vec![("a/data.pkl", pickle()), ("a/data/0", vec![bytes(floats(12))])],
        ),
    ]
}

/// Sizes of the models here: hidden, feed-forward, heads, vocabulary.
const D: usize = 8;
const F: usize = 12;
const V: usize = 10;
const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 10,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": false, "torch_dtype": "float32",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}"#;

fn tensors() -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("model.embed_tokens.weight", vec![V, D]),
        ("model.layers.0.input_layernorm.weight", vec![D]),
        ("model.layers.0.self_attn.q_proj.weight", vec![D, D]),
        ("model.layers.0.self_attn.k_proj.weight", vec![D / 2, D]),
        ("model.layers.0.self_attn.v_proj.weight", vec![D / 2, D]),
        ("model.layers.0.self_attn.o_proj.weight", vec![D, D]),
        ("model.layers.0.post_attention_layernorm.weight", vec![D]),
        ("model.layers.0.mlp.gate_proj.weight", vec![F, D]),
        ("model.layers.0.mlp.up_proj.weight", vec![F, D]),
        ("model.layers.0.mlp.down_proj.weight", vec![D, F]),
        ("model.norm.weight", vec![D]),
        ("lm_head.weight", vec![V, D]),
    ]
}

/// The tensors as a .safetensors.
fn safetensors_of(tensors: &[(&str, Vec<usize>)]) -> Vec<Fragment> {
    let (mut entries, mut at) = (Vec::new(), 0);
    for (name, shape) in tensors {
        let size = shape.iter().product::<usize>() * 4;
        entries.push(format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{at},{}]}}"#, at + size));
        at += size;
    }
    vec![Fragment::Counted(8, format!("{{{}}}", entries.join(","))), bytes(floats(at / 4))]
}

fn gguf() -> Vec<Fragment> {
    let number = |n: u64| bytes(n.to_le_bytes());
    let small = |n: u32| bytes(n.to_le_bytes());
    let string = |s: &str| Fragment::Counted(8, s.into());
    let tensors: Vec<(&str, &[usize], u32)> = vec![
        ("token_embd.weight", &[32, 10], 0),
        ("output_norm.weight", &[32], 0),
        ("output.weight", &[32, 10], 8),
        ("blk.0.attn_norm.weight", &[32], 0),
        ("blk.0.attn_q.weight", &[32, 32], 1),
        ("blk.0.attn_k.weight", &[32, 16], 2),
        ("blk.0.attn_v.weight", &[32, 16], 30),
        ("rope_freqs.weight", &[8], 0),
    ];
    let keys: [(&str, u32, Vec<Fragment>); 9] = [
        ("general.architecture", 8, vec![string("llama")]),
        ("llama.embedding_length", 4, vec![small(32)]),
        ("llama.attention.head_count", 4, vec![small(2)]),
        ("llama.attention.head_count_kv", 9, vec![small(4), number(2), small(1), small(1)]),
        ("llama.block_count", 4, vec![small(1)]),
        ("llama.feed_forward_length", 4, vec![small(32)]),
        ("llama.attention.layer_norm_rms_epsilon", 6, vec![bytes(1e-5f32.to_le_bytes())]),
        ("llama.rope.scaling.type", 8, vec![string("yarn")]),
        ("tokenizer.ggml.tokens", 9, vec![small(8), number(2), string("a"), string("bc")]),
    ];
    let mut out = vec![bytes(b"GGUF".to_vec()), small(3), number(tensors.len() as u64), number(keys.len() as u64)];
    for (key, kind, value) in keys {
        out.extend([string(key), small(kind)]);
        out.extend(value);
    }
    let mut at = 0u64;
    for (name, shape, kind) in &tensors {
        out.extend([string(name), small(shape.len() as u32)]);
        out.extend(shape.iter().map(|n| number(*n as u64)));
        out.extend([small(*kind), number(at)]);
        let count = shape.iter().product::<usize>();
        let size = match kind {
            0 => count * 4,
            8 => count / 32 * 34,
            2 => count / 32 * 18,
            _ => count * 2,
        };
        at += size.next_multiple_of(32) as u64;
    }
    let header = super::input::render(&out).len();
    out.push(bytes(vec![0; header.next_multiple_of(32) - header]));
    out.push(bytes(floats(at as usize / 4)));
    out
}

fn llama2c(version: i32, hidden: usize) -> Vec<Fragment> {
    let sizes = [hidden as i32, F as i32, 1, 2, 1, V as i32, 4];
    let sizes = |out: &mut Vec<Fragment>| out.extend(sizes.map(|n| bytes(n.to_le_bytes())));
    let matrices = V * hidden + 2 * hidden * hidden + 2 * (hidden / 2) * hidden + 3 * F * hidden;
    let norms = 3 * hidden;
    let mut out = Vec::new();
    match version {
        0 => {
            sizes(&mut out);
            out.push(bytes(floats(matrices + norms + 4 * (hidden / 2))));
        }
        _ => {
            out.extend([bytes(0x616b_3432u32.to_le_bytes()), bytes(version.to_le_bytes())]);
            sizes(&mut out);
            out.extend([bytes(vec![1]), bytes(4i32.to_le_bytes())]);
            let held = super::input::render(&out).len();
            out.push(bytes(vec![0; 256 - held]));
            let size = if version == 1 { (matrices + norms) * 4 } else { norms * 4 + matrices * 2 };
            out.push(bytes(floats(size.div_ceil(4))[..size].to_vec()));
        }
    }
    out
}

fn minimind() -> String {
    let zeros = |count: usize| {
        let bytes = count * 4;
        "A".repeat(bytes.div_ceil(3) * 4 - (3 - bytes % 3) % 3) + &"=".repeat((3 - bytes % 3) % 3)
    };
    let tensor = |shape: &[usize]| {
        let count = shape.iter().product();
        format!(r#"{{"shape": {shape:?}, "dtype": "float32", "encoding": "base64", "data": "{}"}}"#, zeros(count))
    };
    let layer = [
        ("attn_norm", vec![D]),
        ("wq", vec![D, D]),
        ("wk", vec![D, D / 2]),
        ("wv", vec![D, D / 2]),
        ("wo", vec![D, D]),
        ("w1", vec![D, F]),
    ];
    let layer: Vec<String> = layer.iter().map(|(name, shape)| format!(r#""{name}": {}"#, tensor(shape))).collect();
    format!(
        r#"{{"config": {{"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 10, "intermediate_size": 12}},
        "weights": {{"tok_embedding": {}, "final_rms": {}, "layers": [{{{}}}]}}, "inputs": {{"input_ids": {{"shape": [1, 2], "dtype": "int64", "encoding": "base64", "data": "AQAAAAAAAAACAAAAAAAAAA=="}}}}}}"#,
        tensor(&[V, D]),
        tensor(&[D]),
        layer.join(", ")
    )
}

fn weights() -> Vec<Input> {
    let model = Target::Weights;
    let all = tensors();
    let (first, second) = all.split_at(6);
    let shard = |n: usize| format!("model-0000{n}-of-00002.safetensors");
    let map: Vec<String> = [(first, 1), (second, 2)]
        .iter()
        .flat_map(|(of, n)| {
            of.iter()
                .map(move |(name, _)| format!(r#""{name}": "{}""#, format_args!("model-0000{n}-of-00002.safetensors")))
        })
        .collect();
    let index = format!(r#"{{"metadata": {{"total_size": 1}}, "weight_map": {{{}}}}}"#, map.join(", "));
    let config = || plain_file("config.json", vec![text(CONFIG)]);
    let mut out = vec![
        single_file("gguf", model, "m.gguf", gguf()),
        single_file("llama2.c", model, "m.bin", llama2c(0, D)),
        single_file("llama2.c", model, "m.bin", llama2c(1, D)),
        single_file("llama2.c", model, "m.bin", llama2c(2, D)),
        single_file("MiniMind json", model, "m.json", vec![text(minimind())]),
        single_file(WEIGHTS, model, "w.safetensors", safetensors_of(&all)),
        folder("Hugging Face folder", model, vec![config(), plain_file("model.safetensors", safetensors_of(&all))]),
        folder(
            "Hugging Face folder",
            model,
            vec![
                config(),
                plain_file("model.safetensors.index.json", vec![text(index)]),
                plain_file(&shard(1), safetensors_of(first)),
                plain_file(&shard(2), safetensors_of(second)),
            ],
        ),
        folder(
            "dumped weights",
            model,
            vec![
                plain_file("weights.blk.0.attn_q.npy", npy(1, "<f4", "False", "(8, 8)", floats(64))),
                plain_file("w_wq0.f32", vec![bytes(floats(64))]),
                plain_file("w.txt", vec![text("0 0.5\n1 0.25\n2 1e-3\n")]),
            ],
        ),
    ];
    // The same for comparing weights: another size, another format.
    for input in [
        single_file("weights compared", Target::Compare, "m.bin", llama2c(1, D)),
        single_file("weights compared", Target::Compare, "m.bin", llama2c(2, 16)),
        single_file("weights compared", Target::Compare, "m.gguf", gguf()),
        single_file("weights compared", Target::Compare, "m.json", vec![text(minimind())]),
        single_file("weights compared", Target::Compare, "w.safetensors", safetensors_of(&all)),
    ] {
        out.push(input);
    }
    out
}

fn names_toml() -> String {
    "\"h1_attn_l{N}\" = \"layers.{N}.h_attn\"\n\"layer{N+1}_out_t{S}\" = \"layers.{N}.h\"\n\"last_q\" = \"layers.0.q.step2\"\n[names]\n\"my.{N}.k\" = \"layers.{N}.k\"\n[dims]\n\"layers.*.q\" = \"T H[tp] d\"\n\"logits\" = \"T V partial\"\n".into()
}

fn tables() -> Vec<Input> {
    let baseline = "# firstdiff baseline 1: NMSE of every tap\n# reference: x, model y\nprofile f32\ncells 3,1,1\nh0 0.0e0\nlayers.0.q 1.5e-14 part\nlayers.0.q.step2 1.5e-14\nlogits 2.5e-13\n";
    vec![
        single_file("names toml", Target::Names, "firstdiff.toml", vec![text(names_toml())]),
        single_file("baseline", Target::Baseline, "parity.baseline", vec![text(baseline)]),
    ]
}
