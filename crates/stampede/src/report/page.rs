//! The page: what stands where, and in which words. Every text from outside goes through `escape`; the page asks for
//! nothing outside itself and holds no script (its policy forbids both).

use super::calls::{Answer, Kind};
use super::digest::{Digest, Latency, Role};
use super::pictures::{self, Key, Picture, Shape};
use super::words::{
    count, cut, duration_us, escape, float, length, moment, noun, number, push, share, three_digits,
    with_code,
};
use super::{Input, Verdict};
use crate::crowd::IN_TIME_PERCENT_MIN;
use crate::rehearsal::{self, Rehearsal};
use crate::words::capital;

/// Findings that are written out; the JSON has all.
const FINDINGS_MAX: usize = 50;
/// Offers that have a row of their own; the JSON has all.
const OFFERS_MAX: usize = 20;
/// Longer names and sentences from outside are cut, in characters.
const TEXT_MAX: usize = 400;
/// A reason of a loss, in characters.
const REASON_MAX: usize = 60;
/// Kinds of buyers that get a sentence.
const ROLES_MAX: usize = 4;
/// Of a scenario's text, in characters.
const SCENARIO_MAX: usize = 20_000;

const STYLE: &str = include_str!("style.css");

pub(super) fn render(input: &Input<'_>, digest: &Digest) -> String {
    let mut out = String::with_capacity(1 << 18);
    head(&mut out, input);
    if let Some(said) = input.rehearsal {
        rehearsal(&mut out, said);
    }
    verdict(&mut out, input);
    numbers(&mut out, input, digest);
    funnel(&mut out, digest);
    out.push_str("<h2>Pictures</h2>\n<div class=\"pictures\">");
    for picture in pictures::all(digest) {
        figure(&mut out, &picture);
    }
    out.push_str("</div>\n");
    who(&mut out, input, digest);
    answers(&mut out, digest);
    trust(&mut out, input);
    out.push_str("<footer class=\"small soft\">Made by stampede. Times are counted by the crowd’s own clock; it knows the server only by its public API.</footer>\n</body></html>\n");
    out
}

fn head(out: &mut String, input: &Input<'_>) {
    let (sale, scenario) = (escape(&cut(input.sale, TEXT_MAX)), escape(&cut(input.scenario.name, TEXT_MAX)));
    push(
        out,
        format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\"/>\
         <title>{sale} · {scenario} · stampede</title>\n<style>\n{STYLE}</style></head>\n<body>\n"
        ),
    );
    push(
        out,
        format_args!(
            "<header><div><h1>{sale}</h1><p class=\"small soft\">Scenario {scenario}, {} against {}. Started {}, opened {}, took {}.</p></div>\
         <fieldset class=\"theme\"><legend>Colours</legend>\
         <label><input type=\"radio\" name=\"theme\" id=\"theme-auto\" checked=\"checked\"/>Auto</label>\
         <label><input type=\"radio\" name=\"theme\" id=\"theme-light\"/>Light</label>\
         <label><input type=\"radio\" name=\"theme\" id=\"theme-dark\"/>Dark</label></fieldset></header>\n",
            count(u64::from(input.buyers), "buyer"),
            escape(&cut(input.url, TEXT_MAX)),
            moment(input.started_at),
            moment(input.opened_at),
            duration_us(crate::clock::micros(input.elapsed)),
        ),
    );
}

const GOOD: &str = "<circle cx=\"22\" cy=\"22\" r=\"19\"/><path d=\"M13 23l6 6 12-13\"/>";
const BAD: &str = "<circle cx=\"22\" cy=\"22\" r=\"19\"/><path d=\"M15 15l14 14M29 15l-14 14\"/>";
const OPEN: &str = "<circle cx=\"22\" cy=\"22\" r=\"19\"/><path d=\"M14 22h16\"/>";

