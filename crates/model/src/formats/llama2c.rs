//! Locates the tensors of a llama2.c checkpoint: versions 0 (f32, no magic), 1 (f32) and 2 (8 bits in groups).
//!
//! Source: karpathy/llama2.c, export.py.

use std::collections::HashMap;
use std::path::Path;

use firstdiff_core::{Activation, RopeScaling};
use firstdiff_trace::QkRows;

use super::{Format, Opened};
use crate::config::{Config, Window, check_dims};
use crate::entry::{Entry, Order};
use crate::error::ModelError;
use crate::file::{Cursor, map};
use crate::names;
use crate::plan::{ModelDims, Role, WeightRef};
use crate::storage::Storage;
use crate::weights::Weights;

/// `ak42`, read as a little-endian number.
const MAGIC: u32 = 0x616b_3432;
/// Offset of the first tensor in versions 1 and 2.
const HEADER: usize = 256;

pub(crate) fn has_magic(start: &[u8]) -> bool {
    start.starts_with(&MAGIC.to_le_bytes())
}

pub(crate) fn open(path: &Path) -> Result<Opened, ModelError> {
    let bytes = map(path)?;
    let parsed = parse((*bytes).as_ref());
    let (config, table) = parsed.map_err(|reason| {
        let reason = format!("is no llama2.c checkpoint that is read: {reason}");
        ModelError::Format { file: path.into(), reason }
    })?;
    let weights = Weights::new(vec![(path.into(), bytes)], table, names::hugging_face);
    Ok(Opened::new(Format::Llama2c, weights, Ok(config)))
}

/// Reads the header and locates the tensors, without their values: the entry point of the fuzzer.
#[doc(hidden)]
pub fn check_llama2c(bytes: &[u8]) -> Result<usize, String> {
    parse(bytes).map(|(_, table)| table.len())
}

/// The tensors of each layer, which have at least a byte an element.
const LAYERED: [Role; 9] = {
    use Role::{AttnNorm, AttnOut, Down, FfnNorm, Gate, K, Q, Up, V};
    [AttnNorm, Q, K, V, AttnOut, FfnNorm, Gate, Down, Up]
};

/// The content of the header.
struct Header {
    version: u32,
    dims: ModelDims,
    /// Positions in the file's tables of cosines and sines.
    positions: usize,
    tied: bool,
    /// Elements that share a scale, in version 2.
    group: usize,
}

fn parse(bytes: &[u8]) -> Result<(Config, HashMap<String, Entry>), String> {
    let header = header(bytes)?;
    let mut placer =
        TensorPlacer { end: bytes.len(), at: if header.version == 0 { 28 } else { HEADER }, table: HashMap::new() };
    placer.place_all(&header)?;
    if placer.at != bytes.len() {
        let (at, end) = (placer.at, bytes.len());
        return Err(format!("its header (version {}) describes {at} bytes, and it holds {end}", header.version));
    }
    let config = Config {
        family: "llama",
        dims: header.dims,
        activation: Activation::Silu,
        // Both constants are hard-coded in run.c.
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        window: Window::None,
        qkv_bias: false,
        attn_out_bias: false,
        mlp_bias: false,
        qk_norm: false,
        tied: header.tied,
        torch_dtype: None,
        qk_rows: QkRows::Adjacent,
    };
    Ok((config, placer.table))
}

