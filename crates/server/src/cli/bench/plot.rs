//! Line plots as SVG: values over numbers of nodes, from zero, legible on light and dark.

use std::fmt::Write;

/// A page of panels, one below the other.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What is shown.
    pub title: String,
    /// What a reader must know before the first number.
    pub subtitle: String,
    /// The panels.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Quantity and unit.
    pub x_label: String,
    /// Quantity and unit.
    pub y_label: String,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// Points of one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// How they are drawn.
    pub mark: Mark,
    /// x and y; y that is not finite is left out.
    pub points: Vec<(f64, f64)>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Filled dots, joined in the order of x.
    Line,
    /// Hollow dots.
    Dots,
    /// A dashed line across the panel at each y.
    Level,
}

const WIDTH: f64 = 900.0;
const PANEL: f64 = 330.0;
/// Left edge, top edge within the panel, width and height of the axes.
const AXES: (f64, f64, f64, f64) = (70.0, 16.0, 540.0, 250.0);
const LEGEND_X: f64 = 636.0;
const LINE: f64 = 17.0;
/// Characters of a subtitle's line.
const WRAP: usize = 118;
/// Colours of series on light and on dark, told apart by colour-blind readers too.
const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#5fb4e8"),
    ("#d55e00", "#ff8f4a"),
    ("#00795a", "#33c79b"),
    ("#a34a80", "#e49cc6"),
    ("#8a6d00", "#e8c33c"),
    ("#4a4f57", "#c3c8d0"),
    ("#5b3fb0", "#b39df0"),
];

impl Plot {
    /// The whole file.
    pub fn svg(&self) -> String {
        let subtitle = wrapped(&self.subtitle);
        let top = 52.0 + LINE * subtitle.len() as f64;
        let height = top + PANEL * self.panels.len() as f64;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n"
        );
        style(&mut out);
        let _ = writeln!(
            out,
            "<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>"
        );
        label(
            &mut out,
            (20.0, 30.0),
            "font-size=\"18\" font-weight=\"bold\"",
            &self.title,
        );
        for (number, line) in subtitle.iter().enumerate() {
            label(&mut out, (20.0, 52.0 + LINE * number as f64), "", line);
        }
        for (number, panel) in self.panels.iter().enumerate() {
            let y = top + PANEL * number as f64;
            let _ = writeln!(out, "<g transform=\"translate(0 {y})\">");
            panel.draw(&mut out);
            out += "</g>\n";
        }
        out + "</svg>\n"
    }
}

/// From values to places.
struct Scale {
    x: f64,
    y: f64,
}

impl Scale {
    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (left, top, width, height) = AXES;
        (left + width * x / self.x, top + height * (1.0 - y / self.y))
    }
}

impl Panel {
    fn draw(&self, out: &mut String) {
        let points = || self.series.iter().flat_map(|series| series.finite());
        let x_ticks = ticks(points().map(|point| point.0).fold(0.0, f64::max));
        let y_ticks = ticks(points().map(|point| point.1).fold(0.0, f64::max));
        let last = |ticks: &[f64]| ticks.last().copied().unwrap_or(1.0);
        let scale = Scale {
            x: last(&x_ticks),
            y: last(&y_ticks),
        };
        self.draw_axes(out, &scale, &x_ticks, &y_ticks);
        for (number, series) in self.series.iter().enumerate() {
            series.draw(out, &scale, number % COLOURS.len());
            let y = AXES.1 + 8.0 + LINE * number as f64;
            series.draw_legend(out, y, number % COLOURS.len());
        }
    }

    fn draw_axes(&self, out: &mut String, scale: &Scale, x_ticks: &[f64], y_ticks: &[f64]) {
        let (left, top, width, height) = AXES;
        let (right, bottom) = (left + width, top + height);
        for &tick in y_ticks {
            let (_, y) = scale.place((0.0, tick));
            line(out, "grid", (left, y), (right, y));
            label(
                out,
                (left - 8.0, y + 4.0),
                "text-anchor=\"end\"",
                &number(tick),
            );
        }
        for &tick in x_ticks {
            let (x, _) = scale.place((tick, 0.0));
            line(out, "axis", (x, bottom), (x, bottom + 5.0));
            label(
                out,
                (x, bottom + 20.0),
                "text-anchor=\"middle\"",
                &number(tick),
            );
        }
        line(out, "axis", (left, bottom), (right, bottom));
        let middle = (left + width / 2.0, bottom + 42.0);
        label(out, middle, "text-anchor=\"middle\"", &self.x_label);
        let y = top + height / 2.0;
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 20 {y})\"");
        label(out, (20.0, y), &turned, &self.y_label);
    }
}

