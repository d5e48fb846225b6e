//! Lists the experts that each token of a block is sent to, by place of the choice (top-k rank).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use firstdiff_trace::{Dump, DumpError, Entry, Tap};

use crate::experts::source::{Block, ReferenceSite};
use crate::taps::choice::CHOICE;

/// The order in which an expert takes the tokens sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenOrder {
    /// By token.
    Token,
    /// By place: first the tokens whose first choice it is. Where a token goes to the same experts as in the reference, by the reference's places.
    Place,
    /// By place, as the run itself recorded it.
    OwnPlace,
}

/// The experts that the tokens of a block are sent to.
#[derive(Debug)]
pub(super) struct ExpertChoice {
    /// How many experts each token goes to.
    pub(super) places: usize,
    tokens: usize,
    /// Token and place of every row of each expert, in the order of the tokens.
    rows: BTreeMap<usize, Vec<(usize, usize)>>,
    /// The reference's place of a token's expert, by the candidate's token and place, where a token goes to the same experts in another order: the experts of
    /// a token are a set, and rows are ordered by the router's places, whatever order was written.
    ranks: HashMap<(usize, usize), usize>,
}

impl ExpertChoice {
    fn read(dump: &Dump, block: &Block, reference: Option<&ExpertChoice>) -> Result<Option<ExpertChoice>, DumpError> {
        let tap = Tap::named(&format!("{}.{CHOICE}", block.prefix));
        let Some(entry) = dump.entry(tap, block.step).filter(|entry| entry.rows.is_none()) else { return Ok(None) };
        // The same number of tokens may go to more experts, or to fewer.
        let size = entry.shape.iter().product::<usize>();
        let own =
            choices_per_token(&entry).filter(|places| reference.is_none_or(|other| places * other.tokens == size));
        let Some(places) = own.or(reference.map(|other| other.places)) else { return Ok(None) };
        let values = dump.read(&entry)?.values().to_f64();
        let is_expert = |value: &f64| *value >= 0.0 && value.fract() == 0.0 && *value < f64::from(u32::MAX);
        let fits = places > 0 && !values.is_empty() && values.len().is_multiple_of(places);
        if !fits || !values.iter().all(is_expert) {
            return Ok(None);
        }
        let mut rows: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for (at, value) in values.iter().enumerate() {
            rows.entry(*value as usize).or_default().push((at / places, at % places));
        }
        // No token goes to one expert twice.
        let is_twice = rows.values().any(|rows| rows.windows(2).any(|pair| pair[0].0 == pair[1].0));
        Ok((!is_twice).then(|| ExpertChoice { places, tokens: values.len() / places, rows, ranks: HashMap::new() }))
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The largest number of an expert that is chosen.
    pub(super) fn largest_expert(&self) -> Option<usize> {
        self.rows.keys().last().copied()
    }

    /// Token and place of every row of an expert.
    pub(super) fn rows_of(&self, expert: usize, order: TokenOrder) -> Vec<(usize, usize)> {
        let mut rows = self.rows.get(&expert).cloned().unwrap_or_default();
        let rank = |at: &(usize, usize)| self.ranks.get(at).copied().unwrap_or(at.1);
        match order {
            TokenOrder::Token => {}
            TokenOrder::Place => rows.sort_by_key(|at| (rank(at), at.0)),
            TokenOrder::OwnPlace => rows.sort_by_key(|&(token, place)| (place, token)),
        }
        rows
    }

    /// Uses the reference's ranks of the experts for tokens that go to the same experts.
    fn use_ranks_of(&mut self, reference: &ExpertChoice) {
        let places = |choice: &ExpertChoice| {
            let mut places: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
            for (&expert, rows) in &choice.rows {
                for &(token, place) in rows {
                    places.entry(token).or_default().insert(expert, place);
                }
            }
            places
        };
        let (own, theirs) = (places(self), places(reference));
        // Places sorted by the experts' numbers are not the router's places.
        let is_by_number =
            |all: &BTreeMap<usize, BTreeMap<usize, usize>>| all.values().all(|of| of.values().is_sorted());
        if !is_by_number(&own) || is_by_number(&theirs) {
            return;
        }
        for (token, own) in own {
            let Some(theirs) = theirs.get(&token) else { continue };
            if own.keys().collect::<BTreeSet<_>>() == theirs.keys().collect() {
                self.ranks.extend(own.iter().map(|(expert, &place)| ((token, place), theirs[expert])));
            }
        }
    }

    /// How many rows the experts before this one have together.
    pub(super) fn rows_before(&self, expert: usize) -> usize {
        self.rows.range(..expert).map(|(_, rows)| rows.len()).sum()
    }

    /// Whether a token is sent to an expert.
    pub(super) fn sends(&self, token: usize, expert: usize) -> bool {
        self.rows.get(&expert).is_some_and(|rows| rows.iter().any(|row| row.0 == token))
    }

    pub(super) fn count_of(&self, expert: usize) -> usize {
        self.rows.get(&expert).map_or(0, Vec::len)
    }
}

/// The extent of the last axis. `None` for a tensor of one axis, which may be the axis of the tokens.
fn choices_per_token(entry: &Entry) -> Option<usize> {
    (entry.shape.len() > 1).then(|| entry.shape.last().copied()).flatten()
}

/// The choices of both sides.
#[derive(Debug)]
pub(super) struct ExpertChoices {
    pub(super) candidate: BTreeMap<Block, ExpertChoice>,
    pub(super) reference: BTreeMap<Block, ExpertChoice>,
}

impl ExpertChoices {
    pub(super) fn read(reference: &Dump, candidate: &Dump, site: &ReferenceSite) -> Result<ExpertChoices, DumpError> {
        let mut choices = ExpertChoices { candidate: BTreeMap::new(), reference: BTreeMap::new() };
        for block in site.blocks.keys() {
            let theirs = ExpertChoice::read(reference, block, None)?;
            if let Some(mut own) = ExpertChoice::read(candidate, block, theirs.as_ref())? {
                theirs.iter().for_each(|theirs| own.use_ranks_of(theirs));
                choices.candidate.insert(block.clone(), own);
            }
            choices.reference.extend(theirs.map(|theirs| (block.clone(), theirs)));
        }
        Ok(choices)
    }

    /// Whether each expert takes all tokens at a site, not only those sent to it.
    pub(super) fn is_dense(&self, site: &ReferenceSite) -> bool {
        let mut known = site.blocks.iter().filter_map(|(block, experts)| Some((self.reference.get(block)?, experts)));
        let mut is_other = false;
        let is_whole = known.all(|(choice, experts)| {
            experts.iter().all(|(&expert, entry)| {
                is_other |= entry.shape[0] != choice.count_of(expert);
                entry.shape[0] == choice.tokens()
            })
        });
        is_whole && is_other
    }

    /// Whether the candidate recorded the choices of all these blocks.
    pub(super) fn has_all<'b>(&self, mut blocks: impl Iterator<Item = &'b Block>) -> bool {
        blocks.all(|block| self.candidate.contains_key(block))
    }
}
