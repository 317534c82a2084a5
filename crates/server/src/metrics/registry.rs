//! The recorder that keeps the numbers; it is this server's own, not the process's.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use super::NamePrefix;
use super::families::{ALL, Family, Kind};

const METADATA: Metadata<'static> = Metadata::new("server", Level::INFO, None);

/// Names and values of labels.
pub(crate) type Labels<'a> = &'a [(&'static str, &'a str)];

/// All families.
#[derive(Debug)]
pub(crate) struct Registry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    drain: Drain,
    prefixes: Vec<NamePrefix>,
}

/// The recorder queues observations and sums them up when drained; an observation that is queued
/// in that very moment could get lost. Observers share this lock, draining takes it alone.
#[derive(Clone, Debug, Default)]
struct Drain(Arc<RwLock<()>>);

impl Drain {
    fn observing(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Without samples. Every sample will carry `model_name`; names of other `prefixes` than these
    /// and the server's own are left out.
    pub(crate) fn new(model: &str, prefixes: &[NamePrefix]) -> Self {
        let mut builder = PrometheusBuilder::new().add_global_label("model_name", model);
        for family in ALL {
            if let Kind::Histogram(bounds) = family.kind {
                for &name in family.names {
                    builder = builder
                        .set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)
                        .expect("every histogram has bounds");
                }
            }
        }
        let recorder = builder.build_recorder();
        for family in ALL {
            for &name in family.names {
                let (name, help) = (name.into(), family.help.into());
                match family.kind {
                    Kind::Counter => recorder.describe_counter(name, None, help),
                    Kind::Gauge => recorder.describe_gauge(name, None, help),
                    Kind::Histogram(_) => recorder.describe_histogram(name, None, help),
                }
            }
        }
        Registry {
            handle: recorder.handle(),
            recorder,
            drain: Drain::default(),
            prefixes: prefixes.to_vec(),
        }
    }

    /// A counter, 0 if it is new.
    pub(crate) fn counter(&self, family: &Family, labels: Labels<'_>) -> Counter {
        debug_assert!(matches!(family.kind, Kind::Counter));
        let register = |key| self.recorder.register_counter(&key, &METADATA);
        Counter(self.keys(family, labels).map(register).collect())
    }

    /// A gauge, 0 if it is new.
    pub(crate) fn gauge(&self, family: &Family, labels: Labels<'_>) -> Gauge {
        debug_assert!(matches!(family.kind, Kind::Gauge));
        let register = |key| self.recorder.register_gauge(&key, &METADATA);
        Gauge(self.keys(family, labels).map(register).collect())
    }

    /// A histogram, empty if it is new.
    pub(crate) fn histogram(&self, family: &Family, labels: Labels<'_>) -> Histogram {
        debug_assert!(matches!(family.kind, Kind::Histogram(_)));
        let register = |key| self.recorder.register_histogram(&key, &METADATA);
        Histogram {
            names: self.keys(family, labels).map(register).collect(),
            drain: self.drain.clone(),
        }
    }

    fn keys(&self, family: &Family, labels: Labels<'_>) -> impl Iterator<Item = Key> {
        let label = |&(name, value): &(&'static str, &str)| Label::new(name, value.to_owned());
        let labels: Vec<_> = labels.iter().map(label).collect();
        let names = family.names.iter().filter(|name| self.is_wanted(name));
        names.map(move |&name| Key::from_parts(name, labels.clone()))
    }

    fn is_wanted(&self, name: &str) -> bool {
        let prefix = match name.split_once(':') {
            None => return true,
            Some(("sglang", _)) => NamePrefix::Sglang,
            Some(_) => NamePrefix::Vllm,
        };
        self.prefixes.contains(&prefix)
    }

    /// Prometheus text, format 0.0.4, after `refresh`. One scrape at a time, so that no text mixes
    /// what two of them set.
    pub(crate) fn scrape(&self, refresh: impl FnOnce(&Self)) -> String {
        let _alone = self.drain.alone();
        refresh(self);
        self.handle.render()
    }

    /// Sums up queued observations. They take memory until this or a scrape.
    pub(crate) fn upkeep(&self) {
        let _alone = self.drain.alone();
        self.handle.run_upkeep();
    }
}

/// A counter under all names of its family.
#[derive(Debug)]
pub(crate) struct Counter(Vec<metrics::Counter>);

impl Counter {
    /// Adds `count`.
    pub(crate) fn add(&self, count: u64) {
        for name in &self.0 {
            name.increment(count);
        }
    }

