//! Whole clusters in one process, driven by a seed.
//!
//! One metadata service and three nodes, each with a device, a target, an agent and a client, run
//! as shipped on simulated machines ([`reactor::sim`]). Workers on every client create, write,
//! copy, rename, unlink and read the same few files at once, while machines are killed, paused, cut
//! off and lose power. Then a checker compares the history of all calls and answers with what mode
//! `close` allows ([`Outcome::violations`]). A seed repeats a run exactly.
//!
//! Workers make system calls to a model of the kernel, which sends FUSE requests to the shipped
//! mount.

mod aim;
mod block_path;
mod causes;
mod check;
mod cluster;
mod fault;
mod faults;
mod finish;
mod history;
mod kept;
mod kernel;
mod linear;
pub mod mutants;
mod names;
mod operator;
mod parts;
mod pattern;
mod plan;
mod random;
mod reduce;
mod run;
mod story;
mod sweep;
mod worker;
mod world;

pub use block_path::{BlockOutcome, run_block_path};
pub use fault::{Fault, Faults};
pub use history::Counts;
pub use kept::{Feature, Kept, StepKey};
pub use linear::{Recorded, Verdict, check_lines};
pub use parts::{PartOutcome, run_parts};
pub use plan::Plan;
pub use reduce::{Reduced, reduce};
pub use run::{Outcome, run, run_worlds};
pub use sweep::{Report, SeedOutcome, cores, run_seed, sweep};
pub use world::{Area, World};
