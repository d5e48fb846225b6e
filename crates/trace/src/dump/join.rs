//! Joins the dumps of all ranks of a sharded run into one dump.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dims::{AxisNotation, Share, find_notation};
use crate::dump::import::Partial;
use crate::dump::open::{RawTensor, merge_notes, read_meta};
use crate::dump::{Dump, DumpError, Entry};
use crate::element::DType;
use crate::meta::{Meta, TapMeta, split_stored_name};
use crate::narrow::{to_bf16, to_f16};
use crate::tap::Tap;
use crate::tensor::{Tensor, Values};

/// The rank dumps of a joined dump, and how each tap was joined.
#[derive(Debug)]
pub struct Ranks {
    names: Vec<String>,
    dumps: Arc<[Dump]>,
    joined: BTreeMap<(u32, Tap), Joined>,
    apart: BTreeMap<(u32, Tap), String>,
}

/// How one tap was joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// What each rank held.
    pub share: Share,
    /// The offset of each rank's slice along the cut axis of the joined tensor, and the end of the last slice. Empty for other shares.
    pub bounds: Vec<usize>,
    /// The axis of the joined tensor that is cut.
    pub axis: usize,
    /// The joined tensor's shape.
    pub shape: Vec<usize>,
    /// Whether a notation gives the share; otherwise it was inferred.
    pub is_declared: bool,
    /// For each axis of the joined tensor, its index in the rank tensors, if the order differs.
    order: Option<Vec<usize>>,
}

impl Ranks {
    /// The names of the ranks' folders, in order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The ranks' own dumps, in order.
    pub fn dumps(&self) -> &[Dump] {
        &self.dumps
    }

    /// How the tap of a step was joined.
    pub fn joined(&self, tap: Tap, step: u32) -> Option<&Joined> {
        self.joined.get(&(step, tap))
    }

    /// The rank tensors with their axes in the order of the joined tensor.
    pub fn in_order(&self, tap: Tap, step: u32, tensors: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
        let order = self.joined.get(&(step, tap)).and_then(|j| j.order.clone()).filter(|o| !o.is_sorted());
        let Some(order) = order else { return tensors };
        tensors.into_iter().filter_map(|(name, tensor)| Some((name, permuted(&tensor, &order)?))).collect()
    }

    /// Joins a tap without a notation to `shape`, if shapes allow exactly one way: slices along one axis.
    pub fn join_by_shape(&self, tap: Tap, step: u32, shape: &[usize]) -> Option<(Entry, Joined)> {
        self.apart.get(&(step, tap))?;
        let parts: Vec<Entry> = self.dumps.iter().map(|d| d.entry(tap, step)).collect::<Option<_>>()?;
        let alike = |e: &&Entry| e.dtype == parts[0].dtype && e.rows == parts[0].rows && e.shape.len() == shape.len();
        if parts.iter().filter(alike).count() < parts.len() {
            return None;
        }
        let sum = |axis: usize| parts.iter().try_fold(0usize, |n, e| n.checked_add(e.shape[axis]));
        let kept = |axis: usize| parts.iter().all(|e| e.shape[axis] == shape[axis]);
        let cut = |&axis: &usize| sum(axis) == Some(shape[axis]) && (0..shape.len()).all(|a| a == axis || kept(a));
        let mut axes = (0..shape.len()).filter(cut);
        let (Some(axis), None) = (axes.next(), axes.next()) else { return None };
        entry(&self.dumps, tap, step, &parts, (Share::Sliced(axis), false), None).ok()
    }

