//! `tsumugi node`: runs a node's target, agent and mount in one process.

use crate::signals;
use ::node::{NodeConfig, Ready};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ring::Runtime;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Run a node: its target, its agent and its mount.
#[derive(Debug, Args)]
#[command(after_help = "\
Example of a configuration:
    name = \"node1\"
    meta = \"127.0.0.1:7000\"
    secret = \"/run/tsumugi/job/secret\"
    listen = \"127.0.0.1:0\"
    mount = \"/mnt/job\"
    [[device]]
    path = \"/scratch/node1.img\"
    size = \"2G\"            # made and written once if it is missing

As a rule `tsumugi up` writes it and starts the node. SIGINT and SIGTERM end it in good order: what
was written is committed, the file system unmounted, the target stopped.")]
pub(crate) struct NodeArgs {
    /// Configuration file
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
}

/// Runs `tsumugi node`.
pub(crate) fn run(args: &NodeArgs) -> anyhow::Result<ExitCode> {
    let config = NodeConfig::read(&args.config)?;
    let mut signals = signals::watch(&[])?;
    let poll = Duration::from_micros(u64::from(config.poll_us));
    let mut runtime = Runtime::new(&ring::Config { poll, ..ring::Config::default() })?;
    let mut bar: Option<ProgressBar> = None;
    let progress = move |path: &Path, done: u64, all: u64| {
        let bar = bar.get_or_insert_with(|| preparation(path, all));
        bar.set_position(done);
        if done == all {
            bar.finish_and_clear();
        }
    };
    let shutdown = async move { signals::termination(&mut signals).await };
    runtime.block_on(::node::run(config, progress, say_ready, shutdown))?;
    Ok(ExitCode::SUCCESS)
}

fn preparation(path: &Path, all: u64) -> ProgressBar {
    let bar = ProgressBar::new(all);
    let form = "{msg}: {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style);
    }
    bar.set_message(format!("writing {} once", path.display()));
    bar
}

fn say_ready(ready: &Ready) {
    let mount = ready.mount.as_deref().map_or("-".into(), |path| path.display().to_string());
    println!("ready mount {mount} target {}", ready.target);
    let _ = std::io::stdout().flush();
}
