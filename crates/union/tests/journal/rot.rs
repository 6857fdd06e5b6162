//! Seeds damage the durable segments and the file of marks at random: they flip a bit, zero or cut a
//! part, or remove a file. A store either refuses, or shows for each byte
//! what was written or an error.

use union::journal::{Journal, JournalError, Options, Storage, Time};

use super::disk::{Disk, Random};
use super::model::{Driver, Model, lower_of, named, options};

/// Returns a store that was used, and closed after its last flush, with what it must show.
pub(crate) fn closed(seed: u64) -> (Disk, Model) {
    let mut driver = Driver::new(seed, options());
    for round in 0..40 + seed % 120 {
        driver.step().unwrap();
        if round % 37 == 36 {
            driver.sync().unwrap();
            driver.disk.kill();
            driver.reopen();
        }
    }
    driver.sync().unwrap();
    if seed.is_multiple_of(2) {
        driver.disk.lose_power(seed);
        driver.reopen();
    }
    let disk = driver.disk.clone();
    let mut model = std::mem::take(&mut driver.model);
    drop(driver);
    // Without a name a file lives until the store is opened.
    model.retain(|_, file| !file.names.is_empty());
    (disk, model)
}

/// Changes one thing; returns what.
fn damage(disk: &Disk, random: &mut Random) -> String {
    let files = disk.list().unwrap();
    let choice = random.below(10);
    if choice == 0 {
        let mut world = disk.0.borrow_mut();
        let Some(marks) = &mut world.marks else { return "nothing".into() };
        let at = random.below(2) as usize * 4096 + random.below(48) as usize;
        match random.below(3) {
            0 => marks[at] ^= 1 << random.below(8),
            1 => marks.truncate(at),
            _ => world.marks = None,
        }
        return format!("marks at {at}");
    }
    let Some(file) = files.get(random.below(files.len() as u64) as usize).copied() else {
        return "nothing".into();
    };
    if choice == 1 {
        disk.remove(file.segment);
        return format!("segment {} removed", file.segment);
    }
    let mut what = String::new();
    disk.damage(file.segment, |bytes| {
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1) as u64;
        let at = random.below(used) as usize;
        match choice {
            2 | 3 => {
                bytes.truncate(at);
                what = format!("segment {} cut at {at}", file.segment);
            }
            4 => {
                let end = bytes.len().min(at + 512);
                bytes[at..end].fill(0);
                what = format!("segment {} zeroed at {at}", file.segment);
            }
            _ => {
                bytes[at] ^= 1 << random.below(8);
                what = format!("segment {} flipped at {at}", file.segment);
            }
        }
    });
    what
}

/// Returns what of the model a store shows as errors; other bytes, sizes or names are a failure.
fn errors_of(journal: &Journal<Disk>, model: &Model, is_accepted: bool, what: &str) -> usize {
    let mut errors = 0;
    for (&id, expected) in model {
        let Some(file) = journal.file(id) else {
            assert!(is_accepted, "{what}: file {id} is gone, without a word");
            errors += 1;
            continue;
        };
        if file.is_damaged() {
            errors += 1;
            let mut byte = [0];
            let read = journal.read(id, 0, &mut byte, |_, _| panic!("{what}: the lower is read"));
            assert!(matches!(read, Err(JournalError::Damaged { .. }) | Ok(0)), "{what}");
            continue;
        }
        assert_eq!(file.size_bytes(), expected.content.len() as u64, "{what}");
        assert_eq!(file.attributes().mode & 0o7777, expected.mode, "{what}");
        assert_eq!(file.names().len(), expected.names.len(), "{what}");
        for (at, wanted) in expected.content.chunks(700).enumerate() {
            let at = at as u64 * 700;
            let mut bytes = vec![0xEE; wanted.len()];
            match journal.read(id, at, &mut bytes, lower_of(expected)) {
                Ok(count) => {
                    assert_eq!(count, wanted.len(), "{what}");
                    assert!(bytes == wanted, "{what}: file {id} at {at} shows other bytes");
                }
                Err(JournalError::Damaged { .. }) => errors += 1,
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    if !is_accepted {
        let shown = journal.files().count();
        assert_eq!(shown, model.len(), "{what}: other files");
    }
    errors
}

/// What one round of damage came to.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub(crate) refused: usize,
    pub(crate) errors: usize,
    pub(crate) right: usize,
}

/// Damages a closed store in `times` ways, one at a time, and opens it.
pub(crate) fn attack(seed: u64, times: usize, sum: &mut Sum) {
    let (disk, model) = closed(seed);
    let clean = Journal::inspect(disk.copy(), options()).unwrap();
    assert!(clean.damage().is_empty() && clean.rotten.is_empty(), "seed {seed}: {clean:?}");
    let mut random = Random::new(seed ^ 0x5EED);
    for _ in 0..times {
        let disk = disk.copy();
        let what = format!("seed {seed}, {}", damage(&disk, &mut random));
        let before = disk.copy();
        let inspection = Journal::inspect(disk.clone(), options()).unwrap();
        assert!(before.has_same_files(&disk), "{what}: a check changes nothing");
        let is_found = !inspection.damage().is_empty()
            || !inspection.rotten.is_empty()
            || inspection.damaged_marks > 0;
        match Journal::open(disk.copy(), options()) {
            Ok((journal, _)) => {
                let errors = errors_of(&journal, &model, false, &what);
                assert!(errors == 0 || is_found, "{what}: the check finds nothing");
                *(if errors > 0 { &mut sum.errors } else { &mut sum.right }) += 1;
            }
            Err(JournalError::Lost(damage)) => {
                sum.refused += 1;
                assert_eq!(damage, inspection.recovery.damage, "{what}");
                let refused = disk.copy();
                assert!(Journal::open(refused.clone(), options()).is_err());
                assert!(before.has_same_files(&refused), "{what}: a refusal changes nothing");
                accept(&disk, &model, &what);
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

/// With damage accepted a store shows errors, never other bytes of a file that it knows; and so it
/// stays.
fn accept(disk: &Disk, model: &Model, what: &str) {
    let accepting = Options { accepts_damage: true, ..options() };
    let (mut journal, _) = Journal::open(disk.clone(), accepting).unwrap();
    let errors = errors_of(&journal, model, true, what);
    let parent = union::journal::ParentKey::new(b"new").unwrap();
    let new = journal.create(named(10, &parent, b"new")).unwrap();
    journal.write(new, 0, b"written ", Time::default()).unwrap();
    journal.sync().unwrap();
    for _ in 0..5 {
        if !journal.clean(3000).unwrap().has_more {
            break;
        }
        journal.sync().unwrap();
    }
    drop(journal);
    let (journal, _) = Journal::open(disk.clone(), accepting).unwrap();
    let mut bytes = [0; 8];
    journal.read(new, 0, &mut bytes, |_, _| panic!("it was written")).unwrap();
    assert_eq!(&bytes, b"written ");
    let again = errors_of(&journal, model, true, what);
    assert!(again >= errors, "{what}: {errors} errors become {again}: what was lost is trusted");
}