    /// The axis along which the ranks' slices of a tap are too short for `shape`, and their total length, if all else fits: a rank is missing.
    pub fn missing_slice(&self, tap: Tap, step: u32, shape: &[usize]) -> Option<(usize, usize)> {
        let alike = |own: &[usize], axis: usize| {
            own.len() == shape.len() && (0..shape.len()).all(|a| a == axis || own[a] == shape[a])
        };
        if let Some(joined) = self.joined(tap, step) {
            let held = *joined.shape.get(joined.axis)?;
            let cut = matches!(joined.share, Share::Sliced(_)) && alike(&joined.shape, joined.axis);
            return (cut && held < shape[joined.axis]).then_some((joined.axis, held));
        }
        self.why_not_joined(tap, step)?;
        let parts: Vec<&Entry> = self.dumps.iter().map(|d| d.find(tap, step)).collect::<Option<_>>()?;
        let short = |axis: usize| {
            let held = parts.iter().try_fold(0usize, |n, e| n.checked_add(*e.shape.get(axis)?))?;
            (held < shape[axis] && parts.iter().all(|e| alike(&e.shape, axis))).then_some((axis, held))
        };
        let mut all = (0..shape.len()).filter_map(short);
        all.next().filter(|_| all.next().is_none())
    }

    /// Why the tap of a step could not be joined.
    pub fn why_not_joined(&self, tap: Tap, step: u32) -> Option<&str> {
        self.apart.get(&(step, tap)).map(String::as_str)
    }

    /// The steps and taps that could not be joined.
    pub fn not_joined(&self) -> impl Iterator<Item = (u32, Tap)> + '_ {
        self.apart.keys().copied()
    }
}

/// Opens the dump of a folder with rank dumps: `rank0`, `rank1`, .. (or `rank_0`, `tp0`, `tp-0`); `None` where it has none. `open` opens one of them. A
/// `dump.json` beside the folders may hold their `dims`; `told` are those of a table of names, and take precedence.
pub(crate) fn open_ranks(
    path: &Path,
    declared: &BTreeMap<String, String>,
    open: impl Fn(&Path) -> Result<Dump, DumpError>,
) -> Result<Option<Dump>, DumpError> {
    let Some(folders) = rank_folders(path)? else { return Ok(None) };
    let json = path.join("dump.json");
    let beside = if json.exists() { read_meta(&json)? } else { Meta::default() };
    let mut dims = beside.dims.clone().unwrap_or_default();
    dims.extend(declared.clone());
    let ranks =
        folders.iter().map(|(name, folder)| Ok((name.clone(), open(folder)?))).collect::<Result<_, DumpError>>()?;
    let mut joined = join(path, ranks, &dims)?;
    joined.meta.incomplete_as(std::iter::once(&beside));
    Ok(Some(joined))
}

/// Recognises the dump of one rank that was opened alone, by its folder name, or by `dims` that mention slices. Its tensors may be slices or summands.
pub(crate) fn lone_rank(path: &Path, dump: Dump, declared: &BTreeMap<String, String>) -> Result<Dump, DumpError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let by_name = rank_number(&name).is_some();
    let beside = path.parent().map(|parent| parent.join("dump.json")).filter(|json| by_name && json.exists());
    let mut dims = beside.map(|json| read_meta(&json)).transpose()?.and_then(|meta| meta.dims).unwrap_or_default();
    dims.extend(declared.clone());
    let own = dump.meta().taps.iter().flatten().filter_map(|tap| tap.dims.as_ref());
    let mut own = own.chain(dump.meta().dims.iter().flat_map(BTreeMap::values));
    let of_pieces = |text: &String| text.parse::<AxisNotation>().is_ok_and(|dims| dims.share() != Share::Replicated);
    if !by_name && !own.any(of_pieces) {
        return Ok(dump);
    }
    join(path, vec![(name, dump)], &dims)
}

/// The rank folders in `path` by number, if there are any.
fn rank_folders(path: &Path) -> Result<Option<Vec<(String, PathBuf)>>, DumpError> {
    let io = |source| DumpError::Io { path: path.into(), source };
    let mut found: BTreeMap<usize, (String, PathBuf)> = BTreeMap::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if let Some(rank) = rank_number(&name).filter(|_| entry.path().is_dir())
            && let Some((other, _)) = found.insert(rank, (name.clone(), entry.path()))
        {
            return Err(refused(path, format!("{other} and {name} are both rank {rank}")));
        }
    }
    if let Some(missing) = (0..found.len()).find(|n| !found.contains_key(n)) {
        return Err(refused(path, format!("it holds rank dumps, and that of rank {missing} is not among them")));
    }
    Ok((!found.is_empty()).then(|| found.into_values().collect()))
}

