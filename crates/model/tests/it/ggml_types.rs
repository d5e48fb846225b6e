//! Checks that every ggml block type is dequantised bit for bit as PyPI gguf and llama.cpp do: the blocks of fixtures/quants.
//!
//! The values are theirs: scripts/suites/test_quants.py wrote them, and compares 10,000 blocks a type.

use firstdiff_model::ggml::Type;

#[test]
fn every_type_to_the_bit() {
    let folder = crate::common::fixtures().join("quants");
    let mut seen = 0;
    for &kind in Type::ALL {
        let Ok(bytes) = std::fs::read(folder.join(format!("{}.bin", kind.name()))) else {
            assert!(matches!(kind, Type::Q8_1 | Type::Q8K), "{} has no fixture", kind.name());
            continue;
        };
        let expected = std::fs::read(folder.join(format!("{}.f32", kind.name()))).unwrap();
        let expected: Vec<u32> = expected.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let mut values = vec![0f32; bytes.len() / kind.block_bytes() * kind.block_len()];
        kind.dequantise(&bytes, &mut values);
        let values: Vec<u32> = values.iter().map(|x| x.to_bits()).collect();
        assert!(values == expected, "{}", kind.name());
        seen += 1;
    }
    assert_eq!(seen, 24);
}

#[test]
fn the_table_is_consistent() {
    for &kind in Type::ALL {
        assert_eq!(Type::from_id(kind.id()), Some(kind));
        assert!(kind.words().iter().all(|&(offset, width, count)| offset + width * count <= kind.block_bytes()));
        if let Some(scales) = kind.scales() {
            assert_eq!(kind.block_len() % scales.group, 0, "{}", kind.name());
        }
    }
    assert_eq!(Type::from_id(4), None, "Q4_2 is gone");
}

#[test]
#[should_panic(expected = "17 bytes of Q4_0 for 32 elements")]
fn half_a_block_is_refused() {
    Type::Q4_0.dequantise(&[0; 17], &mut [0.0; 32]);
}
