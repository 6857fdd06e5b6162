//! Verdicts on data with a known truth.

use super::*;
use crate::random::Random;

const TRIALS: u64 = 4000;

fn margin() -> f64 {
    1.05_f64.ln()
}

fn judge(ratios: &[f64]) -> Verdict {
    verdict_of(ratios, margin(), Stake::of_report(1, 1))
}

/// Returns the share of trials with a verdict for which `is` holds.
fn rate(n: usize, truth: f64, noise: f64, is: impl Fn(Verdict) -> bool) -> f64 {
    let hits = (0..TRIALS)
        .filter(|&trial| {
            let mut random = Random::of(23, trial);
            let ratios: Vec<f64> = (0..n).map(|_| truth + noise * random.normal()).collect();
            is(judge(&ratios))
        })
        .count();
    hits as f64 / TRIALS as f64
}

/// Goal: of equal conditions at most 5 % are called different (4000 trials: ± 0.7 %).
#[test]
fn equal_conditions_are_seldom_called_different() {
    for (n, noise) in [(6, 0.05), (10, 0.1), (30, 0.2)] {
        let wrong = rate(n, 0.0, noise, Verdict::is_different);
        assert!(wrong <= 0.057, "{n}: {wrong}");
    }
}

/// Goal: a true difference of exactly the margin is called equivalent at most 5 % of the time.
#[test]
fn differences_at_the_margin_are_seldom_called_equivalent() {
    for (n, noise) in [(6, 0.01), (6, 0.03), (10, 0.03), (30, 0.05)] {
        for side in [-1.0, 1.0] {
            let wrong = rate(n, side * margin(), noise, |it| it == Verdict::Equivalent);
            assert!(wrong <= 0.057, "{n} {noise}: {wrong}");
        }
    }
}

/// Goal: the same difference is called *matters* at most 2.5 % of the time, being not beyond it.
#[test]
fn differences_at_the_margin_seldom_matter() {
    let wrong = rate(10, margin(), 0.03, |it| it == Verdict::DifferentMatters);
    assert!(wrong <= 0.035, "{wrong}");
}

/// Goal: the power to declare equivalence is known: that of Student's t by the reference's table (simulated
/// elsewhere with another program; spread 2 %, 3 %, 5 %), less the cost of possibly related rounds.
#[test]
fn equivalence_has_the_power_that_is_known() {
    for (n, noise, by_table, expected) in [
        (7, 0.02, 1.0, 0.975),
        (7, 0.03, 0.97, 0.775),
        (10, 0.03, 1.0, 0.93),
        (10, 0.05, 0.77, 0.52),
        (15, 0.05, 0.95, 0.84),
        (20, 0.05, 0.99, 0.96),
    ] {
        let power = rate(n, 0.0, noise, |it| it == Verdict::Equivalent);
        assert!((power - expected).abs() < 0.03 && power <= by_table, "{n} {noise}: {power}");
    }
}

/// Goal: planted differences are found and sized.
#[test]
fn planted_differences_are_found() {
    for (truth, expected) in
        [(1.5_f64, Verdict::DifferentMatters), (0.7, Verdict::DifferentMatters)]
    {
        assert!(rate(6, truth.ln(), 0.03, |it| it == expected) > 0.98, "{truth}");
    }
    assert!(rate(30, 1.08_f64.ln(), 0.02, |it| it == Verdict::DifferentMatters) > 0.9);
    assert!(rate(30, 1.06_f64.ln(), 0.05, |it| it == Verdict::DifferentSmall) > 0.8);
    assert!(rate(30, 1.02_f64.ln(), 0.02, |it| it == Verdict::Equivalent) > 0.95);
}

/// Goal: with drift through the experiment, pairs stay at 5 %; blocked runs (first all of one condition, then
/// all of the other) do not. The test fails without pairing.
#[test]
fn pairing_survives_drift_and_blocking_does_not() {
    const N: usize = 10;
    let (mut paired_wrong, mut blocked_wrong) = (0, 0);
    for trial in 0..TRIALS {
        let mut random = Random::of(29, trial);
        // 10 % slower from first to last run, and 2 % noise.
        let mut speed = |run: usize| -0.10 * run as f64 / (2 * N) as f64 + 0.02 * random.normal();
        let runs: Vec<f64> = (0..2 * N).map(&mut speed).collect();
        let mut order = Random::of(31, trial);
        let paired: Vec<f64> = (0..N)
            .map(|pair| {
                let (first, second) = (runs[2 * pair], runs[2 * pair + 1]);
                if order.below(2) == 0 { second - first } else { first - second }
            })
            .collect();
        let blocked: Vec<f64> = (0..N).map(|run| runs[N + run] - runs[run]).collect();
        paired_wrong += u32::from(judge(&paired).is_different());
        blocked_wrong += u32::from(judge(&blocked).is_different());
    }
    let share = |wrong: u32| f64::from(wrong) / TRIALS as f64;
    assert!(share(paired_wrong) <= 0.057, "{}", share(paired_wrong));
    assert!(share(blocked_wrong) > 0.5, "{}", share(blocked_wrong));
}