/// 3 for `rank3`, `rank_3`, `rank-3`, `tp3` ...
fn rank_number(name: &str) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    let rest = lower.strip_prefix("rank").or_else(|| lower.strip_prefix("tp"))?;
    let digits = rest.strip_prefix(['_', '-']).unwrap_or(rest);
    let plain = !digits.is_empty() && digits.len() < 6 && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// Joins the dumps of all ranks of one run, in order. The notation of a tap comes from the ranks' own `dump.json`, else from `dims`: a table from taps, or
/// tap patterns, to notations (see [`AxisNotation`]). Tensors are joined when they are read. A tap without a notation is taken as replicated if all ranks are equal
/// bit for bit; [`Ranks::why_not_joined`] says why a tap cannot be joined.
///
/// # Errors
/// When a notation is invalid, or the ranks were fed different tokens.
pub fn join(path: &Path, ranks: Vec<(String, Dump)>, dims: &BTreeMap<String, String>) -> Result<Dump, DumpError> {
    let (names, dumps): (Vec<String>, Vec<Dump>) = ranks.into_iter().unzip();
    let Some(first) = dumps.first() else { return Err(refused(path, "no ranks".into())) };
    let mut meta = first.meta().clone();
    meta.taps = merged_tap_list(dumps.iter().map(|dump| (0, dump.meta())));
    meta.incomplete_as(dumps.iter().map(Dump::meta));
    if let Some(other) =
        dumps.iter().position(|d| (&d.meta().tokens, &d.meta().decode_tokens) != (&meta.tokens, &meta.decode_tokens))
    {
        return Err(refused(path, format!("{} and {} were fed different tokens", names[0], names[other])));
    }
    let dumps: Arc<[Dump]> = dumps.into();
    let mut whole = Dump { meta, ..Dump::empty(path) };
    whole.of_known_names = dumps.iter().any(|dump| dump.of_known_names);
    whole.name_map = dumps.iter().flat_map(|dump| dump.name_map.clone()).collect();
    whole.notes = merge_notes(dumps.iter().flat_map(|dump| dump.notes.iter().cloned()).collect());
    let printed = dumps.iter().flat_map(Dump::parts).map(|part| (part.step, part.tap));
    let places: BTreeSet<(u32, Tap)> =
        dumps.iter().flat_map(Dump::entries).map(|e| (e.step, e.tap)).chain(printed).collect();
    let (mut joined, mut apart) = (BTreeMap::new(), BTreeMap::new());
    let one = |step: u32, tap: Tap| -> Result<JoinResult, DumpError> {
        let notation = notation(path, &dumps, dims, tap, step)?;
        joined_entry(&names, &dumps, tap, step, notation.as_ref())
    };
    for (step, tap) in places {
        let made = match same_part(&dumps, tap, step) {
            InRanks::No => one(step, tap)?,
            InRanks::Same(part) => {
                whole.parts.push(part.clone());
                if dumps.iter().all(|dump| dump.find(tap, step).is_none()) {
                    continue;
                }
                one(step, tap)?
            }
            InRanks::Others => Err("its ranks printed other values of it, and what is printed is not joined".into()),
        };
        match made {
            Ok((entry, how)) => {
                whole.entries.push(entry);
                joined.insert((step, tap), how);
            }
            Err(reason) => drop(apart.insert((step, tap), reason)),
        }
    }
    // Names outside the vocabulary: if a tensor cannot be read, only its name is kept.
    let unmapped: BTreeSet<&String> = dumps.iter().flat_map(Dump::unmapped).collect();
    for name in unmapped {
        let (plain, step) = split_stored_name(name);
        let tap = Tap::named(plain);
        whole.unmapped.push(name.clone());
        if dumps.iter().all(|dump| dump.entry(tap, step).is_none()) {
            continue;
        }
        match one(step, tap)? {
            Ok((entry, how)) => {
                whole.loose.push(RawTensor::computed(plain, entry));
                joined.insert((step, tap), how);
            }
            Err(reason) => drop(apart.insert((step, tap), reason)),
        }
    }
    Ok(whole.with_ranks(Ranks { names, dumps, joined, apart }))
}

