//! Decides whether a layout in which a tap agrees is the dump's own, or is the mistake (such as heads merged without the transpose).
//!
//! A [`Claim`] says that a tap agrees with a witness in another layout. The witness is a reference's values (`compare`), or what the model's own operation
//! computes from the recorded inputs (`replay`, `explain`). [`resolve`] asks it for evidence for each claim: from the operations that read the tap, weighed
//! by [`Resolved::of_reader`], and from what only that witness knows. A claim without evidence may still be confirmed by taps of its kind whose layout is
//! confirmed.

use std::collections::BTreeMap;

use firstdiff_trace::Site;

use crate::graph::Place;
use crate::layout::convention::{LayoutConvention, attention_site};
use crate::layout::types::Layout;
use crate::metrics::Metrics;
use crate::tolerance::layout::CHANGE_LEAVES;

/// Evidence that a layout is the dump's own, or that it is the mistake; the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LayoutEvidence {
    /// Nothing.
    None,
    /// It is the mistake.
    Against,
    /// It is the dump's own.
    For,
}

/// A tap that agrees in a layout which still has to be confirmed.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The tap.
    pub place: Place,
    /// The layout in which it agrees.
    pub layout: Layout,
}

impl Claim {
    /// The convention of this layout for the tap's site.
    pub fn convention(&self) -> LayoutConvention {
        LayoutConvention::from_tap(self.place.tap, &self.layout)
    }
}

/// Gives the evidence for and against a claim.
pub trait Witness {
    /// The error of reading.
    type Error;

    /// Whether the layouts of other taps outweigh evidence against a claim.
    const IS_OUTWEIGHED: bool;

    /// The evidence for or against a claim. `resolved` are the claims of the taps behind it.
    ///
    /// # Errors
    /// Where something cannot be read.
    fn evidence(&mut self, claim: &Claim, resolved: &ResolvedClaims) -> Result<LayoutEvidence, Self::Error>;
}

/// Claims with their results.
#[derive(Debug, Default)]
pub struct ResolvedClaims(BTreeMap<Place, (Claim, LayoutEvidence)>);

impl ResolvedClaims {
    /// The result for a tap's claim; `None` where the tap has none, or it is not decided yet.
    pub fn evidence(&self, place: Place) -> Option<LayoutEvidence> {
        self.0.get(&place).map(|(_, evidence)| *evidence)
    }

    /// Whether a tap's agreement holds: it needed no claim, or its claim was confirmed.
    pub fn agreement_holds(&self, place: Place) -> bool {
        self.evidence(place).is_none_or(|evidence| evidence == LayoutEvidence::For)
    }

    /// The claims with this result.
    pub fn claims_with(&self, evidence: LayoutEvidence) -> impl Iterator<Item = &Claim> {
        self.0.values().filter(move |(_, own)| *own == evidence).map(|(claim, _)| claim)
    }

    /// The evidence that an operation which agrees, with its result in the layout `theirs`, gives for the layout of its input. It cannot have computed that
    /// from misplaced values, unless it treats each value by itself and its result is misplaced in the same way.
    pub fn of_reader(&self, claim: &Claim, reader: Place, theirs: &Layout) -> LayoutEvidence {
        let site = attention_site(reader.tap);
        match works_by_value_or_head(site) && LayoutConvention::new(site, theirs).is_same_order(&claim.convention()) {
            true => self.evidence(reader).unwrap_or(LayoutEvidence::For),
            false => LayoutEvidence::For,
        }
    }
}

/// Decides every claim. They are given in forward order; the last is decided first.
///
/// # Errors
/// Those of the witness.
pub fn resolve<W: Witness>(claims: Vec<Claim>, witness: &mut W) -> Result<ResolvedClaims, W::Error> {
    let mut resolved = ResolvedClaims::default();
    for claim in claims.into_iter().rev() {
        let evidence = witness.evidence(&claim, &resolved)?;
        resolved.0.insert(claim.place, (claim, evidence));
    }
    let known: Vec<LayoutConvention> = resolved.claims_with(LayoutEvidence::For).map(Claim::convention).collect();
    for (claim, evidence) in resolved.0.values_mut() {
        let is_open = *evidence == LayoutEvidence::None || W::IS_OUTWEIGHED;
        if is_open && known.iter().any(|known| claim.convention().follows_from(known)) {
            *evidence = LayoutEvidence::For;
        }
    }
    Ok(resolved)
}

