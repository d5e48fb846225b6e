//! What would a program be, had other experts been chosen? The same operations on other rows, and on other experts.
//!
//! What is chosen decides how many rows each expert takes, and which experts run at all. Both stand in a recording as extents of tensors and as operations
//! that are there or not. [`Program::with_choices`] makes the program of other choices: whole numbers that follow from them are computed, what the kernels
//! give of operands in their new extents says how large results are, and views follow the axes that they show, never an extent that happens to be the
//! same. An expert that the recording did not run is another one of the same layer with other weights, where all that ran have the same operations but
//! for their number. What cannot be followed is evaluated to nothing, with the reason.

mod follow;
mod loops;
mod part;
mod pieces;
