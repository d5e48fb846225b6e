//! Checks the command end to end. One binary, as each one links the whole crate anew.

mod arithmetic;
mod bisect;
mod blocks;
mod ci;
mod command;
mod common;
mod decode;
mod explain_run;
mod few_numbers;
#[cfg(unix)]
mod files;
mod hidden;
mod inspect;
mod llama_cpp;
mod names;
mod parts;
mod positions;
mod printed;
mod program;
mod schema;
mod screens;
mod statements;
mod tokens;
mod unlisted;
mod why;