fn header(bytes: &[u8]) -> Result<Header, String> {
    let mut cursor = Cursor::new(bytes);
    let mut next = || cursor.array().map(i32::from_le_bytes);
    let (first, mut version) = (next()?, 0);
    let mut sizes = [first; 7];
    if first as u32 == MAGIC {
        version = next()? as u32;
        sizes[0] = next()?;
    }
    for size in &mut sizes[1..] {
        *size = next()?;
    }
    if version > 2 {
        return Err(format!("version {version}; 0, 1 and 2 are read"));
    }
    // Version 0 marks an untied head by the sign of the vocabulary size, the others by a flag.
    let mut tied = sizes[5] > 0;
    if version == 0 {
        sizes[5] = sizes[5].saturating_abs();
    } else {
        tied = match cursor.array::<1>()? {
            [flag @ 0..=1] => flag == 1,
            [flag] => return Err(format!("the flag for a shared classifier is {flag}")),
        };
    }
    let group = if version == 2 { i32::from_le_bytes(cursor.array()?) } else { 1 };
    let size = |n: i32| usize::try_from(n).ok().filter(|&n| n > 0);
    let wrong = || format!("sizes {sizes:?} and group {group} in its header");
    let [hidden, ffn, layers, heads, kv_heads, vocab, positions] = sizes
        .map(size)
        .iter()
        .copied()
        .collect::<Option<Vec<_>>>()
        .and_then(|v| v.try_into().ok())
        .ok_or_else(wrong)?;
    if !hidden.is_multiple_of(heads) || version > 0 && bytes.len() < HEADER {
        return Err(wrong());
    }
    let dims = ModelDims { vocab, hidden, heads, kv_heads, head_dim: hidden / heads, ffn, layers: layers as u32 };
    check_dims(&dims)?;
    // Limits the number of layers by the size of the file, before a table of tensors is built.
    let layer: usize = LAYERED.iter().map(|role| dims.shape(*role).iter().product::<usize>()).sum();
    if layers > bytes.len() / layer {
        return Err(format!("{layers} layers are announced in {} bytes", bytes.len()));
    }
    Ok(Header { version, dims, positions, tied, group: size(group).ok_or_else(wrong)? })
}

/// Offset of the next tensor, and the tensors placed so far.
struct TensorPlacer {
    end: usize,
    at: usize,
    table: HashMap<String, Entry>,
}

impl TensorPlacer {
    /// Places all tensors in the order of the version.
    fn place_all(&mut self, header: &Header) -> Result<(), String> {
        use Role::{AttnNorm, AttnOut, Down, Embedding, FfnNorm, FinalNorm, Gate, Head, K, Q, Up, V};
        if header.version == 0 {
            for role in [Embedding, AttnNorm, Q, K, V, AttnOut, FfnNorm, Gate, Down, Up, FinalNorm] {
                self.role(header, role, Storage::F32)?;
            }
            self.skip(header.positions, header.dims.head_dim)?;
        } else {
            let matrix = if header.version == 2 { Storage::Groups(header.group) } else { Storage::F32 };
            for role in [AttnNorm, FfnNorm, FinalNorm] {
                self.role(header, role, Storage::F32)?;
            }
            for role in [Embedding, Q, K, V, AttnOut, Gate, Down, Up] {
                self.role(header, role, matrix)?;
            }
            if !header.tied {
                return self.role(header, Head, matrix);
            }
            return Ok(());
        }
        if header.tied { Ok(()) } else { self.role(header, Head, Storage::F32) }
    }

    /// Places the tensors of a role: one for each layer, or one.
    fn role(&mut self, header: &Header, role: Role, storage: Storage) -> Result<(), String> {
        let layers = if names::is_layered(role) { (0..header.dims.layers).map(Some).collect() } else { vec![None] };
        for layer in layers {
            let shape = header.dims.shape(role);
            let name = names::hugging_face(WeightRef { layer, role });
            let count: usize = shape.iter().product();
            let size = storage.row_bytes(count);
            let size =
                size.ok_or_else(|| format!("{name}: {count} elements are no whole groups of {}", header.group))?;
            let bytes = self.reserve(size).ok_or_else(|| {
                let place = format!("{size} bytes at byte {}", self.at);
                format!("{name} should be {place}, and the file has {} (version {})", self.end, header.version)
            })?;
            self.table.insert(name, Entry { file: 0, storage: Ok(storage), shape, bytes, order: Order::default() });
        }
        Ok(())
    }

    /// Skips the tables of cosines and sines of version 0, which are not used.
    fn skip(&mut self, positions: usize, head_dim: usize) -> Result<(), String> {
        let size = positions.checked_mul(head_dim).and_then(|n| n.checked_mul(4));
        let taken = size.and_then(|size| self.reserve(size));
        taken.map(drop).ok_or_else(|| format!("ends before its tables of {positions} positions do"))
    }

    fn reserve(&mut self, size: usize) -> Option<std::ops::Range<usize>> {
        let end = self.at.checked_add(size).filter(|&end| end <= self.end)?;
        Some(std::mem::replace(&mut self.at, end)..end)
    }
}
