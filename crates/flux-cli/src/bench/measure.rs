//! Timing contenders beside each other.

use super::cublas::Multiplication;
use super::nccl::Baseline;
use super::operands::{Expected, Operands};
use super::report::{Measured, Role};
use crate::error::Error;
use flux::{Delivery, Element, OperandParts, Operation, PathChoice, Stream, Summation, Timer};
use indicatif::ProgressBar;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// So many calls make a sample at most: a stream's queue does not hold many more.
const MAX_CALLS: usize = 500;

/// By whose clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The device's of a process's first rank: the host's part in it does not count. Among processes, that of the slowest.
    Device,
    /// The host's, from one synchronisation of all ranks to the next; among processes, that of the slowest.
    Host,
}

impl Clock {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Clock::Device => "device",
            Clock::Host => "host",
        }
    }
}

/// How samples are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) samples: usize,
    pub(crate) rest: Duration,
    pub(crate) clock: Clock,
    /// Whether each sample begins with calls that are not timed: a GPU that has rested must wake first.
    pub(crate) warm_up: bool,
    /// A sample has as many calls as last this long, but at least `min_calls`.
    pub(crate) sample_time: Duration,
    pub(crate) min_calls: usize,
}

enum Work<'a> {
    Flux(Box<dyn Operation>),
    Cublas(Multiplication<'a>),
    Nccl(Baseline<'a>),
}

/// One of several ways to compute the same thing.
pub(crate) struct Contender<'a, E: Element> {
    pub(crate) role: Role,
    work: Work<'a>,
    operands: &'a Operands<E>,
    streams: Vec<&'a Stream>,
    /// Each rank's, of each copy of the operands.
    parts: Vec<Vec<OperandParts>>,
    /// The copy whose turn it is.
    turn: Cell<usize>,
    timer: Timer,
    /// Once it is verified.
    error: Option<f64>,
    /// How its verified call delivered its tiles.
    delivery: Option<Delivery>,
    summation: Option<Summation>,
}

impl<'a, E: Element> Contender<'a, E> {
    pub(crate) fn flux(role: Role, op: Box<dyn Operation>, operands: &'a Operands<E>) -> Result<Self, Error> {
        Self::new(role, Work::Flux(op), operands)
    }

    pub(crate) fn cublas(
        multiplication: Multiplication<'a>,
        operands: &'a Operands<E>,
    ) -> Result<Self, Error> {
        Self::new(Role::Cublas, Work::Cublas(multiplication), operands)
    }

    pub(crate) fn nccl(baseline: Baseline<'a>, operands: &'a Operands<E>) -> Result<Self, Error> {
        Self::new(Role::Nccl, Work::Nccl(baseline), operands)
    }

    fn new(role: Role, work: Work<'a>, operands: &'a Operands<E>) -> Result<Self, Error> {
        let parts = (0..operands.copies()).map(|copy| operands.operands(copy)).collect();
        let timer = Timer::new(operands.first_device()?).map_err(flux::Error::from)?;
        Ok(Self {
            role,
            work,
            operands,
            streams: operands.streams(),
            parts,
            turn: Cell::new(0),
            timer,
            error: None,
            delivery: None,
            summation: None,
        })
    }

    /// Enqueues a call on the next copy of the operands; which way flux went.
    fn enqueue(&self) -> Result<Option<PathChoice>, Error> {
        let copy = self.turn.replace((self.turn.get() + 1) % self.parts.len());
        let parts = &self.parts[copy];
        match &self.work {
            Work::Flux(op) => self.operands.enqueue(&**op, parts, &self.streams).map(Some),
            Work::Cublas(multiplication) => multiplication.enqueue(&parts[0], self.streams[0]).map(|()| None),
            Work::Nccl(baseline) => baseline.enqueue(parts, &self.streams).map(|()| None),
        }
    }

    /// Reports what has gone wrong with what a synchronised stream has done.
    fn check(&self) -> Result<(), Error> {
        self.operands.group().check()?;
        match &self.work {
            Work::Nccl(baseline) => baseline.check(),
            Work::Flux(_) | Work::Cublas(_) => Ok(()),
        }
    }

    /// Makes a call on the first copy, poisoned before; how far it is from what it should give.
    pub(crate) fn verify(&mut self, expected: &Expected) -> Result<f64, Error> {
        self.operands.poison()?;
        self.turn.set(0);
        let choice = self.enqueue()?;
        self.delivery = choice.and_then(|choice| choice.delivery);
        self.summation = choice.and_then(|choice| choice.summation);
        let error = self.operands.deviation(expected)?;
        self.check()?;
        self.error = Some(error);
        Ok(error)
    }

