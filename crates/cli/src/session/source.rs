//! Defines what a candidate is compared with: a model of a known family, or the program that a reference ran.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use firstdiff_compare::{CellsOf, Profile as NamedProfile, Report, Status, TapReport, TokenEdits, Verdict};
use firstdiff_explain::explain::{Effort, Explanation, Progress};
use firstdiff_explain::model::{self, first_and_all, name_tokens, tell_of_tokens};
use firstdiff_explain::program::{Candidate, Recording};
use firstdiff_explain::replay::{Options, Replay, Replayed};
use firstdiff_model::{Cache, Model};
use firstdiff_program::{ModelFolder, Program};
use firstdiff_trace::{Dump, Rows, Tap};

use crate::session::arithmetic::CoarserProfile;
use crate::session::reading::{ReadingArgs, TokenArgs, token};
use crate::session::{Session, is_recorded};
use crate::words::shorten;

/// A model, a candidate, and how to judge it.
#[derive(Clone, Debug, Args)]
pub(crate) struct CandidateArgs {
    /// A Hugging Face folder, a .gguf, a llama2.c .bin or a MiniMind .json; or a reference's dump that holds its program
    pub(crate) model: PathBuf,
    /// The candidate's dump
    #[arg(value_name = "CAND", required = true)]
    pub(crate) candidate: Option<PathBuf>,
    /// In what arithmetic a right candidate works: exact, f32, f16, bf16, ggml [default: what the dump says, else f32]
    #[arg(long)]
    pub(crate) profile: Option<NamedProfile>,
    /// The type the candidate keeps keys and values in: f32, f16, bf16, q8_0, e4m3 [default: what the dump says, else what fits]
    #[arg(long)]
    pub(crate) cache: Option<Cache>,
    /// The weights of a recorded program, a folder or a file [default: the folder that the program names]
    #[arg(long, value_name = "MODEL")]
    pub(crate) weights: Option<PathBuf>,
    /// Token ids the candidate was fed, where dump.json does not say: those of the prefill, or of all steps
    #[arg(long, value_delimiter = ',', value_parser = token::<u32>)]
    pub(crate) tokens: Option<Vec<u32>>,
    /// Token ids of the candidate's decode steps, where dump.json does not say
    #[arg(long, value_delimiter = ',', value_parser = token::<u32>)]
    pub(crate) decode_tokens: Option<Vec<u32>>,
    /// Token positions the candidate holds: all, last, or 0,3,7
    #[arg(long)]
    pub(crate) rows: Option<Rows>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

impl CandidateArgs {
    /// The candidate's dump.
    ///
    /// # Errors
    /// When none is given.
    pub(crate) fn candidate(&self) -> Result<&Path> {
        self.candidate.as_deref().context("no candidate's dump is named")
    }
}

/// What a candidate is compared with: a reference's dump with its program and weights, and the comparison of the two.
pub(crate) struct Source {
    program: Program,
    weights: Weights,
    session: Session,
    report: Report,
    /// Whether the tokens are known that the program was made for.
    are_tokens_known: bool,
    /// Of tokens that were told, and that the candidate was not fed: these, and how its own differ.
    told: Option<Told>,
}

/// Tokens that were told, and how those that were fed differ.
pub(crate) type Told = (Vec<u32>, TokenEdits);

/// The weights of a program.
enum Weights {
    /// Of a model that is read as a Plan.
    Model(Arc<Model>),
    /// Of a recorded program.
    Folder(Box<ModelFolder>),
}

/// All taps that a model gives in one step, in order of production.
///
/// # Errors
/// When there is no model at the path.
pub(crate) fn taps_of(path: &Path) -> Result<Vec<Tap>> {
    if is_recorded(path) {
        let program = Program::open(path).with_context(|| path.display().to_string())?;
        let first = program.taps().iter().filter(|tap| tap.step == 0);
        return Ok(first.map(|tap| Tap::named(&tap.tap)).collect());
    }
    Ok(firstdiff_model::load(path)?.plan.steps.iter().map(|step| step.tap).collect())
}

impl Source {
    /// How many taps are wrong, or have another shape than the model gives them.
    pub(crate) fn wrong(&self) -> Result<usize> {
        let is_wrong = |tap: &&Replayed| tap.report.status == Status::Diverged;
        Ok(self.replayed()?.taps.iter().filter(is_wrong).count())
    }

    /// The candidate's dump as it was judged: in the steps of its reference.
    pub(crate) fn judged(&self) -> &Dump {
        &self.session.candidate
    }

    /// Names in the candidate's dump that are no taps.
    pub(crate) fn unmapped(&self) -> &[String] {
        &self.report.unmapped
    }

    /// Names that a run lists as taps and only one side has, by the comparison with the reference.
    pub(crate) fn one_sided(&self) -> &[String] {
        &self.report.one_sided
    }

