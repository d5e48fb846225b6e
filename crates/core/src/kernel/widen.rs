//! Loads stored weights into registers of f32: f32 as they are, f16 and bf16 widened, which is exact.

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use half::{bf16, f16};

    /// A weight type that can be loaded into registers of f32.
    pub(crate) trait Weight: Copy + Default {
        /// 16 elements.
        ///
        /// # Safety
        /// They are there, and the processor has AVX-512 F, BW and VL.
        unsafe fn load_16(at: *const Self) -> __m512;

        /// 8 elements.
        ///
        /// # Safety
        /// They are there, and the processor has AVX2 and F16C.
        unsafe fn load_8(at: *const Self) -> __m256;

        /// 4 elements.
        ///
        /// # Safety
        /// They are there, and the processor has AVX2 and F16C.
        unsafe fn load_4(at: *const Self) -> __m128;
    }

    impl Weight for f32 {
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn load_16(at: *const f32) -> __m512 {
            // SAFETY: the caller has 16 elements there.
            unsafe { _mm512_loadu_ps(at) }
        }

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn load_4(at: *const f32) -> __m128 {
            // SAFETY: the caller has 4 elements there.
            unsafe { _mm_loadu_ps(at) }
        }

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn load_8(at: *const f32) -> __m256 {
            // SAFETY: the caller has 8 elements there.
            unsafe { _mm256_loadu_ps(at) }
        }
    }

    impl Weight for f16 {
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn load_16(at: *const f16) -> __m512 {
            // SAFETY: the caller has 16 elements there.
            _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast()) })
        }

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn load_4(at: *const f16) -> __m128 {
            // SAFETY: the caller has 4 elements there.
            _mm_cvtph_ps(unsafe { _mm_loadl_epi64(at.cast()) })
        }

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn load_8(at: *const f16) -> __m256 {
            // SAFETY: the caller has 8 elements there.
            _mm256_cvtph_ps(unsafe { _mm_loadu_si128(at.cast()) })
        }
    }

    /// The bits of a bf16 are the upper half of an f32's.
    impl Weight for bf16 {
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn load_16(at: *const bf16) -> __m512 {
            // SAFETY: the caller has 16 elements there.
            let bits = unsafe { _mm256_loadu_si256(at.cast()) };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
        }

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn load_4(at: *const bf16) -> __m128 {
            // SAFETY: the caller has 4 elements there.
            let bits = unsafe { _mm_loadl_epi64(at.cast()) };
            _mm_castsi128_ps(_mm_slli_epi32::<16>(_mm_cvtepu16_epi32(bits)))
        }

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn load_8(at: *const bf16) -> __m256 {
            // SAFETY: the caller has 8 elements there.
            let bits = unsafe { _mm_loadu_si128(at.cast()) };
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon {
    use std::arch::aarch64::*;

    use half::{bf16, f16};

    /// A weight type that can be loaded into registers of f32.
    pub(crate) trait Weight: Copy + Default {
        /// 4 elements.
        ///
        /// # Safety
        /// They are there.
        unsafe fn load_4(at: *const Self) -> float32x4_t;
    }

    impl Weight for f32 {
        #[inline(always)]
        unsafe fn load_4(at: *const f32) -> float32x4_t {
            // SAFETY: the caller has 4 elements there.
            unsafe { vld1q_f32(at) }
        }
    }

    impl Weight for f16 {
        #[inline(always)]
        unsafe fn load_4(at: *const f16) -> float32x4_t {
            // SAFETY: the caller has 4 elements there.
            let bits = unsafe { vld1_u16(at.cast()) };
            let wide: float32x4_t;
            // SAFETY: the instruction is part of every aarch64, and touches these two registers alone. (Its intrinsic is not stable yet.)
            unsafe {
                std::arch::asm!(
                    "fcvtl {wide:v}.4s, {bits:v}.4h",
                    wide = lateout(vreg) wide, bits = in(vreg) bits,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            wide
        }
    }

    /// The bits of a bf16 are the upper half of an f32's.
    impl Weight for bf16 {
        #[inline(always)]
        unsafe fn load_4(at: *const bf16) -> float32x4_t {
            // SAFETY: the caller has 4 elements there.
            unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.cast()))) }
        }
    }

    /// Zeros.
    #[inline(always)]
    pub(crate) fn zero_f32() -> float32x4_t {
        // SAFETY: part of every aarch64.
        unsafe { vdupq_n_f32(0.0) }
    }

    /// The same number in each element.
    #[inline(always)]
    pub(crate) fn splat_f32(x: f32) -> float32x4_t {
        // SAFETY: part of every aarch64.
        unsafe { vdupq_n_f32(x) }
    }

    /// a + b.
    #[inline(always)]
    pub(crate) fn add_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: part of every aarch64.
        unsafe { vaddq_f32(a, b) }
    }

    /// x · w + sum, rounded once.
    #[inline(always)]
    pub(crate) fn fma_f32(x: float32x4_t, w: float32x4_t, sum: float32x4_t) -> float32x4_t {
        // SAFETY: part of every aarch64.
        unsafe { vfmaq_f32(sum, x, w) }
    }

    /// Zeros.
    #[inline(always)]
    pub(crate) fn zero_f64() -> float64x2_t {
        // SAFETY: part of every aarch64.
        unsafe { vdupq_n_f64(0.0) }
    }

    /// x · w + sum, rounded once.
    #[inline(always)]
    pub(crate) fn fma_f64(x: float64x2_t, w: float64x2_t, sum: float64x2_t) -> float64x2_t {
        // SAFETY: part of every aarch64.
        unsafe { vfmaq_f64(sum, x, w) }
    }
}
