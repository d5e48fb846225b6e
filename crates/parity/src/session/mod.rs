//! Opens two dumps, chooses the arithmetic and the cells in which they are compared, and compares them.

pub mod arithmetic;
pub mod batch;
pub mod embedding;
pub mod incomplete;
pub mod noise;
pub mod pair;
pub mod reading;
pub mod remote;
pub mod streams;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use firstdiff_compare::{
    Aligned, CellsOf, ChunkAlignment, ExpertRows, Graph, InReferenceOrder, Options, Profile, Report, SeenPadding,
    ShownCache, TapReport, TokenEdits, Verdict, Warning, align, beyond_the_profile, compare, graph_of, own_rows_by,
    shown_cache, sign_of_error, split_experts, token_edits,
};
use firstdiff_trace::{Cache, Dump, Rows, Site, Tap};

use crate::cause::Diagnosis;
use crate::session::arithmetic::{CoarserProfile, ProfileChoice, declared_profile};
use crate::session::batch::OneSequence;
use crate::session::incomplete::Incomplete;
use crate::session::noise::SecondRun;
use crate::session::reading::{ReadingArgs, TokenArgs, refuse_rows};

/// Two dumps, opened and ready to be compared.
#[derive(Debug)]
pub struct Session {
    /// The reference; its cells, where the two were aligned by token position.
    pub reference: Dump,
    /// The candidate, or its cells.
    pub candidate: Dump,
    /// The order of taps, and what each reads.
    pub graph: Graph,
    /// Profile, rows, tolerances.
    pub options: Options,
    /// Why this profile.
    pub profile_reason: String,
    /// Whether only the candidate's own metadata asks for a profile as coarse as this.
    pub coarser_profile: Option<CoarserProfile>,
    /// Notes beside the report's own warnings.
    pub warnings: Vec<String>,
    /// The model of both, where one is given.
    pub model: Option<PathBuf>,
    /// How many sequences were run at once, of which this is one.
    pub batch: usize,
    /// Whether the reference, and the candidate, are such batches.
    pub are_batches: [bool; 2],
    /// Probabilities of keys of padding in the candidate.
    pub padding: Vec<SeenPadding>,
    /// Whether padding was cut off it.
    pub is_padded: bool,
    /// How both were read.
    pub reading: ReadingArgs,
    /// How the type of the K/V cache is known.
    pub cache_source: CacheSource,
    /// The second right run, where there is one.
    pub noise: Option<SecondRun>,
    /// The forms in which the rows of the candidate's experts may be stored.
    pub experts: ExpertRows,
}

/// How the type of the K/V cache is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSource {
    /// Neither declared nor shown: keys and values are taken as they are.
    Unknown,
    /// By --cache.
    Argument,
    /// By the reference's dump.json, or by both.
    Declared,
    /// Only by the candidate's dump.json.
    ByCandidate,
    /// Not declared, but shown by the candidate (or the reference).
    Assumed(&'static str),
}

/// A report and the session it comes from.
#[derive(Debug)]
pub struct Comparison {
    /// What was compared.
    pub session: Session,
    /// The result.
    pub report: Report,
    /// What the model shows about the first difference.
    pub why: Option<ByModel>,
    /// All taps that the reference's recorder gives in one step, where that is known.
    pub recorder_gives: Option<Vec<Tap>>,
}

/// What a model shows about the first difference between two dumps.
#[derive(Debug)]
pub enum ByModel {
    /// The candidate's operation is wrong in itself, and this is the cause, with what to change.
    Cause(Box<Diagnosis>),
    /// The candidate's operation is right for its inputs.
    Right,
}

impl Session {
    /// Opens two dumps. The profile is the one given, else the coarser of those that the dumps declare, else f32.
    ///
    /// # Errors
    /// When a dump cannot be read, or declares an unknown precision.
    pub fn open(reference: &Path, candidate: &Path, profile: Option<Profile>, rows: Option<Rows>) -> Result<Session> {
        let (reading, tokens) = (ReadingArgs::default(), TokenArgs::default());
        Session::open_with(reference, candidate, profile, rows, &reading, &tokens, CellsOf::Both)
    }

