//! Provides the reference of a bisection: a recorded dump, or our own forward pass of a model, run for the requested taps.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use firstdiff_compare::{Chunks, Graph, Place, Profile, graph_of};
use firstdiff_model::{Cache, Model};
use firstdiff_trace::{Dump, Meta, Site, Tap};

use crate::commands::dump::DumpArgs;
use crate::session::incomplete::Incomplete;

/// The reference of a bisection.
pub(crate) enum BisectReference {
    /// A recorded run; and the same cut into cells, where the engine's chunks differ.
    Recorded(Box<Dump>, Option<Box<Dump>>),
    /// A model.
    Computed(Box<ComputedReference>),
}

/// A model, and what was computed by it so far.
pub(crate) struct ComputedReference {
    path: PathBuf,
    pub(crate) model: Model,
    /// Where the dump of the reference is written.
    folder: PathBuf,
    taps: BTreeSet<Tap>,
    tokens: Vec<u32>,
    decode_tokens: Vec<u32>,
    profile: Profile,
    cache: Cache,
}

impl BisectReference {
    /// A dump where there is one at `path`, else the model there.
    ///
    /// # Errors
    /// When it is neither.
    pub(crate) fn open(path: &Path, folder: PathBuf) -> Result<BisectReference> {
        let dump = match Dump::open(path) {
            Ok(dump) => {
                let incomplete = Incomplete::find_in(&[("the reference", &dump)], None);
                if let Some(note) = incomplete.notes().next() {
                    bail!("{note}; what it lacks cannot be asked of an engine: record it again");
                }
                return Ok(BisectReference::Recorded(Box::new(dump), None));
            }
            Err(error) => error,
        };
        let model = match firstdiff_model::load(path) {
            Ok(model) => model,
            // A folder with neither config.json nor weights was meant to be a dump.
            Err(_) if path.is_dir() && !path.join("config.json").exists() => return Err(dump.into()),
            Err(error) => return Err(error.into()),
        };
        Ok(BisectReference::Computed(Box::new(ComputedReference {
            path: path.to_owned(),
            model,
            folder,
            taps: BTreeSet::new(),
            tokens: Vec::new(),
            decode_tokens: Vec::new(),
            profile: Profile::F32,
            cache: Cache::F32,
        })))
    }

    /// Sets the tokens that the model is fed, and its arithmetic.
    pub(crate) fn set_input(&mut self, tokens: Vec<u32>, decode_tokens: Vec<u32>, profile: Profile, cache: Cache) {
        if let BisectReference::Computed(computed) = self {
            (computed.tokens, computed.decode_tokens) = (tokens, decode_tokens);
            (computed.profile, computed.cache) = (profile, cache);
        }
    }

    /// The reference with at least these taps in it.
    ///
    /// # Errors
    /// When the model cannot be run, or the dump no longer exists.
    pub(crate) fn with_taps(&mut self, taps: &[Tap]) -> Result<Dump> {
        match self {
            BisectReference::Recorded(dump, _) => Ok(Dump::open(dump.path())?),
            BisectReference::Computed(computed) => computed.compute(taps),
        }
    }

    pub(crate) fn meta(&self) -> Option<&Meta> {
        match self {
            BisectReference::Recorded(dump, _) => Some(dump.meta()),
            BisectReference::Computed(_) => None,
        }
    }

    pub(crate) fn model(&self) -> Option<&Path> {
        match self {
            BisectReference::Recorded(..) => None,
            BisectReference::Computed(computed) => Some(&computed.path),
        }
    }

    /// The graph of steps 0 to `last_step`.
    pub(crate) fn graph(&self, last_step: u32) -> Graph {
        match self {
            // All that it holds can be requested.
            BisectReference::Recorded(dump, cells) => {
                let reference = cells.as_ref().unwrap_or(dump);
                graph_of(reference, reference)
            }
            BisectReference::Computed(computed) => {
                Graph::new(&crate::session::model::nodes(&computed.model), 0..=last_step)
            }
        }
    }

