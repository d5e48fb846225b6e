//! All mistakes, by the group of their operations.

use super::mistake::Mistake;
use super::{
    attention, embedding, feed_forward, head, linear, norm, precision, recorded, residual, rope, scores, stored,
};

/// Every mistake, by the group of its operations, in their order.
pub fn catalogue() -> impl Iterator<Item = &'static Mistake> {
    let groups = [
        embedding::MISTAKES,
        norm::MISTAKES,
        linear::MISTAKES,
        rope::MISTAKES,
        scores::MISTAKES,
        attention::MISTAKES,
        feed_forward::MISTAKES,
        residual::MISTAKES,
        head::MISTAKES,
        recorded::MISTAKES,
        stored::MISTAKES,
        precision::MISTAKES,
    ];
    groups.into_iter().flatten().copied()
}

/// The entry of an id.
pub fn find(id: &str) -> Option<&'static Mistake> {
    catalogue().find(|mistake| mistake.id == id)
}

/// Every id that can be named of an operation.
pub fn ids() -> Vec<&'static str> {
    made_in_operations().map(|mistake| mistake.id).collect()
}

/// What is done wrong in an operation, in a sentence that follows the taps; empty of an id that is not known.
pub fn what(id: &str) -> &'static str {
    made_in_operations().find(|mistake| mistake.id == id).map_or("", |mistake| mistake.what)
}

/// What to change in the engine; empty of an id that is not known.
pub fn advice(id: &str) -> &'static str {
    made_in_operations().find(|mistake| mistake.id == id).map_or("", |mistake| mistake.fix)
}

fn made_in_operations() -> impl Iterator<Item = &'static Mistake> {
    catalogue().filter(|mistake| mistake.in_programs || !mistake.at.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{catalogue, find, ids, what};

    #[test]
    fn every_entry_is_whole_and_its_id_its_own() {
        let mut known = BTreeSet::new();
        for mistake in catalogue() {
            let id = mistake.id;
            assert!(!id.is_empty() && !mistake.what.is_empty() && !mistake.fix.is_empty(), "{id}");
            assert!(known.insert(id), "{id} stands twice");
            assert_eq!(find(id), Some(mistake));
            let is_made = !mistake.at.is_empty() || mistake.in_file.is_some() || mistake.in_programs;
            assert!(is_made, "{id} is made nowhere");
            let names: BTreeSet<&str> = mistake.params.iter().map(|param| param.name).collect();
            assert_eq!(names.len(), mistake.params.len(), "{id} has a parameter twice");
        }
        assert!(find("nonsense").is_none() && what("nonsense").is_empty());
        assert!(ids().iter().all(|id| known.contains(id)));
    }
}
