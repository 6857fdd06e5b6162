//! Decoding is total, and its result does not depend on how the transport splits the bytes.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

fn header(opcode: u32, body: &[u8], extensions: u16) -> InHeader {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    InHeader { len, opcode, unique: 9, nodeid: 1, total_extlen: extensions, ..Default::default() }
}

fn decode(opcode: u32, body: &[u8]) -> Result<Message, DecodeError> {
    Decoder { has_setxattr_ext: true }.decode(&header(opcode, body, 0), body, None)
}

fn operation(opcode: u32, body: &[u8]) -> Operation {
    match decode(opcode, body).expect("decodes") {
        Message::Operation(operation) => operation,
        other => panic!("not an operation: {other:?}"),
    }
}

proptest! {
    /// Goal: no bytes make decoding panic, for any operation code, known or not, with any claim
    /// about extensions, and with both forms of SETXATTR.
    #[test]
    fn arbitrary_bytes_never_panic(
        opcode in prop_oneof![0_u32..60, any::<u32>()],
        body in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200),
        extensions in prop_oneof![Just(0_u16), 0_u16..30, any::<u16>()],
        has_setxattr_ext: bool,
    ) {
        let decoder = Decoder { has_setxattr_ext };
        let header = header(opcode, &body, extensions);
        let result = decoder.decode(&header, &body, None);
        if let Err(error) = result {
            prop_assert!(!error.to_string().is_empty());
        }
        prop_assert!(first_argument_len(opcode, decoder) <= 128, "fits the ring's area");
    }

    /// Goal: every proper prefix of a valid message is refused, never misread. (Names may be cut
    /// only within their terminator, so the whole argument is checked.)
    #[test]
    fn prefixes_are_refused(cut in 0_usize..1000) {
        let messages: [(u32, Vec<u8>); 4] = [
            (opcode::MKDIR, [abi::MkdirIn { mode: 7, umask: 1 }.as_bytes(), b"name\0"].concat()),
            (opcode::SYMLINK, b"name\0target\0".to_vec()),
            (opcode::SETATTR, abi::SetattrIn::default().as_bytes().to_vec()),
            (
                opcode::SETXATTR,
                [abi::SetxattrIn { size: 3, ..Default::default() }.as_bytes(), b"user.a\0abc"]
                    .concat(),
            ),
        ];
        for (opcode, message) in messages {
            prop_assert!(decode(opcode, &message).is_ok());
            let cut = cut % message.len();
            prop_assert!(decode(opcode, &message[..cut]).is_err(), "{opcode} cut to {cut}");
        }
    }

    /// Goal: extensions with arbitrary contents never panic, and valid ones are decoded unchanged.
    #[test]
    fn extensions_come_through(
        groups in prop::collection::vec(any::<u32>(), 0..5),
        name in "[a-z.]{1,20}",
        value in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut context = name.clone().into_bytes();
        context.push(0);
        context.extend(&value);
        let secctx = abi::Secctx { size: value.len() as u32, padding: 0 };
        let mut contexts = [secctx.as_bytes(), &context].concat();
        contexts.resize(contexts.len().next_multiple_of(8), 0);
        let mut ids = (groups.len() as u32).as_bytes().to_vec();
        for group in &groups {
            ids.extend(group.as_bytes());
        }
        ids.resize(ids.len().next_multiple_of(8), 0);
        let mut extensions = Vec::new();
        for (kind, body) in [(1, &contexts), (abi::EXT_GROUPS, &ids), (77, &vec![1; 8])] {
            let size = (size_of::<abi::ExtHeader>() + body.len()) as u32;
            extensions.extend(abi::ExtHeader { size, kind }.as_bytes());
            extensions.extend(body);
        }
        let arguments = [abi::MkdirIn { mode: 0o755, umask: 0 }.as_bytes(), b"d\0"].concat();
        let body = [&arguments[..], &extensions].concat();
        let header = header(opcode::MKDIR, &body, (extensions.len() / 8) as u16);
        let message = Decoder::default().decode(&header, &body, None);
        let Ok(Message::Operation(Operation::MakeDirectory { creation, .. })) = message else {
            panic!("{message:?}");
        };
        prop_assert_eq!(&creation.extensions.groups, &groups);
        let [context] = &creation.extensions.security_contexts[..] else { panic!("one") };
        prop_assert_eq!(&*context.name, name.as_bytes());
        prop_assert_eq!(&*context.value, &value[..]);
    }
}

