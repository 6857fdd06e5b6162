//! One container: a process that writes, and waits until its writes are durable, on orders from its
//! input. It answers with lines of JSON, and ends with its input.
//!
//! In `union bench` it has a mount namespace of its own, in which it mounts and unmounts, so
//! nothing stays mounted, however the bench ends. In experiments its parent has mounted already
//! ([`MountArgs`], for all containers of a run): the process may run in a container that a runtime
//! has started, where it may not mount and sees only its own directory.

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
use eval::clock::now_ns;
use eval::copyup::{AGAIN, Answer, FINISH, USAGE, WRITE, WRITE_BYTES};

/// Arguments of one container.
#[derive(Debug, Args)]
pub(in crate::commands::union) struct ContainerArgs {
    #[arg(long)]
    condition: Condition,
    /// The lower directory, which this process mounts
    #[arg(long, required_unless_present = "names", conflicts_with = "names")]
    lower: Option<PathBuf>,
    /// File with a name and a size on each line: everything is mounted already
    #[arg(long)]
    names: Option<PathBuf>,
    /// Directory with `upper`, `work` and `mount`
    #[arg(long)]
    at: PathBuf,
    #[arg(long)]
    operations: usize,
    #[arg(long)]
    seed: u64,
}

/// Arguments of the mounts for containers.
#[derive(Debug, Args)]
pub(in crate::commands::union) struct MountArgs {
    #[arg(long)]
    condition: Condition,
    #[arg(long)]
    lower: PathBuf,
    /// Directories with `upper`, `work` and `mount` each
    at: Vec<PathBuf>,
}

/// Runs `tsumugi union bench-mount`. Its parent unmounts, also what an error has left.
pub(in crate::commands::union) fn mount_all(args: &MountArgs) -> anyhow::Result<ExitCode> {
    args.at.iter().try_for_each(|at| args.condition.mount(&args.lower, at))?;
    Ok(ExitCode::SUCCESS)
}

/// The container's arguments, for its parent.
impl ContainerArgs {
    /// Returns the command line after `bench-container`.
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
    if let Some(list) = &args.names {
        return serve(args, &listed(list)?).map(|()| ExitCode::SUCCESS);
    }
    let lower = args.lower.as_deref().context("--lower or --names is missing")?;
    args.condition.mount(lower, &args.at)?;
    let done = files::names(lower).and_then(|names| serve(args, &names));
    let unmounted = args.condition.unmount(&args.at);
    done.and(unmounted).map(|()| ExitCode::SUCCESS)
}

/// Reads the names and sizes from a list.
fn listed(list: &Path) -> anyhow::Result<Vec<(String, u64)>> {
    let cannot = || format!("cannot read {}", list.display());
    let text = std::fs::read_to_string(list).with_context(cannot)?;
    let read = |line: &str| {
        let (name, size) = line.rsplit_once(' ')?;
        Some((name.to_string(), size.parse().ok()?))
    };
    text.lines().map(read).collect::<Option<_>>().with_context(cannot)
}

fn serve(args: &ContainerArgs, names: &[(String, u64)]) -> anyhow::Result<()> {
    answer(&Answer::Ready { at_ns: now_ns() })?;
    for line in std::io::stdin().lock().lines() {
        match line.context("cannot read the next order")?.as_str() {
            // The second time the same files in the same order, at other offsets.
            word @ (WRITE | AGAIN) => answer(&write(args, names, word == AGAIN)?)?,
            USAGE => {
                let bytes = allocated_bytes(&args.at.join("upper"))?
                    + allocated_bytes(&args.at.join("work"))?;
                answer(&Answer::Usage { bytes })?;
            }
            FINISH => {
                args.condition.finish(&args.at)?;
                answer(&Answer::Finished)?;
            }
            other => bail!("unknown order {other:?}"),
        }
    }
    Ok(())
}

fn answer(answer: &Answer) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    serde_json::to_writer(&mut output, answer).context("cannot answer")?;
    output.write_all(b"\n").and_then(|()| output.flush()).context("cannot answer")
}

/// Returns whether the input has an order, or has ended.
fn is_ready(input: BorrowedFd<'_>, wait: Duration) -> anyhow::Result<bool> {
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
    let (start, begun_ns) = (Instant::now(), now_ns());
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
    Ok(Answer::Written { latencies_ns, begun_ns, elapsed_ns: start.elapsed().as_nanos() as u64 })
}
