//! `tsumugi`: one binary for every part of the system.
fn main() {}
