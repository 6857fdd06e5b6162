//! The target over real connections on the loopback interface, against a small host of the tests.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, dead_code)]

mod admission;
mod ana;
mod announced;
mod basics;
mod changing;
mod client;
mod connecting;
mod cores;
mod fair;
mod features;
mod fused;
mod hostile;
mod life;
mod masking;
mod model;
mod optional;
mod proof;
mod rate;
mod reconnect;
mod reservation_hosts;
mod reservation_model;
mod reservations;
mod server;
mod transport;
