//! Why are two tensors not the same? Each known mistake is imitated on A, and named if B's own values come out.

use firstdiff_compare::number;
use firstdiff_model::{Role, WeightRef, hugging_face_name};
use firstdiff_trace::QkRows;
use half::{bf16, f16};

use super::blocks;
use super::side::{RowOrder, Side, Tensor};
use super::{Key, Options, measure};

/// Two tensors of one weight.
pub(crate) struct Pair<'a> {
    pub(crate) key: &'a Key,
    pub(crate) sides: [&'a Side; 2],
    pub(crate) left: &'a Tensor<'a>,
    pub(crate) right: &'a Tensor<'a>,
}

/// What was found.
pub(crate) struct Diagnosis {
    pub(crate) cause: Option<&'static str>,
    pub(crate) note: String,
    /// NMSE that remains once the mistake is imitated.
    pub(crate) residual: Option<f64>,
}

fn found(cause: &'static str, note: impl Into<String>, residual: f64) -> Option<Diagnosis> {
    Some(Diagnosis { cause: Some(cause), note: note.into(), residual: Some(residual) })
}

impl Pair<'_> {
    /// The orders in which B's rows may be right: the one its format has, or either where it has none.
    pub(crate) fn row_orders(&self) -> Vec<Option<RowOrder>> {
        let Some(head) = self.head() else { return vec![None] };
        let [a, b] = self.sides.map(Side::qk_rows);
        let to = a.unwrap_or(QkRows::Half);
        match b {
            Some(b) if b == to => vec![None],
            Some(_) => vec![Some(RowOrder { to, head })],
            None => vec![None, Some(RowOrder { to, head })],
        }
    }

    /// Rows of a head, for Q and K and their biases.
    fn head(&self) -> Option<usize> {
        let heads = self.heads()?.0;
        let rows = if self.left.shape().len() == 1 { self.left.len() } else { self.left.rows() };
        (heads > 0 && rows.is_multiple_of(2 * heads)).then(|| rows / heads)
    }

    /// The heads of this tensor, and those of the other kind.
    fn heads(&self) -> Option<(usize, usize)> {
        let (queries, keys) = self.sides.iter().find_map(|side| side.heads())?;
        match self.key.weight()?.role {
            Role::Q | Role::QBias => Some((queries, keys)),
            Role::K | Role::KBias => Some((keys, queries)),
            _ => None,
        }
    }

    /// NMSE left if `right`, read otherwise, is `left`: small enough, or `None`.
    fn explained(&self, left: &Tensor<'_>, right: &Tensor<'_>) -> Option<f64> {
        if left.shape() != right.shape() || left.unreadable().is_some() {
            return None;
        }
        let measured = measure(left, right, Options::default());
        measured.state().and_then(|_| measured.nmse())
    }

    /// What of B's rows is read where B stands as it should.
    fn expected_order(&self) -> Option<RowOrder> {
        self.row_orders().into_iter().next().flatten()
    }
}