/// What a rehearsal was run for comes first: its answer, why, and what to change.
fn rehearsal(out: &mut String, said: &Rehearsal) {
    let (class, sign) = match said.answer {
        rehearsal::Answer::Holds => ("clean", GOOD),
        rehearsal::Answer::DoesNotHold => ("broken", BAD),
        rehearsal::Answer::CannotTell => ("open", OPEN),
    };
    let (first, rest) =
        said.sentences.split_first().map_or(("", [].as_slice()), |(first, rest)| (first, rest));
    let (answer, more) = first.split_once(": ").unwrap_or((first, ""));
    verdict_card(
        out,
        class,
        sign,
        "Rehearsal",
        (&format!("{}.", answer.trim_end_matches('.')), &capital(more)),
    );
    list(out, "", rest.iter(), 0);
    out.push_str("<h3>What to change</h3>");
    list(out, "", said.changes.iter(), 0);
    out.push_str("</section>\n");
}

/// Opens it; what else is to be said goes into it.
fn verdict_card(out: &mut String, class: &str, sign: &str, label: &str, (sentence, more): (&str, &str)) {
    push(
        out,
        format_args!(
            "<section class=\"card verdict {class}\" aria-label=\"{label}\"><svg class=\"sign\" viewBox=\"0 0 44 44\" aria-hidden=\"true\">{sign}</svg>\
         <h2>{}</h2><p class=\"soft\">{}</p>",
            escape(sentence),
            escape(more)
        ),
    );
}

fn verdict(out: &mut String, input: &Input<'_>) {
    let told = count(length(input.histories.len()), "buyer");
    let (class, sign, sentence, more) = match input.verdict {
        // Nothing was promised, so nothing was kept.
        Verdict::Judged([]) if input.histories.is_empty() => (
            "open",
            OPEN,
            "Not judged: nobody came.".to_owned(),
            "A run without buyers proves nothing.".to_owned(),
        ),
        Verdict::Judged([]) => {
            let more = "No unit was promised twice, no order was lost, nobody was left without an end.";
            ("clean", GOOD, format!("Clean: every promise to {told} was kept."), more.to_owned())
        }
        Verdict::Judged(findings) => {
            let broken = if findings.len() == 1 {
                "is 1 violation".into()
            } else {
                format!("are {}", count(length(findings.len()), "violation"))
            };
            (
                "broken",
                BAD,
                format!("Not clean: there {broken}."),
                format!(
                    "Found by comparing what {told} were told with each other and with the operator’s stats."
                ),
            )
        }
        Verdict::NotJudged(why) => {
            let why = cut(why.trim_end_matches('.'), TEXT_MAX);
            ("open", OPEN, "Not judged.".to_owned(), format!("Nobody can say whether it was clean: {why}."))
        }
    };
    verdict_card(out, class, sign, "Verdict", (&sentence, &more));
    if let Verdict::Judged(findings @ [_, ..]) = input.verdict {
        list(out, "", findings.iter().take(FINDINGS_MAX), findings.len().saturating_sub(FINDINGS_MAX));
    }
    out.push_str("</section>\n");
    if !input.notes.is_empty() {
        list(
            out,
            "card notes",
            input.notes.iter().take(FINDINGS_MAX),
            input.notes.len().saturating_sub(FINDINGS_MAX),
        );
    }
}

fn list<'a>(out: &mut String, class: &str, sentences: impl Iterator<Item = &'a String>, left_out: usize) {
    push(out, format_args!("<ul class=\"{class}\">"));
    for sentence in sentences {
        push(out, format_args!("<li>{}</li>", with_code(&cut(sentence, TEXT_MAX))));
    }
    if left_out > 0 {
        push(out, format_args!("<li>{} more; the JSON report has all.</li>", number(length(left_out))));
    }
    out.push_str("</ul>\n");
}

/// One large number. Its value is a number and a unit.
fn tile(out: &mut String, name: &str, value: &str, unit: &str, note: &str, wrong: bool) {
    let class = if wrong { "card wrong" } else { "card" };
    push(
        out,
        format_args!(
            "<div class=\"{class}\"><dt>{}</dt><dd class=\"value\">{} <span>{}</span></dd><dd class=\"note\">{}</dd></div>",
            escape(name),
            escape(value),
            escape(unit),
            escape(note)
        ),
    );
}

/// A duration as number and unit.
fn halves(us: Option<u64>) -> (String, String) {
    let text = us.map_or_else(|| "–".into(), duration_us);
    text.split_once('\u{a0}')
        .map_or((text.clone(), String::new()), |(value, unit)| (value.into(), unit.into()))
}

