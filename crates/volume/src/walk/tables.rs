//! Volumes and their tables, built from pages.

use super::{Leaf, Report};
use crate::layout::{CLUSTERS_MAX, ENTRIES, VOLUMES_MAX};
use crate::map::{Entry, Map};
use crate::page::{self, Kind, Record};
use crate::state::Volume;
use crate::superblock::Superblock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

/// The first user of a cluster.
#[derive(Clone, Copy, Default)]
struct User {
    id: u64,
    cluster: u32,
}

/// The volumes that were read so far.
pub(super) struct Tables<'a> {
    superblock: &'a Superblock,
    report: &'a mut Report,
    volumes: BTreeMap<u64, Volume>,
    references: Vec<u16>,
    users: Vec<User>,
}

impl<'a> Tables<'a> {
    pub(super) fn new(superblock: &'a Superblock, report: &'a mut Report) -> Self {
        let clusters = superblock.layout.clusters as usize;
        let users = vec![User::default(); clusters];
        Self { superblock, report, volumes: BTreeMap::new(), references: vec![0; clusters], users }
    }

    /// Adds pages.
    pub(super) fn add(&mut self, leaves: Vec<Leaf>) {
        let (volumes, maps): (Vec<Leaf>, Vec<Leaf>) =
            leaves.into_iter().partition(|leaf| leaf.header.kind == Kind::Volume);
        for leaf in volumes {
            if let Err(flaw) = self.add_volume(&leaf) {
                self.report.damage(format!("volume page {}: {flaw}", leaf.position));
            }
        }
        for leaf in maps {
            self.add_map(&leaf);
        }
    }

    fn add_volume(&mut self, leaf: &Leaf) -> Result<(), String> {
        let id = leaf.header.owner;
        let record = page::decode_record(&leaf.bytes)?;
        if id == 0 || id >= self.superblock.next_id || self.volumes.contains_key(&id) {
            return Err(format!("number {id} of volume {} is impossible", record.name));
        }
        if record.clusters == 0 || record.clusters > CLUSTERS_MAX {
            return Err(format!("volume {} cannot have {} clusters", record.name, record.clusters));
        }
        if self.volumes.len() == VOLUMES_MAX {
            return Err(format!("there are more than {VOLUMES_MAX} volumes"));
        }
        let volume = Volume {
            map: Arc::new(Map::new(record.clusters)),
            record,
            position: leaf.position,
            parts: BTreeMap::new(),
            is_frozen: false,
            opened: Weak::new(),
            usage: Weak::new(),
        };
        self.volumes.insert(id, volume);
        Ok(())
    }

    fn add_map(&mut self, leaf: &Leaf) {
        let (id, part) = (leaf.header.owner, leaf.header.index as usize);
        let Some(volume) = self.volumes.get(&id).filter(|it| part < it.map.parts()) else {
            let text = format!("map page {}: volume {id} has no part {part}", leaf.position);
            return self.report.damage(text);
        };
        if volume.parts.contains_key(&part) {
            let name = &volume.record.name;
            return self.report.damage(format!("two map pages have part {part} of volume {name}"));
        }
        let entries = page::decode_map(&leaf.bytes);
        let mut count = 0;
        for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| **entry != 0) {
            count += 1;
            if let Err(flaw) = self.add_entry(id, part * ENTRIES + at, *entry) {
                self.report.damage(flaw);
            }
        }
        if count != leaf.header.count || count == 0 {
            let (position, want) = (leaf.position, leaf.header.count);
            self.report.damage(format!("map page {position} has {count} entries, not {want}"));
        }
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.parts.insert(part, (leaf.position, count));
        }
    }

    fn add_entry(&mut self, id: u64, at: usize, entry: u32) -> Result<(), String> {
        let volume = &self.volumes[&id];
        let name = &volume.record.name;
        if at >= volume.record.clusters as usize {
            return Err(format!("volume {name} has a cluster {at} past its end"));
        }
        let (at, cluster) = (at as u32, entry - 1);
        if cluster >= self.superblock.layout.clusters {
            return Err(format!("cluster {at} of volume {name} is {cluster}, past the pool's end"));
        }
        let user = &mut self.users[cluster as usize];
        let count = &mut self.references[cluster as usize];
        if *count == 0 {
            *user = User { id, cluster: at };
        } else {
            let other = &self.volumes[&user.id].record;
            let is_family = other.family == volume.record.family && user.id != id;
            if !is_family || user.cluster != at {
                return Err(format!(
                    "the pool's cluster {cluster} is used twice: cluster {at} of volume {name} and \
                     cluster {} of volume {}",
                    user.cluster, other.name
                ));
            }
        }
        *count += 1;
        volume.map.set(at, Entry::own(cluster));
        Ok(())
    }

    /// Compares sums. Returns volumes and references.
    pub(super) fn finish(mut self) -> (BTreeMap<u64, Volume>, Vec<u16>) {
        self.check_sums();
        let mut names = BTreeSet::new();
        for volume in self.volumes.values() {
            let Record { name, uuid, .. } = &volume.record;
            if !names.insert(name.clone()) || !names.insert(uuid.to_string()) {
                self.report.damage(format!("two volumes have the name or UUID of {name}"));
            }
            for (at, entry) in volume.map.all() {
                if let Some(cluster) = entry.cluster()
                    && self.references[cluster as usize] > 1
                {
                    volume.map.set(at, Entry::shared(cluster));
                }
            }
        }
        self.report.volumes = self.volumes.len();
        self.report.used = self.references.iter().filter(|count| **count > 0).count() as u64;
        (self.volumes, self.references)
    }

    fn check_sums(&mut self) {
        let mut all = 0;
        for volume in self.volumes.values() {
            let mapped: u32 = volume.parts.values().map(|(_, count)| count).sum();
            let Record { name, mapped: want, .. } = &volume.record;
            if mapped != *want {
                let text = format!("volume {name} has {mapped} clusters in its table, not {want}");
                self.report.damage(text);
            }
            all += u64::from(mapped);
        }
        let Superblock { volumes, mapped, .. } = *self.superblock;
        if self.volumes.len() != volumes as usize {
            let have = self.volumes.len();
            self.report.damage(format!("there are {have} volumes, not {volumes}"));
        }
        if all != mapped {
            self.report.damage(format!("volumes have {all} clusters in all, not {mapped}"));
        }
    }
}
