//! What is known of each mistake? One entry a mistake, beside the code that carries it out. What another stage asks of a mistake is a field here,
//! and never its id.

use firstdiff_model::{Model, Step};
use firstdiff_trace::Site;

use super::{
    attention, embedding, feed_forward, head, linear, norm, param::Param, precision, recorded, residual, rope, scores,
    stored,
};

/// A mistake that people make.
#[derive(Debug)]
pub struct Mistake {
    /// Its name, in reports and behind `--only`.
    pub id: &'static str,
    /// What is done wrong, in a sentence that follows the taps: "layers 0-2, q_rope and k_rope: …".
    pub what: &'static str,
    /// What to change in the engine.
    pub fix: &'static str,
    /// What to look at where a file of weights shows it; `None` where no file can.
    pub in_file: Option<&'static str>,
    /// The taps whose operation can be done so; none where only a file of weights shows it.
    pub at: &'static [Site],
    /// Whether it is made in operations that only recorded programs have.
    pub in_programs: bool,
    /// What is said beside the id: its forms, and its numbers.
    pub params: &'static [Param],
    /// What the model says is right at a step, in words or a number, where that helps.
    pub(crate) right_value: fn(&Model, &Step) -> Option<String>,
    /// What a recording must hold to show it.
    pub(crate) note: Option<&'static str>,
    /// Taps of one layer that all carry it; where one of them is right, it is another mistake.
    pub(crate) made_together: &'static [Site],
    /// The kind of mistakes, of which a step has one at most.
    pub(crate) one_of: Option<OneOf>,
    /// Whether an engine may begin to make it at a later decode step.
    pub(crate) begins_later: BeginsLater,
    /// Whether what a token gets may depend on how many there are, or on those behind it.
    pub(crate) mixes_tokens: bool,
    /// Whether it is, or nearly is, a factor on all values: another one can give the same numbers.
    pub(crate) is_a_factor: bool,
    /// Whether its number may be any, and each row of its operation shows that one number alone.
    pub(crate) shows_one_number_a_row: bool,
    /// Whether another order of the rows of Q and K looks like it.
    pub(crate) is_a_row_order: bool,
    /// Whether it is a wrong place of tokens.
    pub(crate) moves_tokens: bool,
    /// Whether it is made in the cache of keys and values: of those or of these alone, and never before a token is decoded.
    pub(crate) in_the_cache: bool,
    /// Whether one piece of code, or one reader of files, makes it in all matrices of a model.
    pub(crate) of_all_matrices: bool,
    /// Whether a matrix of its own is made for each product: what takes longest to imitate, and gives the numbers of no other mistake.
    pub(crate) makes_a_matrix: bool,
    /// Whether it is made in a layer, and hardly ever in all: no model would be left.
    pub(crate) of_a_layer: bool,
    /// Whether what it is known by is a list of numbers: a law says what they are.
    pub(crate) is_a_list: bool,
    /// Behind which others that give the same numbers it is said.
    pub(crate) stands_behind: StandsBehind,
    /// Whether it is no mistake that has a name: an edit of one operation, said by the line of the reference.
    pub(crate) is_unlisted: bool,
    /// Whether it is no mistake, but another arithmetic: it is proved by its own numbers, and stands beside no mistake.
    pub is_another_arithmetic: bool,
}

/// Of mistakes that give the same numbers the one that is made more often is said first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandsBehind {
    /// Behind none.
    None,
    /// Behind those whose number is as plain.
    Plain,
    /// Behind all others.
    All,
}

/// Mistakes that exclude each other in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneOf {
    /// A bias is added once less, or once more.
    Bias,
    /// A norm divides by one thing.
    Divisor,
}

/// Where a mistake may begin to be made behind decode steps that are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginsLater {
    /// It is made for all tokens, or none.
    Never,
    /// Another path of an engine's code may make it for some tokens: it is stated of one operation alone, whose every input is known.
    InOneOperation,
    /// It depends on how many tokens there are: positions, masks, the cache.
    WithTokens,
}

