//! Graphs, timed in turn.

use std::time::Instant;

use ops::{Backend, Cuda, OpsError};

/// Graphs and how long they are to run.
pub struct Times<'a> {
    cuda: &'a Cuda,
    graphs: Vec<<Cuda as Backend>::Graph>,
    rounds: usize,
    round_seconds: f64,
}

/// Seconds over the rounds.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Time {
    /// Of one of `launches`.
    pub fn of(self, launches: usize) -> Time {
        let part = |seconds: f64| seconds / launches as f64;
        Time {
            median: part(self.median),
            least: part(self.least),
            most: part(self.most),
        }
    }
}

impl<'a> Times<'a> {
    pub fn new(cuda: &'a Cuda, rounds: usize, round_seconds: f64) -> Self {
        Times {
            cuda,
            graphs: Vec::new(),
            rounds,
            round_seconds,
        }
    }

    /// Runs what `enqueue` enqueues once, so that all is loaded, and records it.
    pub fn record(
        &mut self,
        enqueue: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<(), OpsError> {
        enqueue()?;
        self.cuda.wait()?;
        let graph = self.cuda.record(enqueue)?;
        self.graphs
            .push(graph.ok_or_else(|| OpsError::Device("no graphs".into()))?);
        Ok(())
    }

    /// Seconds of a launch of each graph: in every round each runs for the asked time, one after
    /// the other, so that clock and heat are the same for all.
    pub fn run(&self) -> Result<Vec<Time>, OpsError> {
        let mut counts = Vec::new();
        for graph in &self.graphs {
            self.seconds(graph, 1)?;
            let once = self.seconds(graph, 1)?;
            counts.push((self.round_seconds / once).ceil().max(1.0) as usize);
        }
        let mut seconds = vec![Vec::new(); self.graphs.len()];
        for _ in 0..self.rounds.max(1) {
            for ((graph, &count), seconds) in self.graphs.iter().zip(&counts).zip(&mut seconds) {
                seconds.push(self.seconds(graph, count)?);
            }
        }
        Ok(seconds.into_iter().map(summary).collect())
    }

    fn seconds(&self, graph: &<Cuda as Backend>::Graph, count: usize) -> Result<f64, OpsError> {
        self.cuda.wait()?;
        let start = Instant::now();
        for _ in 0..count {
            self.cuda.launch(graph)?;
        }
        self.cuda.wait()?;
        Ok(start.elapsed().as_secs_f64() / count as f64)
    }
}

fn summary(mut seconds: Vec<f64>) -> Time {
    seconds.sort_by(f64::total_cmp);
    Time {
        median: seconds[seconds.len() / 2],
        least: seconds[0],
        most: seconds[seconds.len() - 1],
    }
}
