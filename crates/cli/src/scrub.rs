//! Reading all data of a pool to compare it with its checksums: for `tsumugi scrub` and `tsumugi
//! check --data`.

mod progress;
pub(crate) mod reader;

pub(crate) use progress::Progress;
