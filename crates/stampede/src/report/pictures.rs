//! The pictures of the report: which numbers go on which axis, and what each says in words. Numbers come from
//! `digest`, ink from `chart`.

use super::calls::{Answer, Kind};
use super::chart::{Chart, Scale};
use super::digest::{Digest, Latency};
use super::fairness::Part;
use super::series::{Axis, Series};
use super::stock::Burn;
use super::words::{
    compact, count, cut, duration_us, float, float_signed, length, number, percent, round_duration_us,
    three_digits,
};

/// Offers that get a line of their own.
const OFFERS_MAX: usize = 6;
const PERCENT: f64 = 100.0;
const UNKNOWN_STOCK: &str = "Without the operator’s key nobody knows how many there were.";

/// A picture with all that stands around it.
#[derive(Debug)]
pub(super) struct Picture {
    pub title: String,
    pub legend: Vec<Key>,
    pub svg: String,
    /// What it means, below it.
    pub caption: String,
}

/// A line of a legend.
#[derive(Debug)]
pub(super) struct Key {
    pub shape: Shape,
    /// The classes of what it explains.
    pub class: String,
    pub text: String,
}

impl Key {
    fn new(shape: Shape, class: impl Into<String>, text: impl Into<String>) -> Self {
        Self { shape, class: class.into(), text: text.into() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Block,
    Line,
    Ring,
}

pub(super) fn all(digest: &Digest) -> Vec<Picture> {
    let mut pictures = Vec::new();
    if let Some(opening) = &digest.opening {
        pictures.push(answers("opening", "The opening, close up", opening, digest.axis));
    }
    pictures.push(answers("whole", "Requests and answers, the whole run", &digest.series, digest.axis));
    pictures.push(latency(digest));
    pictures.push(click_to_final(digest));
    pictures.push(stock(digest));
    pictures.push(fairness(digest, "Fairness: who won, by place in line"));
    if !digest.fairness.front.is_empty() {
        pictures.push(front(digest));
    }
    pictures
}

fn answers(id: &str, title: &str, series: &Series, axis: Axis) -> Picture {
    let edges: Vec<f64> = (0..=series.bins()).map(|bin| series.edge_s(axis, bin)).collect();
    let present: Vec<(Answer, &Vec<u64>)> = Answer::ALL
        .into_iter()
        .zip(&series.answers)
        .filter(|(_, bins)| bins.iter().any(|bin| *bin > 0))
        .collect();
    let mut low = vec![0.0; series.bins()];
    let mut bands = Vec::new();
    for (answer, bins) in &present {
        let high: Vec<f64> = low.iter().zip(*bins).map(|(low, bin)| low + series.per_second(*bin)).collect();
        bands.push((*answer, low, high.clone()));
        low = high;
    }
    let sent = series.sent.iter().map(|sent| series.per_second(*sent));
    let top = low.iter().copied().chain(sent.clone()).fold(1.0, f64::max);
    let (from, to) = (edges.first().copied().unwrap_or(0.0), edges.last().copied().unwrap_or(1.0));
    let bin = round_duration_us(series.width_us);
    let total: u64 = present.iter().flat_map(|(_, bins)| bins.iter()).sum();
    let text = format!(
        "{} from {} to {} since {}, stacked by kind, in steps of {bin}. Highest: {} per second.",
        count(total, "answer"),
        seconds(from, 0.1),
        seconds(to, 0.1),
        axis.zero_name(),
        compact(top)
    );
    let x = Scale::x(&format!("time since {}", axis.zero_name()), from, to, seconds);
    let mut chart =
        Chart::new(id, title, &text, x, Scale::y("per second", 0.0, top, |value, _| compact(value)));
    for (answer, low, high) in &bands {
        chart.band(&format!("c-{}", answer.name()), &edges, low, high);
    }
    let (last_edge, mut sent_line) =
        (edges.last().copied(), edges.iter().copied().zip(sent).collect::<Vec<_>>());
    sent_line.extend(last_edge.zip(sent_line.last().map(|(_, height)| *height)));
    chart.steps("c-sent thin", sent_line);
    if axis.has_opening {
        chart.mark(0.0, "the opening");
    }
    hints(&mut chart, series, &edges, &present);
    let mut legend = vec![Key::new(Shape::Line, "c-sent thin", "due")];
    legend.extend(present.iter().map(|(answer, bins)| {
        let of_kind = number(bins.iter().sum());
        let text = format!("{} · {of_kind}", answer.meaning());
        Key::new(Shape::Block, format!("c-{}", answer.name()), text)
    }));
    let caption = format!(
        "Each step is {bin} wide. The areas are answers when they were heard; the line is what was due. The numbers beside the colours count answers."
    );
    Picture { title: title.into(), legend, svg: chart.finish(), caption }
}

fn hints(chart: &mut Chart, series: &Series, edges: &[f64], present: &[(Answer, &Vec<u64>)]) {
    let width = float(series.width_us) / 1e6;
    for (bin, (edge, sent)) in edges.windows(2).zip(&series.sent).enumerate() {
        let here = |(answer, bins): &(Answer, &Vec<u64>)| {
            let count = bins.get(bin).copied().filter(|count| *count > 0)?;
            Some(format!("{}: {}", answer.meaning(), number(count)))
        };
        let answers: Vec<String> = present.iter().filter_map(here).collect();
        let (Some(from), Some(to)) = (edge.first(), edge.last()) else { continue };
        if answers.is_empty() && *sent == 0 {
            continue;
        }
        let text = format!(
            "{} to {}\ndue: {}\n{}",
            seconds(*from, width),
            seconds(*to, width),
            number(*sent),
            answers.join("\n")
        );
        chart.hint(*from, *to, &text);
    }
}

fn latency(digest: &Digest) -> Picture {
    let title = "Latency, from click to answer";
    let kinds: Vec<(Kind, &Latency)> = digest
        .latency_us
        .iter()
        .filter(|(_, latency)| latency.count > 0)
        .map(|(kind, latency)| (*kind, latency))
        .collect();
    let values = || {
        kinds.iter().flat_map(|(_, latency)| {
            latency.curve.iter().map(|(_, _, us)| float(*us)).chain([float(latency.max)])
        })
    };
    let (least, most) = (values().fold(1e9, f64::min), values().fold(10.0, f64::max));
    let deepest = kinds
        .iter()
        .flat_map(|(_, latency)| latency.curve.last())
        .map(|(parts, whole, _)| nines(*parts, *whole));
    let deepest = deepest.fold(2.0, f64::max) + 0.15;
    let sentences: Vec<String> = kinds.iter().map(|(kind, latency)| sentence(kind.name(), latency)).collect();
    let text = sentences.join(" ");
    let ticks = [
        (1, 2, "50 %"),
        (9, 10, "90 %"),
        (99, 100, "99 %"),
        (999, 1_000, "99.9 %"),
        (9_999, 10_000, "99.99 %"),
        (99_999, 100_000, "99.999 %"),
    ];
    let ticks = ticks.into_iter().map(|(parts, whole, name)| (nines(parts, whole), name.to_owned()));
    let ticks = ticks.filter(|(at, _)| *at <= deepest).collect();
    let x = Scale::with_ticks("share of calls answered within", 0.0, deepest, ticks);
    let y = Scale::log("time (logarithmic)", least.clamp(1.0, most), most, axis_duration);
    let mut chart = Chart::new("latency", title, &text, x, y);
    for (kind, latency) in &kinds {
        let class = format!("c-{} k-{}", kind_colour(*kind), kind.name());
        let curve = latency.curve.iter().map(|(parts, whole, us)| (nines(*parts, *whole), float(*us)));
        chart.line(&class, curve);
        for (parts, whole, us, name) in [
            (1, 2, latency.p50, "50 %"),
            (9, 10, latency.p90, "90 %"),
            (99, 100, latency.p99, "99 %"),
            (999, 1_000, latency.p999, "99.9 %"),
        ] {
            if latency.count.saturating_mul(whole - parts) >= whole {
                let text = format!("{}: {name} within {}", kind.name(), duration_us(us));
                chart.dot(&format!("c-{}", kind_colour(*kind)), nines(parts, whole), float(us), &text);
            }
        }
    }
    let legend = kinds.iter().map(|(kind, latency)| {
        let text = format!(
            "{} · p50 {} · p99 {}",
            kind.meaning(),
            duration_us(latency.p50),
            duration_us(latency.p99)
        );
        Key::new(Shape::Line, format!("c-{} k-{}", kind_colour(*kind), kind.name()), text)
    });
    let caption = "Further right is the unlucky few. The time counts from the buyer’s click, waiting for a late pass or a free connection included. Following waits by design: the answer comes when there is news.";
    Picture { title: title.into(), legend: legend.collect(), svg: chart.finish(), caption: caption.into() }
}

const fn kind_colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Page => "page",
        Kind::Pass => "pass",
        Kind::Order => "granted",
        Kind::Follow => "follow",
    }
}

