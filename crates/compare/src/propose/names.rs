//! Proposes taps for tensors of unknown name by their content: the same values, in any order.
//!
//! A proposal is not a verdict: it is written for a person to check and to keep.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::{Dump, DumpError, Entry, Names, Site, Tap, Tensor, split_stored_name, stored_name};
use serde::Serialize;

use crate::graph::Place;
use crate::propose::fingerprints::{Fingerprints, TensorForm, sorted_values};
use crate::propose::guess::{Family, NextTap, ProposalBasis, families, guesses, score};
use crate::tolerance::layout::{NAME_CLEARER, SORTED_EXACT, SORTED_ROOM};
use crate::tolerance::{Extent, Profile, allowed_nmse};

/// The tap proposed for a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "proposed"))]
pub struct Proposal {
    /// The name, with `{N}` for the layer where it fits all of them.
    pub name: String,
    /// The tap, with `{N}` in the same way.
    pub tap: String,
    /// Why.
    #[serde(flatten)]
    pub evidence: ProposalBasis,
}

/// A name whose tensor holds the same values as another's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "aliased"))]
pub struct Alias {
    /// The name.
    pub name: String,
    /// The name that was chosen instead, or the tap under which the dump has these values.
    pub same_as: String,
}

/// What was found about names that are no taps.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    /// Names, in the order of their taps.
    pub proposals: Vec<Proposal>,
    /// Names whose values another name holds too.
    pub aliases: Vec<Alias>,
    /// Names about which nothing is known.
    pub unknown: Vec<String>,
    /// In which form tensors hold the taps, where not as they are: one sequence of several, keys padded, a row each.
    pub notes: Vec<String>,
}

/// A name's best tap.
struct NameMatch {
    /// Without the step at its end.
    name: String,
    /// Whether it had one: it then gives the step, which is the run's own.
    says_step: bool,
    place: Place,
    form: TensorForm,
    nmse: f64,
    next: SecondBest,
    /// A hash of its sorted values.
    values: u64,
}

impl NameMatch {
    /// Whether the tensor holds one row, and the tap proposed for it: equal for tensors that can share one rule.
    fn claim(&self) -> (bool, Place) {
        (self.form == TensorForm::Row, self.place)
    }

    /// The step that a rule has to add to the name; `None` where the name of a row may contain it elsewhere.
    fn step_to_add(&self) -> Option<u32> {
        match (self.says_step, self.form) {
            (true, _) => Some(0),
            (false, TensorForm::Row) => None,
            (false, _) => Some(self.place.step),
        }
    }
}

/// The names of the candidate that are neither in the vocabulary nor in the reference.
pub fn unnamed<'c>(reference: &Dump, candidate: &'c Dump) -> impl Iterator<Item = &'c String> {
    let held: BTreeSet<String> =
        reference.open_taps().iter().map(|e| stored_name(&e.tap.to_string(), e.step)).collect();
    candidate.unmapped().iter().filter(move |name| !held.contains(*name))
}