/// Whether a layout explains an error: the NMSE in that layout (`in_layout`) is much smaller than the NMSE of the tensor as stored (`as_stored`). A constant tensor is the same in any order.
pub fn explains(in_layout: &Metrics, as_stored: Option<f64>) -> bool {
    let less = |nmse: f64| as_stored.is_none_or(|was| nmse <= CHANGE_LEAVES * was);
    in_layout.correlation().is_some() && in_layout.nmse().is_some_and(less)
}

/// Whether an operation treats each value, or each head of a position, by itself: misplaced inputs give misplaced results.
fn works_by_value_or_head(site: Site) -> bool {
    use Site::{FfnAct, H, HAttn, KNorm, Probs, QNorm, RouterProbs, Scores};
    matches!(site, QNorm | KNorm | Scores | Probs | RouterProbs | FfnAct | HAttn | H)
}

#[cfg(test)]
mod tests {
    use firstdiff_trace::Tap;

    use super::*;

    /// Gives each tap the evidence listed for it; for others, that of their norm as the reader.
    struct Weighed<const OUTWEIGHED: bool>(Vec<(Site, LayoutEvidence)>);

    impl<const OUTWEIGHED: bool> Witness for Weighed<OUTWEIGHED> {
        type Error = std::convert::Infallible;

        const IS_OUTWEIGHED: bool = OUTWEIGHED;

        fn evidence(&mut self, claim: &Claim, resolved: &ResolvedClaims) -> Result<LayoutEvidence, Self::Error> {
            let site = claim.place.tap.site;
            Ok(match self.0.iter().find(|(of, _)| *of == site) {
                Some((_, evidence)) => *evidence,
                None => resolved.of_reader(claim, place(Site::QNorm), &claim.layout),
            })
        }
    }

    fn place(site: Site) -> Place {
        Place { step: 0, tap: Tap::layer(0, site) }
    }

    /// The results for these taps' claims, all of them with heads first.
    fn resolved<const OUTWEIGHED: bool>(
        sites: &[Site],
        evidence_of: &[(Site, LayoutEvidence)],
    ) -> Vec<Option<LayoutEvidence>> {
        let claim = |site: &Site| Claim { place: place(*site), layout: Layout::Permuted(vec![1, 0, 2]) };
        let claims = sites.iter().map(claim).collect();
        let Ok(resolved) = resolve(claims, &mut Weighed::<OUTWEIGHED>(evidence_of.to_vec()));
        sites.iter().map(|site| resolved.evidence(place(*site))).collect()
    }

    #[test]
    fn a_reader_that_takes_each_value_by_itself_says_what_is_said_of_it() {
        for evidence in [LayoutEvidence::For, LayoutEvidence::Against, LayoutEvidence::None] {
            let found = resolved::<false>(&[Site::Q, Site::QNorm], &[(Site::QNorm, evidence)]);
            assert_eq!(found, [Some(evidence); 2]);
        }
    }

    #[test]
    fn what_nothing_speaks_for_is_as_its_like_are() {
        let (v, context) = ((Site::V, LayoutEvidence::None), (Site::Context, LayoutEvidence::None));
        let found =
            resolved::<false>(&[Site::Q, Site::V, Site::Context], &[(Site::Q, LayoutEvidence::For), v, context]);
        // A context in the order of the heads may be the mistake.
        assert_eq!(found, [LayoutEvidence::For, LayoutEvidence::For, LayoutEvidence::None].map(Some));
    }

    #[test]
    fn evidence_against_is_outweighed_where_it_is_weak() {
        let evidence_of = [(Site::Q, LayoutEvidence::For), (Site::K, LayoutEvidence::Against)];
        assert_eq!(resolved::<true>(&[Site::Q, Site::K], &evidence_of)[1], Some(LayoutEvidence::For));
        assert_eq!(resolved::<false>(&[Site::Q, Site::K], &evidence_of)[1], Some(LayoutEvidence::Against));
    }
}
