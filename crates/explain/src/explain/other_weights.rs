//! Which other weights of the model may an operation have used? By what each is called from the operation's own place.

use std::collections::HashSet;

use firstdiff_model::{Model, Step, WeightRef};
use ndarray::Array2;

use crate::laws::{OtherWeights, weight_called};

/// The weights of a model, as the steps of an operation's places see them.
pub(super) struct ByPlace<'a> {
    pub(super) model: &'a Model,
    /// The step that has weights, of each place.
    pub(super) steps: Vec<&'a Step>,
}

impl ByPlace<'_> {
    /// All weights of so many axes nearby: those of the layer, of its neighbours, and of no layer.
    fn nearby(&self, place: usize, axes: usize) -> Vec<(String, WeightRef)> {
        let Some(own) = self.steps.get(place) else { return Vec::new() };
        let plan = &self.model.plan;
        let last = plan.dims.layers.saturating_sub(1);
        let (mut all, mut known) = (Vec::new(), HashSet::new());
        for step in &plan.steps {
            for (at, &weight) in step.weights.iter().enumerate() {
                let layers = (own.tap.layer, step.tap.layer);
                let called = weight_called(step.tap.site.name(), axes, at > 0, layers, last);
                let has_axes = self.model.weights.shape(weight).is_some_and(|shape| shape.len() == axes);
                if has_axes && !called.is_empty() && known.insert(weight) {
                    all.extend(called.into_iter().map(|called| (called, weight)));
                }
            }
        }
        all
    }

    fn extents(&self, weight: WeightRef) -> Option<[usize; 2]> {
        self.model.weights.shape(weight)?.try_into().ok()
    }
}

impl OtherWeights for ByPlace<'_> {
    fn columns(&self, place: usize) -> Option<usize> {
        Some(self.extents(*self.steps.get(place)?.weights.first()?)?[1])
    }

    fn matrices(&self, place: usize) -> Vec<(String, [usize; 2])> {
        let own = self.steps.get(place).and_then(|step| step.weights.first());
        let others = self.nearby(place, 2).into_iter().filter(|(_, weight)| Some(weight) != own);
        others.filter_map(|(name, weight)| Some((name, self.extents(weight)?))).collect()
    }

    fn matrix(&self, place: usize, name: &str) -> Option<Array2<f64>> {
        let (_, weight) = self.nearby(place, 2).into_iter().find(|(known, _)| known == name)?;
        let view = self.model.weights.view(weight).ok()?;
        Some(view.rows::<f64>(0..*view.shape().first()?))
    }

    fn vectors(&self, place: usize, length: usize) -> Vec<(String, Vec<f64>)> {
        let of = |(name, weight): (String, WeightRef)| {
            let view = self.model.weights.view(weight).ok().filter(|view| view.len() == length)?;
            Some((name, view.vector::<f64>().to_vec()))
        };
        self.nearby(place, 1).into_iter().filter_map(of).collect()
    }
}
