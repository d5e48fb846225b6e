//! What is an input made of? Files of pieces that keep their lengths and checksums right, so that a change reaches the reader that it is for.

use std::io::Write;

use serde_json::Value;

/// A piece of a file.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    /// Bytes that nothing counts.
    Bytes(Vec<u8>),
    /// Text.
    Text(String),
    /// Text behind its own length, in so many bytes, little-endian.
    Counted(usize, String),
    /// A document that stays one when a value of it is changed: what most changes of its text would end.
    Json(Value),
}

/// A member of an archive.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) pieces: Vec<Piece>,
    pub(super) packed: bool,
}

/// What a file holds.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Plain(Vec<Piece>),
    Zip(Vec<Member>),
}

/// A file of an input.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) body: Body,
}

/// What opens an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// A dump, told nothing.
    Dump,
    /// Weights, and the plan of a model that they and their config make.
    Weights,
    /// Weights against other weights.
    Compare,
    /// A table of names.
    Names,
    /// A gate's baseline.
    Baseline,
    /// A recorded program, carried out.
    Program,
    /// A recorded program with its dump and weights, carried out and held against a candidate.
    Recording,
}

/// A valid input, or one that was made of it.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// What the form is called.
    pub(super) form: &'static str,
    pub(super) parts: Vec<Part>,
    pub(super) reader: Reader,
    /// The file that is opened; empty for the folder.
    pub(super) opened: &'static str,
}

pub(super) fn render(pieces: &[Piece]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => out.extend_from_slice(bytes),
            Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
            Piece::Json(document) => out.extend_from_slice(document.to_string().as_bytes()),
            Piece::Counted(width, text) => {
                out.extend_from_slice(&(text.len() as u64).to_le_bytes()[..*width]);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
    out
}

impl Body {
    pub(super) fn render(&self) -> Vec<u8> {
        match self {
            Body::Plain(pieces) => render(pieces),
            Body::Zip(members) => zip(members),
        }
    }
}

/// A zip of the members as they are: one name twice, too. Sizes and checksums are right.
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
