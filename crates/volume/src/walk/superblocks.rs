//! Finds the valid superblock with the highest generation.

use super::{Report, layout_of};
use crate::error::Error;
use crate::layout::{PAGE_BYTES, SUPERBLOCKS};
use crate::superblock::{Flaw, Superblock, VERSION};
use block::Device;

/// Largest valid generation and volume number: with a commit each nanosecond a pool would need more
/// than a century to reach it.
const NUMBER_MAX: u64 = 1 << 62;
const NAMES: [&str; SUPERBLOCKS as usize] = ["A", "B", "copy of A", "copy of B"];

/// Reads all superblocks and returns the one that counts; [`None`] if damage hides it.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Version`], [`Error::BlockSize`].
pub(super) async fn read(
    device: &dyn Device,
    report: &mut Report,
) -> Result<Option<Superblock>, Error> {
    let geometry = device.geometry();
    if geometry.block_size as usize > PAGE_BYTES {
        return Err(Error::BlockSize(geometry.block_size));
    }
    if geometry.size() < SUPERBLOCKS * PAGE_BYTES as u64 {
        return Err(Error::NotAPool);
    }
    let mut found = Vec::new();
    for page in 0..SUPERBLOCKS {
        let chunk = device.read(page * PAGE_BYTES as u64, PAGE_BYTES).await?;
        found.push(Superblock::decode(&chunk.to_bytes()));
    }
    if found.iter().all(|it| *it == Err(Flaw::Magic)) {
        return Err(Error::NotAPool);
    }
    let good: Vec<Superblock> = found.iter().filter_map(|it| it.ok()).collect();
    if good.is_empty()
        && let Some(Err(Flaw::Version(version))) =
            found.iter().find(|it| matches!(it, Err(Flaw::Version(_))))
    {
        return Err(Error::Version { found: *version, known: VERSION });
    }
    note_flaws(&found, report);
    Ok(choose(&good, geometry.size(), report))
}

/// Reports damaged superblocks. A superblock is never torn, so a bad one is damage, which the other
/// copy repairs.
fn note_flaws(found: &[Result<Superblock, Flaw>], report: &mut Report) {
    for (name, flaw) in NAMES.iter().zip(found).filter_map(|(name, it)| Some((name, it.err()?))) {
        let text = match flaw {
            Flaw::Magic => format!("superblock {name} is overwritten"),
            Flaw::Checksum => format!("superblock {name}: its checksum is not the expected one"),
            Flaw::Version(version) => format!("superblock {name} has version {version}"),
        };
        report.add(false, text);
    }
    for (one, other) in [(0, 2), (1, 3)] {
        if found[one].is_err() && found[other].is_err() {
            // The damaged one may have been the latest.
            let (one, other) = (NAMES[one], NAMES[other]);
            report.damage(format!(
                "superblock {one} and the {other} are damaged: the latest is unknown"
            ));
        }
    }
}

fn choose(good: &[Superblock], size: u64, report: &mut Report) -> Option<Superblock> {
    let latest = *good.iter().max_by_key(|superblock| superblock.generation)?;
    // After a power cut while the pool was growing, the previous generation has the previous
    // layout.
    let is_of_pool = |it: &&Superblock| {
        let (layout, latest) = (&it.layout, &latest);
        it.uuid == latest.uuid
            && layout.is_same_but_size(&latest.layout)
            && layout.size <= latest.layout.size
    };
    if !good.iter().all(|it| is_of_pool(&it)) {
        report.damage("the superblocks are of different pools".into());
    }
    let twins = good.iter().filter(|it| it.generation == latest.generation);
    if twins.into_iter().any(|twin| *twin != latest) {
        report.damage(format!("the superblocks of generation {} differ", latest.generation));
    }
    let Some(layout) = layout_of(&latest) else {
        report.damage(format!("the superblock states an impossible layout: {:?}", latest.layout));
        return None;
    };
    if latest.next_id == 0 || latest.next_id > NUMBER_MAX || latest.generation > NUMBER_MAX {
        report.damage("the superblock has an impossible generation or volume number".into());
        return None;
    }
    if layout.size > size {
        report.damage(format!("the pool has {} bytes, its device only {size}", layout.size));
        return None;
    }
    Some(latest)
}
