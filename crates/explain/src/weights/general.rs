//! Do two files of an architecture that is not known hold the same weights? Each tensor of B against what A has for it.

use std::collections::{BTreeMap, BTreeSet};

use super::diagnose::{Diagnosis, Pair, diagnose, near};
use super::measure::measure;
use super::parts::Named;
use super::relations::{Relation, relations};
use super::side::{Side, Tensor};
use super::{Comparison, Key, Note, Options, State, entry, finding, is_same};
use crate::mistakes::linear::{WEIGHT_SWAPPED, WEIGHT_WRONG_LAYER};
use crate::tolerance::weights::MADE_SO;

/// Compares the tensors that do not have one name on both sides.
pub(super) fn compare(
    a: &Side,
    b: &Side,
    options: Options,
    progress: &mut dyn FnMut(usize, usize),
    out: &mut Comparison,
) {
    let relations = relations(a, b);
    let total = relations.len();
    let mut wrong = Vec::new();
    for (done, relation) in relations.iter().enumerate() {
        progress(done, total);
        let Some((left, right)) = both(relation, [a, b]) else { continue };
        let key = Key::Other(relation.label());
        let mut compared = entry(&key, [Some(&left), Some(&right)]);
        compared.names = [Some(relation.label()), Some(relation.name.clone())];
        if left.shape() == right.shape() {
            let measured = measure(&left, &right, options);
            (compared.nmse, compared.allowed) = (measured.nmse(), Some(measured.allowed()));
            compared.state = match measured.same() {
                Some(_) if !relation.recipe.is_known_order(&Named::of(&relation.name)) => State::Unchecked(
                    "its values are A's, in another order, which may be how it is stored or a mistake in every layer"
                        .into(),
                ),
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
        let key = Key::Other(relation.label());
        let pair = Pair { key: &key, sides: [a, b], left: &left, right: &right, copy: false };
        let Diagnosis { cause, note, residual } =
            another(relation, &relations, &right, [a, b]).unwrap_or_else(|| diagnose(&pair, nmse, allowed));
        out.findings.push(finding(cause, &key, note, residual));
    }
    unmapped(&relations, [a, b], out);
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
                _ => (&WEIGHT_SWAPPED, format!("it is {}", other.label())),
            };
            Some(Diagnosis { cause: Some(cause), note, residual: measured.nmse() })
        },
    )
}

/// What neither names nor values relate: it is not checked.
fn unmapped(relations: &[Relation], [a, b]: [&Side; 2], out: &mut Comparison) {
    let sources: BTreeSet<&str> = relations.iter().flat_map(|r| &r.sources).map(String::as_str).collect();
    let made: BTreeSet<&str> = relations.iter().map(|relation| relation.name.as_str()).collect();
    for source in &sources {
        let of_it: Vec<&Relation> = relations.iter().filter(|r| r.sources.iter().any(|own| own == source)).collect();
        let taken: Option<usize> = of_it.iter().map(|relation| relation.taken(source)).sum();
        let all = a.named(source).map_or(0, |tensor| tensor.len());
        if let Some(taken) = taken.filter(|taken| *taken < all) {
            out.warnings.push(Note::of(
                source,
                format!("{} of its {all} elements are in nothing of {}", all - taken, b.label()),
            ));
        }
    }
    // What B has of A, by name and layer.
    let held = a.names().filter(|name| sources.contains(name) || b.named(name).is_some()).map(Named::of);
    let mut kinds: BTreeMap<String, BTreeSet<Option<u32>>> = BTreeMap::new();
    for named in held {
        kinds.entry(named.stem).or_default().insert(named.layer);
    }
    let layers: BTreeSet<Option<u32>> = kinds.values().flatten().copied().collect();
    for name in a.names().filter(|name| !sources.contains(name) && b.named(name).is_none()) {
        let Some(tensor) = a.named(name) else { continue };
        let mut compared = entry(&Key::Other(name.into()), [Some(&tensor), None]);
        let may_be =
            |other: &Tensor<'_>| other.shape() == tensor.shape() && near(&other.sample(), &tensor.sample()) < MADE_SO;
        let is_copy = |source: &&str| a.named(source).is_some_and(|other| may_be(&other) && is_same(&other, &tensor));
        let named = Named::of(name);
        let is_elsewhere =
            kinds.get(&named.stem).is_some_and(|layers| layers.iter().any(|other| *other != named.layer));
        let has_its_kind = is_elsewhere && named.layer.is_some() && layers.contains(&named.layer);
        compared.state = match (sources.iter().any(is_copy), has_its_kind) {
            (true, _) => State::Tied,
            (false, true) => {
                let note = format!("nothing in {} is made of it, as something is in other layers", b.label());
                out.findings.push(finding(None, &Key::Other(name.into()), note, None));
                State::Wrong
            }
            (false, false) => {
                State::Unchecked(format!("nothing in {} is made of it by any rule known here", b.label()))
            }
        };
        out.tensors.push(compared);
    }
    for name in b.names().filter(|name| !made.contains(name) && a.named(name).is_none()) {
        let Some(tensor) = b.named(name) else { continue };
        let mut compared = entry(&Key::Other(name.into()), [None, Some(&tensor)]);
        compared.state =
            State::Unchecked(format!("nothing in {} that it is made of by any rule known here", a.label()));
        out.tensors.push(compared);
    }
}
