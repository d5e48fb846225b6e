//! Imitates what happens to weights between the file and the product: bits read as another type, reading that ends too early.

use super::mistake::{Mistake, sites};
use super::param::Param;

/// A mistake of the reader of files.
const STORED: Mistake = Mistake { at: sites::MATRICES, ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] =
    &[&STORAGE_TYPE, &STORAGE_SHAPE, &DEQUANT_NIBBLES, &DEQUANT_SCALE, &DEQUANT_TRUNCATED];

/// Whether the reader of files makes it: of whatever it reads.
pub(crate) fn is_of_the_reader(mistake: &Mistake) -> bool {
    MISTAKES.contains(&mistake)
}

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
