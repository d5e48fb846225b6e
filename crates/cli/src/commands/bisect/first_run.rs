//! Decides by an engine's first run which tokens it is fed, in which chunks, and how it is judged.

use anyhow::{Result, bail};
use firstdiff_compare::{Aligned, CellsOf, align};

use crate::commands::bisect::EngineBisection;
use crate::commands::bisect::cells::StepAlignment;
use crate::commands::bisect::reference::BisectReference;
use crate::driver::engine::{ANY_STEP, EngineRun};
use crate::driver::evidence::CollectedTaps;
use crate::session::arithmetic::{CoarserProfile, ProfileChoice, declared_profile};
use crate::session::ids;

impl EngineBisection {
    /// Takes from the first run which tokens the engine is fed, and its arithmetic.
    pub(super) fn configure(&mut self, run: &EngineRun) -> Result<()> {
        let engine_meta = run.dump.meta();
        let reference_meta = self.reference.meta().cloned().unwrap_or_default();
        let to_ids = |list: &Option<Vec<i64>>| list.as_deref().map(ids).transpose();
        let given = to_ids(&engine_meta.decode_tokens)?;
        let decoded = self.args.decode_tokens.clone().or(given).unwrap_or_default();
        let declared_tokens = to_ids(&engine_meta.tokens)?;
        // --tokens may give those of all steps.
        let all = declared_tokens.as_ref().map(|told| [told, &decoded[..]].concat());
        let given_tokens = self.args.tokens.clone().filter(|asked| all.as_ref() != Some(asked));
        if let (Some(told), Some(asked)) = (&declared_tokens, &given_tokens)
            && told != asked
        {
            return other_tokens(told, asked, "--tokens says");
        }
        let reference = to_ids(&reference_meta.tokens)?;
        let tokens = given_tokens.or(declared_tokens);
        self.driver.evidence.describe(run, tokens.as_deref(), &decoded);
        let in_chunks = self.reference.model().is_none() && self.align_steps(run, tokens.as_deref())?;
        if let (Some(tokens), Some(reference), false) = (&tokens, &reference, in_chunks)
            && tokens != reference
        {
            let together = |list: &Option<Vec<u32>>, rest: &[u32]| [list.as_deref().unwrap_or_default(), rest].concat();
            let due = together(&Some(reference.clone()), &to_ids(&reference_meta.decode_tokens)?.unwrap_or_default());
            if together(&Some(tokens.clone()), &decoded).iter().zip(&due).all(|(a, b)| a == b) {
                bail!(
                    "the engine took the tokens in other chunks than the reference ({} at first, the reference {}), and which positions each of \
                     its steps stands for cannot be told: 'tokens' and 'decode_tokens' in its dump.json must name those of all steps",
                    tokens.len(),
                    reference.len()
                );
            }
            return other_tokens(tokens, reference, "the reference says");
        }
        let tokens = tokens.or(reference);
        let last_written = run.dump.entries().iter().map(|e| e.step).max().unwrap_or(0);
        if !in_chunks {
            self.last_step = self.reference.extent().1.unwrap_or(ANY_STEP).min(last_written);
            self.common_steps(to_ids(&reference_meta.decode_tokens)?.as_deref(), &decoded);
        }
        if self.reference.model().is_some() {
            let Some(tokens) = tokens.clone() else {
                bail!("the engine's dump.json does not say which tokens it was fed: say --tokens");
            };
            if decoded.len() < self.last_step as usize {
                bail!(
                    "the engine made {} decode steps, and {} of their tokens are known: say --decode-tokens",
                    self.last_step,
                    decoded.len()
                );
            }
            self.tokens = tokens.len();
            let BisectReference::Computed(computed) = &self.reference else { return Ok(()) };
            self.choice = match self.args.profile {
                Some(asked) => ProfileChoice::by_user(asked),
                None => crate::session::input::declared(&computed.model, &run.dump)?,
            };
            self.cache =
                self.args.cache.or(crate::session::declared_cache(&run.dump).ok().flatten()).unwrap_or_default();
            let decoded = decoded[..self.last_step as usize].to_vec();
            self.reference.set_input(tokens, decoded, self.choice.profile, self.cache);
        } else {
            if !in_chunks {
                self.tokens = self.reference.positions().or(tokens.map(|t| t.len())).unwrap_or(0);
            }
            let reference = self.reference.with_taps(&[])?;
            self.choice = match self.args.profile {
                Some(asked) => ProfileChoice::by_user(asked),
                None => declared_profile(&reference, &run.dump)?,
            };
            let declared = [&reference, &run.dump].map(|dump| crate::session::declared_cache(dump).ok().flatten());
            self.cache = self.args.cache.or(declared.into_iter().flatten().max()).unwrap_or_default();
        }
        self.warnings.extend(self.choice.coarser_profile.map(CoarserProfile::note));
        if !in_chunks {
            self.engine_extent = (self.tokens, self.last_step);
        }
        let bytes = run.dump.entries().first().map_or(4, |e| e.dtype.size());
        self.full = (self.full_elements() * bytes) as f64;
        Ok(())
    }

    /// Leaves out all steps from the first one before which the engine decoded another token than the reference.
    fn common_steps(&mut self, due: Option<&[u32]>, decoded: &[u32]) {
        let parted = due.and_then(|due| due.iter().zip(decoded).position(|(a, b)| a != b));
        if let Some(at) = parted {
            self.last_step = self.last_step.min(at as u32);
            self.warnings.push(format!(
                "the engine decoded another token than the reference at step {}: only the steps before it are compared",
                at + 1
            ));
        }
    }

    /// Aligns the engine's steps with a recorded reference by token position; returns whether they are other chunks of the same tokens.
    fn align_steps(&mut self, run: &EngineRun, tokens: Option<&[u32]>) -> Result<bool> {
        let mut look = CollectedTaps::new(self.driver.evidence.meta.clone());
        look.add_run(run, (tokens.map_or(1, <[u32]>::len), ANY_STEP), |_, _| 0.0)?;
        let candidate = look.write(&self.args.work.join("evidence"))?;
        let Aligned { reference, alignment, .. } =
            align(CellsOf::Both, self.reference.with_taps(&[])?, candidate, None)?;
        let Some(alignment) = alignment else { return Ok(false) };
        let cells = StepAlignment::new(alignment);
        // Without common tokens, it is reported as other tokens.
        let Some((last, step)) = cells.last_common_cell().and_then(|last| Some((last, cells.step(last)?))) else {
            return Ok(false);
        };
        if let Some(at) = cells.alignment.tokens_differ_at {
            self.warnings.push(format!(
                "the engine was fed other tokens than the reference from position {at} on: only the positions before it are compared"
            ));
        }
        (self.tokens, self.last_step) = (cells.alignment.cells[0].len(), last);
        self.engine_extent = (cells.alignment.candidate.lengths[0], step);
        self.reference.use_cells(reference);
        self.cells = Some(cells);
        Ok(true)
    }

    /// Elements of all taps of the reference, in the steps that are compared.
    fn full_elements(&self) -> usize {
        let graph = self.reference.graph(self.last_step);
        let places = graph.places().iter().filter(|p| p.step <= self.last_step && self.reference.has(**p));
        places.map(|p| self.reference.elements(*p, self.tokens)).sum()
    }
}

fn other_tokens(engine: &[u32], others: &[u32], who: &str) -> Result<()> {
    bail!(
        "the engine was fed other tokens ({} of them, by its dump.json) than {who} ({}): feed both the same",
        engine.len(),
        others.len()
    )
}
