//! Finds of which of A's tensors each of B's is made, where no family says. By names as far as they have one meaning, and by content: a recipe that makes B's
//! tensor in one layer is what the file does in all of them, and a tensor that it does not make is wrong.

use std::cell::{OnceCell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::diagnose::near;
use super::parts::{Name, Named};
use super::rows::{Pool, Row};
use super::side::{Side, Tensor};
use crate::tolerance::weights::{MADE_SO, SAME_VECTOR, SAMPLE_MAY_BE};

/// What is done to every element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    None,
    /// A norm's gain is stored as what is added to 1.
    PlusOne,
    /// A decay is stored as its logarithm.
    MinusExp,
}

const CHANGES: [Change; 3] = [Change::None, Change::PlusOne, Change::MinusExp];

impl Change {
    fn of(self, x: f32) -> f32 {
        match self {
            Change::None => x,
            Change::PlusOne => x + 1.0,
            Change::MinusExp => -x.exp(),
        }
    }

    pub(super) fn words(self) -> Option<&'static str> {
        match self {
            Change::None => None,
            Change::PlusOne => Some("1 is added to every element"),
            Change::MinusExp => Some("it is minus the exponential of every element"),
        }
    }
}

/// Of what the last two axes are exchanged before rows are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turned {
    Nothing,
    /// A's tensors: \[in,out\] is stored as \[out,in\].
    Sources,
    /// B's tensor: each head of it.
    Result,
}

/// How the tensors of one name are made, whatever their layer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Recipe {
    /// Names of A's tensors, with `#` for the layer.
    stems: Vec<String>,
    turned: Turned,
    pub(super) change: Change,
    /// The rows, of so many elements; `None` where it is the one tensor as it stands, or several one after the other.
    rows: Option<(usize, Vec<Row>)>,
}

impl Recipe {
    /// Whether its rows stand in an order that files have: A's own, part by part, or of queries and keys that of the other rotation. Any other order may be
    /// a mistake that was made in every layer.
    pub(super) fn is_known_order(&self, named: &Named, sides: [&Side; 2]) -> bool {
        let Some((_, rows)) = &self.rows else { return true };
        let parts: Vec<&[Row]> = rows.chunk_by(|one, next| one < next).collect();
        // A may have them head by head, and then each of them is a part; it begins with queries, or the gate, in either case.
        let are_all = parts.len() == named.count() && parts.is_sorted_by_key(|part| part[0]);
        let is_each_once = rows.iter().collect::<BTreeSet<_>>().len() == rows.len();
        let is_split = parts.len() == 1 || are_all && is_each_once;
        let [a, b] = sides.map(Side::qk_rows);
        let may_be_turned = a.zip(b).is_none_or(|(a, b)| a != b);
        is_split || may_be_turned && named.is_turned() && is_of_the_other_rotation(rows)
    }

    /// Its rows in their order, as far as a few runs of neighbours go: `rows 0-31, 64-95, 32-63`.
    pub(super) fn order(&self) -> String {
        const SHOWN: usize = 4;
        let Some((_, rows)) = &self.rows else { return String::new() };
        let runs: Vec<&[Row]> = rows.chunk_by(|one, next| one.0 == next.0 && one.1 + 1 == next.1).collect();
        let said = runs.iter().take(SHOWN).map(|run| match run {
            [(_, one)] => one.to_string(),
            run => format!("{}-{}", run[0].1, run[run.len() - 1].1),
        });
        let said = said.chain((runs.len() > SHOWN).then(|| "...".to_owned()));
        format!("rows {}", said.collect::<Vec<_>>().join(", "))
    }

    /// How many different steps there are from a row to the next: what is simpler is meant.
    fn steps(&self) -> usize {
        let step = |pair: &[Row]| (pair[1].0 as i64 - pair[0].0 as i64, pair[1].1 as i64 - pair[0].1 as i64);
        self.rows.as_ref().map_or(0, |(_, rows)| rows.windows(2).map(step).collect::<BTreeSet<_>>().len())
    }
}

