//! Starting again what has died, unless it dies all the time.

use super::super::job::JobDir;
use super::super::restart::{self, META};
use super::super::service;
use super::record::{KeeperRecord, Restart};
use super::{State, Stop, words};
use rustix::process::{WaitOptions, WaitStatus};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// So many deaths within [`OFTEN_WITHIN`], and a part stays dead.
const OFTEN: usize = 3;
const OFTEN_WITHIN: Duration = Duration::from_mins(1);
/// How long a part may take to be ready again.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The parts of a job that have died.
pub(super) struct Deaths {
    dir: JobDir,
    stop: Stop,
    record: KeeperRecord,
    /// When each part died, lately.
    latest: BTreeMap<String, Vec<Instant>>,
    /// How processes ended that this one had started.
    ended: BTreeMap<i32, WaitStatus>,
}

impl Deaths {
    pub(super) fn new(dir: &JobDir) -> Deaths {
        let record = KeeperRecord::read(dir).unwrap_or_else(|error| {
            tracing::warn!(error = words(&error), "what an earlier keeper did is not known");
            KeeperRecord::default()
        });
        let (latest, ended) = (BTreeMap::new(), BTreeMap::new());
        Deaths { dir: dir.clone(), stop: Stop::default(), record, latest, ended }
    }

    /// Starts again what is dead.
    pub(super) fn look(&mut self, state: &State) {
        self.reap();
        if !state.is_kept || !state.is_ready {
            return;
        }
        let dead = dead(state);
        let before = self.record.given_up.len();
        // Somebody started it by hand.
        self.record.given_up.retain(|given| dead.iter().any(|(part, _)| *part == given.part));
        let mut is_changed = self.record.given_up.len() != before;
        let mut wanted = Vec::new();
        for (part, pid) in dead {
            if self.record.given_up.iter().any(|given| given.part == part) {
                continue;
            }
            is_changed = true;
            let death = Restart { cause: self.cause(&part, pid), unix_seconds: unix_now(), part };
            let times = self.latest.entry(death.part.clone()).or_default();
            times.retain(|time| time.elapsed() < OFTEN_WITHIN);
            times.push(Instant::now());
            if times.len() >= OFTEN {
                tracing::error!(
                    part = death.part,
                    cause = death.cause,
                    "it died {OFTEN} times in a minute"
                );
                times.clear();
                self.record.given_up.push(death);
            } else {
                tracing::warn!(
                    part = death.part,
                    cause = death.cause,
                    "it has died and is started again"
                );
                wanted.push(death.part.clone());
                self.record.restarts.push(death);
            }
        }
        if is_changed && let Err(error) = self.record.write(&self.dir) {
            tracing::error!(error = words(&error), "what was done is not recorded");
        }
        if !wanted.is_empty()
            && let Err(error) = restart::here(&self.dir, &wanted, READY_WITHIN, &self.stop)
        {
            // It is looked at again, and counts as one more death if it is dead then.
            tracing::error!(error = words(&error), "it does not start");
        }
    }

    /// Takes note of children that have ended.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.ended.insert(pid.as_raw_nonzero().get(), status);
        }
    }

    /// How a part ended, as far as is known: by its status, if this process had started it, else by
    /// what its log says at the end.
    fn cause(&mut self, part: &str, pid: Option<i32>) -> String {
        let status = pid.and_then(|pid| self.ended.remove(&pid));
        let said = service::last_error(&self.dir.join(&format!("{part}.log")));
        let how = match status {
            Some(status) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("it ended with status {code}"),
                (_, Some(signal)) => format!("it was killed by signal {signal}"),
                _ => "it ended".into(),
            },
            None => "it was killed, or ended by itself".into(),
        };
        match said {
            Some(said) => format!("{how}; its log ends with: {said}"),
            None => how,
        }
    }
}

/// The parts of this machine that are dead, each with the number that its process had.
fn dead(state: &State) -> Vec<(String, Option<i32>)> {
    let mut dead = Vec::new();
    if let Some(meta) = &state.meta
        && state.living_meta().is_none()
    {
        dead.push((META.into(), meta.process.map(|process| process.pid)));
    }
    let nodes = state.nodes.iter().filter(|node| state.living_node(node).is_none());
    dead.extend(nodes.map(|node| (node.name.clone(), node.process.map(|process| process.pid))));
    dead
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