fn numbers(out: &mut String, input: &Input<'_>, digest: &Digest) {
    let funnel = &digest.funnel;
    out.push_str("<dl class=\"numbers\">");
    let arrived = format!("{} of those asked for", share(funnel.arrived, u64::from(input.buyers)));
    tile(out, "Buyers who came", &number(funnel.arrived), &noun(funnel.arrived, "buyer"), &arrived, false);
    sold(out, digest);
    let tries = format!("{} per buyer who tried", per(funnel.tries, funnel.tried));
    tile(out, "Tries", &number(funnel.tries), &noun(funnel.tries, "try"), &tries, false);
    let peak = digest.series.peak_per_s;
    tile(
        out,
        "Busiest second",
        &number(peak),
        "answers/s",
        "answers of all kinds, heard by the crowd",
        false,
    );
    let order = digest.latency(Kind::Order);
    let (value, unit) = halves(order.map(|latency| latency.p99));
    tile(out, "Order answered, p99", &value, &unit, &spread(order), false);
    let refused = Some(&digest.click_to_final.refused_us).filter(|latency| latency.count > 0);
    let won = Some(&digest.click_to_final.won_us).filter(|latency| latency.count > 0);
    let (value, unit) = halves(won.map(|latency| latency.p99));
    let note = refused
        .map_or_else(String::new, |latency| format!("the others knew after {}", duration_us(latency.p99)));
    tile(out, "Winners knew, p99", &value, &unit, &note, false);
    let fairness = &digest.fairness;
    let in_order = share(fairness.winners_in_order, fairness.winners);
    let (value, unit) = in_order.split_once('\u{a0}').unwrap_or((&in_order, ""));
    tile(out, "Served in order", value, unit, "winners who would have won in strict order", false);
    let failed = digest.answered(Answer::Failed);
    let all: u64 = digest.answers.iter().map(|row| row.count).sum();
    tile(
        out,
        "Failed or no answer",
        &number(failed),
        &noun(failed, "call"),
        &format!("of {}", count(all, "call")),
        failed > 0,
    );
    out.push_str("</dl>\n");
}

fn sold(out: &mut String, digest: &Digest) {
    let stock: Option<u64> = digest.stock.iter().map(|burn| burn.stock.map(u64::from)).sum();
    let held: i64 = digest.stock.iter().map(|burn| burn.held).sum();
    let held = held.max(0).unsigned_abs();
    let Some(stock) = stock else {
        let note = "of a stock that only the operator knows";
        return tile(out, "Held or sold in the end", &number(held), &noun(held, "unit"), note, false);
    };
    let sold_out = digest.stock.iter().filter(|burn| burn.sold_out_us.is_some());
    let last_us = sold_out.clone().filter_map(|burn| burn.sold_out_us).max();
    let note = match (digest.stock.len(), sold_out.count(), last_us) {
        (offers, sold_out, Some(us)) if offers == sold_out => {
            format!(
                "sold out {} after {}",
                duration_us(us.saturating_sub(digest.axis.zero_us)),
                digest.axis.zero_name()
            )
        }
        (offers, sold_out, _) => {
            format!("{} of {} sold out", number(length(sold_out)), count(length(offers), "offer"))
        }
    };
    let unit = format!("of {}", count(stock, "unit"));
    tile(out, "Held or sold in the end", &number(held), &unit, &note, held > stock);
}

fn spread(latency: Option<&Latency>) -> String {
    latency.map_or_else(
        || "nobody was answered".into(),
        |latency| {
            format!("half within {}, the slowest {}", duration_us(latency.p50), duration_us(latency.max))
        },
    )
}

fn per(amount: u64, whole: u64) -> String {
    if whole == 0 { "–".into() } else { three_digits(float(amount) / float(whole)) }
}