/// Where a percentile stands: 0 % at 0, 90 % at 1, 99 % at 2.
fn nines(parts: u64, whole: u64) -> f64 {
    -(float(whole.saturating_sub(parts).max(1)) / float(whole.max(1))).log10()
}

fn sentence(name: &str, latency: &Latency) -> String {
    format!(
        "{name}: half within {}, 99 % within {}, the slowest {}.",
        duration_us(latency.p50),
        duration_us(latency.p99),
        duration_us(latency.max)
    )
}

fn click_to_final(digest: &Digest) -> Picture {
    let title = "From click to final answer";
    let times = &digest.click_to_final;
    let groups = [
        ("granted", "won: the order is recorded", &times.won_us),
        ("sold_out k-pass", "went home: a final refusal", &times.refused_us),
    ];
    let groups: Vec<_> = groups.into_iter().filter(|(_, _, latency)| latency.count > 0).collect();
    let least = groups
        .iter()
        .filter_map(|(_, _, latency)| latency.curve.first())
        .map(|(_, _, us)| float(*us))
        .fold(1e9, f64::min);
    let most = groups.iter().map(|(_, _, latency)| float(latency.max)).fold(10.0, f64::max);
    let sentences: Vec<String> = groups.iter().map(|(_, name, latency)| sentence(name, latency)).collect();
    let x = Scale::log("time (logarithmic)", least.clamp(1.0, most), most, axis_duration);
    let y = Scale::y("share of buyers who know by then", 0.0, PERCENT, |value, _| format!("{value:.0} %"));
    let mut chart = Chart::new("click", title, &sentences.join(" "), x, y);
    for (class, _, latency) in &groups {
        let curve = latency
            .curve
            .iter()
            .map(|(parts, whole, us)| (float(*us), float(*parts) * PERCENT / float(*whole)));
        chart.line(&format!("c-{class}"), curve.chain([(float(latency.max), PERCENT)]));
        for (name, us, height) in [("half", latency.p50, 50.0), ("99 %", latency.p99, 99.0)] {
            chart.dot(
                &format!("c-{class}"),
                float(us),
                height,
                &format!("{name} within {}", duration_us(us)),
            );
        }
    }
    let legend = groups.iter().map(|(class, name, latency)| {
        let text =
            format!("{name} · {} · half within {}", count(latency.count, "buyer"), duration_us(latency.p50));
        Key::new(Shape::Line, format!("c-{class}"), text)
    });
    let unanswered = match times.unanswered {
        0 => "Everybody who clicked learned how it ended.".to_owned(),
        some => {
            format!("{} clicked and did not stay for, or never got, a final answer.", count(some, "buyer"))
        }
    };
    let caption = format!("Counted from a buyer’s first try that did not come too early. {unanswered}");
    Picture { title: title.into(), legend: legend.collect(), svg: chart.finish(), caption }
}

