//! Bringing a job's file system up on its nodes, telling its state, and taking it down again.
//!
//! Everything a job makes is written into its state file *before* it is made, so that
//! `tsumugi down` can undo it whatever was killed at whatever moment, `tsumugi up` included.
//! Processes are known by number and start time, and are found again by a mark in their environment
//! should their number never have been written down.
//!
//! One executor ([`machine`]) does the work of one machine. `up --local` calls it directly;
//! `up --nodes` talks to one executor per host over ssh ([`remote`]), line by line.

pub(crate) mod admin;
pub(crate) mod cleanup;
pub(crate) mod fabric;
pub(crate) mod hosts;
pub(crate) mod job;
pub(crate) mod machine;
pub(crate) mod mounts;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod process;
pub(crate) mod remote;
pub(crate) mod service;
pub(crate) mod size;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod stop;
