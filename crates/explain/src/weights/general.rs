//! Judges whether two files of an architecture that is not known hold the same weights. Each tensor of B against what A has
//! for it; of a known one what stands in parts on one side alone.

use std::collections::{BTreeMap, BTreeSet};

use super::diagnose::{Diagnosis, Pair, diagnose, near};
use super::measure::measure;
use super::parts::{Name, Named};
use super::relations::{Relation, relations};
use super::side::{Side, Tensor};
use super::{Compared, Comparison, Key, Note, Options, State, entry, finding, is_derived, is_same};
use crate::mistakes::linear::{WEIGHT_SWAPPED, WEIGHT_WRONG_LAYER};
use crate::tolerance::weights::MADE_SO;

/// Compares the tensors that do not have one name on both sides.
pub(super) fn compare(
    [a, b]: [&Side; 2],
    options: Options,
    progress: &mut dyn FnMut(usize, usize),
    out: &mut Comparison,
) {
    let named = |name: &str| (name.to_owned(), Named::of(name));
    let names = [a.names().map(named).collect(), b.names().filter(|name| a.named(name).is_none()).map(named).collect()];
    let relations = relations([a, b], names);
    judge(&relations, [a, b], options, progress, out);
    let is_fused = |source: &str| Named::of(source).count() > 1;
    let sources = untaken(&relations, [a, b], &is_fused, out);
    unmapped(&relations, &sources, [a, b], out);
}

/// Compares the tensors of a known family that one side joins and the other does not, as far as names and values show it: their names.
pub(super) fn parts(
    sides: [&Side; 2],
    names: [Vec<Name>; 2],
    options: Options,
    progress: &mut dyn FnMut(usize, usize),
    out: &mut Comparison,
) -> BTreeSet<String> {
    if names.iter().any(Vec::is_empty) {
        return BTreeSet::new();
    }
    let mut relations = relations(sides, names);
    relations.retain(|relation| relation.is_in_parts(sides[0]));
    judge(&relations, sides, options, progress, out);
    let sources = untaken(&relations, sides, &|_| true, out);
    sources.into_iter().map(str::to_owned).chain(relations.iter().map(|relation| relation.name.clone())).collect()
}

/// Compares each tensor with what it is made of.
fn judge(
    relations: &[Relation],
    [a, b]: [&Side; 2],
    options: Options,
    progress: &mut dyn FnMut(usize, usize),
    out: &mut Comparison,
) {
    let total = relations.len();
    let mut wrong = Vec::new();
    for (done, relation) in relations.iter().enumerate() {
        progress(done, total);
        let Some((left, right)) = both(relation, [a, b]) else { continue };
        let key = Key::Other(relation.title(a));
        let mut compared = entry(&key, [Some(&left), Some(&right)]);
        compared.names = [Some(relation.label()), Some(relation.name.clone())];
        if left.shape() == right.shape() {
            let measured = measure(&left, &right, options);
            compared.measured(&measured);
            compared.state = match measured.same() {
                Some(_) if !relation.recipe.is_known_order(&Named::of(&relation.name), [a, b]) => {
                    State::Unchecked(format!(
                        "its values are A's in the order {}, which may be how it is stored or a mistake in every layer",
                        relation.recipe.order()
                    ))
                }
                Some(_) if !relation.stands_as_named(relations) => State::Unchecked(format!(
                    "its values are {} of A's {}, where the order of queries, keys and values, or of gate and up, has another part: \
                     which of them A's model reads there, the files do not say",
                    relation.recipe.order(),
                    relation.label()
                )),
                Some(same) => same.state(),
                None => State::Wrong,
            };
        } else {
            compared.state = State::Wrong;
        }
        match (compared.state == State::Wrong, relation.recipe.change.words()) {
            (true, _) => wrong.push((relation, compared.nmse, compared.allowed)),
            (false, Some(words)) => out.warnings.push(Note::of(&relation.name, words)),
            (false, None) => {}
        }
        out.tensors.push(compared);
    }
    for (relation, nmse, allowed) in wrong {
        let Some((left, right)) = both(relation, [a, b]) else { continue };
        let key = Key::Other(relation.title(a));
        let pair = Pair { key: &key, sides: [a, b], left: &left, right: &right, copy: false };
        let Diagnosis { cause, note, residual, .. } =
            another(relation, relations, &right, [a, b]).unwrap_or_else(|| match relation.other_order(a, &right) {
                Some(order) => Diagnosis::plain(format!("its parts stand in the order {}", order.join(", "))),
                None => diagnose(&pair, nmse, allowed),
            });
        out.findings.push(finding(cause, &key, note, residual));
    }
}

