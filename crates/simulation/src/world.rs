//! Focused worlds: tiny clusters, each with few names, few kinds of operations and the faults of one
//! subject (swarm testing: A. Groce and others, "Swarm Testing").
//!
//! The steps of a large run rarely meet: while one worker reads a file, the others rename, link and
//! lock something else. In a focused world all workers use one or two files, and do nothing that
//! does not concern its area. Each world takes another random part of the area's operations, because
//! some of them hide the effects of others: an open, for example, drops pages that a read should not
//! have used.

use crate::fault::{Fault, Faults};
use crate::random::Random;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

/// The key of the choices of worlds.
pub(crate) const WORLDS: u64 = 4;

/// The subject of a focused world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The kernel's pages and attributes: writers and readers of one open file.
    Pages,
    /// File locks, and what is written and read under them.
    Locks,
    /// Sessions that are lost, resumed or end, and restarts of the service.
    Sessions,
    /// Losses of power, broken devices, flushes.
    Power,
    /// A pool without free space.
    Space,
    /// Names and removed files.
    Names,
}

/// A kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    Juggle,
    Dress,
    Write,
    Read,
    Append,
    Replace,
    Rewrite,
    Unlink,
    Rename,
    Link,
    List,
    Truncate,
    Punch,
    Copy,
    Lock,
    Attributes,
    Look,
    Directory,
    Lookup,
}

/// How a focused world differs from a large run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// The subject.
    pub area: Area,
    /// Kinds of steps with their relative frequencies.
    mix: Vec<(StepKind, u64)>,
    /// Names in each directory, and directories.
    pub(crate) names: usize,
    pub(crate) directories: usize,
    /// Upper limit of offsets at which writes begin.
    pub(crate) offset_max: u64,
    /// Percentage of steps on files that use the file that workers share.
    pub(crate) shared_percent: u64,
    /// Percentage of notifications about pages that come late, and the longest delay.
    pub(crate) late: (u64, Duration),
    /// Longest pause between two calls on an open file.
    pub(crate) held_max: Duration,
    /// Percentage of suspended machines that are that of the metadata service.
    pub(crate) service_percent: u64,
}

impl World {
    /// Returns the kind of a step.
    pub(crate) fn step(&self, random: &mut Random) -> StepKind {
        let total = self.mix.iter().map(|(_, weight)| weight).sum();
        let mut number = random.below(total);
        for (kind, weight) in &self.mix {
            if number < *weight {
                return *kind;
            }
            number -= weight;
        }
        self.mix[0].0
    }
}

impl Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Area::Pages => "pages",
            Area::Locks => "locks",
            Area::Sessions => "sessions",
            Area::Power => "power",
            Area::Space => "space",
            Area::Names => "names",
        })
    }
}

impl FromStr for Area {
    type Err = String;

    fn from_str(text: &str) -> Result<Area, String> {
        let found = Area::ALL.into_iter().find(|area| area.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is no area of focused worlds"))
    }
}

impl Area {
    /// All areas.
    pub const ALL: [Area; 6] =
        [Area::Pages, Area::Locks, Area::Sessions, Area::Power, Area::Space, Area::Names];

    /// Returns the areas of a seed's worlds: two seeds in succession have all areas.
    pub fn of_seed(seed: u64) -> [Area; 3] {
        if seed.is_multiple_of(2) {
            [Area::Pages, Area::Sessions, Area::Space]
        } else {
            [Area::Locks, Area::Power, Area::Names]
        }
    }

    /// Returns the area's kinds of steps. The first is part of each world.
    fn steps(self) -> &'static [(StepKind, u64)] {
        use StepKind::{
            Append, Attributes, Copy, Directory, Dress, Juggle, Link, List, Lock, Look, Lookup,
            Punch, Read, Rename, Replace, Rewrite, Truncate, Unlink, Write,
        };
        match self {
            Area::Pages => &[
                (Juggle, 8),
                (Read, 2),
                (Write, 2),
                (Append, 1),
                (Truncate, 1),
                (Lookup, 2),
                (Lock, 1),
                (Punch, 1),
                (Copy, 1),
            ],
            Area::Locks => &[(Lock, 8), (Juggle, 1), (Read, 1), (Write, 1), (Truncate, 1)],
            Area::Sessions => &[
                (Juggle, 4),
                (Write, 3),
                (Read, 2),
                (Lock, 2),
                (Rename, 1),
                (Replace, 2),
                (Unlink, 1),
                (Truncate, 1),
                (Append, 1),
                (Lookup, 1),
                (Attributes, 1),
            ],
            Area::Power => &[
                (Write, 6),
                (Juggle, 3),
                (Read, 3),
                (Copy, 1),
                (Truncate, 1),
                (Replace, 1),
                (Lookup, 1),
                (Look, 1),
            ],
            Area::Space => &[
                (Write, 4),
                (Rewrite, 2),
                (Replace, 2),
                (Unlink, 1),
                (Punch, 1),
                (Truncate, 1),
                (Juggle, 1),
                (Copy, 1),
            ],
            Area::Names => &[
                (Rename, 6),
                (Write, 3),
                (Unlink, 2),
                (Link, 2),
                (Directory, 3),
                (List, 1),
                (Lookup, 3),
                (Replace, 2),
                (Juggle, 2),
                (Dress, 3),
                (Look, 1),
            ],
        }
    }