/// Merges the tap lists of several dumps: names and steps, each shifted by its `step`. Other fields apply to the single dumps only and are dropped.
pub(crate) fn merged_tap_list<'m>(metas: impl Iterator<Item = (u32, &'m Meta)>) -> Option<Vec<TapMeta>> {
    let (mut known, mut all, mut lists) = (HashSet::new(), Vec::new(), false);
    for (later, meta) in metas {
        lists |= meta.taps.is_some();
        for tap in meta.taps.iter().flatten() {
            let step = tap.step.saturating_add(later);
            if known.insert((tap.tap.clone(), step)) {
                let blank = TapMeta { file: None, shape: None, dtype: None, rows: None, dims: None, ..tap.clone() };
                all.push(TapMeta { step, ..blank });
            }
        }
    }
    lists.then_some(all)
}

/// The printed values of a tap in the ranks' dumps.
enum InRanks<'d> {
    /// No rank has any.
    No,
    /// All ranks have the same.
    Same(&'d Partial),
    Others,
}

fn same_part(dumps: &[Dump], tap: Tap, step: u32) -> InRanks<'_> {
    let all: Vec<Option<&Partial>> = dumps.iter().map(|dump| dump.find_part(tap, step)).collect();
    match all.first() {
        _ if all.iter().all(Option::is_none) => InRanks::No,
        Some(Some(first)) if all.iter().all(|part| part.is_some_and(|part| part.is_same(first))) => {
            InRanks::Same(first)
        }
        _ => InRanks::Others,
    }
}

/// The notation of a tap: from its own entry, the rank's table, or `dims`.
fn notation(
    path: &Path,
    dumps: &[Dump],
    dims: &BTreeMap<String, String>,
    tap: Tap,
    step: u32,
) -> Result<Option<AxisNotation>, DumpError> {
    let name = tap.to_string();
    let own = dumps.iter().flat_map(|d| d.meta().taps.iter().flatten());
    let own = own.filter(|t| t.tap == name && t.step == step).find_map(|t| t.dims.as_deref());
    let declared = || dumps.iter().filter_map(|d| d.meta().dims.as_ref()).find_map(|table| find_notation(table, tap));
    let text = own.or_else(declared).or_else(|| find_notation(dims, tap));
    text.map(|text| text.parse().map_err(|e| refused(path, format!("{tap}: {e}")))).transpose()
}

type JoinResult = Result<(Entry, Joined), String>;

