//! Finds why two tensors are not the same. Each known mistake is imitated on A, and named if B's own values come out.

use firstdiff_compare::metrics::{Metrics, Squares};
use firstdiff_compare::{number, ranges};
use firstdiff_model::{Role, WeightRef, hugging_face_name};
use firstdiff_trace::QkRows;

use super::changes::{Both, law};
use super::measure::{Same, measure};
use super::paid::{Cost, account};
use super::relaid::{changed_too, relaid};
use super::relations::exchanged;
use super::side::{RowOrder, Side, Tensor};
use super::values::values;
use super::{Key, Options, noise};
use crate::mistakes::Mistake;
use crate::mistakes::head::{HEAD_TIED, HEAD_UNTIED};
use crate::mistakes::linear::{QK_ROW_ORDER, WEIGHT_SWAPPED, WEIGHT_TRANSPOSED, WEIGHT_WRONG_LAYER};
use crate::mistakes::norm::NORM_WRONG_WEIGHT;
use crate::mistakes::stored::{DEQUANT_TRUNCATED, STORAGE_SHAPE};
use crate::tolerance::weights::{
    CHANGE_LEAVES, LEAST_ALLOWED, LIKE_ITSELF, LINED, NOTHING_IN_COMMON, OTHER_MATRIX, QUANTISING_ROOM,
};

/// Two tensors of one weight.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'a> {
    pub(crate) key: &'a Key,
    pub(crate) sides: [&'a Side; 2],
    pub(crate) left: &'a Tensor<'a>,
    pub(crate) right: &'a Tensor<'a>,
    /// Whether B's are copies of A's blocks, in which no error is due.
    pub(crate) copy: bool,
}

/// What was found.
pub(crate) struct Diagnosis {
    pub(crate) cause: Option<&'static Mistake>,
    pub(crate) note: String,
    /// NMSE that remains once the mistake is imitated.
    pub(crate) residual: Option<f64>,
    /// What the claim costs; `None` of what B's values show as they stand.
    pub(crate) cost: Option<Cost>,
}

impl Diagnosis {
    /// What stands in B, and claims nothing.
    pub(super) fn plain(note: impl Into<String>) -> Diagnosis {
        Diagnosis { cause: None, note: note.into(), residual: None, cost: None }
    }

    /// A law that no mistake of the catalogue is named for.
    pub(super) fn law(note: impl Into<String>, residual: f64, cost: Cost) -> Diagnosis {
        Diagnosis { residual: Some(residual), cost: Some(cost), ..Diagnosis::plain(note) }
    }
}

pub(super) fn found(cause: &'static Mistake, note: impl Into<String>, residual: f64) -> Option<Diagnosis> {
    Some(Diagnosis { cause: Some(cause), ..Diagnosis::law(note, residual, Cost::default()) })
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
        let pairs = heads.checked_mul(2).filter(|&pairs| pairs > 0 && rows > 0)?;
        rows.is_multiple_of(pairs).then(|| rows / heads)
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
        measured.same().filter(|same| !self.copy || *same != Same::Noise).and_then(|_| measured.nmse())
    }

    /// Every order in which B's rows may stand, right or wrong; the expected one first.
    fn orders(&self) -> Vec<Option<RowOrder>> {
        let mut orders = vec![self.expected_order(), None];
        if let Some(head) = self.head().filter(|_| self.left.shape() == self.right.shape()) {
            orders.extend([QkRows::Half, QkRows::Adjacent].map(|to| Some(RowOrder { to, head })));
        }
        let mut once = Vec::new();
        for order in orders {
            if !once.contains(&order) {
                once.push(order);
            }
        }
        once
    }

    /// What of B's rows is read where B stands as it should.
    pub(super) fn expected_order(&self) -> Option<RowOrder> {
        self.row_orders().into_iter().next().flatten()
    }
}

