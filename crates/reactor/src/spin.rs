//! The decision whether a thread spins for work before it sleeps.
//!
//! A sleep costs the system call, an interrupt to wake the CPU, and the CPU's way out of idle:
//! about 50 us until the thread runs again. Spinning uses the CPU without work. So a thread should
//! spin when the next event is near, and never when it is idle.

use crate::time::monotonic_ns;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Spins in a row that may find nothing before a fixed spin time is suspended.
const FRUITLESS_SPINS_MAX: u32 = 8;
/// Nanoseconds of spinning after which the thread offers the CPU to others. (With 12 runnable
/// threads on two CPUs, spinning without the offer cut the rate of an echo from 525 to 194 thousand
/// messages a second; with it there is no loss. A constant offer costs 3 of 9 us per round trip on
/// idle CPUs.)
const YIELD_NS: u64 = 4_000;
/// An offer of the CPU that returns later than this shows that other threads need the CPU. (A
/// caller that uses the CPU between two requests returns it sooner.)
const CONTENDED_NS: u64 = 500_000;
/// Time without spins after other threads were found to need the CPU. Each further time doubles it.
const REST_NS_MIN: u64 = 10_000_000;
const REST_NS_MAX: u64 = 1_000_000_000;
/// Fruitful spins after which the rest is reset to its first length.
const UNCONTENDED: u32 = 256;
/// Idleness that ends within the spin time plus this time (the cost of waking a sleeping CPU) would
/// have been a fruitful spin, so spinning resumes.
const WAKE_UP_NS: u64 = 50_000;
/// Longest spin of [`Spin::Auto`]: the cost of a wake-up. Spinning as long as a sleep would cost
/// takes at most twice the time of the best choice.
const AUTO_NS: u64 = WAKE_UP_NS;
/// Number of latest idle times that [`Spin::Auto`] looks at.
const WINDOW: u32 = 16;
/// Number of these that must have been short for [`Spin::Auto`] to spin.
const SHORT_MIN: u32 = 8;
/// One part in this many of the passing time may go into fruitless spins of [`Spin::Auto`].
const IDLE_SHARE: u64 = 20;
/// Most fruitless spinning that [`Spin::Auto`] may save up, in nanoseconds.
const BUDGET_NS_MAX: u64 = 5_000_000;
/// Weight of the latest idle time in the mean, as a shift.
const MEAN_SHIFT: u32 = 3;

/// How long a thread spins for work before it sleeps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spin {
    /// This long; zero never spins. Stops while it bears no fruit, so that an idle thread sleeps.
    Fixed(Duration),
    /// Only while work comes so often that a spin costs less than a wake-up, up to 50 us. At most a
    /// twentieth of the time goes into spins that find nothing.
    Auto,
}

impl Default for Spin {
    fn default() -> Self {
        Self::Fixed(Duration::ZERO)
    }
}

impl Spin {
    /// Spins for this many microseconds.
    pub fn micros(us: u64) -> Self {
        Self::Fixed(Duration::from_micros(us))
    }

    /// Returns whether it never spins.
    pub fn is_never(&self) -> bool {
        *self == Self::default()
    }
}

impl FromStr for Spin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let us = text.parse::<u32>().map_err(|_| "give auto or a number of microseconds")?;
        Ok(Self::micros(u64::from(us)))
    }
}

impl fmt::Display for Spin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(time) => f.pad(&time.as_micros().to_string()),
            Self::Auto => f.pad("auto"),
        }
    }
}

/// A number of microseconds, or `"auto"`.
impl Serialize for Spin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(time) => serializer.serialize_u64(time.as_micros() as u64),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Spin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Spin;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a number of microseconds")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Spin, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, us: u64) -> Result<Spin, E> {
                let us = u32::try_from(us)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(us), &self))?;
                Ok(Spin::micros(u64::from(us)))
            }

            fn visit_i64<E: de::Error>(self, us: i64) -> Result<Spin, E> {
                let as_u64 = u64::try_from(us);
                as_u64
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(us), &self))
                    .and_then(|us| self.visit_u64(us))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// A thread's knowledge about its idle times.
#[derive(Debug)]
pub(crate) struct Spinner {
    spin: Spin,
    /// Spins in a row that found nothing ([`Spin::Fixed`]).
    fruitless: u32,
    /// Whether each of the latest idle times was short, the latest in bit 0.
    short: u32,
    /// Mean of the short idle times, in nanoseconds.
    mean_ns: u64,
    /// Nanoseconds that may still be spent on fruitless spins.
    budget_ns: u64,
    /// When the budget was last filled.
    filled_ns: u64,
    /// Before this time the thread does not spin, because other threads need the CPU.
    rest_until_ns: u64,
    /// The length of the next rest.
    rest_ns: u64,
    /// Fruitful spins since the last rest.
    fruitful: u32,
}

