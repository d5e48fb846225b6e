//! What does a wrong operation compute instead? A law is measured from the recorded inputs and outputs of the operation, and from what is due there.
//!
//! The operation is known in many places (layers), and is wrong in the same way in all of them. A law is fitted in the first place and proved in the others.
//! It is accepted where its own prediction leaves no more than rounding, and where it says much less than it explains: its parameters are paid for in bits.
//!
//! Nothing here knows a model, a tap or a catalogue of mistakes: what is asked of the right operation goes through [`Operation`].

mod case;
mod describe;
mod fit;
mod identify;
mod law;
mod number;
mod proof;

pub use case::{Axis, Case, Inner, Kind, Operation, OtherWeight, Place, Taken};
pub use law::{Form, Law, Parameters, Proof, Status, Support};
pub use proof::{holds, measured};
