//! Shared by all parts of the evaluation: errors, the stop flag, units, clocks, and the table of messages.

pub mod calendar;
pub mod clock;
mod error;
pub mod messages;
pub mod statistics;
mod stop;
pub mod units;

pub use error::{Error, KeyError, UnitError};
pub use stop::Stop;
