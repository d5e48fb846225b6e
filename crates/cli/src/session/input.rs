//! Opens what is judged: a model, a candidate's dump, the arithmetic it works in, and the tokens it was fed.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use firstdiff_compare::{Profile as NamedProfile, TokenEdits, seen_padding};
use firstdiff_explain::model::fed;
use firstdiff_explain::program::profile;
use firstdiff_explain::replay::{Options, shared_out};
use firstdiff_model::{Format, Model, Profile, Prompt, TapValues};
use firstdiff_trace::{Batch, Dump, Entry, Meta, NamedRows, Rows, Tap, Tensor, Values, tap_names};

use crate::session::arithmetic::{CoarserProfile, ProfileChoice};
use crate::session::incomplete::Incomplete;
use crate::session::is_recorded;
use crate::session::reading::take_sequence;
use crate::session::source::{CandidateArgs, Source, Told, refuse_weights};

/// What a candidate is compared with, and its dump, ready to be judged.
pub(crate) struct ReplayInput {
    pub(crate) path: PathBuf,
    pub(crate) source: Source,
    pub(crate) dump: Dump,
    pub(crate) named: NamedProfile,
    pub(crate) why: String,
    /// Whether only the dump's own metadata asks for a profile as coarse as this.
    pub(crate) coarser_profile: Option<CoarserProfile>,
    /// Notes beside the judge's own warnings.
    pub(crate) warnings: Vec<String>,
    /// Whether a recording that was not finished may be at parity in what is there.
    pub(crate) partial: bool,
    /// How many sequences the candidate's run had.
    pub(crate) sequences: usize,
}

impl CandidateArgs {
    /// Opens both, and decides what neither declares.
    ///
    /// # Errors
    /// When something cannot be read, or the tokens of a step are not known.
    pub(crate) fn open(self) -> Result<ReplayInput> {
        let args = self;
        if is_recorded(&args.model) {
            return open_program(args);
        }
        refuse_weights(&args.model, args.weights.as_deref())?;
        let model = firstdiff_model::load(&args.model)?;
        let names = tap_names(model.plan.steps.iter().map(|step| step.tap));
        let dump = args.reading.open_beside(&names, args.candidate()?)?;
        let dump = crate::session::streams::resolve_by_model(dump, model.plan.dims.layers as usize)?;
        let batch = batch(&dump, &model, args.tokens.as_ref().map(Vec::len));
        let sequences = batch.as_ref().map_or(1, Batch::count);
        let (dump, warnings) = match (&batch, args.reading.sequence) {
            (Some(batch), asked) => take_sequence(dump, asked, batch)?,
            (None, Some(index)) if index > 0 && model.prompts.len() <= index => {
                bail!("--sequence {index}: the dump is not of a batch by its shapes")
            }
            (None, _) => (dump, Vec::new()),
        };
        let padding = seen_padding(&dump)?;
        let ids = |asked: &Option<Vec<u32>>| asked.iter().flatten().map(|&id| i64::from(id)).collect::<Vec<_>>();
        let dump = match &args.tokens {
            Some(_) if dump.meta().tokens.is_none() && dump.meta().sequences.is_none() => dump
                .with_tokens(&ids(&args.tokens), &ids(&args.decode_tokens))
                .unwrap_or_else(|_| unreachable!("it has none")),
            _ => dump,
        };
        let beginning = beginning(&dump, &model)?;
        let dump = firstdiff_compare::without_padding(dump, beginning.as_ref(), &[])?;
        let dump = one_a_token(dump, &model, &args);
        let ProfileChoice { profile: named, reason: why, coarser_profile } = match args.profile {
            Some(profile) => ProfileChoice::by_user(profile),
            None => declared(&model, &dump)?,
        };
        // In the coarser profiles, f16's rounding is the engine's own, and hides no rounding by the printer.
        let dump = if matches!(named, NamedProfile::Exact | NamedProfile::F32) { dump.printed_as_f16() } else { dump };
        let mut warnings = warnings;
        let cache = match args.cache {
            Some(cache) => Some(cache),
            None => crate::session::declared_cache(&dump).unwrap_or_else(|warning| {
                warnings.push(warning);
                None
            }),
        };
        let own = model
            .prompts
            .get(args.reading.sequence.unwrap_or(0))
            .filter(|_| has_as_many_positions(&dump, &model))
            .cloned();
        let tokens_given =
            given_or_declared(&args.tokens, declared_tokens(&args.tokens, &dump).as_deref(), "tokens")?.or(own);
        let decoded = given_or_declared(&args.decode_tokens, dump.meta().decode_tokens.as_deref(), "decode-tokens")?
            .unwrap_or_default();
        let (tokens, tokens_are_known, decode_tokens) = match tokens_given {
            Some(tokens) => {
                // --tokens may give those of all steps.
                let prompt = dump.meta().tokens.as_ref().map_or(tokens.len(), Vec::len);
                let decoded = if tokens.len() > prompt { &[] } else { &decoded[..] };
                let (tokens, decode_tokens) = shared_out(&dump, &tokens, decoded);
                (tokens, true, decode_tokens)
            }
            None => {
                (vec![0; positions_without_tokens(&dump, &model)?], false, decoded.iter().map(|&id| vec![id]).collect())
            }
        };
        let steps = dump.entries().iter().map(|e| e.step as usize).max().unwrap_or(0);
        if decode_tokens.len() < steps {
            bail!(
                "the dump holds {steps} decode steps, and {} of their tokens are known: name them in dump.json ('decode_tokens'), by --decode-tokens, \
                 or all tokens by --tokens",
                decode_tokens.len()
            );
        }
        if steps == 0 && args.decode_tokens.is_some() && args.rows == Some(Rows::Named(NamedRows::Last)) {
            bail!(
                "--rows last: the dump has no decode steps, so that the last token may be the prefill's or the last one decoded: leave --decode-tokens \
                 out for the first, or name all in --tokens for the second"
            );
        }
        if let Some(Rows::List(list)) = &args.rows
            && let Some(row) = list.iter().find(|&&row| row >= tokens.len())
        {
            bail!("--rows {row}: the run has {} tokens, the last at position {}", tokens.len(), tokens.len() - 1);
        }
        let profile = profile(named, cache.unwrap_or_default());
        let (mut rows, mut warnings) = (args.rows.clone(), warnings);
        if let Some(tap) = single_row(&dump, &model, tokens.len()).filter(|_| rows.is_none() && tokens_are_known) {
            rows = Some(Rows::Named(NamedRows::Last));
            warnings.push(format!(
                "{tap} holds one row of {} token positions: taken for the last one (--rows last)",
                tokens.len()
            ));
        }
        let options = Options { profile, cache, tokens, tokens_are_known, decode_tokens, rows, padding };
        let partial = args.reading.partial;
        let (own, told) = as_fed(&model, &dump, &options)?;
        let model = Arc::new(model);
        let may_be_padding = told.as_ref().is_some_and(|(_, edits)| edits.are_in_front());
        let mut source = Source::of_model(Arc::clone(&model), &dump, &own, told, &args)?;
        // More ids in front of those that were told may be padding: they are, where no more is wrong then.
        if may_be_padding
            && let Ok(padded) = Source::of_model(model, &dump, &options, None, &args)
            && padded.wrong()? <= source.wrong()?
        {
            source = padded;
        }
        Ok(ReplayInput { path: args.model, source, dump, named, why, coarser_profile, warnings, sequences, partial })
    }
}