/// Goal: strings that would reach beyond their directory, or are not names, are refused.
#[test]
fn only_names_are_names() {
    for bad in [&b"\0"[..], b"a/b\0", b"/\0", b"no terminator"] {
        assert!(matches!(decode(opcode::LOOKUP, bad), Err(DecodeError::Name { .. })), "{bad:?}");
    }
    let Operation::Lookup { name } = operation(opcode::LOOKUP, b"\xff odd\0") else { panic!() };
    assert_eq!(name.as_bytes(), b"\xff odd");
}

/// Goal: wire fields arrive in the right fields of the request, optional ones only if marked.
#[test]
fn fields_keep_their_meaning() {
    let set = abi::SetattrIn {
        valid: fattr::SIZE | fattr::MTIME | fattr::ATIME | fattr::ATIME_NOW,
        size: 77,
        mtime: (-3_i64) as u64,
        mtimensec: 5,
        uid: 1000,
        ..Default::default()
    };
    let Operation::SetAttributes(set) = operation(opcode::SETATTR, set.as_bytes()) else {
        panic!("setattr");
    };
    assert_eq!((set.size, set.uid, set.handle), (Some(77), None, None));
    assert_eq!(set.atime, Some(SetTime::Now));
    assert_eq!(set.mtime, Some(SetTime::At(Time { seconds: -3, nanoseconds: 5 })));

    let rename =
        [abi::Rename2In { newdir: 5, flags: 2, padding: 0 }.as_bytes(), b"from\0to\0"].concat();
    let Operation::Rename { name, new_parent, new_name, flags } =
        operation(opcode::RENAME2, &rename)
    else {
        panic!("rename");
    };
    assert_eq!((name.as_bytes(), new_name.as_bytes()), (&b"from"[..], &b"to"[..]));
    assert_eq!((new_parent, flags), (NodeId(5), 2));

    let mut lock = abi::LkIn { fh: 1, owner: 2, lk_flags: 1, ..Default::default() };
    lock.lk.kind = libc::F_WRLCK as u32;
    let Operation::SetLock { lock: decoded, wait } = operation(opcode::SETLKW, lock.as_bytes())
    else {
        panic!("setlkw");
    };
    assert!(wait && decoded.is_flock && decoded.kind == LockKind::Write);
    lock.lk.kind = 99;
    let error = decode(opcode::SETLK, lock.as_bytes()).expect_err("no such lock");
    assert!(matches!(error, DecodeError::Value { value: 99, .. }));
}

/// Goal: a batch that claims more forgets than it contains is refused before memory is reserved.
#[test]
fn forgets_are_counted() {
    let one = abi::ForgetOne { nodeid: 3, nlookup: 4 };
    let batch = |count| {
        let header = abi::BatchForgetIn { count, dummy: 0 };
        decode(opcode::BATCH_FORGET, &[header.as_bytes(), one.as_bytes()].concat())
    };
    let Ok(Message::Forget(forgets)) = batch(1) else { panic!("one forget") };
    assert_eq!(forgets, [(NodeId(3), 4)]);
    assert!(matches!(batch(u32::MAX), Err(DecodeError::Truncated { .. })));
}

/// Goal: a WRITE is refused if its data does not have the length in its argument.
#[test]
fn writes_are_measured() {
    let input = abi::WriteIn { size: 5, ..Default::default() };
    let write = |bytes: &[u8]| decode_write(&input, Chunk::copy_from(bytes));
    assert!(matches!(write(b"12345"), Ok(Operation::Write(_))));
    assert!(matches!(write(b"1234"), Err(DecodeError::Truncated { .. })));
    assert!(matches!(write(b""), Err(DecodeError::Truncated { .. })));
}
