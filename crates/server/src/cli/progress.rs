//! How far a download or a load is: a bar where standard error is a terminal, else lines in the log.

use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::LoadProgress;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::stage::Stage;

/// How often a line is logged.
const REPORT: Duration = Duration::from_secs(5);
/// How often a bar is drawn.
const DRAW: Duration = Duration::from_millis(100);
const BAR: &str = "{prefix} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
const SPINNER: &str = "{prefix} {spinner} {elapsed}";

/// What is drawn below the log.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Shows stages as they change.
#[derive(Debug)]
pub struct Reporter {
    /// On a terminal.
    bar: Option<ProgressBar>,
    /// Name, and whether its size is known.
    last: Option<(&'static str, bool)>,
    next: Instant,
}

impl Reporter {
    /// Shows nothing yet.
    pub fn new() -> Self {
        Reporter {
            bar: io::stderr()
                .is_terminal()
                .then(|| BARS.add(ProgressBar::no_length())),
            last: None,
            next: Instant::now(),
        }
    }

    /// Shows how far it is; call it often.
    pub fn show(&mut self, stage: &Stage) {
        let key = (stage.name, stage.total > 0);
        let begins = self.last.replace(key) != Some(key);
        match &self.bar {
            Some(bar) => draw(bar, stage, begins),
            None if begins || Instant::now() >= self.next => {
                tracing::info!("{}", stage.line());
                self.next = Instant::now() + REPORT;
            }
            None => {}
        }
    }
}

impl Default for Reporter {
    fn default() -> Self {
        Reporter::new()
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn draw(bar: &ProgressBar, stage: &Stage, begins: bool) {
    if begins {
        let template = match stage.total {
            0 => SPINNER,
            _ => BAR,
        };
        let style = ProgressStyle::with_template(template);
        bar.reset();
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(stage.name);
    }
    match stage.total {
        0 => bar.tick(),
        total => {
            bar.set_length(total);
            bar.set_position(stage.done);
        }
    }
}

/// Runs `work` and shows how far it is meanwhile.
pub fn during<T>(name: &'static str, work: impl FnOnce(&LoadProgress) -> T) -> T {
    let (progress, ended, began) = (
        LoadProgress::default(),
        AtomicBool::new(false),
        Instant::now(),
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut reporter = Reporter::new();
            while !ended.load(Ordering::Acquire) {
                reporter.show(&Stage {
                    name,
                    done: progress.done.load(Ordering::Relaxed),
                    total: progress.total.load(Ordering::Relaxed),
                    age: began.elapsed(),
                });
                std::thread::park_timeout(DRAW);
            }
        });
        // Also on a panic: the scope waits for the thread.
        let _end = OnDrop(|| ended.store(true, Ordering::Release));
        work(&progress)
    })
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A terminal for the log: what is drawn moves out of its way.
#[derive(Clone, Copy, Debug)]
pub struct BesideBars;

impl Write for BesideBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        BARS.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in [BAR, SPINNER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn work_is_done_once_and_its_result_comes_back() {
        let done = during("Counting", |progress| {
            progress.expect(2);
            progress.add(2);
            progress.done.load(Ordering::Relaxed)
        });
        assert_eq!(done, 2);
    }
}