fn funnel(out: &mut String, digest: &Digest) {
    let funnel = &digest.funnel;
    let [no_pass, no_try, no_grant, no_record, no_payment] = &funnel.losses;
    let tried = format!("{} sent. ", count(funnel.tries, "try"));
    out.push_str("<h2>How far they came</h2>\n<section class=\"card funnel\">");
    out.push_str(
        "<ol aria-label=\"The crowd\"><li class=\"scale\">Buyers. A full bar is all who arrived</li>",
    );
    stage(out, ("arrived", ""), funnel.arrived, funnel.arrived, "", no_pass);
    stage(out, ("passes", ""), funnel.passes, funnel.arrived, "", no_try);
    stage(out, ("tried", ""), funnel.tried, funnel.arrived, &tried, no_grant);
    out.push_str(
        "</ol><ol aria-label=\"The winners\"><li class=\"scale\">Buyers. A full bar is all who were granted a unit</li>",
    );
    stage(out, ("granted", ""), funnel.granted, funnel.granted, "", no_record);
    stage(out, ("recorded", ""), funnel.recorded, funnel.granted, "", no_payment);
    stage(out, ("paid", "paid"), funnel.paid, funnel.granted, "", &[]);
    out.push_str("</ol></section>\n");
}

fn stage(
    out: &mut String,
    (name, class): (&str, &str),
    buyers: u64,
    full: u64,
    more: &str,
    lost: &[(String, u64)],
) {
    // A sliver would look like somebody.
    let fill = match buyers {
        0 => String::new(),
        _ => format!(
            "<span class=\"fill\" style=\"width:{:.2}%\"></span>",
            float(buyers) * 100.0 / float(full.max(buyers))
        ),
    };
    let total: u64 = lost.iter().map(|(_, count)| count).sum();
    let reasons: Vec<String> = match lost {
        [(why, _)] => vec![cut(why, REASON_MAX)],
        lost => {
            lost.iter().map(|(why, count)| format!("{} {}", cut(why, REASON_MAX), number(*count))).collect()
        }
    };
    let loss = match total {
        0 => more.trim_end().to_owned(),
        _ => format!("{more}Then lost: {} ({})", count(total, "buyer"), reasons.join(", ")),
    };
    push(
        out,
        format_args!(
            "<li class=\"{class}\"><span>{name}</span><span class=\"track\" aria-hidden=\"true\">{fill}</span>\
         <b>{}</b><span class=\"loss\">{}</span></li>",
            number(buyers),
            escape(&loss)
        ),
    );
}

fn figure(out: &mut String, picture: &Picture) {
    push(
        out,
        format_args!("<figure class=\"card\"><h3>{}</h3><ul class=\"legend\">", escape(&picture.title)),
    );
    for key in &picture.legend {
        push(out, format_args!("<li>{}<span>{}</span></li>", swatch(key), escape(&key.text)));
    }
    push(
        out,
        format_args!("</ul>{}<figcaption>{}</figcaption></figure>\n", picture.svg, escape(&picture.caption)),
    );
}

fn swatch(Key { shape, class, .. }: &Key) -> String {
    let shape = match shape {
        Shape::Block => format!("<rect class=\"{class}\" x=\"1\" width=\"16\" height=\"10\" rx=\"2\"/>"),
        Shape::Line => format!("<path class=\"line {class}\" d=\"M0 5H18\"/>"),
        Shape::Ring => format!("<circle class=\"{class}\" cx=\"9\" cy=\"5\" r=\"3.5\"/>"),
    };
    format!("<svg viewBox=\"0 0 18 10\" aria-hidden=\"true\">{shape}</svg>")
}

