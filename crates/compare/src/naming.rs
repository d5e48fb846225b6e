//! Which tap is a tensor without a name that is known? Proposed by its content: the same values, in whatever order.
//!
//! A proposal is no verdict: it is written down for a person to look at and to keep.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::{Dump, DumpError, Entry, Tap, Tensor, Values, stored_name};

use crate::graph::Place;
use crate::profile::{Extent, Profile, allowed_nmse};

/// What a name is proposed to mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The name, with `{N}` for the layer where it serves for all of them.
    pub name: String,
    /// The tap, with `{N}` alike.
    pub tap: String,
    /// Why.
    pub evidence: Evidence,
}

/// Why a name is proposed for a tap.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// The same values, in whatever order.
    Content {
        /// NMSE between the sorted values, the worst of those matched.
        nmse: f64,
        /// The same for the tap that comes next, and its name.
        next: Option<(Place, f64)>,
        /// How many tensors of this name were matched so, of how many.
        matched: (usize, usize),
    },
    /// It is the only tensor, and that the only tap, of as many elements. Its values are others.
    Size {
        /// Elements.
        elements: usize,
    },
}

/// What could be said of the names that are no taps.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    /// Names, in the order of their taps.
    pub proposals: Vec<Proposal>,
    /// Names of which nothing can be said.
    pub unknown: Vec<String>,
}

/// A tensor counts as another's if its sorted values are this many times nearer than those of the next.
const CLEARER: f64 = 100.0;
/// Room beyond what the profile allows a tap: sorting compares values of other places.
const ROOM: f64 = 10.0;
/// Too few values, or values that are all alike, show nothing.
const FEW: usize = 16;

/// A tensor's values in rising order, which no layout changes.
struct Print {
    sorted: Vec<f64>,
    energy: f64,
}

impl Print {
    fn of(values: &Values<'_>) -> Option<Print> {
        let mut sorted = values.to_f64();
        if sorted.len() < FEW || sorted.iter().any(|x| x.is_nan()) {
            return None;
        }
        // Masks are written in many ways.
        sorted.iter_mut().filter(|x| **x <= crate::pair::MASKED).for_each(|x| *x = 0.0);
        sorted.sort_unstable_by(f64::total_cmp);
        let energy: f64 = sorted.iter().map(|x| x * x).sum();
        (energy > 0.0 && sorted.first() != sorted.last()).then_some(Print { sorted, energy })
    }

    fn nmse(&self, other: &Print) -> Option<f64> {
        if self.sorted.len() != other.sorted.len() {
            return None;
        }
        let error: f64 = self.sorted.iter().zip(&other.sorted).map(|(a, b)| (a - b) * (a - b)).sum();
        Some(error / self.energy)
    }
}

/// A name's best tap.
struct Match {
    name: String,
    place: Place,
    nmse: f64,
    next: Next,
}

