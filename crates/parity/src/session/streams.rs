//! Decides by the other run, or the model, whether the last `hidden_states.N` of transformers is the output of the last layer or of the final norm.

use anyhow::Result;
use firstdiff_compare::metrics::Squares;
use firstdiff_trace::{Dump, Site, Tap};

/// Nearer than this share of the energy is the same tap, if the other tap is at least the second number times as far.
const NEAR: f64 = 0.01;
const FURTHER: f64 = 100.0;

/// Both dumps with the meaning of their last `hidden_states.N`, where the other run shows it: by its values, else by its number of layers.
///
/// # Errors
/// When a tensor cannot be read.
pub fn resolve(reference: Dump, candidate: Dump) -> Result<(Dump, Dump)> {
    let [ours, theirs] = [(&reference, &candidate), (&candidate, &reference)]
        .map(|(dump, other)| dump.last_hidden_state().and_then(|last| is_normed(dump, last, other)));
    Ok((set_stream_meaning(reference, ours)?, set_stream_meaning(candidate, theirs)?))
}

/// The dump with the same, by the number of layers of its model.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_by_model(dump: Dump, layers: usize) -> Result<Dump> {
    let last = dump.last_hidden_state().map(|last| last as usize);
    let normed = last.filter(|last| *last <= layers).map(|last| last == layers);
    set_stream_meaning(dump, normed)
}

fn set_stream_meaning(dump: Dump, normed: Option<bool>) -> Result<Dump> {
    match normed {
        Some(normed) => Ok(dump.resolve_last_hidden_state(normed)?),
        None => Ok(dump),
    }
}

fn is_normed(dump: &Dump, last: u32, other: &Dump) -> Option<bool> {
    let norm = Tap { layer: None, site: Site::FinalNorm };
    let [to_norm, to_stream] =
        [norm, Tap::layer(last.checked_sub(1)?, Site::H)].map(|tap| stream_nmse(dump, other, tap));
    if let (Some(to_norm), Some(to_stream)) = (to_norm, to_stream) {
        let (near, far) = (to_norm.min(to_stream), to_norm.max(to_stream));
        if near <= NEAR && far >= FURTHER * near {
            return Some(to_norm < to_stream);
        }
    }
    let taps = || other.entries().iter().map(|e| e.tap).chain(other.parts().iter().map(|p| p.tap));
    let layers = taps().filter_map(|tap| tap.layer).max().map_or(0, |layer| layer + 1);
    let ends = taps().any(|tap| matches!(tap.site, Site::FinalNorm | Site::Logits));
    match other.last_hidden_state() {
        // The same streams on both sides are the same, whatever they are called.
        Some(theirs) if theirs == last => Some(true),
        Some(theirs) if theirs > last => Some(false),
        _ if layers > last => Some(false),
        _ if layers == last && ends => Some(true),
        _ => None,
    }
}

/// NMSE of the last stream against a tap of the other run, where both hold as many values.
fn stream_nmse(dump: &Dump, other: &Dump, tap: Tap) -> Option<f64> {
    let entry = other.find(tap, 0)?;
    let own = dump.read_last_hidden_state()?;
    let (x, y) = (other.read(entry).ok()?.values().to_f64(), own.values().to_f64());
    let squares = Squares::sum(x.iter().copied().zip(y.iter().copied()));
    (x.len() == y.len() && squares.energy > 0.0).then_some(squares.ratio())
}
