//! What is compared with what, and in whose arithmetic? Opens both dumps, and a model where one is given.

pub(crate) mod arithmetic;
pub(crate) mod batch;
pub(crate) mod cause;
pub(crate) mod embedding;
pub(crate) mod given;
pub(crate) mod incomplete;
pub(crate) mod noise;
pub(crate) mod own_program;
pub mod pair;
pub(crate) mod reading;
pub(crate) mod remote;
pub(crate) mod replay;
pub(crate) mod source;
pub(crate) mod streams;
pub(crate) mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use firstdiff_compare::metrics::Squares;
use firstdiff_compare::{
    Aligned, CellsOf, ChunkAlignment, ExpertRows, Graph, InReferenceOrder, Node, Options, Place, Profile, Report,
    ShownCache, TapReport, Verdict, Warning, align, beyond_the_profile, compare, graph_of, number, own_rows_by,
    shown_cache, split_experts, token_edits,
};
use firstdiff_explain::program::Candidate;
use firstdiff_explain::replay::SeenPadding;
use firstdiff_model::{Model, Prompt, TapValues};
use firstdiff_trace::{Cache, Dump, Rows, Site, Tap};

use crate::session::arithmetic::{Choice, Loosened, declared_profile};
use crate::session::batch::OneSequence;
use crate::session::cause::Why;
use crate::session::given::arithmetic;
use crate::session::incomplete::Incomplete;
use crate::session::noise::Second;
use crate::session::reading::{ReadingArgs, TokenArgs, refuse_rows};

/// Two dumps, opened and ready to be compared.
#[derive(Debug)]
pub struct Session {
    /// The reference; its cells, where the two were aligned by token position.
    pub reference: Dump,
    /// The candidate, or its cells.
    pub candidate: Dump,
    /// Who reads whom.
    pub graph: Graph,
    /// Profile, rows, tolerances.
    pub options: Options,
    /// Why this profile.
    pub profile_reason: String,
    /// Whether only the candidate's own word asks for a profile as coarse as this.
    pub loosened: Option<Loosened>,
    /// What should be said beside the report's own warnings.
    pub warnings: Vec<String>,
    /// The model of both, where one is given.
    pub model: Option<PathBuf>,
    /// How many sequences were run at once, of which this is one.
    pub batch: usize,
    /// Whether the reference, and the candidate, are of so many.
    pub(crate) are_batches: [bool; 2],
    /// Probabilities of keys of padding in the candidate.
    pub(crate) padding: Vec<SeenPadding>,
    /// Whether padding was cut off it.
    pub(crate) is_padded: bool,
    /// How both were read.
    pub(crate) reading: ReadingArgs,
    /// How the type of the K/V cache is known.
    pub(crate) cache_said: CacheSaid,
    /// The second right run, where there is one.
    pub(crate) noise: Option<Second>,
    /// In which forms the rows of the candidate's experts may stand.
    pub experts: ExpertRows,
}

/// How the type of the K/V cache is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheSaid {
    /// Nobody says, and nothing shows one: keys and values are as they are.
    Nobody,
    /// By --cache.
    Asked,
    /// By the reference's dump.json, or by both.
    Declared,
    /// By the candidate's dump.json alone.
    ByCandidate,
    /// Nobody says, and the candidate (or the reference) shows it.
    Assumed(&'static str),
}

/// A report and the session it comes from.
#[derive(Debug)]
pub struct Judged {
    /// What was compared.
    pub session: Session,
    /// What came out.
    pub report: Report,
    /// What the model says of the first difference.
    pub why: Option<Why>,
}

impl Session {
    /// Opens two dumps. The profile is the one given, else the coarser of what the dumps say, else f32.
    ///
    /// # Errors
    /// When a dump cannot be read, or names a precision that is none.
    pub fn open(reference: &Path, candidate: &Path, profile: Option<Profile>, rows: Option<Rows>) -> Result<Session> {
        let (reading, told) = (ReadingArgs::default(), TokenArgs::default());
        Session::open_with(reference, candidate, profile, rows, &reading, &told, CellsOf::Both)
    }