fn both<'a>(relation: &Relation, [a, b]: [&'a Side; 2]) -> Option<(Tensor<'a>, Tensor<'a>)> {
    let right = b.named(&relation.name)?;
    Some((relation.left(a, &right)?, right))
}

/// What A has for another tensor of B's.
fn another(relation: &Relation, all: &[Relation], right: &Tensor<'_>, [a, b]: [&Side; 2]) -> Option<Diagnosis> {
    let named = Named::of(&relation.name);
    let others = all.iter().filter(|other| other.name != relation.name);
    others.filter(|other| b.named(&other.name).is_some_and(|tensor| tensor.shape() == right.shape())).find_map(
        |other| {
            let left = other.left(a, right)?;
            let measured = measure(&left, right, Options::default());
            measured.same()?;
            let (cause, note) = match Named::of(&other.name) {
                found if found.stem == named.stem => (
                    &WEIGHT_WRONG_LAYER,
                    format!("it is that of layer {}", found.layer.map_or("-".into(), |layer| layer.to_string())),
                ),
                _ if other.is_part(a) => {
                    (&WEIGHT_SWAPPED, format!("it is what {} is in {}", other.name, other.label()))
                }
                _ => (&WEIGHT_SWAPPED, format!("it is {}", other.label())),
            };
            Some(Diagnosis { cause: Some(cause), residual: measured.nmse(), ..Diagnosis::plain(note) })
        },
    )
}

/// What B's tensors are made of; where they do not take all of it, that is said, and is wrong where `is_due` says that B should have it all.
fn untaken<'r>(
    relations: &'r [Relation],
    [a, b]: [&Side; 2],
    is_due: &dyn Fn(&str) -> bool,
    out: &mut Comparison,
) -> BTreeSet<&'r str> {
    let sources: BTreeSet<&str> = relations.iter().flat_map(|r| &r.sources).map(String::as_str).collect();
    for source in &sources {
        let of_it: Vec<&Relation> = relations.iter().filter(|r| r.sources.iter().any(|own| own == source)).collect();
        let taken: Option<usize> = of_it.iter().map(|relation| relation.taken(source)).sum();
        let Some(tensor) = a.named(source) else { continue };
        let all = tensor.len();
        let Some(taken) = taken.filter(|taken| *taken < all) else { continue };
        let note = format!("{} of its {all} elements are in nothing of {}", all - taken, b.label());
        if is_due(source) {
            let key = Key::of(source);
            out.tensors.push(Compared { state: State::Wrong, ..entry(&key, [Some(&tensor), None]) });
            out.findings.push(finding(None, &key, note, None));
        } else {
            out.warnings.push(Note::of(source, note));
        }
    }
    sources
}

