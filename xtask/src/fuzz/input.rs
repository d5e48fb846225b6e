//! Defines fuzz inputs: files made of pieces whose lengths and checksums stay right, so that a change reaches the reader it is meant for.

use std::io::Write;

use serde_json::Value;

/// A piece of a file.
#[derive(Clone, Debug)]
pub(super) enum Fragment {
    /// Bytes that no length field counts.
    Bytes(Vec<u8>),
    /// Text.
    Text(String),
    /// Text after its own length, a little-endian number of this many bytes.
    Counted(usize, String),
    /// A JSON document, changed by value so that it stays valid; changes of its text would mostly end in the parser.
    Json(Value),
}

/// A member of an archive.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) pieces: Vec<Fragment>,
    pub(super) packed: bool,
}

/// The content of a file.
#[derive(Clone, Debug)]
pub(super) enum FileContent {
    Plain(Vec<Fragment>),
    Zip(Vec<Member>),
}

/// A file of an input.
#[derive(Clone, Debug)]
pub(super) struct InputFile {
    pub(super) name: String,
    pub(super) body: FileContent,
}

/// The reader that opens an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A dump, without options.
    Dump,
    /// Weights, and the plan built from them and their config.
    Weights,
    /// Weights against other weights.
    Compare,
    /// A table of names.
    Names,
    /// A gate's baseline.
    Baseline,
    /// A recorded program, evaluated.
    Program,
    /// A recorded program with its dump and weights, evaluated and compared with a candidate.
    Recording,
}

/// A valid input, or one derived from it.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// The name of the file format.
    pub(super) form: &'static str,
    pub(super) parts: Vec<InputFile>,
    pub(super) reader: Target,
    /// The file to open; empty for the whole folder.
    pub(super) opened: &'static str,
}

pub(super) fn render(pieces: &[Fragment]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Fragment::Bytes(bytes) => out.extend_from_slice(bytes),
            Fragment::Text(text) => out.extend_from_slice(text.as_bytes()),
            Fragment::Json(document) => out.extend_from_slice(document.to_string().as_bytes()),
            Fragment::Counted(width, text) => {
                out.extend_from_slice(&(text.len() as u64).to_le_bytes()[..*width]);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
    out
}

impl FileContent {
    pub(super) fn render(&self) -> Vec<u8> {
        match self {
            FileContent::Plain(pieces) => render(pieces),
            FileContent::Zip(members) => zip(members),
        }
    }
}

/// A zip of the members in order, duplicate names included. Sizes and checksums are right.
fn zip(members: &[Member]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for member in members {
        let bytes = render(&member.pieces);
        let mut crc = flate2::Crc::new();
        crc.update(&bytes);
        let packed = if member.packed {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes).and_then(|()| encoder.finish()).unwrap_or_default()
        } else {
            bytes.clone()
        };
        let mut shared = 20u16.to_le_bytes().to_vec();
        shared.extend_from_slice(&[0, 0, if member.packed { 8 } else { 0 }, 0, 0, 0, 0x21, 0]);
        for number in [crc.sum(), packed.len() as u32, bytes.len() as u32] {
            shared.extend_from_slice(&number.to_le_bytes());
        }
        shared.extend_from_slice(&(member.name.len() as u16).to_le_bytes());
        shared.extend_from_slice(&[0, 0]);
        directory.extend_from_slice(b"PK\x01\x02\x14\x00");
        directory.extend_from_slice(&shared);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&(out.len() as u32).to_le_bytes());
        directory.extend_from_slice(member.name.as_bytes());
        out.extend_from_slice(b"PK\x03\x04");
        out.extend_from_slice(&shared);
        out.extend_from_slice(member.name.as_bytes());
        out.extend_from_slice(&packed);
    }
    let start = out.len() as u32;
    out.extend_from_slice(&directory);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    out.extend_from_slice(&[(members.len() as u16).to_le_bytes(), (members.len() as u16).to_le_bytes()].concat());
    out.extend_from_slice(&(directory.len() as u32).to_le_bytes());
    out.extend_from_slice(&start.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out
}