    /// The time of one of `calls` calls in a row, and the host's time for enqueueing one into an empty queue.
    fn time(&self, calls: usize, protocol: &Protocol) -> Result<(Duration, Duration), Error> {
        let mut host = None;
        let mut enqueue = || {
            let begin = Instant::now();
            self.enqueue()?;
            host.get_or_insert(begin.elapsed());
            Ok::<_, Error>(())
        };
        if protocol.warm_up {
            self.enqueue()?;
            self.operands.synchronize()?;
            self.operands.group().barrier()?;
            enqueue()?;
        }
        let time = match protocol.clock {
            Clock::Device => {
                let stream = self.operands.first_stream();
                self.timer.begin(stream).map_err(flux::Error::from)?;
                (0..calls).try_for_each(|_| enqueue())?;
                self.timer.end(stream).map_err(flux::Error::from)?;
                let elapsed = self.timer.elapsed().map_err(flux::Error::from)?;
                self.operands.synchronize()?; // the other ranks
                self.operands.slowest(elapsed)?
            }
            Clock::Host => {
                self.operands.synchronize()?;
                self.operands.group().barrier()?;
                let begin = Instant::now();
                (0..calls).try_for_each(|_| enqueue())?;
                self.operands.synchronize()?;
                self.operands.slowest(begin.elapsed())?
            }
        };
        self.check()?;
        Ok((time.div_f64(calls as f64), host.unwrap_or_default()))
    }

    /// How many calls make a sample.
    fn calls(&self, protocol: &Protocol) -> Result<usize, Error> {
        let (time, _) = self.time(2, protocol)?;
        let calls = (protocol.sample_time.as_secs_f64() / time.as_secs_f64().max(1e-7)).ceil();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped
        Ok((calls.min(MAX_CALLS as f64) as usize).max(protocol.min_calls))
    }
}

impl<E: Element> Drop for Contender<'_, E> {
    fn drop(&mut self) {
        // What the work uses may be freed only when no stream uses it any more; errors were reported elsewhere.
        let _ = self.operands.synchronize();
    }
}

/// Samples of all contenders, one of each in turn; in their order. Each sample moves `bar` on by one.
pub(crate) fn interleaved<E: Element>(
    contenders: &[Contender<'_, E>],
    protocol: &Protocol,
    bar: &ProgressBar,
) -> Result<Vec<Measured>, Error> {
    let mut calls: Vec<_> =
        contenders.iter().map(|contender| contender.calls(protocol)).collect::<Result<_, _>>()?;
    if matches!(protocol.clock, Clock::Host) {
        // By the host's clock a sample has a begin and an end: who has fewer calls pays more of these for each. All processes make as many,
        // also of what one alone has timed, the plain GEMM: else some would wait for calls that others do not make.
        let most = calls.iter().copied().max().unwrap_or(1);
        let agreed = |most, contender: &Contender<'_, E>| contender.operands.most(most);
        let most = contenders.iter().try_fold(most as u64, agreed)?;
        calls.fill(usize::try_from(most).unwrap_or(MAX_CALLS));
    }
    let mut times = vec![(Vec::new(), Vec::new()); contenders.len()];
    for _ in 0..protocol.samples {
        for ((contender, &calls), times) in contenders.iter().zip(&calls).zip(&mut times) {
            std::thread::sleep(protocol.rest);
            let (time, host) = contender.time(calls, protocol)?;
            times.0.push(time.as_secs_f64() * 1e6);
            times.1.push(host.as_secs_f64() * 1e6);
            bar.inc(1);
        }
    }
    let summarise = |((contender, calls), (times, host)): ((&Contender<'_, E>, _), _)| {
        let ((us, spread), (host_us, _)) = (median(times), median(host));
        let Contender { error, delivery, summation, .. } = *contender;
        Measured { us, spread, calls, host_us, error, delivery, summation }
    };
    Ok(contenders.iter().zip(calls).zip(times).map(summarise).collect())
}

/// The median, and the distance of the quartiles over it.
fn median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |quarter: usize| values.get(values.len() * quarter / 4).copied().unwrap_or(f64::NAN);
    (at(2), (at(3) - at(1)) / at(2).max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_outliers_and_the_spread_does_not() {
        assert_eq!(median(vec![5.0, 1.0, 2.0, 1000.0]), (5.0, 199.6));
        assert_eq!(median(vec![3.0]), (3.0, 0.0));
        assert_eq!(median(vec![9.0, 10.0, 11.0]), (10.0, 0.2));
    }
}
