//! Creating a job's file system on its nodes, reporting its state, and taking it down again.
//!
//! A job writes everything that it will create into its state file *before* it creates it, so that
//! `tsumugi down` can undo it after any process was killed at any moment, `tsumugi up` included.
//! Processes are identified by number and start time. A mark in their environment finds a process
//! again if its number was never written down.
//!
//! Things that outlive a reboot are also recorded on disk ([`record`]); [`jobs`] finds all jobs of
//! a user, and [`gc`] removes the leftovers of dead jobs. A live service holds a lock
//! ([`life`]), so that a service that a user started by hand is known as well. The code follows no
//! path of a stranger ([`place`]), and acts on data of another user only with that user's rights
//! ([`users`]).
//!
//! A job's keeper ([`keeper`]) restarts dead processes, and takes the job down when its owner has
//! ended.
//!
//! One executor ([`machine`]) does the work of one machine. `up --local` calls it directly; `up
//! --nodes` sends orders to one executor per host over ssh ([`remote`]), line by line.

pub(crate) mod admin;
pub(crate) mod ask;
pub(crate) mod bounded;
pub(crate) mod cleanup;
pub(crate) mod data_fabric;
pub(crate) mod fabric;
pub(crate) mod files;
pub(crate) mod find;
pub(crate) mod fuse_uring;
pub(crate) mod gc;
pub(crate) mod hosts;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod keeper;
pub(crate) mod lease;
pub(crate) mod life;
pub(crate) mod logs;
pub(crate) mod machine;
pub(crate) mod mounts;
pub(crate) mod options;
pub(crate) mod others;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod process;
pub(crate) mod reach;
pub(crate) mod record;
pub(crate) mod remote;
pub(crate) mod restart;
pub(crate) mod scrub_record;
pub(crate) mod service;
pub(crate) mod services;
pub(crate) mod site;
pub(crate) mod size;
pub(crate) mod slurm;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod users;
pub(crate) mod watch;
