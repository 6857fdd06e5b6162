//! Random command sequences against a model disk.

use crate::basics::{pair, pattern, rw};
use crate::client::{HostIdentity, Transfer};
use crate::server::{BLOCK, TestServer};
use nvme::command::{DatasetManagement, DsmRange};
use nvme::opcode::NvmOpcode;
use nvme::{Nsid, Status};
use proptest::prelude::*;

/// The number of used blocks: few, so that commands overlap.
const BLOCKS: u64 = 64;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write { lba: u64, blocks: u32, seed: u8, is_in_capsule: bool },
    Read { lba: u64, blocks: u32 },
    Compare { lba: u64, blocks: u32, is_equal: bool },
    WriteZeroes { lba: u64, blocks: u32 },
    Deallocate { lba: u64, blocks: u32 },
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..BLOCKS, 1..=16_u32).prop_map(|(lba, n)| (lba, n.min((BLOCKS - lba) as u32)));
    prop_oneof![
        4 => (range(), any::<u8>(), any::<bool>()).prop_map(|((lba, blocks), seed, small)| {
            let blocks = if small { blocks.min(2) } else { blocks };
            Step::Write { lba, blocks, seed, is_in_capsule: small }
        }),
        4 => range().prop_map(|(lba, blocks)| Step::Read { lba, blocks }),
        1 => (range(), any::<bool>())
            .prop_map(|((lba, blocks), is_equal)| Step::Compare { lba, blocks, is_equal }),
        1 => range().prop_map(|(lba, blocks)| Step::WriteZeroes { lba, blocks }),
        1 => range().prop_map(|(lba, blocks)| Step::Deallocate { lba, blocks }),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// The namespace answers any sequence of commands as the model disk does.
    #[test]
    fn the_namespace_is_a_disk(steps in proptest::collection::vec(step(), 1..120)) {
        let server = TestServer::start();
        let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
        let mut model = vec![0_u8; (BLOCKS * u64::from(BLOCK)) as usize];
        let bytes = |lba: u64, blocks: u32| {
            let start = (lba * u64::from(BLOCK)) as usize;
            start..start + (blocks * BLOCK) as usize
        };
        for step in steps {
            match step {
                Step::Write { lba, blocks, seed, is_in_capsule } => {
                    let data = pattern(seed, blocks);
                    let transfer = if is_in_capsule { Transfer::InCapsule } else { Transfer::R2t };
                    let sqe = rw(NvmOpcode::WRITE, lba, blocks);
                    let (cqe, _) = io.command(sqe, Some((transfer, &data)), 0);
                    prop_assert!(cqe.status().is_success());
                    model[bytes(lba, blocks)].copy_from_slice(&data);
                }
                Step::Read { lba, blocks } => {
                    let sqe = rw(NvmOpcode::READ, lba, blocks);
                    let (_, data) = io.command(sqe, None, blocks * BLOCK);
                    prop_assert!(data == model[bytes(lba, blocks)]);
                }
                Step::Compare { lba, blocks, is_equal } => {
                    let mut data = model[bytes(lba, blocks)].to_vec();
                    if !is_equal {
                        data[0] ^= 1;
                    }
                    let sqe = rw(NvmOpcode::COMPARE, lba, blocks);
                    let (cqe, _) = io.command(sqe, Some((Transfer::R2t, &data)), 0);
                    let expected = if is_equal { Status::SUCCESS } else { Status::COMPARE_FAILURE };
                    prop_assert!(cqe.status().is(expected));
                }
                Step::WriteZeroes { lba, blocks } => {
                    let sqe = rw(NvmOpcode::WRITE_ZEROES, lba, blocks);
                    prop_assert!(io.command(sqe, None, 0).0.status().is_success());
                    model[bytes(lba, blocks)].fill(0);
                }
                Step::Deallocate { lba, blocks } => {
                    let manage =
                        DatasetManagement { ranges: 1, is_deallocate: true, ..Default::default() };
                    let range = DsmRange::new(lba, blocks);
                    let sqe = manage.encode(Nsid(1)).unwrap();
                    let (cqe, _) = io.command(sqe, Some((Transfer::InCapsule, range.bytes())), 0);
                    prop_assert!(cqe.status().is_success());
                    model[bytes(lba, blocks)].fill(0);
                }
                Step::Flush => {
                    let sqe = nvme::SubmissionQueueEntry::flush(Nsid(1));
                    prop_assert!(io.command(sqe, None, 0).0.status().is_success());
                }
            }
        }
        server.stop();
    }
}
