//! The runs: rounds of conditions, each with its containers.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use eval::copyup::{Answer, FINISH, WRITE};

use super::condition::Condition;
use super::container::{ContainerArgs, is_ready};
use super::counters::{Disk, Room};
use super::files::{BenchDirectory, Lower, progress};
use super::ground::Grounds;
use super::measured::Run;
use super::{BenchSettings, Stopped, check_stopped, report};

/// How long to wait for a container before the bench checks whether it must end.
const HEAR_STEP: Duration = Duration::from_millis(100);

/// Runs all conditions in turn, in each round.
pub(super) fn all(
    settings: &BenchSettings,
    grounds: &Grounds<'_>,
    is_json: bool,
    stopped: &Stopped,
) -> anyhow::Result<Vec<Run>> {
    let count = settings.rounds * settings.containers.len() * settings.conditions.len();
    let bar = progress(count as u64, "runs");
    let mut runs = Vec::with_capacity(count);
    for round in 0..settings.rounds {
        for &containers in &settings.containers {
            for at in 0..settings.conditions.len() {
                // The first condition changes, so that no condition always follows the same one.
                let condition = settings.conditions[(at + round) % settings.conditions.len()];
                check_stopped(stopped)?;
                bar.set_message(format!("runs, {} by {containers}", condition.name()));
                let (directory, lower) = grounds.of(condition)?;
                let on = (directory, lower, grounds.disk());
                let run = one(settings, on, (condition, containers, round), stopped).with_context(
                    || format!("{} with {containers} containers", condition.name()),
                )?;
                directory.clear_containers()?;
                if is_json {
                    report::print_json(&run)?;
                }
                runs.push(run);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(runs)
}

fn one(
    settings: &BenchSettings,
    (directory, lower, disk): (&BenchDirectory, &Lower, &Path),
    (condition, containers, round): (Condition, usize, usize),
    stopped: &Stopped,
) -> anyhow::Result<Run> {
    let at = directory.make_containers(containers)?;
    lower.warm()?;
    let mut started = Vec::with_capacity(containers);
    for (number, at) in at.iter().enumerate() {
        check_stopped(stopped)?;
        let seed = settings.seed ^ ((round as u64) << 32) ^ ((number as u64 + 1) << 8);
        started.push(Container::start(condition, lower, at, settings.operations, seed)?);
    }
    for container in &mut started {
        let Answer::Ready { .. } = container.hear(stopped)? else {
            bail!("a container sent an unexpected answer")
        };
    }
    directory.sync()?;
    let room = Room::of(condition, directory)?;
    let before = Disk::below(disk);
    let start = Instant::now();
    started.iter_mut().try_for_each(|container| container.order(WRITE))?;
    let (mut latencies_ns, mut rates) = (Vec::new(), Vec::with_capacity(containers));
    for container in &mut started {
        let Answer::Written { latencies_ns: mut own, elapsed_ns, .. } = container.hear(stopped)?
        else {
            bail!("a container sent an unexpected answer")
        };
        rates.push(own.len() as f64 / (elapsed_ns as f64 / 1e9));
        latencies_ns.append(&mut own);
    }
    let written = start.elapsed().as_secs_f64();
    started.iter_mut().try_for_each(|container| container.order(FINISH))?;
    for container in &mut started {
        let Answer::Finished = container.hear(stopped)? else {
            bail!("a container sent an unexpected answer")
        };
    }
    directory.sync()?;
    let durable = start.elapsed().as_secs_f64();
    let disk = before.zip(Disk::below(disk)).map(|(before, after)| after.since(before));
    let upper_bytes = room.taken(directory)?;
    for container in started {
        container.end()?;
    }
    let operations = latencies_ns.len();
    let asked_bytes = (operations * 4096) as f64;
    latencies_ns.sort_unstable();
    let percentile =
        |part: usize| latencies_ns[(operations * part / 100).min(operations - 1)] as f64 / 1e6;
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    Ok(Run {
        condition: condition.name(),
        containers,
        round,
        operations,
        rate: operations as f64 / durable,
        rate_unsynced: operations as f64 / written,
        p50_ms: percentile(50),
        p99_ms: percentile(99),
        container_rate: sum / containers as f64,
        fairness: sum * sum / (containers as f64 * squares),
        upper_amplification: upper_bytes as f64 / asked_bytes,
        disk_amplification: disk.map(|disk| disk.written_bytes as f64 / asked_bytes),
        flushes_per_operation: disk.map(|disk| disk.flushes as f64 / operations as f64),
    })
}

/// A container as its parent sees it. When dropped, it gets the end of its input, unmounts and
/// ends.
#[derive(Debug)]
struct Container {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Container {
    fn start(
        condition: Condition,
        lower: &Lower,
        at: &Path,
        operations: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--"])
            .arg(program)
            .args(["union", "bench-container"])
            .args(ContainerArgs::words(condition, &lower.path, at, operations, seed))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Only the bench receives Ctrl-C, because it cleans up.
            .process_group(0)
            .spawn()
            .context("cannot run unshare (of util-linux)")?;
        let input = process.stdin.take();
        let output = process.stdout.take().context("a container without an output")?;
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    fn order(&mut self, what: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("a container without an input")?;
        writeln!(input, "{what}").context("a container has ended")
    }

    fn hear(&mut self, stopped: &Stopped) -> anyhow::Result<Answer> {
        while !is_ready(self.output.get_ref().as_fd(), HEAR_STEP)? {
            check_stopped(stopped)?;
        }
        let mut line = String::new();
        self.output.read_line(&mut line).context("cannot read from a container")?;
        check_stopped(stopped)?;
        if line.is_empty() {
            bail!("a container failed; its error is above");
        }
        serde_json::from_str(&line).context("cannot understand a container")
    }

    fn end(mut self) -> anyhow::Result<()> {
        drop(self.input.take());
        let status = self.process.wait().context("cannot wait for a container")?;
        if !status.success() {
            bail!("a container could not end ({status})");
        }
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Err(error) = self.process.wait() {
            tracing::warn!(%error, "cannot wait for a container");
        }
    }
}
