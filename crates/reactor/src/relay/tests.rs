//! Tests of runners with real rings; without io_uring there are none.

use super::{RECEIVER_AFTER, Runner, State, allow, is_here, of_cpu, share, with};
use crate::buffer::Buffer;
use crate::context::with_context;
use crate::engine::{Kind, usable};
use crate::local::oneshot;
use crate::operation::{Op, Operation, Step};
use crate::{Config, Handle, Runtime, Spin, UringCmd};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    static COUNT: State<Cell<u64>> = const { State::new(|| Cell::new(0)) };
}

/// Runs `test` on a reactor with a runner for each CPU, if there can be any.
fn with_runners<F: Future<Output = ()>>(test: impl FnOnce(Vec<Runner>) -> F) {
    if !usable().any(|kind| kind == Kind::Uring) {
        return;
    }
    let config = Config { engine: Some(Kind::Uring), ..Config::default() };
    let mut runtime = Runtime::new(&config).expect("a runtime");
    runtime.block_on(async {
        // SAFETY: the tests' tasks use no other state of threads.
        unsafe { allow(vec![|| share(&COUNT)], Spin::micros(50)) };
        let allowed = sched_getaffinity(None).expect("readable");
        let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        let runners: Vec<_> = cpus.map(|cpu| of_cpu(cpu as u16)).collect();
        assert!(!runners.is_empty() && !runners.contains(&Runner::OWN));
        test(runners).await;
    });
}

fn pipe() -> (Handle, OwnedFd) {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    (Handle::from_fd(read), write)
}

/// Reads a byte on the ring of a runner.
fn read_on(runner: Runner, pipe: &Handle) -> Op<io::Result<usize>> {
    let segments = smallvec::smallvec![crate::Segment::Buffer(Buffer::with_capacity(1), 0..1)];
    let read = Operation::Read { segments, offset: u64::MAX };
    Op::submit_to(runner, pipe, read, |completion| Step::Done(completion.into_result()))
}

/// Goal: tasks run on the threads of their runners, and share all state as if there were one
/// thread.
#[test]
fn runners_share_the_state() {
    const ROUNDS: u64 = 2000;
    with_runners(|runners| async move {
        let (here, sum) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let mut tasks = Vec::new();
        let mut writers = Vec::new();
        for runner in runners.iter().cycle().take(2 * runners.len()).copied() {
            let ((read, write), here, sum) = (pipe(), Rc::clone(&here), Rc::clone(&sum));
            tasks.push(crate::spawn(async move {
                for round in 0..ROUNDS {
                    assert_eq!(read_on(runner, &read).await.expect("a byte"), 1);
                    here.set(here.get() + u64::from(is_here()));
                    sum.borrow_mut().push(round);
                    with(&COUNT, |count| count.set(count.get() + 1));
                }
            }));
            writers.push(std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    rustix::io::write(&write, b"x").expect("written");
                }
            }));
        }
        let of_all = tasks.len() as u64 * ROUNDS;
        for task in tasks {
            task.await.expect("it ended");
        }
        assert_eq!((here.get(), sum.borrow().len() as u64), (of_all, of_all));
        assert_eq!(with(&COUNT, Cell::get), Some(of_all), "the own thread has the state");
        for writer in writers {
            writer.join().expect("no panic");
        }
    });
}

/// Goal: a timer that a runner sets fires, and what a runner wakes is polled: neither waits for
/// another event of the own thread.
#[test]
fn the_own_thread_hears_of_timers_and_its_future() {
    with_runners(|runners| async move {
        for runner in runners {
            let ((read, write), (sender, receiver)) = (pipe(), oneshot());
            drop(crate::spawn(async move {
                read_on(runner, &read).await.expect("a byte");
                crate::time::sleep(Duration::from_millis(1)).await;
                read_on(runner, &read).await.expect("a byte");
                assert!(is_here());
                assert!(sender.send(()).is_ok());
            }));
            let writer = std::thread::spawn(move || {
                for _ in 0..2 {
                    std::thread::sleep(Duration::from_millis(20));
                    rustix::io::write(&write, b"x").expect("written");
                }
                write
            });
            receiver.await.expect("sent");
            drop(writer.join());
        }
    });
}

