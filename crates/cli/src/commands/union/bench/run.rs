//! The runs: rounds of conditions, each with its containers.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use eval::Stop;
use eval::copyup::{Container, Containers, Phase, WRITE, WRITE_BYTES};
use eval::crowd::fairness;

use super::condition::Condition;
use super::container::ContainerArgs;
use super::counters::{Disk, Room};
use super::files::{BenchDirectory, Lower, progress};
use super::ground::Grounds;
use super::measured::Run;
use super::{BenchSettings, check_stopped, report};

/// Runs all conditions in turn, in each round.
pub(super) fn all(
    settings: &BenchSettings,
    grounds: &Grounds<'_>,
    is_json: bool,
    stopped: &Stop,
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
    stopped: &Stop,
) -> anyhow::Result<Run> {
    let at = directory.make_containers(containers)?;
    lower.warm()?;
    let mut started = Containers::default();
    let measured = (|| {
        for (number, at) in at.iter().enumerate() {
            check_stopped(stopped)?;
            let seed = settings.seed ^ ((round as u64) << 32) ^ ((number as u64 + 1) << 8);
            let command = container(condition, lower, at, settings.operations, seed)?;
            started.add(Container::of(command).context("cannot run unshare (of util-linux)")?);
        }
        told(stopped, started.expect_ready(stopped))?;
        directory.sync()?;
        let room = Room::of(condition, directory)?;
        let before = Disk::below(disk);
        let phase = Phase::run::<anyhow::Error>(WRITE, &mut started, || directory.sync(), stopped);
        let phase = told(stopped, phase)?;
        let disk = before.zip(Disk::below(disk)).map(|(before, after)| after.since(before));
        anyhow::Ok((phase, disk, room.taken(directory)?))
    })();
    // Also after a failure: a container unmounts before it ends.
    let ended = started.finish();
    let (phase, disk, upper_bytes) = measured?;
    ended?;
    let operations = phase.operations();
    let asked_bytes = operations * WRITE_BYTES as f64;
    Ok(Run {
        condition: condition.name(),
        containers,
        round,
        operations: phase.latencies_ns.len(),
        rate: operations / phase.durable_s,
        rate_unsynced: operations / phase.written_s,
        p50_ms: phase.latency_us(50) / 1e3,
        p99_ms: phase.latency_us(99) / 1e3,
        container_rate: phase.rates.iter().sum::<f64>() / containers as f64,
        fairness: fairness(&phase.rates).unwrap_or(f64::NAN),
        upper_amplification: upper_bytes as f64 / asked_bytes,
        disk_amplification: disk.map(|disk| disk.written_bytes as f64 / asked_bytes),
        flushes_per_operation: disk.map(|disk| disk.flushes as f64 / operations),
    })
}

/// Returns the command of a container, in a mount namespace of its own.
fn container(
    condition: Condition,
    lower: &Lower,
    at: &Path,
    operations: usize,
    seed: u64,
) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]).arg(program);
    command.args(["union", "bench-container"]);
    command.args(ContainerArgs::words(condition, &lower.path, at, operations, seed));
    Ok(command)
}

/// Returns what containers answered; their own errors are on the standard error output already.
fn told<T, E: Into<anyhow::Error>>(stopped: &Stop, answer: Result<T, E>) -> anyhow::Result<T> {
    check_stopped(stopped)?;
    answer.map_err(Into::into).context("a container failed; its error is above")
}
