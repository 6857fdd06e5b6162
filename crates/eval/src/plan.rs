//! What is run in which order, and what that costs.
//!
//! A *cell* is a workload at one point; a *round* runs every cell under every condition once. Within
//! a round the cells come in random order, and within a cell the conditions do, one right after the
//! other, balanced over rounds: they are the pairs that are compared, and being neighbours in time they share whatever the
//! machine does meanwhile. A round's order follows from the seed and the round's number alone, so an
//! experiment that was interrupted goes on exactly as it would have.

mod estimate;

use crate::experiment::{
    Experiment, Level, LevelKind, Mode, QueuePolicy, Scheme, Storage, Workload,
};
use crate::messages::{Language, Message};
use crate::statistics::random::Random;
use crate::units;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

pub use estimate::{Estimate, RUN_OVERHEAD};

/// Orders of conditions do not follow from those of cells.
const ORDERS: u64 = 0x6f72_6465_7273;

/// A workload at one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its name in the database.
    pub id: String,
    /// Index of its workload.
    pub workload: usize,
    /// Bytes per operation.
    pub block_size: u64,
    /// Jobs, ranks or processes.
    pub jobs: u32,
    /// Which of these they are.
    pub worker: Message,
    /// Operations under way per job.
    pub depth: u32,
    /// Operations per second that are asked for; 0 is as many as go.
    pub rate: u64,
    /// Operations that are submitted together.
    pub batch: u32,
}

impl Cell {
    /// The point for people, in English.
    pub fn label(&self) -> String {
        self.label_in(Language::English)
    }

    /// The point for people.
    pub fn label_in(&self, language: Language) -> String {
        let jobs = language.several(self.jobs, self.worker);
        let size = match self.block_size {
            0 => String::new(),
            size => units::bytes(size) + ", ",
        };
        let part = |is_told: bool, message, name, value: &dyn Display| {
            if is_told { language.say(message, &[(name, value)]) } else { String::new() }
        };
        let depth = part(self.depth != 1, Message::CellDepth, "depth", &self.depth);
        let rate = part(self.rate != 0, Message::CellRate, "rate", &self.rate);
        let batch = part(self.batch > 1, Message::CellBatch, "batch", &self.batch);
        format!("{size}{jobs}{depth}{rate}{batch}")
    }
}

/// One level of each factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its name in the database.
    pub id: String,
    /// Its name for people.
    pub label: String,
    /// Factor to level.
    pub levels: BTreeMap<String, String>,
}

/// A run to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Round, from 0, those for warming up included.
    pub round: u32,
    /// Place in the round.
    pub position: u32,
    /// Index of the cell.
    pub cell: usize,
    /// Index of the condition.
    pub condition: usize,
    /// Seed of the load's offsets: the same for all conditions of a pair.
    pub seed: u64,
}

/// Cells, conditions and orders.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The experiment.
    pub experiment: Experiment,
    /// Its cells.
    pub cells: Vec<Cell>,
    /// Its conditions: those that a comparison names, or all if there is none.
    pub conditions: Vec<Condition>,
    /// Digest of file and mode: results with another one belong to another plan.
    pub hash: String,
}

impl Plan {
    /// Plans an experiment.
    pub fn new(experiment: Experiment) -> Self {
        let mut cells = Vec::new();
        for (index, load) in experiment.workloads.iter().enumerate() {
            cells.extend(points(index, load, experiment.engine.worker()));
        }
        let mut conditions = vec![BTreeMap::new()];
        for (factor, levels) in &experiment.factors {
            conditions = conditions
                .iter()
                .flat_map(|condition| {
                    levels.keys().map(move |level| {
                        let mut condition = condition.clone();
                        condition.insert(factor.clone(), level.clone());
                        condition
                    })
                })
                .collect();
        }
        // What no comparison names would be run for nothing.
        let sides = experiment.comparisons.iter().flat_map(|it| [&it.baseline, &it.other]);
        let named: BTreeSet<_> = sides.collect();
        conditions.retain(|levels| named.is_empty() || named.contains(levels));
        let conditions = conditions.into_iter().map(|levels| name(&experiment, levels)).collect();
        let mode = if experiment.mode == Mode::Quick { "quick" } else { "full" };
        let mut hasher = blake3::Hasher::new();
        hasher.update(mode.as_bytes()).update(b"\n").update(experiment.text.as_bytes());
        let hash = hasher.finalize().to_hex().to_string();
        Self { experiment, cells, conditions, hash }
    }