/// Whether the rows of each head, or of a first part of it, stand as pairs where A has halves, or the other way.
fn is_of_the_other_rotation(rows: &[Row]) -> bool {
    let Some(&(tensor, first)) = rows.iter().min() else { return false };
    let to_pairs = |i: usize, part: usize| i % 2 * (part / 2) + i / 2;
    let to_halves = |i: usize, part: usize| i % (part / 2) * 2 + i / (part / 2);
    let is_so = |width: usize, part: usize, order: &dyn Fn(usize, usize) -> usize| {
        let of_head = |i: usize| if i < part { order(i, part) } else { i };
        let due = |at: usize| (tensor, first + at / width * width + of_head(at % width));
        rows.iter().enumerate().all(|(at, row)| *row == due(at))
    };
    let widths = (4..=rows.len()).step_by(2).filter(|width| rows.len().is_multiple_of(*width));
    let parts = widths.flat_map(|width| [1, 2, 4].map(|share| (width, width / share)));
    let mut turned = parts.filter(|(_, part)| *part > 2 && part.is_multiple_of(2));
    turned.any(|(width, part)| is_so(width, part, &to_pairs) || is_so(width, part, &to_halves))
}

/// A tensor of B, and what A has for it.
pub(super) struct Relation {
    /// B's name.
    pub(super) name: String,
    pub(super) recipe: Recipe,
    /// The names of what it is made of.
    pub(super) sources: Vec<String>,
}

impl Relation {
    /// Whether it is made of several tensors, or of a part of one.
    pub(super) fn is_in_parts(&self, a: &Side) -> bool {
        self.sources.len() > 1 || self.is_part(a)
    }

    /// How many elements of one of its sources it takes, where it does not take all.
    pub(super) fn taken(&self, source: &str) -> Option<usize> {
        let at = self.sources.iter().position(|own| own == source)?;
        let (width, rows) = self.recipe.rows.as_ref()?;
        let distinct: BTreeSet<usize> = rows.iter().filter(|(tensor, _)| *tensor == at).map(|(_, row)| *row).collect();
        Some(distinct.len() * width)
    }

    /// Whether the parts of one tensor of A's stand there as their names say: queries before keys before values, the gate before what it multiplies. Where
    /// they do not, they may be exchanged in every layer.
    pub(super) fn stands_as_named(&self, others: &[Relation]) -> bool {
        let first =
            |relation: &Relation| relation.recipe.rows.as_ref().and_then(|(_, rows)| rows.iter().min().copied());
        let (Some(own), named) = (first(self), Named::of(&self.name)) else { return true };
        let beside = others.iter().filter(|other| other.sources == self.sources && other.name != self.name);
        beside
            .filter_map(|other| Some((named.stands_before(&Named::of(&other.name))?, first(other)?)))
            .all(|(before, there)| before == (own < there))
    }

    /// Whether it is a part of a tensor of A's.
    pub(super) fn is_part(&self, a: &Side) -> bool {
        self.sources.iter().any(|source| self.taken(source).zip(a.named(source)).is_some_and(|(n, all)| n < all.len()))
    }

    /// What it is called: as A calls it, or, where that is of more, as B does.
    pub(super) fn title(&self, a: &Side) -> String {
        if self.is_part(a) { self.name.clone() } else { self.label() }
    }

