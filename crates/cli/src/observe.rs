//! Observing a running process: its counters, its activity, and its operations as they end.
//!
//! Each service of a job answers HTTP/1.1 on a socket in the job's directory that only its user can
//! open ([`socket`], [`server`]); commands send requests there ([`crate::deploy::ask`]).

pub(crate) mod server;
pub(crate) mod show;
pub(crate) mod socket;
pub(crate) mod text;
