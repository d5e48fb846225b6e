//! What is known of a mistake, as data: what another stage asks of it is a field here, and never its id.

use firstdiff_trace::Site;

use super::param::Param;

/// A mistake that people make.
#[derive(Debug)]
pub struct Mistake {
    /// Whether its number may be any, and each row of its operation shows that one number alone.
    pub(crate) shows_one_number_a_row: bool,
    /// Its name, in reports and behind `--only`.
    pub id: &'static str,
    /// What is done wrong, in a sentence that follows the taps: "layers 0-2, q_rope and k_rope: …".
    pub what: &'static str,
    /// What to change in the engine.
    pub fix: &'static str,
    /// What to look at where a file of weights shows it; `None` where no file can.
    pub in_file: Option<&'static str>,
    /// The taps whose operation can be done so; none where only a file of weights shows it.
    pub at: &'static [Site],
    /// Whether it is made in operations that only recorded programs have.
    pub in_programs: bool,
    /// What is said beside the id: its forms, and its numbers.
    pub params: &'static [Param],
    /// What a recording must hold to show it.
    pub(crate) note: Option<&'static str>,
    /// Whether an engine may begin to make it at a later decode step.
    pub(crate) begins_later: BeginsLater,
    /// Whether what it is known by is a list of numbers: a law says what they are.
    pub(crate) is_a_list: bool,
    /// Behind which others that give the same numbers it is said.
    pub(crate) stands_behind: StandsBehind,
    /// Whether it is no mistake that has a name: an edit of one operation, said by the line of the reference.
    pub(crate) is_unlisted: bool,
    /// Whether it is no mistake, but another arithmetic: it is proved by its own numbers, and stands beside no mistake.
    pub is_another_arithmetic: bool,
}

/// Of mistakes that give the same numbers the one that is made more often is said first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandsBehind {
    /// Behind none.
    None,
    /// Behind those whose number is as plain.
    Plain,
    /// Behind all others.
    All,
}

/// Where a mistake may begin to be made behind decode steps that are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginsLater {
    /// It is made for all tokens, or none.
    Never,
    /// Another path of an engine's code may make it for some tokens: it is stated of one operation alone, whose every input is known.
    InOneOperation,
    /// It depends on how many tokens there are: positions, masks, the cache.
    WithTokens,
}

impl Mistake {
    /// Where it can be made, in words.
    pub fn places(&self) -> String {
        let mut sites = self.at.to_vec();
        sites.sort_unstable();
        match sites.len() {
            0 if self.in_programs => "operations of recorded programs".to_owned(),
            0 => "files of weights alone".to_owned(),
            all if all == Site::ALL.len() => "every tap".to_owned(),
            _ => {
                let also = self.in_programs.then_some("operations of recorded programs");
                sites.iter().map(|site| site.name()).chain(also).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// A mistake of which nothing more is to be said: what an entry leaves out.
    pub(super) const ORDINARY: Mistake = Mistake {
        shows_one_number_a_row: false,
        id: "",
        what: "",
        fix: "",
        in_file: None,
        at: &[],
        in_programs: false,
        params: &[],
        note: None,
        begins_later: BeginsLater::Never,
        is_a_list: false,
        stands_behind: StandsBehind::None,
        is_unlisted: false,
        is_another_arithmetic: false,
    };

    /// A parameter by its name.
    pub fn param(&self, name: &str) -> Option<&'static Param> {
        self.params.iter().find(|param| param.name == name)
    }

    /// Whether a parameter follows from the shape of a matrix.
    pub(crate) fn follows_from_shape(&self, name: &str) -> bool {
        self.param(name).is_some_and(|param| param.follows_from_shape)
    }
}

/// An id names one entry.
impl PartialEq for Mistake {
    fn eq(&self, other: &Mistake) -> bool {
        self.id == other.id
    }
}

/// Taps of several operations, for the entries.
pub(super) mod sites {
    use firstdiff_trace::Site;

    /// Every tap whose operation has weights.
    pub(in crate::mistakes) const WEIGHTED: &[Site] = &[
        Site::Q,
        Site::K,
        Site::V,
        Site::AttnOut,
        Site::FfnGate,
        Site::FfnUp,
        Site::FfnOut,
        Site::Logits,
        Site::H0,
        Site::AttnNorm,
        Site::QNorm,
        Site::KNorm,
        Site::FfnNorm,
        Site::FinalNorm,
    ];
    /// The products of a layer.
    pub(in crate::mistakes) const PROJECTIONS: &[Site] = WEIGHTED.split_at(7).0;
    /// Those, and the head.
    pub(in crate::mistakes) const PRODUCTS: &[Site] = WEIGHTED.split_at(8).0;
    /// Those, and the embedding.
    pub(in crate::mistakes) const MATRICES: &[Site] = WEIGHTED.split_at(9).0;
    /// What has a gain.
    pub(in crate::mistakes) const NORMS: &[Site] = WEIGHTED.split_at(9).1;
}