    /// The same, with what the files do not declare, and with the cells in which two runs of different chunks are compared. Of a batch one sequence is
    /// compared: the requested one, else the first.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_with(
        reference: &Path,
        candidate: &Path,
        profile: Option<Profile>,
        rows: Option<Rows>,
        reading: &ReadingArgs,
        token_args: &TokenArgs,
        cells: CellsOf,
    ) -> Result<Session> {
        let both = reading.open_both(reference, candidate)?;
        Session::of_dumps(both, profile, rows, reading, token_args, cells)
    }

    /// The same of two dumps that are open: the reference's and the candidate's.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn of_dumps(
        [reference, candidate]: [Dump; 2],
        profile: Option<Profile>,
        rows: Option<Rows>,
        reading: &ReadingArgs,
        token_args: &TokenArgs,
        cells: CellsOf,
    ) -> Result<Session> {
        let (mut reference, mut candidate) = (token_args.add_tokens(reference)?, token_args.add_tokens(candidate)?);
        (reference, candidate) = crate::session::streams::resolve(reference, candidate)?;
        own_rows_by(&reference, &mut candidate)?;
        let OneSequence { reference, mut candidate, padding, is_padded, batch, are_batches } =
            OneSequence::cut_out(reference, candidate, reading.sequence)?;
        let experts = split_experts(&reference, &mut candidate)?;
        refuse_rows(rows.as_ref(), &[&reference, &candidate])?;
        let mut notes = notes(&[&reference, &candidate]);
        let Aligned { reference, candidate, alignment } = align(cells, reference, candidate, rows.as_ref())?;
        let choice = match profile {
            Some(profile) => ProfileChoice::by_user(profile),
            None => declared_profile(&reference, &candidate)?,
        };
        let graph = graph_of(&reference, &candidate);
        let only_rows = rows.as_ref().filter(|r| !r.is_all());
        let mut warnings: Vec<String> =
            only_rows.map(|_| "only the token positions of --rows were compared".to_owned()).into_iter().collect();
        let left_out: usize = alignment
            .iter()
            .flat_map(|alignment| alignment.runs.iter().zip([&reference, &candidate]))
            .map(count_not_cut)
            .sum();
        if left_out > 0 {
            notes.push(format!(
                "not checked: {left_out} taps known in part: the two runs took the tokens in other chunks"
            ));
        }
        warnings.extend(notes);
        warnings.extend(experts.notes().iter().cloned());
        warnings.extend(
            choice
                .coarser_profile
                .map(CoarserProfile::note)
                .or_else(|| choice.note_on_unshown_type([&reference, &candidate])),
        );
        // Once aligned, they hold only the requested rows.
        let rows = rows.filter(|_| alignment.is_none());
        let declared = [&reference, &candidate].map(|dump| {
            declared_cache(dump).unwrap_or_else(|warning| {
                warnings.push(warning);
                None
            })
        });
        let cache_source = match declared {
            [None, None] => CacheSource::Unknown,
            [None, Some(_)] => CacheSource::ByCandidate,
            [Some(_), _] => CacheSource::Declared,
        };
        let cache = declared.into_iter().flatten().max().unwrap_or_default();
        let open_rows = experts.undecided();
        let options = Options { rows, alignment, cache, open_rows, ..Options::new(choice.profile) };
        let session = Session::new(reference, candidate, graph, options, &choice);
        Ok(Session {
            warnings,
            padding,
            is_padded,
            batch,
            are_batches,
            cache_source,
            reading: reading.clone(),
            experts,
            ..session
        })
    }

    /// Two dumps of one sequence each, without a model.
    pub fn new(reference: Dump, candidate: Dump, graph: Graph, options: Options, choice: &ProfileChoice) -> Session {
        Session {
            reference,
            candidate,
            graph,
            options,
            profile_reason: choice.reason.clone(),
            coarser_profile: choice.coarser_profile,
            warnings: Vec::new(),
            model: None,
            batch: 1,
            are_batches: [false; 2],
            padding: Vec::new(),
            is_padded: false,
            reading: ReadingArgs::default(),
            cache_source: CacheSource::Unknown,
            noise: None,
            experts: ExpertRows::default(),
        }
    }

    /// The session with the type of the K/V cache, where it is given.
    pub fn with_cache(mut self, cache: Option<Cache>) -> Session {
        if let Some(cache) = cache {
            (self.options.cache, self.cache_source) = (cache, CacheSource::Argument);
        }
        self
    }

    /// The type of the K/V cache, where it is declared or shown.
    pub fn known_cache(&self) -> Option<Cache> {
        (self.cache_source != CacheSource::Unknown).then_some(self.options.cache)
    }

    /// The side that shows the type of a cache that is not declared.
    pub fn cache_shown_by(&self) -> Option<&'static str> {
        if let CacheSource::Assumed(side) = self.cache_source { Some(side) } else { None }
    }

    /// The candidate's values as the reference has them.
    pub fn in_reference_order(&self) -> InReferenceOrder<'_> {
        InReferenceOrder::new(&self.reference, &self.candidate, &self.graph, &self.options)
    }

    /// The type of the K/V cache, where it is not that of the arithmetic.
    pub fn cache_in_words(&self) -> String {
        match self.options.cache {
            Cache::F32 => String::new(),
            cache => format!(", K/V cache in {cache}"),
        }
    }

    /// What a verdict must mention about a cache that is not declared.
    pub fn assumed_cache(&self) -> String {
        let cache = self.options.cache;
        match self.cache_source {
            CacheSource::Assumed(side) => {
                format!("; that takes a K/V cache in {cache}, which is not stated, but the {side} shows it")
            }
            CacheSource::ByCandidate if cache != Cache::F32 => {
                format!("; with a K/V cache in {cache}, as the candidate's dump.json alone says")
            }
            _ => String::new(),
        }
    }

    /// A note on a declared cache that nothing recorded shows. Where recorded products of keys and values show no cache, one that only --cache or the
    /// candidate declares excuses nothing.
    fn check_cache(&mut self) -> Result<Option<String>> {
        let (cache, [reference, candidate]) = (self.options.cache, self.recorded());
        let is_told =
            matches!(self.cache_source, CacheSource::Argument | CacheSource::Declared | CacheSource::ByCandidate);
        if !is_told || beyond_the_profile(self.options.profile, cache) == Cache::F32 {
            return Ok(None);
        }
        let shown = [shown_cache(candidate, reference)?, shown_cache(reference, candidate)?];
        let is_of_both = self.cache_source == CacheSource::Declared;
        let (why, is_left_out) = match shown[0] {
            _ if shown.contains(&ShownCache::Is(cache)) => return Ok(None),
            ShownCache::Is(other) => (format!("the candidate's keys, values and products show {other}"), false),
            ShownCache::None => {
                let why = "the candidate's keys, values and products come out without such rounding".to_owned();
                (why, !is_of_both && !matches!(shown[1], ShownCache::Is(_)))
            }
            ShownCache::Unknown if is_of_both => return Ok(None),
            ShownCache::Unknown => ("too little was recorded of keys, values and products".to_owned(), false),
        };
        let how = if is_left_out { "told, and left out" } else { "allowed for, as told" };
        self.options.cache = if is_left_out { Cache::F32 } else { cache };
        Ok(Some(format!("a K/V cache in {cache} is {how}: nothing recorded shows one: {why}")))
    }

    /// Where the type of the K/V cache is not declared and the two differ: takes the type that a side shows, if the two then differ no earlier.
    fn assume_cache(&mut self, report: &mut Report) -> Result<()> {
        let (CacheSource::Unknown, Some(first)) = (self.cache_source, &report.first) else { return Ok(()) };
        let [reference, candidate] = self.recorded();
        let shown = match shown_cache(candidate, reference)? {
            ShownCache::Is(cache) => Some((cache, "candidate")),
            _ => match shown_cache(reference, candidate)? {
                ShownCache::Is(cache) => Some((cache, "reference")),
                _ => None,
            },
        };
        // Size alone proves no cache.
        if let Some((cache, side)) = shown {
            let options = Options { cache, judged: None, ..self.options.clone() };
            let again = compare(&self.reference, &self.candidate, &self.graph, &options, &mut |_, _| {})?;
            if again.first.as_ref().is_none_or(|later| later.index >= first.index) {
                *report = again;
                (self.options.cache, self.cache_source) = (cache, CacheSource::Assumed(side));
            }
        }
        Ok(())
    }

    /// How the two were aligned by token position, where their chunks differ.
    pub fn alignment(&self) -> Option<&ChunkAlignment> {
        self.options.alignment.as_deref()
    }

    /// The two dumps as they were recorded.
    pub fn recorded(&self) -> [&Dump; 2] {
        match self.alignment() {
            Some(alignment) => alignment.runs.each_ref().map(|run| &**run),
            None => [&self.reference, &self.candidate],
        }
    }

    /// Compares.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn run(self) -> Result<Comparison> {
        self.run_with(&mut |_, _| {}, |_, _, _| None)
    }

    /// Compares. `progress` is called before each tap; `why` gives the cause of a first difference, which may be other tokens.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn run_with(
        mut self,
        progress: &mut dyn FnMut(usize, usize),
        why: impl FnOnce(&Session, &Report, Option<(&TokenEdits, &TapReport)>) -> Option<ByModel>,
    ) -> Result<Comparison> {
        let unshown = self.check_cache()?;
        let mut report = self.compared(&self.options, progress)?;
        self.assume_cache(&mut report)?;
        report.warnings.extend(unshown.map(Warning::Note));
        report.warnings.extend(self.warnings.iter().cloned().map(Warning::Note));
        let [reference, candidate] = self.recorded();
        let edits = if report.verdict == Verdict::Parity { None } else { token_edits(reference, candidate)? };
        let h0 = Tap { layer: None, site: Site::H0 };
        let there = report.first.as_ref().map(|first| &report.taps[first.index]).filter(|tap| tap.place.tap == h0);
        let fed = edits.as_ref().filter(|edits| edits.is_proved).zip(there);
        let why = why(&self, &report, fed);
        if let Some(edits) = edits.as_ref().filter(|_| fed.is_none() || why.is_none()) {
            let or = ", or is padded there, or its rows of h0 are wrong (`explain MODEL` looks them up in the table)";
            let or = if edits.is_proved { "" } else { or };
            report.warnings.push(format!("by ids or rows of h0 the candidate was fed {edits}{or}").into());
        }
        Ok(Comparison { session: self, report, why, recorder_gives: None })
    }
}