    /// The same, told what the files do not say, and in which cells two that took the tokens in other chunks are compared. Of a batch one sequence is
    /// compared: the one asked for, else the first.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_with(
        reference: &Path,
        candidate: &Path,
        profile: Option<Profile>,
        rows: Option<Rows>,
        reading: &ReadingArgs,
        told: &TokenArgs,
        cells: CellsOf,
    ) -> Result<Session> {
        let [reference, candidate] = reading.open_both(reference, candidate)?;
        let (mut reference, mut candidate) = (told.tell(reference)?, told.tell(candidate)?);
        (reference, candidate) = crate::session::streams::told(reference, candidate)?;
        own_rows_by(&reference, &mut candidate)?;
        let OneSequence { reference, mut candidate, padding, is_padded, batch, are_batches } =
            OneSequence::cut_out(reference, candidate, reading.sequence)?;
        let experts = split_experts(&reference, &mut candidate)?;
        refuse_rows(rows.as_ref(), &[&reference, &candidate])?;
        let mut notes = notes(&[&reference, &candidate]);
        let Aligned { reference, candidate, alignment } = align(cells, reference, candidate, rows.as_ref())?;
        let choice = match profile {
            Some(profile) => Choice::asked(profile),
            None => declared_profile(&reference, &candidate)?,
        };
        let graph = graph_of(&reference, &candidate);
        let only_rows = rows.as_ref().filter(|r| !r.is_all());
        let mut warnings: Vec<String> =
            only_rows.map(|_| "only the token positions of --rows were compared".to_owned()).into_iter().collect();
        let left_out: usize = alignment
            .iter()
            .flat_map(|alignment| alignment.runs.iter().zip([&reference, &candidate]))
            .map(left_out)
            .sum();
        if left_out > 0 {
            notes.push(format!(
                "not checked: {left_out} taps known in part: the two runs took the tokens in other chunks"
            ));
        }
        warnings.extend(notes);
        warnings.extend(experts.notes().iter().cloned());
        warnings.extend(choice.loosened.map(Loosened::note).or_else(|| choice.unshown([&reference, &candidate])));
        // ChunkAlignment together, they hold no other rows than those asked for.
        let rows = rows.filter(|_| alignment.is_none());
        let declared = [&reference, &candidate].map(|dump| {
            declared_cache(dump).unwrap_or_else(|warning| {
                warnings.push(warning);
                None
            })
        });
        let cache_said = match declared {
            [None, None] => CacheSaid::Nobody,
            [None, Some(_)] => CacheSaid::ByCandidate,
            [Some(_), _] => CacheSaid::Declared,
        };
        let cache = declared.into_iter().flatten().max().unwrap_or_default();
        let open_rows = experts.undecided();
        let options = Options { rows, alignment, cache, open_rows, ..Options::new(choice.profile) };
        let session = Session::of(reference, candidate, graph, options, &choice);
        Ok(Session {
            warnings,
            padding,
            is_padded,
            batch,
            are_batches,
            cache_said,
            reading: reading.clone(),
            experts,
            ..session
        })
    }

    /// Two dumps of one sequence each, without a model.
    pub(crate) fn of(reference: Dump, candidate: Dump, graph: Graph, options: Options, choice: &Choice) -> Session {
        Session {
            reference,
            candidate,
            graph,
            options,
            profile_reason: choice.reason.clone(),
            loosened: choice.loosened,
            warnings: Vec::new(),
            model: None,
            batch: 1,
            are_batches: [false; 2],
            padding: Vec::new(),
            is_padded: false,
            reading: ReadingArgs::default(),
            cache_said: CacheSaid::Nobody,
            noise: None,
            experts: ExpertRows::default(),
        }
    }

    /// Told the type of the K/V cache, where it is.
    pub(crate) fn with_cache(mut self, cache: Option<Cache>) -> Session {
        if let Some(cache) = cache {
            (self.options.cache, self.cache_said) = (cache, CacheSaid::Asked);
        }
        self
    }

    /// The type of the K/V cache, where anybody says or shows it.
    pub(crate) fn known_cache(&self) -> Option<Cache> {
        (self.cache_said != CacheSaid::Nobody).then_some(self.options.cache)
    }

    /// Of a cache that nobody named, the side that shows it.
    pub(crate) fn cache_shown_by(&self) -> Option<&'static str> {
        if let CacheSaid::Assumed(side) = self.cache_said { Some(side) } else { None }
    }

    /// The candidate's values as the reference has them.
    pub(crate) fn in_reference_order(&self) -> InReferenceOrder<'_> {
        InReferenceOrder::new(&self.reference, &self.candidate, &self.graph, &self.options)
    }

    /// The candidate as the reference's program is carried out on it; `taps`: how the comparison lists them.
    pub(crate) fn in_a_program<'a>(&'a self, values: &'a InReferenceOrder<'a>, taps: &'a [TapReport]) -> Candidate<'a> {
        Candidate {
            dump: &self.candidate,
            recorded: self.recorded()[1],
            values,
            taps,
            experts: &self.experts,
            padding: &self.padding,
            is_padded: self.is_padded,
            profile: arithmetic(self.options.profile, Cache::F32),
            cache: (self.options.cache, self.cache_shown_by().is_some()),
        }
    }

    /// The type of the K/V cache, where it is not that of the arithmetic.
    pub(crate) fn cache_in_words(&self) -> String {
        match self.options.cache {
            Cache::F32 => String::new(),
            cache => format!(", K/V cache in {cache}"),
        }
    }

    /// What a verdict must say of a cache that nobody named.
    pub(crate) fn assumed_cache(&self) -> String {
        let cache = self.options.cache;
        match self.cache_said {
            CacheSaid::Assumed(side) => {
                format!("; that takes a K/V cache in {cache}, which is not stated, but the {side} shows it")
            }
            CacheSaid::ByCandidate if cache != Cache::F32 => {
                format!("; with a K/V cache in {cache}, as the candidate's dump.json alone says")
            }
            _ => String::new(),
        }
    }

    /// What is to be said of a cache that somebody names, and nothing recorded shows. Where products of keys and values were recorded that are those of
    /// none, one that is only told, by --cache or by the candidate, excuses nothing.
    fn check_cache(&mut self) -> Result<Option<String>> {
        let (cache, [reference, candidate]) = (self.options.cache, self.recorded());
        let is_told = matches!(self.cache_said, CacheSaid::Asked | CacheSaid::Declared | CacheSaid::ByCandidate);
        if !is_told || beyond_the_profile(self.options.profile, cache) == Cache::F32 {
            return Ok(None);
        }
        let shown = [shown_cache(candidate, reference)?, shown_cache(reference, candidate)?];
        let is_of_both = self.cache_said == CacheSaid::Declared;
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

    /// Where nobody says the type of the K/V cache, and the two part: takes the one that a side shows, if the two then part no earlier.
    fn assume_cache(&mut self, report: &mut Report) -> Result<()> {
        let (CacheSaid::Nobody, Some(first)) = (self.cache_said, &report.first) else { return Ok(()) };
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
                (self.options.cache, self.cache_said) = (cache, CacheSaid::Assumed(side));
            }
        }
        Ok(())
    }

    /// How the two were aligned by token position, where they took the tokens in other chunks.
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

    /// Takes order, dependencies and tolerances from a model: each tap may be as far off as the profile's arithmetic puts it from the
    /// exact one, with room for other orders of summation.
    ///
    /// # Errors
    /// When the model cannot be read or run, or neither dump says which tokens it was fed.
    pub fn with_model(mut self, model: &Path) -> Result<Session> {
        let path = model;
        self.model = Some(path.to_owned());
        let model = firstdiff_model::load(model)?;
        same_model(&model, &self.reference)
            .with_context(|| format!("{} is not of the model {}", self.reference.path().display(), path.display()))?;
        self.graph = Graph::of_dumps(&self.reference, &self.candidate, Some(&nodes(&model)));
        if !matches!(self.options.profile, Profile::F32) {
            let note = "tolerances are the table's; those of f32 alone are measured by running the model";
            self.warnings.push(format!("profile {}: {note}", self.options.profile));
            return Ok(self);
        }
        // Measured by running a prefill and then one token at a time.
        let together = |alignment: &&ChunkAlignment| {
            alignment.cells.iter().skip(1).any(|c| c.len() > 1 && c.start < alignment.together())
        };
        if self.alignment().filter(together).is_some() {
            self.warnings.push("the two meet in chunks of several tokens: tolerances are the table's".into());
            return Ok(self);
        }
        let measured = self.measured(&model)?;
        self.options.allowed = measured.allowed;
        if let Some((place, nmse)) = measured.doubt {
            let said =
                format!("the reference's {place} is off the exact run of {} by NMSE {}", path.display(), number(nmse));
            if nmse > OTHER {
                bail!(
                    "{said}: it is a run of another model, or the reference is the wrong side; compare without --model"
                );
            }
            self.warnings.push(format!("{said}: it may be the wrong side"));
        }
        self.warnings.extend(window_warning(&model, &self.reference));
        Ok(self)
    }

    /// The distance between the f32 and the exact run of every tap, with room for other orders of summation, and how far the reference is
    /// from the exact run.
    fn measured(&self, model: &Model) -> Result<Measured> {
        let meta = [self.reference.meta(), self.candidate.meta()];
        let Some(tokens) = meta.iter().find_map(|m| m.tokens.as_ref()) else {
            bail!("--model needs the token ids, and neither dump.json has 'tokens'");
        };
        let decode = meta.iter().find_map(|m| m.decode_tokens.clone()).unwrap_or_default();
        let (tokens, decode) = (ids(tokens)?, ids(&decode)?);
        let prompt = Prompt { tokens: &tokens, decode_tokens: &decode };
        let recorded = |tap: Tap| self.reference.entries().iter().any(|e| e.tap == tap);
        let mut exact: BTreeMap<Place, Vec<f64>> = BTreeMap::new();
        let (plan, weights) = (&model.plan, &model.weights);
        firstdiff_model::run(plan, weights, prompt, firstdiff_model::Profile::Exact, recorded, |tap, step, values| {
            if let TapValues::F64(values) = values {
                exact.insert(Place { step, tap }, values.iter().copied().collect());
            }
            Ok::<(), anyhow::Error>(())
        })?;
        let mut doubt = None;
        for (place, exact) in &exact {
            doubt =
                doubt.or(self.reference_off(*place, exact)?.filter(|nmse| *nmse > DOUBTFUL).map(|nmse| (*place, nmse)));
        }
        let mut allowed = BTreeMap::new();
        firstdiff_model::run(plan, weights, prompt, firstdiff_model::Profile::F32, recorded, |tap, step, values| {
            let place = Place { step, tap };
            if let (TapValues::F32(values), Some(exact)) = (values, exact.remove(&place)) {
                let nmse = distance(&exact, values.iter().map(|&c| f64::from(c)));
                allowed.insert(place, (ROOM * nmse).max(LEAST));
            }
            Ok::<(), anyhow::Error>(())
        })?;
        Ok(Measured { allowed, doubt })
    }

    /// NMSE between a tap of the reference and the exact run, where the two can be compared as they stand: not Q and K, whose
    /// rows have two orders, and not scores, which are masked in many ways.
    fn reference_off(&self, place: Place, exact: &[f64]) -> Result<Option<f64>> {
        let alignment = matches!(place.tap.site.axes(), ['T', 'D' | 'C' | 'F' | 'V']);
        let Some(entry) = self.reference.find(place.tap, place.step).filter(|_| alignment) else { return Ok(None) };
        let tensor = self.reference.read(entry)?;
        let values = tensor.values();
        let same = values.len() == exact.len();
        Ok(same.then(|| distance(exact, (0..values.len()).map(|i| values.get(i)))))
    }

    /// Compares.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn run(mut self) -> Result<Judged> {
        let unshown = self.check_cache()?;
        let bar = crate::progress::Bar::new(&self.reference);
        let mut report = self.compared(&self.options, &mut |done, total| bar.step(done, total))?;
        bar.finish();
        self.assume_cache(&mut report)?;
        report.warnings.extend(unshown.map(Warning::Note));
        report.warnings.extend(self.warnings.iter().cloned().map(Warning::Note));
        let [reference, candidate] = self.recorded();
        let edits = if report.verdict == Verdict::Parity { None } else { token_edits(reference, candidate)? };
        let h0 = Tap { layer: None, site: Site::H0 };
        let there = report.first.as_ref().map(|first| &report.taps[first.index]).filter(|tap| tap.place.tap == h0);
        let fed = there.zip(edits.as_ref().filter(|edits| edits.is_certain)).map(|(tap, edits)| Why::fed(edits, tap));
        if let Some(edits) = edits.filter(|_| fed.is_none()) {
            let or = ", or is padded there, or its rows of h0 are wrong (`explain MODEL` looks them up in the table)";
            let or = if edits.is_certain { "" } else { or };
            report.warnings.push(format!("by ids or rows of h0 the candidate was fed {edits}{or}").into());
        }
        let why = fed.or_else(|| {
            let (model, first) = self.model.as_ref().zip(report.first.as_ref())?;
            let inputs_agree = first.is_bracketed();
            crate::session::cause::beside(model, &self, report.taps[first.index].place, inputs_agree)
        });
        Ok(Judged { session: self, report, why })
    }
}

