//! Finds where in its blocks a dequantisation is wrong: scales of some parts, bits of the wrong element, elements in another order.

use firstdiff_compare::metrics::Squares;
use firstdiff_model::{Half, Storage, WeightView, ggml};

use super::diagnose::near;
use super::measure::{is_rounded, rounding_of};
use crate::mistakes::Mistake;
use crate::mistakes::stored::{DEQUANT_NIBBLES, DEQUANT_SCALE};
use crate::mistakes::unpack;
use crate::tolerance::weights::{NO_OFFSET, PART_LEAVES, QUANTISING_ROOM, SLOPE_OF_ONE, WHOLE_STEP};

/// What explains `b`, whose right values `a` are of blocks in `storage`: cause, words, and what is left.
pub(crate) fn diagnose(a: &[f32], b: &[f32], storage: Storage) -> Option<(&'static Mistake, String, f64)> {
    let block = storage.block_len();
    let group = match storage {
        Storage::Block(kind) => kind.scales().map_or(16, |s| s.group),
        Storage::Groups(group) => group,
        _ => return None,
    };
    if a.len() != b.len() || !a.len().is_multiple_of(block) {
        return None;
    }
    // Bytes hold one value each: no nibbles, and no bits apart.
    let bytes =
        matches!(storage, Storage::Groups(_) | Storage::Block(ggml::Type::Q8_0 | ggml::Type::Q8_1 | ggml::Type::Q8K));
    let split = matches!(
        storage,
        Storage::Block(ggml::Type::Q5_0 | ggml::Type::Q5_1 | ggml::Type::Q3K | ggml::Type::Q5K | ggml::Type::Q6K)
    );
    let order = if bytes { None } else { reordered(a, b, block) };
    order.or_else(|| scaled(a, b, group, block)).or_else(|| if split { high_bits(a, b, group) } else { None })
}

/// A unpacked in each of the wrong ways that are known: which gives B, but for the 16 bits that B's values may be rounded to.
pub(crate) fn misread(stored: WeightView<'_>, b: &[f32]) -> Option<(&'static Mistake, String, f64)> {
    let halves = [(Half::BF16, Storage::BF16), (Half::F16, Storage::F16)];
    let rounded = halves.into_iter().find(|(half, _)| is_rounded(b, b, *half));
    let energy = b.iter().map(|x| f64::from(x * x)).sum::<f64>().max(f64::MIN_POSITIVE);
    let room = QUANTISING_ROOM * rounded.map_or(0.0, |(_, storage)| rounding_of(b, storage)) / energy;
    let tried = unpack::misread(stored).into_iter().map(|way| (near(&(way.values)(), b), way));
    let (residual, way) = tried.min_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (residual < PART_LEAVES + room).then(|| (way.mistake, way.kind.to_owned(), residual))
}

