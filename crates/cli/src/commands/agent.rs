//! `tsumugi agent`: a node's part of a job, in the foreground.

use crate::deploy::job::{JobArgs, JobDir};
use crate::deploy::remote;
use crate::deploy::slurm;
use crate::deploy::stop::Stop;
use anyhow::Context;
use clap::Args;
use std::process::ExitCode;

/// Run a node's part of a job in the foreground, as a task of a Slurm step.
#[derive(Debug, Args)]
#[command(after_help = "\
Example (`tsumugi up --slurm` starts this on all nodes of an allocation, as one step):
    srun --overlap --ntasks-per-node=1 tsumugi agent --job NAME

It executes the orders that `up` writes to its standard input, and keeps running after all nodes \
are ready. It ends when the job is taken down. On SIGTERM, which Slurm sends when the step or its \
job ends, it first removes its node's part: processes, mount, backing files, directories. The end \
of its input, or a lost network, does not end it.

Exit codes:
    0  nothing of the job is left on this node
    1  the job could not be created, or something is left; the output names it
    2  wrong usage")]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    job: JobArgs,
    /// The node's name in the job [default: `$SLURMD_NODENAME`]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

/// Runs `tsumugi agent`.
pub(crate) fn run(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    let node = args.node.clone().or_else(slurm::node_here);
    let node = node.context("no task of a Slurm step: name the node with --node")?;
    let whole = args.job.dir()?;
    let part = format!("{}.{node}", whole.job());
    let dir = JobDir::new(Some(&part), args.job.dir.as_deref())?;
    let stop = Stop::on_signals()?;
    Ok(remote::serve_step(&whole, &dir, &stop, &node))
}
