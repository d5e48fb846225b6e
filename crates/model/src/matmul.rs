//! Multiplies with a large stored matrix, a tile of its rows at a time: in place where the bytes are floats, else widened into a buffer that stays in the
//! second-level cache.

use std::cell::RefCell;
use std::ops::Range;

use bytemuck::{cast_slice_mut, try_cast_slice};
use firstdiff_core::{OpError, Packed, QuantisedBlocks, Rows, linear_rows};
#[cfg(target_arch = "x86_64")]
use firstdiff_simd::Level;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis};
use rayon::prelude::*;

use crate::ggml::{self, int_dot};
use crate::storage::{Real, Storage};
use crate::weights::WeightView;

/// Rows of a tile, and its most bytes in the product's type: of the second-level cache, or of the first where a tile is widened for one row of x only. Each
/// tile reads all of x again, from memory if it has many rows, so few tiles are better.
const TILE_ROWS: usize = 64;
const TILE_BYTES: usize = 1 << 19;
const SMALL_TILE_BYTES: usize = 1 << 15;

/// out\[t,o\] = Σᵢ x\[t,i\] · w\[o,i\]. `x` \[T,n\], `w` \[N,n\], `out` \[T,N\]. The number of threads changes no bit.
pub(crate) fn product<E: Real>(
    x: ArrayView2<'_, E>,
    w: &WeightView<'_>,
    columns: usize,
    mut out: ArrayViewMut2<'_, E>,
) -> Result<(), OpError> {
    let x = x.as_standard_layout();
    let x = Packed::new(x.outer_iter().map(|row| row.to_slice().unwrap_or_default()).collect());
    let fused = fused(x.rows().len(), w, E::STORAGE);
    let small = x.rows().len() == 1 && fused.is_none() && in_place::<E>(w, 0..0, columns).is_none();
    let (bytes, block) = (if small { SMALL_TILE_BYTES } else { TILE_BYTES }, x.block());
    let height = (bytes / (columns * size_of::<E>()).max(1)).clamp(block, TILE_ROWS) / block * block;
    let tiles: Vec<_> = out.axis_chunks_iter_mut(Axis(1), height).enumerate().collect();
    tiles.into_par_iter().try_for_each(|(number, mut tile)| {
        let range = number * height..number * height + tile.ncols();
        match (fused, in_place(w, range.clone(), columns)) {
            (Some(kind), _) if in_registers(kind, x.rows()[0], w, range.clone(), columns, &mut tile) => Ok(()),
            (_, Some(rows)) => linear_rows(&x, rows, tile),
            _ => BUFFER.with_borrow_mut(|buffer| linear_rows(&x, widened(w, range, columns, buffer), tile)),
        }
    })
}

/// The type of the matrix's blocks, if [`whole_product`] supports it.
pub(crate) fn whole_blocks(w: &WeightView<'_>) -> Option<ggml::Type> {
    match w.storage() {
        Storage::Block(kind) if w.is_plain() && int_dot::is_supported(kind) => Some(kind),
        _ => None,
    }
}

/// The same with a matrix of such blocks and quantised rows of x, in f32 as llama.cpp does.
pub(crate) fn whole_product(
    x: &QuantisedBlocks,
    blocks: ggml::Type,
    w: &WeightView<'_>,
    columns: usize,
    out: ArrayViewMut2<'_, f32>,
) -> Result<(), OpError> {
    if x.quants.ncols() != columns {
        let (left, right) = (x.quants.shape().to_vec(), w.shape().to_vec());
        return Err(OpError::Shape { op: "product", left, right, rule: "x is [T,in], the weight [out,in]" });
    }
    int_dot::products(blocks, w.bytes(), x, out);
    Ok(())
}

impl WeightView<'_> {
    /// y\[t,o\] = Σᵢ x\[t,i\] · w\[o,i\], with the matrix as it is stored. `x` \[T,in\], the weight \[out,in\]; the result is \[T,out\]. Each sum is a
    /// [`dot`](firstdiff_core::dot) in E; neither T nor the number of threads changes a bit of a row.
    ///
    /// # Errors
    /// When the weight is no matrix, or its rows have another length.
    pub fn product<E: Real>(&self, x: ArrayView2<'_, E>) -> Result<Array2<E>, OpError> {
        let (shape, width) = (self.shape(), x.ncols());
        let rows = match *shape {
            [rows, columns] if columns == width => rows,
            _ => {
                let (left, right) = (x.shape().to_vec(), shape.to_vec());
                return Err(OpError::Shape { op: "product", left, right, rule: "x is [T,in], the weight [out,in]" });
            }
        };
        let mut out = Array2::zeros((x.nrows(), rows));
        product(x, self, width, out.view_mut())?;
        Ok(out)
    }
}

thread_local! {
    /// A thread's tile, in f32 or f64.
    static BUFFER: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The block type, if one row of x is multiplied with it in registers, in f32.
fn fused(rows: usize, w: &WeightView<'_>, product: Storage) -> Option<ggml::Type> {
    #[cfg(target_arch = "x86_64")]
    if let (1, Storage::Block(kind), true) = (rows, w.storage(), product == Storage::F32 && w.is_plain()) {
        return Some(kind).filter(|&kind| ggml::fused::is_supported(Level::best(), kind));
    }
    let _ = (rows, w, product);
    None
}

/// Multiplies one row of x with rows `range` of such blocks. Returns false if the result is not f32 or not contiguous.
fn in_registers<E: Real>(
    kind: ggml::Type,
    x: &[E],
    w: &WeightView<'_>,
    range: Range<usize>,
    columns: usize,
    out: &mut ArrayViewMut2<'_, E>,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(out) = out.as_slice_mut()
        && let (Ok(x), Ok(out)) = (try_cast_slice(x), bytemuck::try_cast_slice_mut(out))
        && let Some(stride) = w.storage().row_bytes(columns)
    {
        ggml::fused::products(Level::best(), kind, &w.bytes()[range.start * stride..range.end * stride], x, out);
        return true;
    }
    let _ = (kind, x, w, range, columns, out);
    false
}

/// Rows `range` of `w` in place, if the product takes their storage type.
fn in_place<'a, E: Real>(w: &WeightView<'a>, range: Range<usize>, columns: usize) -> Option<Rows<'a, E>> {
    if !w.is_plain() || cfg!(target_endian = "big") {
        return None;
    }
    let stride = w.storage().row_bytes(columns)?;
    let bytes = &w.bytes()[range.start * stride..range.end * stride];
    match w.storage() {
        own if own == E::STORAGE => try_cast_slice(bytes).ok().map(Rows::Native),
        Storage::F16 => try_cast_slice(bytes).ok().map(Rows::F16),
        Storage::BF16 => try_cast_slice(bytes).ok().map(Rows::BF16),
        _ => None,
    }
}

/// Rows `range` of `w` widened into `buffer`.
fn widened<'a, E: Real>(
    w: &WeightView<'_>,
    range: Range<usize>,
    columns: usize,
    buffer: &'a mut Vec<u64>,
) -> Rows<'a, E> {
    let count = range.len() * columns;
    let words = (count * size_of::<E>()).div_ceil(size_of::<u64>());
    if buffer.len() < words {
        buffer.resize(words, 0);
    }
    let buffer = &mut cast_slice_mut(&mut buffer[..words])[..count];
    w.read_rows(range, buffer);
    Rows::Native(buffer)
}
