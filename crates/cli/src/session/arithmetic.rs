//! In which arithmetic is a run judged, who says so, and do its tensors bear it out?

use anyhow::Result;
use firstdiff_compare::{Profile, SIXTEEN_BITS_DIGITS, SIXTEEN_BITS_NUMBERS, SIXTEEN_BITS_TAPS, SIXTEEN_BITS_VALUES};
use firstdiff_trace::{Dump, Entry, Site, to_bf16, to_f16};
use half::{bf16, f16};

/// A coarser arithmetic than anything but the candidate's own word asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loosened {
    /// What its dump.json says.
    pub asked: Profile,
    /// What its tensors show.
    pub tensors: Profile,
    /// What the reference says or shows; `None` where the reference is a model.
    pub reference: Option<Profile>,
}

/// The profile of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) profile: Profile,
    /// Why this one.
    pub(crate) reason: String,
    pub(crate) loosened: Option<Loosened>,
}

impl Choice {
    /// The user's own.
    pub(crate) fn asked(profile: Profile) -> Choice {
        Choice { profile, reason: "as asked".into(), loosened: None }
    }

    /// That of a run of which no dump.json says.
    pub(crate) fn undeclared(candidate: &Dump) -> Choice {
        let (profile, why) = match sixteen_bits(candidate) {
            Some(profile) => (profile, "not declared for the candidate, whose values are such numbers"),
            None => (Profile::F32, "the default; no dump.json says"),
        };
        Choice { reason: why.into(), ..Choice::asked(profile) }
    }

    /// What the candidate's dump.json says, where `reference` is what the other side says or shows.
    pub(crate) fn candidates(profile: Profile, candidate: &Dump, reference: Option<Profile>) -> Choice {
        let tensors = shown(candidate);
        let without = [Some(tensors), reference].into_iter().flatten().fold(Profile::F32, Profile::max);
        let loosened = (profile > without).then_some(Loosened { asked: profile, tensors, reference });
        let mut reason = "the candidate's dump.json".to_owned();
        if let Some(loosened) = loosened {
            reason = format!("{reason} alone: {}", loosened.others());
        }
        Choice { profile, reason, loosened }
    }

    /// What is to be said of a 16-bit arithmetic that the values of neither run show.
    pub(crate) fn unshown(&self, runs: [&Dump; 2]) -> Option<String> {
        let Choice { profile, reason, .. } = self;
        let tells = |dump: &Dump| computed(dump).next().is_some();
        let is_unshown = matches!(profile, Profile::F16 | Profile::Bf16)
            && runs.into_iter().all(|dump| tells(dump) && shown(dump) < *profile);
        is_unshown.then(|| {
            format!("judged in {profile} ({reason}), and nothing recorded shows it: the values of neither run are numbers of {profile}")
        })
    }
}

impl Loosened {
    /// The finest profile that nothing but the candidate's word speaks against.
    pub(crate) fn without(self) -> Profile {
        self.reference.unwrap_or(Profile::F32).max(self.tensors).max(Profile::F32)
    }

    /// `its tensors are stored in f32 and the reference is f32`.
    fn others(self) -> String {
        let tensors = format!("its tensors are stored in {}", self.tensors);
        self.reference.map_or(tensors.clone(), |reference| format!("{tensors} and the reference is {reference}"))
    }

    /// The sentence for the notes.
    pub(crate) fn note(self) -> String {
        format!(
            "judged in {}, as the candidate's dump.json asks; {}: pass --profile {} to judge without this",
            self.asked,
            self.others(),
            self.without()
        )
    }
}

/// ` in bf16, as the candidate's dump.json asks`, for the line with the verdict; nothing where more than the candidate asks for it.
pub(crate) fn as_it_asks(loosened: Option<Loosened>) -> String {
    loosened.map_or(String::new(), |l| format!(" in {}, as the candidate's dump.json asks", l.asked))
}

/// `parity:`, and in what, where only the candidate says so.
pub(crate) fn parity(loosened: Option<Loosened>) -> String {
    format!("parity{}:", as_it_asks(loosened))
}

/// The coarser of what the two dumps declare.
pub(crate) fn declared_profile(reference: &Dump, candidate: &Dump) -> Result<Choice> {
    let of_reference =
        |profile: Profile| Choice { profile, reason: "the reference's dump.json".into(), loosened: None };
    Ok(match (precision(reference)?, precision(candidate)?) {
        (None, None) => Choice::undeclared(candidate),
        // An exact reference does not make an undeclared candidate exact.
        (Some(r), None) => Some(Choice::undeclared(candidate))
            .filter(|own| own.profile > r)
            .unwrap_or(of_reference(r.max(Profile::F32))),
        (None, Some(c)) => Choice::candidates(c.max(Profile::F32), candidate, Some(shown(reference))),
        (Some(r), Some(c)) if c >= r => Choice::candidates(c, candidate, Some(r.max(shown(reference)))),
        (Some(r), Some(_)) => of_reference(r),
    })
}