impl Session {
    /// Compares, and calls nothing parity that may lack taps.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn compared(&self, options: &Options, progress: &mut dyn FnMut(usize, usize)) -> Result<Report> {
        let mut report = compare(&self.reference, &self.candidate, &self.graph, options, progress)?;
        let incomplete = Incomplete::of(&self.sides(), Some(report.taps.len()));
        let verdict = incomplete.verdict(report.verdict.clone(), self.reading.partial);
        if verdict == report.verdict {
            report.warnings.extend(incomplete.notes().cloned().map(Warning::Note));
        }
        report.verdict = verdict;
        Ok(report)
    }

    /// Both dumps as they were recorded, and what each is called.
    pub(crate) fn sides(&self) -> [(&'static str, &Dump); 2] {
        let [reference, candidate] = self.recorded();
        [("the reference", reference), ("the candidate", candidate)]
    }
}

/// What had to be assumed to read dumps, each thing once.
pub(crate) fn notes(dumps: &[&Dump]) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for note in dumps.iter().flat_map(|dump| dump.notes()) {
        if !said.contains(note) {
            said.push(note.clone());
        }
    }
    said
}

/// How many taps of a run that was cut anew are known in part, and were not cut.
fn left_out((run, now): (&Arc<Dump>, &Dump)) -> usize {
    let entries = now.entries().iter().map(|entry| entry.tap);
    let held: BTreeSet<Tap> = entries.chain(now.parts().iter().map(|part| part.tap)).collect();
    run.parts().iter().filter(|part| !held.contains(&part.tap)).count()
}

