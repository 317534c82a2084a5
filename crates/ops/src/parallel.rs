//! Work on the calling thread, or on the rayon pool when there is enough of it.

use rayon::prelude::*;

/// Multiply-adds from which an op is spread over threads; waking them costs tens of microseconds.
pub(crate) const PARALLEL_WORK: usize = 1 << 20;

/// Calls `run(i, chunk)` for the chunks of `len` values of `out`; `work` is the whole op's.
pub(crate) fn chunks(
    out: &mut [f32],
    len: usize,
    work: usize,
    run: impl Fn(usize, &mut [f32]) + Sync + Send,
) {
    if work < PARALLEL_WORK {
        for (i, chunk) in out.chunks_mut(len).enumerate() {
            run(i, chunk);
        }
    } else {
        out.par_chunks_mut(len)
            .enumerate()
            .for_each(|(i, chunk)| run(i, chunk));
    }
}

/// Calls `run` for every task, with scratch memory that tasks of one thread share.
pub(crate) fn tasks<T: Send, S>(
    tasks: Vec<T>,
    work: usize,
    scratch: impl Fn() -> S + Sync + Send,
    run: impl Fn(&mut S, T) + Sync + Send,
) {
    if work < PARALLEL_WORK || tasks.len() < 2 {
        let mut scratch = scratch();
        for task in tasks {
            run(&mut scratch, task);
        }
    } else {
        tasks.into_par_iter().for_each_init(scratch, run);
    }
}