/// Why B's tensor is not A's. `nmse` and `allowed` are those of the two as they stand.
pub(crate) fn diagnose(pair: &Pair<'_>, nmse: Option<f64>, allowed: Option<f64>) -> Diagnosis {
    let trials: [fn(&Pair<'_>) -> Option<Diagnosis>; 10] = [
        shape,
        row_order,
        transposed,
        another_tensor,
        another_relaid,
        values,
        |pair| law(pair, |both| both.by_parts()),
        |pair| law(pair, |both| both.reordered()),
        |pair| law(pair, changed_too),
        |pair| law(pair, |both| both.low_rank()),
    ];
    // What leaves most of the error explains nothing.
    let explains = |d: &Diagnosis| match (d.residual, nmse) {
        (Some(left), Some(nmse)) => left <= CHANGE_LEAVES * nmse,
        _ => true,
    };
    let mut open = None;
    for found in trials.iter().filter_map(|trial| trial(pair).filter(explains)) {
        match account(pair, nmse, allowed, &found).filter(|account| !account.is_paid()) {
            None => return found,
            // Of no number nothing is allowed.
            Some(account) if account.evidence.numbers > 0 => open = open.or(Some((found.note, account))),
            Some(_) => {}
        }
    }
    let unknown = unknown(pair, nmse, allowed);
    match open {
        Some((note, account)) => {
            Diagnosis::plain(format!("{}; allowed by its numbers, and not proved: {note} ({account})", unknown.note))
        }
        None => unknown,
    }
}

/// Rows that are right in an order the other tensors' rows are not in.
pub(crate) fn mixed_order(pair: &Pair<'_>, order: usize) -> Diagnosis {
    let whose = if order == 0 { "A's" } else { "the other" };
    let note =
        format!("its rows are in {whose} RoPE order, those of other Q and K are not: no pairing is right for both");
    Diagnosis {
        cause: Some(&QK_ROW_ORDER),
        note,
        residual: pair.explained(pair.left, &pair.right.in_order(pair.row_orders()[order])),
        cost: None,
    }
}

fn unknown(pair: &Pair<'_>, nmse: Option<f64>, allowed: Option<f64>) -> Diagnosis {
    let say = |note: String| Diagnosis::plain(note);
    if pair.left.shape() != pair.right.shape() {
        let more =
            padded(pair).map_or(String::new(), |rows| format!(": {rows} rows of zeros more, and the others right"));
        return say(format!("shape {:?} against {:?}{more}", pair.right.shape(), pair.left.shape()));
    }
    let (a, b) = (pair.left.values(), pair.right.in_order(pair.expected_order()).values());
    let odd: Vec<usize> = (0..b.len()).filter(|&i| !b[i].is_finite()).collect();
    if let Some(first) = odd.first() {
        let both = odd.iter().all(|&i| a[i].is_nan() == b[i].is_nan() && !a[i].is_finite());
        let whose = if both { "in both, at the same places" } else { "in B" };
        let row = first / pair.right.row_len().max(1);
        return say(format!("{} values that are not finite {whose}, the first in row {row}", odd.len()));
    }
    let (Some(nmse), Some(allowed)) = (nmse, allowed) else {
        let zero = a.iter().all(|x| *x == 0.0);
        return say(if zero {
            "A is zero throughout, B is not".into()
        } else {
            "A has values that are not finite".into()
        });
    };
    let kinds = [pair.left, pair.right].map(|t| t.storage().map_or("-", |s| s.name()));
    let due = !pair.copy && nmse < 0.1 && allowed > LEAST_ALLOWED && nmse > 1.5 * allowed;
    let place = place(pair, &a, &b).unwrap_or_default();
    let apart = Metrics::measure_f32(&a, &b).cosine().is_some_and(|cosine| cosine.abs() < NOTHING_IN_COMMON);
    say(if due {
        let times = nmse / allowed;
        format!("off by NMSE {}{place}, {times:.0} times what {} against {} may cost", number(nmse), kinds[1], kinds[0])
    } else if nmse > OTHER_MATRIX && apart && place.is_empty() {
        format!("NMSE {}: element by element no correlation with A's values", number(nmse))
    } else {
        format!("off by NMSE {}{place}", number(nmse))
    })
}

/// Rows that B has more, if all of those are zero and the others right: a vocabulary filled up.
fn padded(pair: &Pair<'_>) -> Option<usize> {
    let (left, right) = (pair.left, pair.right);
    let rows = right.rows().checked_sub(left.rows()).filter(|_| left.row_len() == right.row_len())?;
    let values = right.values();
    let (first, rest) = values.split_at(left.len());
    (rest.iter().all(|x| *x == 0.0) && close(&left.values(), first, pair).is_some()).then_some(rows)
}

/// The rows that are wrong, or the columns, where they are few.
pub(super) fn place(pair: &Pair<'_>, a: &[f32], b: &[f32]) -> Option<String> {
    let width = pair.left.row_len().max(1);
    let [bad_rows, bad_columns] = Both::of(pair, a, b).wrong();
    // What rounding leaves of each is little beside what is wrong.
    let few = |of: usize, (some, share): &(Vec<usize>, f64)| some.len() * 4 <= of && *share > LINED;
    let say = |what: &str, some: &[usize], of: usize| format!(", all of it in {what} {} of {of}", first_few(some));
    if width > 1 && few(a.len() / width, &bad_rows) {
        Some(say("rows", &bad_rows.0, a.len() / width))
    } else if few(width, &bad_columns) {
        Some(say(if width == a.len() { "elements" } else { "columns" }, &bad_columns.0, width))
    } else {
        None
    }
}

/// `3, 7-9`: the first few of some numbers, neighbours joined.
pub(super) fn first_few(numbers: &[usize]) -> String {
    let mut words = ranges(numbers);
    if words.len() > 4 {
        words.splice(4.., ["...".into()]);
    }
    words.join(", ")
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
                &STORAGE_SHAPE,
                format!("its shape is reversed, {reversed:?}, over the same memory"),
                residual,
            );
        }
        let (a, b) = (left.values(), exchanged(&right.values(), &reversed));
        return close(&a, &b, pair).and_then(|residual| {
            found(&WEIGHT_TRANSPOSED, format!("stored as {reversed:?}, rows as columns"), residual)
        });
    }
    if right.len() < left.len() {
        let (a, b) = (left.first_values(right.len()), right.values());
        if let Some(residual) = close(&a, &b, pair) {
            let note = format!("only the first {} of {} elements are there", right.len(), left.len());
            return found(&DEQUANT_TRUNCATED, note, residual);
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
    let say = |text: &str, residual| found(&QK_ROW_ORDER, text.to_owned(), residual);
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
                None if pair.sides[0].qk_rows() == Some(QkRows::Adjacent) => "its rows are permuted twice",
                None => "its rows are permuted, and this format's are not",
                Some(_) => "its rows are permuted the wrong way round",
            };
            return say(text, residual);
        }
        for count in wrong_heads(head * heads, heads, others) {
            let order = RowOrder { to, head: head * heads / count };
            if let Some(residual) = pair.explained(left, &right.in_order(Some(order))) {
                return say(
                    &format!("its rows are permuted as if there were {count} heads, and there are {heads}"),
                    residual,
                );
            }
        }
    }
    twice(pair, head)
}