/// Offers and kinds of buyers.
fn who(out: &mut String, input: &Input<'_>, digest: &Digest) {
    out.push_str(
        "<h2>Offers and buyers</h2>\n<div class=\"two\"><section class=\"card scroll\"><h3>Offers, in units</h3>",
    );
    out.push_str("<table><thead><tr><th scope=\"col\">offer</th><th scope=\"col\" class=\"n\">stock</th><th scope=\"col\" class=\"n\">taken</th><th scope=\"col\" class=\"n\">sold out after</th></tr></thead><tbody>");
    for burn in digest.stock.iter().take(OFFERS_MAX) {
        let after = burn
            .sold_out_us
            .map_or_else(|| "–".into(), |us| duration_us(us.saturating_sub(digest.axis.zero_us)));
        push(
            out,
            format_args!(
                "<tr><td class=\"name\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{after}</td></tr>",
                escape(&cut(&burn.name, TEXT_MAX)),
                burn.stock.map_or_else(|| "–".into(), |stock| number(u64::from(stock))),
                number(burn.held.max(0).unsigned_abs())
            ),
        );
    }
    let left_out = digest.stock.len().saturating_sub(OFFERS_MAX);
    if left_out > 0 {
        push(
            out,
            format_args!(
                "<tr><td colspan=\"4\">{} more; the JSON report has all.</td></tr>",
                count(length(left_out), "offer")
            ),
        );
    }
    out.push_str("</tbody></table></section>\n<section class=\"card scroll\"><h3>Kinds of buyers</h3>");
    if digest.roles.is_empty() {
        push(
            out,
            format_args!(
                "<p class=\"small soft\">All {} were of one kind.</p></section></div>\n",
                count(length(input.histories.len()), "buyer")
            ),
        );
        return;
    }
    out.push_str("<table><thead><tr><th scope=\"col\">kind</th><th scope=\"col\" class=\"n\">buyers</th><th scope=\"col\" class=\"n\">tries</th><th scope=\"col\" class=\"n\">winners</th><th scope=\"col\" class=\"n\">win rate</th><th scope=\"col\" class=\"n wide\">paid</th></tr></thead><tbody>");
    for role in &digest.roles {
        push(
            out,
            format_args!(
                "<tr><td class=\"name\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n wide\">{}</td></tr>",
                escape(&cut(&role.name, TEXT_MAX)),
                number(role.buyers),
                number(role.tries),
                number(role.winners),
                share(role.winners, role.buyers),
                number(role.paid)
            ),
        );
    }
    out.push_str("</tbody></table>");
    let sentences: Vec<String> =
        digest.roles.iter().take(ROLES_MAX).map(|role| role_sentence(role, digest)).collect();
    push(out, format_args!("<p class=\"small soft\">{}</p></section></div>\n", escape(&sentences.join(" "))));
}

fn role_sentence(role: &Role, digest: &Digest) -> String {
    let winners: u64 = digest.roles.iter().map(|role| role.winners).sum();
    let buyers: u64 = digest.roles.iter().map(|role| role.buyers).sum();
    format!(
        "{}: {} of the buyers, {} of the tries, {} of the winners.",
        cut(&role.name, REASON_MAX),
        share(role.buyers, buyers),
        share(role.tries, digest.funnel.tries),
        share(role.winners, winners)
    )
}

fn answers(out: &mut String, digest: &Digest) {
    out.push_str("<h2>Answers by code</h2>\n<section class=\"card scroll\"><table><thead><tr><th scope=\"col\">call</th><th scope=\"col\">answer</th><th scope=\"col\" class=\"n\">status</th><th scope=\"col\" class=\"n\">calls</th><th scope=\"col\" class=\"n wide\">share of its kind</th><th scope=\"col\" class=\"n wide\">p50</th><th scope=\"col\" class=\"n\">p99</th></tr></thead><tbody>");
    for row in &digest.answers {
        let of_kind: u64 =
            digest.answers.iter().filter(|other| other.call == row.call).map(|other| other.count).sum();
        let time = |us: u64| if row.latency_us.count == 0 { "–".into() } else { duration_us(us) };
        let status = if row.status == 0 { "–".into() } else { row.status.to_string() };
        push(
            out,
            format_args!(
                "<tr><td>{}</td><td><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"c-{}\" width=\"10\" height=\"10\" rx=\"2\"/></svg><span class=\"name\">{}</span></td><td class=\"n\">{status}</td><td class=\"n\">{}</td><td class=\"n wide\">{}</td><td class=\"n wide\">{}</td><td class=\"n\">{}</td></tr>",
                row.call.name(),
                row.kind.name(),
                escape(&cut(&row.code.replace('_', " "), 80)),
                number(row.count),
                share(row.count, of_kind),
                time(row.latency_us.p50),
                time(row.latency_us.p99)
            ),
        );
    }
    out.push_str("</tbody></table></section>\n");
}

