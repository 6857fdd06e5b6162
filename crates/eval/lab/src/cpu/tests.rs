//! Errors of samples against simulated ticks, columns that are missing, and values per operation.

use super::Counting::{Precise, Ticks, Unknown};
use super::*;
use base::statistics::random::Random;

const STAT: &str = "cpu  100 10 50 1000 5 0 20 7 0 0\n\
                    cpu0 60 5 30 490 2 0 15 7 0 0\n\
                    cpu1 40 5 20 510 3 0 5 0 0 0\nintr 1 2\nctxt 99\n";
const LATER: &str = "cpu  150 10 80 1060 5 0 40 17 0 0\n\
                     cpu0 110 5 60 490 2 0 35 7 0 0\n\
                     cpu1 40 5 20 570 3 0 5 10 0 0\n";

/// Goal: columns are what the file says; one that is not there, or that has never counted, is not
/// available.
#[test]
fn columns_that_are_not_counted_are_not_available() {
    let (then, now) = (Machine::parse(STAT), Machine::parse(LATER));
    assert_eq!(now.cpus(), 2);
    assert_eq!(now.since(&then, Column::User), Some(0.5));
    assert_eq!(now.since(&then, Column::Nice), Some(0.0));
    assert_eq!(now.since(&then, Column::Steal), Some(0.1));
    assert_eq!(now.since(&then, Column::Irq), None);
    let old = Machine::parse("cpu 1 2 3 4\ncpu0 1 2 3 4\n");
    assert_eq!(old.since(&old, Column::SoftIrq), None);
    assert_eq!(old.since(&old, Column::System), Some(0.0));
    assert_eq!(Machine::parse("").since(&old, Column::User), None);
    // CPU 0: 50 + 30 + 20 of 100, 20 of them softirqs.
    assert_eq!(now.busiest(&then, &Column::BUSY), Some(1.0));
    assert_eq!(now.busiest(&then, &[Column::SoftIrq]), Some(0.2));
    assert_eq!(now.busiest(&then, &[Column::Irq]), None);
}

/// Goal: kernels are told apart by how they count.
#[test]
fn counting_is_detected() {
    let of = |config: &str, tickless: &str| {
        let it = Accounting::parse(config, tickless);
        (it.counting, it.interrupts)
    };
    assert_eq!(of("CONFIG_TICK_CPU_ACCOUNTING=y\n", ""), (Ticks, Ticks));
    let irq = "CONFIG_TICK_CPU_ACCOUNTING=y\nCONFIG_IRQ_TIME_ACCOUNTING=y\nCONFIG_HZ=250\n";
    assert_eq!(of(irq, ""), (Ticks, Precise));
    assert_eq!(Accounting::parse(irq, "").ticks_per_second, Some(250.0));
    assert_eq!(of("CONFIG_VIRT_CPU_ACCOUNTING_GEN=y\n", "\n"), (Ticks, Ticks));
    assert_eq!(of("CONFIG_VIRT_CPU_ACCOUNTING_GEN=y\n", "(null)\n"), (Ticks, Ticks));
    assert_eq!(of("CONFIG_VIRT_CPU_ACCOUNTING_GEN=y\n", "2-7\n"), (Precise, Precise));
    assert_eq!(of("CONFIG_VIRT_CPU_ACCOUNTING_NATIVE=y\n", ""), (Precise, Precise));
    assert_eq!(of("# CONFIG_VIRT_CPU_ACCOUNTING_GEN is not set\n", ""), (Unknown, Unknown));
}

/// Goal: of simulated ticks on known shares, the printed intervals hold the truth as often as they say,
/// from shares that are hardly ever seen to half of the time.
#[test]
fn errors_of_samples_hold_the_truth() {
    let accounting = Accounting::parse("CONFIG_TICK_CPU_ACCOUNTING=y\nCONFIG_HZ=250\n", "");
    let (total, samples) = (8.0, 2000);
    for share in [0.0002, 0.002, 0.02, 0.2, 0.5] {
        let held = (0..1000)
            .filter(|&run| {
                let mut random = Random::of(7, run);
                let hit = |random: &mut Random| {
                    ((random.next_u64() >> 11) as f64) < share * (1_u64 << 53) as f64
                };
                let hits = (0..samples).filter(|_| hit(&mut random)).count();
                let seconds = total * hits as f64 / f64::from(samples);
                let error = accounting.error(Column::System, seconds, total);
                (seconds - share * total).abs() <= error
            })
            .count();
        assert!(held >= 940, "{share}: {held}");
    }
    let precise = Accounting::parse("CONFIG_VIRT_CPU_ACCOUNTING_NATIVE=y\n", "");
    assert!(precise.error(Column::User, 4.0, 8.0) < accounting.error(Column::User, 4.0, 8.0));
}

/// Goal: what the machine used before is taken off, and no more than that is no value, not 0.
#[test]
fn values_are_per_operation_without_what_was_there_before() {
    let spent = Spent {
        seconds: 2.0,
        cpus: 4,
        busy: Some(Sampled { seconds: 3.0, error: 0.1 }),
        ..Spent::default()
    };
    let outcome = Outcome {
        metrics: [(Metric::Iops, 1000.0)].into(),
        read_bytes_per_s: (1 << 29) as f64,
        load_seconds: 2.0,
        ..Outcome::default()
    };
    let metrics = spent.metrics(Some(0.5), &outcome);
    // 3 s − 2 × 0.5 s = 2 s, of 8; for 2000 operations and 1 GiB.
    let is = |metric, value: f64| (metrics[&metric] - value).abs() < 1e-9;
    assert!(is(Metric::MachineCpu, 25.0), "{metrics:?}");
    assert!(is(Metric::MachineCpuPerIo, 1000.0) && is(Metric::CpuPerGib, 2.0), "{metrics:?}");
    assert!(spent.metrics(Some(1.5), &outcome).is_empty());
    // 0.08 s, which is less than its error.
    assert!(spent.metrics(Some(1.46), &outcome).is_empty());
    assert!(spent.metrics(None, &outcome).is_empty());
    let blind = Spent { busy: None, ..spent };
    assert!(blind.metrics(Some(0.5), &outcome).is_empty());
    assert!(!blind.samples().contains_key("cpu_busy_s"));
}
