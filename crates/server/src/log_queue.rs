//! The log's way out: a bounded queue and a thread that writes. Whoever logs never waits for
//! whoever reads; what does not fit into the queue is lost, and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Bytes that may wait to be written: some seconds of a busy server.
const CAPACITY: usize = 4 << 20;
/// What a line takes besides its text.
const OVERHEAD: usize = 64;
/// How often the end of the process looks whether anything is still written.
const LOOK: Duration = Duration::from_millis(100);

/// Lines lost by all queues of the process.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines of the log that were lost since start, because nobody read them in time.
pub(crate) fn lines_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

enum Message {
    Line(Vec<u8>),
    /// Everything before it has been written once this is dropped.
    Flush(Sender<()>),
}

/// A writer that never blocks and never fails. Every call of `write` is one line.
#[derive(Clone, Debug)]
pub(crate) struct LogQueue {
    sender: Sender<Message>,
    state: Arc<State>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that wait.
    waiting: AtomicUsize,
    /// Messages that have been dealt with.
    done: AtomicU64,
    /// Lines that this queue lost.
    lost: AtomicU64,
}

impl LogQueue {
    /// Starts the thread that writes to `out`. It calls `tell` with the number of lines that were
    /// lost once there is room again.
    pub(crate) fn start(
        out: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Self> {
        LogQueue::with_capacity(CAPACITY, out, tell)
    }

    fn with_capacity(
        capacity: usize,
        out: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let state = Arc::new(State::default());
        let theirs = Arc::clone(&state);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write_all(&receiver, &theirs, capacity, out, tell))?;
        Ok(LogQueue {
            sender,
            state,
            capacity,
        })
    }

    /// Takes a line even if the queue is full: for the last words of a process.
    pub(crate) fn insist(&self, line: &[u8]) {
        let size = line.len() + OVERHEAD;
        self.state.waiting.fetch_add(size, Ordering::Relaxed);
        // The thread ends only with the last sender.
        let _ = self.sender.send(Message::Line(line.to_vec()));
    }

    /// Waits until everything so far has been written, but no longer than `stalled` without a line
    /// written and `limit` in all. Says whether it has.
    pub(crate) fn flush(&self, stalled: Duration, limit: Duration) -> bool {
        let (flushed, written) = mpsc::channel();
        let _ = self.sender.send(Message::Flush(flushed));
        let began = Instant::now();
        let mut last = (self.state.done.load(Ordering::Relaxed), began);
        loop {
            match written.recv_timeout(LOOK) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let (done, now) = (self.state.done.load(Ordering::Relaxed), Instant::now());
            if done != last.0 {
                last = (done, now);
            }
            if now - last.1 >= stalled || now - began >= limit {
                return false;
            }
        }
    }
}

impl Write for LogQueue {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let size = bytes.len() + OVERHEAD;
        let before = self.state.waiting.fetch_add(size, Ordering::Relaxed);
        if before + size > self.capacity {
            self.state.waiting.fetch_sub(size, Ordering::Relaxed);
            self.state.lost.fetch_add(1, Ordering::Relaxed);
            LOST.fetch_add(1, Ordering::Relaxed);
        } else {
            let _ = self.sender.send(Message::Line(bytes.to_vec()));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(
    receiver: &Receiver<Message>,
    state: &State,
    capacity: usize,
    mut out: impl Write,
    tell: impl Fn(u64),
) {
    let mut told = 0;
    for message in receiver {
        match message {
            Message::Line(line) => {
                // Without a reader the server serves all the same.
                let _ = out.write_all(&line);
                let size = line.len() + OVERHEAD;
                let waiting = state.waiting.fetch_sub(size, Ordering::Relaxed) - size;
                let lost = state.lost.load(Ordering::Relaxed);
                // `tell` logs, too: half a queue is room enough for that.
                if lost > told && waiting <= capacity / 2 {
                    tell(lost - told);
                    told = lost;
                }
            }
            Message::Flush(flushed) => {
                let _ = out.flush();
                drop(flushed);
            }
        }
        state.done.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::SyncSender;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Every write waits for the other end, as a pipe that nobody reads.
    struct Pipe(SyncSender<Vec<u8>>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
            self.0.send(bytes.to_vec()).map_err(gone)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order() {
        let (pipe, read) = mpsc::sync_channel(10_000);
        let mut queue = LogQueue::start(Pipe(pipe), |_| panic!("nothing was lost")).unwrap();
        for number in 0..10_000 {
            queue.write_all(format!("{number}").as_bytes()).unwrap();
        }
        assert!(queue.flush(SOON, SOON));
        let lines: Vec<_> = read.try_iter().collect();
        assert_eq!(lines.len(), 10_000);
        for (number, line) in lines.iter().enumerate() {
            assert_eq!(*line, number.to_string().into_bytes());
        }
    }

    #[test]
    fn what_nobody_reads_is_lost_and_told_once_there_is_room() {
        let (pipe, read) = mpsc::sync_channel(0);
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = {
            let told = Arc::clone(&told);
            move |lines| told.lock().unwrap().push(lines)
        };
        // Room for ten lines of one byte.
        let mut queue = LogQueue::with_capacity(10 * (OVERHEAD + 1), Pipe(pipe), tell).unwrap();
        let before = lines_lost();
        for number in 0..25 {
            queue.write_all(&[number]).unwrap();
        }
        assert!(lines_lost() - before >= 15);
        queue.insist(b"last words");
        let short = Duration::from_millis(200);
        assert!(!queue.flush(short, SOON), "nobody has read");
        let mut lines: Vec<_> = read.iter().take(11).collect();
        assert_eq!(lines.pop().unwrap(), b"last words");
        assert_eq!(lines, (0..10).map(|n| vec![n]).collect::<Vec<_>>());
        assert!(queue.flush(SOON, SOON));
        assert_eq!(*told.lock().unwrap(), [15]);
    }

    #[test]
    fn a_slow_reader_is_waited_for_as_long_as_it_reads() {
        let (pipe, read) = mpsc::sync_channel(0);
        let mut queue = LogQueue::start(Pipe(pipe), |_| {}).unwrap();
        for number in 0..10 {
            queue.write_all(&[number]).unwrap();
        }
        let reader = std::thread::spawn(move || {
            read.iter()
                .take(10)
                .inspect(|_| std::thread::sleep(Duration::from_millis(100)))
                .count()
        });
        // Longer than it takes for a line, shorter than for all.
        assert!(queue.flush(Duration::from_millis(800), SOON));
        assert_eq!(reader.join().unwrap(), 10);
    }

    #[test]
    fn a_reader_that_went_away_is_no_fault() {
        let (pipe, read) = mpsc::sync_channel(0);
        drop(read);
        let mut queue = LogQueue::start(Pipe(pipe), |_| {}).unwrap();
        queue.write_all(b"line").unwrap();
        assert!(queue.flush(SOON, SOON));
    }
}
