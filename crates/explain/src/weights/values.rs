//! Finds what is wrong with a tensor's values one by one: constants, zeros, bytes read as another type, an offset, a factor, blocks unpacked wrongly.

use firstdiff_evidence::choice;
use firstdiff_model::Storage;
use half::{bf16, f16};

use super::changes::law;
use super::diagnose::{Diagnosis, Pair, close, first_few, found, near, place};
use super::paid::Cost;
use super::side::{RowOrder, Tensor};
use super::{blocks, noise};
use crate::mistakes::linear::WEIGHT_UNSET;
use crate::mistakes::norm::NORM_PLUS_ONE;
use crate::mistakes::stored::{DEQUANT_TRUNCATED, STORAGE_SHAPE, STORAGE_TYPE};
use crate::tolerance::weights::{QUANTISING_ROOM, SAME_START, SAME_VALUE};

/// Elements of a block.
const BLOCKS: [usize; 4] = [32, 64, 128, 256];

/// What can be seen element by element.
pub(super) fn values(pair: &Pair<'_>) -> Option<Diagnosis> {
    if pair.left.shape() != pair.right.shape() {
        return None;
    }
    let (a, b) = (pair.left.values(), pair.right.in_order(pair.expected_order()).values());
    // Gains that are all alike in A say nothing by being alike in B.
    let alike = a.iter().all(|x| *x == a[0]);
    let any = || one_more(pair, &a, &b).or_else(|| law(pair, |both| both.throughout()));
    let gain = if alike { any() } else { None };
    gain.or_else(|| constant(&b))
        .or_else(|| zeros(pair, &a, &b))
        .or_else(|| misread(&a, &b))
        .or_else(|| shifted(pair))
        .or_else(|| {
            let stored = quantised(pair)?.stored()?;
            blocks::misread(stored, &b).and_then(|(cause, note, residual)| found(cause, note, residual))
        })
        .or_else(any)
        .or_else(|| {
            let storage = quantised(pair)?.storage()?;
            blocks::diagnose(&a, &b, storage).and_then(|(cause, note, residual)| found(cause, note, residual))
        })
}

/// A, where that is quantised, and B what was unpacked of it.
fn quantised<'p>(pair: &'p Pair<'_>) -> Option<&'p Tensor<'p>> {
    let few = |tensor: &Tensor<'_>| tensor.storage().is_some_and(Storage::is_quantised);
    (few(pair.left) && !few(pair.right)).then_some(pair.left)
}

fn constant(b: &[f32]) -> Option<Diagnosis> {
    let first = *b.first().filter(|first| b.len() > 1 && b.iter().all(|x| x == *first))?;
    let what = if first == 0.0 { "zeros".to_owned() } else { first.to_string() };
    found(&WEIGHT_UNSET, format!("{what} throughout"), 0.0).map(|seen| Diagnosis { cost: None, ..seen })
}

