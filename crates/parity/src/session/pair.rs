//! Defines the arguments that `compare`, `gate` and `bisect` share: two dumps and how to judge them. Opens and compares the two.

use std::path::{Path, PathBuf};

use anyhow::Result;
use firstdiff_compare::{CellsOf, Profile, Verdict, one_row_of_several};
use firstdiff_trace::{Cache, NamedRows, Rows, Site, Tap};

use crate::session::reading::{ReadingArgs, TokenArgs};
use crate::session::{Comparison, Session, Tools};

/// Two dumps and how to judge them.
#[derive(Debug)]
#[cfg_attr(feature = "command", derive(clap::Args))]
pub struct PairArgs {
    /// The reference's dump
    #[cfg_attr(feature = "command", arg(value_name = "REF"))]
    pub reference: PathBuf,
    /// The candidate's dump
    #[cfg_attr(feature = "command", arg(value_name = "CAND"))]
    pub candidate: PathBuf,
    /// In what arithmetic a right candidate works: exact, f32, f16, bf16, ggml [default: what the dumps say, else f32]
    #[cfg_attr(feature = "command", arg(long))]
    pub profile: Option<Profile>,
    /// The type in which either side keeps keys and values: f32, f16, bf16, q8_0, e4m3 [default: what the dumps say, else what they show]
    #[cfg_attr(feature = "command", arg(long))]
    pub cache: Option<Cache>,
    /// A second right run, of the candidate's class or precision: a tap may be 4 times as far from REF (NMSE) as that run is
    #[cfg_attr(feature = "command", arg(long, value_name = "REF2"))]
    pub noise: Option<PathBuf>,
    /// Take order, dependencies and tolerances from this model folder
    #[cfg_attr(feature = "command", arg(long, value_name = "MODEL"))]
    pub model: Option<PathBuf>,
    /// Token positions the candidate holds, or to compare: all, last, or 0,3,7
    #[cfg_attr(feature = "command", arg(long))]
    pub rows: Option<Rows>,
    /// How files are read that do not say everything themselves.
    #[cfg_attr(feature = "command", command(flatten))]
    pub reading: ReadingArgs,
    /// The tokens that were fed.
    #[cfg_attr(feature = "command", command(flatten))]
    pub tokens: TokenArgs,
}

impl PairArgs {
    /// Opens both dumps.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn open(&self, tools: &Tools<'_>) -> Result<Session> {
        self.open_at(tools, self.reading.sequence, self.rows.clone())
    }

    fn open_at(&self, tools: &Tools<'_>, sequence: Option<usize>, rows: Option<Rows>) -> Result<Session> {
        let reading = ReadingArgs { sequence, ..self.reading.clone() };
        let open = |other: &Path| {
            Session::open_with(
                &self.reference,
                other,
                self.profile,
                rows.clone(),
                &reading,
                &self.tokens,
                CellsOf::Both,
            )
        };
        let mut session = open(&self.candidate)?.with_cache(self.cache);
        if let Some(model) = &self.model {
            session = (tools.with_model)(session, model)?;
        }
        match &self.noise {
            Some(noise) => session.with_noise(noise, open(noise)?),
            None => Ok(session),
        }
    }

    /// Opens both dumps and compares them; of a batch every sequence, and the answer is the first that is not at parity.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn judged(&self, tools: &Tools<'_>) -> Result<Comparison> {
        let run = |session: Session, sequence| {
            let judged = (tools.run)(session)?;
            // A row that could not be compared may be the last of several on the other side.
            if self.rows.is_some() || !may_be_last_rows(&judged) {
                return Ok(judged);
            }
            let last = (tools.run)(self.open_at(tools, sequence, Some(Rows::Named(NamedRows::Last)))?)?;
            Ok(if are_last_rows(&last) { crate::session::batch::with_note(last, LAST_ROWS.to_owned()) } else { judged })
        };
        let requested = self.reading.sequence;
        let session = self.open(tools)?;
        let (batch, are_batches) = (session.batch, session.are_batches);
        let mut judged = run(session, requested)?;
        if batch == 1 || requested.is_some() {
            return Ok(judged);
        }
        let another = |index| run(self.open_at(tools, Some(index), self.rows.clone())?, Some(index));
        if are_batches != [true, true] {
            return crate::session::batch::of_one_prompt(judged, batch, are_batches[0], tools, another);
        }
        let mut shown = 0;
        for index in 1..batch {
            if judged.report.verdict != Verdict::Parity {
                break;
            }
            judged = another(index)?;
            shown = index;
        }
        if judged.report.verdict == Verdict::Diverged
            && let Some((tokens, positions)) = crate::session::batch::padded(&judged)
        {
            return Ok(crate::session::batch::into_undecided(
                judged,
                format!(
                    "a batch of {batch} sequences: sequence {shown} names {tokens} tokens and holds {positions} token positions, and differs, perhaps in its padding \
                     alone: compare the rows of its tokens (--sequence {shown} --rows 0,1,..)"
                ),
            ));
        }
        let rest = match judged.report.verdict {
            Verdict::Parity => "each was compared by itself; all are at parity, the last is shown".to_owned(),
            _ if shown == 0 => "the first is shown; the others were not looked at".to_owned(),
            _ => {
                format!("sequence {shown} is shown; those before it are at parity, those behind it were not looked at")
            }
        };
        judged.report.warnings.push(format!("a batch of {batch} sequences: {rest}").into());
        Ok(judged)
    }
}

pub const LAST_ROWS: &str =
    "one side holds one row where the other has several: compared as the last token position (--rows last)";

/// Whether nothing was concluded and one side has single rows, which may be the last of the other side's several.
pub fn may_be_last_rows(judged: &Comparison) -> bool {
    let [reference, candidate] = judged.session.recorded();
    matches!(judged.report.verdict, Verdict::Incomparable(_)) && one_row_of_several(reference, candidate)
}

/// Whether taps that agree show that single rows are the last ones. Rows that depend on no other position do not count: they are equal wherever a token
/// occurs twice.
pub fn are_last_rows(judged: &Comparison) -> bool {
    let by_position = |tap: Tap| tap.site == Site::H0 || (tap.layer == Some(0) && tap.site <= Site::KNorm);
    judged.report.taps.iter().any(|tap| tap.status.agrees() && !by_position(tap.place.tap))
}
