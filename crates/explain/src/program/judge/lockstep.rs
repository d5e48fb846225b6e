//! What is due at each tap: the same program in several arithmetics, side by side.

use std::collections::HashMap;

use firstdiff_program::{
    Arithmetic, Bench, DType as ProgramType, Edit, EvaluateError, Evaluator, Kind, Program, ProgramTap, Slice, Tensor,
    Values,
};
use ndarray::ArrayD;

use crate::program::arrays::array;
use crate::program::held::{Held, Part, ReadBack, beside_an_edge, moved, rounded_to_type};
use crate::program::routing::routing;
use crate::program::{Candidate, Recording};
use crate::replay::operation::own_unit;
use crate::replay::operation::{is_coarse, loses, unit_of};
use crate::replay::{ReplayError, Routing, leave_hidden_rows};
use crate::tolerance::replay::BESIDE_ONE;

/// What is due at a tap.
#[derive(Clone)]
pub(super) struct Due {
    /// In the profile's arithmetic.
    pub(super) right: ArrayD<f64>,
    pub(super) exact: ArrayD<f64>,
    /// From inputs as another right recording would have them, where that differs.
    pub(super) moved: Option<ArrayD<f64>>,
    /// As the program's own types round the exact value, where they do.
    pub(super) narrow: Option<ArrayD<f64>>,
    /// What is chosen among, where the tap says which.
    pub(super) choices: Option<ArrayD<f64>>,
}

impl Due {
    /// What a slice makes of what the candidate holds, or why that is not known.
    pub(super) fn of(
        (program, slice): (&Program, &Slice<'_>),
        bench: &Bench<'_>,
        rounded: Option<&Bench<'_>>,
        held: &Held,
    ) -> Result<Due, String> {
        Due::of_values((program, slice), bench, rounded, held, &|known| held.readable(known).map(Tensor::view))
    }

    /// The same of other values.
    pub(super) fn of_values<'v>(
        (program, slice): (&Program, &Slice<'_>),
        bench: &Bench<'_>,
        rounded: Option<&Bench<'_>>,
        held: &Held,
        value: &dyn Fn(usize) -> Option<Tensor<'v>>,
    ) -> Result<Due, String> {
        let with = |bench: &Bench<'_>, edits: &[Edit]| slice.evaluate(bench, value, edits).map(|value| array(&value));
        let keeping = held.keeping(program, slice, rounded_to_type);
        let exact = with(bench, &keeping).map_err(|error| error.to_string())?;
        let right = rounded.map_or_else(|| Ok(exact.clone()), |bench| with(bench, &keeping));
        let right = right.map_err(|error| error.to_string())?;
        let otherwise = || with(bench, &held.keeping(program, slice, beside_an_edge)).ok();
        let moved = (!keeping.is_empty()).then(otherwise).flatten();
        Ok(Due { right, exact, moved, narrow: None, choices: None })
    }

    /// The same, with the candidate's own where every key is masked.
    pub(super) fn beside_hidden_rows(mut self, own: &ArrayD<f64>, scores: &ArrayD<f64>) -> Due {
        let all = [&mut self.right, &mut self.exact].into_iter().chain(&mut self.moved).chain(&mut self.narrow);
        all.for_each(|values| leave_hidden_rows(values, own, scores));
        self
    }

    /// The same of some rows.
    pub(super) fn of_rows(&self, part: &Part) -> Due {
        let picked = |all: &ArrayD<f64>| part.rows_of(all);
        Due {
            right: picked(&self.right),
            exact: picked(&self.exact),
            moved: self.moved.as_ref().map(picked),
            narrow: self.narrow.as_ref().map(picked),
            choices: None,
        }
    }
}

/// The same program in several arithmetics, side by side.
pub(in crate::program) struct Lockstep<'a> {
    pub(super) program: &'a Program,
    pub(super) exact: Evaluator<'a>,
    /// In the profile's arithmetic; `None` where that is f64.
    pub(super) rounded: Option<Evaluator<'a>>,
    /// On values that were moved by half a unit of rounding.
    pub(super) moved: Option<Evaluator<'a>>,
    /// As the program's own types round, where those are of 16 bits and the exact values are not.
    pub(super) narrow: Option<Evaluator<'a>>,
    /// The unit of rounding of each tap, where that counts.
    pub(super) units: HashMap<usize, f64>,
}

