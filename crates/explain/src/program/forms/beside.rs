//! Weights that may be taken for one: of other layers, of the same layer, and the bias beside each.

use firstdiff_program::View;

use crate::program::context::Context;

/// Weights that may be taken for one: `next` and `previous` of the same name with another number in it, and the others of its layer, by their name there.
pub(super) fn beside(context: &Context<'_>, weight: &View, name: &str) -> Vec<(String, usize)> {
    let own: Vec<&str> = name.split('.').collect();
    let number = |part: &str| part.parse::<usize>().ok();
    // The number of the expert, else that of the layer.
    let numbered = own.iter().rposition(|part| number(part).is_some());
    let layer = own.iter().position(|part| number(part).is_some());
    let mut out = Vec::new();
    // The nearest number above, and below, that has one.
    let mut near: [Option<(usize, usize)>; 2] = [None; 2];
    for (other, buffer) in context.alike(weight) {
        let parts: Vec<&str> = other.split('.').collect();
        let differs: Vec<usize> = (0..parts.len().max(own.len())).filter(|&at| parts.get(at) != own.get(at)).collect();
        if differs.len() == 1 && Some(differs[0]) == numbered {
            let (this, that) = (number(own[differs[0]]), number(parts[differs[0]]));
            if let Some((this, that)) = this.zip(that) {
                let (side, apart) = (usize::from(that < this), this.abs_diff(that));
                if near[side].is_none_or(|(known, _)| apart < known) {
                    near[side] = Some((apart, buffer));
                }
            }
        } else if layer.is_some_and(|layer| parts.get(..=layer) == own.get(..=layer)) && parts.last() == own.last() {
            // What the names share in front says nothing; one that ends with its layer's number has nothing behind that.
            let at = differs.first().copied().unwrap_or(0);
            out.extend(parts.get(at..parts.len() - 1).map(|parts| (parts.join("."), buffer)));
        }
    }
    let words = ["next", "previous"].into_iter().zip(near);
    out.extend(words.filter_map(|(word, found)| Some((word.to_owned(), found?.1))));
    out
}

/// The bias that stands beside another weight, in place of one.
pub(super) fn bias_beside(context: &Context<'_>, weight: &View, bias: &View) -> Option<View> {
    let last = context.weight(bias)?.rsplit('.').next()?;
    let name = format!("{}.{last}", context.weight(weight)?.rsplit_once('.')?.0);
    let buffer = context.program.weights().iter().find(|(_, known)| **known == name).map(|(&buffer, _)| buffer)?;
    Some(View { buffer, ..bias.clone() })
}