/// Prepares one tap of all ranks, which is joined when it is read; or says why it cannot be joined.
fn joined_entry(
    names: &[String],
    dumps: &Arc<[Dump]>,
    tap: Tap,
    step: u32,
    dims: Option<&AxisNotation>,
) -> Result<JoinResult, DumpError> {
    let mut parts: Vec<Entry> = Vec::new();
    for (name, dump) in names.iter().zip(dumps.iter()) {
        match dump.entry(tap, step) {
            Some(entry) => parts.push(entry),
            // For a replica one rank is enough; for slices or a sum all are needed.
            None if dims.is_some_and(|d| d.share() == Share::Replicated) => {}
            None => return Ok(Err(format!("not in {name}"))),
        }
    }
    let Some(first) = parts.first() else { return Ok(Err("in no rank".into())) };
    if let Some(other) = parts.iter().find(|e| e.dtype != first.dtype || e.rows != first.rows) {
        return Ok(Err(format!("the ranks hold it in different types or rows ({} and {})", first.dtype, other.dtype)));
    }
    if dims.is_none() && !all_equal(dumps, &parts)? {
        return Ok(Err(UNTOLD.into()));
    }
    if let Some(dims) = dims.filter(|d| d.axes().len() != first.shape.len()) {
        let axes = dims.axes().len();
        return Ok(Err(format!("dims '{dims}' is of {axes} axes, its ranks' shape is {:?}", first.shape)));
    }
    let share = dims.map_or(Share::Replicated, AxisNotation::share);
    if let (Share::Partial, [alone]) = (share, names) {
        return Ok(Err(format!(
            "a sum over ranks, and the only rank's dump is {alone}: those of the others are missing"
        )));
    }
    Ok(entry(dumps, tap, step, &parts, (share, dims.is_some()), dims.and_then(|d| d.order(tap.site))))
}

const UNTOLD: &str = "its ranks hold different values, and nothing says how they join: say so ('dims' in dump.json: 'T D[tp]' cut, 'T D partial' summed)";

/// The tensor that is made of the ranks' `parts`, with its axes in `order`; `told` if a notation gives the share.
fn entry(
    dumps: &Arc<[Dump]>,
    tap: Tap,
    step: u32,
    parts: &[Entry],
    (share, is_declared): (Share, bool),
    order: Option<Vec<usize>>,
) -> JoinResult {
    let first = &parts[0];
    let cut = if let Share::Sliced(axis) = share { Some(axis) } else { None };
    let mut shape = first.shape.clone();
    let alike = |other: &[usize]| {
        other.len() == shape.len() && (0..other.len()).all(|i| other[i] == shape[i] || cut == Some(i))
    };
    if let Some(other) = parts.iter().find(|e| !alike(&e.shape)) {
        let how = cut.map_or("in one".to_owned(), |axis| format!("along axis {axis}"));
        return Err(format!("its ranks' shapes, {shape:?} and {:?}, do not join {how}", other.shape));
    }
    let mut bounds = Vec::new();
    if let Some(axis) = cut {
        bounds.push(0usize);
        for part in parts {
            let end = bounds.last().copied().unwrap_or(0).checked_add(part.shape[axis]);
            bounds.push(end.ok_or("its ranks' shapes overflow")?);
        }
        shape[axis] = bounds.last().copied().unwrap_or(0);
    }
    let place = |cut: usize| order.as_ref().and_then(|o| o.iter().position(|&a| a == cut)).unwrap_or(cut);
    let axis = cut.map_or(0, place);
    if let Some(order) = &order {
        shape = order.iter().map(|&a| shape[a]).collect();
    }
    let (dumps, moved) = (Arc::clone(dumps), order.clone());
    let make = move || merge(&dumps, tap, step, share, moved.as_deref());
    let made = Entry::computed(tap, step, shape.clone(), first.dtype, first.rows.clone(), make);
    Ok((made, Joined { share, bounds, axis, shape, is_declared, order }))
}