/// Why B's tensor is not A's. `nmse` and `allowed` are those of the two as they stand.
pub(crate) fn diagnose(pair: &Pair<'_>, nmse: Option<f64>, allowed: Option<f64>) -> Diagnosis {
    let trials: [fn(&Pair<'_>) -> Option<Diagnosis>; 5] = [shape, row_order, transposed, another_tensor, values];
    for trial in trials {
        if let Some(diagnosis) = trial(pair) {
            return diagnosis;
        }
    }
    unknown(pair, nmse, allowed)
}

fn unknown(pair: &Pair<'_>, nmse: Option<f64>, allowed: Option<f64>) -> Diagnosis {
    let (Some(nmse), Some(allowed)) = (nmse, allowed) else {
        let note = match pair.left.shape() == pair.right.shape() {
            true => "values that are not finite".into(),
            false => format!("shape {:?} against {:?}", pair.right.shape(), pair.left.shape()),
        };
        return Diagnosis { cause: None, note, residual: None };
    };
    let kinds = [pair.left, pair.right].map(|t| t.storage().map_or("-", |s| s.name()));
    let note = if nmse < 0.1 && allowed > 1e-12 {
        format!(
            "off by NMSE {}, {:.0} times what {} against {} may cost",
            number(nmse),
            nmse / allowed,
            kinds[1],
            kinds[0]
        )
    } else if nmse > 0.5 {
        format!("NMSE {}: nothing like it", number(nmse))
    } else {
        format!("off by NMSE {}", number(nmse))
    };
    Diagnosis { cause: None, note, residual: None }
}

/// Sizes that differ: dims reversed, or only the beginning loaded.
fn shape(pair: &Pair<'_>) -> Option<Diagnosis> {
    let (left, right) = (pair.left, pair.right);
    if left.shape() == right.shape() {
        return None;
    }
    let reversed: Vec<usize> = left.shape().iter().rev().copied().collect();
    if right.shape() == reversed {
        let same_memory = right.reshaped(left.shape().to_vec()).in_order(pair.expected_order());
        if let Some(residual) = pair.explained(left, &same_memory) {
            return found(
                "storage-shape",
                format!("its shape is reversed, {reversed:?}, over the same memory"),
                residual,
            );
        }
        let (a, b) = (left.values(), transpose(&right.values(), &reversed));
        return close(&a, &b, pair).and_then(|residual| {
            found("weight-transposed", format!("stored as {reversed:?}, rows as columns"), residual)
        });
    }
    if right.len() < left.len() {
        let (a, b) = (left.first_values(right.len()), right.values());
        if let Some(residual) = close(&a, &b, pair) {
            let note = format!("only the first {} of {} elements are there", right.len(), left.len());
            return found("dequant-truncated", note, residual);
        }
    }
    None
}

/// Q and K in another order of rows than the format's.
fn row_order(pair: &Pair<'_>) -> Option<Diagnosis> {
    let (head, (heads, others)) = (pair.head()?, pair.heads()?);
    let (left, right) = (pair.left, pair.right);
    if left.shape() != right.shape() {
        return None;
    }
    let say = |text: &str, residual| found("qk-row-order", text.to_owned(), residual);
    let expected = pair.expected_order();
    if expected.is_some()
        && let Some(residual) = pair.explained(left, &right.in_order(None))
    {
        return say("its rows are not permuted for the RoPE pairing of this format", residual);
    }
    for to in [QkRows::Half, QkRows::Adjacent] {
        if expected.is_none_or(|e| e.to != to)
            && let Some(residual) = pair.explained(left, &right.in_order(Some(RowOrder { to, head })))
        {
            let text = match expected {
                None => "its rows are permuted, and this format's are not",
                Some(_) => "its rows are permuted the wrong way round",
            };
            return say(text, residual);
        }
        let rows = head * heads;
        let wrong_head = rows / others.max(1);
        if wrong_head != head && wrong_head >= 2 && wrong_head.is_multiple_of(2) && rows.is_multiple_of(wrong_head) {
            let order = RowOrder { to, head: wrong_head };
            if let Some(residual) = pair.explained(left, &right.in_order(Some(order))) {
                return say(
                    &format!("its rows are permuted as if there were {others} heads, and there are {heads}"),
                    residual,
                );
            }
        }
    }
    twice(pair, head)
}

/// The permutation applied twice is one of its own where a head has more than two pairs.
fn twice(pair: &Pair<'_>, head: usize) -> Option<Diagnosis> {
    let a = pair.left.values();
    let width = if pair.left.shape().len() == 1 { 1 } else { pair.left.row_len() };
    for to in [QkRows::Half, QkRows::Adjacent] {
        let once = |values: &[f32]| permuted(values, width, RowOrder { to, head });
        let b = pair.right.in_order(None).values();
        if let Some(residual) = close(&a, &once(&once(&b)), pair) {
            return found("qk-row-order", "its rows are permuted twice", residual);
        }
    }
    None
}

fn permuted(values: &[f32], width: usize, order: RowOrder) -> Vec<f32> {
    let rows = values.len() / width.max(1);
    (0..rows).flat_map(|row| values[order.source(row) * width..][..width].iter().copied()).collect()
}

/// The same numbers as \[in,out\].
fn transposed(pair: &Pair<'_>) -> Option<Diagnosis> {
    let [rows, columns] = *pair.left.shape() else { return None };
    if pair.right.shape() != pair.left.shape() {
        return None;
    }
    let a = pair.left.values();
    // Memory of [in,out] under the shape [out,in]; of a square matrix that is the transposed one.
    let memory = transpose(&a, &[rows, columns]);
    for order in [pair.expected_order(), None] {
        let b = pair.right.in_order(order).values();
        if let Some(residual) = close(&memory, &b, pair) {
            let note = match rows == columns {
                true => "it is transposed".to_owned(),
                false => format!("the memory of [in,out] = [{columns}, {rows}] under the shape [{rows}, {columns}]"),
            };
            return found("weight-transposed", note, residual);
        }
    }
    let other = transpose(&a, &[columns, rows]);
    let b = pair.right.in_order(pair.expected_order()).values();
    let residual = close(&other, &b, pair).filter(|_| rows != columns)?;
    found(
        "weight-transposed",
        format!("[{rows}, {columns}] read as [{columns}, {rows}], then rows as columns"),
        residual,
    )
}

/// `values` of shape \[rows, columns\] with rows as columns.
fn transpose(values: &[f32], shape: &[usize]) -> Vec<f32> {
    let [rows, columns] = *shape else { return values.to_vec() };
    (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
}

/// Another weight of A under this name.
fn another_tensor(pair: &Pair<'_>) -> Option<Diagnosis> {
    let sample = pair.right.in_order(None).sample();
    let ordered = pair.right.in_order(pair.expected_order()).sample();
    let weight = pair.key.weight()?;
    for (key, tensor) in pair.sides[0].all() {
        if key == *pair.key || tensor.shape() != pair.left.shape() {
            continue;
        }
        let like = |b: &[f32]| near(&tensor.sample(), b) < 0.2;
        if !like(&sample) && !like(&ordered) {
            continue;
        }
        let orders = [pair.expected_order(), None];
        let Some(residual) = orders.iter().find_map(|&order| pair.explained(&tensor, &pair.right.in_order(order)))
        else {
            continue;
        };
        let Some(other) = key.weight() else { continue };
        let (cause, note) = mistaken(weight, other, &key);
        // Norms without gains of their own are all alike.
        if pair.explained(pair.left, &tensor).is_some() {
            continue;
        }
        return found(cause, note, residual);
    }
    None
}

fn mistaken(weight: WeightRef, other: WeightRef, key: &Key) -> (&'static str, String) {
    let same_role = WeightRef { layer: weight.layer, role: other.role };
    match (weight.role, other.role) {
        (Role::Head, Role::Embedding) => ("head-tied", "it is the embedding, and the head is another matrix".into()),
        (Role::Embedding, Role::Head) => ("head-untied", "it is the head, and the embedding is another matrix".into()),
        (a, b) if a == b => {
            ("weight-wrong-layer", format!("it is that of layer {}", other.layer.map_or("-".into(), |l| l.to_string())))
        }
        (Role::AttnNorm | Role::FfnNorm | Role::FinalNorm, Role::AttnNorm | Role::FfnNorm | Role::FinalNorm) => {
            ("norm-wrong-weight", format!("it is {}", key.name()))
        }
        _ if other.layer == weight.layer => {
            let stem = hugging_face_name(same_role);
            ("weight-swapped", format!("it is {}", stem.rsplit('.').nth(1).unwrap_or(&stem)))
        }
        _ => ("weight-swapped", format!("it is {}", key.name())),
    }
}

/// What can be seen element by element.
fn values(pair: &Pair<'_>) -> Option<Diagnosis> {
    if pair.left.shape() != pair.right.shape() {
        return None;
    }
    let (a, b) = (pair.left.values(), pair.right.in_order(pair.expected_order()).values());
    constant(&b)
        .or_else(|| zeros(pair, &a, &b))
        .or_else(|| misread(&a, &b))
        .or_else(|| shifted(pair))
        .or_else(|| offset(pair, &a, &b))
        .or_else(|| {
            let storage = [pair.left, pair.right].into_iter().filter_map(Tensor::storage).find(|s| s.is_quantised())?;
            let nibbles = pair.left.blocks().and_then(|(kind, bytes)| blocks::nibbles(kind, bytes, &b));
            nibbles
                .or_else(|| blocks::diagnose(&a, &b, storage))
                .and_then(|(cause, note, residual)| found(cause, note, residual))
        })
}

fn constant(b: &[f32]) -> Option<Diagnosis> {
    let first = *b.first()?;
    let same = b.len() > 1 && b.iter().all(|x| *x == first);
    match (same, first == 0.0) {
        (true, true) => found("weight-unset", "zeros throughout", 0.0),
        (true, false) => found("weight-unset", format!("{first} throughout"), 0.0),
        _ => None,
    }
}

/// Right where it is not zero: a load that stopped too early.
fn zeros(pair: &Pair<'_>, a: &[f32], b: &[f32]) -> Option<Diagnosis> {
    let empty: Vec<bool> = a.iter().zip(b).map(|(x, y)| *y == 0.0 && *x != 0.0).collect();
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
    if b[start..].iter().all(|y| *y == 0.0) {
        let bytes = bytes_read(pair, start, end).unwrap_or_default();
        return found("dequant-truncated", format!("zero from element {start} of {end} on{bytes}"), residual);
    }
    let period = [32, 64, 128, 256, pair.left.row_len()].into_iter().find(|&period| {
        let from = |chunk: &[f32]| chunk.iter().rposition(|y| *y != 0.0).map_or(0, |at| at + 1);
        let longest = b.chunks(period).map(from).max().unwrap_or(0);
        longest < period && longest > 0 && b.chunks(period).all(|c| c.iter().skip(longest).all(|y| *y == 0.0))
    });
    let note = match period {
        Some(period) => {
            let longest =
                b.chunks(period).map(|c| c.iter().rposition(|y| *y != 0.0).map_or(0, |at| at + 1)).max().unwrap_or(0);
            let of = if period == pair.left.row_len() && ![32, 64, 128, 256].contains(&period) {
                "each row".into()
            } else {
                format!("every {period} elements")
            };
            format!("only the first {longest} of {of} are set")
        }
        None => format!("{count} of {} elements are zero, and right where they are not", a.len()),
    };
    found("dequant-truncated", note, residual)
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
    type Reading = (&'static str, fn(f32) -> f32);
    const READINGS: &[Reading] = &[
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
        let pairs = || a.iter().zip(b).step_by(step);
        let right = pairs().filter(|(x, y)| {
            let misread = read(**x);
            misread.to_bits() == y.to_bits()
                || misread.is_nan() && y.is_nan()
                || (misread - **y).abs() <= 1e-5 * misread.abs()
        });
        // A value on the edge of rounding may have gone the other way.
        if right.count() * 100 >= pairs().count() * 98 {
            return found("storage-type", *what, 0.0);
        }
    }
    None
}

/// Values that come some elements early or late in B's file.
fn shifted(pair: &Pair<'_>) -> Option<Diagnosis> {
    const FURTHEST: usize = 128;
    // In the order of the file: there the offset is wrong.
    let other = |to| if to == QkRows::Half { QkRows::Adjacent } else { QkRows::Half };
    let order = pair.expected_order().map(|order| RowOrder { to: other(order.to), ..order });
    let (a, b) = (pair.left.in_order(order).values(), pair.right.in_order(None).values());
    if a.len() < 128 {
        return None;
    }
    for by in 1..=FURTHEST.min(a.len() - 64) {
        for (x, y, word) in [(&a[by..], &b[..b.len() - by], "early"), (&a[..a.len() - by], &b[by..], "late")] {
            if near(&x[..64], &y[..64]) < 1e-3
                && let Some(residual) = close(x, y, pair)
            {
                let bytes = pair.right.bytes_of(by).map_or(String::new(), |n| format!(" ({n} bytes)"));
                return found(
                    "storage-shape",
                    format!("every value comes {by} elements{bytes} {word}: an offset or the alignment"),
                    residual,
                );
            }
        }
    }
    None
}

/// One number added to every element, or one factor.
fn offset(pair: &Pair<'_>, a: &[f32], b: &[f32]) -> Option<Diagnosis> {
    let plus = |by: f32| a.iter().map(|x| x + by).collect::<Vec<_>>();
    if let Some(residual) = close(&plus(1.0), b, pair) {
        return found("norm-plus-one", "1 is added to every element", residual);
    }
    if let Some(residual) = close(&plus(-1.0), b, pair) {
        return found("norm-plus-one", "1 is taken from every element", residual);
    }
    let wide = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let factor = wide(a, b) / wide(a, a);
    if !(factor.is_finite() && (factor - 1.0).abs() > 1e-3) {
        return None;
    }
    let scaled: Vec<f32> = a.iter().map(|x| (f64::from(*x) * factor) as f32).collect();
    let residual = close(&scaled, b, pair)?;
    Some(Diagnosis {
        cause: None,
        note: format!("{factor:.6} times the right values throughout"),
        residual: Some(residual),
    })
}

/// NMSE of `b` against `a`; infinite where it is not finite.
pub(crate) fn near(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() || a.is_empty() {
        return f64::INFINITY;
    }
    let (mut error, mut energy) = (0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        error += (f64::from(*y) - f64::from(*x)).powi(2);
        energy += f64::from(*x).powi(2);
    }
    let nmse = if energy > 0.0 { error / energy } else { error };
    if nmse.is_nan() { f64::INFINITY } else { nmse }
}

/// That NMSE, where it is no more than the two types must cost.
fn close(a: &[f32], b: &[f32], pair: &Pair<'_>) -> Option<f64> {
    let nmse = near(a, b);
    let energy: f64 = a.iter().map(|x| f64::from(*x).powi(2)).sum();
    let due = super::noise::between([a, b], [pair.left.storage(), pair.right.storage()]);
    let allowed = 1e-12 + if energy > 0.0 { super::ROOM * due / energy } else { 0.0 };
    (nmse <= allowed && allowed < 0.3).then_some(nmse)
}
