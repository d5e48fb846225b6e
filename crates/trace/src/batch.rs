//! Which part of a batch belongs to one sequence? A run of several prompts at once, taken apart.

use std::path::Path;
use std::sync::Arc;

use crate::dump::{Dump, DumpError, Entry, not_a_dump};
use crate::tensor::Tensor;

impl Dump {
    /// How many sequences were run at once, where the shapes show it: by an axis longer than 1 in front of those of the vocabulary.
    pub fn batch(&self) -> Option<usize> {
        let in_front = |e: &Entry| match e.shape.len() == e.tap.site.axes().len() + 1 {
            true => e.shape.first().copied(),
            false => None,
        };
        // Heads that are split, [T, H, d] of a context, look like a batch too: every tap with one more axis must tell the same.
        let mut told = self.entries().iter().filter_map(in_front);
        let first = told.next().filter(|&n| n > 1)?;
        told.all(|n| n == first).then_some(first)
    }

    /// The run of sequence `index` of `count`: of every tap the part that is its own. Taps that cannot be cut into `count` are left out, and
    /// said in the notes.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn sequence(whole: &Arc<Dump>, index: usize, count: usize) -> Result<Dump, DumpError> {
        if index >= count {
            return Err(not_a_dump(whole.path(), &format!("sequence {index} asked for, of {count}")));
        }
        let mut entries = Vec::new();
        let mut left_out = Vec::new();
        for entry in whole.entries() {
            match shape_of_one(&entry.shape, count) {
                Some(shape) => entries.push(cut(whole, entry, shape, index)),
                None => left_out.push(entry.tap.to_string()),
            }
        }
        let mut dump = Dump::assembled(Path::new(whole.path()), whole.meta().clone(), entries)?;
        dump.unnamed = whole.unnamed().to_vec();
        dump.notes = whole.notes().to_vec();
        if let Some(first) = left_out.first() {
            dump.notes.push(format!("{first} and {} more cannot be cut into {count} sequences", left_out.len() - 1));
        }
        Ok(dump)
    }
}

/// The shape of one sequence: without the batch's axis, where there is one; of a flat tensor a part.
fn shape_of_one(shape: &[usize], count: usize) -> Option<Vec<usize>> {
    let (&first, rest) = shape.split_first()?;
    match (first == count, rest.is_empty()) {
        (true, false) => Some(rest.to_vec()),
        // Positions of all sequences one after the other, or a flat tensor.
        _ => first.is_multiple_of(count).then(|| [&[first / count], rest].concat()),
    }
}

fn cut(whole: &Arc<Dump>, entry: &Entry, shape: Vec<usize>, index: usize) -> Entry {
    let (dump, source, own) = (Arc::clone(whole), entry.clone(), shape.clone());
    let make = move || {
        let tensor = dump.read(&source)?;
        let length: usize = own.iter().product();
        let part = tensor.values().slice(index * length..(index + 1) * length);
        Tensor::held(own.clone(), part)
            .map_err(|_| not_a_dump(dump.path(), "a batch that is no multiple of its sequences"))
    };
    Entry::made(entry.tap, entry.step, shape, entry.dtype, entry.rows.clone(), make)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_one_sequence() {
        assert_eq!(shape_of_one(&[2, 5, 64], 2), Some(vec![5, 64]));
        assert_eq!(shape_of_one(&[640], 2), Some(vec![320]));
        assert_eq!(shape_of_one(&[10, 64], 2), Some(vec![5, 64]));
        assert_eq!(shape_of_one(&[5, 64], 2), None);
    }
}
