//! State of a thread that the runners of its reactor share.

use std::cell::OnceCell;
use std::rc::Rc;
use std::thread::LocalKey;

/// A thread-local state on which tasks rely. The runners of a reactor use that of the reactor's own
/// thread: the type belongs into a `thread_local!`, and [`share`] of it into what
/// [`allow`](super::allow) gets.
#[derive(Debug)]
pub struct State<T: 'static> {
    value: OnceCell<Value<T>>,
    make: fn() -> T,
}

#[derive(Debug)]
enum Value<T: 'static> {
    Own(Rc<T>),
    Adopted(&'static T),
}

/// Moves a reference to another thread.
struct Sent<T: 'static>(&'static T);

// SAFETY: of the threads that share the state, only the holder of the baton touches it.
unsafe impl<T> Send for Sent<T> {}

impl<T> State<T> {
    /// Makes a state; `make` is called at the first use.
    pub const fn new(make: fn() -> T) -> Self {
        Self { value: OnceCell::new(), make }
    }

    fn get(&self) -> &T {
        match self.value.get_or_init(|| Value::Own(Rc::new((self.make)()))) {
            Value::Own(value) => value,
            Value::Adopted(value) => value,
        }
    }
}

/// Runs `f` with this thread's state; `None` while the thread ends.
pub fn with<T, R>(key: &'static LocalKey<State<T>>, f: impl FnOnce(&T) -> R) -> Option<R> {
    key.try_with(|state| f(state.get())).ok()
}

/// Returns what a runner calls at its start to use this thread's state, which then is never
/// dropped.
///
/// # Panics
/// The returned function, if its thread has used a state of its own.
pub fn share<T>(key: &'static LocalKey<State<T>>) -> Box<dyn FnOnce() + Send> {
    let shared = key.with(|state| {
        state.get();
        match state.value.get() {
            // SAFETY: the count that `into_raw` leaves is never given back, so the value stays.
            Some(Value::Own(value)) => Sent(unsafe { &*Rc::into_raw(Rc::clone(value)) }),
            Some(Value::Adopted(value)) => Sent(*value),
            None => unreachable!("`get` has made it"),
        }
    });
    Box::new(move || {
        let Sent(value) = { shared };
        let is_new = key.with(|state| state.value.set(Value::Adopted(value)).is_ok());
        assert!(is_new, "a runner shares a state before it uses it");
    })
}