/// Proposes taps of `reference` for the names in `candidate` that are none. `progress` is told how many of how many were looked at.
///
/// # Errors
/// When a file cannot be read.
pub fn propose(
    reference: &Dump,
    candidate: &Dump,
    profile: Profile,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Naming, DumpError> {
    let place = |e: &Entry| Place { step: e.step, tap: e.tap };
    let named: BTreeSet<Place> = candidate.entries().iter().map(place).collect();
    let free: Vec<&Entry> = reference.entries().iter().filter(|e| !named.contains(&place(e))).collect();
    let layers = free.iter().filter_map(|e| e.tap.layer).max().map_or(0, |l| l + 1);
    let positions = reference.meta().tokens.as_ref().map_or(0, Vec::len);
    let mut prints: BTreeMap<usize, Vec<(Place, Print)>> = BTreeMap::new();
    for entry in &free {
        let tensor = reference.read(entry)?;
        if let Some(print) = Print::of(&tensor.values()) {
            prints.entry(print.sorted.len()).or_default().push((place(entry), print));
        }
    }
    let (mut matches, mut rest) = (Vec::new(), Vec::new());
    let total = candidate.unnamed().len();
    for (number, name) in candidate.unnamed().iter().enumerate() {
        progress(number, total);
        // What cannot be read as floats is no tap.
        let Ok(tensor) = candidate.read_unnamed(name) else { continue };
        let allowed = |tap: Tap| ROOM * allowed_nmse(profile, tap, Extent { layers, positions }, [tensor.dtype(); 2]);
        match best(&tensor, &prints, allowed) {
            Some((place, nmse, next)) => matches.push(Match { name: plain(name, place.step), place, nmse, next }),
            None => rest.push((name.clone(), tensor.shape().iter().product::<usize>())),
        }
    }
    // Two tensors of the same values: nobody can say which is the tap.
    let mut claims: BTreeMap<Place, usize> = BTreeMap::new();
    matches.iter().for_each(|m: &Match| *claims.entry(m.place).or_default() += 1);
    let (matches, twice): (Vec<Match>, Vec<Match>) = matches.into_iter().partition(|m| claims[&m.place] == 1);
    let mut naming = Naming { proposals: rules(&matches, candidate.unnamed()), unknown: Vec::new() };
    let bare = |name: &str| name.rsplit_once(".step").map_or(name, |(bare, _)| bare).to_owned();
    let covered = |name: &str| naming.proposals.iter().any(|p| layer_in(&p.name, &bare(name)).is_some());
    let rest: Vec<(String, usize)> = rest.into_iter().filter(|(name, _)| !covered(name)).collect();
    let taken: BTreeSet<Place> = matches.iter().map(|m| m.place).collect();
    let open: Vec<&Entry> = free.into_iter().filter(|e| !taken.contains(&place(e))).collect();
    let (by_size, unknown) = by_size(&rest, &open);
    naming.proposals.extend(by_size);
    naming.unknown = unknown.into_iter().chain(twice.into_iter().map(|m| m.name)).collect();
    naming.unknown.sort();
    Ok(naming)
}

/// A name without the ending that says its step, where it says the right one.
fn plain(name: &str, step: u32) -> String {
    let ending = format!(".step{step}");
    name.strip_suffix(&ending).filter(|_| step > 0).unwrap_or(name).to_owned()
}

/// The tap that comes next, and how near it comes.
type Next = Option<(Place, f64)>;

/// The tap whose sorted values are the tensor's, and the next best.
fn best(
    tensor: &Tensor,
    prints: &BTreeMap<usize, Vec<(Place, Print)>>,
    allowed: impl Fn(Tap) -> f64,
) -> Option<(Place, f64, Next)> {
    let own = Print::of(&tensor.values())?;
    let others = prints.get(&own.sorted.len())?;
    let mut near: Vec<(Place, f64)> = others.iter().filter_map(|(at, print)| Some((*at, print.nmse(&own)?))).collect();
    near.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (place, nmse) = *near.first()?;
    let next = near.get(1).copied();
    let clear = next.is_none_or(|(_, second)| second > CLEARER * nmse.max(1e-15));
    (nmse <= allowed(place.tap) && clear).then_some((place, nmse, next))
}

/// One rule for all layers where the matched names differ in the layer's number alone; else one for each.
fn rules(matches: &[Match], all: &[String]) -> Vec<Proposal> {
    let mut sites: BTreeMap<_, Vec<&Match>> = BTreeMap::new();
    for m in matches {
        sites.entry((m.place.step, m.place.tap.site)).or_default().push(m);
    }
    let mut proposals = Vec::new();
    for ((step, site), of_site) in &sites {
        let template = of_site.iter().find_map(|m| {
            let templates = templates(&m.name, m.place.tap.layer?);
            templates.into_iter().find(|t| of_site.iter().all(|o| layer_in(t, &o.name) == o.place.tap.layer))
        });
        // A name that had its step at its end gives it to its tap.
        let told = |name: &str| all.iter().any(|full| *full == format!("{name}.step{step}"));
        let place = |name: &str, tap: &str| stored_name(tap, if told(name) { 0 } else { *step });
        match template {
            Some(name) => {
                let bearers = all.iter().filter(|other| layer_in(&name, &plain(other, *step)).is_some()).count();
                let tap = place(&of_site[0].name, &format!("layers.{{N}}.{}", site.name()));
                proposals.push(proposal(name, tap, of_site, bearers));
            }
            None => proposals.extend(
                of_site.iter().map(|m| proposal(m.name.clone(), place(&m.name, &m.place.tap.to_string()), &[m], 1)),
            ),
        }
    }
    proposals
}

fn proposal(name: String, tap: String, matches: &[&Match], bearers: usize) -> Proposal {
    let worst = matches.iter().map(|m| m.nmse).fold(0.0, f64::max);
    let next = matches.iter().filter_map(|m| m.next).min_by(|a, b| a.1.total_cmp(&b.1));
    Proposal { name, tap, evidence: Evidence::Content { nmse: worst, next, matched: (matches.len(), bearers) } }
}

/// The name with one of its numbers for the layer's: the last first, counted from 0 before counted from 1.
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

/// What is left over on both sides, where its size leaves one possibility.
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
                evidence: Evidence::Size { elements: *elements },
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
    fn templates_of_a_name() {
        assert_eq!(templates("h1_attn_l0", 0), ["h1_attn_l{N}", "h{N+1}_attn_l0"]);
        assert_eq!(templates("block3.out", 2), ["block{N+1}.out"]);
        assert_eq!(layer_in("h1_attn_l{N}", "h1_attn_l12"), Some(12));
        assert_eq!(layer_in("block{N+1}.out", "block3.out"), Some(2));
        assert_eq!(layer_in("block{N+1}.out", "block0.out"), None);
        assert_eq!(layer_in("x{N}", "xy"), None);
    }
}
