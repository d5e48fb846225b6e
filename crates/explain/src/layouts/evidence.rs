//! What speaks for a layout in which a tap comes out, or against it? What the model's own operations give of the tap, read in that layout and as it stands.

use firstdiff_compare::layout::{Claim, LayoutEvidence, ResolvedClaims, Witness};
use firstdiff_compare::{LayoutConvention, Place};
use firstdiff_trace::Site;

use crate::layouts::{Shown, readers};
use crate::replay::{Done, ReplayError, Replayed, Run};

/// The model's own values, as a round of judging gave them.
pub(super) struct OwnValues<'s, 'a> {
    pub(super) run: &'s mut Run<'a>,
    pub(super) shown: &'s Shown,
    pub(super) taps: &'s [Replayed],
}

impl Witness for OwnValues<'_, '_> {
    type Error = ReplayError;

    // What comes out of a tap as it stands was made of it as it stands.
    const IS_OUTWEIGHED: bool = false;

    fn evidence(&mut self, claim: &Claim, resolved: &ResolvedClaims) -> Done<LayoutEvidence> {
        let mut evidence = LayoutEvidence::None;
        let (agree, differ): (Vec<_>, Vec<_>) =
            readers(claim.place, self.taps).map(|t| &t.report).partition(|report| report.status.agrees());
        for reader in &agree {
            let theirs = self.shown.agree.iter().find(|a| a.place == reader.place);
            evidence = evidence.max(match theirs {
                Some(theirs) => resolved.of_reader(claim, reader.place, &theirs.layout),
                None => LayoutEvidence::For,
            });
        }
        if evidence == LayoutEvidence::None && self.works_as_it_stands(claim.place, differ.iter().map(|r| r.place))? {
            evidence = LayoutEvidence::Against;
        }
        let own = claim.convention();
        let shows_the_same = |other: LayoutConvention| own.shows_the_same(&other);
        let mut others = self.shown.agree.iter().filter(|a| resolved.agreement_holds(a.place));
        // Rows are looked up whole: no mistake makes another order of axes of an embedding.
        let is_own = claim.place.tap.site == Site::H0
            || own.is_of_rows_alone() && agree.is_empty() && differ.is_empty()
            || others.any(|a| shows_the_same(LayoutConvention::new(a.place.tap.site, &a.layout)));
        Ok(if evidence == LayoutEvidence::None && is_own { LayoutEvidence::For } else { evidence })
    }
}

impl OwnValues<'_, '_> {
    /// Whether one of the `readers` that do not come out of a tap in the layout it has now does, of the tap as it stands.
    fn works_as_it_stands(&mut self, place: Place, readers: impl Iterator<Item = Place>) -> Done<bool> {
        let kept = self.run.swap_layout(place, None);
        let mut works = false;
        if kept.is_some() && self.run.looked_at(place, None, |layouts| layouts.as_it_stands().is_ok())? == Some(true) {
            for reader in readers {
                works |= self.run.comes_out(reader)?;
            }
        }
        self.run.swap_layout(place, kept);
        self.run.forget();
        Ok(works)
    }
}
