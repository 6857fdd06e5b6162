//! The parts of a seed's plan that a reduced run keeps.
//!
//! Each step of a worker and each fault draws its choices from a stream of its own
//! ([`Random::keyed`](crate::random::Random::keyed)). Leaving out a part therefore does not change
//! the actions of the others, but it changes their times.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::str::FromStr;

/// A step: the numbers of its node and worker in the seed's plan, and its own number.
pub type StepKey = (usize, usize, usize);

/// A circumstance that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// An operator sends requests.
    Operator,
    /// Disks have slow phases.
    SlowDisks,
    /// A file occupies space.
    Ballast,
    /// Files in one directory are striped.
    Stripes,
    /// A node joins late.
    LateNode,
    /// A node has no device.
    Guest,
    /// A step writes or reads several pieces.
    Pieces,
}

/// The parts that are kept. `None` stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Selects another run of the simulated world, with other latencies and another order of tasks.
    pub world: u64,
    /// Nodes, by their numbers in the seed's plan.
    pub nodes: Option<BTreeSet<usize>>,
    /// Faults, by their numbers.
    pub faults: Option<BTreeSet<usize>>,
    /// Steps of workers.
    pub steps: Option<BTreeSet<StepKey>>,
    /// Circumstances that are switched off.
    pub off: BTreeSet<Feature>,
}

impl Feature {
    /// All of them with their names.
    pub const ALL: [(Feature, &'static str); 7] = [
        (Feature::Operator, "operator"),
        (Feature::SlowDisks, "slow-disks"),
        (Feature::Ballast, "ballast"),
        (Feature::Stripes, "stripes"),
        (Feature::LateNode, "late-node"),
        (Feature::Guest, "guest"),
        (Feature::Pieces, "pieces"),
    ];
}

impl Kept {
    /// Whether a fault strikes.
    pub(crate) fn has_fault(&self, number: usize) -> bool {
        self.faults.as_ref().is_none_or(|faults| faults.contains(&number))
    }

    /// Whether a step is taken.
    pub(crate) fn has_step(&self, step: StepKey) -> bool {
        self.steps.as_ref().is_none_or(|steps| steps.contains(&step))
    }

    /// Whether a worker has steps from this one on.
    pub(crate) fn has_steps_from(&self, (node, worker, turn): StepKey) -> bool {
        let last = (node, worker, usize::MAX);
        let steps = self.steps.as_ref();
        steps.is_none_or(|steps| steps.range((node, worker, turn)..=last).next().is_some())
    }
}

impl Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |parts: Vec<String>| parts.join("+");
        write!(f, "world={}", self.world)?;
        if let Some(nodes) = &self.nodes {
            write!(f, ",nodes={}", join(nodes.iter().map(usize::to_string).collect()))?;
        }
        if let Some(faults) = &self.faults {
            write!(f, ",faults={}", join(faults.iter().map(usize::to_string).collect()))?;
        }
        if let Some(steps) = &self.steps {
            let text = |(node, worker, turn): &StepKey| format!("{node}.{worker}.{turn}");
            write!(f, ",steps={}", join(steps.iter().map(text).collect()))?;
        }
        let is_off = |(feature, _): &&(Feature, &str)| self.off.contains(feature);
        let off = Feature::ALL.iter().filter(is_off).map(|(_, name)| (*name).to_owned());
        write!(f, ",off={}", join(off.collect()))
    }
}

impl FromStr for Kept {
    type Err = String;

    fn from_str(text: &str) -> Result<Kept, String> {
        let mut kept = Kept::default();
        for part in text.split(',') {
            let unknown = || format!("{part:?} is no part of a reduced plan");
            let (key, value) = part.split_once('=').ok_or_else(unknown)?;
            let values: Vec<&str> = value.split('+').filter(|value| !value.is_empty()).collect();
            let numbers = || -> Option<BTreeSet<usize>> {
                values.iter().map(|value| value.parse().ok()).collect()
            };
            match key {
                "world" => kept.world = value.parse().map_err(|_| unknown())?,
                "nodes" => kept.nodes = Some(numbers().ok_or_else(unknown)?),
                "faults" => kept.faults = Some(numbers().ok_or_else(unknown)?),
                "steps" => {
                    let steps: Option<_> = values.iter().map(|value| step(value)).collect();
                    kept.steps = Some(steps.ok_or_else(unknown)?);
                }
                "off" => {
                    let named = |name: &&str| {
                        let found = Feature::ALL.iter().find(|(_, known)| known == name);
                        found.map(|(feature, _)| *feature)
                    };
                    let off: Option<_> = values.iter().map(named).collect();
                    kept.off = off.ok_or_else(unknown)?;
                }
                _ => return Err(unknown()),
            }
        }
        Ok(kept)
    }
}

fn step(text: &str) -> Option<StepKey> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    let key = (numbers.next()??, numbers.next()??, numbers.next()??);
    numbers.next().is_none().then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the text of a reduced plan can be read back, so that its run can be repeated.
    #[test]
    fn text_and_back() {
        let kept = Kept {
            world: 3,
            nodes: Some([0, 2].into()),
            faults: Some(BTreeSet::new()),
            steps: Some([(0, 1, 17), (2, 0, 3)].into()),
            off: [Feature::Operator, Feature::Pieces].into(),
        };
        let text = kept.to_string();
        assert_eq!(text, "world=3,nodes=0+2,faults=,steps=0.1.17+2.0.3,off=operator+pieces");
        assert_eq!(text.parse(), Ok(kept));
        assert_eq!(Kept::default().to_string().parse(), Ok(Kept::default()));
        for wrong in ["", "nodes", "nodes=x", "steps=1.2", "off=nothing", "steps=1.2.3.4"] {
            assert!(wrong.parse::<Kept>().is_err(), "{wrong}");
        }
    }
}
