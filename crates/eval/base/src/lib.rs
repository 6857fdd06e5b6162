//! What all parts of the evaluation share: errors, the wish to stop, units, clocks, and the table of
//! messages.

pub mod calendar;
pub mod clock;
mod error;
pub mod messages;
pub mod statistics;
mod stop;
pub mod units;

pub use error::{Error, KeyError, UnitError};
pub use stop::Stop;
