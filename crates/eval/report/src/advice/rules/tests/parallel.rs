//! A10 to A12 and A14: each fires both ways, gives no advice without a proof, and names missing measurements.

use super::{Confidence, card, judged, one};
use lab::experiment::Mode;
use lab::plan::Plan;
use lab::plan::Planned;
use lab::test_support::experiment;

const RULES: [(&str, &str, [&str; 2]); 4] = [
    ("A10", "own-shared", ["A file per rank is faster", "One shared file is faster"]),
    ("A11", "collective-independent", ["Collective MPI-IO is faster", "Independent MPI-IO is"]),
    ("A12", "hint", ["The hint is faster", "The file without the hint is faster"]),
    ("A14", "storage", ["B is faster", "A is faster"]),
];

/// Goal: the faster alternative is advised with its evidence; equal ones are reported as equal; noise gives
/// no advice; an experiment without the comparison gets the missing measurement.
#[test]
fn the_faster_way_is_advised() {
    for (id, role, claims) in RULES {
        let role = format!("role = \"{role}\"");
        let role = ("role = \"remote-local\"", role.as_str());
        for (ratio, claim) in [("ratio = 1.5", claims[0]), ("ratio = 0.6", claims[1])] {
            let card = one(&[role, ("ratio = 1.0", ratio)], id);
            assert_eq!(card.confidence, Confidence::Strong, "{card:?}");
            assert!(card.claim.contains(claim) && !card.evidence.is_empty(), "{}", card.claim);
        }
        let same = one(&[role], id);
        assert_eq!(same.confidence, Confidence::Strong);
        assert!(same.claim.contains("are equivalent"), "{}", same.claim);
        let vague = one(&[role, ("noise = 0.02", "noise = 0.5")], id);
        assert_eq!(vague.confidence, Confidence::NoAdvice, "{vague:?}");
        let missing = one(&[], id);
        assert_eq!(missing.confidence, Confidence::NotMeasured);
    }
}

/// Goal: if one alternative wins with small transfers and the other with large ones, both are named with the
/// sizes between which the winner changes; a hint that does harm somewhere is not advised.
#[test]
fn crossovers_are_found() {
    for (id, role, small) in [("A11", "collective-independent", 1.6), ("A12", "hint", 0.6)] {
        let role = format!("role = \"{role}\"");
        let sizes = "bs = [\"4KiB\", \"64KiB\", \"256KiB\", \"1MiB\"]";
        let changes = [
            ("role = \"remote-local\"", role.as_str()),
            ("bs = [\"4KiB\", \"1MiB\"]", sizes),
            (
                "jobs = [1, 4]\nmetrics = [\"iops\", \"latency-p99\"]",
                "jobs = [4]\nmetrics = [\"iops\"]",
            ),
        ];
        let plan = Plan::new(experiment(&changes, Mode::Full));
        let effect = |work: &Planned<'_>| match work.cell.block_size {
            _ if work.condition.id.ends_with("=a") => 1.0,
            size if size <= 64 << 10 => small,
            _ => 1.0 / small,
        };
        let card = card(&judged(&plan, 12, |_| vec![], effect), id);
        assert_eq!(card.confidence, Confidence::Moderate, "{card:?}");
        let turns = "up to transfers of 64 KiB, ";
        assert!(
            card.claim.starts_with("It depends") && card.claim.contains(turns),
            "{}",
            card.claim
        );
        assert!(card.claim.contains("from 256 KiB on"), "{}", card.claim);
        assert_eq!(card.apply == "Leave it as it is.", id == "A12", "{}", card.apply);
    }
}
