//! Reads one side of a comparison: its tensors by what their names mean, in a common order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firstdiff_model::{
    Format, ModelError, Opened, Role, Storage, WeightRef, WeightView, hugging_face_name, open_weights,
};
use firstdiff_trace::QkRows;

use super::Key;
use super::parts::{Name, Named};

/// The weights of one file or folder.
#[derive(Debug)]
pub struct Side {
    path: PathBuf,
    opened: Opened,
    names: BTreeMap<Key, String>,
    /// Names in the file, in order.
    all: Vec<String>,
    /// Names that mean a weight that another tensor is already.
    doubles: Vec<String>,
    notes: Vec<String>,
}

impl Side {
    /// Opens weights of any format.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Side, ModelError> {
        let path = path.as_ref();
        let opened = open_weights(path)?;
        let mut all: Vec<String> = opened.weights.names().map(str::to_owned).collect();
        all.sort_unstable();
        let (mut names, mut doubles) = (BTreeMap::new(), Vec::new());
        for name in &all {
            match names.entry(Key::of(name)) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(name.to_owned());
                }
                std::collections::btree_map::Entry::Occupied(_) => doubles.push(name.to_owned()),
            }
        }
        let mut side = Side { path: path.into(), opened, names, all, doubles, notes: Vec::new() };
        side.leave_out_tied_head();
        Ok(side)
    }

    /// A head beside a config that ties it is not read: transformers takes the embedding.
    fn leave_out_tied_head(&mut self) {
        let tied =
            self.opened.format == Format::HuggingFace && self.opened.config.as_ref().is_ok_and(|config| config.tied);
        let [embedding, head] =
            [Role::Embedding, Role::Head].map(|role| Key::of(&hugging_face_name(WeightRef { layer: None, role })));
        if tied
            && self.names.contains_key(&embedding)
            && let Some(name) = self.names.remove(&head)
        {
            let label = self.label();
            self.notes.push(format!("{label}: its config ties the head to the embedding, so {name} is not read"));
        }
    }

    /// What should be known of it.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The path's last part.
    pub fn label(&self) -> String {
        self.path.file_name().map_or_else(|| self.path.display().to_string(), |n| n.to_string_lossy().into_owned())
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its format is called.
    pub fn format(&self) -> &'static str {
        self.opened.format.name()
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.opened.weights.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names that mean a weight another tensor is already.
    pub fn doubles(&self) -> &[String] {
        &self.doubles
    }

    /// Whether it is what an engine wrote, which need not be all.
    pub(crate) fn is_dump(&self) -> bool {
        matches!(self.opened.format, Format::Dumped | Format::Text)
            || self.opened.format == Format::Npz && !self.names.values().any(|n| n.starts_with("model."))
    }

    /// Whether it is a dump of some tensors of a model; so is an .npz of less than half of them, which is no model that was saved.
    pub(crate) fn holds_some(&self, all: &Side) -> bool {
        self.is_dump()
            || self.opened.format == Format::Npz
                && 2 * all.names.keys().filter(|key| self.names.contains_key(*key)).count() < all.names.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.names.keys().cloned()
    }

    /// The tensors that mean nothing the other side has, with what their names say.
    pub(super) fn alone(&self, other: &Side) -> Vec<Name> {
        let alone = self.names.iter().filter(|(key, _)| !other.names.contains_key(*key));
        alone.map(|(_, name)| (name.clone(), Named::of(name))).collect()
    }

    /// For which pairing the rows of Q and K are ordered: by the format, or by names that only one kind of file has.
    pub(crate) fn qk_rows(&self) -> Option<QkRows> {
        let hugging_face = self.names.values().any(|name| name.starts_with("model.layers."));
        self.opened.qk_rows.or(hugging_face.then_some(QkRows::Half))
    }

    /// Heads of queries and of keys.
    pub(crate) fn heads(&self) -> Option<(usize, usize)> {
        self.opened.heads
    }

    pub(crate) fn tensor(&self, key: &Key) -> Option<Tensor<'_>> {
        self.stored(self.names.get(key)?)
    }

    fn stored<'s>(&'s self, name: &'s str) -> Option<Tensor<'s>> {
        let view = match self.opened.weights.tensor(name) {
            Ok(view) => Ok(view?),
            Err(e) => Err(e.to_string()),
        };
        let shape = view.as_ref().map_or_else(|_| Vec::new(), |v| v.shape().to_vec());
        Some(Tensor { name, view, shape, order: None, made: None, dump: self.is_dump() })
    }

    /// Names in the file, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + '_ {
        self.all.iter().map(String::as_str)
    }

    /// The tensor of that name in the file.
    pub(crate) fn named(&self, name: &str) -> Option<Tensor<'_>> {
        self.stored(&self.all[self.all.binary_search_by(|own| own.as_str().cmp(name)).ok()?])
    }

    /// Whether it is of a model, and of none that is known here.
    pub(crate) fn is_of_no_family(&self) -> bool {
        matches!(self.opened.format, Format::HuggingFace | Format::Gguf) && self.opened.config.is_err()
    }

    /// Every tensor that can be read, with its key.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Key, Tensor<'_>)> + '_ {
        self.names.keys().filter_map(|key| Some((key.clone(), self.tensor(key).filter(|t| t.view.is_ok())?)))
    }
}

