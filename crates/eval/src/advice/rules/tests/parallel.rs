//! A10 to A12: each fires both ways, is silent where nothing is proven, and says what is missing.

use super::{Confidence, one};

const RULES: [(&str, &str, [&str; 2]); 3] = [
    ("A10", "own-shared", ["A file per rank is faster", "One shared file is faster"]),
    ("A11", "collective-independent", ["Collective MPI-IO is faster", "Independent MPI-IO is"]),
    ("A12", "hint", ["The hint is faster", "The file without the hint is faster"]),
];

/// Goal: the faster way is advised with its evidence; the same is called the same; noise gives no
/// advice; an experiment without the comparison is told what it lacks.
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
