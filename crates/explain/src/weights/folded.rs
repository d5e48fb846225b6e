//! Finds norms whose gains stand in the columns of the matrices that read them: neither is A's then, and what they compute together is.

use firstdiff_model::{Role, WeightRef, hugging_face_name};

use super::diagnose::{Pair, close};
use super::side::Side;
use super::{Comparison, Judged, Key, State, finding};
use crate::mistakes::linear::WEIGHT_UNSET;

/// The matrices that read what a norm gives.
fn readers(norm: WeightRef) -> Vec<Key> {
    let roles: &[Role] = match norm.role {
        Role::AttnNorm => &[Role::Q, Role::K, Role::V],
        Role::FfnNorm => &[Role::Gate, Role::Up],
        Role::FinalNorm => &[Role::Head],
        _ => &[],
    };
    roles.iter().map(|&role| Key::of(&hugging_face_name(WeightRef { role, ..norm }))).collect()
}

/// Says of each norm that is wrong with all that reads it whether their products are A's; of one whose readers are wrong otherwise no cause is known.
pub(super) fn folded(judged: &[Judged], sides: [&Side; 2], out: &mut Comparison) {
    for norm in judged.iter().filter(|of| of.same.is_none()).map(|of| &of.key) {
        let readers = norm.weight().map(readers).unwrap_or_default();
        let name = |of: &Key| of.name().to_owned();
        if let Some(residual) = same_products(norm, &readers, sides) {
            let names: Vec<String> = std::iter::once(norm).chain(&readers).map(name).collect();
            out.findings.retain(|finding| !finding.tensors.iter().any(|tensor| names.contains(tensor)));
            let note = "the columns of what reads this norm hold what its gains lack: their products are A's, and both files compute the same";
            let mut one = finding(None, norm, note.into(), Some(residual));
            one.tensors = names;
            out.findings.push(one);
        } else {
            // One that was joined with others has a name of several.
            let is_wrong = |reader: &Key| {
                out.tensors.iter().any(|tensor| tensor.state == State::Wrong && tensor.name.contains(reader.name()))
            };
            if readers.iter().any(is_wrong) {
                let of_it = out.findings.iter_mut().filter(|finding| finding.tensors == [norm.name()]);
                of_it.filter(|finding| finding.cause == Some(WEIGHT_UNSET.id)).for_each(|finding| finding.cause = None);
            }
        }
    }
}

/// NMSE that is left between the products of gains and columns, the largest of all readers'.
fn same_products(norm: &Key, readers: &[Key], sides: [&Side; 2]) -> Option<f64> {
    let of_sides = |key: &Key| Some((sides[0].tensor(key)?, sides[1].tensor(key)?));
    let (left, right) = of_sides(norm)?;
    let gains = [left.values(), right.values()];
    let product = |values: Vec<f32>, gains: &[f32]| -> Vec<f32> {
        values.iter().zip(gains.iter().cycle()).map(|(x, gain)| x * gain).collect()
    };
    let of_reader = |key: &Key| {
        let (left, right) = of_sides(key)?;
        let pair = Pair { key, sides, left: &left, right: &right, copy: false };
        let is_plain = left.shape() == right.shape() && gains.iter().all(|gains| gains.len() == left.row_len());
        let [a, b] = is_plain.then(|| [left.values(), right.in_order(pair.expected_order()).values()])?;
        (a != b).then(|| close(&product(a, &gains[0]), &product(b, &gains[1]), &pair))?
    };
    let left: Vec<f64> = readers.iter().map(of_reader).collect::<Option<_>>()?;
    left.into_iter().reduce(f64::max)
}
