//! Chooses the arithmetic in which a run is judged, with the reason, and checks it against the run's tensors.

use anyhow::Result;
use firstdiff_compare::{Profile, SIXTEEN_BITS_DIGITS, SIXTEEN_BITS_NUMBERS, SIXTEEN_BITS_TAPS, SIXTEEN_BITS_VALUES};
use firstdiff_trace::{Dump, Entry, Site, to_bf16, to_f16};
use half::{bf16, f16};

/// A coarser arithmetic, which only the candidate's own metadata asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoarserProfile {
    /// What its dump.json declares.
    pub declared: Profile,
    /// What its tensors show.
    pub tensors: Profile,
    /// What the reference declares or shows; `None` where the reference is a model.
    pub reference: Option<Profile>,
}

/// The profile of a comparison.
#[derive(Clone, Debug)]
pub struct ProfileChoice {
    pub profile: Profile,
    /// Why this one.
    pub reason: String,
    pub coarser_profile: Option<CoarserProfile>,
}

impl ProfileChoice {
    /// The profile that the user asks for.
    pub fn by_user(profile: Profile) -> ProfileChoice {
        ProfileChoice { profile, reason: "as asked".into(), coarser_profile: None }
    }

    /// The profile of a run for which no dump.json declares one.
    pub fn undeclared(candidate: &Dump) -> ProfileChoice {
        let (profile, why) = match profile_of_values(candidate) {
            Profile::F32 => (Profile::F32, "the default; no dump.json says"),
            profile => (profile, "not declared for the candidate, most of whose taps hold such numbers alone"),
        };
        ProfileChoice { reason: why.into(), ..ProfileChoice::by_user(profile) }
    }

    /// The profile that the candidate's dump.json declares; `reference` is what the other side declares or shows.
    pub fn candidates(profile: Profile, candidate: &Dump, reference: Option<Profile>) -> ProfileChoice {
        let tensors = profile_of_values(candidate);
        let without = [Some(tensors), reference].into_iter().flatten().fold(Profile::F32, Profile::max);
        let coarser_profile = (profile > without).then_some(CoarserProfile { declared: profile, tensors, reference });
        let mut reason = "the candidate's dump.json".to_owned();
        if let Some(loosened) = coarser_profile {
            reason = format!("{reason} alone: {}", loosened.stored_types_text());
        }
        ProfileChoice { profile, reason, coarser_profile }
    }

    /// A note on a 16-bit arithmetic that no tap of either run shows.
    pub fn note_on_unshown_type(&self, runs: [&Dump; 2]) -> Option<String> {
        let ProfileChoice { profile, reason, .. } = self;
        let tells = |dump: &Dump| computed(dump).next().is_some();
        let is_unshown = matches!(profile, Profile::F16 | Profile::Bf16)
            && runs.into_iter().all(|dump| tells(dump) && profile_shown_by(0.0, dump) < *profile);
        is_unshown.then(|| {
            format!("judged in {profile} ({reason}), and nothing recorded shows it: the values of neither run are numbers of {profile}")
        })
    }
}

impl CoarserProfile {
    /// The finest profile that only the candidate's own metadata contradicts.
    pub fn profile_without_candidate(self) -> Profile {
        self.reference.unwrap_or(Profile::F32).max(self.tensors).max(Profile::F32)
    }

    /// `its tensors are stored in f32 and the reference is f32`.
    fn stored_types_text(self) -> String {
        let tensors = format!("its tensors are stored in {}", self.tensors);
        self.reference.map_or(tensors.clone(), |reference| format!("{tensors} and the reference is {reference}"))
    }

    /// The sentence for the notes.
    pub fn note(self) -> String {
        format!(
            "judged in {}, as the candidate's dump.json asks; {}: pass --profile {} to judge without this",
            self.declared,
            self.stored_types_text(),
            self.profile_without_candidate()
        )
    }
}

/// ` in bf16, as the candidate's dump.json asks`, for the line with the verdict; empty where not only the candidate asks for it.
pub fn as_it_asks(loosened: Option<CoarserProfile>) -> String {
    loosened.map_or(String::new(), |l| format!(" in {}, as the candidate's dump.json asks", l.declared))
}

/// `parity:`, with the arithmetic where only the candidate declares it.
pub fn parity(loosened: Option<CoarserProfile>) -> String {
    format!("parity{}:", as_it_asks(loosened))
}