impl Session {
    /// Compares, and never reports parity where taps may be missing.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn compared(&self, options: &Options, progress: &mut dyn FnMut(usize, usize)) -> Result<Report> {
        let mut report = compare(&self.reference, &self.candidate, &self.graph, options, progress)?;
        let incomplete = Incomplete::find_in(&self.sides(), Some(report.taps.len()));
        let verdict = incomplete.verdict(report.verdict.clone(), self.reading.partial);
        if verdict == report.verdict {
            report.warnings.extend(incomplete.notes().cloned().map(Warning::Note));
        }
        report.verdict = verdict;
        Ok(report)
    }

    /// Both dumps as they were recorded, with their names.
    pub fn sides(&self) -> [(&'static str, &Dump); 2] {
        let [reference, candidate] = self.recorded();
        [("the reference", reference), ("the candidate", candidate)]
    }
}

/// What had to be assumed to read the dumps, each assumption once.
pub fn notes(dumps: &[&Dump]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for note in dumps.iter().flat_map(|dump| dump.notes()) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    notes
}

/// How many taps of a run that was cut into cells are known in part, and were not cut.
fn count_not_cut((run, now): (&Arc<Dump>, &Dump)) -> usize {
    let entries = now.entries().iter().map(|entry| entry.tap);
    let recorded: BTreeSet<Tap> = entries.chain(now.parts().iter().map(|part| part.tap)).collect();
    run.parts().iter().filter(|part| !recorded.contains(&part.tap)).count()
}

