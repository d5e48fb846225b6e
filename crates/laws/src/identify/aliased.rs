//! Tensors that share a buffer with one of another size: the begin of a larger one, or a tensor whose begin a smaller one was written over.

use ndarray::{ArrayD, ArrayViewD, Axis as Dimension, IxDyn, Slice};

use crate::case::Place;

/// Elements of a tensor up to which it is tried.
const MOST: usize = 1 << 22;

/// What a tensor of this one's extents may be, where buffers of other sizes stand for it; with what each is called.
pub(super) fn aliased(place: &Place, due: &ArrayD<f64>) -> Vec<(String, ArrayD<f64>)> {
    let mut all = Vec::new();
    let rows = due.shape().first().copied().unwrap_or(0);
    for (name, x) in place.around.iter().filter(|(_, x)| x.len() != due.len() && x.len().max(due.len()) <= MOST) {
        if x.ndim() < 2 || x.shape()[0] != rows || rows == 0 {
            continue;
        }
        let (width, other) = (due.len() / rows, x.len() / rows);
        if other > width {
            parts(due, x, name, &mut all);
            let begin: Vec<f64> = x.iter().copied().take(due.len()).collect();
            let begin = ArrayD::from_shape_vec(IxDyn(due.shape()), begin).ok();
            all.extend(begin.map(|begin| (format!("the begin of the memory of {name}"), begin)));
        } else {
            let mut over = due.as_standard_layout().into_owned();
            over.iter_mut().zip(x).for_each(|(to, from)| *to = *from);
            all.push((format!("itself, the begin of its memory written over by {name}"), over));
            let mut by_row = due.as_standard_layout().into_owned();
            for (mut to, from) in by_row.axis_iter_mut(Dimension(0)).zip(x.axis_iter(Dimension(0))) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            all.push((format!("itself, channels 0 to {} of each row written over by {name}", other - 1), by_row));
        }
    }
    all
}

/// The first, the last, and every so many-th slices of a larger tensor, along its one axis that is longer; of tensors of other ranks, channels.
fn parts(due: &ArrayD<f64>, x: &ArrayD<f64>, name: &str, all: &mut Vec<(String, ArrayD<f64>)>) {
    let flat = |x: &ArrayD<f64>| x.to_shape(vec![x.shape()[0], x.len() / x.shape()[0]]).ok().map(|x| x.into_owned());
    let differ = |x: &[usize], due: &[usize]| (0..x.len()).filter(|&at| x[at] != due[at]).collect::<Vec<_>>();
    let (is_alike, flat_x) = (x.ndim() == due.ndim() && differ(x.shape(), due.shape()).len() == 1, flat(x));
    let (x, shape): (ArrayViewD<'_, f64>, Vec<usize>) = match &flat_x {
        _ if is_alike => (x.view(), due.shape().to_vec()),
        Some(flat) => (flat.view(), vec![due.shape()[0], due.len() / due.shape()[0]]),
        None => return,
    };
    let [axis] = differ(x.shape(), &shape)[..] else { return };
    let (count, of) = (shape[axis], x.shape()[axis]);
    if count == 0 || count >= of {
        return;
    }
    let called = if is_alike && axis + 1 < shape.len() { "heads" } else { "channels" };
    let mut ways = vec![
        (format!("the first {count} {called} of {name}"), Slice::from(0..count)),
        (format!("the last {count} {called} of {name}"), Slice::from(of - count..of)),
    ];
    if of.is_multiple_of(count) {
        let step = of / count;
        ways.push((
            format!("every so many-th of the {called} of {name}, {step} apart"),
            Slice::new(0, None, step as isize),
        ));
    }
    for (words, slice) in ways {
        let part = x.slice_axis(Dimension(axis), slice);
        all.extend(part.to_shape(due.raw_dim()).ok().map(|part| (words, part.into_owned())));
    }
}
