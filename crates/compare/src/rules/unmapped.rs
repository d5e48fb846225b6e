//! Refuses to pass a run where a tensor of unknown name may be a tap that was not compared.

use std::collections::{BTreeSet, HashMap, HashSet};

use firstdiff_trace::{Tap, split_stored_name};

use crate::propose::fingerprints::sorted_values;
use crate::taps::choice::is_choice;
use crate::taps::context::{ComparisonContext, TapJudgement};

impl ComparisonContext<'_> {
    /// Tensors of the candidate with unknown names that by their size may be taps which were not compared: an engine that is wrong from one of these on would
    /// pass.
    /// A tensor with the same values as a compared tap is that tap again; a tensor was right if, by the candidate's own graph, all that is computed from it
    /// agrees.
    pub(crate) fn unmapped_taps(&self, judgements: &[TapJudgement]) -> Option<String> {
        let [reference, candidate] = self.recorded();
        if candidate.is_of_known_names() {
            return None;
        }
        let absent = reference.entries().iter();
        let absent = absent
            .filter(|e| candidate.find(e.tap, e.step).is_none() && candidate.find_part(e.tap, e.step).is_none())
            .map(|e| e.shape.iter().product());
        let missing: BTreeSet<usize> = absent.chain(self.unread_open_taps(judgements)).collect();
        // A name that both have is compared as such.
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
        let mut vouched: HashMap<u32, HashSet<&str>> = HashMap::new();
        let mut is_new = |name: &&&String| {
            let (plain, step) = split_stored_name(name);
            if vouched.entry(step).or_insert_with(|| self.names_with_right_readers(step, judgements)).contains(plain) {
                return false;
            }
            let tensor = candidate.read_unmapped(name).ok();
            tensor.is_none_or(|tensor| !compared.contains(&sorted_values(&tensor)))
        };
        let names: Vec<&&String> = names.iter().filter(|name| is_new(name)).collect();
        let first = names.first()?;
        let unknown = candidate.unmapped().iter().filter(|name| !shared.contains(name)).count();
        let all = candidate.unmapped().len() + candidate.entries().len() + candidate.parts().len();
        Some(format!(
            "what was compared agrees, but {unknown} of the candidate's {all} names are no taps, and {} of these tensors have the size of taps that \
             were not compared ('{}' ..): name them in a firstdiff.toml, or let `firstdiff align` propose names",
            names.len(),
            first.escape_debug()
        ))
    }

    /// The numbers of elements of those open taps of the reference from which no compared tap is computed.
    fn unread_open_taps<'r>(&'r self, taps: &'r [TapJudgement]) -> impl Iterator<Item = usize> + 'r {
        let places = self.graph.places().iter().enumerate().filter(|(_, place)| place.tap.is_open());
        let ends = places.filter(|(at, _)| self.graph.nearest_after(*at, |i| taps[i].is_compared()).0.is_empty());
        ends.filter_map(|(_, place)| match self.both(*place) {
            (Some(ours), None) => Some(ours.shape.iter().product()),
            _ => None,
        })
    }

    /// The names for which, by the candidate's own graph, all that is computed from them in that step was compared and agrees, or is itself such a name. A
    /// right choice shows nothing about the size of the scores it is made from.
    fn names_with_right_readers(&self, step: u32, taps: &[TapJudgement]) -> HashSet<&str> {
        let graph = self.recorded()[1].meta().graph.as_deref().unwrap_or_default();
        let agreeing = self.graph.places().iter().zip(taps).filter(|(place, here)| place.step == step && here.agrees());
        let agreeing: HashSet<Tap> = agreeing.map(|(place, _)| place.tap).filter(|tap| !is_choice(*tap)).collect();
        // For each name, how many operations read it and how many of these are right; readers come after what they read.
        let mut readers: HashMap<&str, (usize, usize)> = HashMap::new();
        let mut vouched = HashSet::new();
        for node in graph.iter().rev() {
            let is_vouched = readers.get(&*node.tap).is_some_and(|(all, right)| all == right);
            if is_vouched {
                vouched.insert(&*node.tap);
            }
            let is_right = is_vouched || agreeing.contains(&Tap::named(&node.tap));
            for read in &node.reads {
                let (all, right) = readers.entry(read).or_default();
                *all += 1;
                *right += usize::from(is_right);
            }
        }
        vouched
    }
}