    /// Why a comparison with the reference is not at parity. What it cannot judge behind another choice of experts, the replay judges.
    pub(crate) fn not_at_parity(&self, replayed: &[Replayed]) -> Option<String> {
        let differs = |tap: &&TapReport| matches!(tap.status, Status::Diverged | Status::Downstream);
        let is_right = |tap: &Replayed| {
            tap.report.status.agrees() || tap.is_for(|why| why.is_absent() || why.is_beside_the_reference())
        };
        match &self.report.verdict {
            Verdict::Parity => None,
            // The model's own run of tokens that nobody knows is nothing to compare with.
            _ if !self.are_tokens_known => None,
            Verdict::Incomparable(_) if self.report.is_of_experts_alone && replayed.iter().all(is_right) => None,
            Verdict::Incomparable(reason) => Some(reason.clone()),
            Verdict::Diverged => self.report.taps.iter().find(differs).map(|tap| format!(
                "each operation that could be judged is right, and yet {} is not what the reference recorded: `firstdiff compare` says how far it is off",
                tap.place
            )),
        }
    }
}

/// A candidate was fed other tokens than a program: nothing of the program holds for these.
#[derive(Debug)]
pub(crate) struct OtherTokens {
    candidate: PathBuf,
    program: PathBuf,
    at: usize,
    /// How many sequences the candidate's run had.
    pub(crate) sequences: usize,
}

impl std::fmt::Display for OtherTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} names other tokens than {} from position {} on: nothing of a program holds for these; feed both the same tokens",
            self.candidate.display(),
            self.program.display(),
            self.at
        )
    }
}

impl std::error::Error for OtherTokens {}

impl Source {
    /// How many sequences the candidate's run had.
    pub(crate) fn sequences(&self) -> usize {
        self.session.batch
    }

    /// Opens all, and compares the two dumps: that shows how to read the candidate's tensors. Also returns why the profile was chosen.
    ///
    /// # Errors
    /// When something cannot be read, or the two runs are not of the same tokens.
    pub(crate) fn open(args: &CandidateArgs) -> Result<(Source, String, Option<CoarserProfile>)> {
        let (folder, candidate) = (&args.model, args.candidate()?);
        let program = Program::open(folder).with_context(|| folder.display().to_string())?;
        let path = program_weights(folder, args.weights.as_deref(), &program)?;
        let weights = ModelFolder::open(&path)
            .with_context(|| format!("the weights of {}: {}", folder.display(), path.display()))?;
        program.check_memory(&weights).with_context(|| folder.display().to_string())?;
        program.check_work(&weights).with_context(|| folder.display().to_string())?;
        let token_args = TokenArgs { tokens: ids(&args.tokens), decode_tokens: ids(&args.decode_tokens) };
        // A program is valid only for the chunks with which it was recorded.
        let (rows, cells) = (args.rows.clone(), CellsOf::Reference);
        let session = Session::open_with(folder, candidate, args.profile, rows, &args.reading, &token_args, cells)?;
        Source::beside(program, Weights::Folder(Box::new(weights)), session.with_cache(args.cache), args)
    }

    /// A model that is read as a Plan: its own run of the candidate's tokens is the reference.
    ///
    /// # Errors
    /// When something cannot be read or computed.
    pub(crate) fn of_model(
        model: Arc<Model>,
        dump: &Dump,
        options: &Options,
        told: Option<Told>,
        args: &CandidateArgs,
    ) -> Result<Source> {
        // Whether all is there is asked where all taps are known.
        let reading = ReadingArgs { sequence: None, partial: true, ..args.reading.clone() };
        let fed: Vec<i64> = options.tokens.iter().map(|&id| i64::from(id)).collect();
        let candidate = if told.is_some() { dump.clone().fed(&fed) } else { dump.clone() };
        let (program, session) = model::session(&model, &candidate, options, &reading)?;
        let source = Source::beside(program, Weights::Model(model), session, args)?;
        Ok(Source { are_tokens_known: options.tokens_are_known, told, ..source.0 })
    }

    /// Compares the two dumps of a session, the reference's of a program.
    fn beside(
        program: Program,
        weights: Weights,
        mut session: Session,
        args: &CandidateArgs,
    ) -> Result<(Source, String, Option<CoarserProfile>)> {
        let (folder, candidate) = (&args.model, args.candidate()?);
        if let Some(alignment) = session.alignment() {
            if let Some(at) = alignment.tokens_differ_at {
                return Err(OtherTokens {
                    candidate: candidate.to_owned(),
                    program: folder.clone(),
                    at,
                    sequences: session.batch,
                }
                .into());
            }
            let begins: Vec<String> = alignment.candidate.ranges().iter().map(|step| step.start.to_string()).collect();
            let note = format!(
                "the candidate took the tokens {} (steps from positions {} on): joined by position",
                alignment.candidate,
                shorten(&begins, 4)
            );
            session.warnings.push(note);
        }
        let judged = crate::session::run(session)?;
        if let Verdict::Incomparable(reason) = &judged.report.verdict
            && judged
                .report
                .taps
                .iter()
                .all(|tap| tap.layout.is_none() && !tap.is_inconclusive() && !tap.status.agrees())
        {
            bail!("incomparable: {}: {reason}", candidate.display());
        }
        let (why, loosened) = (judged.session.profile_reason.clone(), judged.session.coarser_profile);
        let (session, report) = (judged.session, judged.report);
        Ok((Source { program, weights, session, report, are_tokens_known: true, told: None }, why, loosened))
    }

