//! A13: finds the smallest number of devices that is enough.

use super::{Card, Confidence, card, judged};
use lab::plan::Planned;
use lab::test_support::{head, plan};

const WAYS: &str = r#"
[factors.storage.here]
kind = "directory"

[factors.way.one]
kind = "ior"
stripe-count = 1
options = { api = "POSIX" }

[factors.way.two]
kind = "ior"
stripe-count = 2
options = { api = "POSIX" }

[factors.way.all]
kind = "ior"
stripe-count = -1
options = { api = "POSIX" }

[factors.way.own-one]
kind = "ior"
stripe-count = 1
options = { api = "POSIX", filePerProc = 1 }

[factors.way.own-all]
kind = "ior"
stripe-count = -1
options = { api = "POSIX", filePerProc = 1 }

[[workload]]
name = "write"
rw = "write"
bs = ["1MiB", "4MiB"]
jobs = [4]
metrics = ["bandwidth"]
options = { blockSize = "16m" }

[[comparison]]
name = "two/one"
baseline = { storage = "here", way = "one" }
other = { storage = "here", way = "two" }

[[comparison]]
name = "all/two"
baseline = { storage = "here", way = "two" }
other = { storage = "here", way = "all" }

[[comparison]]
name = "all/one, own"
baseline = { storage = "here", way = "own-one" }
other = { storage = "here", way = "own-all" }
"#;

/// Returns results with a rate for each alternative, and another deviation of each run if it is odd.
fn a13(changes: &[(&str, &str)], rate: impl Fn(&str) -> f64, noise: f64) -> Card {
    let plan = plan(&(head("stripes", "ior") + WAYS), changes);
    let effect = |work: &Planned<'_>| {
        let way = &work.condition.levels["way"];
        let deviation = f64::from((work.step.round * 7 + work.step.position * 3) % 5) - 2.0;
        rate(way) * (noise * deviation).exp()
    };
    card(&judged(&plan, 12, |_| vec![], effect), "A13")
}

/// Goal: two devices are enough for one shared file, one for files of ranks; overlapping intervals give no
/// advice; without two counts the card names the missing measurement.
#[test]
fn the_smallest_count_is_advised() {
    let rate = |way: &str| match way {
        "one" => 0.5,
        "two" => 0.97,
        _ => 1.0,
    };
    let fires = a13(&[], rate, 0.01);
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    let said = "One shared file: striped over 2 devices, 90 % of the best bandwidth in 2 of 2 \
                curves. A file per rank: striped over one device, 90 % of the best bandwidth in 2 \
                of 2 curves.";
    assert_eq!(fires.claim, said);
    assert!(fires.apply.contains("A file per rank: stripe over one device."), "{}", fires.apply);
    assert_eq!(fires.evidence.len(), 4);
    let all = a13(&[], |way| if way == "all" { 1.0 } else { 0.5 }, 0.01);
    assert!(all.claim.contains("One shared file: striped over all devices"), "{}", all.claim);
    let vague = a13(&[], rate, 0.3);
    assert_eq!(vague.confidence, Confidence::NoAdvice, "{vague:?}");
    let alone = [("stripe-count = 2\n", ""), ("stripe-count = -1\n", "")];
    let missing = a13(&alone, rate, 0.01);
    assert_eq!(missing.confidence, Confidence::NotMeasured, "{missing:?}");
    assert!(missing.claim.contains("stripe-count"), "{}", missing.claim);
}