/// What a model's own runs say of a comparison.
struct Measured {
    /// The NMSE each place is allowed.
    allowed: BTreeMap<Place, f64>,
    /// The reference's first tap that is further from the exact run than that of any right one, and how far.
    doubt: Option<(Place, f64)>,
}

/// NMSE of `candidate` over the finite values of `exact`; infinite where a value is not finite.
fn distance(exact: &[f64], candidate: impl Iterator<Item = f64>) -> f64 {
    let nmse = Squares::of(exact.iter().copied().zip(candidate).filter(|(r, _)| r.is_finite())).nmse();
    if nmse.is_nan() { f64::INFINITY } else { nmse }
}

/// Whether `reference` can be a run of `model` by its taps and their shapes.
fn same_model(model: &Model, reference: &Dump) -> Result<()> {
    for entry in reference.entries() {
        let (tap, axes) = (entry.tap, entry.tap.site.axes());
        if !model.plan.steps.iter().any(|step| step.tap == tap) {
            bail!("it holds {tap}, which that model has not");
        }
        // A shape with all of the vocabulary's axes is the dump's word on the sizes, in whichever order.
        let whole = entry.shape.iter().filter(|&&n| n > 1).count() == axes.len();
        for axis in axes.iter().filter(|_| whole) {
            if let Some(size) = model.plan.dims.extent(*axis).filter(|size| !entry.shape.contains(size)) {
                bail!("{tap} has the shape {:?}, and there {axis} is {size}", entry.shape);
            }
        }
    }
    Ok(())
}