/// What `dump` says of its arithmetic.
pub(crate) fn precision(dump: &Dump) -> Result<Option<Profile>> {
    let Some(precision) = &dump.meta().precision else { return Ok(None) };
    let profile = match precision.to_ascii_lowercase().as_str() {
        "float64" | "fp64" | "f64" => Profile::Exact,
        "float32" | "fp32" => Profile::F32,
        "float16" | "fp16" => Profile::F16,
        "bfloat16" => Profile::Bf16,
        name => name.parse().map_err(|_| {
            let known = "exact, f32, f16, bf16 and ggml";
            anyhow::anyhow!(
                "{}: precision '{}' is not one of {known}; say --profile",
                dump.path().display(),
                precision.escape_debug()
            )
        })?,
    };
    Ok(Some(profile))
}

/// The 16-bit type that every value is a number of, in the taps that an f32 engine would not leave so: scores and probabilities are of f32 in many
/// engines of 16 bits.
fn sixteen_bits(dump: &Dump) -> Option<Profile> {
    let computed = computed(dump).filter(|e| !matches!(e.tap.site, Site::Qk | Site::Scores | Site::Probs));
    let mut seen = Sixteen::default();
    for entry in computed {
        let tensor = dump.read(entry).ok()?;
        let values = tensor.values();
        seen.look(
            (0..values.len()).step_by(values.len().div_ceil(SIXTEEN_BITS_VALUES).max(1)).map(|i| (values.get(i), 0.0)),
        );
        if seen.is_neither() {
            return None;
        }
    }
    for part in dump.parts().iter().filter(|part| part.tap.site != Site::H0) {
        seen.look(part.values.iter().map(|&x| (x, part.half_unit(x))));
    }
    seen.profile()
}

/// What numbers show of a 16-bit type.
#[derive(Default)]
struct Sixteen {
    /// Numbers that are none of bf16, and of f16.
    others: [usize; 2],
    /// Numbers of each that take its last digit: half of a 16-bit engine's do, and neither whole numbers nor what is printed with few digits.
    shown: [usize; 2],
    numbers: usize,
}

impl Sixteen {
    /// Looks at numbers, each with how far off it may be as it was printed.
    fn look(&mut self, values: impl Iterator<Item = (f64, f64)>) {
        for (x, unsure) in values.filter(|(x, _)| x.is_finite() && *x != 0.0) {
            let (brain, half) = (to_bf16(x), to_f16(x));
            let types = [
                (brain.to_f64(), brain.to_bits(), bf16::MANTISSA_DIGITS),
                (half.to_f64(), half.to_bits(), f16::MANTISSA_DIGITS),
            ];
            for (i, (rounded, bits, digits)) in types.into_iter().enumerate() {
                let (is_one, is_finer) =
                    ((rounded - x).abs() <= unsure, 4.0 * unsure <= x.abs() * (-f64::from(digits)).exp2());
                self.others[i] += usize::from(!is_one);
                self.shown[i] += usize::from(bits & 1 == 1 && is_finer && x.fract() != 0.0);
            }
            self.numbers += 1;
        }
    }

    fn is_neither(&self) -> bool {
        self.others.iter().all(|others| *others > 0)
    }

    fn profile(&self) -> Option<Profile> {
        let is = |i: usize| {
            self.others[i] == 0
                && self.numbers >= SIXTEEN_BITS_NUMBERS
                && self.numbers <= SIXTEEN_BITS_DIGITS * self.shown[i]
        };
        [Profile::Bf16, Profile::F16].into_iter().enumerate().find_map(|(i, profile)| is(i).then_some(profile))
    }
}

fn computed(dump: &Dump) -> impl Iterator<Item = &Entry> {
    dump.entries().iter().filter(|e| e.tap.site != Site::H0)
}

/// The arithmetic that a dump's tensors show: that of a 16-bit type where half of them hold such numbers alone, as an engine may work in f32
/// in between; else f32.
fn shown(dump: &Dump) -> Profile {
    let (mut bf16s, mut f16s, mut taps) = (0, 0, 0);
    for entry in computed(dump).take(SIXTEEN_BITS_TAPS) {
        let Ok(tensor) = dump.read(entry) else { continue };
        let values = tensor.values();
        let mut seen = Sixteen::default();
        seen.look((0..values.len()).map(|i| (values.get(i), 0.0)));
        (bf16s, f16s) = (bf16s + usize::from(seen.others[0] == 0), f16s + usize::from(seen.others[1] == 0));
        taps += 1;
    }
    match taps {
        0 => sixteen_bits(dump).unwrap_or(Profile::F32),
        _ if 2 * bf16s >= taps => Profile::Bf16,
        _ if 2 * f16s >= taps => Profile::F16,
        _ => Profile::F32,
    }
}
