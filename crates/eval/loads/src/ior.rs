//! IOR: unmodified scripts of version 2.10.3 and 4.
//!
//! What a script means follows hpc/ior at tag 2.10.3 and at 4.1; nothing of it is copied. A script is
//! read ([`parse`]), each of its tests is checked ([`Parameters`]) and conducted ([`Conductor`])
//! through a crew of ranks: processes of this machine for POSIX, or ranks of a real MPI for MPI-IO
//! and POSIX. What they answer is shown in IOR's own forms ([`Output`]).

mod conductor;
mod crew;
pub mod experiment;
mod hints;
mod keys;
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

use crate::engine::{Declaration, Operations, SettingKind};
use crate::keys::{Form, Key};
use crate::level::{Level, LevelKind, Runtime};
use crate::metric::Metric;
use base::messages::Message;

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
pub use stripe::{Stripe, is_lustre};
pub use study::IorEngine;

const OPTIONS: Key = Key::new("options", Form::Table);

/// IOR's tests, on POSIX and MPI-IO.
pub const ENGINE: Declaration = Declaration {
    name: "ior",
    worker: Message::Rank,
    keys: &[OPTIONS],
    metrics: Some(&[Metric::Bandwidth, Metric::Iops]),
    setting: Some(SettingKind {
        kind: "ior",
        noun: "ways",
        keys: &[
            OPTIONS,
            Key::new("mpi", Form::Text),
            Key::new("hints", Form::Table),
            Key::new("stripe-count", Form::Integer),
            Key::new("stripe-size", Form::Text),
        ],
        is_all: false,
        read: keys::level,
    }),
    operations: Operations::Transfers,
    // Only POSIX knows it there.
    is_direct: |given| given.unwrap_or(false),
    load: keys::load,
    mismatch,
    start: Some(|setup| Ok(Box::new(IorEngine::new(setup.program, setup.scratch)))),
    ..Declaration::DEFAULT
};

fn mismatch(level: &Level) -> Option<String> {
    if matches!(level.kind, LevelKind::Runtime(Runtime::Container(_))) {
        return Some("engine \"ior\" runs natively".into());
    }
    level.mismatch_of_files("ior")
}
