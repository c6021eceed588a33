//! Bars as SVG that reads well on light and on dark paper. Knows numbers and labels, nothing of what they mean.

use std::fmt::Write as _;

use crate::report::{Bar, Picture};

const WIDTH: f64 = 800.0;
/// The longest label fits.
const LABEL_WIDTH: f64 = 310.0;
const VALUE_WIDTH: f64 = 90.0;
const ROW_HEIGHT: f64 = 30.0;
const BAR_HEIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 26.0;

/// Colours by class, so that the reader's own choice of light or dark decides.
const STYLE: &str = "\
    text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1c1f24}\
    .title{font-weight:600;font-size:15px}.note{font-size:11px;fill:#5b6470}\
    .bar{fill:#a7b0bd}.ours{fill:#1f5fd0}.spread{stroke:#1c1f24;stroke-width:1.5}.ours-label{font-weight:600}\
    @media(prefers-color-scheme:dark){text{fill:#e8eaed}.note{fill:#9aa4b2}.bar{fill:#5d6775}.ours{fill:#7aaeff}\
    .spread{stroke:#e8eaed}}";

pub fn draw(picture: &Picture) -> String {
    let height = TOP + ROW_HEIGHT * picture.bars.len() as f64 + BOTTOM;
    let most = picture.bars.iter().map(|bar| bar.most).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n\
         <text class=\"title\" x=\"0\" y=\"20\">{title}</text>\n",
        title = escaped(picture.title)
    );
    for (row, bar) in picture.bars.iter().enumerate() {
        draw_bar(&mut svg, bar, TOP + ROW_HEIGHT * row as f64, most, picture.unit);
    }
    let _ = writeln!(
        svg,
        "<text class=\"note\" x=\"0\" y=\"{:.1}\">median; the line spans all repetitions</text>\n</svg>",
        height - 8.0
    );
    svg
}

fn draw_bar(svg: &mut String, bar: &Bar, top: f64, most: f64, unit: &str) {
    let at = |value: f64| LABEL_WIDTH + (WIDTH - LABEL_WIDTH - VALUE_WIDTH) * value / most;
    let (class, label_class) = if bar.ours { ("bar ours", "ours-label") } else { ("bar", "") };
    let middle = top + BAR_HEIGHT / 2.0;
    let _ = writeln!(
        svg,
        "<text class=\"{label_class}\" x=\"0\" y=\"{:.1}\">{}</text>\
         <rect class=\"{class}\" x=\"{LABEL_WIDTH}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" rx=\"2\"/>\
         <line class=\"spread\" x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        top + 12.5,
        escaped(&bar.label),
        at(bar.value) - LABEL_WIDTH,
        at(bar.least),
        at(bar.most),
        at(bar.most) + 8.0,
        top + 12.5,
        with_unit(bar.value, unit)
    );
}

fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "1/s" => format!("{:.1}k/s", value / 1_000.0),
        "us" => format!("{value:.1} µs"),
        other => format!("{value:.2} {other}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
