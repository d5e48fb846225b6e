//! A vector whose elements are those of several vectors of the model: a fused or stacked one that is read from another place on.

use std::sync::Arc;

use half::bf16;

use crate::case::{Axis, Case};
use crate::describe::choice;
use crate::describe::source::{Piece, pieces};
use crate::number::Measured;

/// A vector, made of the right one at a place.
pub(super) type Made = Arc<dyn Fn(&Case<'_>, usize, &[f64]) -> Option<Vec<f64>> + Send + Sync>;

/// What was found, in words.
pub(super) struct Found {
    pub(super) words: String,
    pub(super) bits: f64,
    pub(super) of: Made,
}

/// Vectors of which elements are taken, at most.
const MOST_PIECES: usize = 3;
/// A list of elements that is dearer is none.
const DEAR: f64 = 60.0;

/// The vectors that may be meant, the right one first; of other lengths, in parts of the right one's.
fn vectors(case: &Case<'_>, at: usize, own: &[f64]) -> Vec<(String, Vec<f64>)> {
    let n = own.len();
    let mut all = vec![("the right one".to_owned(), own.to_vec())];
    for length in [n, n / 2, 2 * n, n / 4, 4 * n, 3 * n].into_iter().filter(|length| *length > 0) {
        all.extend(case.operation.vectors(at, length).into_iter().filter(|(_, vector)| vector != own));
    }
    let others: Vec<(String, Vec<f64>)> = all[1..].iter().filter(|(_, vector)| vector.len() == n).cloned().collect();
    for (name, other) in others {
        let joined: Vec<u16> = own.iter().chain(&other).map(|x| bf16::from_f64(*x).to_bits()).collect();
        let pairs = joined.chunks_exact(2).map(|pair| f32::from_bits(u32::from(pair[1]) << 16 | u32::from(pair[0])));
        let read = pairs.map(f64::from).collect();
        all.push((
            format!("16-bit numbers of the right one and of {name} read as 32 bits, two of them as one (2i + 1)"),
            read,
        ));
    }
    let halves = |x: &f64| {
        let bits = (*x as f32).to_bits();
        [bits as u16, (bits >> 16) as u16].map(|bits| bf16::from_bits(bits).to_f64())
    };
    let read = own.iter().take(n.div_ceil(2)).flat_map(halves).collect();
    all.push(("the 32-bit numbers of the right one read as 16 bits, one of them as two".to_owned(), read));
    all
}

/// Of which vectors the measured one has its elements, and which.
pub(super) fn found(case: &Case<'_>, own: &[f64], measured: &[Measured]) -> Option<Found> {
    let all = vectors(case, case.fitted, own);
    // Of each element, where it stands; two that are alike tell nothing.
    let place = |(c, m): (usize, &Measured)| -> Option<Option<(usize, usize)>> {
        if m.may_be(own[c]) {
            return Some(Some((0, c)));
        }
        let each = |(of, (_, vector)): (usize, &(String, Vec<f64>))| {
            vector.iter().enumerate().filter(|(_, v)| m.may_be(**v)).map(|(i, _)| (of, i)).collect::<Vec<_>>()
        };
        let places: Vec<(usize, usize)> = all.iter().enumerate().flat_map(each).collect();
        match places[..] {
            [] => None,
            [one] => Some(Some(one)),
            _ => Some(None),
        }
    };
    let places: Vec<Option<(usize, usize)>> = measured.iter().enumerate().map(place).collect::<Option<_>>()?;
    let counts: Vec<usize> = all.iter().map(|(_, vector)| vector.len()).collect();
    let (mut words, mut bits) = (Vec::new(), 4.0);
    let pieces = pieces(&places, &counts, Axis::Channel);
    for Piece { of, on, source } in &pieces {
        let name = &all[*of].0;
        bits += on.bits + source.bits + choice(all.len());
        if *of > 0 || !source.is_itself {
            let on = on.words.as_deref().unwrap_or("all channels");
            words.push(match source.is_itself {
                true => format!("{on} have those of {name}"),
                false => format!("{on} have that of {} of {name} (i: the channel)", source.words),
            });
        }
    }
    if words.is_empty() || pieces.len() > MOST_PIECES || bits > DEAR {
        return None;
    }
    let named = |piece: Piece| (piece.of, all[piece.of].0.clone(), piece.on.has, piece.source.from);
    let pieces: Vec<(usize, String, Vec<bool>, Vec<usize>)> = pieces.into_iter().map(named).collect();
    let of: Made = Arc::new(move |case, at, own| {
        let all = vectors(case, at, own);
        let mut out = own.to_vec();
        for (of, name, has, from) in &pieces {
            let (_, vector) = if *of == 0 { all.first()? } else { all.iter().find(|(known, _)| known == name)? };
            for c in (0..out.len()).filter(|c| has.get(*c) == Some(&true)) {
                out[c] = *vector.get(*from.get(c)?)?;
            }
        }
        Some(out)
    });
    Some(Found { words: words.join("; "), bits, of })
}
