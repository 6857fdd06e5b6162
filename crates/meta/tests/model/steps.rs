//! Random calls.

use super::driver::{ALLOCATION_BLOCKS, BLOCK};
use proptest::prelude::*;
use proptest::sample::Index;
use protocol::FileKind;
use protocol::client::Creation;

/// Largest offset of the steps, in bytes.
const FILE: u64 = 12_000;

/// One random call. Indices choose among the existing objects.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(Index, u8, Creation),
    Link(Index, Index, u8),
    Remove(Index, u8, bool),
    Rename(Index, u8, Index, u8, u8),
    Open(Index),
    Close(Index),
    Commit(Index, Vec<(u64, u32, u32)>, u8),
    Inline(Index, u32, u32, u8),
    Truncate(Index, u64),
    Fallocate(Index, u64, u64, u8),
    Copy(Index, u64, Index, u64, u64),
    SetXattr(Index, u8, u8),
    RemoveXattr(Index, u8),
    Lease(bool),
    Return,
    Reclaim,
    Ended,
    Session,
}

fn creation() -> impl Strategy<Value = Creation> {
    prop_oneof![
        4 => Just(Creation::File),
        3 => Just(Creation::Directory),
        1 => Just(Creation::Symlink(b"target".to_vec())),
        1 => Just(Creation::Special(FileKind::Fifo, 0)),
    ]
}

pub(crate) fn any_step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let extents =
        || prop::collection::vec((0..FILE, 1u32..400, 0..ALLOCATION_BLOCKS * BLOCK), 1..60);
    prop_oneof![
        6 => (index(), 0u8..6, creation()).prop_map(|(p, n, c)| Step::Create(p, n, c)),
        2 => (index(), index(), 0u8..6).prop_map(|(i, p, n)| Step::Link(i, p, n)),
        4 => (index(), 0u8..6, any::<bool>()).prop_map(|(p, n, d)| Step::Remove(p, n, d)),
        5 => (index(), 0u8..6, index(), 0u8..6, 0u8..6)
            .prop_map(|(p, n, q, m, mode)| Step::Rename(p, n, q, m, mode)),
        2 => index().prop_map(Step::Open),
        1 => index().prop_map(Step::Close),
        8 => (index(), extents(), 1u8..4).prop_map(|(i, e, n)| Step::Commit(i, e, n)),
        4 => (index(), 0..FILE as u32, 1u32..2000, 1u8..=255)
            .prop_map(|(i, o, l, v)| Step::Inline(i, o, l, v)),
        2 => (index(), 0..FILE).prop_map(|(i, s)| Step::Truncate(i, s)),
        2 => (index(), 0..FILE, 1..FILE, 0u8..5).prop_map(|(i, o, l, m)| Step::Fallocate(i, o, l, m)),
        3 => (index(), 0..FILE, index(), 0..FILE, 0..FILE)
            .prop_map(|(i, o, j, p, l)| Step::Copy(i, o, j, p, l)),
        1 => (index(), 0u8..4, any::<u8>()).prop_map(|(i, n, v)| Step::SetXattr(i, n, v)),
        1 => (index(), 0u8..4).prop_map(|(i, n)| Step::RemoveXattr(i, n)),
        2 => any::<bool>().prop_map(Step::Lease),
        1 => Just(Step::Return),
        1 => Just(Step::Reclaim),
        1 => Just(Step::Ended),
        1 => Just(Step::Session),
    ]
}
