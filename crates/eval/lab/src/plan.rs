//! What is run in which order, and what that costs.
//!
//! A *cell* is a workload at one point; a *round* runs every cell under every condition once. Within
//! a round the cells come in random order, and within a cell the conditions do, one right after the
//! other, balanced over rounds: they are the pairs that are compared, and being neighbours in time they share whatever the
//! machine does meanwhile. A round's order follows from the seed and the round's number alone, so an
//! experiment that was interrupted goes on exactly as it would have.

mod estimate;

use crate::experiment::{Experiment, Mode};
use base::messages::Message;
use base::statistics::random::Random;
use loads::engine::{Turn, Work};
use loads::level::{Level, LevelKind, Storage};
use loads::place::Place;
use loads::scheme::Scheme;
use loads::workload::{Cell, DataSet, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use estimate::{Estimate, RUN_OVERHEAD};

/// Orders of conditions do not follow from those of cells.
const ORDERS: u64 = 0x6f72_6465_7273;

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
            cells.extend(points(index, load, experiment.engine.worker));
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
        let adds_work = |level: &Level| match &level.kind {
            LevelKind::Setting(setting) => setting.adds_work(),
            _ => false,
        };
        !self.has_device(condition) && !self.levels(condition).any(adds_work)
    }

    /// Whether a condition has a device at all.
    pub fn has_device(&self, condition: usize) -> bool {
        let is_null = |level: &Level| matches!(level.storage(), Some(Storage::Null));
        !self.levels(condition).any(is_null)
    }

    /// Whether a condition has this level.
    pub fn uses(&self, factor: &str, level: &str) -> bool {
        let has =
            |condition: &Condition| condition.levels.get(factor).is_some_and(|it| it == level);
        self.conditions.iter().any(has)
    }

    /// The levels of a condition.
    pub fn levels(&self, condition: usize) -> impl Iterator<Item = &Level> {
        let levels = self.conditions[condition].levels.iter();
        levels.filter_map(|(factor, level)| self.experiment.factors.get(factor)?.get(level))
    }

    /// How containers get their changeable copies under a condition, if that is what it is about.
    pub fn scheme(&self, condition: usize) -> Option<Scheme> {
        self.levels(condition).find_map(|level| match level.storage()? {
            Storage::Layers(scheme) => Some(*scheme),
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

    /// Returns the levels of the run before this one.
    fn levels_before(&self, step: &Step) -> Vec<&Level> {
        let earlier = match step.position.checked_sub(1) {
            Some(position) => self.round(step.round).into_iter().nth(position as usize),
            None => step.round.checked_sub(1).and_then(|round| self.round(round).pop()),
        };
        earlier.map_or(Vec::new(), |earlier| self.levels(earlier.condition).collect())
    }

    /// What the experiment works on.
    pub fn data(&self) -> DataSet {
        DataSet { bytes: self.experiment.file_bytes, seed: self.experiment.seed }
    }

    /// Rounds at the start that are not counted.
    pub fn warm_up_rounds(&self) -> u32 {
        self.experiment.timing.warm_up_rounds
    }
}

/// A run of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Which run.
    pub step: &'a Step,
    /// Its cell.
    pub cell: &'a Cell,
    /// Its condition.
    pub condition: &'a Condition,
}

impl<'a> Planned<'a> {
    /// A run of a plan.
    pub fn new(plan: &'a Plan, step: &'a Step) -> Self {
        let (cell, condition) = (&plan.cells[step.cell], &plan.conditions[step.condition]);
        Self { plan, step, cell, condition }
    }

    /// Returns it as engines see it, at a place, with the plan's ramp.
    pub fn work(self, place: Option<&'a dyn Place>) -> Work<'a> {
        self.work_after(self.plan.experiment.timing.ramp, place)
    }

    /// Returns it as engines see it, at a place, with a ramp of this length.
    pub fn work_after(self, ramp: Duration, place: Option<&'a dyn Place>) -> Work<'a> {
        let (plan, step) = (self.plan, self.step);
        let per_round = (plan.cells.len() * plan.conditions.len()) as u64;
        Work {
            workload: plan.workload(step.cell),
            cell: self.cell,
            condition: &self.condition.id,
            levels: plan.levels(step.condition).collect(),
            place,
            time: plan.experiment.timing.run,
            ramp,
            seed: step.seed,
            data: plan.data(),
            turn: Turn {
                index: u64::from(step.round) * per_round + u64::from(step.position),
                round: step.round,
                cell: step.cell,
                condition: step.condition,
                before: plan.levels_before(step),
            },
        }
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
            Some(match level.storage() {
                Some(Storage::Layers(scheme)) => {
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
        let cell = |jobs, kind: &loads::engine::Declaration| Cell {
            id: String::new(),
            workload: 0,
            block_size: 4096,
            jobs,
            worker: kind.worker,
            depth: 1,
            rate: 0,
            batch: 1,
        };
        assert_eq!(cell(1, &loads::fio::ENGINE).label(), "4 KiB, 1 job");
        assert_eq!(cell(4, &loads::ior::ENGINE).label(), "4 KiB, 4 ranks");
        assert_eq!(cell(2, &loads::metadata::ENGINE).label(), "4 KiB, 2 processes");
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
