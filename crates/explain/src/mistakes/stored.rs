//! What happens to weights between the file and the product? Bits read as another type, reading that ends too early.

use firstdiff_model::Storage;
use half::{bf16, f16};
use serde_json::json;

use super::{List, matrix_shape};
use crate::mistakes::unpack::misreadings;

pub(super) fn listed(list: &mut List<'_>) {
    let Some(&weight) = list.step.weights.first() else { return };
    let Ok(view) = list.model.weights.view(weight) else { return };
    let (storage, bytes, count) = (view.storage(), view.bytes().len(), view.len());
    let Some(shape) = matrix_shape(list.model, list.step) else { return gain(list, storage) };
    match storage {
        // bf16 bits read as f16, or the reverse
        Storage::BF16 => {
            let read = |x: f32| f16::from_bits(bf16::from_f32(x).to_bits()).to_f32();
            list.add("storage-type", vec![("read_as", json!("f16"))], move |at| {
                at.product(move |flat, row, o| mapped(flat, row, o, read), shape)
            });
        }
        Storage::F16 => {
            let read = |x: f32| bf16::from_bits(f16::from_f32(x).to_bits()).to_f32();
            list.add("storage-type", vec![("read_as", json!("bf16"))], move |at| {
                at.product(move |flat, row, o| mapped(flat, row, o, read), shape)
            });
        }
        Storage::Block(kind) => {
            let block = kind.block_len();
            for way in misreadings(kind) {
                list.add(way.id, vec![("kind", json!(way.kind))], move |at| at.unpacked(kind, way.rewrite));
            }
            // So many bytes are read, the rest of the elements stays 0.
            for (name, read) in [("numel/2", count / 2), ("numel", count), ("numel/4", count / 4)] {
                let whole = read / kind.block_bytes() * block;
                if read < bytes {
                    list.add(
                        "dequant-truncated",
                        vec![("bytes_read", json!(name)), ("zero_from", json!(whole))],
                        move |at| at.unread_from(whole),
                    );
                }
            }
            if shape[1] > block {
                list.add("dequant-truncated", vec![("kind", json!("first block of each row"))], move |at| {
                    at.remapped(move |o, i| (i < block).then_some(o * shape[1] + i))
                });
            }
        }
        _ => {}
    }
}

/// A norm's gain whose bits are read as another type.
fn gain(list: &mut List<'_>, storage: Storage) {
    let (name, read): (&str, fn(f32) -> f32) = match storage {
        Storage::BF16 => ("f16", |x| f16::from_bits(bf16::from_f32(x).to_bits()).to_f32()),
        Storage::F16 => ("bf16", |x| bf16::from_bits(f16::from_f32(x).to_bits()).to_f32()),
        _ => return,
    };
    list.add("storage-type", vec![("read_as", json!(name))], move |at| {
        super::norm::normed(at, |w| f64::from(read(w as f32)))
    });
}

fn mapped(flat: &[f32], row: &mut [f32], o: usize, read: impl Fn(f32) -> f32) {
    let width = row.len();
    row.iter_mut().zip(&flat[o * width..]).for_each(|(to, &x)| *to = read(x));
}
