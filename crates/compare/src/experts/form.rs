//! Lists the forms in which rows of experts may be stored, and computes, from the choice of experts alone, where each expert's rows are.

use std::collections::BTreeMap;

use crate::experts::choice::{ExpertChoice, ExpertChoices, TokenOrder};
use crate::experts::source::{Block, CandidateSite, ReferenceSite};

/// How rows of experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowForm {
    /// A tensor for each expert, of its own rows, perhaps with others behind them.
    Own(TokenOrder),
    /// A tensor for each expert, of all tokens.
    OwnOfAll,
    /// [experts, tokens, ..].
    ByExpert,
    /// [tokens, experts, ..].
    ByToken,
    /// [experts, capacity, ..], with padding behind each expert's rows.
    Padded(TokenOrder),
    /// [tokens, places, ..], or both in one axis.
    ByPlace,
    /// [places, tokens, ..].
    PlacesFirst,
    /// [tokens * places, ..], sorted by expert.
    Sorted(TokenOrder),
}

const OWN: [RowForm; 4] = [
    RowForm::Own(TokenOrder::Token),
    RowForm::Own(TokenOrder::Place),
    RowForm::Own(TokenOrder::OwnPlace),
    RowForm::OwnOfAll,
];
const TOGETHER: [RowForm; 10] = [
    RowForm::ByExpert,
    RowForm::ByToken,
    RowForm::Padded(TokenOrder::Token),
    RowForm::Padded(TokenOrder::Place),
    RowForm::Padded(TokenOrder::OwnPlace),
    RowForm::ByPlace,
    RowForm::PlacesFirst,
    RowForm::Sorted(TokenOrder::Token),
    RowForm::Sorted(TokenOrder::Place),
    RowForm::Sorted(TokenOrder::OwnPlace),
];

impl RowForm {
    pub(super) fn words(self) -> &'static str {
        match self {
            RowForm::Own(TokenOrder::Token) => "an expert's own rows, in the order of the tokens",
            RowForm::Own(TokenOrder::Place) => "an expert's own rows, by place of the choice",
            RowForm::Own(TokenOrder::OwnPlace) => {
                "an expert's own rows, by place of the choice as the candidate recorded it"
            }
            RowForm::OwnOfAll => "all tokens for each expert",
            RowForm::ByExpert => "[experts, tokens, ..]",
            RowForm::ByToken => "[tokens, experts, ..]",
            RowForm::Padded(TokenOrder::Token) => "[experts, capacity, ..], padded, in the order of the tokens",
            RowForm::Padded(TokenOrder::Place) => "[experts, capacity, ..], padded, by place of the choice",
            RowForm::Padded(TokenOrder::OwnPlace) => {
                "[experts, capacity, ..], padded, by place of the choice as the candidate recorded it"
            }
            RowForm::ByPlace => "[tokens, places, ..]",
            RowForm::PlacesFirst => "[places, tokens, ..]",
            RowForm::Sorted(TokenOrder::Token) => "[tokens * places, ..], sorted by expert and token",
            RowForm::Sorted(TokenOrder::Place) => "[tokens * places, ..], sorted by expert, place and token",
            RowForm::Sorted(TokenOrder::OwnPlace) => {
                "[tokens * places, ..], sorted by expert, place as the candidate recorded it, and token"
            }
        }
    }

    /// Whether the axes in front of a row's own fit this form.
    fn fits(self, axes: &[usize], choice: &ExpertChoice, experts: usize) -> bool {
        let (tokens, places) = (choice.tokens(), choice.places);
        let largest = || (0..experts).map(|expert| choice.count_of(expert)).max().unwrap_or(0);
        match self {
            RowForm::Own(_) => axes.len() == 1,
            RowForm::OwnOfAll => axes == [tokens],
            RowForm::ByExpert => axes == [experts, tokens],
            RowForm::ByToken => axes == [tokens, experts],
            RowForm::Padded(_) => axes.len() == 2 && axes[0] == experts && axes[1] >= largest(),
            RowForm::ByPlace => axes == [tokens, places] || axes == [tokens * places],
            RowForm::PlacesFirst => axes == [places, tokens],
            RowForm::Sorted(_) => axes == [tokens * places],
        }
    }

    /// Which rows of its tensor are an expert's, by token and place.
    fn rows(
        self,
        choice: &ExpertChoice,
        [experts, stride]: [usize; 2],
        expert: usize,
        due: &[(usize, usize)],
    ) -> Option<Vec<usize>> {
        let order = match self {
            RowForm::Own(order) | RowForm::Padded(order) | RowForm::Sorted(order) => Some(order),
            _ => None,
        };
        let own: BTreeMap<(usize, usize), usize> = order.map_or_else(BTreeMap::new, |order| {
            choice.rows_of(expert, order).into_iter().enumerate().map(|(at, row)| (row, at)).collect()
        });
        let before = choice.rows_before(expert);
        let row = |&(token, place): &(usize, usize)| {
            let own = own.get(&(token, place)).copied();
            Some(match self {
                RowForm::Own(_) => own?,
                RowForm::OwnOfAll => token,
                RowForm::ByExpert => expert * choice.tokens() + token,
                RowForm::ByToken => token * experts + expert,
                RowForm::Padded(_) => expert * stride + own?,
                RowForm::ByPlace => token * choice.places + place,
                RowForm::PlacesFirst => place * choice.tokens() + token,
                RowForm::Sorted(_) => before + own?,
            })
        };
        due.iter().map(row).collect()
    }
}