    /// The order in which B's tensor has what it is made of, where that is one after the other, and another order than is due.
    pub(super) fn other_order(&self, a: &Side, right: &Tensor<'_>) -> Option<Vec<&str>> {
        let follow = self.recipe.rows.as_ref().is_none_or(|(_, rows)| rows.is_sorted());
        if !follow || self.recipe.turned != Turned::Nothing || self.sources.len() < 2 {
            return None;
        }
        let values = right.values();
        let mut left: Vec<(&str, Vec<f32>)> =
            self.sources.iter().map(|name| Some((name.as_str(), a.named(name)?.values()))).collect::<Option<_>>()?;
        let (mut order, mut from) = (Vec::new(), 0);
        while !left.is_empty() {
            let is_here = |own: &[f32]| values.get(from..from + own.len()).is_some_and(|x| near(own, x) < MADE_SO);
            let (name, own) = left.remove(left.iter().position(|(_, own)| is_here(own))?);
            order.push(name);
            from += own.len();
        }
        let is_due = order.iter().zip(&self.sources).all(|(name, due)| name == due);
        (!is_due).then_some(order)
    }

    /// A's tensors in a few words.
    pub(super) fn label(&self) -> String {
        match &self.sources[..] {
            [one] => one.clone(),
            [first, .., last] => format!("{first} .. {last}"),
            [] => String::new(),
        }
    }

    /// B's tensor as A has it.
    pub(super) fn left<'a>(&self, a: &'a Side, right: &Tensor<'_>) -> Option<Tensor<'a>> {
        let values = made(a, &self.recipe, &self.sources, right.shape())?;
        let first = a.named(self.sources.first()?)?;
        let width = first.row_len().max(1);
        let shape = match (right.shape(), values.len()) {
            (due, len) if len == right.len() => due.to_vec(),
            ([_], len) => vec![len],
            (_, len) => vec![len / width, width],
        };
        Some(first.made(values, shape))
    }
}

/// So many vectors are no convention yet.
const FEW: usize = 3;

/// Some tensors of B, each with which of some tensors of A it is made of, where that is known.
pub(super) fn relations([a, b]: [&Side; 2], [of_a, of_b]: [Vec<Name>; 2]) -> Vec<Relation> {
    let mut kinds: BTreeMap<String, Vec<Name>> = BTreeMap::new();
    for name in &of_b {
        kinds.entry(name.1.stem.clone()).or_default().push(name.clone());
    }
    let finder = Finder::of([a, b], of_a, &of_b);
    let mut found: Vec<(Vec<Name>, Votes)> = Vec::new();
    for tensors in kinds.into_values() {
        let votes = finder.recipes(&tensors);
        found.push((tensors, votes));
    }
    // Where votes are even, it is what is done to most tensors of the file that are like it.
    let kind = |tensors: &[Name]| {
        let is_vector = tensors.iter().any(|(name, _)| b.named(name).is_some_and(|tensor| is_flat(&tensor)));
        (is_vector, tensors.iter().any(|(name, _)| name.ends_with("bias")))
    };
    let mut counts: BTreeMap<((bool, bool), Turned, Change), usize> = BTreeMap::new();
    for (tensors, recipes) in &found {
        for (recipe, votes) in recipes {
            *counts.entry((kind(tensors), recipe.turned, recipe.change)).or_default() += votes;
        }
    }
    // A square matrix fits either way: it is turned where others of the file must be.
    let is_square = |tensors: &[Name]| {
        let shape = |(name, _): &Name| b.named(name).map(|tensor| tensor.shape().to_vec());
        tensors
            .iter()
            .filter_map(shape)
            .all(|shape| shape.last_chunk::<2>().is_some_and(|[rows, columns]| rows == columns))
    };
    let is_turned = |recipe: &Recipe| recipe.turned == Turned::Sources;
    let turns = found.iter().any(|(of, recipes)| !is_square(of) && recipes.iter().any(|(recipe, _)| is_turned(recipe)));
    let (mut out, mut open) = (Vec::new(), Vec::new());
    for (tensors, mut recipes) in found {
        let kind = kind(&tensors);
        let usual = |recipe: &Recipe| counts.get(&(kind, recipe.turned, recipe.change)).copied().unwrap_or(0);
        recipes.retain(|(recipe, _)| turns || !is_turned(recipe) || !is_square(&tensors));
        // One gain alone that is stored otherwise than all others is no convention that anything confirms.
        let most = counts.iter().filter(|((other, ..), _)| *other == kind).map(|(_, votes)| *votes).max().unwrap_or(0);
        if kind == (true, false)
            && tensors.len() == 1
            && most > FEW
            && recipes.iter().all(|(recipe, _)| usual(recipe) == 1)
        {
            continue;
        }
        recipes.sort_by_key(|(recipe, votes)| (Reverse((*votes, usual(recipe))), recipe.steps()));
        for tensor in tensors {
            // Layers need not be alike: one may lack what another is made of.
            match recipes.iter().find_map(|(recipe, _)| relation(a, &tensor, recipe)) {
                Some(relation) => out.push(relation),
                None => open.push(tensor),
            }
        }
    }
    let used: BTreeSet<String> = out.iter().flat_map(|relation| relation.sources.clone()).collect();
    out.extend(open.iter().filter_map(|tensor| relation(a, tensor, &finder.by_name(tensor, &used)?)));
    out
}