fn stock(digest: &Digest) -> Picture {
    let is_known = digest.stock.iter().all(|burn| burn.stock.is_some());
    let title = if is_known { "Units left" } else { "Units taken" };
    let mut burns: Vec<&Burn> = digest.stock.iter().collect();
    burns.sort_by_key(|burn| std::cmp::Reverse(burn.held));
    burns.truncate(OFFERS_MAX);
    let view = StockView::of(&burns, digest.axis);
    let heights = || {
        burns
            .iter()
            .flat_map(|burn| burn.told.iter().chain(&burn.sampled).map(|(_, left)| view.height(burn, *left)))
    };
    let (least, most) = (heights().fold(0.0, f64::min), heights().fold(1.0, f64::max));
    let sentences: Vec<String> = burns.iter().map(|burn| sold_out_sentence(burn, digest.axis)).collect();
    let x = Scale::x(&format!("time since {}", digest.axis.zero_name()), view.from, view.to, seconds);
    let (label, unit) = if view.relative { ("share of the stock", " %") } else { ("units", "") };
    let y = Scale::y(label, least, most, |value, _| format!("{}{unit}", compact(value)));
    let mut chart = Chart::new("stock", title, &sentences.join(" "), x, y);
    let mut legend = Vec::new();
    for (position, burn) in burns.iter().enumerate() {
        view.draw(&mut chart, burn, position);
        let units = burn.stock.map(|stock| format!(" · {}", count(u64::from(stock), "unit")));
        let text = format!("{}{}", cut(&burn.name, 40), units.unwrap_or_default());
        legend.push(Key::new(Shape::Line, format!("c-offer{position} k-offer{position}"), text));
    }
    if burns.iter().any(|burn| !burn.sampled.is_empty()) {
        legend.push(Key::new(Shape::Ring, "ring", "free by the operator’s stats"));
    }
    Picture { title: title.into(), legend, svg: chart.finish(), caption: stock_caption(digest, &sentences) }
}