/// The coarser of what the two dumps declare.
pub fn declared_profile(reference: &Dump, candidate: &Dump) -> Result<ProfileChoice> {
    let of_reference =
        |profile: Profile| ProfileChoice { profile, reason: "the reference's dump.json".into(), coarser_profile: None };
    Ok(match (precision(reference)?, precision(candidate)?) {
        (None, None) => ProfileChoice::undeclared(candidate),
        // An exact reference does not make an undeclared candidate exact.
        (Some(r), None) => Some(ProfileChoice::undeclared(candidate))
            .filter(|own| own.profile > r)
            .unwrap_or(of_reference(r.max(Profile::F32))),
        (None, Some(c)) => {
            ProfileChoice::candidates(c.max(Profile::F32), candidate, Some(profile_of_values(reference)))
        }
        (Some(r), Some(c)) if c >= r => {
            ProfileChoice::candidates(c, candidate, Some(r.max(profile_of_values(reference))))
        }
        (Some(r), Some(_)) => of_reference(r),
    })
}

/// The arithmetic that `dump` declares.
pub fn precision(dump: &Dump) -> Result<Option<Profile>> {
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

/// How well the numbers of a tap fit bf16, and f16.
#[derive(Default)]
struct SixteenBitCounts {
    /// Numbers that are not of the type.
    others: [usize; 2],
    /// Numbers that use its last digit: half of a 16-bit engine's do, but neither whole numbers nor those printed with few digits.
    last_digit: [usize; 2],
    /// Numbers that are not 0.
    numbers: usize,
}

impl SixteenBitCounts {
    /// Examines numbers, each given with how far off it may be as printed.
    fn count(values: impl Iterator<Item = (f64, f64)>) -> SixteenBitCounts {
        let mut seen = SixteenBitCounts::default();
        for (x, unsure) in values.filter(|(x, _)| x.is_finite() && *x != 0.0) {
            let (brain, half) = (to_bf16(x), to_f16(x));
            let types = [
                (brain.to_f64(), brain.to_bits(), bf16::MANTISSA_DIGITS),
                (half.to_f64(), half.to_bits(), f16::MANTISSA_DIGITS),
            ];
            for (i, (rounded, bits, digits)) in types.into_iter().enumerate() {
                let (is_one, is_finer) =
                    ((rounded - x).abs() <= unsure, 4.0 * unsure <= x.abs() * (-f64::from(digits)).exp2());
                seen.others[i] += usize::from(!is_one);
                seen.last_digit[i] += usize::from(bits & 1 == 1 && is_finer && x.fract() != 0.0);
            }
            seen.numbers += 1;
        }
        seen
    }
}

fn computed(dump: &Dump) -> impl Iterator<Item = &Entry> {
    dump.entries().iter().filter(|e| e.tap.site != Site::H0)
}

/// The arithmetic that a dump's tensors show. A 16-bit engine keeps some in f32: scores and probabilities, which are not examined, a state, a sum.
fn profile_of_values(dump: &Dump) -> Profile {
    profile_shown_by(SIXTEEN_BITS_TAPS, dump)
}

/// A 16-bit type where some tensors, at least `share` of them, hold only numbers of that type, and use its last digit.
fn profile_shown_by(share: f64, dump: &Dump) -> Profile {
    let computed = computed(dump).filter(|e| !matches!(e.tap.site, Site::Qk | Site::Scores | Site::Probs));
    let tensors = computed.filter_map(|entry| {
        let tensor = dump.read(entry).ok()?;
        let values = tensor.values();
        let step = values.len().div_ceil(SIXTEEN_BITS_VALUES).max(1);
        Some(SixteenBitCounts::count((0..values.len()).step_by(step).map(|i| (values.get(i), 0.0))))
    });
    let parts = dump.parts().iter().filter(|part| part.tap.site != Site::H0);
    let parts = parts.map(|part| SixteenBitCounts::count(part.values.iter().map(|&x| (x, part.half_unit(x)))));
    let taps: Vec<SixteenBitCounts> = tensors.chain(parts).filter(|seen| seen.numbers > 0).collect();
    let is = |i: usize| {
        let of_it: Vec<&SixteenBitCounts> = taps.iter().filter(|seen| seen.others[i] == 0).collect();
        let numbers: usize = of_it.iter().map(|seen| seen.numbers).sum();
        let last_digit: usize = of_it.iter().map(|seen| seen.last_digit[i]).sum();
        of_it.len() as f64 >= share * taps.len() as f64
            && numbers >= SIXTEEN_BITS_NUMBERS
            && numbers <= SIXTEEN_BITS_DIGITS * last_digit
    };
    [Profile::Bf16, Profile::F16]
        .into_iter()
        .enumerate()
        .find_map(|(i, found)| is(i).then_some(found))
        .unwrap_or(Profile::F32)
}
