//! Tests of the extent algebra against arrays of bytes.

use super::*;
use proptest::prelude::*;
use protocol::{AllocationId, DeviceId, Place};

/// Bytes of the file's model.
const FILE: usize = 200;

fn extent(offset: u64, length: u32, block: u64, at: u32) -> Extent {
    let allocation = AllocationId { device: DeviceId(0), block };
    Extent { offset, length, place: Place { allocation, at } }
}

fn paint(bytes: &mut [Option<(u64, u32)>], extent: &Extent) {
    for i in 0..extent.length {
        let place = (extent.place.allocation.block, extent.place.at + i);
        bytes[extent.offset as usize + i as usize] = Some(place);
    }
}

fn painted<'a>(extents: impl IntoIterator<Item = &'a Extent>) -> Vec<Option<(u64, u32)>> {
    let mut bytes = vec![None; FILE];
    extents.into_iter().for_each(|extent| paint(&mut bytes, extent));
    bytes
}

fn any_extent() -> impl Strategy<Value = Extent> {
    (0u64..150, 1u32..50, 0u64..4, 0u32..40)
        .prop_map(|(offset, length, block, at)| extent(offset, length, block, at))
}

proptest! {
    /// Goal: flattening extents gives the same as writing one after the other.
    #[test]
    fn flatten_lets_the_last_win(extents in prop::collection::vec(any_extent(), 0..20)) {
        let edits = flatten(&extents);
        prop_assert!(edits.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let flat: Vec<Extent> = edits.iter().filter_map(|edit| edit.extent).collect();
        prop_assert_eq!(painted(&flat), painted(&extents));
    }

    /// Goal: applying edits gives the same as painting and clearing bytes, in normal form.
    #[test]
    fn overlay_edits_bytes(
        old in prop::collection::vec(any_extent(), 0..12),
        new in prop::collection::vec((any_extent(), any::<bool>()), 0..8),
    ) {
        let old: Vec<Extent> = flatten(&old).iter().filter_map(|edit| edit.extent).collect();
        let mut bytes = painted(&old);
        let mut result = old.clone();
        for (extent, is_clear) in new {
            let edit = if is_clear {
                bytes[extent.offset as usize..extent.end() as usize].fill(None);
                Edit::clear(extent.offset, extent.end())
            } else {
                paint(&mut bytes, &extent);
                Edit::put(extent)
            };
            result = overlay(&result, std::iter::once(edit));
        }
        prop_assert_eq!(painted(&result), bytes);
        prop_assert!(result.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
    }
}