/// The recipe for one tensor, where A has all that it takes.
fn relation(a: &Side, (name, named): &Name, recipe: &Recipe) -> Option<Relation> {
    let layer = named.layer.map(|layer| layer.to_string()).unwrap_or_default();
    let sources: Vec<String> = recipe.stems.iter().map(|stem| stem.replacen('#', &layer, 1)).collect();
    let all = sources.iter().all(|source| a.named(source).is_some());
    all.then(|| Relation { name: name.clone(), recipe: recipe.clone(), sources })
}

/// What a recipe makes of tensors, for a tensor of that shape.
fn made(a: &Side, recipe: &Recipe, sources: &[String], shape: &[usize]) -> Option<Vec<f32>> {
    let oriented = |name: &String| {
        let tensor = a.named(name)?;
        let values = tensor.values();
        Some(if recipe.turned == Turned::Sources { exchanged(&values, tensor.shape()) } else { values })
    };
    let tensors: Vec<Vec<f32>> = sources.iter().map(oriented).collect::<Option<_>>()?;
    let mut values = match &recipe.rows {
        None => tensors.concat(),
        Some((width, rows)) => {
            let row = |(tensor, row): &Row| tensors.get(*tensor)?.get(row * width..(row + 1) * width);
            rows.iter().map(row).collect::<Option<Vec<&[f32]>>>()?.concat()
        }
    };
    if let (Turned::Result, Some([rows, columns])) = (recipe.turned, shape.last_chunk::<2>()) {
        values = exchanged(&values, &[*columns, *rows]);
    }
    values.iter_mut().for_each(|x| *x = recipe.change.of(*x));
    Some(values)
}

/// Values of that shape with the last two axes exchanged.
pub(super) fn exchanged(values: &[f32], shape: &[usize]) -> Vec<f32> {
    let Some([rows, columns]) = shape.last_chunk::<2>() else { return values.to_vec() };
    let turn = |matrix: &[f32]| -> Vec<f32> {
        let column = |column: usize| matrix.iter().skip(column).step_by(*columns).copied();
        (0..*columns).flat_map(column).collect()
    };
    values.chunks((rows * columns).max(1)).flat_map(turn).collect()
}

/// Some elements of a tensor, whichever axes of 1 it has.
fn some(tensor: &Tensor<'_>) -> Vec<f32> {
    if is_flat(tensor) { tensor.reshaped(vec![tensor.len()]).sample() } else { tensor.sample() }
}

/// One axis alone is longer than 1.
fn is_flat(tensor: &Tensor<'_>) -> bool {
    tensor.shape().iter().filter(|&&extent| extent != 1).count() <= 1
}

/// Recipes, each with how many layers it fits.
type Votes = Vec<(Recipe, usize)>;

/// A tensor of A, with what its name says.
struct Source<'a> {
    named: Named,
    tensor: Tensor<'a>,
    /// Some of its elements, once they are asked for.
    some: OnceCell<Vec<f32>>,
}

