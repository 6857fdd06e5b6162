//! What tests of admissions by keys have in common.
#![allow(unreachable_pub, reason = "test programs use it")]

use auth::TlsKey;
use nvme::{HostId, Nqn};
use reactor::{Config, Runtime};
use zeroize::Zeroizing;

/// Runs a test on a reactor.
pub fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(&Config::default()).unwrap().block_on(future)
}

/// Returns the NQN of the only subsystem.
pub fn subsystem() -> Nqn {
    Nqn::new("nqn.2026-01.io.tsumugi:disk").unwrap()
}

/// Returns the data key of this number.
pub fn key(number: u8) -> TlsKey {
    TlsKey::new(None, Zeroizing::new(vec![number; 48])).unwrap()
}

/// Returns the host identifier of this number.
pub fn host(number: u8) -> HostId {
    HostId([number; 16])
}
