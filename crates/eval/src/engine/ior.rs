//! IOR: unmodified scripts of version 2.10.3 and 4, on our own POSIX backend.
//!
//! What a script means follows hpc/ior at tag 2.10.3 and at 4.1; nothing of it is copied. Ranks are
//! threads of this process so far, which is said in the output; MPI-IO needs a real MPI.

mod keywords;
mod output;
mod parameters;
mod posix;
mod script;

pub use output::summary;
pub use parameters::Parameters;
pub use posix::{Access, Measured, PosixError, run};
pub use script::{Compat, Phases, Script, ScriptError, Settings, parse};
