//! Which part of a batch belongs to one sequence? A run of several prompts at once, taken apart.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::dump::{Dump, DumpError, Entry, not_a_dump};
use crate::tap::Site;
use crate::tensor::Tensor;

impl Dump {
    /// How many sequences were run at once, where the shapes show it: every tap has an axis of that length in front of those of the
    /// vocabulary, or is flat. A context whose heads are split has one more axis too, so that at least two other kinds of taps must show it.
    pub fn batch(&self) -> Option<usize> {
        let mut sites = BTreeSet::new();
        let mut batch = None;
        for entry in self.entries().iter().filter(|e| e.shape.len() > 1) {
            let axes = entry.tap.site.axes().len();
            match entry.shape.len().checked_sub(axes + 1) {
                Some(0) if batch.is_none_or(|n| n == entry.shape[0]) => batch = Some(entry.shape[0]),
                _ => return None,
            }
            if entry.tap.site != Site::Context {
                sites.insert(entry.tap.site);
            }
        }
        batch.filter(|&n| n > 1 && (sites.len() > 1 || self.entries().len() == 1))
    }

    /// The run of sequence `index` of `count`: of every tap the part that is its own. Taps that cannot be cut into `count` stay as they are, and are
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
                None => {
                    left_out.push(entry.tap.to_string());
                    entries.push(uncut(whole, entry));
                }
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

fn uncut(whole: &Arc<Dump>, entry: &Entry) -> Entry {
    let (dump, source) = (Arc::clone(whole), entry.clone());
    let make = move || dump.read(&source);
    Entry::made(entry.tap, entry.step, entry.shape.clone(), entry.dtype, entry.rows.clone(), make)
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