/// Goal: at most 5 % of reports with 20 equal comparisons have any called different; without the adjustment
/// more would.
#[test]
fn reports_do_not_cry_wolf() {
    let (mut adjusted, mut raw) = (0, 0);
    for trial in 0..1000 {
        let mut random = Random::of(37, trial);
        let cells: Vec<Vec<f64>> =
            (0..20).map(|_| (0..8).map(|_| 0.1 * random.normal()).collect()).collect();
        let any = |together: usize| {
            let stake = Stake::of_report(1, together);
            cells.iter().any(|cell| verdict_of(cell, margin(), stake).is_different())
        };
        adjusted += u32::from(any(20));
        raw += u32::from(any(1));
    }
    assert!(adjusted <= 50, "{adjusted}");
    assert!(raw > 70 && raw > 3 * adjusted, "{raw} {adjusted}");
}

/// Goal: a verdict that other cells weaken counts as held back; other verdicts do not.
#[test]
fn what_other_cells_take_back_is_marked() {
    let near = vec![0.14, 0.01, 0.15, 0.01, 0.12, 0.02, 0.13, 0.02];
    let clear = vec![0.5, 0.51, 0.49, 0.5, 0.52, 0.5, 0.49, 0.51];
    let noise = vec![0.3, -0.3, 0.2, -0.25, 0.31, -0.28, 0.1, -0.1];
    let by_itself = judge(&near);
    assert!(by_itself.is_different(), "{by_itself:?}");
    let cells = [vec![near.clone(), clear], vec![noise; 10]].concat();
    let judged = judge_family(&cells, margin(), 1, ALPHA);
    let (evidence, verdict) = &judged[0];
    assert!(!evidence.interval_alone.unwrap().contains(0.0));
    assert!(evidence.interval.unwrap().contains(0.0), "the interval agrees with the verdict");
    assert!(matches!(verdict, Verdict::Inconclusive(Inconclusive::NeedsMore(_))), "{verdict:?}");
    assert_eq!((evidence.alone, evidence.judged_together), (by_itself, 12));
    assert!(evidence.is_held_back(*verdict));
    for (evidence, verdict) in &judged[1..] {
        assert!(!evidence.is_held_back(*verdict), "{evidence:?}");
    }
    let (evidence, verdict) = &judge_family(&[near], margin(), 1, ALPHA)[0];
    assert!(!evidence.is_held_back(*verdict), "{evidence:?}");
}

/// Goal: one outlier pair makes neither a difference nor an equivalence, and is named.
#[test]
fn outliers_do_not_decide() {
    let mut ratios = vec![0.001, -0.002, 0.0015, -0.001, 0.002, -0.0005, 0.001, -0.001, 0.0];
    ratios.push(2.0);
    assert!(!judge(&ratios).is_decided());
    // Fifteen pairs at 0 to one side make the mean differ, while the median cannot.
    let lopsided: Vec<f64> = (0..30).map(|pair| if pair % 3 == 0 { 0.3 } else { -0.001 }).collect();
    assert_eq!(judge(&lopsided), Verdict::Inconclusive(Inconclusive::Outliers));
}

/// Goal: too little data, or none, is never an answer; identical ratios are.
#[test]
fn edges() {
    assert_eq!(judge(&[]), Verdict::Inconclusive(Inconclusive::NoData));
    assert_eq!(judge(&[0.5]), Verdict::Inconclusive(Inconclusive::NoData));
    assert_eq!(judge(&[0.0; 6]), Verdict::Equivalent);
    assert_eq!(judge(&[0.2; 6]), Verdict::DifferentMatters);
    // Five pairs have no finite interval of the median: no difference can be confirmed.
    assert!(!judge(&[0.2; 5]).is_decided());
}

/// Goal: the number of missing rounds is about right: with it, most experiments are decided.
#[test]
fn missing_rounds_are_about_right() {
    // Deviation 8.8 %: the normal approximation gives (1.645 · 0.088 / 0.0488)² = 9 rounds in all.
    let ratios = [0.08, -0.08, 0.07, -0.07, 0.09, -0.09];
    let Verdict::Inconclusive(Inconclusive::NeedsMore(Some(more))) = judge(&ratios) else {
        panic!("{:?}", judge(&ratios))
    };
    assert!((4..=8).contains(&more), "{more}");
    assert_eq!(
        judge(&[0.049, -9.0, 9.0, 3.0, -3.0, 0.0]),
        Verdict::Inconclusive(Inconclusive::NeedsMore(None))
    );
}
