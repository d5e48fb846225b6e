//! What is compared with what, and in whose arithmetic? Opens both dumps, and a model where one is given.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use firstdiff_compare::{Graph, Node, Options, Place, Profile, Report, compare, vocabulary_graph};
use firstdiff_model::{Model, Prompt, TapValues};
use firstdiff_trace::{Dump, Rows, Tap};

/// Two dumps, opened and ready to be compared.
#[derive(Debug)]
pub struct Session {
    /// The reference.
    pub reference: Dump,
    /// The candidate.
    pub candidate: Dump,
    /// Who reads whom.
    pub graph: Graph,
    /// Profile, rows, tolerances.
    pub options: Options,
    /// Why this profile.
    pub profile_reason: String,
    /// What should be said beside the report's own warnings.
    pub warnings: Vec<String>,
}

/// A report and the session it comes from.
#[derive(Debug)]
pub struct Judged {
    /// What was compared.
    pub session: Session,
    /// What came out.
    pub report: Report,
}

impl Session {
    /// Opens two dumps. The profile is the one given, else the coarser of what the dumps say, else f32.
    ///
    /// # Errors
    /// When a dump cannot be read, or names a precision that is none.
    pub fn open(reference: &Path, candidate: &Path, profile: Option<Profile>, rows: Option<Rows>) -> Result<Session> {
        let (reference, candidate) = (Dump::open(reference)?, Dump::open(candidate)?);
        let (profile, profile_reason) = match profile {
            Some(profile) => (profile, "as asked".to_owned()),
            None => declared_profile(&reference, &candidate)?,
        };
        let graph = vocabulary_graph(&reference, &candidate);
        let only_rows = rows.as_ref().filter(|r| !r.is_all());
        let warnings = only_rows.map(|_| "only the token positions of --rows were compared".to_owned());
        let options = Options { rows, ..Options::new(profile) };
        Ok(Session { reference, candidate, graph, options, profile_reason, warnings: warnings.into_iter().collect() })
    }

    /// Takes order, dependencies and tolerances from a model: each tap may be as far off as the profile's arithmetic puts it from the
    /// exact one, with room for other orders of summation.
    ///
    /// # Errors
    /// When the model cannot be read or run, or neither dump says which tokens it was fed.
    pub fn with_model(mut self, model: &Path) -> Result<Session> {
        let model = firstdiff_model::load(model)?;
        let entries = self.reference.entries().iter().chain(self.candidate.entries());
        let steps: std::collections::BTreeSet<u32> = entries.map(|e| e.step).chain([0]).collect();
        self.graph = Graph::new(&nodes(&model), steps);
        if !matches!(self.options.profile, Profile::F32) {
            let note = "tolerances are the table's: the model runs in exact and f32 so far";
            self.warnings.push(format!("profile {}: {note}", self.options.profile));
            return Ok(self);
        }
        self.options.allowed = self.measured(&model)?;
        self.warnings.extend(window_warning(&model, &self.reference));
        Ok(self)
    }

    /// The distance between the f32 and the exact run of every tap, with room for other orders of summation.
    fn measured(&self, model: &Model) -> Result<BTreeMap<Place, f64>> {
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
        let mut allowed = BTreeMap::new();
        firstdiff_model::run(plan, weights, prompt, firstdiff_model::Profile::F32, recorded, |tap, step, values| {
            let place = Place { step, tap };
            if let (TapValues::F32(values), Some(exact)) = (values, exact.remove(&place)) {
                let (mut error, mut energy) = (0.0, 0.0);
                for (r, c) in exact.iter().zip(values.iter()).filter(|(r, _)| r.is_finite()) {
                    error += (f64::from(*c) - r).powi(2);
                    energy += r * r;
                }
                let nmse = if energy > 0.0 { error / energy } else { 0.0 };
                allowed.insert(place, (ROOM * nmse).max(LEAST));
            }
            Ok::<(), anyhow::Error>(())
        })?;
        Ok(allowed)
    }

    /// Compares.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn run(self) -> Result<Judged> {
        let mut bar = crate::progress::Bar::new(&self.reference);
        let step = &mut |done, total| bar.step(done, total);
        let mut report = compare(&self.reference, &self.candidate, &self.graph, &self.options, step)?;
        bar.finish();
        report.warnings.extend(self.warnings.iter().cloned());
        Ok(Judged { session: self, report })
    }
}

/// Room between one right order of summation and another: a plain loop is six times as far off as eight lanes.
const ROOM: f64 = 64.0;
/// No tap is held to less than this in f32.
const LEAST: f64 = 1e-12;

fn ids(tokens: &[i64]) -> Result<Vec<u32>> {
    tokens.iter().map(|&t| u32::try_from(t).with_context(|| format!("token id {t} is none"))).collect()
}

fn nodes(model: &Model) -> Vec<Node> {
    let node = |s: &firstdiff_model::Step| Node { tap: s.tap, op: s.op.name().into(), reads: s.reads.clone() };
    model.plan.steps.iter().map(node).collect()
}

/// A prompt shorter than the sliding window cannot show a mistake in it.
fn window_warning(model: &Model, reference: &Dump) -> Option<String> {
    let tokens = reference.meta().tokens.as_ref()?.len() + reference.meta().decode_tokens.as_ref().map_or(0, Vec::len);
    let window = (0..model.config.dims.layers).filter_map(|layer| model.config.window.of(layer)).min()?;
    (tokens <= window)
        .then(|| format!("{tokens} tokens fit the sliding window of {window}: a wrong window cannot show"))
}

/// The coarser of what the two dumps declare.
fn declared_profile(reference: &Dump, candidate: &Dump) -> Result<(Profile, String)> {
    let declared = |dump: &Dump| -> Result<Option<Profile>> {
        let Some(precision) = &dump.meta().precision else { return Ok(None) };
        let profile = match precision.to_ascii_lowercase().as_str() {
            "float64" | "fp64" | "f64" => Profile::Exact,
            "float32" | "fp32" => Profile::F32,
            "float16" | "fp16" => Profile::F16,
            "bfloat16" => Profile::Bf16,
            name => name.parse().map_err(|_| {
                let known = "exact, f32, f16, bf16 and ggml";
                anyhow::anyhow!(
                    "{}: precision '{}' is not one of {known}; say --profile",
                    dump.path().display(),
                    precision.escape_debug()
                )
            })?,
        };
        Ok(Some(profile))
    };
    Ok(match (declared(reference)?, declared(candidate)?) {
        (None, None) => (Profile::F32, "the default; no dump.json says".into()),
        // An exact reference does not make an undeclared candidate exact.
        (Some(r), None) => (r.max(Profile::F32), "the reference's dump.json".into()),
        (None, Some(c)) => (c.max(Profile::F32), "the candidate's dump.json".into()),
        (Some(r), Some(c)) if c >= r => (c, "the candidate's dump.json".into()),
        (Some(r), Some(_)) => (r, "the reference's dump.json".into()),
    })
}