/// What of the stock is shown. Units that come back later are told of in words; the picture is of how they went.
struct StockView {
    axis: Axis,
    from: f64,
    to: f64,
    /// Offers of different size share one picture by their share, a single one shows its units.
    relative: bool,
}

impl StockView {
    fn of(burns: &[&Burn], axis: Axis) -> Self {
        let gone_us = burns.iter().filter_map(|burn| burn.sold_out_us.or_else(|| burn.last_taken_us())).max();
        let until = gone_us.map_or(axis.seconds(axis.last_us), |us| axis.seconds(us)).max(0.0);
        let room = (until * 0.3).max(0.001);
        let relative = burns.len() > 1 && burns.iter().all(|burn| burn.stock.is_some());
        Self { axis, from: -room / 2.0, to: until + room, relative }
    }

    fn height(&self, burn: &Burn, left: i64) -> f64 {
        let left = float_signed(left);
        match burn.stock {
            Some(stock) if self.relative => left * PERCENT / f64::from(stock.max(1)),
            Some(_) => left,
            // No "-0".
            None => 0.0 - left,
        }
    }

    fn draw(&self, chart: &mut Chart, burn: &Burn, position: usize) {
        let at = |(us, left): &(u64, i64)| (self.axis.seconds(*us), self.height(burn, *left));
        let mut told: Vec<(f64, f64)> = burn.told.iter().map(at).filter(|(at, _)| *at <= self.to).collect();
        told.extend(told.last().map(|(_, height)| (self.to, *height)));
        chart.steps(&format!("c-offer{position} k-offer{position}"), told);
        let inside = |sample: &&(u64, i64)| (self.from..=self.to).contains(&at(sample).0);
        for sample in burn.sampled.iter().filter(inside) {
            let (after, height) = at(sample);
            let free = count(sample.1.unsigned_abs(), "unit");
            let text = format!(
                "operator’s stats, {} after {}: {free} free",
                seconds(after, 0.001),
                self.axis.zero_name()
            );
            chart.dot(&format!("ring s-offer{position}"), after, height, &text);
        }
    }
}

fn stock_caption(digest: &Digest, sentences: &[String]) -> String {
    let mut caption = match (digest.stock.as_slice(), sentences) {
        ([], _) => "The sale has no offers.".to_owned(),
        ([_], [one]) => one.clone(),
        (burns, _) if burns.iter().any(|burn| burn.stock.is_none()) => UNKNOWN_STOCK.to_owned(),
        (burns, _) => {
            let sold_out = length(burns.iter().filter(|burn| burn.sold_out_us.is_some()).count());
            format!("{} of {} sold out.", number(sold_out), count(length(burns.len()), "offer"))
        }
    };
    let returned: u64 = digest.stock.iter().map(|burn| burn.returned).sum();
    if returned > 0 {
        caption = format!("{caption} {} came back later.", count(returned, "unit"));
    }
    if digest.stock.len() > OFFERS_MAX {
        let left_out = count(length(digest.stock.len() - OFFERS_MAX), "offer");
        caption = format!("{caption} {left_out} not drawn.");
    }
    format!("{caption} The line is what the buyers were told.")
}

pub(super) fn sold_out_sentence(burn: &Burn, axis: Axis) -> String {
    let Some(stock) = burn.stock else { return UNKNOWN_STOCK.to_owned() };
    match burn.sold_out_us {
        Some(us) => format!(
            "The last unit was promised {} after {}.",
            duration_us(us.saturating_sub(axis.zero_us)),
            axis.zero_name()
        ),
        None => format!(
            "It did not sell out: {} of {} were taken.",
            number(burn.held.max(0).unsigned_abs()),
            count(u64::from(stock), "unit")
        ),
    }
}

