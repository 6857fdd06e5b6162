//! The subsystem that a change concerns.

use clap::Args;
use nvme::Nqn;

#[derive(Clone, Debug, Args)]
pub(super) struct SubsystemArg {
    /// NQN of the subsystem [default: the only one]
    #[arg(long, short = 'n', value_name = "NQN")]
    subsystem: Option<Nqn>,
}

impl SubsystemArg {
    /// Returns the given NQN.
    pub(super) fn name(&self) -> Option<String> {
        self.subsystem.as_ref().map(Nqn::to_string)
    }
}
