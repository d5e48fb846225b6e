//! What happens to weights between the file and the product? Bits read as another type, reading that ends too early.

use firstdiff_model::Storage;
use half::{bf16, f16};
use serde_json::json;

use super::catalogue::{Mistake, sites};
use super::param::Param;
use super::{List, Scale, matrix_shape};
use crate::mistakes::unpack::misreadings;
use crate::tolerance::mistakes::WHOLE_BLOCK;

/// A mistake of the reader of files.
const STORED: Mistake =
    Mistake { at: sites::MATRICES, of_all_matrices: true, makes_a_matrix: true, ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] =
    &[&STORAGE_TYPE, &STORAGE_SHAPE, &DEQUANT_NIBBLES, &DEQUANT_SCALE, &DEQUANT_TRUNCATED];

pub(crate) static STORAGE_TYPE: Mistake = Mistake {
    id: "storage-type",
    what: "the bits are read as another type",
    fix: "look at the tensor's dtype in the file",
    in_file: Some("look at the element type the file gives for it, and at the byte order"),
    at: sites::WEIGHTED,
    params: &[Param::words("stored", &["f16", "bf16"]), Param::words("read_as", &["f16", "bf16"])],
    ..STORED
};
pub(crate) static STORAGE_SHAPE: Mistake = Mistake {
    id: "storage-shape",
    what: "values begin at another offset, or the axes are in another order",
    fix: "look at the tensor's offset, the alignment, and the order of its axes",
    in_file: Some("look at the tensor's offset, the alignment, and the order of its axes"),
    ..Mistake::ORDINARY
};
pub(crate) static DEQUANT_NIBBLES: Mistake = Mistake {
    id: "dequant-nibbles",
    what: "bits of a quantised block go to the wrong elements",
    fix: "take nibbles and high bits in the order the type stores them: the low ones of a run first, then the high \
        ones",
    in_file: Some("look at which element each nibble and each high bit belongs to"),
    params: &[Param::other("kind", "which bits go where")],
    ..STORED
};
pub(crate) static DEQUANT_SCALE: Mistake = Mistake {
    id: "dequant-scale",
    what: "parts of a quantised block get the wrong scale or minimum",
    fix: "unpack scales and minima as the type packs them: in Q4_K and Q5_K those of sub-blocks 4 to 7 lie in three \
        places",
    in_file: Some("look at how the block's scales and minima are unpacked"),
    params: &[Param::other("kind", "which parts, and their scales")],
    ..STORED
};
pub(crate) static DEQUANT_TRUNCATED: Mistake = Mistake {
    id: "dequant-truncated",
    what: "only the first part of the tensor is read, the rest stays 0",
    fix: "read as many bytes as the type needs: blocks * bytes of a block",
    in_file: Some("count a tensor's bytes by its type: blocks times bytes a block, not elements times a fraction"),
    params: &[
        Param::words("bytes_read", &["numel/2", "numel", "numel/4"]),
        Param::number("zero_from").of_shape(),
        Param::number("part_read").of_shape(),
        Param::words("kind", &["first block of each row"]),
    ],
    ..STORED
};

pub(super) fn listed(list: &mut List<'_>) {
    let Some(&weight) = list.step.weights.first() else { return };
    let Ok(view) = list.model.weights.view(weight) else { return };
    let (storage, bytes, count) = (view.storage(), view.bytes().len(), view.len());
    let Some(shape) = matrix_shape(list.model, list.step) else { return gain(list, storage) };
    match storage {
        // bf16 bits read as f16, or the reverse
        Storage::BF16 => {
            let read = |x: f32| f16::from_bits(bf16::from_f32(x).to_bits()).to_f32();
            list.add(&STORAGE_TYPE, vec![("read_as", json!("f16"))], move |at| {
                at.product(move |flat, row, o| mapped(flat, row, o, read), shape)
            });
        }
        Storage::F16 => {
            let read = |x: f32| bf16::from_bits(f16::from_f32(x).to_bits()).to_f32();
            list.add(&STORAGE_TYPE, vec![("read_as", json!("bf16"))], move |at| {
                at.product(move |flat, row, o| mapped(flat, row, o, read), shape)
            });
        }
        Storage::Block(kind) => {
            let block = kind.block_len();
            for way in misreadings(kind) {
                list.add(way.mistake, vec![("kind", json!(way.kind))], move |at| at.unpacked(kind, way.rewrite));
            }
            // So many bytes are read, the rest of the elements stays 0.
            for (name, read) in [("numel/2", count / 2), ("numel", count), ("numel/4", count / 4)] {
                let whole = read / kind.block_bytes() * block;
                if read < bytes {
                    list.add(
                        &DEQUANT_TRUNCATED,
                        vec![("bytes_read", json!(name)), ("zero_from", json!(whole))],
                        move |at| at.unread_from(whole),
                    );
                }
            }
            // Any part of the blocks, to begin a fit from.
            let pieces = count / block;
            list.tunable_by(Scale::Part { pieces }, &DEQUANT_TRUNCATED, "part_read", 0.5, move |part, at| {
                at.unread_from((part * pieces as f64 + WHOLE_BLOCK).floor() as usize * block)
            });
            if shape[1] > block {
                list.add(&DEQUANT_TRUNCATED, vec![("kind", json!("first block of each row"))], move |at| {
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
    list.add(&STORAGE_TYPE, vec![("read_as", json!(name))], move |at| {
        super::norm::normed(at, |w| f64::from(read(w as f32)))
    });
}

fn mapped(flat: &[f32], row: &mut [f32], o: usize, read: impl Fn(f32) -> f32) {
    let width = row.len();
    row.iter_mut().zip(&flat[o * width..]).for_each(|(to, &x)| *to = read(x));
}
