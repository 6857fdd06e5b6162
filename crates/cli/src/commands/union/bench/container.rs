//! One container: a process with a mount namespace of its own, that mounts, writes, waits until it is
//! durable, and unmounts, each when it is told to on its input; its answers are lines of JSON. When
//! its input ends, it unmounts and ends: so nothing stays mounted, however the bench ends.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::condition::Condition;
use super::counters::allocated_bytes;
use super::files::{self, Random};
use eval::engine::copyup::{AGAIN, Answer, FINISH, USAGE, WRITE, WRITE_BYTES};

/// What a container is told.
#[derive(Debug, Args)]
pub(in crate::commands::union) struct ContainerArgs {
    #[arg(long)]
    condition: Condition,
    #[arg(long)]
    lower: PathBuf,
    /// Has `upper`, `work` and `mount`
    #[arg(long)]
    at: PathBuf,
    #[arg(long)]
    operations: usize,
    #[arg(long)]
    seed: u64,
}

/// What a container was told, for the one that starts it.
impl ContainerArgs {
    /// The command line, behind `bench-container`.
    pub(super) fn words(
        condition: Condition,
        lower: &Path,
        at: &Path,
        operations: usize,
        seed: u64,
    ) -> Vec<std::ffi::OsString> {
        let mut words: Vec<std::ffi::OsString> = Vec::new();
        words.extend(["--condition".into(), condition.name().into()]);
        words.extend(["--lower".into(), lower.into(), "--at".into(), at.into()]);
        words.extend(["--operations".into(), operations.to_string().into()]);
        words.extend(["--seed".into(), seed.to_string().into()]);
        words
    }
}

/// Runs `tsumugi union bench-container`.
pub(in crate::commands::union) fn run(args: &ContainerArgs) -> anyhow::Result<ExitCode> {
    args.condition.mount(&args.lower, &args.at)?;
    let done = serve(args);
    let unmounted = args.condition.unmount(&args.at);
    done.and(unmounted).map(|()| ExitCode::SUCCESS)
}

fn serve(args: &ContainerArgs) -> anyhow::Result<()> {
    let names = files::names(&args.lower)?;
    answer(&Answer::Mounted)?;
    for line in std::io::stdin().lock().lines() {
        match line.context("cannot hear what to do")?.as_str() {
            // The same files in the same order, elsewhere in them the second time.
            word @ (WRITE | AGAIN) => answer(&write(args, &names, word == AGAIN)?)?,
            USAGE => {
                let bytes = allocated_bytes(&args.at.join("upper"))?
                    + allocated_bytes(&args.at.join("work"))?;
                answer(&Answer::Usage { bytes })?;
            }
            FINISH => {
                args.condition.finish(&args.at)?;
                answer(&Answer::Finished)?;
            }
            other => bail!("told to do {other:?}"),
        }
    }
    Ok(())
}

fn answer(answer: &Answer) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    serde_json::to_writer(&mut output, answer).context("cannot answer")?;
    output.write_all(b"\n").and_then(|()| output.flush()).context("cannot answer")
}

/// Whether there is something to hear, or nobody to hear any more.
pub(super) fn is_ready(input: BorrowedFd<'_>, wait: Duration) -> anyhow::Result<bool> {
    let mut poll = [PollFd::from_borrowed_fd(input, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
    let count = rustix::io::retry_on_intr(|| rustix::event::poll(&mut poll, Some(&wait)));
    Ok(count.context("cannot wait")? > 0)
}

fn write(args: &ContainerArgs, names: &[(String, u64)], is_again: bool) -> anyhow::Result<Answer> {
    let mut random = Random::new(args.seed);
    let mut order: Vec<usize> = (0..names.len()).collect();
    random.shuffle(&mut order);
    order.truncate(args.operations);
    if is_again {
        random = Random::new(!args.seed);
    }
    let root = args.at.join("mount");
    let data = [0xA5; WRITE_BYTES as usize];
    let mut latencies_ns = Vec::with_capacity(order.len());
    let start = Instant::now();
    for index in order {
        if is_ready(std::io::stdin().as_fd(), Duration::ZERO)? {
            bail!("stopped");
        }
        let (name, size) = &names[index];
        let blocks = (size / WRITE_BYTES).max(1);
        let offset = random.below(blocks) * WRITE_BYTES;
        let path = root.join(name);
        let begin = Instant::now();
        let file = OpenOptions::new().write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {name}"))?;
        file.write_all_at(&data, offset).with_context(|| format!("cannot write {name}"))?;
        drop(file);
        latencies_ns.push(begin.elapsed().as_nanos() as u64);
    }
    Ok(Answer::Written { latencies_ns, elapsed_ns: start.elapsed().as_nanos() as u64 })
}