/// Whether the figures tell of the server, where it ran, and how to run it again.
fn trust(out: &mut String, input: &Input<'_>) {
    let generator = &input.generator;
    out.push_str("<h2>How far to trust it, and how to repeat it</h2>\n<div class=\"two\"><section class=\"card\"><h3>The crowd itself</h3><table class=\"facts\"><tbody>");
    fact(out, "tries planned", &count(generator.offered, "try"));
    fact(
        out,
        "tries in their time",
        &format!("{} ({})", count(generator.achieved, "try"), share(generator.achieved, generator.offered)),
    );
    let late = generator.lateness.map_or_else(
        || "nobody had a plan (closed loop)".into(),
        |late| {
            format!(
                "p50 {}, p99 {}, at most {}",
                duration_us(late.p50_us),
                duration_us(late.p99_us),
                duration_us(late.max_us)
            )
        },
    );
    fact(out, "late by", &late);
    let late_passes = match generator.late_passes {
        0 => "none".to_owned(),
        late => format!("{} waited for one when the click was due", count(late, "buyer")),
    };
    fact(out, "late passes", &late_passes);
    let cpu_us = crate::clock::micros(generator.cpu);
    fact(
        out,
        "its CPU time",
        &format!("{} for {}", duration_us(cpu_us), count(generator.requests, "request")),
    );
    let per_request = cpu_us.checked_div(generator.requests).map_or_else(|| "–".into(), duration_us);
    fact(out, "its CPU time per request", &per_request);
    let per_try = generator.cpu_us_per_try().map_or_else(|| "–".into(), duration_us);
    fact(out, "its CPU time per order POST, all else included but proofs of work", &per_try);
    out.push_str("</tbody></table>");
    push(
        out,
        format_args!(
            "<p class=\"{}\">{}</p>",
            if kept_up(input) { "small soft" } else { "small warning" },
            trust_sentence(input)
        ),
    );
    out.push_str("</section>\n<section class=\"card\"><h3>Conditions</h3><table class=\"facts\"><tbody>");
    fact(out, "cores", &count(length(input.conditions.cores), "core"));
    fact(out, "kernel", input.conditions.kernel);
    for (name, value) in input.conditions.more {
        fact(out, name, value);
    }
    out.push_str("</tbody></table></section></div>\n");
    push(
        out,
        format_args!(
            "<section class=\"card\" style=\"margin-top:16px\"><h3>The same again</h3><pre>{}</pre><h3>Scenario {}</h3><pre>{}</pre></section>\n",
            escape(&cut(&by_lines(input.command), SCENARIO_MAX)),
            escape(&cut(input.scenario.name, TEXT_MAX)),
            escape(&cut(input.scenario.text, SCENARIO_MAX))
        ),
    );
}

/// One option per line, as a shell takes it; left alone where a line break could stand inside quotes.
fn by_lines(command: &str) -> String {
    if command.contains(['\'', '"', '\\', '\n']) {
        command.to_owned()
    } else {
        command.replace(" --", " \\\n  --")
    }
}

fn kept_up(input: &Input<'_>) -> bool {
    are_enough(input, input.generator.achieved)
}

fn are_enough(input: &Input<'_>, tries: u64) -> bool {
    tries.saturating_mul(100) >= input.generator.offered.saturating_mul(IN_TIME_PERCENT_MIN)
}

fn trust_sentence(input: &Input<'_>) -> String {
    if kept_up(input) {
        "The crowd kept its own timetable, so the figures tell of the server.".into()
    } else if are_enough(input, input.generator.awake) {
        format!(
            "Fewer than {IN_TIME_PERCENT_MIN} % of the tries were sent in their time, because they waited for a free socket: the server was slow with the calls before, the crowd has too few sockets (--connections), or its machine had no processor to spare."
        )
    } else {
        format!(
            "Fewer than {IN_TIME_PERCENT_MIN} % of the tries were sent in their time: the crowd was the bottleneck, and the figures tell of it as much as of the server. Use fewer buyers, more time, or another machine."
        )
    }
}

fn fact(out: &mut String, name: &str, value: &str) {
    push(
        out,
        format_args!(
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
            escape(&cut(name, TEXT_MAX)),
            escape(&cut(value, TEXT_MAX))
        ),
    );
}
