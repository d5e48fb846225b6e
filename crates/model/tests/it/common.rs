//! Finds the fixture models, and copies them for tests that damage them.
#![allow(dead_code, reason = "every test file uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use firstdiff_model::{Model, ModelError, Profile, Prompt, load, run};
use tempfile::TempDir;

/// The folder of all fixtures.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The folder of the fixture model `name`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    fixtures().join("models").join(name)
}

/// A copy of the fixture model `name`.
pub(crate) fn copy(name: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

/// A copy of the fixture model `name` whose config.json is edited.
pub(crate) fn with_config(name: &str, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> TempDir {
    let folder = copy(name);
    let path = folder.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(config.as_object_mut().unwrap());
    fs::write(path, config.to_string()).unwrap();
    folder
}

/// The error of loading `folder`, as one line.
#[track_caller]
pub(crate) fn refusal(folder: &Path) -> String {
    let message = load(folder).map(|model| model.plan.dims).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

/// Runs a few tokens and ignores the output.
pub(crate) fn run_briefly(model: &Model) -> Result<(), ModelError> {
    let prompt = Prompt { tokens: &[1, 17, 3], decode_tokens: &[5] };
    run::<ModelError>(&model.plan, &model.weights, prompt, Profile::F32, |_| true, |_, _, _| Ok(()))
}