    /// Whether it has this tap.
    pub(crate) fn has(&self, place: Place) -> bool {
        match self {
            BisectReference::Recorded(dump, cells) => {
                cells.as_ref().unwrap_or(dump).entry(place.tap, place.step).is_some()
            }
            BisectReference::Computed(computed) => computed.model.plan.step(place.tap).is_some(),
        }
    }

    /// Layers, and the last step that a dump holds.
    pub(crate) fn extent(&self) -> (u32, Option<u32>) {
        match self {
            BisectReference::Computed(computed) => (computed.model.plan.dims.layers, None),
            BisectReference::Recorded(dump, _) => {
                let layers = dump.entries().iter().filter_map(|e| e.tap.layer).max().map_or(0, |layer| layer + 1);
                (layers, dump.entries().iter().map(|e| e.step).max())
            }
        }
    }

    /// The last step that can be compared, whatever the engine's chunks: by the number of positions that a dump holds.
    pub(crate) fn farthest(&self) -> Option<u32> {
        let BisectReference::Recorded(dump, _) = self else { return None };
        let positions = Chunks::find(dump).and_then(|chunks| u32::try_from(chunks.total().saturating_sub(1)).ok());
        positions.or(self.extent().1)
    }

    /// From here on the dump cut into cells is used.
    pub(crate) fn use_cells(&mut self, cut: Dump) {
        if let BisectReference::Recorded(_, cells) = self {
            *cells = Some(Box::new(cut));
        }
    }

    /// From here on the dump is used as it was recorded.
    pub(crate) fn as_recorded(&mut self) {
        if let BisectReference::Recorded(_, cells) = self {
            *cells = None;
        }
    }

    /// Token positions of the prompt, where a dump shows or declares them.
    pub(crate) fn positions(&self) -> Option<usize> {
        let BisectReference::Recorded(dump, _) = self else { return None };
        let rows = |site: Site| {
            move |e: &&firstdiff_trace::Entry| e.step == 0 && e.tap.site == site && e.shape.len() == site.axes().len()
        };
        let shown = || {
            let entry =
                [Site::H, Site::FinalNorm, Site::H0].iter().find_map(|&site| dump.entries().iter().find(rows(site)))?;
            entry.shape.first().copied()
        };
        dump.meta().tokens.as_ref().map(Vec::len).or_else(shown)
    }

    /// Elements of a tap, for a prompt of `tokens` tokens.
    pub(crate) fn elements(&self, place: Place, tokens: usize) -> usize {
        match self {
            BisectReference::Recorded(dump, cells) => {
                let entry = cells.as_ref().unwrap_or(dump).entry(place.tap, place.step);
                entry.map_or(0, |e| e.shape.iter().product())
            }
            BisectReference::Computed(computed) => {
                let (new, keys) = if place.step == 0 { (tokens, tokens) } else { (1, tokens + place.step as usize) };
                let extent = |axis: &char| match axis {
                    'T' => new,
                    'S' => keys,
                    'C' => computed.model.plan.dims.heads * computed.model.plan.dims.head_dim,
                    axis => computed.model.plan.dims.extent(*axis).unwrap_or(1),
                };
                place.tap.site.axes().iter().map(extent).product()
            }
        }
    }
}

impl ComputedReference {
    fn compute(&mut self, taps: &[Tap]) -> Result<Dump> {
        let had = self.taps.len();
        self.taps.extend(taps.iter().filter(|tap| self.model.plan.step(**tap).is_some()));
        if self.taps.len() > had || !self.folder.join("dump.json").exists() {
            let _ = std::fs::remove_dir_all(&self.folder);
            let names: Vec<String> = self.taps.iter().map(ToString::to_string).collect();
            let args = DumpArgs {
                model: self.path.clone(),
                output: self.folder.clone(),
                tokens: self.tokens.clone(),
                decode_tokens: self.decode_tokens.clone(),
                taps: names.join(","),
                profile: Some(self.profile),
                cache: self.cache,
                weights: None,
                json: None,
            };
            if self.taps.is_empty() {
                bail!("{}: no tap to compute", self.path.display());
            }
            crate::commands::dump::write_dump(&args, &self.model, &self.folder)
                .with_context(|| self.path.display().to_string())?;
        }
        Ok(Dump::open(&self.folder)?)
    }
}
