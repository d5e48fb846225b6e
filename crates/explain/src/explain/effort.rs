//! Says how far a search for causes goes.

use crate::mistakes::Mistake;

/// How far to look.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The ids to try; all of the catalogue where empty.
    pub only: Vec<String>,
    /// Mistakes at once between two recorded taps, at most.
    pub faults: usize,
    /// Seconds of processor time in each stretch, after which no further combination is begun.
    pub seconds: f64,
    /// Only what takes a moment: operations that are wrong by themselves, and single mistakes; no stretch, no very large matrix.
    pub quick: bool,
    /// The width up to which a model is small: one evaluation of a wider one keeps all threads busy, so many mistakes are carried through its matrices
    /// at once, on its first tokens before all of them.
    pub small: usize,
    /// Which of these ids one pass looks for.
    pub pass: Pass,
}

/// Which ids are looked for, of those of an [`Effort`].
#[derive(Clone, Debug, Default)]
pub enum Pass {
    /// All.
    #[default]
    All,
    /// These alone.
    Of(Vec<&'static str>),
    /// All but these.
    Without(Vec<&'static str>),
}

impl Effort {
    /// What takes a moment.
    pub fn quick() -> Effort {
        Effort { faults: 1, seconds: 1.0, quick: true, ..Effort::default() }
    }

    /// Whether a mistake is one of those to try.
    pub(crate) fn tries(&self, mistake: &Mistake) -> bool {
        let is_of_the_pass = match &self.pass {
            Pass::All => true,
            Pass::Of(ids) => ids.contains(&mistake.id),
            Pass::Without(ids) => !ids.contains(&mistake.id),
        };
        self.allows(mistake) && is_of_the_pass
    }

    /// Whether a mistake may be looked for, in whichever pass.
    pub(crate) fn allows(&self, mistake: &Mistake) -> bool {
        self.only.is_empty() || self.only.iter().any(|id| id == mistake.id)
    }
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { only: Vec::new(), faults: 4, seconds: 60.0, quick: false, small: 1024, pass: Pass::All }
    }
}