/// A change of the order of rows within heads of so many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowOrder {
    /// The order that is wanted.
    pub(crate) to: QkRows,
    /// Rows of a head.
    pub(crate) head: usize,
}

impl RowOrder {
    /// Which stored row is row `row`.
    pub(crate) fn source(self, row: usize) -> usize {
        let (base, i, half) = (row / self.head * self.head, row % self.head, self.head / 2);
        base + match self.to {
            // Stored adjacent: row 2i + s is row s·half + i.
            QkRows::Half => 2 * (i % half) + i / half,
            QkRows::Adjacent => i % 2 * half + i / 2,
        }
    }
}

/// A tensor as it is to be compared.
#[derive(Clone)]
pub(crate) struct Tensor<'a> {
    name: &'a str,
    view: Result<WeightView<'a>, String>,
    shape: Vec<usize>,
    order: Option<RowOrder>,
    /// Values that were made of several tensors, of which this is the first.
    made: Option<Arc<Vec<f32>>>,
    dump: bool,
}

/// Elements of a tile.
const TILE: usize = 1 << 17;

impl<'a> Tensor<'a> {
    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    pub(crate) fn storage(&self) -> Option<Storage> {
        self.view.as_ref().ok().map(WeightView::storage)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of a row: of the last axis.
    pub(crate) fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    pub(crate) fn rows(&self) -> usize {
        self.len() / self.row_len().max(1)
    }

    pub(crate) fn unreadable(&self) -> Option<String> {
        self.view.as_ref().err().cloned()
    }

    /// Whether the name says outright that it is a weight, so that a wrong size is wrong.
    pub(crate) fn is_named(&self) -> bool {
        let name = self.name.to_ascii_lowercase();
        !self.dump
            || ["weights.", "weight", "w_"].iter().any(|p| name.starts_with(p))
            || name.ends_with(".weight")
            || name.ends_with(".bias")
    }

    /// Whether an engine wrote it.
    pub(crate) fn is_dumped(&self) -> bool {
        self.dump
    }

    /// Whether it is only taken for the weight its name might mean.
    pub(crate) fn is_guess(&self) -> bool {
        !self.is_named()
    }

    /// Numbers without a shape take that of `other`, which has as many.
    pub(crate) fn shaped_like(&self, other: &Tensor<'_>) -> Tensor<'a> {
        let flat = |shape: &[usize]| shape.iter().filter(|&&n| n != 1).count() <= 1;
        let take = self.len() == other.len() && flat(&self.shape) && self.order.is_none();
        Tensor { shape: if take { other.shape.clone() } else { self.shape.clone() }, ..self.clone() }
    }

    /// Values that were made of it and others.
    pub(crate) fn made(&self, values: Vec<f32>, shape: Vec<usize>) -> Tensor<'a> {
        Tensor { made: Some(Arc::new(values)), shape, ..self.clone() }
    }

    /// The same numbers under another shape.
    pub(crate) fn reshaped(&self, shape: Vec<usize>) -> Tensor<'a> {
        Tensor { shape, ..self.clone() }
    }