/// Goal: an operation on another ring is cancelled, and its memory is released only afterwards.
#[test]
fn operations_of_other_rings_are_cancelled() {
    with_runners(|runners| async move {
        let in_flight = || with_context(|context| context.slots.borrow().in_flight());
        let (read, _write) = pipe();
        for runner in runners {
            let mut operation = read_on(runner, &read);
            assert!(
                std::future::poll_fn(|cx| {
                    let pinned = std::pin::Pin::new(&mut operation);
                    std::task::Poll::Ready(pinned.poll(cx).is_pending())
                })
                .await
            );
            crate::time::sleep(Duration::from_millis(5)).await;
            drop(operation);
            while in_flight() > 0 {
                crate::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

/// Goal: a runtime ends although operations of all rings are under way.
#[test]
fn a_runtime_ends_with_its_runners() {
    with_runners(|runners| async move {
        for runner in runners {
            let (read, write) = pipe();
            drop(crate::spawn(async move {
                let _write = write;
                let _ = read_on(runner, &read).await;
                unreachable!("nothing was written");
            }));
        }
        crate::time::sleep(Duration::from_millis(5)).await;
    });
}

/// Goal: a panic of a task on a runner ends the runtime, as one on its own thread does, and the
/// runner's other operations end, too.
#[test]
fn a_panic_reaches_the_own_thread() {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        with_runners(|runners| async move {
            let (read, write) = pipe();
            let runner = *runners.first().expect("there is one");
            rustix::io::write(&write, b"x").expect("written");
            let (other, _other) = pipe();
            // Its end is awaited by the runtime, on the ring of the runner.
            drop(crate::spawn(async move { read_on(runner, &other).await }));
            drop(crate::spawn(async move {
                read_on(runner, &read).await.expect("a byte");
                panic!("on purpose");
            }));
            std::future::pending::<()>().await;
        });
        panic!("on purpose");
    }));
    let payload = ended.expect_err("a panic");
    assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
}

/// Goal: where runners are not allowed, or not possible, the own thread does everything.
#[test]
fn without_runners_the_own_thread_serves() {
    Runtime::new(&Config::default()).expect("a runtime").block_on(async {
        assert_eq!(of_cpu(0), Runner::OWN);
        let (read, write) = pipe();
        rustix::io::write(&write, b"x").expect("written");
        assert_eq!(read_on(Runner::OWN, &read).await.expect("a byte"), 1);
    });
    with_runners(|_| async {
        assert_eq!(of_cpu(u16::MAX), Runner::OWN, "no such CPU");
        assert!(!is_here());
    });
}

/// Goal: once commands are left for a runner time and again, sockets receive on its ring, so that a
/// peer's answer wakes the thread that passes it on. A few commands for others change nothing.
#[test]
fn sockets_receive_where_commands_are_left() {
    with_runners(|runners| async move {
        let runner = *runners.last().expect("there is one");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        let ours = Handle::from_fd(ours.into());
        let receive = || {
            let segments =
                smallvec::smallvec![crate::Segment::Buffer(Buffer::with_capacity(1), 0..1)];
            rustix::io::write(&theirs, b"x").expect("written");
            let receive = Operation::Receive(segments);
            let task = Op::submit(&ours, receive, |it| Step::Done(it.into_result()));
            crate::spawn(async move {
                assert_eq!(task.await.expect("a byte"), 1);
                is_here()
            })
        };
        for (commands, is_there) in [(RECEIVER_AFTER - 1, false), (1, true)] {
            for _ in 0..commands {
                let command = UringCmd { operation: 0, command: [0; 80], address: 0, len: 0 };
                // SAFETY: a socket has no such command, so the kernel refuses it.
                let refused = unsafe { ours.uring_cmd_on(runner, command) }.await;
                assert!(refused.is_err());
            }
            assert_eq!(receive().await, Ok(is_there));
        }
    });
}

/// Goal: a task that is always ready on the own thread keeps no other thread from running.
#[test]
fn a_busy_own_thread_lets_others_run() {
    with_runners(|runners| async move {
        for runner in runners {
            let ((read, write), is_read) = (pipe(), Rc::new(Cell::new(false)));
            let seen = Rc::clone(&is_read);
            drop(crate::spawn(async move {
                read_on(runner, &read).await.expect("a byte");
                seen.set(true);
            }));
            let writer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                rustix::io::write(&write, b"x").expect("written");
                write
            });
            while !is_read.get() {
                crate::yield_now().await;
            }
            drop(writer.join());
        }
    });
}