pub fn ids(tokens: &[i64]) -> Result<Vec<u32>> {
    tokens.iter().map(|&t| u32::try_from(t).with_context(|| format!("token id {t} is none"))).collect()
}

/// The type of K/V cache that `dump` declares; or a message about an unknown name.
pub fn declared_cache(dump: &Dump) -> Result<Option<Cache>, String> {
    let Some(declared) = &dump.meta().cache else { return Ok(None) };
    let unknown =
        |what: String| format!("{}: cache {what}: it is not known how that rounds (--cache)", dump.path().display());
    declared.parse().map(Some).map_err(unknown)
}

/// Whether a path is a dump with its recorded program.
pub fn is_recorded(path: &Path) -> bool {
    path.join("program.json").is_file()
}

/// What the command adds to this crate: models, and causes.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// Takes order, dependencies and tolerances from a model.
    pub with_model: fn(Session, &Path) -> Result<Session>,
    /// Compares.
    pub run: &'a dyn Fn(Session) -> Result<Comparison>,
    /// A sign that a sequence of another prompt, which is not compared, is no right run.
    pub sign_of_error: fn(&Session) -> Result<Option<String>>,
}

impl Tools<'static> {
    /// Without models and causes: none is read or searched.
    pub const NONE: Tools<'static> = Tools {
        with_model: |_, model| bail!("{}: models are read by the command firstdiff alone", model.display()),
        run: &Session::run,
        sign_of_error: |session| Ok(sign_of_error(session.recorded()[1])?),
    };
}
