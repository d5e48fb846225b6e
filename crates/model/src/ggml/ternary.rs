//! Dequantises blocks of -1, 0 and 1, or of -1 and 1: TQ1_0, TQ2_0, Q1_0.

use super::f16_at;

/// Five elements a byte: the base-3 digits of byte / 256.
#[inline(always)]
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = f16_at(block, 52);
    let mut out = out.iter_mut();
    for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        for power in [1u8, 3, 9, 27, 81].into_iter().take(digits) {
            for (q, y) in bytes.iter().zip(&mut out) {
                let digit = (u16::from(q.wrapping_mul(power)) * 3) >> 8;
                *y = (f32::from(digit) - 1.0) * d;
            }
        }
    }
}

/// Two bits an element.
#[inline(always)]
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 64);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (m, y) in out.iter_mut().enumerate() {
            let q = block[32 * (part / 4) + m] >> (2 * (part % 4)) & 3;
            *y = (f32::from(q) - 1.0) * d;
        }
    }
}

/// One bit an element.
#[inline(always)]
pub(super) fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = f16_at(block, 0);
    for (j, y) in out.iter_mut().enumerate() {
        *y = if block[2 + j / 8] >> (j % 8) & 1 == 1 { d } else { -d };
    }
}
