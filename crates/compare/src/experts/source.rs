//! What do the two sides hold of the experts of each layer?

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::{Dump, Entry, Tap, split_stored_name};

use crate::experts::choice::Choices;

/// What stands between a layer and its experts.
const EXPERTS: &str = ".experts.";

/// The experts of a layer in a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block {
    /// The layer, and its stack.
    pub(super) prefix: String,
    pub(super) step: u32,
}

/// What the reference holds of one site of its experts.
pub(super) struct Wanted {
    pub(super) site: String,
    pub(super) blocks: BTreeMap<Block, BTreeMap<usize, Entry>>,
    /// The shape of a row.
    pub(super) row: Vec<usize>,
}

/// A site of an expert: of which layer and step, which expert, which site.
fn expert_site(stored: &str) -> Option<(Block, usize, &str)> {
    let (name, step) = split_stored_name(stored);
    let (prefix, inner) = name.split_once(EXPERTS)?;
    let (expert, site) = inner.split_once('.')?;
    Some((Block { prefix: prefix.to_owned(), step }, expert.parse().ok()?, site))
}

pub(super) fn expert_tap(block: &Block, expert: usize, site: &str) -> Tap {
    Tap::named(&format!("{}{EXPERTS}{expert}.{site}", block.prefix))
}

impl Wanted {
    /// Every site of experts of which the reference holds rows of one shape.
    pub(super) fn all(reference: &Dump) -> Vec<Wanted> {
        let mut sites: BTreeMap<String, Wanted> = BTreeMap::new();
        for (block, expert, site) in reference.unmapped().iter().filter_map(|name| expert_site(name)) {
            let entry = reference.entry(expert_tap(&block, expert, site), block.step);
            let Some(entry) = entry.filter(|entry| entry.shape.len() > 1 && entry.rows.is_none()) else { continue };
            let row = entry.shape[1..].to_vec();
            let empty = || Wanted { site: site.to_owned(), blocks: BTreeMap::new(), row };
            let wanted = sites.entry(site.to_owned()).or_insert_with(empty);
            wanted.blocks.entry(block).or_default().insert(expert, entry);
        }
        let is_of_one_shape = |wanted: &Wanted| {
            let mut entries = wanted.blocks.values().flat_map(BTreeMap::values);
            entries.all(|entry| entry.shape[1..] == wanted.row[..]) && wanted.width() > 0
        };
        sites.into_values().filter(is_of_one_shape).collect()
    }

    pub(super) fn width(&self) -> usize {
        self.row.iter().product()
    }

    /// Whether each expert takes all tokens there, and not those alone that are sent to it.
    pub(super) fn is_dense(&self, choices: &Choices) -> bool {
        let mut known =
            self.blocks.iter().filter_map(|(block, experts)| Some((choices.reference.get(block)?, experts)));
        let mut is_other = false;
        let is_whole = known.all(|(choice, experts)| {
            experts.iter().all(|(&expert, entry)| {
                is_other |= entry.shape[0] != choice.count_of(expert);
                entry.shape[0] == choice.tokens()
            })
        });
        is_whole && is_other
    }
}

/// What the candidate holds of a site.
pub(super) enum Held {
    /// All experts of a layer in one tensor.
    Together(BTreeMap<Block, Entry>),
    /// A tensor for each.
    ByExpert(BTreeMap<Block, BTreeMap<usize, Entry>>),
}

impl Held {
    /// `None` where it holds nothing of the site.
    pub(super) fn of(wanted: &Wanted, candidate: &Dump) -> Option<Held> {
        let layers: BTreeSet<&Block> = wanted.blocks.keys().collect();
        let whole = |tap: Tap, step: u32| candidate.entry(tap, step).filter(|entry| entry.rows.is_none());
        let mut by_expert: BTreeMap<Block, BTreeMap<usize, Entry>> = BTreeMap::new();
        for (block, expert, site) in candidate.unmapped().iter().filter_map(|name| expert_site(name)) {
            if site == wanted.site
                && layers.contains(&block)
                && let Some(entry) = whole(expert_tap(&block, expert, site), block.step)
            {
                by_expert.entry(block).or_default().insert(expert, entry);
            }
        }
        if !by_expert.is_empty() {
            return Some(Held::ByExpert(by_expert));
        }
        let together = |block: &&Block| {
            let entry = whole(Tap::named(&Held::together_name(block, &wanted.site)), block.step)?;
            Some(((*block).clone(), entry))
        };
        let together: BTreeMap<Block, Entry> = layers.iter().filter_map(together).collect();
        (!together.is_empty()).then_some(Held::Together(together))
    }

    /// What the tensor of all experts is called.
    pub(super) fn together_name(block: &Block, site: &str) -> String {
        format!("{}{EXPERTS}{site}", block.prefix)
    }

    pub(super) fn blocks(&self) -> Vec<&Block> {
        match self {
            Held::Together(all) => all.keys().collect(),
            Held::ByExpert(all) => all.keys().collect(),
        }
    }

    /// The tensor that holds the rows of an expert.
    pub(super) fn source(&self, block: &Block, expert: usize) -> Option<&Entry> {
        match self {
            Held::Together(all) => all.get(block),
            Held::ByExpert(all) => all.get(block)?.get(&expert),
        }
    }

    /// The first tap of them.
    pub(super) fn first_name(&self, wanted: &Wanted) -> String {
        match self {
            Held::Together(all) => {
                all.keys().next().map_or_else(String::new, |block| Held::together_name(block, &wanted.site))
            }
            Held::ByExpert(all) => {
                let first = all.iter().find_map(|(block, experts)| Some((block, *experts.keys().next()?)));
                first.map_or_else(String::new, |(block, expert)| expert_tap(block, expert, &wanted.site).to_string())
            }
        }
    }
}