/// Right where it is not zero: a load that stopped too early.
fn zeros(pair: &Pair<'_>, a: &[f32], b: &[f32]) -> Option<Diagnosis> {
    // A format has zeros of its own, of what is less than half a step: three times the variance of rounding is the square of that.
    let due = noise::between([a, b], [pair.left.storage(), pair.right.storage()]);
    let empty: Vec<bool> = (0..a.len()).map(|i| b[i] == 0.0 && a[i] * a[i] > 3.0 * due[i]).collect();
    let count = empty.iter().filter(|e| **e).count();
    let (kept_a, kept_b): (Vec<f32>, Vec<f32>) =
        a.iter().zip(b).filter(|(_, y)| **y != 0.0).map(|(x, y)| (*x, *y)).unzip();
    if count < 16 || count * 200 < a.len() && count < 32 {
        return None;
    }
    let residual = close(&kept_a, &kept_b, pair)?;
    let first = empty.iter().position(|e| *e)?;
    // Zeros of A's own may lie about the place where B's begin.
    let start = b[..first].iter().rposition(|y| *y != 0.0).map_or(0, |at| at + 1);
    let end = a.len();
    // An error of its own that the type costs: a tail too small for it.
    let lost: f64 = a[start..].iter().map(|x| f64::from(*x).powi(2)).sum();
    if lost <= 2.0 * QUANTISING_ROOM * due[start..].iter().map(|v| f64::from(*v)).sum::<f64>() {
        return None;
    }
    let blocks = [pair.left, pair.right].iter().filter_map(|t| t.storage()).any(|s| s.is_quantised());
    let width = pair.left.row_len().max(1);
    let (unit, what) = if pair.left.shape().len() > 1 { (width, "rows") } else { (1, "elements") };
    // Whole rows of numbers that are in no blocks: no size counted wrongly leaves such, but a half or a quarter.
    let are_rows = !blocks && start.is_multiple_of(unit) && ![2, 4].iter().any(|share| start * share == end);
    let law = |note: String, places: f64| Some(Diagnosis::law(note, residual, Cost { numbers: 0, places }));
    let is_end = b[start..].iter().all(|y| *y == 0.0);
    if is_end && are_rows {
        let (from, rows) = (start / unit, end / unit);
        let some = first_few(&(from..rows).collect::<Vec<_>>());
        return law(format!("{what} {some} of {rows} are zero, and the others right"), choice(rows));
    }
    if is_end {
        let bytes = bytes_read(pair, start, end).unwrap_or_default();
        return found(&DEQUANT_TRUNCATED, format!("zero from element {start} of {end} on{bytes}"), residual);
    }
    let filled = |period: usize| {
        let from = |chunk: &[f32]| chunk.iter().rposition(|y| *y != 0.0).map_or(0, |at| at + 1);
        let longest = b.chunks(period).map(from).max().unwrap_or(0);
        let same = b.chunks(period).all(|c| c.iter().skip(longest).all(|y| *y == 0.0));
        // One element of a block may be too small for its scale throughout.
        (longest * 8 <= period * 7 && longest > 0 && same).then_some(longest)
    };
    let periods = BLOCKS.into_iter().chain([width]).filter(|_| blocks);
    let Some((period, longest)) = periods.filter_map(|period| Some((period, filled(period)?))).next() else {
        // Rows, heads or single elements: nothing that a size counted wrongly would leave.
        let place = place(pair, a, b).unwrap_or_default();
        let note = format!("{count} of {end} elements are zero, and the others right{place}");
        return law(note, choice(end) * count as f64);
    };
    let of = if BLOCKS.contains(&period) { format!("every {period} elements") } else { "each row".into() };
    found(&DEQUANT_TRUNCATED, format!("only the first {longest} of {of} are set"), residual)
}

/// How many bytes were read of how many, where A is in blocks.
fn bytes_read(pair: &Pair<'_>, elements: usize, all: usize) -> Option<String> {
    let storage = pair.left.storage().filter(|s| s.is_quantised())?;
    let blocks = elements / storage.block_len();
    let (block, read, need) = (
        storage.row_bytes(storage.block_len())?,
        blocks * storage.row_bytes(storage.block_len())?,
        storage.row_bytes(all)?,
    );
    // How a size was counted, if so many bytes hold that many whole blocks.
    let counted = [("half a byte", all / 2), ("a byte", all), ("a quarter of a byte", all / 4)];
    let guess = counted.iter().find(|(_, bytes)| bytes / block == blocks && *bytes < need);
    let guess = guess.map_or(String::new(), |(what, bytes)| format!(", as if an element took {what} ({bytes} bytes)"));
    Some(format!("; {blocks} blocks of {}, {read} bytes, were read where {need} are needed{guess}", storage.name()))
}

