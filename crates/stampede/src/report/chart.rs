//! Drawing by our own hand: axes, lines, bars and areas as inline SVG. It knows nothing of sales; colours are classes
//! of the style sheet, so a picture fits both themes.

use super::words::{escape, push};

/// The drawing's own units. Letters keep their size on the screen by the style sheet, so on a phone, where the picture
/// shrinks, they take more of these: the margins leave room for that.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 56.0;
/// Ticks an axis aims for.
const X_TICKS: f64 = 5.0;
const Y_TICKS: f64 = 5.0;
/// Decades of a logarithmic axis at most.
const DECADES_MAX: u8 = 12;

/// One direction of a picture.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
    label: String,
    ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Equal steps; `name` writes a tick's value.
    pub fn linear(label: &str, from: f64, to: f64, ticks: f64, name: impl Fn(f64, f64) -> String) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        let step = nice_step((to - from) / ticks);
        let mut ticks = Vec::new();
        let mut tick = (from / step).ceil() * step;
        while tick <= step.mul_add(0.001, to) {
            // Sums of steps miss zero by a hair, on either side of it.
            let tick_or_zero = if tick.abs() < step / 1e3 { 0.0 } else { tick };
            ticks.push((tick_or_zero, name(tick_or_zero, step)));
            tick += step;
        }
        Self { from, to, is_log: false, label: label.into(), ticks }
    }

    pub fn x(label: &str, from: f64, to: f64, name: impl Fn(f64, f64) -> String) -> Self {
        Self::linear(label, from, to, X_TICKS, name)
    }

    /// Rounded up so that the highest value does not touch the frame.
    pub fn y(label: &str, from: f64, to: f64, name: impl Fn(f64, f64) -> String) -> Self {
        let step = nice_step((to - from).max(f64::MIN_POSITIVE) / Y_TICKS);
        let to = (to / step).ceil() * step;
        Self::linear(label, (from / step).floor() * step, to, Y_TICKS, name)
    }

    /// Whole decades around the values, a tick at each.
    pub fn log(label: &str, from: f64, to: f64, name: impl Fn(f64) -> String) -> Self {
        let from = from.max(1e-9).log10().floor();
        let to = to.max(1e-9).log10().ceil().clamp(from + 1.0, from + f64::from(DECADES_MAX));
        let decades = (0..=DECADES_MAX).map(|step| from + f64::from(step)).take_while(|decade| *decade <= to);
        let ticks = decades.map(|decade| 10_f64.powf(decade)).map(|tick| (tick, name(tick))).collect();
        Self { from: 10_f64.powf(from), to: 10_f64.powf(to), is_log: true, label: label.into(), ticks }
    }

    /// Ticks where the caller wants them.
    pub fn with_ticks(label: &str, from: f64, to: f64, ticks: Vec<(f64, String)>) -> Self {
        Self { from, to, is_log: false, label: label.into(), ticks }
    }

    /// 0 at the start of the axis, 1 at its end.
    fn share(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// 1, 2 or 5 times a power of ten, at least `rough`.
fn nice_step(rough: f64) -> f64 {
    let rough = if rough.is_finite() && rough > 0.0 { rough } else { 1.0 };
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

/// A picture in the making.
#[derive(Debug)]
pub(super) struct Chart {
    x: Scale,
    y: Scale,
    out: String,
}

impl Chart {
    /// `id` is unique on the page; `title` and `text` are for those who cannot see it.
    pub fn new(id: &str, title: &str, text: &str, x: Scale, y: Scale) -> Self {
        let mut chart = Self { x, y, out: String::new() };
        let text = if text.is_empty() { "There is nothing to show." } else { text };
        push(
            &mut chart.out,
            format_args!(
                "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-title {id}-text\">\
             <title id=\"{id}-title\">{}</title><desc id=\"{id}-text\">{}</desc>\n",
                escape(title),
                escape(text)
            ),
        );
        chart.draw_axes();
        chart
    }

    fn draw_axes(&mut self) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, name) in self.y.ticks.clone() {
            let y = self.y_at(value);
            push(
                &mut self.out,
                format_args!(
                    "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    LEFT - 7.0,
                    y + 4.5,
                    escape(&name)
                ),
            );
        }
        for (value, name) in self.x.ticks.clone() {
            let x = self.x_at(value);
            push(
                &mut self.out,
                format_args!(
                    "<path class=\"axis\" d=\"M{x:.1} {bottom}v5\"/><text class=\"tick mid\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                    bottom + 21.0,
                    escape(&name)
                ),
            );
        }
        push(
            &mut self.out,
            format_args!(
                "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>\
             <text class=\"label\" x=\"2\" y=\"16\">{}</text>\
             <text class=\"label end\" x=\"{right}\" y=\"{:.1}\">{}</text>\n",
                escape(&self.y.label),
                HEIGHT - 8.0,
                escape(&self.x.label)
            ),
        );
    }

    fn x_at(&self, value: f64) -> f64 {
        self.x.share(value).mul_add(WIDTH - LEFT - RIGHT, LEFT)
    }

    fn y_at(&self, value: f64) -> f64 {
        self.y.share(value).mul_add(TOP + BOTTOM - HEIGHT, HEIGHT - BOTTOM)
    }

    /// A line from point to point.
    pub fn line(&mut self, class: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let mut path = String::new();
        for (x, y) in points {
            let command = if path.is_empty() { 'M' } else { 'L' };
            push(&mut path, format_args!("{command}{:.1} {:.1}", self.x_at(x), self.y_at(y)));
        }
        self.path(&format!("line {class}"), &path);
    }

    /// A line that keeps its height until the next point.
    pub fn steps(&mut self, class: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let mut path = String::new();
        let mut height = String::new();
        for (x, y) in points {
            let (x, y) = (self.x_at(x), format!("{:.1}", self.y_at(y)));
            if path.is_empty() {
                push(&mut path, format_args!("M{x:.1} {y}"));
            } else if y == height {
                push(&mut path, format_args!("H{x:.1}"));
            } else {
                push(&mut path, format_args!("H{x:.1}V{y}"));
            }
            height = y;
        }
        self.path(&format!("line {class}"), &path);
    }

    /// What lies between two heights, bin by bin; `edges` has one more than there are bins.
    pub fn band(&mut self, class: &str, edges: &[f64], low: &[f64], high: &[f64]) {
        let bins: Vec<_> = edges.windows(2).zip(low.iter().zip(high)).collect();
        // Stretches without anything in them are left out.
        for stretch in bins.split(|(_, (low, high))| low >= high) {
            let mut path = String::new();
            let mut height = String::new();
            for (edge, (_, high)) in stretch {
                self.walk(&mut path, &mut height, edge.first().copied(), edge.last().copied(), **high);
            }
            for (edge, (low, _)) in stretch.iter().rev() {
                self.walk(&mut path, &mut height, edge.last().copied(), edge.first().copied(), **low);
            }
            if !path.is_empty() {
                path.push('Z');
                self.path(&format!("band {class}"), &path);
            }
        }
    }

    fn walk(&self, path: &mut String, height: &mut String, from: Option<f64>, to: Option<f64>, level: f64) {
        let (Some(from), Some(to)) = (from, to) else { return };
        let y = format!("{:.1}", self.y_at(level));
        if path.is_empty() {
            push(path, format_args!("M{:.1} {y}", self.x_at(from)));
        } else if y != *height {
            push(path, format_args!("V{y}"));
        }
        push(path, format_args!("H{:.1}", self.x_at(to)));
        *height = y;
    }

    /// A bar from the bottom, with what it says on hovering.
    pub fn bar(&mut self, class: &str, from: f64, to: f64, height: f64, text: &str) {
        let (left, right, bottom) = (self.x_at(from), self.x_at(to), HEIGHT - BOTTOM);
        let top = self.y_at(height);
        push(
            &mut self.out,
            format_args!(
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"1.5\"><title>{}</title></rect>",
                left + 1.0,
                (right - left - 2.0).max(1.0),
                (bottom - top).max(0.0),
                escape(text)
            ),
        );
    }

    pub fn dot(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let (x, y) = (self.x_at(x), self.y_at(y));
        push(
            &mut self.out,
            format_args!(
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{}</title></circle>",
                escape(text)
            ),
        );
    }

    /// An upright line at a moment that matters.
    pub fn mark(&mut self, x: f64, text: &str) {
        let at = self.x_at(x);
        push(
            &mut self.out,
            format_args!(
                "<path class=\"mark\" d=\"M{at:.1} {TOP}V{}\"><title>{}</title></path>",
                HEIGHT - BOTTOM,
                escape(text)
            ),
        );
    }

    /// An invisible strip that says on hovering what is in it.
    pub fn hint(&mut self, from: f64, to: f64, text: &str) {
        let (left, right) = (self.x_at(from), self.x_at(to));
        push(
            &mut self.out,
            format_args!(
                "<rect class=\"hint\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{}\"><title>{}</title></rect>",
                (right - left).max(0.1),
                HEIGHT - BOTTOM - TOP,
                escape(text)
            ),
        );
    }

    fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            push(&mut self.out, format_args!("<path class=\"{class}\" d=\"{path}\"/>\n"));
        }
    }

    pub fn finish(mut self) -> String {
        self.out.push_str("</svg>");
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let names = |scale: &Scale| scale.ticks.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
        let plain = |value: f64, _: f64| format!("{value:.1}");
        assert_eq!(names(&Scale::x("s", -0.1, 1.0, plain)), ["0.0", "0.5", "1.0"]);
        assert_eq!(names(&Scale::y("n", 0.0, 37.0, plain)), ["0.0", "10.0", "20.0", "30.0", "40.0"]);
        assert_eq!(
            names(&Scale::log("t", 300.0, 40_000.0, |value| format!("{value:.0}"))),
            ["100", "1000", "10000", "100000"]
        );
        for (from, to) in [(0.0, 0.0), (1.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
            assert!(Scale::log("t", from, to, |_| String::new()).ticks.len() <= 13);
        }
        assert!(names(&Scale::y("n", 0.0, 0.0, plain)).len() < 20);
    }

    #[test]
    fn values_beyond_the_frame_stay_inside() {
        let scale = |label| Scale::x(label, 0.0, 10.0, |_, _| String::new());
        let mut chart = Chart::new("a", "t", "d", scale("x"), scale("y"));
        chart.line("c", [(-5.0, 20.0), (50.0, f64::NAN)]);
        let svg = chart.finish();
        assert!(svg.contains("d=\"M62.0 34.0L462.0 234.0\""), "{svg}");
    }

    #[test]
    fn a_band_skips_what_is_empty() {
        let scale = |label| Scale::x(label, 0.0, 4.0, |_, _| String::new());
        let mut chart = Chart::new("a", "t", "d", scale("x"), scale("y"));
        chart.band("c", &[0.0, 1.0, 2.0, 3.0, 4.0], &[0.0; 4], &[1.0, 0.0, 2.0, 2.0]);
        let svg = chart.finish();
        assert_eq!(svg.matches("class=\"band c\"").count(), 2);
        assert!(svg.contains("M262.0 134.0H362.0H462.0V234.0H362.0H262.0Z"), "{svg}");
    }
}