/// As the candidate's own rows of h0 say: with its tokens where nobody told them, and where more or fewer were fed than were told; and how these differ.
fn as_fed(model: &Model, dump: &Dump, options: &Options) -> Result<(Options, Option<Told>)> {
    let Some(tokens) = fed(model, dump, options)? else { return Ok((options.clone(), None)) };
    let as_fed = Options { tokens: tokens.clone(), tokens_are_known: true, ..options.clone() };
    if !options.tokens_are_known {
        return Ok((as_fed, None));
    }
    let [ours, theirs] = [&options.tokens, &tokens].map(|ids| ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>());
    Ok(match TokenEdits::compare_ids(&ours, &theirs) {
        Some(edits) => (as_fed, Some((options.tokens.clone(), edits))),
        None => (options.clone(), None),
    })
}

/// A candidate with the program that its reference ran.
fn open_program(args: CandidateArgs) -> Result<ReplayInput> {
    let dump = args.reading.open_beside(args.reading.open(&args.model)?.names_read(), args.candidate()?)?;
    let (source, why, coarser_profile) = Source::open(&args)?;
    let (named, warnings, partial) = (source.profile(), source.warnings(), args.reading.partial);
    let sequences = source.sequences();
    Ok(ReplayInput { path: args.model, source, dump, named, why, coarser_profile, warnings, sequences, partial })
}

impl ReplayInput {
    /// Whether the candidate's recording was finished; `all` is the number of its taps, where known.
    pub(crate) fn incomplete(&self, all: Option<usize>) -> Incomplete {
        Incomplete::find_in(&[("the candidate", &self.dump)], all)
    }

    /// What had to be assumed to read the candidate, and what is not used of it.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = crate::session::notes(&[&self.dump]);
        notes.extend(self.coarser_profile.map(CoarserProfile::note));
        notes.extend(self.warnings.iter().cloned());
        notes.extend(self.incomplete(None).notes().cloned());
        if let Some(first) = self.dump.parts().first() {
            let precision = first.precision().map_or("in part".to_owned(), |p| format!("with {p}"));
            let count = self.dump.parts().len();
            let word = if count == 1 { "tap is" } else { "taps are" };
            notes.push(format!(
                "{count} {word} known {precision} only ({} ...): `compare` uses them, this command does not",
                first.tap
            ));
        }
        // A comparison of the same dump already notes its assumptions.
        let mut met = HashSet::new();
        notes.retain(|note| met.insert(note.clone()));
        notes
    }
}

