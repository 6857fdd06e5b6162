//! Planted bugs (*mutants*): they show whether the tests of the crates above catch them.
//!
//! A bug is one condition in the shipped code, with a name: `if epoch <= fenced ||
//! reactor::mutant!("fence-epoch-lt")`. Without the feature `mutants` the condition is the constant
//! `false` and leaves no trace in the program. With it, at most one mutant of a process is
//! *active*: the one that `activate` or the environment variable `VARIABLE` names. Its
//! conditions are `true`. A thread can record which conditions it reaches (`note_reached`): a run
//! that reaches no condition of a mutant cannot show the bug.
//!
//! The catalogue of all mutants, with the rule that each breaks, is in crate `simulation`.

/// The environment variable that names the active mutant, with the feature `mutants`.
#[cfg(feature = "mutants")]
pub const VARIABLE: &str = "TSUMUGI_MUTANT";

/// Returns whether the planted bug of this name is active: the constant `false` without the feature
/// `mutants`.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::is_active($name)
    };
}

/// Whether planted bugs are built in.
pub const ARE_BUILT: bool = cfg!(feature = "mutants");

/// Returns false, as the condition of [`mutant!`](crate::mutant): planted bugs are not built in.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn is_active(_name: &'static str) -> bool {
    false
}

#[cfg(feature = "mutants")]
pub use active::{activate, is_active, note_reached, noted, reached};

#[cfg(feature = "mutants")]
mod active {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    static ACTIVE: OnceLock<Option<String>> = OnceLock::new();
    static REACHED: AtomicU64 = AtomicU64::new(0);
    /// Whether threads record the conditions that they reach.
    static IS_NOTED: AtomicBool = AtomicBool::new(false);

    thread_local! {
        static NOTED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    fn of_environment() -> Option<String> {
        std::env::var(super::VARIABLE).ok().filter(|name| !name.is_empty())
    }

    /// Makes a mutant the active one of this process. Has to be called before any condition has
    /// run.
    ///
    /// # Errors
    /// The name of the mutant that is already active, or `None` if the process runs without one.
    pub fn activate(name: &str) -> Result<(), Option<String>> {
        let active = ACTIVE.get_or_init(|| Some(name.to_owned()));
        if active.as_deref() == Some(name) { Ok(()) } else { Err(active.clone()) }
    }

    /// Returns whether this mutant is active, as the condition of [`mutant!`](crate::mutant).
    pub fn is_active(name: &'static str) -> bool {
        if IS_NOTED.load(Ordering::Relaxed) {
            NOTED.with_borrow_mut(|noted| *noted.entry(name).or_default() += 1);
        }
        let is_active = ACTIVE.get_or_init(of_environment).as_deref() == Some(name);
        if is_active {
            REACHED.fetch_add(1, Ordering::Relaxed);
        }
        is_active
    }

    /// Makes every thread record which mutants' conditions it reaches, from now on.
    pub fn note_reached() {
        IS_NOTED.store(true, Ordering::Relaxed);
    }

    /// Returns and clears this thread's record: how often it reached a condition of each mutant.
    pub fn noted() -> BTreeMap<&'static str, u64> {
        NOTED.take()
    }

    /// Returns how often the active mutant's condition ran: 0 if its code did not run.
    pub fn reached() -> u64 {
        REACHED.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::ARE_BUILT;

    /// Goal: no bug is active unless it was requested, with the feature or without.
    #[test]
    fn nothing_is_planted_by_itself() {
        assert!(!crate::mutant!("of-this-test"));
        assert_eq!(ARE_BUILT, cfg!(feature = "mutants"));
    }

    /// Goal: a thread records the conditions that it reached, and none of another thread's.
    #[cfg(feature = "mutants")]
    #[test]
    fn each_thread_notes_what_it_reached() {
        super::note_reached();
        let ask = |times: u64| {
            for _ in 0..times {
                assert!(!crate::mutant!("of-one-thread"));
            }
            super::noted().get("of-one-thread").copied()
        };
        let other = std::thread::spawn(move || ask(2));
        assert_eq!(ask(3), Some(3));
        assert_eq!(other.join().expect("it ends"), Some(2));
        assert_eq!(super::noted().get("of-one-thread"), None, "taken");
    }
}
