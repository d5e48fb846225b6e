//! Laws that are looked for where none of an operation's own holds: operands read otherwise, other softmaxes, what is done behind a law.

use firstdiff_laws::{Axis, Kind};
use ndarray::{ArrayD, s};

use crate::plant::{Numbers, Rounded, law_of, said};

const GATE: [Axis; 2] = [Axis::Token, Axis::Channel];
const SHAPE: [usize; 2] = [12, 32];

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gated(_: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    x[0].mapv(silu) * &x[1]
}

fn gate_law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    said(&law_of(Kind::Gate, &GATE, &[&SHAPE, &SHAPE], gated, wrong, Rounded::F32))
}

#[test]
fn an_operand_is_read_otherwise() {
    let law = gate_law(|_, x| {
        let mut up = x[1].clone();
        up.slice_mut(s![.., 1..]).assign(&x[1].slice(s![.., ..-1]));
        up.slice_mut(s![.., ..1]).assign(&x[1].slice(s![.., -1..]));
        x[0].mapv(silu) * up
    });
    assert!(law.contains("up read of channel i-1, around the end"), "{law}");
    let law = gate_law(|_, x| x[0].mapv(silu) * x[1].mapv(|u| u.clamp(-0.75, 0.75)));
    assert!(law.contains("a(up) with a(x) = x held within 3/4"), "{law}");
    let law = gate_law(|_, x| x[0].mapv(|g| silu(g.min(0.75))) * x[1].mapv(|u| u.clamp(-0.75, 0.75)));
    assert!(law.contains("gate read as x of at most 3/4, up as x held within 3/4"), "{law}");
}

#[test]
fn two_operands_of_one_tensor() {
    let law = gate_law(|_, x| {
        let of = |which: usize, t: usize, i: usize| {
            let at = which * SHAPE[1] + i;
            x[at % 2][[t, at / 2]]
        };
        let at = |index: ndarray::IxDyn| silu(of(0, index[0], index[1])) * of(1, index[0], index[1]);
        ArrayD::from_shape_fn(ndarray::IxDyn(&SHAPE), at)
    });
    assert!(law.contains("gate and up are the halves of both, channel by channel in turn"), "{law}");
    let law = gate_law(|_, x| {
        let mut gate = x[0].clone();
        gate.slice_mut(s![.., 8..16]).assign(&x[0].slice(s![.., 24..32]));
        gate.mapv(silu) * &x[1]
    });
    assert!(law.contains("channels 8 to 15 of gate are read as channels 24 to 31"), "{law}");
}

#[test]
fn what_is_done_behind_is_said_too() {
    let law = gate_law(|_, x| 1.1 * (x[0].mapv(silu) * x[1].slice(s![.., ..;-1])));
    assert!(law.contains("up read with its channels in reverse; the output then times 1.1"), "{law}");
    let law = gate_law(|_, x| (x[0].mapv(silu) * x[1].slice(s![.., ..;-1])).mapv(|y| (y + 0.25).min(1.0)));
    assert!(law.contains("then plus 1/4, then at most 1"), "{law}");
}

#[test]
fn noise_follows_no_law() {
    for (what, wrong) in [
        (
            "factors",
            (|_, x| gated(0, x) * Numbers::new(3).tensor(&SHAPE).mapv(|r| 1.0 + 0.01 * r))
                as fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>,
        ),
        ("sums", |layer, x| gated(0, x) + 0.01 * Numbers::new(layer as u64 + 5).tensor(&SHAPE)),
        ("rounding alone", |_, x| gated(0, x).mapv(|y| y * (1.0 + 1e-8))),
    ] {
        assert_eq!(gate_law(wrong), "none", "{what}");
    }
}

#[test]
fn a_rotation_without_its_sine() {
    const T: usize = 12;
    const D: usize = 8;
    fn turned(x: &ArrayD<f64>, of_sine: f64) -> ArrayD<f64> {
        let mut out = x.clone();
        for t in 0..T {
            for j in 0..D / 2 {
                let (sin, cos) = (t as f64 * 100f64.powf(-2.0 * j as f64 / D as f64)).sin_cos();
                for h in 0..4 {
                    let (a, b) = (x[[t, h, j]], x[[t, h, j + D / 2]]);
                    out[[t, h, j]] = a * cos - of_sine * b * sin;
                    out[[t, h, j + D / 2]] = b * cos + of_sine * a * sin;
                }
            }
        }
        out
    }
    let law = said(&law_of(
        Kind::Rotation,
        &[Axis::Token, Axis::Head, Axis::Dim],
        &[&[T, 4, D]],
        |_, x| turned(&x[0], 1.0),
        |_, x| turned(&x[0], 0.9),
        Rounded::F32,
    ));
    assert!(law.contains("x1 cos - 0.9 x2 sin"), "{law}");
}
