//! What `compare` and `inspect` judge, right and wrong. One binary: each links the whole crate anew.

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
mod synthetic;
