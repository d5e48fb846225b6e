//! What is taken back, or explained away, once every tap is judged? Each rule by itself.

pub(crate) mod first_position;
pub(crate) mod layouts;
pub(crate) mod masked;
pub(crate) mod replicas;
pub(crate) mod unmapped;
pub(crate) mod unproven;
