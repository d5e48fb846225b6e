//! Checks what `compare` and `inspect` report on right and wrong runs. One binary, as each one links the whole crate anew.

mod chunks;
mod declared;
mod detail;
mod experts;
mod fixtures;
mod inherited;
mod inspect;
mod layouts;
mod left_out;
mod masks;
mod metrics;
mod naming;
mod open_in_chunks;
mod open_taps;
mod planted;
mod positions;
mod purposes;
mod routing;
mod row_order;
mod synthetic;
