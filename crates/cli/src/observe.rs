//! Looking at a running process: what it has counted, what it does, and its operations as they end.
//!
//! Each service of a job answers HTTP/1.1 at a socket in the job's directory that only its user can
//! open ([`socket`], [`server`]); commands ask there ([`ask`]).

pub(crate) mod ask;
pub(crate) mod server;
pub(crate) mod show;
pub(crate) mod socket;
pub(crate) mod text;
