//! Lists what the two dumps hold of the experts of each layer.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::{Dump, Entry, Tap, split_stored_name};

use crate::expert::{EXPERTS, expert_of};
use crate::taps::choice::CHOICE;

/// The experts of a layer in a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block {
    /// The text in front of the experts: layer and stack.
    pub(super) prefix: String,
    pub(super) step: u32,
}

/// The name of an expert's tap without block and number: the text before the number, and behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExpertSite {
    before: String,
    after: String,
}

impl ExpertSite {
    /// Whether it is a site of the vocabulary: one tensor may hold all its experts. For a module's output that is not known.
    fn is_of_the_vocabulary(&self) -> bool {
        self.before == EXPERTS && self.after.starts_with('.')
    }

    fn words(&self) -> &str {
        self.after.trim_start_matches(['.', '/'])
    }
}

/// What the reference holds of one site of the experts.
#[derive(Debug)]
pub(super) struct ReferenceSite {
    pub(super) site: ExpertSite,
    pub(super) blocks: BTreeMap<Block, BTreeMap<usize, Entry>>,
    /// The shape of a row.
    pub(super) row: Vec<usize>,
}

/// The blocks whose router chooses experts, by the text in front of `router_topk`.
struct Routers(BTreeSet<String>);

impl Routers {
    fn find(reference: &Dump) -> Routers {
        let prefix = |stored: &String| {
            let (name, _) = split_stored_name(stored);
            Some(name.strip_suffix(CHOICE)?.strip_suffix('.')?.to_owned())
        };
        Routers(reference.unmapped().iter().filter_map(prefix).collect())
    }

    /// The block, expert and site of a stored name. The output of a module inside a block belongs to that block's router.
    fn expert_site(&self, stored: &str) -> Option<(Block, usize, ExpertSite)> {
        let (name, step) = split_stored_name(stored);
        let (left, expert, after) = expert_of(name)?;
        let ends = [left.len()].into_iter().chain(left.rmatch_indices('.').map(|(at, _)| at));
        let prefix = ends.map(|end| &left[..end]).find(|prefix| self.0.contains(*prefix)).unwrap_or(left);
        let site = ExpertSite { before: format!("{}{EXPERTS}", &left[prefix.len()..]), after: after.to_owned() };
        Some((Block { prefix: prefix.to_owned(), step }, expert, site))
    }
}

pub(super) fn expert_tap(block: &Block, expert: usize, site: &ExpertSite) -> Tap {
    Tap::named(&format!("{}{}{expert}{}", block.prefix, site.before, site.after))
}

impl ReferenceSite {
    /// Every site of experts for which the reference holds rows of one shape.
    pub(super) fn all(reference: &Dump) -> Vec<ReferenceSite> {
        let (routers, mut sites) = (Routers::find(reference), BTreeMap::<ExpertSite, ReferenceSite>::new());
        for (block, expert, site) in reference.unmapped().iter().filter_map(|name| routers.expert_site(name)) {
            let entry = reference.entry(expert_tap(&block, expert, &site), block.step);
            let Some(entry) = entry.filter(|entry| entry.shape.len() > 1 && entry.rows.is_none()) else { continue };
            let row = entry.shape[1..].to_vec();
            let empty = || ReferenceSite { site: site.clone(), blocks: BTreeMap::new(), row };
            let wanted = sites.entry(site.clone()).or_insert_with(empty);
            wanted.blocks.entry(block).or_default().insert(expert, entry);
        }
        let is_of_one_shape = |site: &ReferenceSite| {
            let mut entries = site.blocks.values().flat_map(BTreeMap::values);
            entries.all(|entry| entry.shape[1..] == site.row[..]) && site.width() > 0
        };
        sites.into_values().filter(is_of_one_shape).collect()
    }

    pub(super) fn width(&self) -> usize {
        self.row.iter().product()
    }
}

/// What the candidate holds of a site.
#[derive(Debug)]
pub(super) enum CandidateSite {
    /// All experts of a layer in one tensor.
    Together(BTreeMap<Block, Entry>),
    /// A tensor for each expert.
    ByExpert(BTreeMap<Block, BTreeMap<usize, Entry>>),
}

impl CandidateSite {
    /// `None` where it holds nothing of the site.
    pub(super) fn find(reference: &Dump, reference_site: &ReferenceSite, candidate: &Dump) -> Option<CandidateSite> {
        let routers = Routers::find(reference);
        let layers: BTreeSet<&Block> = reference_site.blocks.keys().collect();
        let whole = |tap: Tap, step: u32| candidate.entry(tap, step).filter(|entry| entry.rows.is_none());
        let mut by_expert: BTreeMap<Block, BTreeMap<usize, Entry>> = BTreeMap::new();
        for (block, expert, site) in candidate.unmapped().iter().filter_map(|name| routers.expert_site(name)) {
            if site == reference_site.site
                && layers.contains(&block)
                && let Some(entry) = whole(expert_tap(&block, expert, &site), block.step)
            {
                by_expert.entry(block).or_default().insert(expert, entry);
            }
        }
        if !by_expert.is_empty() {
            return Some(CandidateSite::ByExpert(by_expert));
        }
        if !reference_site.site.is_of_the_vocabulary() {
            return None;
        }
        let together = |block: &&Block| {
            let entry = whole(Tap::named(&CandidateSite::joint_name(block, &reference_site.site)), block.step)?;
            Some(((*block).clone(), entry))
        };
        let together: BTreeMap<Block, Entry> = layers.iter().filter_map(together).collect();
        (!together.is_empty()).then_some(CandidateSite::Together(together))
    }

    /// The name of the tensor of all experts.
    pub(super) fn joint_name(block: &Block, site: &ExpertSite) -> String {
        format!("{}{EXPERTS}{}", block.prefix, site.words())
    }

    pub(super) fn blocks(&self) -> Vec<&Block> {
        match self {
            CandidateSite::Together(all) => all.keys().collect(),
            CandidateSite::ByExpert(all) => all.keys().collect(),
        }
    }

    /// The tensor that holds the rows of an expert.
    pub(super) fn source(&self, block: &Block, expert: usize) -> Option<&Entry> {
        match self {
            CandidateSite::Together(all) => all.get(block),
            CandidateSite::ByExpert(all) => all.get(block)?.get(&expert),
        }
    }

    /// The first tap of them.
    pub(super) fn first_name(&self, site: &ReferenceSite) -> String {
        match self {
            CandidateSite::Together(all) => {
                all.keys().next().map_or_else(String::new, |block| CandidateSite::joint_name(block, &site.site))
            }
            CandidateSite::ByExpert(all) => {
                let first = all.iter().find_map(|(block, experts)| Some((block, *experts.keys().next()?)));
                first.map_or_else(String::new, |(block, expert)| expert_tap(block, expert, &site.site).to_string())
            }
        }
    }
}
