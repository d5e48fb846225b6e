//! Dequantises blocks of four-bit floats: MXFP4, NVFP4.

/// The values of E2M1, doubled: a sign, two bits of exponent, one of mantissa.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The scale is a power of two, given by its exponent and halved because the values are doubled.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let exponent = u32::from(block[0]);
    let d = f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 });
    for j in 0..16 {
        let q = usize::from(block[1 + j]);
        out[j] = f32::from(E2M1[q & 15]) * d;
        out[j + 16] = f32::from(E2M1[q >> 4]) * d;
    }
}

/// Parts of 16, each with a scale of four exponent bits and three mantissa bits, unsigned.
#[inline(always)]
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let d = e4m3(block[part]);
        for j in 0..8 {
            let q = usize::from(block[4 + 8 * part + j]);
            out[j] = f32::from(E2M1[q & 15]) * d;
            out[j + 8] = f32::from(E2M1[q >> 4]) * d;
        }
    }
}

/// Half of an unsigned E4M3 with bias 7; 127 means 0.
#[inline(always)]
fn e4m3(x: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(x >> 3 & 15), f32::from(x & 7));
    match (x, exponent) {
        (127, _) => 0.0,
        (_, 0) => mantissa * 2f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
    }
}
