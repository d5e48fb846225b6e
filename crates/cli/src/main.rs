//! Runs the `firstdiff` command; everything it does is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(firstdiff::commands::main())
}
