//! Reads logs of llama.cpp's eval callback: for every node of the graph the corner values, to four decimals, and the sum.

use std::collections::HashMap;

use super::{Imported, Item, KnownElements, bracket, json};
use crate::meta::QkRows;

/// The words before a node's name, in old and new versions.
const MARKS: [&str; 2] = ["ggml_debug:", "common_debug_cb_eval:"];

/// Whether `text` is such a log.
pub(super) fn is_one(text: &str) -> bool {
    text.lines().any(|line| header(line).is_some())
}

/// A node: `name = (type) OP(sources) = {ne0, ne1, ne2, ne3}`.
#[derive(Debug, PartialEq)]
struct Node<'a> {
    name: &'a str,
    op: &'a str,
    sources: &'a str,
    /// Slowest axis first.
    shape: Vec<usize>,
}

fn header(line: &str) -> Option<Node<'_>> {
    let rest = MARKS.iter().find_map(|mark| line.split_once(mark)).map(|(_, rest)| rest.trim())?;
    let (name, rest) = rest.split_once(" = (")?;
    let (_, rest) = rest.split_once(')')?;
    let (op, rest) = rest.trim().split_once('(')?;
    let (sources, extents) = rest.rsplit_once("= {")?;
    let extents = extents.trim().strip_suffix('}')?.split(',').map(|n| n.trim().parse().ok());
    let mut shape = extents.collect::<Option<Vec<usize>>>()?;
    shape.reverse();
    (shape.len() == 4).then_some(Node { name: name.trim(), op: op.trim(), sources, shape })
}

