//! A form: one way in which a mistake is made in some operations.

use std::ops::Range;
use std::sync::Arc;

use firstdiff_program::{At, Change, Edit};

use crate::explain::Cause;
use crate::mistakes::{Mistake, Params, Values};

/// One way to carry out some operations otherwise.
#[derive(Clone)]
pub(crate) struct Form {
    pub(crate) mistake: &'static Mistake,
    pub(crate) params: Params,
    pub(crate) edits: Vec<Edit>,
    /// Of the operation that it is made in.
    pub(crate) class: usize,
    /// A number that may be any: its name, the right one, and what is done with another.
    pub(crate) tune: Option<Tune>,
    /// The reference's own number, where it has another one.
    pub(crate) due: Option<f64>,
    /// What the reference has where that is no number, at each of the edits.
    pub(crate) has: Vec<(Option<At>, String)>,
    /// What it has in common with others that one line of code does: the tensor that is cut at other places.
    pub(crate) kin: Option<String>,
    /// The steps in which it is made: not in decode steps before it begins, or in the prefill alone.
    pub(crate) steps: Range<u32>,
}

/// A number that may be any.
#[derive(Clone)]
pub(crate) struct Tune {
    pub(crate) name: &'static str,
    pub(crate) right: f64,
    /// The one that the search begins with.
    pub(crate) first: f64,
    pub(crate) with: Arc<dyn Fn(f64) -> Vec<Edit> + Send + Sync>,
    /// Whether it counts something.
    pub(crate) is_whole: bool,
}

impl Form {
    pub(crate) fn new(mistake: &'static Mistake, params: Params, edits: Vec<Edit>) -> Form {
        Form { mistake, params, edits, class: 0, tune: None, due: None, has: Vec::new(), kin: None, steps: 0..u32::MAX }
    }

    /// A form of one operation.
    pub(crate) fn one(mistake: &'static Mistake, params: Params, op: usize, change: Change) -> Form {
        Form::new(mistake, params, vec![Edit { at: At::Op(op), change }])
    }

    /// A form of what those behind a tap read.
    pub(crate) fn read(mistake: &'static Mistake, params: Params, tap: usize, change: Change) -> Form {
        Form::new(mistake, params, vec![Edit { at: At::Tap(tap), change }])
    }

    /// With a number that may be any, in one place.
    pub(crate) fn any(
        mistake: &'static Mistake,
        name: &'static str,
        right: f64,
        at: At,
        change: impl Fn(f64) -> Change + Send + Sync + 'static,
    ) -> Form {
        Form::any_of(mistake, name, right, move |value| vec![Edit { at, change: change(value) }])
    }

    /// With a number that may be any, in several.
    pub(crate) fn any_of(
        mistake: &'static Mistake,
        name: &'static str,
        right: f64,
        with: impl Fn(f64) -> Vec<Edit> + Send + Sync + 'static,
    ) -> Form {
        let first = if right == 0.0 { 1.0 } else { right };
        let tune = Tune { name, right, first, with: Arc::new(with), is_whole: false };
        Form { tune: Some(tune), ..Form::new(mistake, Vec::new(), Vec::new()) }
    }

    /// With a number that is a whole one.
    pub(crate) fn whole(mut self) -> Form {
        self.tune.iter_mut().for_each(|tune| tune.is_whole = true);
        self
    }

    /// With a number that is looked for from this one on.
    pub(crate) fn beginning_at(mut self, first: f64) -> Form {
        self.tune.iter_mut().for_each(|tune| tune.first = first);
        self
    }

    /// That says more of itself.
    pub(crate) fn saying(self, params: Params) -> Form {
        Form { params, ..self }
    }

    /// In the place of a number of the reference's.
    pub(crate) fn due(self, number: impl Into<Option<f64>>) -> Form {
        Form { due: number.into(), ..self }
    }

    /// With what the reference has, in words.
    pub(crate) fn having(self, words: impl Into<Option<String>>) -> Form {
        let at = self.edits.first().map(|edit| edit.at);
        Form { has: words.into().map(|words| (at, words)).into_iter().collect(), ..self }
    }

    /// What the reference has where this form is made, in words: the first of it.
    pub(crate) fn what_is_due(&self) -> Option<String> {
        let is_made = |at: &Option<At>| at.is_none_or(|at| self.edits.iter().any(|edit| edit.at == at));
        let mut all = self.has.iter().filter(|(at, _)| is_made(at)).map(|(_, words)| words);
        let first = all.next()?;
        Some(format!("{first}{}", if all.any(|other| other != first) { " and others" } else { "" }))
    }

    /// What is said of it.
    pub(crate) fn cause(&self) -> Cause {
        Cause { id: self.mistake.id, params: self.params.clone() }
    }

    /// Whether a number of it was read off the candidate.
    pub(crate) fn is_fitted(&self) -> bool {
        let is_free = |name: &str| self.mistake.param(name).is_some_and(|param| param.values == Values::Free);
        self.params.iter().any(|(name, value)| is_free(name) && value.is_number())
    }

    /// What tells it from other forms, wherever it is made: what follows from the shape of a matrix does not.
    pub(crate) fn key(&self) -> String {
        let params = self.params.iter().filter(|(name, _)| !self.mistake.follows_from_shape(name));
        let params = params.map(|(name, value)| format!("{name}={value}"));
        let any = self.tune.iter().map(|tune| tune.name.to_owned());
        format!("{} {}", self.mistake.id, params.chain(any).collect::<Vec<_>>().join(","))
    }

    /// The same form among those of another place, with its number where that may be any; first of the same operation.
    pub(crate) fn among(&self, others: &[Form]) -> Option<Form> {
        let (own, rest): (Vec<&Form>, Vec<&Form>) = others.iter().partition(|other| other.class == self.class);
        let all = || own.iter().chain(&rest);
        let same = all().find(|other| other.key() == self.key()).map(|same| (*same).clone());
        same.or_else(|| all().find_map(|other| other.with_number_of(self)))
    }

    /// The same with the number of another, where they differ in that alone.
    pub(crate) fn with_number_of(&self, other: &Form) -> Option<Form> {
        let tune = self.tune.as_ref().filter(|_| other.mistake == self.mistake)?;
        let is_same = self.params.iter().all(|param| other.params.contains(param));
        let number = other.params.iter().find(|(name, _)| *name == tune.name)?.1.as_f64()?;
        is_same.then(|| self.tuned(number))
    }

    /// The same with a value of its number.
    pub(crate) fn tuned(&self, value: f64) -> Form {
        let Some(tune) = &self.tune else { return self.clone() };
        let params = [&self.params[..], &[(tune.name, serde_json::json!(value))]].concat();
        Form { params, edits: (tune.with)(value), tune: None, ..self.clone() }
    }
}

/// What tells a form from others where the line of code is another: the same is done in decoding by another line.
pub(crate) fn kin(form: &Form) -> String {
    if let Some(kin) = &form.kin {
        return kin.clone();
    }
    let tells = |name: &str| name != "operation" && !form.mistake.follows_from_shape(name);
    let params = form.params.iter().filter(|(name, _)| tells(name)).map(|(name, value)| format!("{name}={value}"));
    format!("{} {}", form.mistake.id, params.collect::<Vec<_>>().join(","))
}

/// A number with so many digits.
pub(crate) fn rounded_to(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi((digits - 1).saturating_sub(value.abs().log10().floor() as i32));
    if scale.is_finite() && scale > 0.0 { (value * scale).round() / scale } else { value }
}