/// The ids in the dump's own dump.json that --tokens must not contradict: those of the prefill, or of all steps where all are given.
fn declared_tokens(given: &Option<Vec<u32>>, dump: &Dump) -> Option<Vec<i64>> {
    let declared = dump.meta().tokens.clone()?;
    let later = dump.entries().last().is_some_and(|e| e.step > 0);
    let Some(ids) = given.as_ref().filter(|asked| later && asked.len() > declared.len()) else {
        return Some(declared);
    };
    let all: Vec<i64> = declared.iter().chain(dump.meta().decode_tokens.iter().flatten()).copied().collect();
    let rest = ids.iter().skip(all.len()).map(|&id| i64::from(id));
    Some(all.iter().copied().chain(rest).collect())
}

/// Token ids as given, or as the dump declares; the two may not differ.
fn given_or_declared(given: &Option<Vec<u32>>, declared: Option<&[i64]>, what: &str) -> Result<Option<Vec<u32>>> {
    let declared_ids = declared.map(crate::session::ids).transpose()?;
    match (given, declared_ids) {
        (Some(asked), Some(told)) if *asked != told => {
            let place = asked.iter().zip(&told).position(|(a, t)| a != t).unwrap_or(asked.len().min(told.len()));
            bail!(
                "--{what} names {} token ids and the dump's own dump.json {}, which differ at index {place}: leave --{what} out, or correct one",
                asked.len(),
                told.len()
            )
        }
        (asked, told) => Ok(asked.clone().or(told)),
    }
}

/// The dump with lists of values made into whole tensors, where it has a step for each known token.
fn one_a_token(dump: Dump, model: &Model, args: &CandidateArgs) -> Dump {
    let meta = dump.meta();
    let count = |given: &Option<Vec<u32>>, own: &Option<Vec<i64>>| {
        given.as_ref().map_or(own.as_ref().map_or(0, Vec::len), Vec::len)
    };
    let tokens = count(&args.tokens, &meta.tokens) + count(&args.decode_tokens, &meta.decode_tokens);
    let dims = &model.plan.dims;
    firstdiff_compare::one_a_token(dump, tokens, |tap, keys| {
        let extent = |&axis: &char| match axis {
            'T' => Some(1),
            'S' => Some(keys),
            _ => dims.extent(axis),
        };
        tap.site.axes().iter().map(extent).collect()
    })
}

/// The batch that the dump is: by its shapes, compared with the model's for `tokens` tokens; or if its tensors hold as many positions as the model's own
/// prompts.
fn batch(dump: &Dump, model: &Model, tokens: Option<usize>) -> Option<Batch> {
    let prompts = &model.prompts;
    let own = prompts.first().map(Vec::len);
    let length = tokens.or(dump.meta().tokens.as_ref().map(Vec::len)).or(own);
    let one = |tap: Tap, step: u32| -> Option<Vec<usize>> {
        let positions = if step == 0 { length? } else { 1 };
        let extent = |&axis: &char| match axis {
            'T' => Some(positions),
            'S' => length.map(|length| length + step as usize),
            _ => model.plan.dims.extent(axis),
        };
        tap.site.axes().iter().map(extent).collect()
    };
    Batch::detect(dump, &one).or_else(|| {
        let all = positions(dump, model).ok() == Some(prompts.iter().map(Vec::len).sum());
        (prompts.len() > 1 && all).then(|| Batch::with_count(dump, prompts.len(), &one))
    })
}

/// The first tap that holds one row of a prefill of several tokens without declaring which.
fn single_row(dump: &Dump, model: &Model, tokens: usize) -> Option<Tap> {
    let single = |e: &&Entry| {
        let row = e.step == 0 && e.rows.is_none() && !e.tap.site.axes().contains(&'S');
        row && e.shape.iter().product::<usize>() == model.plan.dims.width(e.tap.site)
    };
    dump.entries().iter().find(single).filter(|_| tokens > 1).map(|entry| entry.tap)
}

/// Whether the dump holds as many positions as the model's own prompt has, so that it may be a run of that.
fn has_as_many_positions(dump: &Dump, model: &Model) -> bool {
    let length = model.prompts.first().map(Vec::len);
    length.is_some() && positions(dump, model).ok() == length && dump.meta().tokens.is_none()
}

