//! Checks packed checkpoints: the values are those that the libraries unpack, and parts that do not fit give an error of one line, never a panic.

use std::fs;
use std::path::Path;

use crate::common::fixtures;
use firstdiff_model::{Misreading, Storage, open_weights};
use proptest::prelude::*;

/// The packed tensor of a fixture, and what its library unpacks.
fn read(folder: &Path) -> (Vec<f32>, Vec<f32>) {
    let opened = open_weights(folder).unwrap();
    let values = |name: &str| opened.weights.tensor(name).unwrap().unwrap().vector::<f32>().to_vec();
    (values("packed.weight"), values("unpacked.weight"))
}

fn forms() -> Vec<std::path::PathBuf> {
    fs::read_dir(fixtures().join("packed")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn packed_tensors_are_what_their_libraries_unpack() {
    assert_eq!(forms().len(), 25);
    for folder in forms() {
        let (packed, due) = read(&folder);
        assert_eq!(packed.len(), due.len(), "{}", folder.display());
        for (x, y) in packed.iter().zip(&due) {
            // One rounding to bf16, or to f16; and where the scales are rounded too, two.
            assert!((x - y).abs() <= 0.0079 * y.abs(), "{}: {x} for {y}", folder.display());
        }
    }
}

#[test]
fn a_part_is_read_as_the_whole_has_it() {
    for folder in forms() {
        let opened = open_weights(&folder).unwrap();
        let view = opened.weights.tensor("packed.weight").unwrap().unwrap();
        let (whole, columns) = (view.vector::<f32>().to_vec(), *view.shape().last().unwrap());
        if view.shape().len() == 2 {
            assert_eq!(view.rows::<f32>(3..5).as_slice().unwrap(), &whole[3 * columns..5 * columns]);
        }
        assert_eq!(view.elements(columns - 3..columns + 9), whole[columns - 3..columns + 9]);
        assert!(matches!(view.storage(), Storage::Packed(_)) && view.storage().is_quantised() && !view.is_plain());
    }
}

#[test]
fn a_wrong_way_to_unpack_gives_other_values() {
    let ways = [Misreading::Exchanged, Misreading::ZeroUp, Misreading::NoScale, Misreading::OverScale];
    for folder in forms() {
        let opened = open_weights(&folder).unwrap();
        let view = opened.weights.tensor("packed.weight").unwrap().unwrap();
        let right = view.vector::<f32>().to_vec();
        let misread: Vec<Vec<f32>> = view.misread(&ways).into_iter().flatten().map(|read| read.values()).collect();
        assert!(misread.len() >= 2 && misread.iter().all(|values| *values != right), "{}", folder.display());
        let ungrouped = view.misread(&[Misreading::Ungrouped]).remove(0).is_some_and(|read| read.values() != right);
        assert_eq!(ungrouped, folder.ends_with("gptq-act-order"));
    }
}

proptest! {
    #[test]
    fn a_damaged_packed_file_gives_no_panic(form in 0usize..25, at in 8usize..900, byte in any::<u8>()) {
        let (folder, out) = (&forms()[form], tempfile::tempdir().unwrap());
        let mut bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let at = at.min(bytes.len() - 1);
        bytes[at] = byte;
        fs::write(out.path().join("model.safetensors"), bytes).unwrap();
        fs::copy(folder.join("config.json"), out.path().join("config.json")).unwrap();
        if let Ok(opened) = open_weights(out.path()) {
            for name in opened.weights.names() {
                if let Ok(Some(view)) = opened.weights.tensor(name) {
                    let _ = view.vector::<f32>();
                }
            }
        }
    }
}