impl<'a> Lockstep<'a> {
    pub(super) fn new(recording: &Recording<'a>, candidate: &Candidate<'_>, held: &Held) -> Lockstep<'a> {
        let Recording { program, weights } = *recording;
        let evaluator = |arithmetic| Evaluator::new(program, arithmetic, weights);
        let (profile, coarse) = (candidate.profile, is_coarse(candidate.profile));
        let mut units = HashMap::new();
        for number in 0..program.taps().len() {
            let dtype = candidate.dtype(held.place(number));
            let recorded = if loses(profile, dtype) { unit_of(dtype) } else { 0.0 };
            let unit = if candidate.is_stepped() { own_unit(profile).max(recorded) } else { recorded };
            units.extend((unit > 0.0).then_some((number, unit)));
        }
        let rounded = candidate.arithmetic();
        let second = rounded.filter(|_| coarse).unwrap_or(Arithmetic::F64);
        Lockstep {
            program,
            exact: evaluator(candidate.exact()),
            rounded: rounded.map(evaluator),
            moved: (!units.is_empty()).then(|| evaluator(second)),
            narrow: (coarse && program.taps().iter().any(is_of_16_bits)).then(|| evaluator(Arithmetic::F64)),
            units,
        }
    }

    pub(super) fn next_tap(&mut self) -> Option<usize> {
        let others = self.rounded.iter_mut().chain(&mut self.moved).chain(&mut self.narrow);
        others.for_each(|evaluator| {
            evaluator.next_tap();
        });
        self.exact.next_tap()
    }

    /// What is due at the tap that was reached, or why that is not known.
    pub(super) fn due(&mut self, tap: usize) -> Result<Result<Due, String>, EvaluateError> {
        let Some(exact) = self.exact.value(tap)?.map(|value| array(&value)) else {
            return Ok(Err(self.exact.why(tap).map_or_else(String::new, ToString::to_string)));
        };
        let of = |evaluator: Option<&mut Evaluator<'_>>| -> Result<Option<ArrayD<f64>>, EvaluateError> {
            let Some(evaluator) = evaluator else { return Ok(None) };
            Ok(evaluator.value(tap)?.map(|value| array(&value)).filter(|value| value.shape() == exact.shape()))
        };
        let is_rounded = self.rounded.is_some();
        let right = match of(self.rounded.as_mut())? {
            Some(right) => right,
            // Its values take it another way: nothing is due in this arithmetic.
            None if is_rounded => {
                let why = self.rounded.as_ref().and_then(|rounded| rounded.why(tap)).map(ToString::to_string);
                return Ok(Err(why.unwrap_or_else(|| "rounding decides how many rows it has".to_owned())));
            }
            None => exact.clone(),
        };
        let moved = of(self.moved.as_mut())?;
        let narrow = of(self.narrow.as_mut())?;
        Ok(Ok(Due { right, exact, moved, narrow, choices: self.choices(tap) }))
    }

    /// Whether the tap that was reached is off by no more than f32 makes of 1 + erf(x): of large negative numbers GELU leaves less than that.
    pub(super) fn is_beside_one(&self, tap: usize, own: &ArrayD<f64>, exact: &ArrayD<f64>) -> bool {
        let op = &self.program.ops()[self.program.taps()[tap].op];
        let is_gelu = op.base() == GELU;
        let input = op.operands.first().filter(|_| is_gelu).and_then(|input| self.exact.operand(input));
        let Some(input) = input.map(|input| array(&input)).filter(|input| input.len() == own.len()) else {
            return false;
        };
        let mut all = own.iter().zip(exact).zip(&input);
        all.all(|((own, exact), x)| (own - exact).abs() <= BESIDE_ONE * x.abs())
    }

    /// What the tap that was reached is chosen from, where its operation says that.
    pub(super) fn choices(&self, tap: usize) -> Option<ArrayD<f64>> {
        let op = &self.program.ops()[self.program.taps()[tap].op];
        let among = op.operands.first().filter(|_| op.name.starts_with("topk"));
        among.and_then(|among| self.exact.operand(among)).map(|value| array(&value))
    }

    /// The tokens that a choice sends elsewhere than the reference's.
    pub(super) fn routing(
        &self,
        tap: usize,
        held: &Held,
        candidate: &Candidate<'_>,
    ) -> Result<Option<Routing>, ReplayError> {
        let view = &self.program.taps()[tap].view;
        let (own, place) = (held.readable(tap).filter(|_| view.dtype.kind() == Kind::Int), held.place(tap));
        // What follows from its scores by right operations is not what it chose.
        let Some(own) = own.filter(|_| held.get(tap).is_some()) else { return Ok(None) };
        let Some(reference) = candidate.values.reference(place)? else { return Ok(None) };
        let values = Values::from(reference.into_iter().map(|x| x as i64).collect::<Vec<_>>());
        let reference = Tensor::new(view.dtype, view.shape.clone(), values);
        let (among, unit) = (self.choices(tap), own_unit(candidate.profile));
        Ok(reference.and_then(|reference| routing(place, own, &reference, among.as_ref(), unit)))
    }

    /// Goes on with what the candidate holds, where anything can be computed from that.
    pub(super) fn hold(&mut self, tap: usize, held: &Held) -> Result<(), EvaluateError> {
        let Some(own) = held.readable(tap) else { return self.keep(tap, held) };
        self.exact.hold(tap, own.view())?;
        for evaluator in self.rounded.iter_mut().chain(&mut self.narrow) {
            evaluator.hold(tap, own.view())?;
        }
        if let Some(evaluator) = &mut self.moved {
            let site = held.place(tap).tap.last_site();
            let other = self.units.get(&tap).map(|&unit| moved(own, unit, site));
            evaluator.hold(tap, other.unwrap_or_else(|| own.clone()))?;
        }
        Ok(())
    }

    /// Goes on with keys or values that were not recorded as they are read back from the cache.
    pub(super) fn keep(&mut self, tap: usize, held: &Held) -> Result<(), EvaluateError> {
        if !held.is_kept(tap) {
            return Ok(());
        }
        let others = [&mut self.exact].into_iter().chain(&mut self.rounded).chain(&mut self.narrow);
        let others = others.map(|evaluator| (evaluator, rounded_to_type as ReadBack));
        for (evaluator, how) in others.chain(self.moved.as_mut().map(|moved| (moved, beside_an_edge as ReadBack))) {
            let read_back = evaluator.value(tap)?.map(|value| held.read_back(&value, how));
            read_back.map_or(Ok(()), |value| evaluator.hold(tap, value))?;
        }
        Ok(())
    }

    /// What could not be carried out.
    pub(super) fn warnings(&self) -> Vec<String> {
        let gaps = self.exact.gaps();
        let told = gaps
            .iter()
            .take(TOLD)
            .map(|gap| format!("{gap}: what reads it is held against the reference's own value, where that tells"));
        let more =
            (gaps.len() > TOLD).then(|| format!("{} further operations could not be carried out", gaps.len() - TOLD));
        told.chain(more).collect()
    }
}

/// PyTorch's name of the operation.
pub(super) const GELU: &str = "gelu";

/// How many operations without a value are told of one by one.
pub(super) const TOLD: usize = 3;

/// Whether the program itself rounds a tap to 16 bits.
pub(super) fn is_of_16_bits(tap: &ProgramTap) -> bool {
    matches!(tap.view.dtype, ProgramType::F16 | ProgramType::BF16)
}