    /// The workload of a cell.
    pub fn workload(&self, cell: usize) -> &Workload {
        &self.experiment.workloads[self.cells[cell].workload]
    }

    /// Whether a condition has neither a device nor a shared queue, so that its runs show what the load
    /// itself takes.
    pub fn is_null(&self, condition: usize) -> bool {
        let kinds = self.conditions[condition].levels.iter().filter_map(|(factor, level)| {
            let level = self.experiment.factors.get(factor)?.get(level)?;
            Some(&level.kind)
        });
        let mut is_null = false;
        for kind in kinds {
            match kind {
                LevelKind::Storage(Storage::Null) => is_null = true,
                LevelKind::Queue(QueuePolicy::Elevator) => return false,
                _ => {}
            }
        }
        is_null
    }

    /// Whether a condition has a device at all.
    pub fn has_device(&self, condition: usize) -> bool {
        let levels = &self.conditions[condition].levels;
        !levels.iter().any(|(factor, level)| {
            let level = self.experiment.factors.get(factor).and_then(|it| it.get(level));
            level.is_some_and(|it| matches!(it.kind, LevelKind::Storage(Storage::Null)))
        })
    }

    /// Whether a condition has this level.
    pub fn uses(&self, factor: &str, level: &str) -> bool {
        let has =
            |condition: &Condition| condition.levels.get(factor).is_some_and(|it| it == level);
        self.conditions.iter().any(has)
    }

    /// The levels of a condition.
    fn levels(&self, condition: usize) -> impl Iterator<Item = &Level> {
        let levels = self.conditions[condition].levels.iter();
        levels.filter_map(|(factor, level)| self.experiment.factors.get(factor)?.get(level))
    }

    /// How containers get their changeable copies under a condition, if that is what it is about.
    pub fn scheme(&self, condition: usize) -> Option<Scheme> {
        self.levels(condition).find_map(|level| match level.kind {
            LevelKind::Storage(Storage::Layers(scheme)) => Some(scheme),
            _ => None,
        })
    }

    /// Index of the condition with these levels.
    pub fn condition(&self, levels: &BTreeMap<String, String>) -> Option<usize> {
        self.conditions.iter().position(|condition| condition.levels == *levels)
    }

    /// All runs of a round in their order, whether they are needed or not.
    pub fn round(&self, round: u32) -> Vec<Step> {
        let mut random = Random::of(self.experiment.seed, u64::from(round));
        let mut cells: Vec<usize> = (0..self.cells.len()).collect();
        random.shuffle(&mut cells);
        let mut steps = Vec::with_capacity(cells.len() * self.conditions.len());
        for cell in cells {
            // fio takes seeds of 32 bits as of 64; short ones read better in job files.
            let seed = random.next_u64() >> 32;
            for condition in self.order(round, cell) {
                let position = steps.len() as u32;
                steps.push(Step { round, position, cell, condition, seed });
            }
        }
        steps
    }

    /// The order of the conditions of a cell in a round: random, and every other counted round the reverse
    /// of the one before. So each condition runs as often before another as after it, and what one leaves
    /// behind hits both alike.
    fn order(&self, round: u32, cell: usize) -> Vec<usize> {
        // Counted rounds begin with a new order.
        let round = round + self.warm_up_rounds() % 2;
        let part = u64::from(round / 2) << 32 | cell as u64;
        let mut random = Random::of(self.experiment.seed ^ ORDERS, part);
        let mut conditions: Vec<usize> = (0..self.conditions.len()).collect();
        random.shuffle(&mut conditions);
        if round % 2 == 1 {
            conditions.reverse();
        }
        conditions
    }

    /// Rounds at the start that are not counted.
    pub fn warm_up_rounds(&self) -> u32 {
        self.experiment.timing.warm_up_rounds
    }
}