/// The rows of an expert, in the reference's order.
#[derive(Debug)]
pub(super) struct RowIndices {
    /// Their indices in the candidate's tensor.
    pub(super) rows: Vec<usize>,
    /// Their tokens.
    pub(super) tokens: Vec<usize>,
    /// Their tokens, where the reference has a row for every token and these are fewer.
    pub(super) positions: Option<Vec<usize>>,
}

/// The candidate's rows read in one form, for a reference that has its rows in some order.
#[derive(Debug)]
pub(super) struct RowReading {
    pub(super) form: RowForm,
    /// The order of the reference's rows of an expert; `None` where it has a row for every token.
    pub(super) order: Option<TokenOrder>,
    pub(super) pieces: BTreeMap<Block, BTreeMap<usize, RowIndices>>,
    /// Whether every expert's tensor is read as it is.
    pub(super) is_as_it_stands: bool,
}

impl RowReading {
    /// All readings that the shapes allow.
    pub(super) fn all(site: &ReferenceSite, candidate: &CandidateSite, choices: &ExpertChoices) -> Vec<RowReading> {
        let forms: &[RowForm] = if matches!(candidate, CandidateSite::ByExpert(_)) { &OWN } else { &TOGETHER };
        let orders: &[Option<TokenOrder>] = match choices.is_dense(site) {
            true => &[None],
            false => &[Some(TokenOrder::Token), Some(TokenOrder::Place)],
        };
        let both = forms.iter().flat_map(|&form| orders.iter().map(move |&order| (form, order)));
        both.filter_map(|(form, order)| RowReading::in_form(form, order, site, candidate, choices)).collect()
    }

    /// Whether another one takes the same rows.
    pub(super) fn takes_same_rows(&self, other: &RowReading) -> bool {
        let rows = |reading: &RowReading| -> Vec<Vec<usize>> {
            reading.pieces.values().flat_map(BTreeMap::values).map(|piece| piece.rows.clone()).collect()
        };
        rows(self) == rows(other)
    }

    fn in_form(
        form: RowForm,
        order: Option<TokenOrder>,
        site: &ReferenceSite,
        candidate: &CandidateSite,
        choices: &ExpertChoices,
    ) -> Option<RowReading> {
        let mut pieces = BTreeMap::new();
        let mut is_as_it_stands = matches!(candidate, CandidateSite::ByExpert(_));
        for block in candidate.blocks() {
            let choice = choices.candidate.get(block)?;
            let experts = experts_of(site, candidate, block, choice);
            let mut of_block = BTreeMap::new();
            for expert in 0..experts {
                let Some(source) = candidate.source(block, expert) else { continue };
                let axes = axes(&source.shape, site)?;
                if !form.fits(&axes, choice, experts) {
                    return None;
                }
                let chosen = choice.rows_of(expert, order.unwrap_or(TokenOrder::Token));
                // Where all experts are in one tensor, rows of tokens that are sent elsewhere are not read.
                let all = order.is_none() && form == RowForm::OwnOfAll;
                let due: Vec<(usize, usize)> =
                    if all { (0..choice.tokens()).map(|token| (token, 0)).collect() } else { chosen };
                let rows = form.rows(choice, [experts, axes.last().copied()?], expert, &due)?;
                let count: usize = axes.iter().product();
                let has_others = matches!(form, RowForm::Own(_)) && count != choice.count_of(expert);
                if has_others || rows.iter().any(|&row| row >= count) {
                    return None;
                }
                is_as_it_stands &= rows.iter().copied().eq(0..count);
                let tokens: Vec<usize> = due.iter().map(|&(token, _)| token).collect();
                let is_part = order.is_none() && tokens.len() < choice.tokens();
                is_as_it_stands &= !is_part;
                let positions = is_part.then(|| tokens.clone());
                of_block.insert(expert, RowIndices { rows, tokens, positions });
            }
            pieces.insert(block.clone(), of_block);
        }
        Some(RowReading { form, order, pieces, is_as_it_stands })
    }
}

/// How many experts a block has.
fn experts_of(site: &ReferenceSite, candidate: &CandidateSite, block: &Block, choice: &ExpertChoice) -> usize {
    let named = site.blocks.values().flat_map(BTreeMap::keys).copied();
    let known = named.chain(choice.largest_expert()).max().map_or(0, |last| last + 1);
    match candidate {
        CandidateSite::ByExpert(all) => {
            all.get(block).and_then(|own| own.keys().last()).map_or(known, |last| known.max(last + 1))
        }
        // An axis can be that of the experts where it is at least as long as their numbers need, and is neither that of tokens nor that of places.
        CandidateSite::Together(all) => {
            let axes = all.get(block).and_then(|entry| axes(&entry.shape, site)).unwrap_or_default();
            match axes[..] {
                [first, second] if second == choice.tokens() && first >= known => first,
                [first, second] if first == choice.tokens() && second >= known => second,
                [first, _] if first >= known => first,
                _ => known,
            }
        }
    }
}

/// The axes in front of a row's own, without leading axes of length 1; `None` where the last axes do not make up a row.
fn axes(shape: &[usize], site: &ReferenceSite) -> Option<Vec<usize>> {
    let mut width = site.width();
    let mut axes = shape.to_vec();
    while width > 1 {
        let last = axes.pop().filter(|&last| last > 0 && width.is_multiple_of(last))?;
        width /= last;
    }
    while axes.len() > 2 && axes[0] == 1 {
        axes.remove(0);
    }
    Some(axes)
}