fn fairness(digest: &Digest, title: &str) -> Picture {
    let fairness = &digest.fairness;
    let parts = &fairness.deciles;
    // Not in the middle of their bars, where they would stick out of the picture.
    let ticks = [(1.0, "first 10 %"), (9.0, "last 10 %")].map(|(at, name)| (at, name.to_owned())).into();
    let x = Scale::with_ticks("place in line", 0.0, 10.0, ticks);
    let chart = rates("fairness", title, &fairness.sentence(), x, parts, fairness.chance());
    let caption = format!(
        "{} The line is made by the moment of a buyer’s first try that did not come too early; {}.",
        fairness.sentence(),
        count(fairness.in_line, "buyer")
    );
    Picture { title: title.into(), legend: fairness_legend(fairness.chance()), svg: chart, caption }
}

fn front(digest: &Digest) -> Picture {
    let fairness = &digest.fairness;
    let title = "Fairness at the front of the line";
    let bins = float(length(fairness.front.len()));
    let stocks = (0_u8..=5).map(f64::from).filter(|stock| stock * 10.0 <= bins);
    let ticks = stocks
        .map(|stock| (stock * 10.0, if stock == 0.0 { "0".into() } else { format!("{stock}× stock") }))
        .collect();
    let x = Scale::with_ticks("place in line", 0.0, bins, ticks);
    let inside: u64 = fairness.front.iter().map(|part| part.winners).sum();
    let text = format!(
        "The first {} in line, a bar per tenth of the stock.",
        count(fairness.front.iter().map(|part| part.buyers).sum(), "buyer")
    );
    let chart = rates("front", title, &text, x, &fairness.front, fairness.chance());
    let caption = format!(
        "{text} {} of {} are in this picture. In strict order the bars would be full up to 1× stock and empty after it.",
        number(inside),
        count(fairness.winners, "winner")
    );
    Picture { title: title.into(), legend: fairness_legend(fairness.chance()), svg: chart, caption }
}

fn rates(id: &str, title: &str, text: &str, x: Scale, parts: &[Part], chance: f64) -> String {
    let top =
        parts.iter().flat_map(|part| [part.rate(), part.strict_rate()]).fold(chance, f64::max).max(0.01);
    let y = Scale::y("win rate", 0.0, top * PERCENT, |value, _| format!("{} %", compact(value)));
    let mut chart = Chart::new(id, title, text, x, y);
    for (position, part) in (0_u32..).zip(parts) {
        let from = f64::from(position);
        let text = format!(
            "{} of {} won: {}. In strict order: {}.",
            number(part.winners),
            count(part.buyers, "buyer"),
            percent(part.rate()),
            percent(part.strict_rate())
        );
        chart.bar("c-granted", from, from + 1.0, part.rate() * PERCENT, &text);
    }
    let strict =
        (0_u32..).zip(parts).map(|(position, part)| (f64::from(position), part.strict_rate() * PERCENT));
    let end = parts.last().map(|part| (float(length(parts.len())), part.strict_rate() * PERCENT));
    chart.steps("c-ink", strict.chain(end));
    chart.line("c-ink dashed", [(0.0, chance * PERCENT), (float(length(parts.len())), chance * PERCENT)]);
    chart.finish()
}

fn fairness_legend(chance: f64) -> Vec<Key> {
    vec![
        Key::new(Shape::Block, "c-granted", "won"),
        Key::new(Shape::Line, "c-ink", "expected in strict order"),
        Key::new(Shape::Line, "c-ink dashed", format!("expected in a raffle · {}", percent(chance))),
    ]
}

/// A tick of a time axis, `value` and `step` in seconds.
fn seconds(value: f64, step: f64) -> String {
    // No "-0 s".
    let value = if value.abs() < step / 1e3 { 0.0 } else { value };
    if step < 0.0099 {
        let decimals = if step < 0.00099 { 1 } else { 0 };
        return format!("{:.decimals$} ms", value * 1e3);
    }
    let decimals = if step < 0.099 { 2 } else { usize::from(step < 0.99) };
    format!("{value:.decimals$} s")
}

/// A tick of a logarithmic axis: a power of ten, in microseconds.
fn axis_duration(us: f64) -> String {
    let (value, unit) = match us {
        ..900.0 => (us, "µs"),
        ..900e3 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    if value < 1.0 { format!("{} {unit}", three_digits(value)) } else { format!("{value:.0} {unit}") }
}