/// A reference this far from the exact run is a run of something else, or wrong.
const OTHER: f64 = 1e-3;
/// No right run in f32 is this far from the exact one.
const DOUBTFUL: f64 = 1e-8;
/// Room between one right order of summation and another: a plain loop is six times as far off as eight lanes.
const ROOM: f64 = 64.0;
/// No tap is held to less than this in f32.
const LEAST: f64 = 1e-12;

pub(crate) fn ids(tokens: &[i64]) -> Result<Vec<u32>> {
    tokens.iter().map(|&t| u32::try_from(t).with_context(|| format!("token id {t} is none"))).collect()
}

pub(crate) fn nodes(model: &Model) -> Vec<Node> {
    let node = |s: &firstdiff_model::Step| Node { tap: s.tap, op: s.op.name().into(), reads: Some(s.reads.clone()) };
    model.plan.steps.iter().map(node).collect()
}

/// A prompt shorter than the sliding window cannot show a mistake in it.
fn window_warning(model: &Model, reference: &Dump) -> Option<String> {
    let tokens = reference.meta().tokens.as_ref()?.len() + reference.meta().decode_tokens.as_ref().map_or(0, Vec::len);
    let window = (0..model.config.dims.layers).filter_map(|layer| model.config.window.of(layer)).min()?;
    (tokens <= window)
        .then(|| format!("{tokens} tokens fit the sliding window of {window}: a wrong window cannot show"))
}

/// The type of K/V cache that `dump` names; or what is to be said of a name that is none.
pub(crate) fn declared_cache(dump: &Dump) -> Result<Option<Cache>, String> {
    let Some(told) = &dump.meta().cache else { return Ok(None) };
    let unknown =
        |what: String| format!("{}: cache {what}: it is not known how that rounds (--cache)", dump.path().display());
    told.parse().map(Some).map_err(unknown)
}
