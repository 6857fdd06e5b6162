//! Restarting dead parts of a job: its metadata service and its nodes.

use super::job::JobDir;
use super::life::Holder;
use super::process;
use super::services;
use super::state::State;
use super::stop::Stop;
use anyhow::{Context, bail};
use std::time::{Duration, Instant};

/// The name of the metadata service as a part.
pub(crate) const META: &str = "meta";

/// Restarts the dead parts of the job on this machine, or those of them that are given. Returns the
/// names of the restarted parts.
pub(crate) fn here(
    dir: &JobDir,
    parts: &[String],
    within: Duration,
    stop: &Stop,
) -> anyhow::Result<Vec<String>> {
    let deadline = Instant::now() + within;
    let Some(_lock) = dir.lock_until(Instant::now() + Duration::from_secs(1))? else {
        bail!("another tsumugi works on {}, or it is gone", dir.path().display());
    };
    let state = State::read(dir)?;
    let mut state = state.with_context(|| format!("{} has no state", dir.path().display()))?;
    check(&state, parts)?;
    let is_wanted = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    let mut started = Vec::new();
    if let Some(meta) = state.meta.clone()
        && is_wanted(META)
        && state.living_meta().is_none()
    {
        refuse_unseen(META, &state.meta_life())?;
        let address = meta.address.context("the metadata service never had an address")?;
        let mut service = services::start_meta(dir, &mut state, address)?;
        services::await_meta(&mut service, dir, &mut state, deadline, stop)?;
        started.push(META.into());
    }
    let mut waiting = Vec::new();
    for index in 0..state.nodes.len() {
        let node = &state.nodes[index];
        if is_wanted(&node.name) && state.living_node(node).is_none() {
            refuse_unseen(&node.name, &state.node_life(node))?;
            waiting.push((index, services::start_node(dir, &mut state, index)?));
        }
    }
    for (index, mut service) in waiting {
        services::await_node(&mut service, &mut state, index, deadline, stop)?;
        started.push(state.nodes[index].name.clone());
    }
    state.write(dir)?;
    Ok(started)
}

fn check(state: &State, parts: &[String]) -> anyhow::Result<()> {
    state.refuse_elsewhere()?;
    if state.boot != process::boot_id() {
        bail!(
            "the machine was restarted since job {} was made: remove it with `tsumugi down`, and \
             create a new one",
            state.job
        );
    }
    if !state.is_ready {
        bail!("job {} was never ready: end it with `tsumugi down`", state.job);
    }
    let mut names: Vec<_> = state.nodes.iter().map(|node| node.name.as_str()).collect();
    names.extend(state.meta.iter().map(|_| META));
    match parts.iter().find(|part| !names.contains(&part.as_str())) {
        Some(part) => bail!("job {} has no {part:?} here; it has {}", state.job, names.join(", ")),
        None => Ok(()),
    }
}

fn refuse_unseen(name: &str, life: &std::path::Path) -> anyhow::Result<()> {
    if Holder::settled(life) == Holder::Unknown {
        bail!("{name} runs out of sight of this process: {} is locked", life.display());
    }
    Ok(())
}
