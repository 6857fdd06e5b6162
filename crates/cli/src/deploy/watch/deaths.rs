//! Restarting dead parts, unless they die too often.

use crate::deploy::job::JobDir;
use crate::deploy::keeper::{KeeperRecord, Restart};
use crate::deploy::restart::{self, META};
use crate::deploy::service;
use crate::deploy::state::State;
use crate::deploy::stop::Stop;
use crate::print::words;
use rustix::process::{WaitOptions, WaitStatus};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A part with this number of deaths within [`OFTEN_WITHIN`] stays dead.
const OFTEN: usize = 3;
const OFTEN_WITHIN: Duration = Duration::from_mins(1);
/// How long a part may take to be ready again.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The dead parts of a job.
pub(super) struct Deaths {
    dir: JobDir,
    stop: Stop,
    record: KeeperRecord,
    /// The times of each part's latest deaths.
    latest: BTreeMap<String, Vec<Instant>>,
    /// The exit statuses of processes that this one had started.
    ended: BTreeMap<i32, WaitStatus>,
}

impl Deaths {
    pub(super) fn new(dir: &JobDir) -> Deaths {
        let record = KeeperRecord::read(dir).unwrap_or_else(|error| {
            tracing::warn!(error = words(&error), "the record of an earlier keeper is lost");
            KeeperRecord::default()
        });
        let (latest, ended) = (BTreeMap::new(), BTreeMap::new());
        Deaths { dir: dir.clone(), stop: Stop::default(), record, latest, ended }
    }

    /// Restarts dead parts.
    pub(super) fn look(&mut self, state: &State) {
        self.reap();
        if !state.is_kept || !state.is_ready {
            return;
        }
        let dead = dead(state);
        let before = self.record.given_up.len();
        // A part that a user started by hand is no longer given up.
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
            tracing::error!(error = words(&error), "cannot record the restarts");
        }
        if !wanted.is_empty()
            && let Err(error) = restart::here(&self.dir, &wanted, READY_WITHIN, &self.stop)
        {
            // The next look counts one more death if it is still dead.
            tracing::error!(error = words(&error), "a part does not start");
        }
    }

    /// Collects children that have ended.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.ended.insert(pid.as_raw_nonzero().get(), status);
        }
    }

    /// Returns how a part ended, as far as it is known: from its status, if this process had
    /// started it, else from the end of its log.
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

/// Returns the dead parts of this machine, each with its former process number.
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