impl Series {
    fn finite(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let points = self.points.iter().copied();
        points.filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    fn draw(&self, out: &mut String, scale: &Scale, colour: usize) {
        let mut points: Vec<_> = self.finite().collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if self.mark == Mark::Level {
            for (_, value) in points {
                let (left, y) = scale.place((0.0, value));
                line(
                    out,
                    &format!("l c{colour} dash"),
                    (left, y),
                    (left + AXES.2, y),
                );
            }
            return;
        }
        let places: Vec<_> = points.into_iter().map(|point| scale.place(point)).collect();
        if self.mark == Mark::Line {
            let corners: Vec<String> = (places.iter())
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            let corners = corners.join(" ");
            let _ = writeln!(
                out,
                "<polyline class=\"l c{colour}\" points=\"{corners}\"/>"
            );
        }
        places
            .into_iter()
            .for_each(|place| self.dot(out, place, colour));
    }

    fn dot(&self, out: &mut String, (x, y): (f64, f64), colour: usize) {
        let class = if self.mark == Mark::Line { "d" } else { "h" };
        let _ = writeln!(
            out,
            "<circle class=\"{class} c{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"
        );
    }

    fn draw_legend(&self, out: &mut String, y: f64, colour: usize) {
        let dash = if self.mark == Mark::Level {
            " dash"
        } else {
            ""
        };
        if self.mark != Mark::Dots {
            let class = format!("l c{colour}{dash}");
            line(out, &class, (LEGEND_X, y), (LEGEND_X + 24.0, y));
        }
        if self.mark != Mark::Level {
            self.dot(out, (LEGEND_X + 12.0, y), colour);
        }
        label(out, (LEGEND_X + 32.0, y + 4.0), "", &self.name);
    }
}

/// Rules of every class, on light and then on dark.
fn style(out: &mut String) {
    *out += "<style>\n.l{fill:none;stroke-width:2}\n.dash{stroke-dasharray:6 4}\n\
             .h{stroke-width:2}\n.d{stroke:none}\n";
    *out += &colours("#ffffff", "#1c1f23", "#d9dce1", |colour| colour.0);
    *out += "@media (prefers-color-scheme: dark) {\n";
    *out += &colours("#15181c", "#e4e7eb", "#3a3f46", |colour| colour.1);
    *out += "}\n</style>\n";
}

fn colours(
    page: &str,
    ink: &str,
    grid: &str,
    side: impl Fn(&(&'static str, &'static str)) -> &'static str,
) -> String {
    let mut rules = format!(
        ".page,.h{{fill:{page}}}\ntext{{fill:{ink}}}\n.axis{{stroke:{ink}}}\n.grid{{stroke:{grid}}}\n"
    );
    for (number, colour) in COLOURS.iter().map(side).enumerate() {
        let _ = writeln!(
            rules,
            ".l.c{number},.h.c{number}{{stroke:{colour}}}\n.d.c{number}{{fill:{colour}}}"
        );
    }
    rules
}

/// From 0 in steps of 1, 2 or 5 times a power of ten to the first that is not below `most`.
fn ticks(most: f64) -> Vec<f64> {
    let most = if most > 0.0 { most } else { 1.0 };
    let power = 10f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| most / step <= 6.0);
    let step = step.unwrap_or(10.0 * power);
    let count = (most / step - 1e-9).ceil() as usize;
    (0..=count).map(|tick| tick as f64 * step).collect()
}

/// As short as it can be.
fn number(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    format!("{rounded}")
}

/// Lines of whole words.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WRAP {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

fn line(out: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn label(out: &mut String, (x, y): (f64, f64), attributes: &str, text: &str) {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_everything() {
        assert_eq!(ticks(63.0), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(ticks(20.3), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(ticks(0.0).last(), Some(&1.0));
        for most in [1e-3, 0.7, 1.0, 5.0, 15.0, 99.0, 1234.5] {
            let ticks = ticks(most);
            assert!((3..=8).contains(&ticks.len()), "{ticks:?} for {most}");
            assert!(*ticks.last().unwrap() >= most * (1.0 - 1e-9));
        }
    }

    #[test]
    fn a_plot_says_everything_and_draws_within_its_axes() {
        let series = |mark, points: &[(f64, f64)]| Series {
            name: format!("{mark:?} & <more>"),
            mark,
            points: points.to_vec(),
        };
        let plot = Plot {
            title: "Time of a step".to_owned(),
            subtitle: "random weights; ".repeat(12),
            panels: vec![Panel {
                x_label: "nodes".to_owned(),
                y_label: "milliseconds".to_owned(),
                series: vec![
                    series(Mark::Line, &[(63.0, 20.0), (0.0, 13.0), (7.0, f64::NAN)]),
                    series(Mark::Dots, &[(15.0, 16.0)]),
                    series(Mark::Level, &[(0.0, 12.0)]),
                ],
            }],
        };
        let svg = plot.svg();
        for text in [
            "Time of a step",
            "random weights;",
            "nodes",
            "milliseconds",
            "Line &amp; &lt;more&gt;",
            "prefers-color-scheme: dark",
        ] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let corners = svg
            .split("polyline")
            .nth(1)
            .unwrap()
            .split('"')
            .nth(3)
            .unwrap();
        let corners: Vec<f64> = (corners.split([' ', ',']))
            .map(|number| number.parse().unwrap())
            .collect();
        let (left, top, width, height) = AXES;
        assert_eq!(corners.len(), 4, "two points in the order of x");
        assert_eq!(corners[0], left);
        assert!(corners[2] > corners[0] && corners[2] <= left + width);
        assert!(corners[3] >= top && corners[1] <= top + height && corners[3] < corners[1]);
    }
}