/// Numbers of heads that `rows` may have been permuted by instead of `heads`: first of all the other kind's.
fn wrong_heads(rows: usize, heads: usize, others: usize) -> impl Iterator<Item = usize> {
    const MOST: usize = 128;
    let even = move |count: usize| count.checked_mul(2).is_some_and(|pairs| pairs > 0 && rows.is_multiple_of(pairs));
    let fits = move |count: usize| count != heads && even(count) && rows / count > 2;
    std::iter::once(others).chain((1..=MOST).filter(move |&count| count != others)).filter(move |&count| fits(count))
}

/// The permutation applied twice is one of its own where a head has more than two pairs.
fn twice(pair: &Pair<'_>, head: usize) -> Option<Diagnosis> {
    let a = pair.left.values();
    let width = if pair.left.shape().len() == 1 { 1 } else { pair.left.row_len() };
    for to in [QkRows::Half, QkRows::Adjacent] {
        let once = |values: &[f32]| permuted(values, width, RowOrder { to, head });
        let b = pair.right.in_order(None).values();
        if let Some(residual) = close(&a, &once(&once(&b)), pair) {
            return found(&QK_ROW_ORDER, "its rows are permuted twice", residual);
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
    if pair.right.shape() != pair.left.shape() || pair.left.shape().len() != 2 {
        return None;
    }
    let (how, residual) =
        pair.orders().into_iter().find_map(|order| relaid(pair, &pair.right.in_order(order).values()))?;
    found(&WEIGHT_TRANSPOSED, how, residual)
}

/// Another weight of A under this name, as far as `how` finds one to be B's: what is to be said of it beside, and what is left.
fn another(pair: &Pair<'_>, how: impl Fn(&Tensor<'_>) -> Option<(String, f64)>) -> Option<Diagnosis> {
    let (weight, sample) = (pair.key.weight()?, pair.right.in_order(None).sample());
    // One number throughout is like any other tensor of that kind.
    if sample.iter().all(|x| *x == sample[0]) {
        return None;
    }
    let others = pair.sides[0].all().filter(|(key, tensor)| key != pair.key && tensor.len() == pair.right.len());
    others.into_iter().find_map(|(key, tensor)| {
        let (more, residual) = how(&tensor)?;
        let (cause, note) = mistaken(weight, key.weight()?, &key);
        found(cause, note + &more, residual)
    })
}

/// Another one in another order of elements: of any shape of as many.
fn another_relaid(pair: &Pair<'_>) -> Option<Diagnosis> {
    let orders: Vec<Vec<f32>> = pair.orders().into_iter().map(|order| pair.right.in_order(order).values()).collect();
    another(pair, |tensor| {
        let (how, residual) = orders.iter().find_map(|b| relaid(&Pair { left: tensor, ..*pair }, b))?;
        Some((format!("; and in another order: {how}"), residual))
    })
}

/// Another one as it stands.
fn another_tensor(pair: &Pair<'_>) -> Option<Diagnosis> {
    // Of another shape than its name has, no order of rows is known.
    if pair.right.shape() != pair.left.shape() {
        return None;
    }
    let orders = [pair.expected_order(), None].map(|order| pair.right.in_order(order));
    let samples = orders.each_ref().map(Tensor::sample);
    another(pair, |tensor| {
        let is_like = tensor.shape() == pair.left.shape()
            && samples.iter().any(|sample| near(&tensor.sample(), sample) < LIKE_ITSELF);
        let residual = orders.iter().filter(|_| is_like).find_map(|right| pair.explained(tensor, right))?;
        // Norms without gains of their own are all alike.
        pair.explained(pair.left, tensor).is_none().then(|| (String::new(), residual))
    })
}

fn mistaken(weight: WeightRef, other: WeightRef, key: &Key) -> (&'static Mistake, String) {
    let same_role = WeightRef { layer: weight.layer, role: other.role };
    match (weight.role, other.role) {
        (Role::Head, Role::Embedding) => (&HEAD_TIED, "it is the embedding, and the head is another matrix".into()),
        (Role::Embedding, Role::Head) => (&HEAD_UNTIED, "it is the head, and the embedding is another matrix".into()),
        (a, b) if a == b => {
            (&WEIGHT_WRONG_LAYER, format!("it is that of layer {}", other.layer.map_or("-".into(), |l| l.to_string())))
        }
        (Role::AttnNorm | Role::FfnNorm | Role::FinalNorm, Role::AttnNorm | Role::FfnNorm | Role::FinalNorm) => {
            (&NORM_WRONG_WEIGHT, format!("it is {}", key.name()))
        }
        _ if other.layer == weight.layer => {
            let stem = hugging_face_name(same_role);
            (&WEIGHT_SWAPPED, format!("it is {}", stem.rsplit('.').nth(1).unwrap_or(&stem)))
        }
        _ => (&WEIGHT_SWAPPED, format!("it is {}", key.name())),
    }
}

/// NMSE of `b` against `a`; infinite where it is not finite.
pub(crate) fn near(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() || a.is_empty() {
        return f64::INFINITY;
    }
    Squares::sum(a.iter().zip(b).map(|(x, y)| (f64::from(*x), f64::from(*y)))).relative()
}

/// That NMSE, where it is no more than the two types must cost.
pub(super) fn close(a: &[f32], b: &[f32], pair: &Pair<'_>) -> Option<f64> {
    let nmse = near(a, b);
    let energy: f64 = a.iter().map(|x| f64::from(*x).powi(2)).sum();
    let storages = [pair.left.storage(), pair.right.storage()];
    let due = if pair.copy { 0.0 } else { noise::between([a, b], storages).iter().map(|v| f64::from(*v)).sum::<f64>() };
    let allowed = LEAST_ALLOWED + if energy > 0.0 { QUANTISING_ROOM * due / energy } else { 0.0 };
    (nmse <= allowed && allowed < 0.3).then_some(nmse)
}
