//! May what has no name be a tap that was not compared? Then a run does not pass.

use std::collections::BTreeSet;

use crate::propose::fingerprints::sorted_values;
use crate::taps::context::Run;

impl Run<'_> {
    /// Tensors of the candidate whose names nobody knows, and which by their size may be taps that were not compared: an engine that is wrong
    /// from one of these on would pass.
    /// A tensor that holds the same values as a tap that was compared is that tap once more.
    pub(crate) fn unmapped_taps(&self) -> Option<String> {
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
        let is_new = |name: &&&String| {
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
}
