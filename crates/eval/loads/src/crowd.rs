//! Many instances of a load at the same time, each in a directory or container of its own, which begin
//! together.
//!
//! Three parts, which know nothing of what the instances do:
//!
//! * [`Shares`] gives each instance a directory of its own: plain directories here, unions or snapshots
//!   over one lower directory in other implementations. A place has one, see
//!   [`Place::instances`](crate::place::Place::instances).
//! * [`Meeting`] starts the instances' commands and is their start barrier. Each instance makes itself
//!   ready (container up, files made), says so at its [`Seat`] and sleeps. When the last one has said so, all
//!   get one instant of the monotonic clock, a little ahead, at which they begin. So no operation
//!   precedes the last instance's readiness; [`Gathered::ready_ns`] and the times that instances report of
//!   themselves show it.
//! * [`fairness`] of what they reached.
//!
//! The barrier is a directory that all instances see (their scratch) with a FIFO in it: opening it for
//! reading sleeps until the meeting opens it for writing, in any namespace of a reader, and costs no
//! CPU time meanwhile. Output goes to files there, not to pipes: six hundred instances need no thread here.
//!
//! ```no_run
//! # use loads::crowd::{Base, Meeting, Patience}; use base::Stop; use std::path::Path;
//! # fn f(place: &dyn loads::place::Place, scratch: &Path, stop: &Stop) -> Result<(), base::Error> {
//! let base = Base { key: "nothing", fill: &|_| Ok(()) };
//! let instances = place.instances(16, &base, stop)?;
//! let meeting = Meeting::make(scratch)?;
//! let mut commands = Vec::new();
//! for (number, place) in instances.places().into_iter().enumerate() {
//!     // The program joins with `Seat::new(DIRECTORY, NUMBER).take()`.
//!     let seat = meeting.seat(&place.inside_scratch(scratch), number as u32);
//!     let words = ["load".to_string(), seat.directory.display().to_string(), number.to_string()];
//!     commands.push(place.command("program", &words, scratch));
//! }
//! let gathered = meeting.hold(commands, &Patience::default(), stop, &mut |_| {})?;
//! instances.take_back()?;
//! # drop(gathered); Ok(()) }
//! ```

mod meeting;
mod seat;
mod shares;

pub use meeting::{Gathered, Meeting, Patience, Progress};
pub use seat::Seat;
pub use shares::{Base, PlainShares, Shares};

/// Most instances of a crowd.
pub const INSTANCES_MAX: u32 = 1024;

/// What is kept of the rates of single instances: names of samples (behind what they are of), and shares.
pub const CONTAINER_QUANTILES: [(&str, f64); 5] = [
    ("container_rate_min", 0.0),
    ("container_rate_q1", 0.25),
    ("container_rate_median", 0.5),
    ("container_rate_q3", 0.75),
    ("container_rate_max", 1.0),
];

/// Jain's index of fairness (Jain, Chiu, Hawe 1984): (Σx)² / (n Σx²), from 1/n, where one gets all, to 1, where
/// all get the same. `None` if all got nothing.
pub fn fairness(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

#[cfg(test)]
mod tests;