/// One spin; times are those of [`monotonic_ns`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Turn {
    /// Its start.
    pub(crate) start: u64,
    /// Its latest end.
    end: u64,
    /// The next time at which the CPU is offered to others.
    next_yield: u64,
}

impl Turn {
    /// Returns whether it has lasted long enough.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.end
    }

    /// Offers the CPU to other threads, if it is time for that: spinning is for idle CPUs only.
    /// Returns whether another thread used it for long.
    pub(crate) fn offer_cpu(&mut self, now_ns: u64) -> bool {
        if now_ns < self.next_yield {
            return false;
        }
        rustix::thread::sched_yield();
        let back_ns = monotonic_ns();
        self.next_yield = back_ns + YIELD_NS;
        back_ns - now_ns > CONTENDED_NS
    }
}

impl Spinner {
    pub(crate) fn new(spin: Spin, now_ns: u64) -> Self {
        Self {
            spin,
            fruitless: 0,
            short: 0,
            mean_ns: 0,
            budget_ns: BUDGET_NS_MAX,
            filled_ns: now_ns,
            rest_until_ns: 0,
            rest_ns: REST_NS_MIN,
            fruitful: 0,
        }
    }

    pub(crate) fn spin(&self) -> Spin {
        self.spin
    }

    /// Returns the spin to make before a sleep, if any, now that there is nothing to do.
    pub(crate) fn begin(&mut self, now_ns: u64) -> Option<Turn> {
        if now_ns < self.rest_until_ns {
            return None;
        }
        match self.spin {
            Spin::Fixed(time) => {
                let spins = !time.is_zero() && self.fruitless < FRUITLESS_SPINS_MAX;
                let end = now_ns + time.as_nanos() as u64;
                spins.then_some(Turn { start: now_ns, end, next_yield: now_ns + YIELD_NS })
            }
            Spin::Auto => {
                if self.short.count_ones() < SHORT_MIN {
                    return None;
                }
                self.fill(now_ns);
                if self.budget_ns < AUTO_NS {
                    return None;
                }
                // Work is near until twice the usual time has passed: the CPU is kept until then.
                let next_yield = now_ns + (2 * self.mean_ns).max(YIELD_NS);
                Some(Turn { start: now_ns, end: now_ns + AUTO_NS, next_yield })
            }
        }
    }

    /// Records that the spin found work.
    pub(crate) fn found(&mut self, turn: &Turn, now_ns: u64) {
        self.fruitless = 0;
        self.fruitful = self.fruitful.saturating_add(1);
        if self.fruitful == UNCONTENDED {
            self.rest_ns = REST_NS_MIN;
        }
        self.note(now_ns - turn.start);
    }

    /// Records that another thread needed the CPU during the spin. This thread sleeps now, and does
    /// not spin for a while.
    pub(crate) fn contended(&mut self, now_ns: u64) {
        self.rest_until_ns = now_ns + self.rest_ns;
        self.rest_ns = (2 * self.rest_ns).min(REST_NS_MAX);
        self.fruitful = 0;
    }

    /// Records that the spin found nothing; the thread sleeps now.
    pub(crate) fn gave_up(&mut self, turn: &Turn, now_ns: u64) {
        self.fruitless = self.fruitless.saturating_add(1);
        self.budget_ns = self.budget_ns.saturating_sub(now_ns - turn.start);
    }

    /// Records that the thread was idle for this long, and slept; I/O ended the sleep, not a timer.
    pub(crate) fn slept(&mut self, idle_ns: u64) {
        if let Spin::Fixed(time) = self.spin
            && idle_ns <= time.as_nanos() as u64 + WAKE_UP_NS
        {
            self.fruitless = 0;
        }
        // The event itself came earlier, by the time of the wake-up.
        self.note(idle_ns.saturating_sub(WAKE_UP_NS));
    }

    fn note(&mut self, idle_ns: u64) {
        let is_short = idle_ns < AUTO_NS;
        self.short = ((self.short << 1) | u32::from(is_short)) & ((1 << WINDOW) - 1);
        if is_short {
            self.mean_ns = self.mean_ns - (self.mean_ns >> MEAN_SHIFT) + (idle_ns >> MEAN_SHIFT);
        }
    }

