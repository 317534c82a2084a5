//! Prometheus text, format 0.0.4.

use std::fmt::Write;

use super::histogram::Histogram;

/// Text under construction. Every family is written once, with all its samples together.
#[derive(Debug)]
pub(crate) struct Exposition {
    text: String,
    model: String,
}

impl Exposition {
    /// Every sample carries `model_name`.
    pub(crate) fn new(model: &str) -> Self {
        Exposition {
            text: String::new(),
            model: escape(model),
        }
    }

    /// The finished text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// A gauge without further labels under each of `names`.
    pub(crate) fn gauge(&mut self, names: &[&str], value: f64) {
        for name in names {
            self.family(name, "gauge");
            self.sample(name, &[], value);
        }
    }

    /// A counter without further labels under each of `names`.
    pub(crate) fn counter(&mut self, names: &[&str], value: u64) {
        for name in names {
            self.family(name, "counter");
            self.sample(name, &[], value as f64);
        }
    }

    /// A family with one sample per set of labels.
    pub(crate) fn labelled<'a>(
        &mut self,
        name: &str,
        kind: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, String)>, f64)>,
    ) {
        self.family(name, kind);
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    /// A histogram under each of `names`.
    pub(crate) fn histogram(&mut self, names: &[&str], histogram: &Histogram) {
        for name in names {
            self.family(name, "histogram");
            self.buckets(name, &[], histogram);
        }
    }

    /// A histogram per set of labels.
    pub(crate) fn labelled_histograms(
        &mut self,
        name: &str,
        label: &str,
        parts: &[(&str, &Histogram)],
    ) {
        self.family(name, "histogram");
        for (value, histogram) in parts {
            self.buckets(name, &[(label, (*value).to_owned())], histogram);
        }
    }

    fn family(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }

    fn buckets(&mut self, name: &str, labels: &[(&str, String)], histogram: &Histogram) {
        let counts = histogram.read();
        let mut below = 0;
        let bounds = histogram.bounds().iter().map(|&bound| Some(bound));
        for (bound, count) in bounds.chain([None]).zip(&counts.buckets) {
            below += count;
            let mut labels = labels.to_vec();
            labels.push((
                "le",
                bound.map_or("+Inf".to_owned(), |bound| bound.to_string()),
            ));
            self.sample(&format!("{name}_bucket"), &labels, below as f64);
        }
        self.sample(&format!("{name}_sum"), labels, counts.sum);
        self.sample(&format!("{name}_count"), labels, below as f64);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, String)], value: f64) {
        let _ = write!(self.text, "{name}{{model_name=\"{}\"", self.model);
        for (label, value) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", escape(value));
        }
        let _ = writeln!(self.text, "}} {value}");
    }
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_a_scraper_reads() {
        let histogram = Histogram::new(&[0.5, 2.0]);
        histogram.observe(1.0, 2);
        let mut text = Exposition::new("a\"b");
        text.gauge(&["x:g", "y:g"], 0.25);
        text.histogram(&["x:h"], &histogram);
        text.labelled("x:c", "counter", [(vec![("why", "a\nb".to_owned())], 3.0)]);
        let expected = "# TYPE x:g gauge\n\
            x:g{model_name=\"a\\\"b\"} 0.25\n\
            # TYPE y:g gauge\n\
            y:g{model_name=\"a\\\"b\"} 0.25\n\
            # TYPE x:h histogram\n\
            x:h_bucket{model_name=\"a\\\"b\",le=\"0.5\"} 0\n\
            x:h_bucket{model_name=\"a\\\"b\",le=\"2\"} 2\n\
            x:h_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 2\n\
            x:h_sum{model_name=\"a\\\"b\"} 2\n\
            x:h_count{model_name=\"a\\\"b\"} 2\n\
            # TYPE x:c counter\n\
            x:c{model_name=\"a\\\"b\",why=\"a\\nb\"} 3\n";
        assert_eq!(text.into_text(), expected);
    }
}
