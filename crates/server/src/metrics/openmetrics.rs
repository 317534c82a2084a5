//! The text that scrapers get who ask for OpenMetrics.
//!
//! The exporter writes Prometheus text only; this is made of it. A counter's family has the name of
//! its samples without `_total`, bounds of buckets are spelled in one way, help escapes quotes too,
//! there are no empty lines, and the last line says that nothing was cut off.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// What it says it is.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Units that end the name of a family.
const UNITS: [&str; 2] = ["seconds", "bytes"];
const END: &str = "# EOF\n";

/// Prometheus text 0.0.4 as OpenMetrics text 1.0.0. Help stands before the type it belongs to.
pub(crate) fn of(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + END.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = type_of(line) {
            head(&mut out, name, kind, help.take());
        } else if !line.is_empty() {
            sample(&mut out, line);
        }
    }
    out.push_str(END);
    out
}

fn type_of(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("# TYPE ")?.split_once(' ')
}

/// What comes before the samples of a family.
fn head(out: &mut String, name: &str, kind: &str, help: Option<&str>) {
    let family = match kind {
        "counter" => name.strip_suffix("_total").unwrap_or(name),
        _ => name,
    };
    out.push_str(&format!("# TYPE {family} {kind}\n"));
    let end = family.rsplit('_').next();
    if let Some(unit) = end.filter(|unit| UNITS.contains(unit)) {
        out.push_str(&format!("# UNIT {family} {unit}\n"));
    }
    if let Some(help) = help {
        let help = help.replace('"', "\\\"");
        out.push_str(&format!("# HELP {family} {help}\n"));
    }
}

fn sample(out: &mut String, line: &str) {
    const LABEL: &str = "le=\"";
    let is_bucket = line
        .split_once('{')
        .is_some_and(|(name, _)| name.ends_with("_bucket"));
    // The last label. Inside of a value the quote would be escaped.
    let bound = line.rfind(LABEL).filter(|_| is_bucket);
    let parts = bound.and_then(|at| {
        let (before, rest) = line.split_at(at + LABEL.len());
        let (bound, after) = rest.split_once('"')?;
        Some((before, bound.parse::<f64>().ok()?, after))
    });
    match parts {
        Some((before, bound, after)) => {
            out.push_str(before);
            out.push_str(&spelled(bound));
            out.push('"');
            out.push_str(after);
        }
        None => out.push_str(line),
    }
    out.push('\n');
}

/// A number as the standard wants it where it is compared as a text: shortest digits, always with a
/// point or an exponent, the latter below 0.0001 and from a million on.
fn spelled(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if number != 0.0 && !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    // Debug has a point in whole numbers, too.
    format!("{number:?}")
}

/// Whether a scraper likes this text at least as much as the other. Wildcards do not ask for it.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter();
    let ranges = ranges.filter_map(|value| value.to_str().ok());
    let ranges: Vec<Range<'_>> = ranges
        .flat_map(|value| value.split(','))
        .map(Range::read)
        .collect();
    let quality = |kind: &str, version: &str| {
        let fits = |range: &&Range<'_>| {
            let versions = [None, Some(version)];
            range.kind.eq_ignore_ascii_case(kind) && versions.contains(&range.version)
        };
        let of_kind = ranges.iter().filter(fits).map(|range| range.quality);
        of_kind.reduce(f32::max)
    };
    let Some(ours) = quality("application/openmetrics-text", "1.0.0") else {
        return false;
    };
    let other = quality("text/plain", "0.0.4")
        .or_else(|| quality("text/*", ""))
        .or_else(|| quality("*/*", ""));
    ours > 0.0 && ours >= other.unwrap_or(0.0)
}

/// One entry of `Accept`.
struct Range<'a> {
    kind: &'a str,
    version: Option<&'a str>,
    quality: f32,
}

impl<'a> Range<'a> {
    fn read(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Range {
            kind: parts.next().unwrap_or_default(),
            version: None,
            quality: 1.0,
        };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "version" => range.version = Some(value),
                "q" => range.quality = value.parse().unwrap_or(0.0),
                _ => {}
            }
        }
        range
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::metrics::families::{ALL, Kind};

    #[test]
    fn families_are_rewritten() {
        let text = "# HELP a:requests_total Of \"all\" kinds,\\neach once.\n\
            # TYPE a:requests_total counter\n\
            a:requests_total{model_name=\"m\"} 3\n\
            \n\
            # TYPE a:load gauge\n\
            a:load{le=\"1\",what=\"x_bucket{\"} 0.25\n\
            \n\
            # HELP a:wait_seconds Waiting.\n\
            # TYPE a:wait_seconds histogram\n\
            a:wait_seconds_bucket{model_name=\"le=\\\"7\\\"\",le=\"0.00001\"} 1\n\
            a:wait_seconds_bucket{model_name=\"m\",le=\"1\"} 2\n\
            a:wait_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 2\n\
            a:wait_seconds_sum{model_name=\"m\"} 1\n\
            a:wait_seconds_count{model_name=\"m\"} 2\n\n";
        let expected = "# TYPE a:requests counter\n\
            # HELP a:requests Of \\\"all\\\" kinds,\\neach once.\n\
            a:requests_total{model_name=\"m\"} 3\n\
            # TYPE a:load gauge\n\
            a:load{le=\"1\",what=\"x_bucket{\"} 0.25\n\
            # TYPE a:wait_seconds histogram\n\
            # UNIT a:wait_seconds seconds\n\
            # HELP a:wait_seconds Waiting.\n\
            a:wait_seconds_bucket{model_name=\"le=\\\"7\\\"\",le=\"1e-05\"} 1\n\
            a:wait_seconds_bucket{model_name=\"m\",le=\"1.0\"} 2\n\
            a:wait_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 2\n\
            a:wait_seconds_sum{model_name=\"m\"} 1\n\
            a:wait_seconds_count{model_name=\"m\"} 2\n\
            # EOF\n";
        assert_eq!(of(text), expected);
        assert_eq!(of(""), "# EOF\n");
    }

    #[test]
    fn numbers_have_one_spelling() {
        for (number, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.000_1, "0.0001"),
            (0.000_025, "2.5e-05"),
            (200_000.0, "200000.0"),
            (1e6, "1e+06"),
            (-0.5, "-0.5"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(spelled(number), text);
        }
    }

    #[test]
    fn every_counter_can_lose_its_ending() {
        for family in ALL {
            for name in family.names {
                let counts = matches!(family.kind, Kind::Counter);
                assert_eq!(name.ends_with("_total"), counts, "{name}");
            }
        }
    }

    #[test]
    fn it_is_sent_to_those_who_ask() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, wanted) in [
            (prometheus, true),
            ("application/openmetrics-text", true),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"", true),
            ("application/openmetrics-text, text/plain", true),
            (
                "text/plain;q=0.5, application/openmetrics-text;q=0.4",
                false,
            ),
            ("*/*, application/openmetrics-text;q=0.4", false),
            (
                "text/*;q=0.1, application/openmetrics-text;q=0.4, */*",
                true,
            ),
            ("application/openmetrics-text;version=0.0.1", false),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text;q=x", false),
            ("application/*", false),
            ("*/*", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
            assert_eq!(is_wanted(&headers), wanted, "{accept}");
        }
        let mut two = HeaderMap::new();
        two.append(ACCEPT, HeaderValue::from_static("text/plain;q=0.1"));
        two.append(
            ACCEPT,
            HeaderValue::from_static("application/openmetrics-text"),
        );
        assert!(is_wanted(&two));
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
