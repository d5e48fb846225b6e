//! May what has no name be a tap that was not compared? Then a run does not pass.

use std::collections::{BTreeSet, HashMap};

use firstdiff_trace::{Tap, split_stored_name};

use crate::graph::Place;
use crate::propose::fingerprints::sorted_values;
use crate::taps::context::{Judged, Run};

impl Run<'_> {
    /// Tensors of the candidate whose names nobody knows, and which by their size may be taps that were not compared: an engine that is wrong
    /// from one of these on would pass.
    /// A tensor that holds the same values as a tap that was compared is that tap once more, and one of which the candidate's own graph says that a tap is made
    /// of it which agrees was right.
    pub(crate) fn unmapped_taps(&self, found: &[Judged]) -> Option<String> {
        let [reference, candidate] = self.recorded();
        if candidate.is_of_known_names() {
            return None;
        }
        let missing: BTreeSet<usize> = reference
            .entries()
            .iter()
            .filter(|e| candidate.find(e.tap, e.step).is_none() && candidate.find_part(e.tap, e.step).is_none())
            .map(|e| e.shape.iter().product())
            .collect();
        // What both have under one name is compared as such.
        let shared: BTreeSet<&String> = reference.unmapped().iter().collect();
        let may_be = |name: &&String| {
            !shared.contains(name) && candidate.unmapped_size(name).is_some_and(|size| missing.contains(&size))
        };
        let names: Vec<&String> = candidate.unmapped().iter().filter(may_be).collect();
        let sizes: BTreeSet<usize> = names.iter().filter_map(|name| candidate.unmapped_size(name)).collect();
        let compared = candidate.entries().iter().filter(|e| reference.find(e.tap, e.step).is_some());
        let compared = compared.filter(|e| sizes.contains(&e.shape.iter().product()));
        let compared: BTreeSet<u64> =
            compared.filter_map(|e| candidate.read(e).ok()).map(|tensor| sorted_values(&tensor)).collect();
        let read = self.readers_in_candidate();
        let agreeing = self.graph.places().iter().zip(found).filter(|(_, here)| here.agrees());
        let agreeing: BTreeSet<Place> = agreeing.map(|(place, _)| *place).collect();
        let is_new = |name: &&&String| {
            if is_vouched_for(name, &read, &agreeing) {
                return false;
            }
            let tensor = candidate.read_unmapped(name).ok();
            tensor.is_none_or(|tensor| !compared.contains(&sorted_values(&tensor)))
        };
        let names: Vec<&&String> = names.iter().filter(is_new).collect();
        let first = names.first()?;
        let (unknown, known) = (candidate.unmapped().len(), candidate.entries().len() + candidate.parts().len());
        Some(format!(
            "what was compared agrees, but {unknown} of the candidate's {} names are no taps, and {} of these tensors have the size of taps that \
             were not compared ('{}' ..): name them in a firstdiff.toml, or let `firstdiff align` propose names",
            unknown + known,
            names.len(),
            first.escape_debug()
        ))
    }

    /// Which taps are made of which, as the candidate's own graph says.
    fn readers_in_candidate(&self) -> HashMap<&str, Vec<&str>> {
        let mut readers: HashMap<&str, Vec<&str>> = HashMap::new();
        for node in self.recorded()[1].meta().graph.iter().flatten() {
            for read in &node.reads {
                readers.entry(read).or_default().push(&node.tap);
            }
        }
        readers
    }
}

/// Whether of a tensor, by these readers, a tap is made that agrees, in the same step.
fn is_vouched_for(name: &str, readers: &HashMap<&str, Vec<&str>>, agreeing: &BTreeSet<Place>) -> bool {
    let (name, step) = split_stored_name(name);
    let (mut open, mut seen) = (vec![name], BTreeSet::new());
    while let Some(here) = open.pop() {
        for &reader in readers.get(here).into_iter().flatten() {
            if agreeing.contains(&Place { step, tap: Tap::named(reader) }) {
                return true;
            }
            if seen.insert(reader) {
                open.push(reader);
            }
        }
    }
    false
}