    pub(crate) fn profile(&self) -> NamedProfile {
        self.session.options.profile
    }

    /// Notes on how the two were compared.
    pub(crate) fn warnings(&self) -> Vec<String> {
        // How the rows of experts were read then shows what was replayed.
        let of_experts = self.session.experts.notes();
        self.session.warnings.iter().filter(|warning| !of_experts.contains(warning)).cloned().collect()
    }

    /// Replays, and explains with `effort`.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn explained(&self, effort: &Effort, progress: Progress<'_>) -> Result<Explanation> {
        let told = self.session.reference.meta().tokens.as_deref().unwrap_or_default();
        let mut explained = self.beside_the_program(|recording, candidate| {
            Ok(match &self.weights {
                Weights::Model(model) => {
                    first_and_all(model, recording, candidate, &crate::session::ids(told)?, effort, progress)?
                }
                Weights::Folder(_) => firstdiff_explain::program::explain(recording, candidate, effort, progress)?,
            })
        })?;
        let Weights::Model(model) = &self.weights else { return Ok(explained) };
        match &self.told {
            Some((told, edits)) => tell_of_tokens(model, self.judged(), told, edits, &mut explained)?,
            None => name_tokens(model, self.judged(), told, &mut explained.findings)?,
        }
        Ok(explained)
    }

    /// Replays, and explains nothing.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn replayed(&self) -> Result<Replay> {
        self.beside_the_program(|recording, candidate| {
            Ok(firstdiff_explain::program::replay(recording, candidate, &mut |_, _| {})?)
        })
    }

    /// The candidate as the comparison read it.
    fn beside_the_program<T>(&self, judge: impl FnOnce(&Recording<'_>, &Candidate<'_>) -> Result<T>) -> Result<T> {
        let weights: &dyn firstdiff_program::Weights = match &self.weights {
            Weights::Model(model) => &model.weights,
            Weights::Folder(folder) => &**folder,
        };
        let recording = Recording { program: &self.program, weights };
        let values = self.session.in_reference_order();
        let candidate = Candidate::of(&self.session, &values, &self.report.taps);
        judge(&recording, &Candidate { are_tokens_known: self.are_tokens_known, ..candidate })
    }

    /// Its family, how many layers it has, and the width of its stream.
    pub(crate) fn sizes(&self) -> (&str, u32, usize) {
        if let Weights::Model(model) = &self.weights {
            return (&model.plan.family, model.plan.dims.layers, model.plan.dims.hidden);
        }
        let taps = || self.program.taps().iter().map(|tap| (Tap::named(&tap.tap), &tap.view));
        let layers = taps().filter_map(|(tap, _)| tap.layer).max().map_or(0, |last| last + 1);
        let stream = taps().find(|(tap, _)| tap.last_name() == "h0");
        let hidden = stream.and_then(|(_, view)| view.shape.last().copied()).unwrap_or(0);
        (self.program.model(), layers, hidden)
    }
}

/// Where the weights of a program are: `given`, else the folder that the program names.
///
/// # Errors
/// When neither is there.
pub(crate) fn program_weights(dump: &Path, given: Option<&Path>, program: &Program) -> Result<PathBuf> {
    let dump = dump.display();
    match (given, program.folder()) {
        (Some(path), _) => Ok(path.to_owned()),
        (None, Some(path)) if path.exists() => Ok(path.to_owned()),
        (None, Some(path)) => bail!(
            "{dump}: the program names {} as the folder of its weights, which is not there: say --weights MODEL",
            path.display()
        ),
        (None, None) => bail!("{dump}: the program does not say where its weights are: --weights MODEL"),
    }
}

/// Refuses weights for a model that has its own.
///
/// # Errors
/// When there are some.
pub(crate) fn refuse_weights(model: &Path, given: Option<&Path>) -> Result<()> {
    match given {
        Some(_) => bail!("--weights: {} holds no recorded program, and has its own weights", model.display()),
        None => Ok(()),
    }
}

fn ids(tokens: &Option<Vec<u32>>) -> Option<Vec<i64>> {
    tokens.as_ref().map(|ids| ids.iter().map(|&id| i64::from(id)).collect())
}