    /// Takes over a total that is counted elsewhere; a smaller one changes nothing.
    pub(crate) fn raise_to(&self, total: u64) {
        for name in &self.0 {
            name.absolute(total);
        }
    }
}

/// A gauge under all names of its family.
#[derive(Debug)]
pub(crate) struct Gauge(Vec<metrics::Gauge>);

impl Gauge {
    /// Is now `value`.
    pub(crate) fn set(&self, value: f64) {
        for name in &self.0 {
            name.set(value);
        }
    }

    /// Rises, or falls where `change` is negative.
    pub(crate) fn add(&self, change: f64) {
        for name in &self.0 {
            name.increment(change);
        }
    }
}

/// A histogram under all names of its family.
#[derive(Debug)]
pub(crate) struct Histogram {
    names: Vec<metrics::Histogram>,
    drain: Drain,
}

impl Histogram {
    /// The same observations in `other` too.
    pub(crate) fn and(mut self, other: Histogram) -> Self {
        self.names.extend(other.names);
        self
    }

    /// `times` observations of `value`.
    pub(crate) fn observe(&self, value: f64, times: usize) {
        let _observing = self.drain.observing();
        for name in &self.names {
            name.record_many(value, times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::families::{ACCEPT_LENGTH, BETWEEN_TOKENS, DRAFTS, REJECTIONS, RUNNING};

    const BOTH: [NamePrefix; 2] = [NamePrefix::Sglang, NamePrefix::Vllm];

    fn text(registry: &Registry) -> String {
        registry.scrape(|_| ())
    }

    #[test]
    fn both_names_carry_the_labels_help_and_type() {
        let registry = Registry::new("a\"b", &BOTH);
        registry.gauge(&RUNNING, &[]).set(0.25);
        registry.counter(&REJECTIONS, &[("reason", "a\nb")]).add(3);
        let text = text(&registry);
        for name in ["sglang:num_running_reqs", "vllm:num_requests_running"] {
            let family = format!(
                "# HELP {name} Sequences in a slot.\n# TYPE {name} gauge\n\
                 {name}{{model_name=\"a\\\"b\"}} 0.25\n"
            );
            assert!(text.contains(&family), "{text}");
        }
        let rejections = "# TYPE vllm:admission_rejections_total counter\n\
            vllm:admission_rejections_total{model_name=\"a\\\"b\",reason=\"a\\nb\"} 3\n";
        assert!(text.contains(rejections), "{text}");
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let registry = Registry::new("m", &BOTH);
        let histogram = registry.histogram(&ACCEPT_LENGTH, &[]);
        for (value, times) in [(1.0, 1), (2.0, 3), (2.5, 1), (99.0, 2)] {
            histogram.observe(value, times);
        }
        let text = text(&registry);
        let start = "# TYPE spinney_accept_length histogram\n\
            spinney_accept_length_bucket{model_name=\"m\",le=\"1\"} 1\n\
            spinney_accept_length_bucket{model_name=\"m\",le=\"2\"} 4\n\
            spinney_accept_length_bucket{model_name=\"m\",le=\"3\"} 5\n";
        let end = "spinney_accept_length_bucket{model_name=\"m\",le=\"16\"} 5\n\
            spinney_accept_length_bucket{model_name=\"m\",le=\"+Inf\"} 7\n\
            spinney_accept_length_sum{model_name=\"m\"} 207.5\n\
            spinney_accept_length_count{model_name=\"m\"} 7\n";
        assert!(text.contains(start) && text.contains(end), "{text}");
    }

    #[test]
    fn counters_never_fall() {
        let registry = Registry::new("m", &BOTH);
        for (total, expected) in [(5, 5), (3, 5), (8, 8)] {
            registry.counter(&DRAFTS, &[]).raise_to(total);
            let line =
                format!("vllm:spec_decode_num_drafts_total{{model_name=\"m\"}} {expected}\n");
            assert!(text(&registry).contains(&line));
        }
    }

    #[test]
    fn draining_loses_no_observation() {
        const EACH: usize = 300_000;
        let registry = Registry::new("m", &BOTH);
        std::thread::scope(|scope| {
            let observers = [(); 3].map(|()| {
                let histogram = registry.histogram(&BETWEEN_TOKENS, &[]);
                scope.spawn(move || (0..EACH).for_each(|_| histogram.observe(1.0, 1)))
            });
            while !observers.iter().all(|observer| observer.is_finished()) {
                registry.upkeep();
            }
        });
        let text = text(&registry);
        for family in ["sglang", "vllm"] {
            let name = format!("{family}:inter_token_latency_seconds_count");
            let line = format!("{name}{{model_name=\"m\"}} {}\n", 3 * EACH);
            assert!(text.contains(&line), "{text}");
        }
    }
}