/// What neither names nor values relate: it is not checked.
fn unmapped(relations: &[Relation], sources: &BTreeSet<&str>, [a, b]: [&Side; 2], out: &mut Comparison) {
    let made: BTreeSet<&str> = relations.iter().map(|relation| relation.name.as_str()).collect();
    let holds = |name: &&str| sources.contains(name) || b.named(name).is_some();
    let (of_a, of_b) = (Layers::of(a.names(), &holds), Layers::of(b.names(), &|name| made.contains(name)));
    for name in a.names().filter(|name| !holds(name)) {
        let Some(tensor) = a.named(name) else { continue };
        let key = Key::Other(name.into());
        let mut compared = entry(&key, [Some(&tensor), None]);
        let may_be =
            |other: &Tensor<'_>| other.shape() == tensor.shape() && near(&other.sample(), &tensor.sample()) < MADE_SO;
        let is_copy = |source: &&str| a.named(source).is_some_and(|other| may_be(&other) && is_same(&other, &tensor));
        let label = b.label();
        let missing = match of_a.lack(name) {
            Lack::Tensor => Some(format!("nothing in {label} is made of it, as something is in other layers")),
            Lack::Layer => Some(format!("{label} has nothing of this layer, as it has of others")),
            Lack::Unknown => None,
        };
        compared.state = match missing {
            _ if sources.iter().any(is_copy) => State::Tied,
            _ if b.holds_some(a) => State::Unchecked("not dumped".into()),
            Some(note) => {
                out.findings.push(finding(None, &key, note, None));
                State::Wrong
            }
            None => {
                // A single number may be one of the file's settings.
                out.unfound.extend((!is_derived(name) && tensor.len() > 1).then(|| name.to_owned()));
                State::Unchecked(format!("nothing in {label} is made of it by any rule known here"))
            }
        };
        out.tensors.push(compared);
    }
    for name in b.names().filter(|name| !made.contains(name) && a.named(name).is_none()) {
        let Some(tensor) = b.named(name) else { continue };
        let key = Key::Other(name.into());
        let mut compared = entry(&key, [None, Some(&tensor)]);
        let label = a.label();
        let is_of_a = a.names().any(|of_a| Named::of(of_a).layer == Named::of(name).layer);
        compared.state = match of_b.lack(name) {
            Lack::Layer if !is_of_a => {
                let note = format!("{label} has nothing of this layer, as it has of others");
                out.findings.push(finding(None, &key, note, None));
                State::Wrong
            }
            _ => State::Unchecked(format!("nothing in {label} that it is made of by any rule known here")),
        };
        out.tensors.push(compared);
    }
}

/// Which layers of a file the other has anything of: the names of a file, told apart by what stands before the layer's number.
struct Layers {
    /// The stems of what the other file has in any layer.
    held: BTreeSet<String>,
    /// For each stack and layer its stems.
    all: BTreeMap<(String, u32), BTreeSet<String>>,
    /// For each stack the layers of which the other file has anything.
    stacks: BTreeMap<String, BTreeSet<u32>>,
}

/// What the other file lacks with a tensor.
enum Lack {
    /// That tensor of a layer, which it has in other layers.
    Tensor,
    /// A whole layer, which is one as others are.
    Layer,
    /// Nothing says that it should have it.
    Unknown,
}

impl Layers {
    fn of<'n>(names: impl Iterator<Item = &'n str>, holds: &dyn Fn(&&str) -> bool) -> Layers {
        let mut out = Layers { held: BTreeSet::new(), all: BTreeMap::new(), stacks: BTreeMap::new() };
        for name in names {
            let named = Named::of(name);
            let (Some(layer), stack) = (named.layer, named.stack_name()) else { continue };
            if holds(&name) {
                out.held.insert(named.stem.clone());
                out.stacks.entry(stack.clone()).or_default().insert(layer);
            }
            out.all.entry((stack, layer)).or_default().insert(named.stem);
        }
        out
    }

    fn lack(&self, name: &str) -> Lack {
        let named = Named::of(name);
        let (Some(layer), stack) = (named.layer, named.stack_name()) else { return Lack::Unknown };
        let Some(layers) = self.stacks.get(&stack).filter(|_| self.held.contains(&named.stem)) else {
            return Lack::Unknown;
        };
        if layers.contains(&layer) {
            return Lack::Tensor;
        }
        // Layers that predict further tokens come last and have tensors of their own; of a tower for images the last layers may be left out.
        let is_between = layers.range(layer..).next().is_some();
        let stems = self.all.get(&(stack, layer));
        let is_plain = stems.is_some_and(|stems| stems.iter().all(|stem| self.held.contains(stem)));
        if is_between || is_plain && !named.is_tower { Lack::Layer } else { Lack::Unknown }
    }
}
