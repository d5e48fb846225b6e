//! Quantised weights that are read otherwise than they are stored.

use std::sync::Arc;

use firstdiff_model::{Storage, WeightView};
use firstdiff_program::{At, Change, DType, Edit, OtherOperand, Tensor, Values, View};
use half::{bf16, f16};
use serde_json::json;

use crate::mistakes::stored::DEQUANT_TRUNCATED;
use crate::mistakes::unpack::misread;
use crate::mistakes::{Mistake, Params};
use crate::program::context::Context;
use crate::program::form::Form;

/// Blocks that are unpacked otherwise, and tensors of which only the first part is read.
pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    if !matches!(context.base(op), "linear" | "embedding") {
        return Vec::new();
    }
    let stored = |(place, view): (usize, &View)| {
        let is_whole = |stored: &WeightView<'_>| stored.len() == view.elements() && stored.storage().is_quantised();
        Some((place, view.clone(), context.stored(view).filter(is_whole)?))
    };
    let Some((place, view, stored)) = context.tensors(op).into_iter().find_map(stored) else { return Vec::new() };
    let form = |mistake: &'static Mistake, params: Params, change: Change| {
        Form::new(mistake, params, vec![Edit { at: At::Op(op), change }])
    };
    let unpacked = misread(stored).into_iter().map(|way| {
        let shape = view.shape.clone();
        let value = move |_: &[Tensor<'_>]| {
            let values: Vec<f64> = (way.values)().into_iter().map(f64::from).collect();
            Some(vec![Tensor::new(DType::F64, shape.clone(), Values::from(values))?])
        };
        let other = OtherOperand { place: (place, None), views: Vec::new(), value: Arc::new(value) };
        form(way.mistake, vec![("kind", json!(way.kind))], Change::Operands(vec![other]))
    });
    let mut forms: Vec<Form> = unpacked.collect();
    let Storage::Block(kind) = stored.storage() else { return forms };
    let (count, block) = (view.elements(), kind.block_len());
    let owned = view.clone();
    let read = move |keeps: Arc<dyn Fn(usize) -> bool + Send + Sync>| {
        let value = move |tensors: &[Tensor<'_>]| {
            let all = tensors.first()?;
            let kept: Vec<f64> =
                all.to_floats().iter().enumerate().map(|(at, &x)| if keeps(at) { x } else { 0.0 }).collect();
            Some(vec![Tensor::new(DType::F64, all.shape().to_vec(), Values::from(kept))?])
        };
        let views = vec![owned.clone()];
        Change::Operands(vec![OtherOperand { place: (place, None), views, value: Arc::new(value) }])
    };
    // So many bytes are read, the rest of the elements stays 0.
    for (name, bytes_read) in [("numel/2", count / 2), ("numel", count), ("numel/4", count / 4)] {
        let whole = bytes_read / kind.block_bytes() * block;
        if bytes_read < stored.bytes().len() {
            let params = vec![("bytes_read", json!(name)), ("zero_from", json!(whole))];
            forms.push(form(&DEQUANT_TRUNCATED, params, read(Arc::new(move |at| at < whole))));
        }
    }
    let width = view.shape.last().copied().unwrap_or(1);
    if width > block {
        let params = vec![("kind", json!("first block of each row"))];
        forms.push(form(&DEQUANT_TRUNCATED, params, read(Arc::new(move |at| at % width < block))));
    }
    let (pieces, read) = (count / block, read.clone());
    let part = move |part: f64| {
        let whole = (part.clamp(0.0, 1.0) * pieces as f64).round() as usize * block;
        read(Arc::new(move |at| at < whole))
    };
    forms.push(Form::any(&DEQUANT_TRUNCATED, "part_read", 1.0, At::Op(op), part).beginning_at(0.5));
    forms
}

/// What a number becomes whose 16 bits are read as the other type's.
pub(super) type Bits = fn(f64) -> f64;

/// 16 bits that are read as the other type's. What they are stored as the engine may have chosen itself.
pub(super) fn read_as(form: impl Fn(Params, Bits) -> Form) -> [Form; 2] {
    let other: [(&str, &str, Bits); 2] = [("f16", "bf16", reads_f16_as_bf16), ("bf16", "f16", reads_bf16_as_f16)];
    other.map(|(stored, read_as, bits)| form(vec![("stored", json!(stored)), ("read_as", json!(read_as))], bits))
}

/// The value of the same 16 bits in the other type.
fn reads_f16_as_bf16(x: f64) -> f64 {
    bf16::from_bits(f16::from_f64(x).to_bits()).to_f64()
}

fn reads_bf16_as_f16(x: f64) -> f64 {
    f16::from_bits(bf16::from_f64(x).to_bits()).to_f64()
}
