//! Bringing a job's file system up on its nodes, telling its state, and taking it down again.
//!
//! Everything a job makes is written into its state file *before* it is made, so that `tsumugi
//! down` can undo it whatever was killed at whatever moment, `tsumugi up` included. Processes are
//! known by number and start time, and are found again by a mark in their environment should their
//! number never have been written down.
//!
//! What outlives a reboot is recorded on disk too ([`record`]); [`find`] knows all jobs of a
//! machine, and [`gc`] removes what dead ones left. A service that lives holds a lock ([`life`]),
//! so that one that was started by hand is known as well. No path of a stranger is followed
//! ([`place`]), and what another user wrote is acted on with that user's rights only ([`users`]).
//!
//! A job's keeper ([`keeper`]) starts again what dies, and takes the job down when its owner is
//! gone.
//!
//! One executor ([`machine`]) does the work of one machine. `up --local` calls it directly; `up
//! --nodes` talks to one executor per host over ssh ([`remote`]), line by line.

pub(crate) mod admin;
pub(crate) mod cleanup;
pub(crate) mod fabric;
pub(crate) mod files;
pub(crate) mod find;
pub(crate) mod fuse_uring;
pub(crate) mod gc;
pub(crate) mod hosts;
pub(crate) mod job;
pub(crate) mod keeper;
pub(crate) mod lease;
pub(crate) mod life;
pub(crate) mod logs;
pub(crate) mod machine;
pub(crate) mod mounts;
pub(crate) mod output;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod process;
pub(crate) mod reach;
pub(crate) mod record;
pub(crate) mod remote;
pub(crate) mod restart;
pub(crate) mod service;
pub(crate) mod services;
pub(crate) mod size;
pub(crate) mod slurm;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod users;