/// Reads a log. Tensors are named `name OP`, because several nodes share a name; if both occur again in a pass, ` #2` is added.
pub(super) fn read(text: &str) -> Imported {
    let mut read = Imported::default();
    let lines: Vec<&str> = text.lines().collect();
    let heads: Vec<(usize, Node<'_>)> =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, header(line)?))).collect();
    let first = heads.first().map(|(_, node)| (node.name, node.op));
    let (mut step, mut seen, mut tokens) = (0, HashMap::new(), 0);
    let mut spoiled = 0;
    for (number, (at, node)) in heads.iter().enumerate() {
        if number > 0 && Some((node.name, node.op)) == first {
            (step, seen) = (step + 1, HashMap::new());
        }
        if number == 0 || seen.is_empty() {
            tokens = node.shape[2];
        }
        let count = seen.entry((node.name, node.op)).and_modify(|n| *n += 1).or_insert(1u32);
        let name = match (alias(node), *count) {
            (Some(alias), _) => alias,
            (None, 1) => format!("{} {}", node.name, node.op),
            (None, count) => format!("{} {} #{count}", node.name, node.op),
        };
        let end = heads.get(number + 1).map_or(lines.len(), |(next, _)| *next);
        match item(&name, node, &lines[at + 1..end]) {
            Some(item) => {
                let cut = tokens > 1 && node.shape[2] == 1 && node.shape[1] == 1;
                let rows = if cut { json::last_row() } else { None };
                read.items.push(Item { rows, ..item }.stepped(step));
            }
            None => spoiled += 1,
        }
    }
    read.qk_rows = qk_rows(&lines);
    if spoiled > 0 {
        read.notes.push(format!("{spoiled} nodes of the log were printed without values, or not as one tensor"));
    }
    read
}

/// The row order of Q and K, if the log gives the architecture: those with NORM-type RoPE have permuted rows.
fn qk_rows(lines: &[&str]) -> Option<QkRows> {
    let told = lines.iter().find_map(|line| {
        let (key, value) = line.split_once(" = ")?;
        let key = key.trim_end();
        (key.ends_with(" arch") || key.ends_with("general.architecture str")).then(|| value.trim())
    })?;
    match told {
        "llama" | "llama4" | "baichuan" | "internlm2" | "minicpm" | "xverse" | "command-r" | "deci" | "arctic"
        | "granite" | "mistral3" => Some(QkRows::Adjacent),
        "qwen2" | "qwen3" | "qwen2moe" | "qwen3moe" | "gemma" | "gemma2" | "gemma3" | "phi2" | "phi3" | "stablelm"
        | "olmo2" => Some(QkRows::Half),
        _ => None,
    }
}

/// Names the product with the output matrix, which has no name in most graphs.
fn alias(node: &Node<'_>) -> Option<String> {
    let source = node.sources.trim_start();
    let layer = source.strip_prefix("blk.")?.split_once(".attn_output.weight")?.0;
    (node.op == "MUL_MAT" && layer.bytes().all(|b| b.is_ascii_digit())).then(|| format!("attn_out-{layer} MUL_MAT"))
}

fn item(name: &str, node: &Node<'_>, lines: &[&str]) -> Option<Item> {
    // The values are nested three deep; a fourth axis would repeat them.
    let [1, shape @ ..] = node.shape.as_slice() else { return None };
    let sum = lines.iter().find_map(|line| line.trim().strip_prefix("sum = ")?.trim().parse::<f64>().ok());
    let body: Vec<&str> = lines.iter().copied().take_while(|line| !line.trim().starts_with("sum =")).collect();
    let body = body.join("\n");
    let from = body.find('[')?;
    let to = body.rfind(']')?;
    let found = bracket::elements(body.get(from..=to)?, shape)?;
    let (elements, values): (Vec<usize>, Vec<f64>) = found.into_iter().unzip();
    // Older versions print the sum of the printed values only.
    let shown: f64 = values.iter().sum();
    let as_shown = |sum: f64| (sum - shown).abs() <= 1e-4 * values.len() as f64;
    let is_whole = elements.len() == shape.iter().product::<usize>();
    let sum = sum.filter(|&sum| is_whole || !as_shown(sum));
    let squeezed: Vec<usize> = if shape[0] == 1 { shape[1..].to_vec() } else { shape.to_vec() };
    Item::part(name, KnownElements { elements, shape: Some(squeezed), sum }, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
llama_context: n_ctx = 512
ggml_debug:   embd = (f32)   GET_ROWS(token_embd.weight{8, 32, 1, 1}, inp_tokens{5, 1, 1, 1}}) = {8, 2, 1, 1}
    [
        [
            [      0.1000,       0.2000,      0.3000,    ...,       0.6000,       0.7000,       0.8000  ],
            [      1.1000,       1.2000,      1.3000,    ...,       1.6000,       1.7000,       1.8000  ],
        ],
    ]
    sum = 99.000000
ggml_debug:   Qcur-0 = (f32)   MUL_MAT(blk.0.attn_q.weight{8, 8, 1, 1}, embd{8, 2, 1, 1}}) = {2, 1, 1, 1}
    [
        [
            [      0.5000,       0.2500  ],
        ],
    ]
    sum = 0.750000
common_debug_cb_eval:   node_33 = (f32)   MUL_MAT(blk.0.attn_output.weight{8, 8, 1, 1}, kqv_out-0{8, 2, 1, 1}}) = {2, 1, 1, 1}
    [
        [
            [      0.5000,       0.2500  ],
        ],
    ]
";

    #[test]
    fn nodes_and_their_corners() {
        assert!(is_one(LOG));
        let read = read(LOG);
        let names: Vec<&str> = read.items.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["embd GET_ROWS", "Qcur-0 MUL_MAT", "attn_out-0 MUL_MAT"]);
        let part = read.items[0].part.as_ref().unwrap();
        assert_eq!(part.elements, [0, 1, 2, 5, 6, 7, 8, 9, 10, 13, 14, 15]);
        assert_eq!((part.shape.as_deref(), part.sum), (Some(&[2, 8][..]), Some(99.0)));
        assert_eq!(read.items[1].rows, json::last_row());
    }
}