/// The cells of a workload.
fn points(workload: usize, load: &Workload, worker: Message) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &block_size in &load.block_sizes {
        for &jobs in &load.jobs {
            for &depth in &load.depths {
                for &rate in &load.rates {
                    for &batch in &load.batches {
                        let mut id =
                            format!("{}/bs={block_size}/jobs={jobs}/depth={depth}", load.name);
                        if rate > 0 || batch > 1 {
                            id = format!("{id}/rate={rate}/batch={batch}");
                        }
                        cells.push(Cell {
                            id,
                            workload,
                            block_size,
                            jobs,
                            worker,
                            depth,
                            rate,
                            batch,
                        });
                    }
                }
            }
        }
    }
    cells
}

fn name(experiment: &Experiment, levels: BTreeMap<String, String>) -> Condition {
    let pairs: Vec<String> = levels.iter().map(|(f, l)| format!("{f}={l}")).collect();
    let labels: Vec<String> = levels
        .iter()
        .rev()
        .filter_map(|(factor, level)| {
            let level = experiment.factors.get(factor)?.get(level)?;
            // In the label, so that no table, chart or sentence can show the speed alone.
            Some(match level.kind {
                LevelKind::Storage(Storage::Layers(scheme)) => {
                    format!("{} (at risk: {})", level.label, scheme.risk().short())
                }
                _ => level.label.clone(),
            })
        })
        .collect();
    Condition { id: pairs.join(","), label: labels.join(", "), levels }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::EngineKind;
    use crate::test_support::experiment;

    /// Goal: a round has each cell under each condition once, the conditions of a cell together and
    /// with one seed; rounds differ; the same round is the same again.
    #[test]
    fn rounds_are_complete_paired_and_repeatable() {
        let plan = Plan::new(experiment(&[], Mode::Full));
        assert_eq!((plan.cells.len(), plan.conditions.len()), (4, 2));
        let round = plan.round(3);
        assert_eq!(round, plan.round(3));
        let order = |round: u32| {
            plan.round(round).iter().map(|it| (it.cell, it.condition)).collect::<Vec<_>>()
        };
        assert_ne!(order(3), order(4));
        let all: BTreeSet<_> = order(3).into_iter().collect();
        assert_eq!(all.len(), 8);
        // Of two counted rounds each condition is first in one, whatever warms up.
        let first = |round: u32, cell: usize| {
            plan.round(round).iter().find(|it| it.cell == cell).map(|it| it.condition)
        };
        for cell in 0..4 {
            let rounds = [1, 3, 5, 7, 9];
            assert!(rounds.iter().all(|it| first(*it, cell) != first(it + 1, cell)));
            assert!(rounds.iter().any(|it| first(*it, cell) != first(1, cell)), "{cell}");
        }
        for pair in round.chunks(2) {
            assert_eq!((pair[0].cell, pair[0].seed), (pair[1].cell, pair[1].seed));
            assert_ne!(pair[0].condition, pair[1].condition);
        }
    }

    /// Goal: a cell says what works in it: jobs, ranks of IOR, processes.
    #[test]
    fn workers_have_their_names() {
        let cell = |jobs, kind: EngineKind| Cell {
            id: String::new(),
            workload: 0,
            block_size: 4096,
            jobs,
            worker: kind.worker(),
            depth: 1,
            rate: 0,
            batch: 1,
        };
        assert_eq!(cell(1, EngineKind::Fio).label(), "4 KiB, 1 job");
        assert_eq!(cell(4, EngineKind::Ior).label(), "4 KiB, 4 ranks");
        assert_eq!(cell(2, EngineKind::Metadata).label(), "4 KiB, 2 processes");
    }

    /// Goal: over many rounds each condition comes first about equally often.
    #[test]
    fn neither_condition_is_favoured() {
        let plan = Plan::new(experiment(&[], Mode::Full));
        let first = (0..500).filter(|&round| plan.round(round)[0].condition == 0).count();
        assert!((200..300).contains(&first), "{first}");
    }

    /// Goal: cost follows from runs, and limits cut it.
    #[test]
    fn costs_are_estimated() {
        let plan = Plan::new(experiment(&[], Mode::Full));
        let estimate = plan.estimate();
        assert_eq!((estimate.runs_min, estimate.runs_max), (7 * 8, 31 * 8));
        assert_eq!(estimate.written_bytes_max, 0);
        let limited =
            Plan::new(experiment(&[("[timing]", "[limits]\ntime = \"5s\"\n[timing]")], Mode::Full));
        assert!((limited.estimate().seconds_max - 5.0).abs() < 1e-9);
        assert_ne!(plan.hash, limited.hash);
    }
}
