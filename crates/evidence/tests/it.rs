//! Checks how many bits of evidence numbers carry, and which claims they prove.

use firstdiff_evidence::{Account, BF16, Evidence, F32, choice, number};

/// `n` numbers, each 1.4 times the right value.
fn scaled(n: u16, unit: f64) -> Evidence {
    Evidence::of((1..=n).map(f64::from).map(|x| [1.4 * x, x, 1.4 * x]), unit)
}

#[test]
fn a_factor_of_one_number_is_not_paid_for_and_of_four_it_is() {
    let price = number(1.4) + choice(100);
    let account: Account = scaled(1, F32).against(price);
    assert_eq!(account.to_string(), "1 number carries 22 bits, 37 are needed");
    assert!(!account.is_paid() && scaled(4, F32).against(price).is_paid());
    // bf16 has 8 bits, so more numbers are needed.
    assert!(!scaled(4, BF16).against(price).is_paid() && scaled(16, BF16).against(price).is_paid());
}

#[test]
fn what_occurs_again_counts_once() {
    assert_eq!(Evidence::of([[1.4, 1.0, 1.4]; 4].into_iter(), F32), scaled(1, F32));
    // The same value everywhere counts once.
    let constant = Evidence::of((2..90).map(|x| [1.0, f64::from(x), 1.0]), F32);
    assert_eq!((constant.numbers, constant.bits), (1, 24.0));
    // A whole tensor of zeros is no chance; a few zeros can be.
    let zeros = |n: u16| Evidence::of((2..n + 2).map(|x| [0.0, f64::from(x), 0.0]), F32).against(choice(25));
    assert!(zeros(480).is_paid() && !zeros(12).is_paid());
    // A finite value where -inf is right counts at each place.
    let shown = Evidence::of([[-1e4, f64::NEG_INFINITY, -1e4]; 30].into_iter(), F32);
    assert!(shown.bits > 50.0 && shown.numbers == 1, "{shown:?}");
}

#[test]
fn what_is_right_carries_nothing_and_what_a_claim_breaks_speaks_against_it() {
    assert_eq!(Evidence::of((1..50).map(|x| [f64::from(x); 3]), F32), Evidence::default());
    let broken = Evidence::of((1..50).map(f64::from).map(|x| [x, x, 2.0 * x]), F32);
    assert!(broken.numbers == 0 && broken.bits < -900.0, "{broken:?}");
    let nan = Evidence::of((1..50).map(|x| [f64::from(x), 0.0, f64::NAN]), F32);
    assert!(!nan.against(0.0).is_paid(), "{nan:?}");
}

#[test]
fn of_very_many_numbers_some_are_enough() {
    let many = Evidence::of((0..1 << 20).map(f64::from).map(|x| [1.4 * x, x, 1.4 * x]), F32);
    assert!((200_000..300_000).contains(&many.numbers), "{}", many.numbers);
}

#[test]
fn copies_that_were_computed_again_count_once() {
    // Four values among 64, each computed in another order: the right values differ by less than f32's rounding.
    let four = |i: u32| f64::from(1 + i % 4);
    let again = |i: u32| four(i) * (1.0 + 1e-9 * f64::from(i));
    let expanded = Evidence::of((0..64).map(|i| [1.4 * four(i), again(i), 1.4 * four(i)]), BF16);
    let four = scaled(4, BF16);
    assert!(expanded.numbers == 4 && (expanded.bits - four.bits).abs() < 1e-6, "{expanded:?}, {four:?}");
}
