//! Planted mistakes: operations carried out otherwise by plain loops that share nothing with the identification, over three layers, with f32's rounding.

mod activation;
mod attention;
mod choice;
mod context;
mod docs;
mod further;
mod invented;
mod linear;
mod norm;
mod output;
mod plant;
mod rotation;
mod sums;