/// Whether all ranks hold the same bits.
fn all_equal(dumps: &[Dump], parts: &[Entry]) -> Result<bool, DumpError> {
    if parts.iter().any(|e| e.shape != parts[0].shape) {
        return Ok(false);
    }
    let first = dumps[0].read(&parts[0])?;
    for (dump, part) in dumps.iter().zip(parts).skip(1) {
        if dump.read(part)?.bytes() != first.bytes() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Concatenates the tensors of all ranks, or sums them, or takes the one that most ranks hold.
fn merge(dumps: &[Dump], tap: Tap, step: u32, share: Share, order: Option<&[usize]>) -> Result<Tensor, DumpError> {
    let mut parts = Vec::new();
    for dump in dumps {
        if let Some(entry) = dump.entry(tap, step) {
            parts.push(dump.read(&entry)?);
        }
    }
    let whole = match share {
        Share::Replicated => {
            let votes = |one: &Tensor| parts.iter().filter(|other| other.bytes() == one.bytes()).count();
            // On a tie the lowest rank's tensor: `max_by_key` would return the last.
            (0..parts.len()).rev().max_by_key(|&i| votes(&parts[i])).map(|i| parts.swap_remove(i))
        }
        Share::Sliced(axis) => Tensor::concatenated(parts, axis),
        Share::Partial => summed(&parts),
    };
    let path = dumps.first().map_or(Path::new(""), Dump::path);
    let changed = || refused(path, format!("{tap} has changed since it was opened"));
    let whole = whole.ok_or_else(changed)?;
    match order {
        Some(order) if !order.is_sorted() => permuted(&whole, order).ok_or_else(changed),
        _ => Ok(whole),
    }
}

impl Tensor {
    /// Concatenates tensors along an axis; `None` where they differ in another axis, or in type.
    pub fn concatenated(mut parts: Vec<Tensor>, axis: usize) -> Option<Tensor> {
        if parts.len() == 1 {
            return parts.pop();
        }
        let first = parts.first()?;
        let mut shape = first.shape().to_vec();
        shape[axis] = parts.iter().map(|part| part.shape().get(axis).copied().unwrap_or(0)).sum();
        let (dtype, outer) = (first.dtype(), shape[..axis].iter().product::<usize>());
        let mut bytes = Vec::new();
        for part in &parts {
            let mut like = shape.clone();
            like[axis] = *part.shape().get(axis)?;
            if part.shape() != like || part.dtype() != dtype {
                return None;
            }
            bytes.push((part.bytes(), like[axis..].iter().product::<usize>() * dtype.size()));
        }
        let row = |o: usize| bytes.iter().flat_map(move |(b, run)| b[o * run..(o + 1) * run].iter().copied());
        Tensor::from_bytes(shape, dtype, (0..outer).flat_map(row).collect())
    }
}

/// The sum in f64, rounded to the type of the parts.
fn summed(parts: &[Tensor]) -> Option<Tensor> {
    let first = parts.first()?;
    let mut sum = first.values().to_f64();
    for part in &parts[1..] {
        let values = part.values();
        sum.iter_mut().enumerate().for_each(|(i, s)| *s += values.get(i));
    }
    let values = match first.dtype() {
        DType::F64 => Values::F64(sum.into()),
        DType::F32 => Values::F32(sum.iter().map(|&x| x as f32).collect::<Vec<_>>().into()),
        DType::F16 => Values::F16(sum.iter().map(|&x| to_f16(x)).collect::<Vec<_>>().into()),
        DType::BF16 => Values::BF16(sum.iter().map(|&x| to_bf16(x)).collect::<Vec<_>>().into()),
    };
    Tensor::held(first.shape().to_vec(), values).ok()
}

/// The tensor with axis `order[i]` as its axis i.
fn permuted(tensor: &Tensor, order: &[usize]) -> Option<Tensor> {
    let (from, size, bytes) = (tensor.shape(), tensor.dtype().size(), tensor.bytes());
    let shape: Vec<usize> = order.iter().map(|&a| from[a]).collect();
    let strides: Vec<usize> = order.iter().map(|&a| from[a + 1..].iter().product()).collect();
    let mut all = Vec::with_capacity(bytes.len());
    for i in 0..shape.iter().product::<usize>() {
        let (mut rest, mut place) = (i, 0);
        for (&extent, &stride) in shape.iter().zip(&strides).rev() {
            place += rest % extent * stride;
            rest /= extent;
        }
        all.extend_from_slice(&bytes[place * size..(place + 1) * size]);
    }
    Tensor::from_bytes(shape, tensor.dtype(), all)
}

fn refused(path: &Path, reason: String) -> DumpError {
    DumpError::NotADump { path: path.into(), reason }
}