    /// Returns the area's kinds of faults, and the percentage of its worlds without any.
    fn faults(self) -> (&'static [(Fault, u32)], u64) {
        use Fault::{
            ClockStep, CrashTwice, Cut, CutOneWay, DeviceBroken, DeviceFull, Duplicate, Flip, Hold,
            Leave, LongHold, MetaKill, MetaPower, NodeKill, NodePower, Onlook, Pause, Reset,
            StoreBroken, Straggle, Strand, Suspend,
        };
        match self {
            Area::Pages => (&[(Flip, 2), (Reset, 1), (NodeKill, 1), (DeviceBroken, 1)], 50),
            Area::Locks => (
                &[
                    (NodeKill, 2),
                    (MetaKill, 2),
                    (CrashTwice, 1),
                    (Reset, 1),
                    (Hold, 1),
                    (Cut, 1),
                    (Pause, 1),
                    (Strand, 1),
                    (Suspend, 1),
                ],
                25,
            ),
            Area::Sessions => (
                &[
                    (Strand, 2),
                    (Onlook, 2),
                    (Pause, 1),
                    (Suspend, 2),
                    (Reset, 2),
                    (Cut, 1),
                    (CutOneWay, 1),
                    (MetaKill, 2),
                    (CrashTwice, 1),
                    (Hold, 1),
                    (LongHold, 1),
                    (Straggle, 1),
                    (ClockStep, 1),
                    (NodeKill, 1),
                ],
                0,
            ),
            Area::Power => (
                &[
                    (NodePower, 3),
                    (MetaPower, 1),
                    (DeviceBroken, 2),
                    (DeviceFull, 1),
                    (StoreBroken, 1),
                    (NodeKill, 1),
                    (MetaKill, 1),
                ],
                0,
            ),
            Area::Space => (&[(NodeKill, 1), (Reset, 1), (MetaKill, 1), (Pause, 1)], 60),
            Area::Names => (
                &[(Reset, 2), (MetaKill, 1), (NodeKill, 1), (Duplicate, 1), (Leave, 1), (Hold, 1)],
                50,
            ),
        }
    }

    /// Returns some of the area's faults.
    pub(crate) fn some_faults(self, random: &mut Random) -> Faults {
        let (kinds, without) = self.faults();
        if random.chance(without) {
            return Faults::default();
        }
        let always = random.below(kinds.len() as u64) as usize;
        let others_percent = *random.of(&[0, 10, 30]);
        let kept = kinds.iter().enumerate().filter(|(index, _)| {
            let is_kept = random.chance(others_percent);
            *index == always || is_kept
        });
        let kept: Vec<(Fault, u32)> = kept.map(|(_, kind)| *kind).collect();
        Faults::of(&kept)
    }

    /// Returns a world of this area.
    pub(crate) fn world(self, random: &mut Random, has_faults: bool) -> World {
        let steps = self.steps();
        let mut mix = vec![steps[0]];
        mix.extend(steps[1..].iter().filter(|_| random.chance(55)));
        let is_late = random.chance(50);
        let late = if is_late { (40, Duration::from_millis(400)) } else { (0, Duration::ZERO) };
        let uses_shared = matches!(self, Area::Pages | Area::Locks | Area::Sessions);
        let held_ms = if has_faults { *random.of(&[300, 3_000]) } else { *random.of(&[5, 100]) };
        World {
            area: self,
            mix,
            names: random.between(1, 2) as usize,
            directories: if self == Area::Names { *random.of(&[1, 2]) } else { 1 },
            offset_max: *random.of(&[5_000, 20_000, 100_000]),
            shared_percent: if uses_shared { *random.of(&[60, 100]) } else { 0 },
            late,
            held_max: Duration::from_millis(held_ms),
            service_percent: *random.of(&[0, 50, 100]),
        }
    }
}