impl Mistake {
    /// Where it can be made, in words.
    pub fn places(&self) -> String {
        let mut sites = self.at.to_vec();
        sites.sort_unstable();
        match sites.len() {
            0 if self.in_programs => "operations of recorded programs".to_owned(),
            0 => "files of weights alone".to_owned(),
            all if all == Site::ALL.len() => "every tap".to_owned(),
            _ => {
                let also = self.in_programs.then_some("operations of recorded programs");
                sites.iter().map(|site| site.name()).chain(also).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// A mistake of which nothing more is to be said: what an entry leaves out.
    pub(super) const ORDINARY: Mistake = Mistake {
        id: "",
        what: "",
        fix: "",
        in_file: None,
        at: &[],
        in_programs: false,
        params: &[],
        right_value: |_, _| None,
        note: None,
        made_together: &[],
        one_of: None,
        begins_later: BeginsLater::Never,
        mixes_tokens: false,
        is_a_factor: false,
        shows_one_number_a_row: false,
        is_a_row_order: false,
        moves_tokens: false,
        in_the_cache: false,
        of_all_matrices: false,
        makes_a_matrix: false,
        of_a_layer: false,
        is_a_list: false,
        stands_behind: StandsBehind::None,
        is_unlisted: false,
        is_another_arithmetic: false,
    };

    /// A parameter by its name.
    pub fn param(&self, name: &str) -> Option<&'static Param> {
        self.params.iter().find(|param| param.name == name)
    }

    /// Whether a parameter follows from the shape of a matrix.
    pub(crate) fn follows_from_shape(&self, name: &str) -> bool {
        self.param(name).is_some_and(|param| param.follows_from_shape)
    }

    /// What the model says is right at a step where it was made, where a number or a name says it.
    pub fn right_value(&self, model: &Model, step: &Step) -> Option<String> {
        (self.right_value)(model, step)
    }
}

/// An id names one entry.
impl PartialEq for Mistake {
    fn eq(&self, other: &Mistake) -> bool {
        self.id == other.id
    }
}

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

/// Taps of several operations, for the entries.
pub(super) mod sites {
    use firstdiff_trace::Site;

    /// Every tap whose operation has weights.
    pub(in crate::mistakes) const WEIGHTED: &[Site] = &[
        Site::Q,
        Site::K,
        Site::V,
        Site::AttnOut,
        Site::FfnGate,
        Site::FfnUp,
        Site::FfnOut,
        Site::Logits,
        Site::H0,
        Site::AttnNorm,
        Site::QNorm,
        Site::KNorm,
        Site::FfnNorm,
        Site::FinalNorm,
    ];
    /// The products of a layer.
    pub(in crate::mistakes) const PROJECTIONS: &[Site] = WEIGHTED.split_at(7).0;
    /// Those, and the head.
    pub(in crate::mistakes) const PRODUCTS: &[Site] = WEIGHTED.split_at(8).0;
    /// Those, and the embedding.
    pub(in crate::mistakes) const MATRICES: &[Site] = WEIGHTED.split_at(9).0;
    /// What has a gain.
    pub(in crate::mistakes) const NORMS: &[Site] = WEIGHTED.split_at(9).1;
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, HashMap};
    use std::path::Path;

    use firstdiff_model::{Chunk, Model, ModelError, Profile, Prompt, TapValues, load, run};
    use firstdiff_trace::{Site, Tap};
    use ndarray::{ArrayD, Axis};

    use super::{Mistake, catalogue, find, ids, what};
    use crate::mistakes::{Edit, Seen, fitted, listed};

    #[test]
    fn every_entry_is_whole_and_its_id_its_own() {
        let mut known = BTreeSet::new();
        for mistake in catalogue() {
            let id = mistake.id;
            assert!(!id.is_empty() && !mistake.what.is_empty() && !mistake.fix.is_empty(), "{id}");
            assert!(known.insert(id), "{id} stands twice");
            assert_eq!(find(id), Some(mistake));
            assert!(mistake.made_together.iter().all(|site| mistake.at.contains(site)), "{id}");
            let is_made = !mistake.at.is_empty() || mistake.in_file.is_some() || mistake.in_programs;
            assert!(is_made, "{id} is made nowhere");
            let names: BTreeSet<&str> = mistake.params.iter().map(|param| param.name).collect();
            assert_eq!(names.len(), mistake.params.len(), "{id} has a parameter twice");
        }
        assert!(find("nonsense").is_none() && what("nonsense").is_empty());
        assert!(ids().iter().all(|id| known.contains(id)));
    }

    /// What each step of a model's prefill gives.
    fn values(model: &Model, tokens: &[u32]) -> HashMap<Tap, ArrayD<f64>> {
        let mut all = HashMap::new();
        let prompt = Prompt { tokens, decode_tokens: &[] };
        run::<ModelError>(
            &model.plan,
            &model.weights,
            prompt,
            Profile::Exact,
            |_| true,
            |tap, _, values| {
                if let TapValues::F64(x) = values {
                    all.insert(tap, x.to_owned());
                }
                Ok(())
            },
        )
        .unwrap();
        all
    }

    /// Numbers off in ways that parameters are read off: a factor, a limit, other rows, masked places that take part.
    fn wrong(right: &ArrayD<f64>) -> Vec<ArrayD<f64>> {
        let limit = right.iter().copied().filter(|x| x.is_finite()).fold(0.0, f64::max) / 2.0;
        let mut rows = right.clone();
        rows.invert_axis(Axis(0));
        vec![
            right.mapv(|x| 1.5 * x),
            right.mapv(|x| x.clamp(-limit, limit)),
            rows,
            right.mapv(|x| if x.is_finite() { x } else { -16.0 }),
            right.mapv(|x| if x == 0.0 { 0.01 } else { x }),
        ]
    }

    fn edits(model: &Model) -> Vec<Edit> {
        let tokens: Vec<u32> = (3..14).collect();
        let prompts = [tokens.clone(), vec![5]];
        let values = values(model, &tokens);
        let mut all = Vec::new();
        for step in &model.plan.steps {
            all.extend(listed(model, step, &prompts));
            let inputs: Vec<_> = step.reads.iter().map(|tap| values[tap].clone()).collect();
            let right = &values[&step.tap];
            for own in &wrong(right) {
                let chunk = Chunk { tokens: &tokens, start: 0 };
                all.extend(fitted(model, step, &Seen { inputs: &inputs, own, right, chunk }));
            }
        }
        all
    }

    /// What needs a bias, or another matrix of that shape, or weights of 16 bits, where none of the fixtures' models has them.
    const NOT_IN_THESE_MODELS: &[(&str, &[Site])] = &[
        ("weight-swapped", &[Site::FfnOut]),
        ("bias-omitted", &[Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut]),
        ("bias-twice", &[Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut]),
        ("storage-type", &[Site::QNorm, Site::KNorm]),
    ];

    /// What is unpacked wrongly needs weights in blocks, which no model of the fixtures has.
    fn needs_blocks(mistake: &Mistake) -> bool {
        [&super::stored::DEQUANT_NIBBLES, &super::stored::DEQUANT_SCALE, &super::stored::DEQUANT_TRUNCATED]
            .contains(&mistake)
    }

    #[test]
    fn mistakes_are_made_where_their_entries_say_and_nowhere_else() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
        let mut made: BTreeMap<&str, BTreeSet<Site>> = BTreeMap::new();
        let mut sites = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let model = load(entry.unwrap().path()).unwrap();
            sites.extend(model.plan.steps.iter().map(|step| step.tap.site));
            for edit in edits(&model) {
                let (mistake, tap) = (edit.mistake, edit.tap);
                let entry = catalogue().find(|entry| std::ptr::eq(*entry, mistake));
                assert!(entry.is_some(), "{} is not in the catalogue", mistake.id);
                assert!(mistake.at.contains(&tap.site), "{} at {tap}", mistake.id);
                for (name, value) in &edit.params {
                    let allowed = mistake.param(name).is_some_and(|param| param.allows(value));
                    assert!(allowed, "{} at {tap}: {name} {value}", mistake.id);
                }
                made.entry(mistake.id).or_default().insert(tap.site);
            }
        }
        for mistake in catalogue().filter(|mistake| !needs_blocks(mistake)) {
            let made = made.remove(mistake.id).unwrap_or_default();
            let known = NOT_IN_THESE_MODELS.iter().filter(|(id, _)| *id == mistake.id).flat_map(|(_, sites)| *sites);
            let due: BTreeSet<Site> = mistake.at.iter().copied().filter(|site| sites.contains(site)).collect();
            let never: Vec<Site> = due.difference(&made).copied().collect();
            assert_eq!(never, known.copied().collect::<Vec<_>>(), "where {} was not made", mistake.id);
        }
    }
}