/// How many positions the prefill has, by the tap that holds the most.
fn positions(dump: &Dump, model: &Model) -> Result<usize> {
    let flat = dump.entries().iter().filter(|e| e.step == 0 && !e.tap.site.axes().contains(&'S'));
    let most = flat.map(|e| e.shape.iter().product::<usize>() / model.plan.dims.width(e.tap.site).max(1)).max();
    most.filter(|&n| n > 0).context("it cannot be said how many tokens the dump is of: say --tokens")
}

/// Of a prefill with more positions than tokens, what the model makes of the tokens at the first tap that has a row a position: it tells on which side the
/// padding stands.
fn beginning(dump: &Dump, model: &Model) -> Result<Option<Dump>> {
    let is_longer = |ids: &&Vec<i64>| positions(dump, model).is_ok_and(|count| count > ids.len());
    let Some(ids) = dump.meta().tokens.as_ref().filter(is_longer) else { return Ok(None) };
    let is_plain = |tap: &Tap| tap.site.axes().len() == 2 && dump.find(*tap, 0).is_some_and(|e| e.rows.is_none());
    let first = model.plan.steps.iter().map(|step| step.tap).find(is_plain);
    let mut made = Dump::assembled(dump.path(), Meta::default(), Vec::new())?;
    let prompt = Prompt { tokens: &crate::session::ids(ids)?, decode_tokens: &[] };
    firstdiff_model::run(
        &model.plan,
        &model.weights,
        prompt,
        Profile::F32,
        |tap| Some(tap) == first,
        |tap, step, values| {
            if let TapValues::F32(values) = values {
                let own = Values::F32(values.iter().copied().collect::<Vec<_>>().into());
                made.put(tap, step, Tensor::held(values.shape().to_vec(), own).expect("as many as its shape"));
            }
            Ok::<(), anyhow::Error>(())
        },
    )?;
    // The first token once more is an id more, and no padding.
    let row = |values: &[f64], shape: &[usize], at: usize| -> Vec<f64> {
        let width = shape.get(1).copied().unwrap_or(1);
        values.iter().skip(at * width).take(width).copied().collect()
    };
    let entries = first.and_then(|tap| Some((dump.find(tap, 0)?, made.find(tap, 0)?)));
    if let Some((own, due)) = entries {
        let extra = own.shape.first().copied().unwrap_or(0).saturating_sub(ids.len());
        let own = row(&dump.read(own)?.values().to_f64(), &own.shape, extra.saturating_sub(1));
        let due = row(&made.read(due)?.values().to_f64(), &due.shape, 0);
        let alike = |(a, b): (&f64, &f64)| (a - b).abs() <= SAME_ROW * b.abs().max(f64::MIN_POSITIVE);
        if extra > 0 && own.iter().zip(&due).all(alike) {
            return Ok(None);
        }
    }
    Ok(Some(made))
}

/// The share by which values of one row may differ in any arithmetic.
const SAME_ROW: f64 = 0.02;

/// The same without known tokens: one row with several keys is from a longer run, at an unknown position.
fn positions_without_tokens(dump: &Dump, model: &Model) -> Result<usize> {
    let count = positions(dump, model)?;
    let beside_keys = |e: &&Entry| e.step == 0 && e.tap.site.axes().last() == Some(&'S') && e.shape.len() > 1;
    let keys = dump.entries().iter().filter(beside_keys).filter_map(|e| e.shape.last().copied()).max().unwrap_or(0);
    if count == 1 && keys > 1 {
        bail!(
            "the dump holds one token position and {keys} keys: say --tokens, and --rows last where it is the last of them"
        );
    }
    Ok(count)
}

/// The profile that the dump declares, else f32. Running a GGUF through llama.cpp rounds activations as each weight type requires.
pub(crate) fn declared(model: &Model, dump: &Dump) -> Result<ProfileChoice> {
    let precision = crate::session::arithmetic::precision(dump)?;
    let llama_cpp =
        dump.meta().producer.name().is_some_and(|name| name.contains("llama_cpp") || name.contains("llama.cpp"));
    let coarse = matches!(precision, Some(NamedProfile::F16 | NamedProfile::Bf16 | NamedProfile::Ggml));
    let choice = |profile: NamedProfile, reason: &str| ProfileChoice {
        reason: reason.into(),
        ..ProfileChoice::by_user(profile)
    };
    if llama_cpp && coarse && model.format == Format::Gguf {
        return Ok(choice(NamedProfile::Ggml, "llama.cpp's own arithmetic"));
    }
    Ok(match precision {
        // The profile in which llama.cpp runs a GGUF.
        Some(NamedProfile::Ggml) if model.format == Format::Gguf => {
            choice(NamedProfile::Ggml, "the candidate's dump.json")
        }
        Some(profile) => ProfileChoice::candidates(profile, dump, None),
        None => ProfileChoice::undeclared(dump),
    })
}