/// The elements of each block in one other order, the same for all.
fn reordered(a: &[f32], b: &[f32], block: usize) -> Option<(&'static Mistake, String, f64)> {
    for width in [32, 64, 128, 256].into_iter().filter(|width| block.is_multiple_of(*width) || *width == block) {
        let half = width / 2;
        type Order = (&'static str, fn(usize, usize) -> usize);
        let orders: [Order; 3] = [
            ("nibbles taken one by one instead of in halves", |i, half| i % half * 2 + i / half),
            ("nibbles taken in halves instead of one by one", |i, half| i % 2 * half + i / 2),
            ("low and high nibbles exchanged", |i, half| (i + half) % (2 * half)),
        ];
        for (what, order) in orders {
            let other: Vec<f32> = a.chunks(width).flat_map(|c| (0..c.len()).map(move |i| c[order(i, half)])).collect();
            let residual = near(&other, b);
            if residual < PART_LEAVES {
                return Some((&DEQUANT_NIBBLES, format!("{what}, in every {width} elements"), residual));
            }
        }
    }
    sorted_alike(a, b, block)
}

/// The same values in every block, in another order.
fn sorted_alike(a: &[f32], b: &[f32], block: usize) -> Option<(&'static Mistake, String, f64)> {
    let sorted = |values: &[f32]| -> Vec<f32> {
        let mut values = values.to_vec();
        values.sort_by(f32::total_cmp);
        values
    };
    for width in [32, 64, 128, 256].into_iter().filter(|width| block.is_multiple_of(*width)) {
        let left: Vec<f32> = a.chunks(width).flat_map(sorted).collect();
        let right: Vec<f32> = b.chunks(width).flat_map(sorted).collect();
        let residual = near(&left, &right);
        if residual < PART_LEAVES {
            return Some((&DEQUANT_NIBBLES, format!("the elements of every {width} in another order"), residual));
        }
    }
    None
}

/// Parts that share a scale: each comes out times a factor plus a number of its own.
fn scaled(a: &[f32], b: &[f32], group: usize, block: usize) -> Option<(&'static Mistake, String, f64)> {
    let parts = (block / group).max(1);
    let (mut wrong, mut left, mut energy) = (vec![0usize; parts], 0.0, 0.0);
    let (mut only_offset, mut groups) = (true, 0);
    for (number, (x, y)) in a.chunks(group).zip(b.chunks(group)).enumerate() {
        let (slope, offset, error) = line(x, y);
        left += error;
        energy += x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        groups += 1;
        if near(x, y) > PART_LEAVES {
            wrong[number % parts] += 1;
            only_offset &= (slope - 1.0).abs() < SLOPE_OF_ONE && offset != 0.0;
        }
    }
    let residual = Squares { error: left, energy }.nmse_or(f64::INFINITY);
    // Few levels fit a line too easily where few elements share it.
    if residual >= PART_LEAVES || group < 8 || wrong.iter().sum::<usize>() == 0 {
        return None;
    }
    // Parts that are wrong in a third of the blocks, and no others: a mistake of unpacking is made in every block.
    let which: Vec<usize> = (0..parts).filter(|&i| wrong[i] * parts * 3 > groups).collect();
    if which.is_empty() || (0..parts).any(|i| !which.contains(&i) && wrong[i] * parts * 20 > groups) {
        return None;
    }
    let places = match which.as_slice() {
        all if all.len() == parts => format!("every part of {group}"),
        [first, .., last] if last - first + 1 == which.len() => {
            format!("parts {first}-{last} of {parts} in every {block} elements")
        }
        some => format!("parts {some:?} of {parts} in every {block} elements"),
    };
    let what = if only_offset { "the minimum is wrong" } else { "the scale is wrong" };
    Some((&DEQUANT_SCALE, format!("{what} in {places}"), residual))
}

/// y = slope · x + offset: slope, offset and Σ error².
fn line(x: &[f32], y: &[f32]) -> (f64, f64, f64) {
    let n = x.len() as f64;
    let mean = |v: &[f32]| v.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let (mx, my) = (mean(x), mean(y));
    let (mut xx, mut xy) = (0.0, 0.0);
    for (x, y) in x.iter().zip(y) {
        xx += (f64::from(*x) - mx).powi(2);
        xy += (f64::from(*x) - mx) * (f64::from(*y) - my);
    }
    let slope = if xx > 0.0 { xy / xx } else { 1.0 };
    let offset = my - slope * mx;
    let error = x.iter().zip(y).map(|(x, y)| (f64::from(*y) - slope * f64::from(*x) - offset).powi(2)).sum();
    (slope, if offset.abs() < NO_OFFSET { 0.0 } else { offset }, error)
}

/// Elements off by one and the same step of their scale: a high bit that belongs to another element.
fn high_bits(a: &[f32], b: &[f32], group: usize) -> Option<(&'static Mistake, String, f64)> {
    let (mut steps, mut off, mut up) = (0, 0, 0);
    for (x, y) in a.chunks(group).zip(b.chunks(group)) {
        let differences: Vec<f32> = x.iter().zip(y).map(|(x, y)| (x - y).abs()).collect();
        let top = differences.iter().copied().fold(0.0, f32::max);
        if !top.is_finite() {
            return None;
        }
        if top == 0.0 {
            continue;
        }
        let whole = |d: &f32| *d <= WHOLE_STEP * top || (d - top).abs() <= WHOLE_STEP * top;
        if !differences.iter().all(whole) {
            return None;
        }
        steps += 1;
        off += differences.iter().filter(|d| **d > 0.5 * top).count();
        up += x.iter().zip(y).filter(|(x, y)| *y - *x > 0.5 * top).count();
    }
    // A group with one wrong element says nothing; and a bit that is not the element's own is as often set as not.
    (steps > 0 && off > 2 * steps && up * 5 > off && (off - up) * 5 > off)
        .then(|| (&DEQUANT_NIBBLES, "high bits of the wrong element: values off by one step of a bit".into(), 0.0))
}