    pub(crate) fn in_order(&self, order: Option<RowOrder>) -> Tensor<'a> {
        Tensor { order, ..self.clone() }
    }

    /// Whether both hold the same bytes of the same type in the same order.
    pub(crate) fn same_bytes(&self, other: &Tensor<'_>) -> bool {
        match (&self.view, &other.view) {
            (Ok(a), Ok(b)) => {
                let plain = self.made.is_none()
                    && a.is_plain()
                    && b.is_plain()
                    && self.order == other.order
                    && self.shape == other.shape;
                plain && a.storage() == b.storage() && a.bytes() == b.bytes() && !may_be_no_number(a)
            }
            _ => false,
        }
    }

    /// Ranges of elements that are read together: whole rows, whole heads where rows change places, whole blocks.
    pub(crate) fn tiles(&self, other: &Tensor<'_>) -> Vec<Range<usize>> {
        let heads = [self.order, other.order].iter().flatten().map(|o| o.head).max().unwrap_or(1);
        let unit = self.row_len().max(1).saturating_mul(heads);
        let size = (TILE / unit).max(1) * unit;
        let len = self.len();
        (0..len.div_ceil(size)).map(|i| i * size..((i + 1) * size).min(len)).collect()
    }

    /// Elements `range`, which are whole rows. Where rows change places the heads that they stand in are read; rows behind the last whole head stay.
    pub(crate) fn read(&self, range: Range<usize>) -> Vec<f32> {
        if let Some(values) = &self.made {
            return values.get(range).map(<[f32]>::to_vec).unwrap_or_default();
        }
        let Ok(view) = &self.view else { return Vec::new() };
        let Some(order) = self.order else { return view.elements(range) };
        // A vector's elements are the rows.
        let width = if self.shape.len() == 1 { 1 } else { self.row_len().max(1) };
        let (rows, wanted) = (self.len() / width, range.start / width..range.end / width);
        let whole = rows / order.head * order.head;
        let first = wanted.start / order.head * order.head;
        let stored = view.elements(first * width..wanted.end.next_multiple_of(order.head).min(rows) * width);
        let source = |row: usize| if row < whole { order.source(row) } else { row };
        wanted.flat_map(|row| stored[(source(row) - first) * width..][..width].iter().copied()).collect()
    }

    pub(crate) fn values(&self) -> Vec<f32> {
        self.read(0..self.len())
    }

    /// The first `count` elements, or all.
    pub(crate) fn first_values(&self, count: usize) -> Vec<f32> {
        let rows = count.div_ceil(self.row_len().max(1)).min(self.rows());
        let mut values = self.read(0..rows * self.row_len());
        values.truncate(count);
        values
    }

    /// Some elements spread over the whole, the same places for every tensor of that size, whatever the order its rows are read in.
    pub(crate) fn sample(&self) -> Vec<f32> {
        let (rows, width) = (self.rows(), self.row_len().max(1));
        if self.shape.len() < 2 {
            return self.values().into_iter().step_by((self.len() / 256).max(1)).collect();
        }
        let all = self.order.is_some().then(|| self.values());
        let pick = |row: usize| match &all {
            Some(all) => all[row * width..(row + 1) * width].to_vec(),
            None => self.read(row * width..(row + 1) * width),
        };
        (0..rows)
            .step_by((rows / 8).max(1))
            .flat_map(|row| pick(row).into_iter().step_by((width / 32).max(1)).collect::<Vec<_>>())
            .collect()
    }

    /// What is quantised as it is stored, in the order of the elements.
    pub(crate) fn stored(&self) -> Option<WeightView<'a>> {
        let is_whole = self.order.is_none() && self.made.is_none();
        self.view.as_ref().ok().copied().filter(|view| is_whole && view.storage().is_quantised())
    }

    /// Bytes of `count` elements, where that is a whole number.
    pub(crate) fn bytes_of(&self, count: usize) -> Option<usize> {
        self.storage()?.row_bytes(count)
    }
}

/// Equal bytes of floats are equal values unless they are NaN; and no weight is infinite.
fn may_be_no_number(view: &WeightView<'_>) -> bool {
    let half = |exponent: u16| move |b: &[u8; 2]| u16::from_le_bytes(*b) & exponent == exponent;
    match view.storage() {
        Storage::F32 => view.bytes().as_chunks::<4>().0.iter().any(|b| !f32::from_le_bytes(*b).is_finite()),
        Storage::F64 => view.bytes().as_chunks::<8>().0.iter().any(|b| !f64::from_le_bytes(*b).is_finite()),
        Storage::F16 => view.bytes().as_chunks::<2>().0.iter().any(half(0x7c00)),
        Storage::BF16 => view.bytes().as_chunks::<2>().0.iter().any(half(0x7f80)),
        _ => false,
    }
}
