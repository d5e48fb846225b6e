//! May what has no name be a tap that was not compared? Then a run does not pass.

use std::collections::BTreeSet;

use crate::first::Run;

impl Run<'_> {
    /// Tensors of the candidate whose names nobody knows, and which by their size may be taps that were not compared: an engine that is wrong
    /// from one of these on would pass.
    pub(crate) fn nameless(&self) -> Option<String> {
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
        let may_be = |name: &&String| candidate.unnamed_size(name).is_some_and(|size| missing.contains(&size));
        let names: Vec<&String> = candidate.unnamed().iter().filter(may_be).collect();
        let first = names.first()?;
        Some(format!(
            "what was compared agrees, but {} of the candidate's tensors have names that are no taps and the size of taps that were not compared \
             ('{}' ..): name them in a firstdiff.toml, or let `firstdiff align` propose names",
            names.len(),
            first.escape_debug()
        ))
    }
}
