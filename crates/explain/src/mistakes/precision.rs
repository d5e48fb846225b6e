//! Tells another arithmetic from a mistake: the step as it should be, in every other profile.

use firstdiff_trace::Site;

use super::mistake::Mistake;
use super::param::Param;

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[&PRECISION];

pub(crate) static PRECISION: Mistake = Mistake {
    id: "precision",
    what: "no mistake: another arithmetic",
    fix: "give its name by --profile, or in dump.json as precision; one of few bits has none: hold it against a \
        second right run (compare --noise)",
    at: Site::ALL,
    params: &[
        Param::words(
            "format",
            &[
                "bf16",
                "f16",
                "ggml",
                "ggml, f16 cache",
                "f32",
                "f16 weights",
                "bf16 weights",
                "f16 weights and inputs",
                "bf16 weights and inputs",
                "f16 inputs",
                "bf16 inputs",
                "tf32 weights and inputs",
                "tf32 inputs",
            ],
        ),
        Param::other("weights", "to how few bits, and what shares a scale"),
        Param::other("activations", "the same"),
        Param::other("cache", "the same, of keys or values as attention reads them"),
        Param::words("of", &["past"]),
    ],
    is_another_arithmetic: true,
    ..Mistake::ORDINARY
};
