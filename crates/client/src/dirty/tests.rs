//! How uncommitted data goes out in parts.

use super::*;
use crate::reservation::Memory;
use ring::local::Semaphore;

const DEVICE: DeviceId = DeviceId(1);

fn reservation(bytes: usize) -> Reservation {
    let budget = Semaphore::new(bytes);
    let permit = budget.try_acquire(bytes).unwrap();
    Reservation::new(Memory::acquired(&budget, permit, bytes), Blocks::none(DEVICE))
}

fn begin(dirty: &mut Dirty) -> FillId {
    dirty.begin(4096, Buffer::with_capacity(FILL_BYTES), reservation(0))
}

/// A written fill with one byte at each of these offsets.
fn fill(dirty: &mut Dirty, offsets: impl IntoIterator<Item = u64>) -> FillId {
    let id = begin(dirty);
    for offset in offsets {
        dirty.append(id, offset, (&Chunk::copy_from(&[1]), 0..1), reservation(1));
    }
    dirty.seal(id).unwrap();
    dirty.written(id, Pieces::new(), 1);
    id
}

fn parts(dirty: &Dirty, count_max: usize) -> Vec<Vec<(FillId, u64)>> {
    let mut parts = Vec::new();
    let mut from = Some(Cursor::default());
    while let Some(cursor) = from {
        let (runs, next) = dirty.committable(&dirty.present(), cursor, count_max);
        parts.push(runs.iter().map(|run| (run.place.fill, run.offset)).collect());
        from = next;
    }
    parts
}

/// Goal: what was written together goes out in one part, each part ascending, and nothing twice; only
/// what alone is too much for a part is cut.
#[test]
fn a_fill_goes_out_in_one_part() {
    let mut dirty = Dirty::default();
    let a = fill(&mut dirty, [0, 20, 40]);
    let b = fill(&mut dirty, [10, 30]);
    let c = fill(&mut dirty, (100..110).step_by(2));
    let d = fill(&mut dirty, [50]);
    let under_way = begin(&mut dirty);
    dirty.append(under_way, 60, (&Chunk::copy_from(&[1]), 0..1), reservation(1));
    let expected = vec![
        vec![(a, 0), (a, 20), (a, 40)],
        vec![(b, 10), (b, 30)],
        vec![(c, 100), (c, 102), (c, 104), (c, 106)],
        vec![(d, 50), (c, 108)],
    ];
    assert_eq!(parts(&dirty, 4), expected);
    let one = vec![(a, 0), (b, 10), (a, 20), (b, 30), (a, 40)];
    assert_eq!(parts(&dirty, 5)[0], one);
    assert_eq!(parts(&Dirty::default(), 4), vec![Vec::new()]);
}
