//! IOR: unmodified scripts of version 2.10.3 and 4.
//!
//! What a script means follows hpc/ior at tag 2.10.3 and at 4.1; nothing of it is copied. A script is
//! read ([`parse`]), each of its tests is checked ([`Parameters`]) and conducted ([`Conductor`])
//! through a crew of ranks: processes of this machine for POSIX, or ranks of a real MPI for MPI-IO
//! and POSIX. What they answer is shown in IOR's own forms ([`Output`]).

mod conductor;
mod crew;
mod hints;
mod keywords;
mod libc_random;
mod mpi;
mod options;
mod order;
mod output;
mod parameters;
mod pattern;
mod phase;
mod rank;
mod script;
mod stripe;
mod study;

pub use conductor::{Conductor, Event, Files, Measured, Outcome as TestOutcome};
pub use crew::{Crew, IorError, Layout, Processes, Reply, rank_command, serve};
pub use hints::{Effective, Hint};
pub use mpi::{Launcher, Mpi, MpiKind, Shim, inside, inside_directory};
pub use options::{Line, read_options};
pub use output::{Output, RANK_HEAD, outliers, rank_rows};
pub use parameters::{Api, Format, Parameters, Stonewall, Striping};
pub use pattern::{Pattern, PatternKind};
pub use phase::{Access, Answer, Order, Phase};
pub use script::{Compat, Phases, Script, ScriptError, Settings, parse};
pub use stripe::{check as check_striping, is_lustre};
pub use study::IorEngine;
