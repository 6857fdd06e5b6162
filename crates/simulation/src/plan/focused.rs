//! Plans of focused worlds, and what a plan takes from its world.

use super::{Focus, Plan};
use crate::fault::Fault;
use crate::random::Random;
use crate::world::{Area, WORLDS};
use std::time::Duration;

impl Plan {
    /// Returns the plan of one of a seed's focused worlds.
    pub fn of_world(seed: u64, area: Area) -> Plan {
        let mut random = Random::keyed(seed, &[WORLDS, area as u64]);
        let faults = area.some_faults(&mut random);
        let has_faults = !faults.is_none();
        let world = area.world(&mut random, has_faults);
        let needs_three = faults.has(Fault::Straggle) || random.chance(30);
        let disk_ms = *random.of(&[0, 0, 20, 300]);
        let is_full = area == Area::Space;
        let focus = if world.shared_percent > 0 { Focus::Locks } else { Focus::Nothing };
        Plan {
            seed: random.next(),
            nodes: if needs_three { 3 } else { 2 },
            workers: random.between(1, 2) as usize,
            steps: random.between(6, 12) as usize,
            pause_max: Duration::from_millis(*random.of(&[1, 20, 200])),
            device_bytes: 2 << 20,
            write_max: *random.of(&[600, 6_000, 60_000]),
            spare_bytes: is_full.then(|| *random.of(&[1 << 17, 1 << 18, 1 << 19])),
            focus,
            disk_latency_max: (disk_ms > 0).then(|| Duration::from_millis(disk_ms)),
            fault_count: random.between(1, 3) as usize,
            world: Some(world),
            ..Plan::plain(faults)
        }
    }

    /// Whether a node is removed, and then everything, at the end.
    pub(crate) fn has_whole_end(&self) -> bool {
        self.world.as_ref().is_none_or(|world| world.area == Area::Space)
    }

    /// Returns how many of the names of a directory workers use.
    pub(crate) fn names(&self) -> usize {
        let is_narrow = self.is_churning || self.focus == Focus::Names;
        let usual = if is_narrow { 2 } else { usize::MAX };
        self.world.as_ref().map_or(usual, |world| world.names)
    }

    /// Returns how many of the directories workers use.
    pub(crate) fn directories(&self) -> usize {
        self.world.as_ref().map_or(usize::MAX, |world| world.directories)
    }

    /// Returns the upper limit of offsets at which writes begin, except appends.
    pub(crate) fn offset_max(&self) -> u64 {
        self.world.as_ref().map_or(200_000, |world| world.offset_max)
    }

    /// Returns the percentage of steps on files that use the file that workers share.
    pub(crate) fn shared_percent(&self) -> u64 {
        self.world.as_ref().map_or(60, |world| world.shared_percent)
    }

    /// Returns the percentage of suspended machines that are that of the metadata service.
    pub(crate) fn service_percent(&self) -> u64 {
        self.world.as_ref().map_or(30, |world| world.service_percent)
    }

    /// Returns the percentage of notifications about pages that come late, and the longest delay.
    /// Those that come late are later than the mount waits before it answers a recall.
    pub(crate) fn late_pages(&self) -> (u64, Duration) {
        self.world.as_ref().map_or((10, Duration::from_millis(60)), |world| world.late)
    }
}