/// Proposes taps of `reference` for the unknown names in `candidate`. Of a batch, `sequence` is the one that the reference ran; a candidate that ran token by
/// token is compared with rows of one pass. `progress` gets the number of names examined, and of all.
///
/// # Errors
/// When a file cannot be read.
pub fn propose(
    reference: &Dump,
    candidate: &Dump,
    profile: Profile,
    sequence: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Naming, DumpError> {
    let place = |e: &Entry| Place { step: e.step, tap: e.tap };
    let is_named = |e: &Entry| candidate.entry(e.tap, e.step).is_some();
    let all: Vec<Entry> = reference.entries().iter().cloned().chain(reference.open_taps()).collect();
    let free: Vec<&Entry> = all.iter().filter(|e| !is_named(e)).collect();
    let layers = free.iter().filter_map(|e| e.tap.layer).max().map_or(0, |l| l + 1);
    let of_model = all.iter().filter_map(|e| e.tap.layer).max().map_or(0, |l| l + 1);
    let names: Vec<String> = unnamed(reference, candidate).cloned().collect();
    let positions = reference.meta().tokens.as_ref().map_or(0, Vec::len);
    let sizes: BTreeSet<usize> = names.iter().filter_map(|name| candidate.unmapped_size(name)).collect();
    let prints = Fingerprints::collect(reference, &free, sequence, &sizes)?;
    let own = own_values(candidate, &sizes)?;
    let (mut matches, mut rest, mut aliases) = (Vec::new(), Vec::new(), Vec::new());
    for (number, name) in names.iter().enumerate() {
        progress(number, names.len());
        // A tensor that cannot be read as floats is no tap.
        let Ok(tensor) = candidate.read_unmapped(name) else { continue };
        let values = sorted_values(&tensor);
        if let Some(same_as) = own.get(&values) {
            aliases.push(Alias { name: name.clone(), same_as: same_as.clone() });
            continue;
        }
        let allowed =
            |tap: Tap| SORTED_ROOM * allowed_nmse(profile, tap, Extent { layers, positions }, [tensor.dtype(); 2]);
        match best(&tensor, &prints, allowed) {
            Some((place, form, nmse, next)) => {
                let (plain, step) = split_stored_name(name);
                matches.push(NameMatch {
                    name: plain.to_owned(),
                    says_step: step > 0,
                    place,
                    form,
                    nmse,
                    next,
                    values,
                });
            }
            None => rest.push((name.clone(), tensor.shape().iter().product::<usize>(), values)),
        }
    }
    let ChosenNames { matches, others, unclear } = choose_names(matches);
    aliases.extend(others);
    let proposals = without_contradictions(rules(&matches, &names, of_model));
    let mut naming = Naming { proposals, aliases, notes: notes(&matches), ..Naming::default() };
    let table: Vec<Names> = naming.proposals.iter().filter_map(|p| rule(&p.name, &p.tap)).collect();
    let covered = |name: &str| table.iter().any(|names| names.find(name).is_some());
    let (rest, copies) = without_copies(rest, &covered);
    naming.aliases.extend(copies);
    let open = matches.iter().chain(&unclear).map(|m| m.name.clone());
    let open: BTreeSet<String> = open.filter(|name| !covered(name)).collect();
    let taken: BTreeSet<Place> = matches.iter().map(|m| m.place).collect();
    let left: Vec<&Entry> = free.into_iter().filter(|e| !taken.contains(&place(e))).collect();
    let (by_size, unknown) = by_size(&rest, &left);
    naming.proposals.extend(by_size);
    let unknown: BTreeSet<String> = unknown.into_iter().chain(open).collect();
    let guessed = guess_rest(candidate, &unknown, &naming.proposals, &left, of_model);
    let table: Vec<Names> = guessed.iter().filter_map(|p| rule(&p.name, &p.tap)).collect();
    naming.unknown = unknown.into_iter().filter(|name| !table.iter().any(|names| names.find(name).is_some())).collect();
    naming.proposals.extend(guessed);
    naming.aliases.sort_by(|a, b| (&a.same_as, &a.name).cmp(&(&b.same_as, &b.name)));
    naming.aliases.dedup();
    Ok(naming)
}

/// The taps that the candidate has under known names, by their values.
fn own_values(candidate: &Dump, sizes: &BTreeSet<usize>) -> Result<BTreeMap<u64, String>, DumpError> {
    let mut own = BTreeMap::new();
    for entry in candidate.entries().iter().filter(|e| sizes.contains(&e.shape.iter().product())) {
        let name = stored_name(&entry.tap.to_string(), entry.step);
        own.entry(sorted_values(&candidate.read(entry)?)).or_insert(name);
    }
    Ok(own)
}

/// The result of choosing among names with the values of one tap.
#[derive(Default)]
struct ChosenNames {
    /// One for each tap.
    matches: Vec<NameMatch>,
    /// Other names with the same values.
    others: Vec<Alias>,
    /// Names for one tap with different values: which one is the tap is unknown.
    unclear: Vec<NameMatch>,
}

/// Of names with equal values (every graph has some, where nodes reshape or copy), chooses the one whose pattern most layers have, then the one that names
/// the site.
fn choose_names(matches: Vec<NameMatch>) -> ChosenNames {
    let kinds = |m: &NameMatch| -> Vec<(Site, String)> {
        let layer = m.place.tap.layer;
        let of_layer = layer.map_or_else(|| vec![m.name.clone()], |layer| templates(&m.name, layer));
        of_layer.into_iter().map(|template| (m.place.tap.site, template)).collect()
    };
    let mut common: BTreeMap<(Site, String), usize> = BTreeMap::new();
    matches.iter().flat_map(kinds).for_each(|kind| *common.entry(kind).or_default() += 1);
    let worth =
        |m: &NameMatch| kinds(m).iter().map(|kind| (common[kind], score(&kind.1, kind.0))).max().unwrap_or_default();
    let mut claims: BTreeMap<(bool, Place), Vec<NameMatch>> = BTreeMap::new();
    for m in matches {
        claims.entry(m.claim()).or_default().push(m);
    }
    let mut elected = ChosenNames::default();
    for mut of_tap in claims.into_values() {
        if of_tap.iter().any(|m| m.values != of_tap[0].values) {
            elected.unclear.extend(of_tap);
            continue;
        }
        of_tap.sort_by_cached_key(|m| (std::cmp::Reverse(worth(m)), m.name.len(), m.name.clone()));
        let mut of_tap = of_tap.into_iter();
        let Some(first) = of_tap.next() else { continue };
        elected.others.extend(of_tap.map(|m| Alias { name: m.name, same_as: first.name.clone() }));
        elected.matches.push(first);
    }
    elected
}

/// Guesses for the remaining names, among the taps without a proposal.
fn guess_rest(
    candidate: &Dump,
    unknown: &BTreeSet<String>,
    proposals: &[Proposal],
    left: &[&Entry],
    layers: u32,
) -> Vec<Proposal> {
    let proposed = |tap: Tap| proposals.iter().any(|p| p.tap == tap.in_layers("{N}") || p.tap == tap.to_string());
    let open = left.iter().filter(|e| e.step == 0 && !proposed(e.tap));
    let open: BTreeMap<Tap, usize> = open.map(|e| (e.tap, e.shape.iter().product())).collect();
    let written = candidate.unmapped_as_written();
    let in_order = written.is_some();
    let names = written.unwrap_or_else(|| candidate.unmapped().to_vec());
    let of_prefill = |name: &String| unknown.contains(name) && split_stored_name(name).1 == 0;
    let sized = |name: String| Some((candidate.unmapped_size(&name)?, name)).map(|(size, name)| (name, size));
    let names: Vec<(String, usize)> = names.into_iter().filter(of_prefill).filter_map(sized).collect();
    let families = families(&names, layers);
    let guesses = guesses(&families, &open, in_order);
    let proposal = |(family, site, evidence): (&Family, Site, ProposalBasis)| Proposal {
        name: family.template.clone(),
        tap: Tap { layer: site.in_layer().then_some(0), site }.in_layers("{N}"),
        evidence,
    };
    guesses.into_iter().map(proposal).collect()
}

/// The names without a rule, with their sizes; apart from them, those whose values another name holds: one with a rule, else the most informative one.
fn without_copies(
    rest: Vec<(String, usize, u64)>,
    covered: &dyn Fn(&str) -> bool,
) -> (Vec<(String, usize)>, Vec<Alias>) {
    let best_score = |name: &str| Site::ALL.iter().map(|site| score(split_stored_name(name).0, *site)).max();
    let mut of_values: BTreeMap<(usize, u64), Vec<String>> = BTreeMap::new();
    for (name, size, values) in rest {
        of_values.entry((size, values)).or_default().push(name);
    }
    let (mut left, mut aliases) = (Vec::new(), Vec::new());
    for ((size, _), mut names) in of_values {
        names
            .sort_by_cached_key(|name| (!covered(name), std::cmp::Reverse(best_score(name)), name.len(), name.clone()));
        let first = names.remove(0);
        aliases
            .extend(names.into_iter().filter(|name| !covered(name)).map(|name| Alias { name, same_as: first.clone() }));
        left.extend((!covered(&first)).then_some((first, size)));
    }
    left.sort();
    (left, aliases)
}

/// The proposals whose names mean one tap only.
fn without_contradictions(proposals: Vec<Proposal>) -> Vec<Proposal> {
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    proposals.iter().for_each(|p| *uses.entry(p.name.clone()).or_default() += 1);
    proposals.into_iter().filter(|p| uses[&p.name] == 1).collect()
}

/// The second-best tap, and how near it is.
type SecondBest = Option<(Place, f64)>;

/// The tap whose sorted values match the tensor's in one of the forms, and the second best.
fn best(
    tensor: &Tensor,
    prints: &Fingerprints,
    allowed: impl Fn(Tap) -> f64,
) -> Option<(Place, TensorForm, f64, SecondBest)> {
    let mut near = prints.add_nearest(tensor);
    // What another name of the reference holds as well is the vocabulary's tap.
    let is_open = |place: &Place| place.tap.is_open();
    near.sort_by(|a, b| {
        a.2.max(SORTED_EXACT).total_cmp(&b.2.max(SORTED_EXACT)).then(is_open(&a.0).cmp(&is_open(&b.0)))
    });
    let (place, form, nmse) = *near.first()?;
    let others = near.iter().filter(|(other, ..)| *other != place && (is_open(&place) || !is_open(other)));
    let next = others.min_by(|a, b| a.2.total_cmp(&b.2)).map(|(place, _, nmse)| (*place, *nmse));
    let clear = next.is_none_or(|(_, second)| second > NAME_CLEARER * nmse.max(SORTED_EXACT));
    (nmse <= allowed(place.tap) && clear).then_some((place, form, nmse, next))
}

/// Notes on tensors that were not read as they are.
fn notes(matches: &[NameMatch]) -> Vec<String> {
    let forms: BTreeSet<TensorForm> = matches.iter().map(|m| m.form).collect();
    let notes = forms.into_iter().filter_map(|form| match form {
        TensorForm::Sequence { index, count } => {
            Some(format!("a batch of {count} sequences: the names are those of sequence {index} (--sequence)"))
        }
        TensorForm::Padded { to } => Some(format!("keys are padded to {to}")),
        TensorForm::Row => Some("a tensor for each token, counted from 0 ({S} in a name)".to_owned()),
        TensorForm::Appended => Some("a tensor for all steps of the reference, one behind the other".to_owned()),
        TensorForm::Whole => None,
    });
    notes.collect()
}

/// One rule as a table of names.
fn rule(name: &str, tap: &str) -> Option<Names> {
    Names::parse(&format!("{name:?} = {tap:?}"), "").ok()
}

/// One rule for all layers where the matched names differ only in the layer's number; else one for each.
fn rules(matches: &[NameMatch], all: &[String], layers: u32) -> Vec<Proposal> {
    let mut sites: BTreeMap<_, Vec<&NameMatch>> = BTreeMap::new();
    for m in matches {
        sites.entry((m.step_to_add(), m.place.tap.site)).or_default().push(m);
    }
    let mut proposals = Vec::new();
    for ((step, site), of_site) in &sites {
        let Some(step) = step else {
            proposals.extend(rule_of_rows(of_site, all));
            continue;
        };
        // What fits all of them fits the first.
        let of_first = of_site.first().and_then(|m| Some(templates(&m.name, m.place.tap.layer?)));
        let fits = |t: &String| of_site.iter().all(|o| layer_in(t, &o.name) == o.place.tap.layer);
        let mut fitting: Vec<String> = of_first.unwrap_or_default().into_iter().filter(fits).collect();
        // Of several numbers in a name, the one that counts the layers; else the last.
        let through = |t: &str| -> usize {
            let layers_of = all.iter().filter_map(|name| layer_in(t, split_stored_name(name).0));
            layers_of.filter(|layer| *layer < layers).collect::<BTreeSet<u32>>().len()
        };
        fitting.reverse();
        let template = fitting.into_iter().max_by_key(|t| through(t));
        let bearers = |is: &dyn Fn(&str) -> bool| all.iter().filter(|name| is(split_stored_name(name).0)).count();
        let Some(name) = template else {
            let mut alone: BTreeMap<(&str, Tap), Vec<&NameMatch>> = BTreeMap::new();
            of_site.iter().for_each(|m| alone.entry((&m.name, m.place.tap)).or_default().push(m));
            proposals.extend(alone.into_iter().map(|((name, tap), of_name)| {
                let tap = stored_name(&tap.to_string(), *step);
                proposal(name.to_owned(), tap, &of_name, bearers(&|other| other == name))
            }));
            continue;
        };
        let tap = stored_name(&Tap::layer(0, *site).in_layers("{N}"), *step);
        let count = bearers(&|other| layer_in(&name, other).is_some());
        proposals.push(proposal(name, tap, of_site, count));
    }
    proposals
}

/// The rule of a tap with one tensor per row, with the token's number in its name, or behind it.
fn rule_of_rows(matches: &[&NameMatch], all: &[String]) -> Option<Proposal> {
    let first = matches.first()?;
    let tap = first.place.tap.in_layers("{N}");
    let fits = |name: &&String| {
        let fitting = |names: &Names| matches.iter().all(|m| names.find(&m.name) == Some((m.place.tap, m.place.step)));
        rule(name, &tap).is_some_and(|names| fitting(&names))
    };
    let steps = with_step(&first.name, first.place.step);
    let templates: Vec<String> = match first.place.tap.layer {
        Some(layer) => steps.iter().flat_map(|name| templates(name, layer)).collect(),
        None => steps,
    };
    let name = templates.iter().find(fits)?.clone();
    let names = rule(&name, &tap)?;
    let bearers = all.iter().filter(|other| names.find(other).is_some()).count();
    Some(proposal(name, tap, matches, bearers))
}

/// The name with one of its numbers replaced by the step; unchanged where no step is needed.
fn with_step(name: &str, step: u32) -> Vec<String> {
    match step {
        0 => vec![name.to_owned()],
        _ => templates(name, step).into_iter().filter(|t| t.contains("{N}")).map(|t| t.replace("{N}", "{S}")).collect(),
    }
}

fn proposal(name: String, tap: String, matches: &[&NameMatch], bearers: usize) -> Proposal {
    let worst = matches.iter().map(|m| m.nmse).fold(0.0, f64::max);
    let next = matches.iter().filter_map(|m| m.next).min_by(|a, b| a.1.total_cmp(&b.1));
    let next = next.map(|(place, nmse)| NextTap { tap: place.to_string(), nmse });
    Proposal { name, tap, evidence: ProposalBasis::Content { nmse: worst, next, matched: matches.len(), of: bearers } }
}

/// The name with one of its numbers replaced by the layer: the last number first, counted from 0 before counted from 1.
fn templates(name: &str, layer: u32) -> Vec<String> {
    let mut runs = Vec::new();
    let mut start = None;
    for (at, c) in name.char_indices().chain([(name.len(), ' ')]) {
        match (c.is_ascii_digit(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                runs.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    let put = |(from, to): (usize, usize), what: &str| format!("{}{what}{}", &name[..from], &name[to..]);
    let number = |(from, to): (usize, usize)| name[from..to].parse::<u32>().ok();
    let zero = runs.iter().rev().filter(|&&run| number(run) == Some(layer)).map(|&run| put(run, "{N}"));
    let one = runs.iter().rev().filter(|&&run| number(run) == layer.checked_add(1)).map(|&run| put(run, "{N+1}"));
    zero.chain(one).collect()
}

/// The layer that `name` names under `template`.
fn layer_in(template: &str, name: &str) -> Option<u32> {
    let (base, (before, after)) = match template.split_once("{N}") {
        Some(parts) => (0, parts),
        None => (1, template.split_once("{N+1}")?),
    };
    let digits = name.strip_prefix(before)?.strip_suffix(after)?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse::<u32>().ok().filter(|_| plain)?.checked_sub(base)
}

/// Matches what is left on both sides, where its size allows only one match.
fn by_size(names: &[(String, usize)], taps: &[&Entry]) -> (Vec<Proposal>, Vec<String>) {
    let size = |e: &Entry| e.shape.iter().product::<usize>();
    let (mut proposals, mut unknown) = (Vec::new(), Vec::new());
    for (name, elements) in names {
        let alone = names.iter().filter(|(_, other)| other == elements).count() == 1;
        let mut fitting = taps.iter().filter(|e| size(e) == *elements);
        match (fitting.next(), fitting.next()) {
            (Some(one), None) if alone => proposals.push(Proposal {
                name: name.clone(),
                tap: stored_name(&one.tap.to_string(), one.step),
                evidence: ProposalBasis::Size { elements: *elements },
            }),
            _ => unknown.push(name.clone()),
        }
    }
    (proposals, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_that_counts_through_the_layers_is_the_layers() {
        let place = Place { step: 0, tap: "layers.0.q".parse().unwrap() };
        let name = "layers.0/MatMul_output_0".to_owned();
        let found =
            NameMatch { name, says_step: false, place, form: TensorForm::Whole, nmse: 0.0, next: None, values: 0 };
        let all = ["layers.0/MatMul_output_0", "layers.1/MatMul_output_0"].map(str::to_owned);
        let proposals = rules(&[found], &all, 2);
        assert_eq!(proposals.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["layers.{N}/MatMul_output_0"]);
    }

    #[test]
    fn templates_of_a_name() {
        assert_eq!(templates("h1_attn_l0", 0), ["h1_attn_l{N}", "h{N+1}_attn_l0"]);
        assert_eq!(templates("block3.out", 2), ["block{N+1}.out"]);
        assert_eq!(layer_in("h1_attn_l{N}", "h1_attn_l12"), Some(12));
        assert_eq!(layer_in("block{N+1}.out", "block3.out"), Some(2));
        assert_eq!(layer_in("block{N+1}.out", "block0.out"), None);
        assert_eq!(layer_in("x{N}", "xy"), None);
    }
}
