//! Measures the distance of a second right run (`--noise REF2`) from the reference, and judges the candidate's error by it.

use std::path::Path;

use anyhow::{Result, bail};
use firstdiff_compare::{Noise, Options, Place, Profile, SECOND_RUN_LIMIT, Verdict, compare};
use firstdiff_trace::Dump;

use crate::session::Session;
use crate::words::{shorten, taps_in_words};

/// Two tensors further apart than this do not differ by their arithmetic only: one may be in another layout.
const LIKE: f64 = 0.25;

/// A second right run, as far as it was used.
#[derive(Clone, Debug)]
pub struct SecondRun {
    pub path: String,
    /// Taps of the reference and the candidate about which it shows nothing: it lacks them, or equals the reference.
    pub lacking: Vec<Place>,
    pub equal: Vec<Place>,
}

impl Session {
    /// Sets from a second right run, opened like the candidate, how far a tap may be from the reference.
    ///
    /// # Errors
    /// When it cannot be compared with the reference, or is not a right run.
    pub fn with_noise(mut self, path: &Path, second: Session) -> Result<Session> {
        let cells = |session: &Session| session.alignment().map(|alignment| alignment.cells.clone());
        if cells(&self) != cells(&second) {
            bail!(
                "--noise {}: it took its tokens in other chunks than the candidate did: record it as the candidate is",
                path.display()
            );
        }
        // The distance is measured, however large, in the layout that brings the two nearest.
        let allowed = second.graph.places().iter().map(|place| (*place, LIKE)).collect();
        let options = Options { profile: Profile::F32, allowed, ..second.options.clone() };
        let measured =
            |options: &Options| compare(&second.reference, &second.candidate, &second.graph, options, &mut |_, _| {});
        let report = measured(&options)?;
        if let Verdict::Incomparable(reason) = &report.verdict {
            bail!("--noise {}: it cannot be compared with the reference: {reason}", path.display());
        }
        if let Some(tap) = report.taps.iter().find(|tap| tap.metrics.is_some_and(|m| !m.is_finite())) {
            let why = tap.why().unwrap_or("not finite".into());
            bail!("--noise {}: {}: {why}: that is no right run", path.display(), report.name(tap.place));
        }
        let recorded = |dump: &Dump, place: Place| dump.find(place.tap, place.step).is_some();
        let mut noise =
            Noise::measure(&report, |place| recorded(&second.reference, place) && recorded(&second.candidate, place));
        // Compared within its own distance, a tap differs by structure only.
        let own = Options { profile: self.options.profile, noise: Some(noise.clone()), ..second.options.clone() };
        noise.has_structure_in(&measured(&own)?);
        let measured: Vec<_> = noise.places().collect();
        let far = measured.iter().filter(|(_, noise)| noise.is_too_far()).count();
        if 2 * far > measured.len() {
            bail!(
                "--noise {}: {far} of {} are off by an NMSE above {SECOND_RUN_LIMIT}: it is a run of something else, and nothing can be measured by it",
                path.display(),
                taps_in_words(measured.len())
            );
        }
        let both = |place: &Place| recorded(&self.reference, *place) && recorded(&self.candidate, *place);
        let open: Vec<Place> = self.graph.places().iter().copied().filter(both).collect();
        let (equal, lacking) = open
            .into_iter()
            .filter(|place| noise.distance_at(*place).is_none())
            .partition(|place| report.tap(place.tap, place.step).is_some_and(|tap| tap.metrics.is_some()));
        let second = SecondRun { path: path.to_string_lossy().into_owned(), lacking, equal };
        self.warnings.extend(second.warnings(&noise, self.options.profile));
        self.options.noise = Some(noise);
        self.noise = Some(second);
        Ok(self)
    }
}

impl SecondRun {
    fn warnings(&self, noise: &Noise, profile: Profile) -> Vec<String> {
        if noise.is_none() {
            return vec![format!(
                "--noise {}: it is the reference, bit for bit: nothing is measured by it, and the profile's table holds",
                self.path
            )];
        }
        if self.lacking.is_empty() {
            return Vec::new();
        }
        let names: Vec<String> = self.lacking.iter().map(ToString::to_string).collect();
        let text = format!(
            "--noise {}: not in it, and held to the table of {profile}: {} ({})",
            self.path,
            taps_in_words(names.len()),
            shorten(&names, 4)
        );
        vec![text]
    }
}