impl Source<'_> {
    /// Whether a changed tensor may be another one, by some of its elements: most are refused without reading them whole.
    fn may_be(&self, change: Change, wanted: &[f32]) -> bool {
        let some = self.some.get_or_init(|| some(&self.tensor));
        let changed: Vec<f32> = some.iter().map(|x| change.of(*x)).collect();
        // Of the smaller of the two: what is small beside 1 is not 1 more.
        changed == wanted || near(&changed, wanted).max(near(wanted, &changed)) < SAMPLE_MAY_BE
    }
}

/// Rows of some of A's tensors, which many of B's are looked for in.
struct Kept {
    sources: Vec<usize>,
    pool: Rc<Pool>,
}

struct Finder<'a> {
    a: &'a Side,
    b: &'a Side,
    /// What is to be found.
    wanted: &'a [Name],
    /// In the order in which tensors are joined.
    sources: Vec<Source<'a>>,
    /// The rows that were looked through last, by what they are.
    pools: RefCell<BTreeMap<(Turned, usize), Kept>>,
}

impl<'a> Finder<'a> {
    fn of([a, b]: [&'a Side; 2], of_a: Vec<Name>, wanted: &'a [Name]) -> Finder<'a> {
        let source = |(name, named): Name| {
            let tensor = a.named(&name)?;
            let is_read = tensor.unreadable().is_none() && !tensor.shape().is_empty();
            is_read.then(|| Source { named, tensor, some: OnceCell::new() })
        };
        let mut sources: Vec<Source<'a>> = of_a.into_iter().filter_map(source).collect();
        sources.sort_by_cached_key(|source| source.named.order());
        Finder { a, b, wanted, sources, pools: RefCell::default() }
    }

    /// Recipes for tensors of one name, each with how many of the layers it fits.
    fn recipes(&self, tensors: &[Name]) -> Votes {
        let mut out: Votes = Vec::new();
        for tensor in tensors {
            let Some(right) = self.b.named(&tensor.0).filter(|right| right.unreadable().is_none()) else { continue };
            let values = right.values();
            let fits = |recipe: &Recipe| {
                let sources = relation(self.a, tensor, recipe).map(|relation| relation.sources);
                let made = sources.and_then(|sources| made(self.a, recipe, &sources, right.shape()));
                made.is_some_and(|made| near(&made, &values) < if is_flat(&right) { SAME_VECTOR } else { MADE_SO })
            };
            if let Some((_, votes)) = out.iter_mut().find(|(recipe, _)| fits(recipe)) {
                *votes += 1;
            } else {
                out.extend(self.search(tensor, &right, &values).map(|recipe| (recipe, 1)));
            }
        }
        out
    }

    /// The tensors of A that one of that name may be made of, in the order in which they are joined: those of just its parts alone, where they are enough.
    fn allowed(&self, (_, named): &Name, right: &Tensor<'_>) -> Vec<usize> {
        let mut all: Vec<usize> =
            (0..self.sources.len()).filter(|&at| named.may_be_of(&self.sources[at].named)).collect();
        let is_of_it = |at: &usize| named.is_of(&self.sources[*at].named);
        let of_it: usize = all.iter().filter(|at| is_of_it(at)).map(|&at| self.sources[at].tensor.len()).sum();
        if of_it >= right.len() {
            all.retain(is_of_it);
        }
        all
    }

    fn search(&self, tensor: &Name, right: &Tensor<'_>, values: &[f32]) -> Option<Recipe> {
        if values.iter().all(|x| *x == values[0]) {
            return None;
        }
        let allowed = self.allowed(tensor, right);
        self.whole(&allowed, right, values).or_else(|| self.of_rows(&allowed, right, values))
    }

