//! Records against their bytes.

use proptest::prelude::*;

use super::*;
use crate::journal::types::{Creation, Kind, LowerIdentity, Stage};

const KEY: Key = Key { journal: 11, epoch: 0x1_2345_6789 };

fn bytes(limit: usize) -> impl Strategy<Value = Box<[u8]>> {
    prop::collection::vec(any::<u8>(), 1..limit).prop_map(Into::into)
}

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0..1_000_000_000u32)
        .prop_map(|(seconds, nanoseconds)| Time { seconds, nanoseconds })
}

fn name() -> impl Strategy<Value = Name> {
    (bytes(40), bytes(255), bytes(40)).prop_map(|(parent, name, covers)| Name {
        parent: ParentKey::new(&parent).unwrap(),
        name,
        covers,
    })
}

fn xattr() -> impl Strategy<Value = Xattr> {
    (bytes(255), bytes(300)).prop_map(|(name, value)| Xattr { name, value })
}

prop_compose! {
    fn base()(
        size in 0..FILE_BYTES_MAX, mode in any::<u32>(), atime in time(), mtime in time(),
        path in bytes(300), handle in bytes(40), digest in prop::option::of(bytes(33)),
        has_lower in any::<bool>(),
        names in prop::collection::vec(name(), 0..4),
        xattrs in prop::collection::vec(xattr(), 0..4),
        work in bytes(30), kind in 0..2, is_publishing in any::<bool>(),
    ) -> Base {
        let lower = LowerIdentity {
            path, handle, size_bytes: size / 2, ctime: mtime,
            digest: digest.unwrap_or_default(), ..LowerIdentity::default()
        };
        let mut base = Base::new(Creation {
            lower: has_lower.then_some(lower),
            kind: if kind == 0 { Kind::Partial } else { Kind::Pending(work.clone()) },
            size_bytes: size,
            attributes: Attributes { mode, atime, mtime, ..Attributes::default() },
            xattrs,
            names,
        }).unwrap();
        base.is_suspect = mode % 2 == 0;
        if is_publishing {
            base.stage = Stage::Publishing(work);
        }
        base
    }
}

fn record() -> impl Strategy<Value = Record> {
    let offset = 0..FILE_BYTES_MAX - 1;
    let ranges = prop::collection::vec(offset.clone().prop_map(|at| (at, at + 1)), 0..9);
    let change = prop_oneof![
        (any::<u64>(), name()).prop_map(|(id, name)| NameChange::Add(FileId(id), name)),
        (any::<u64>(), name()).prop_map(|(id, name)| NameChange::Remove(
            FileId(id),
            name.parent,
            name.name
        )),
    ];
    prop_oneof![
        base().prop_map(Record::Create),
        base().prop_map(Record::Snapshot),
        (offset.clone(), time()).prop_map(|(offset, mtime)| Record::Write { offset, mtime }),
        offset.clone().prop_map(|offset| Record::Move { offset }),
        (ranges.clone(), prop::option::of(time()))
            .prop_map(|(ranges, mtime)| Record::Zero { ranges, mtime }),
        ranges.prop_map(|ranges| Record::Lost { ranges }),
        (offset, time()).prop_map(|(size_bytes, mtime)| Record::Truncate { size_bytes, mtime }),
        time().prop_map(|atime| Record::Attributes(Attributes { atime, ..Default::default() })),
        xattr().prop_map(Record::SetXattr),
        bytes(255).prop_map(Record::RemoveXattr),
        prop::collection::vec(change, 0..5).prop_map(Record::Names),
        Just(Record::DataDurable),
        bytes(40).prop_map(Record::Publishing),
        Just(Record::Unpublishing),
        Just(Record::Published),
        Just(Record::Dropped),
        any::<u32>().prop_map(|segment| Record::Forget(SegmentId(segment))),
    ]
}

proptest! {
    // Goal: what is read is what was written, under the right key only.
    #[test]
    fn records_come_back(
        record in record(), sequence in 1..u64::MAX / 4, back in 1..9u64, length in 1usize..20_000,
    ) {
        let (sequence, synced) = (Sequence(sequence), Sequence(sequence.saturating_sub(back)));
        let has_data = matches!(record, Record::Write { .. } | Record::Move { .. });
        let data = vec![7; if has_data { length } else { 0 }];
        let sums = Sums::of(&data);
        let bytes = encode(KEY, sequence, synced, FileId(5), &record, Payload { data: &data, sums: &sums }).unwrap();
        prop_assert_eq!(bytes.len() % 8, 0);
        prop_assert!(bytes.len() < HEAD_BYTES + record.body_bytes(&sums) + 8);
        let head = Head::parse(&bytes, KEY).unwrap();
        prop_assert_eq!((head.sequence, head.synced, head.file), (sequence, synced, FileId(5)));
        prop_assert_eq!(head.data_bytes, data.len());
        prop_assert_eq!(decode(KEY, &head, &bytes), Some((record, sums)));
        let reused = Key { epoch: KEY.epoch + (1 << 32), ..KEY };
        prop_assert_eq!(decode(reused, &head, &bytes), None);
    }

    // Goal: bodies of any bytes are decoded or refused, never a panic.
    #[test]
    fn any_body_is_survived(kind in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..200)) {
        let head = encode(KEY, Sequence(1), Sequence(0), FileId(5), &Record::Dropped, Payload { data: &[], sums: &Sums::Whole(0) });
        let head = Head::parse(&head.unwrap(), KEY).unwrap();
        let _ = Record::decode_body(&Head { kind: kind % 20, data_bytes: body.len() * 50, ..head }, &body);
    }

    // Goal: a write of an older version, with one checksum for any length of data, is read.
    #[test]
    fn old_writes_are_read(length in 2usize..20_000) {
        let data = vec![9; length];
        let (record, sums) = (Record::Move { offset: 3 }, Sums::Whole(crc(&[&data])));
        let bytes = encode(KEY, Sequence(2), Sequence(0), FileId(5), &record, Payload { data: &data, sums: &sums }).unwrap();
        let head = Head::parse(&bytes, KEY).unwrap();
        prop_assert_eq!(decode(KEY, &head, &bytes), Some((record, sums.clone())));
        prop_assert!(sums.are_of(&data) && !sums.are_of(&data[1..]));
    }
}