    fn fill(&mut self, now_ns: u64) {
        let earned = (now_ns - self.filled_ns) / IDLE_SHARE;
        self.budget_ns = (self.budget_ns + earned).min(BUDGET_NS_MAX);
        self.filled_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Runs a thread whose events come after the given idle times. Returns the time of fruitless
    /// spins, the time of all spins, the number of sleeps, and the time that passed.
    fn run(spin: Spin, idle: impl Iterator<Item = u64>) -> (u64, u64, u64, u64) {
        let mut now = 7 * SECOND;
        let start = now;
        let mut spinner = Spinner::new(spin, now);
        let (mut vain, mut all, mut sleeps) = (0, 0, 0);
        for gap in idle {
            let event = now + gap;
            if let Some(turn) = spinner.begin(now) {
                if event < turn.end {
                    all += gap;
                    now = event;
                    spinner.found(&turn, now);
                    continue;
                }
                spinner.gave_up(&turn, turn.end);
                vain += turn.end - now;
                all += turn.end - now;
            }
            sleeps += 1;
            let woken = event + WAKE_UP_NS;
            spinner.slept(woken - now);
            now = woken;
        }
        (vain, all, sleeps, now - start)
    }

    /// Goal: a thread meets work that comes every 10 us by spinning, from the first wake-ups on.
    #[test]
    fn near_work_is_met_awake() {
        let (vain, _, sleeps, _) = run(Spin::Auto, (0..10_000).map(|_| 10_000));
        assert!(vain == 0 && sleeps <= u64::from(SHORT_MIN), "{vain} {sleeps}");
    }

    /// Goal: an idle thread, one with a slow timer, and one that bursts mislead spin in vain for at
    /// most a twentieth of the time (and what was saved up).
    #[test]
    fn idle_time_is_slept() {
        for (burst, gap) in
            [(0, 10_000_000), (0, 200_000), (0, 60_000), (20, 1_000_000), (9, 60_000)]
        {
            let gaps =
                (0..20_000).map(|n| if burst > 0 && n % (2 * burst) < burst { 5_000 } else { gap });
            let (vain, _, _, passed) = run(Spin::Auto, gaps);
            let allowed = passed / IDLE_SHARE + BUDGET_NS_MAX + AUTO_NS;
            assert!(vain <= allowed, "{burst} {gap}: {vain} of {passed}");
        }
        let (_, all, _, _) = run(Spin::Auto, (0..1000).map(|_| 1_000_000));
        assert_eq!(all, 0, "a thread without near work does not spin at all");
    }

    /// Goal: fixed spins stop when they bear no fruit, and resume with near work.
    #[test]
    fn fixed_spins_pause() {
        let far = (0..1000).map(|_| 1_000_000);
        let near = (0..1000).map(|_| 5_000);
        let (vain, all, sleeps, _) = run(Spin::micros(20), far.chain(near));
        assert_eq!(vain, u64::from(FRUITLESS_SPINS_MAX) * 20_000);
        assert_eq!((all - vain, sleeps), (999 * 5_000, 1001));
        assert!(run(Spin::default(), (0..9).map(|_| 1)).1 == 0);
    }

    /// Goal: a thread whose CPU others need does not spin for a while, longer each time, and
    /// resumes later.
    #[test]
    fn a_needed_cpu_is_left_to_others() {
        let mut spinner = Spinner::new(Spin::micros(50), 0);
        let mut now = SECOND;
        for rest in [REST_NS_MIN, 2 * REST_NS_MIN, 4 * REST_NS_MIN] {
            spinner.contended(now);
            assert_eq!(spinner.begin(now + rest - 1), None);
            now += rest;
            assert!(spinner.begin(now).is_some());
        }
        for _ in 0..UNCONTENDED {
            let turn = spinner.begin(now).unwrap();
            now += 1000;
            spinner.found(&turn, now);
        }
        spinner.contended(now);
        assert_eq!(spinner.begin(now + REST_NS_MIN - 1), None);
        assert!(spinner.begin(now + REST_NS_MIN).is_some());
    }

    /// Goal: while work is near, the CPU is kept; later it is offered.
    #[test]
    fn the_cpu_is_kept_while_work_is_near() {
        let mut spinner = Spinner::new(Spin::Auto, 0);
        for _ in 0..100 {
            spinner.slept(WAKE_UP_NS + 12_000);
        }
        let turn = spinner.begin(1000).unwrap();
        assert!((20_000..26_000).contains(&(turn.next_yield - 1000)), "{turn:?}");
        let turn = Spinner::new(Spin::micros(50), 0).begin(1000).unwrap();
        assert_eq!(turn.next_yield, 1000 + YIELD_NS);
    }

    /// Goal: the texts of options and files are read, other texts are refused.
    #[test]
    fn texts() {
        for (text, spin) in [("auto", Spin::Auto), ("0", Spin::default()), ("50", Spin::micros(50))]
        {
            assert_eq!(text.parse(), Ok(spin));
            assert_eq!(spin.to_string(), text);
        }
        for wrong in ["", "Auto", "-1", "1.5", "5us", "99999999999"] {
            assert!(wrong.parse::<Spin>().is_err(), "{wrong}");
        }
        assert!(Spin::default().is_never() && !Spin::Auto.is_never());
    }
}
