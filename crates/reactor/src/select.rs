//! Waiting for the first of several futures, without losing the others.

use std::pin::Pin;
use std::task::{Context, Poll};

/// The result of the first of two raced futures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first argument.
    First(A),
    /// The second argument.
    Second(B),
}

/// The result of the first of three raced futures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either3<A, B, C> {
    /// The first argument.
    First(A),
    /// The second argument.
    Second(B),
    /// The third argument.
    Third(C),
}

/// Returns the output of the future that completes first; they are polled in order, so the first
/// wins a tie. Pass `&mut future` (of an `Unpin` or pinned future) to continue with the other one
/// later: losing the race cancels nothing.
pub fn race<A: Future + Unpin, B: Future + Unpin>(first: A, second: B) -> Race<A, B> {
    Race { first, second }
}

/// [`race`] of three.
pub fn race3<A, B, C>(first: A, second: B, third: C) -> Race3<A, B, C>
where
    A: Future + Unpin,
    B: Future + Unpin,
    C: Future + Unpin,
{
    Race3 { first, second, third }
}

/// The future of [`race`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Race<A, B> {
    first: A,
    second: B,
}

impl<A: Future + Unpin, B: Future + Unpin> Future for Race<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = Pin::new(&mut self.first).poll(cx) {
            return Poll::Ready(Either::First(output));
        }
        Pin::new(&mut self.second).poll(cx).map(Either::Second)
    }
}

/// The future of [`race3`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Race3<A, B, C> {
    first: A,
    second: B,
    third: C,
}

impl<A, B, C> Future for Race3<A, B, C>
where
    A: Future + Unpin,
    B: Future + Unpin,
    C: Future + Unpin,
{
    type Output = Either3<A::Output, B::Output, C::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = Pin::new(&mut self.first).poll(cx) {
            return Poll::Ready(Either3::First(output));
        }
        if let Poll::Ready(output) = Pin::new(&mut self.second).poll(cx) {
            return Poll::Ready(Either3::Second(output));
        }
        Pin::new(&mut self.third).poll(cx).map(Either3::Third)
    }
}
