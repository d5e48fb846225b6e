//! Rounds keys and values to the type of the K/V cache.

use std::fmt;
use std::str::FromStr;

use half::f16;

use crate::narrow::{F8, to_bf16, to_f16};

/// The type of the K/V cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cache {
    /// Not rounded.
    #[default]
    F32,
    /// IEEE half: llama.cpp's default, tinygrad's, and that of many others.
    F16,
    /// bfloat16.
    Bf16,
    /// ggml's blocks of 32 numbers of 8 bits along the head dimension, with a scale in f16.
    Q8_0,
    /// 8-bit floats with 4 bits of exponent (e4m3fn), each element by itself and without a scale: vLLM's `fp8`.
    E4m3,
}

/// Elements of a block of Q8_0.
const BLOCK: usize = 32;

impl Cache {
    /// Every type, finest first.
    pub const ALL: [Cache; 5] = [Cache::F32, Cache::F16, Cache::Bf16, Cache::Q8_0, Cache::E4m3];

    /// The name on the command line and in dump.json.
    pub fn name(self) -> &'static str {
        match self {
            Cache::F32 => "f32",
            Cache::F16 => "f16",
            Cache::Bf16 => "bf16",
            Cache::Q8_0 => "q8_0",
            Cache::E4m3 => "e4m3",
        }
    }

    /// Rounds contiguous heads of `width` elements to what a cache of this type gives back.
    pub fn round(self, heads: &mut [f64], width: usize) {
        match self {
            Cache::F32 => {}
            Cache::F16 => heads.iter_mut().for_each(|x| *x = to_f16(*x).to_f64()),
            Cache::Bf16 => heads.iter_mut().for_each(|x| *x = to_bf16(*x).to_f64()),
            Cache::Q8_0 => blocks(heads.len(), width).for_each(|block| q8_0(&mut heads[block])),
            Cache::E4m3 => heads.iter_mut().for_each(|x| *x = F8::E4m3.saturated(*x)),
        }
    }

    /// The largest rounding error of each element: half a step of the type.
    pub fn half_steps(self, heads: &[f64], width: usize) -> Vec<f64> {
        // Half a unit in the last place, relative to the value; within a binade it is largest at the upper end.
        let relative = |half: f64| move |x: &f64| half * x.abs();
        match self {
            Cache::F32 => vec![0.0; heads.len()],
            // Below the smallest normal number the step is constant.
            Cache::F16 => heads.iter().map(relative(F16_HALF)).map(|x| x.max(2f64.powi(-25))).collect(),
            Cache::Bf16 => heads.iter().map(relative(BF16_HALF)).collect(),
            Cache::E4m3 => {
                heads.iter().map(|x| (x.abs() / 16.0).max(2f64.powi(-10)).max(x.abs() - F8::E4m3.max())).collect()
            }
            Cache::Q8_0 => blocks(heads.len(), width)
                .flat_map(|block| {
                    let top = heads[block.clone()].iter().fold(0.0, |top: f64, x| top.max(x.abs()));
                    // The scale is rounded to f16 as well.
                    heads[block].iter().map(move |x| top / 254.0 * 1.001 + F16_HALF * x.abs()).collect::<Vec<_>>()
                })
                .collect(),
        }
    }
}

/// Half a unit in the last place, relative to a number at the lower end of its binade.
const F16_HALF: f64 = 1.0 / 2048.0;
const BF16_HALF: f64 = 1.0 / 256.0;

/// The blocks of heads of `width` elements; the last block of a head may be shorter.
fn blocks(len: usize, width: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let width = width.max(1);
    (0..len).step_by(width).flat_map(move |head| {
        let end = (head + width).min(len);
        (head..end).step_by(BLOCK).map(move |from| from..(from + BLOCK).min(end))
    })
}

/// Rounds one block to steps of the largest magnitude / 127, a scale that is stored in f16. Source: llama.cpp, quantize_row_q8_0_ref.
fn q8_0(block: &mut [f64]) {
    let top = block.iter().fold(0f32, |top, x| top.max((*x as f32).abs()));
    if !top.is_finite() || top == 0.0 {
        return;
    }
    let step = top / 127.0;
    let (inverse, stored) = (1.0 / step, f16::from_f32(step).to_f32());
    for x in block {
        *x = f64::from((*x as f32 * inverse).round() * stored);
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Cache {
    type Err = String;

    fn from_str(name: &str) -> Result<Cache, String> {
        let known = match name.to_ascii_lowercase().as_str() {
            "float32" | "fp32" => Some(Cache::F32),
            "float16" | "fp16" | "half" => Some(Cache::F16),
            "bfloat16" => Some(Cache::Bf16),
            "fp8" | "fp8_e4m3" | "f8_e4m3" | "float8_e4m3fn" => Some(Cache::E4m3),
            name => Cache::ALL.into_iter().find(|cache| cache.name() == name),
        };
        known.ok_or_else(|| format!("'{}' is not one of f32, f16, bf16, q8_0, e4m3", name.escape_debug()))
    }
}
