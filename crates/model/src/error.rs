//! Reports why a model could not be loaded or run.

use std::path::PathBuf;

use firstdiff_trace::{FileError, Tap};

impl ModelError {
    /// The same for a file that could not be read.
    pub(crate) fn from_file_error(error: FileError) -> ModelError {
        match error {
            FileError::Io { path, source } => ModelError::Io { file: path, source },
            FileError::NotRegular { path } => ModelError::Format { file: path, reason: "is no regular file".into() },
            FileError::TooLarge { path, size, limit } => {
                let reason = format!("holds {size} bytes, and {limit} are the most that are read of such a file");
                ModelError::Format { file: path, reason }
            }
            other => ModelError::Format { file: PathBuf::new(), reason: other.to_string() },
        }
    }
}

firstdiff_trace::debug_is_display!(ModelError);

/// Why a model could not be loaded or run.
#[derive(thiserror::Error)]
pub enum ModelError {
    /// A file could not be opened or mapped.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file does not have the format that its name indicates.
    #[error("{}: {reason}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A key of config.json has an invalid value.
    #[error("{}: {key}: {reason}", file.display())]
    Config {
        /// The config file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor of the file cannot be used.
    #[error("{}: tensor {tensor}: {reason}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor's name in that file.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The config needs a tensor that the weights do not hold.
    #[error("{}: tensor {tensor} is absent, and the config asks for it with shape {expected:?}", file.display())]
    Missing {
        /// The weights.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape the config gives it.
        expected: Vec<usize>,
    },
    /// The config and the weights disagree.
    #[error("{}: tensor {tensor} has shape {actual:?}, and the config asks for {expected:?}", file.display())]
    Shape {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape the config gives it.
        expected: Vec<usize>,
        /// The shape in the file.
        actual: Vec<usize>,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} (number {index}) is outside the vocabulary of {vocab}")]
    Token {
        /// Its index in the prompt, prefill first, from 0.
        index: usize,
        /// The id.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// There are no tokens.
    #[error("no tokens: a run needs at least one to prefill")]
    NoTokens,
    /// A step got inputs that it cannot work on.
    #[error("{tap}: {reason}")]
    Step {
        /// What the step produces.
        tap: Tap,
        /// What is wrong with the inputs.
        reason: String,
    },
}