    /// One tensor as it stands, or with every element changed.
    fn whole(&self, allowed: &[usize], right: &Tensor<'_>, values: &[f32]) -> Option<Recipe> {
        let wanted = some(right);
        let fits = |tensor: &Tensor<'_>| {
            let same_rows = tensor.row_len() == right.row_len() || is_flat(tensor) && is_flat(right);
            tensor.len() == values.len() && same_rows
        };
        let sources = allowed.iter().map(|&at| &self.sources[at]).filter(|source| fits(&source.tensor));
        let tried = sources.flat_map(|source| {
            let changes: Vec<Change> = CHANGES.into_iter().filter(|change| source.may_be(*change, &wanted)).collect();
            let own = if changes.is_empty() { Vec::new() } else { source.tensor.values() };
            changes.into_iter().map(move |change| {
                let changed: Vec<f32> = own.iter().map(|x| change.of(*x)).collect();
                let stems = vec![source.named.stem.clone()];
                let recipe = Recipe { stems, turned: Turned::Nothing, change, rows: None };
                (near(&changed, values), recipe)
            })
        });
        let least = tried.min_by(|one, other| one.0.total_cmp(&other.0));
        least.filter(|(error, _)| *error < if is_flat(right) { SAME_VECTOR } else { MADE_SO }).map(|(_, recipe)| recipe)
    }

    /// Rows of several tensors, or the rows of one in another order; as they are stored, or with columns for rows. Of small ones single elements.
    fn of_rows(&self, allowed: &[usize], right: &Tensor<'_>, values: &[f32]) -> Option<Recipe> {
        const FEW: usize = 1 << 14;
        let flat = is_flat(right);
        let last = |tensor: &Tensor<'_>, at: usize| tensor.shape().iter().rev().nth(at).copied();
        let (width, height) = (right.row_len(), last(right, 1).unwrap_or(1));
        let by_rows = |turned: Turned| {
            let fits = |tensor: &Tensor<'_>| match turned {
                Turned::Nothing => last(tensor, 0) == Some(width),
                Turned::Sources => last(tensor, 1) == Some(width),
                Turned::Result => last(tensor, 0) == Some(height),
            };
            match turned {
                _ if flat => None,
                Turned::Result => self.rows(allowed, turned, height, &exchanged(values, right.shape()), &fits),
                _ => self.rows(allowed, turned, width, values, &fits),
            }
        };
        let by_elements = || {
            let fits = |tensor: &Tensor<'_>| tensor.len() <= FEW && (!flat || is_flat(tensor));
            let exact = right.storage().is_some_and(|storage| !storage.is_quantised());
            self.rows(allowed, Turned::Nothing, 1, values, &fits).filter(|_| exact)
        };
        let turns = [Turned::Nothing, Turned::Sources, Turned::Result];
        turns.into_iter().find_map(by_rows).or_else(|| if values.len() <= FEW { by_elements() } else { None })
    }

    fn rows(
        &self,
        allowed: &[usize],
        turned: Turned,
        width: usize,
        values: &[f32],
        fits: &dyn Fn(&Tensor<'_>) -> bool,
    ) -> Option<Recipe> {
        let some: Vec<usize> = allowed.iter().copied().filter(|&at| fits(&self.sources[at].tensor)).collect();
        let found = self.pool(&some, turned, width).find(values)?;
        // Only those that it takes.
        let used: BTreeSet<usize> = found.iter().map(|(tensor, _)| *tensor).collect();
        let stems = used.iter().map(|&tensor| self.sources[some[tensor]].named.stem.clone()).collect();
        let place: BTreeMap<usize, usize> = used.iter().enumerate().map(|(at, &tensor)| (tensor, at)).collect();
        let rows = found.into_iter().map(|(tensor, row)| (place[&tensor], row)).collect();
        Some(Recipe { stems, turned, change: Change::None, rows: Some((width, rows)) })
    }

    /// The rows of some sources. Names that say nothing let a tensor be made of any source: their rows are brought into order once.
    fn pool(&self, some: &[usize], turned: Turned, width: usize) -> Rc<Pool> {
        /// Elements that stay in memory.
        const MOST: usize = 1 << 26;
        let key = (turned, width);
        if let Some(kept) = self.pools.borrow().get(&key).filter(|kept| kept.sources == some) {
            return kept.pool.clone();
        }
        let oriented = |&at: &usize| {
            let tensor = &self.sources[at].tensor;
            match turned {
                Turned::Sources => exchanged(&tensor.values(), tensor.shape()),
                _ => tensor.values(),
            }
        };
        // What is not asked for again is no longer held while the next is made.
        let mut pools = self.pools.borrow_mut();
        pools.remove(&key);
        let size: usize = some.iter().map(|&at| self.sources[at].tensor.len()).sum();
        let held: usize = pools.values().map(|kept| kept.pool.len()).sum();
        if size + held > MOST {
            pools.clear();
        }
        let pool = Rc::new(Pool::of(width, some.iter().map(oriented).collect()));
        if size <= MOST {
            pools.insert(key, Kept { sources: some.to_vec(), pool: pool.clone() });
        }
        pool
    }

    /// What must be meant where the values do not show it: the tensors of just these parts, that part of one, or the only one of its size that is left.
    fn by_name(&self, tensor: &Name, used: &BTreeSet<String>) -> Option<Recipe> {
        let right = self.b.named(&tensor.0).filter(|right| !right.is_guess())?;
        let allowed = self.allowed(tensor, &right);
        let all = || allowed.iter().map(|&at| &self.sources[at]);
        let of_it: Vec<&Source<'_>> = all().filter(|source| tensor.1.is_of(&source.named)).collect();
        let left = || -> Vec<&Source<'_>> {
            all().filter(|source| !used.contains(source.tensor.name()) && source.tensor.len() == right.len()).collect()
        };
        let parts: Vec<&Source<'_>> = all().filter(|source| tensor.1.has_part(&source.named)).collect();
        let size = |sources: &[&Source<'_>]| sources.iter().map(|source| source.tensor.len()).sum::<usize>();
        let named = [of_it, parts].into_iter().find(|sources| size(sources) == right.len());
        let recipe = |meant: &[&Source<'_>], rows| Recipe {
            stems: meant.iter().map(|source| source.named.stem.clone()).collect(),
            turned: Turned::Nothing,
            change: Change::None,
            rows,
        };
        if let (None, Some((source, rows))) = (&named, self.part(tensor, &right)) {
            return Some(recipe(&[source], Some(rows)));
        }
        let meant = named.unwrap_or_else(left);
        (size(&meant) == right.len()).then(|| recipe(&meant, None))
    }

    /// The rows that are due to it in a tensor of several parts, where B has all of these by themselves: they follow each other.
    fn part(&self, (name, named): &Name, right: &Tensor<'_>) -> Option<(&Source<'_>, (usize, Vec<Row>))> {
        let is_of = |whole: &Named, part: &Named| whole.has_part(part) && whole.may_be_joined(part);
        let source = self.sources.iter().find(|source| is_of(&source.named, named));
        let source = source.filter(|source| source.tensor.shape().len() < 3)?;
        let mut parts: Vec<&Name> = self.wanted.iter().filter(|(_, part)| is_of(&source.named, part)).collect();
        parts.sort_by_cached_key(|(_, part)| part.order());
        let len = |(name, _): &&Name| self.b.named(name).map(|tensor| tensor.len());
        let lens: Vec<usize> = parts.iter().map(len).collect::<Option<_>>()?;
        let before: usize = lens[..parts.iter().position(|(part, _)| part == name)?].iter().sum();
        let width = if is_flat(right) { 1 } else { right.row_len().max(1) };
        let rows = before / width..(before + right.len()) / width;
        (lens.iter().sum::<usize>() == source.tensor.len())
            .then(|| (source, (width, rows.map(|row| (0, row)).collect())))
    }
}