/// The bytes of one type read as another.
fn misread(a: &[f32], b: &[f32]) -> Option<Diagnosis> {
    type OpenOptions = (&'static str, fn(f32) -> f32);
    const READINGS: &[OpenOptions] = &[
        ("bf16 read as f16", |x| f16::from_bits(bf16::from_f32(x).to_bits()).to_f32()),
        ("f16 read as bf16", |x| bf16::from_bits(f16::from_f32(x).to_bits()).to_f32()),
        ("f32 with its bytes in the other order", |x| f32::from_bits(x.to_bits().swap_bytes())),
        ("f16 with its bytes in the other order", |x| f16::from_bits(f16::from_f32(x).to_bits().swap_bytes()).to_f32()),
        ("bf16 with its bytes in the other order", |x| {
            bf16::from_bits(bf16::from_f32(x).to_bits().swap_bytes()).to_f32()
        }),
    ];
    for (what, read) in READINGS {
        let step = (a.len() / 4096).max(1);
        let as_read = |(x, y): &(&f32, &f32)| {
            let misread = read(**x);
            misread.to_bits() == y.to_bits()
                || misread.is_nan() && y.is_nan()
                || (misread - **y).abs() <= SAME_VALUE * misread.abs()
        };
        // What any reading gives, as 0, proves none.
        let telling = |(x, _): &(&f32, &f32)| {
            let off = (read(**x) - **x).abs();
            off.is_nan() || off > 0.01 * x.abs()
        };
        let pairs = || a.iter().zip(b).step_by(step);
        let (all, right) = (pairs().count(), pairs().filter(as_read).count());
        let (told, told_right) = (pairs().filter(telling).count(), pairs().filter(telling).filter(as_read).count());
        // A value on the edge of rounding may have gone the other way.
        if right * 100 >= all * 98 && told > 0 && told_right * 100 >= told * 98 {
            return found(&STORAGE_TYPE, *what, 0.0);
        }
    }
    None
}

/// Values that come some elements early or late in B's file.
fn shifted(pair: &Pair<'_>) -> Option<Diagnosis> {
    const FURTHEST: usize = 128;
    // In the order of the file: there the offset is wrong.
    let order = pair.expected_order().map(|order| RowOrder { to: order.to.other(), ..order });
    let (a, b) = (pair.left.in_order(order).values(), pair.right.in_order(None).values());
    if a.len() < 128 {
        return None;
    }
    let width = pair.left.row_len();
    // Of a vector no row is another one's.
    let rows = |by: usize| Some(by / width).filter(|_| width < a.len() && by.is_multiple_of(width));
    let places = (1..=FURTHEST).chain([width]).filter(|by| by + 64 <= a.len());
    for (by, is_late) in places.flat_map(|by| [(by, false), (by, true)]) {
        let (early, late) = if is_late { (&b, &a) } else { (&a, &b) };
        let (x, y) = (&early[by..], &late[..late.len() - by]);
        let (x, y) = if is_late { (y, x) } else { (x, y) };
        if near(&x[..64], &y[..64]) >= SAME_START {
            continue;
        }
        let Some(residual) = close(x, y, pair) else { continue };
        let (word, sign) = if is_late { ("late", '-') } else { ("early", '+') };
        // No offset brings what is cut off at one end to the other.
        let is_around = near(&early[..by], &late[late.len() - by..]) < SAME_START;
        let end = if is_around { ", around the end" } else { "" };
        let note = match rows(by) {
            Some(rows) => format!("its rows are A's, {rows} {word}{end}: row i is row i{sign}{rows}"),
            None if is_around => format!("every value comes {by} elements {word}{end}"),
            None => {
                let bytes = pair.right.bytes_of(by).map_or(String::new(), |n| format!(" ({n} bytes)"));
                let note = format!("every value comes {by} elements{bytes} {word}: an offset or the alignment");
                return found(&STORAGE_SHAPE, note, residual);
            }
        };
        return Some(Diagnosis::law(note, residual, Cost { numbers: 0, places: choice(2 * FURTHEST) }));
    }
    None
}

/// 1 added to every gain, or taken from it.
fn one_more(pair: &Pair<'_>, a: &[f32], b: &[f32]) -> Option<Diagnosis> {
    let plus = |by: f32| a.iter().map(|x| x + by).collect::<Vec<_>>();
    let ways = [(1.0, "1 is added to every element"), (-1.0, "1 is taken from every element")];
    let mut ways = ways.into_iter().filter(|_| pair.left.shape().len() == 1);
    ways.find_map(|(by, note)| found(&NORM_PLUS_ONE, note, close(&plus(by), b, pair)?))
}
