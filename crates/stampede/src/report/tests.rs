//! The report of made-up runs: its sums, its shape, and what it does with hostile names.

use std::time::Duration;

use hdrhistogram::Histogram;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use rules::id::{OfferId, OrderId};
use rules::order::{Reason, State};
use rules::time::UnixMs;
use rules::wire::Code;

use super::calls::{Answer, Kind};
use super::digest::Digest;
use super::*;
use crate::history::{Call, Seen, Told, What};
use crate::rehearsal::{self, Rehearsal};

const STARTED_AT: UnixMs = UnixMs(1_796_126_370_000);
/// From the start to the opening.
const LEAD_US: u64 = 30_000_000;
const OPENED_AT: UnixMs = UnixMs(1_796_126_400_000);

/// A made-up run, from which an input borrows.
#[derive(Debug)]
struct Run {
    stocks: Vec<(OfferId, String, u32)>,
    knows_stock: bool,
    histories: Vec<History>,
    roles: Vec<&'static str>,
    stock: Vec<StockSample>,
    findings: Vec<String>,
    rehearsal: Option<Rehearsal>,
    notes: Vec<String>,
    more: Vec<(String, String)>,
    sale: String,
}

impl Run {
    fn of(histories: Vec<History>) -> Self {
        Self {
            stocks: vec![(OfferId(1), "Feitian 53, 500 ml".into(), 100)],
            knows_stock: true,
            histories,
            roles: Vec::new(),
            stock: Vec::new(),
            findings: Vec::new(),
            rehearsal: None,
            notes: Vec::new(),
            more: vec![
                ("server".into(), "doorbuster 0.1.0, SQLite ledger, on the same machine".into()),
                ("memory".into(), "7.8 GiB".into()),
                ("open files".into(), "1,048,576 at most".into()),
            ],
            sale: "1499 night".into(),
        }
    }

    fn with<T>(&self, look: impl FnOnce(&Input<'_>) -> T) -> T {
        let offer = |(id, name, stock): &'_ (OfferId, String, u32)| (*id, name.clone(), *stock);
        let stocks: Vec<_> = self.stocks.iter().map(offer).collect();
        let stock = |stock: &u32| self.knows_stock.then_some(*stock);
        let offers: Vec<_> =
            stocks.iter().map(|(id, name, units)| Offer { id: *id, name, stock: stock(units) }).collect();
        let last_us =
            self.histories.iter().flat_map(|history| &history.events).map(|told| told.told_us).max();
        let requests = self.histories.iter().map(|history| history.events.len() as u64).sum();
        let buyers = self.histories.len() as u64;
        look(&Input {
            scenario: Scenario { name: "spike", text: SCENARIO },
            url: "http://127.0.0.1:8080",
            sale: &self.sale,
            offers: &offers,
            started_at: STARTED_AT,
            opened_at: OPENED_AT,
            elapsed: Duration::from_micros(last_us.unwrap_or(0)),
            buyers: self.histories.len() as u32,
            histories: &self.histories,
            roles: &self.roles,
            stock: &self.stock,
            verdict: Verdict::Judged(&self.findings),
            rehearsal: self.rehearsal.as_ref(),
            notes: &self.notes,
            generator: Generator {
                lateness: Some(Percentiles {
                    count: buyers,
                    p50_us: 240,
                    p90_us: 900,
                    p99_us: 3_100,
                    max_us: 11_800,
                }),
                cpu: Duration::from_micros(requests * 31),
                requests,
                tries: requests / 4,
                solving: Duration::ZERO,
                offered: buyers,
                achieved: buyers - buyers / 1_000,
                awake: buyers,
                late_passes: 7,
            },
            conditions: Conditions { cores: 2, kernel: "Linux 6.1.0 x86_64", more: &self.more },
            command: "stampede run --url http://127.0.0.1:8080 --sale 01k9zq3v8g7m4x2r5w6t0n1pbc --scenario spike --buyers 20000 --within 10s --report out.html",
        })
    }

    fn html(&self) -> String {
        self.with(html)
    }

    fn digest(&self) -> Digest {
        self.with(Digest::of)
    }
}

const SCENARIO: &str = "# Everybody at once.\nname = \"spike\"\narrive = { within = \"25s\" }\nfinger_jitter = \"400ms\"\n\n[[buyers]]\nrole = \"human\"\nshare = 0.9\npays = 0.85\n\n[[buyers]]\nrole = \"bot\"\nshare = 0.1\nearly = \"300ms\"\nparallel = 4\n";

/// One made-up buyer in the making.
struct Script {
    history: History,
    order: OrderId,
    offer: OfferId,
    made_at: UnixMs,
}

impl Script {
    fn new(number: u64) -> Self {
        let history = History::new(format!("buyer-{number}"));
        let order = OrderId(u128::from(number) + 1);
        Self { history, order, offer: OfferId(1), made_at: OPENED_AT }
    }

    fn tell(&mut self, asked_us: u64, took_us: u64, what: What) {
        self.history.events.push(Told { asked_us, told_us: asked_us + took_us, what });
    }

    fn arrive(&mut self, at_us: u64, took_us: u64) {
        let closes_at = OPENED_AT.plus_s(3_600);
        self.tell(at_us, took_us, What::Window { opens_at: OPENED_AT, closes_at, wish: None });
        self.tell(at_us + took_us, took_us / 2, What::Offset { ms: 0 });
    }

    fn pass(&mut self, at_us: u64, took_us: u64) {
        let (offer, order, expires_at) = (self.offer, self.order, OPENED_AT.plus_s(300));
        self.tell(at_us, took_us, What::Pass { offer, order, expires_at });
    }

    fn seen(&self, state: State, seq: u32) -> Seen {
        let reason = (state == State::Closed).then_some(Reason::Timeout);
        Seen {
            id: self.order,
            offer: self.offer,
            quantity: 1,
            state,
            reason,
            seq,
            created_at: self.made_at,
            pay_by: None,
            closed_at: None,
        }
    }

    /// Made when it is told, to the millisecond.
    fn granted(&mut self, at_us: u64, took_us: u64) {
        self.made_at = STARTED_AT.plus_ms(((at_us + took_us).div_ceil(1_000)) as i64);
        let order = self.seen(State::Queued, 1);
        self.tell(at_us, took_us, What::Order { status: 202, pass: self.order, asked: 1, order });
    }

    fn look(&mut self, at_us: u64, took_us: u64, state: State, last: bool) {
        let found = Some(self.seen(state, if state == State::AwaitingPayment { 2 } else { 3 }));
        self.tell(at_us, took_us, What::Looked { id: self.order, found, last });
    }

    /// Five of seven pay, one pays too late, one not yet.
    fn wins(&mut self, number: u64, click_us: u64, answer_us: u64, took: &mut impl FnMut(f64) -> u64) {
        self.granted(click_us, answer_us);
        let (heard_us, recorded_us) = (click_us + answer_us, took(9_000.0));
        self.look(heard_us + 150, recorded_us, State::AwaitingPayment, false);
        let end = match number % 7 {
            0 => State::Closed,
            1 => State::AwaitingPayment,
            _ => State::Paid,
        };
        if end == State::Paid {
            self.look(heard_us + recorded_us, took(6_000_000.0), State::Paid, false);
        }
        self.look(LEAD_US + 60_000_000 + number, took(900.0), end, true);
    }

    fn refused(&mut self, call: Call, at_us: u64, took_us: u64, code: Code) {
        let (status, code) = (code.status(), code.as_str().to_owned());
        let (offer, pass) = (Some(self.offer), Some(self.order));
        self.tell(at_us, took_us, What::Refused { call, offer, status, code, pass, other: None });
    }
}

/// A night with humans and bots, all drawn from one seed: buyers arrive over 25 s, click when it opens, and are served
/// in the order in which their tries reach the server.
fn night(buyers: u64, stock: u32) -> Run {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut took = |middle_us: f64| {
        let dice: f64 = (0..4).map(|_| dice.random_range(-0.6..0.6_f64)).sum();
        (middle_us * dice.exp()) as u64
    };
    let mut plans: Vec<(u64, u64, bool)> = (0..buyers)
        .map(|number| {
            let bot = number % 10 == 3;
            let reaction = if bot { took(4_000.0) } else { 60_000 + took(140_000.0) };
            (number, LEAD_US + reaction, bot)
        })
        .collect();
    plans.sort_by_key(|(_, click_us, _)| *click_us);
    let queueing = |rank: u64| 1.0 + 6.0 * (rank as f64 / buyers.max(1) as f64 * 3.0).min(1.0);
    let mut reached: Vec<(u64, u64, u64, bool)> = (0..)
        .zip(plans)
        .map(|(rank, (number, click_us, bot))| (number, click_us, took(2_200.0 * queueing(rank)), bot))
        .collect();
    reached.sort_by_key(|(_, click_us, took_us, _)| click_us + took_us / 3);
    let mut run = Run::of(Vec::new());
    run.stocks[0].2 = stock;
    let mut made: Vec<(u64, &str, History)> = Vec::new();
    for (rank, (number, click_us, answer_us, bot)) in reached.into_iter().enumerate() {
        let mut buyer = Script::new(number);
        let arrive_us = number * 25_000_000 / buyers;
        buyer.arrive(arrive_us, took(1_100.0));
        if number % 250 == 17 {
            buyer.refused(Call::Pass, arrive_us + 40_000, took(900.0), Code::Blocked);
            let at_us = arrive_us + 50_000;
            buyer.tell(at_us, 0, What::GaveUp { why: "no pass: blocked".into() });
            made.push((number, "human", buyer.history));
            continue;
        }
        buyer.pass(arrive_us + 30_000, took(1_700.0));
        if bot {
            for early in 1..4 {
                buyer.refused(
                    Call::Try,
                    LEAD_US - early * 60_000 - number % 40_000,
                    took(1_500.0),
                    Code::NotOpen,
                );
            }
        }
        if rank < stock as usize {
            buyer.wins(number, click_us, answer_us, &mut took);
        } else if number % 900 == 5 {
            let why = "timeout".into();
            buyer.tell(click_us, 5_000_000, What::Broken { call: Call::Try, pass: Some(buyer.order), why });
            buyer.refused(Call::Try, click_us + 5_500_000, took(1_000.0), Code::SoldOut);
        } else if rank % 40 == 0 {
            buyer.refused(Call::Try, click_us, took(700.0), Code::Busy);
            buyer.refused(Call::Try, click_us + 520_000 + took(60_000.0), answer_us, Code::SoldOut);
        } else {
            buyer.refused(Call::Try, click_us, answer_us, Code::SoldOut);
            for again in 1..if bot { 5 } else { 1 } {
                let code = if again < 3 { Code::SoldOut } else { Code::TooFast };
                buyer.refused(Call::Try, click_us + again * 110_000, took(800.0), code);
            }
        }
        made.push((number, if bot { "bot" } else { "human" }, buyer.history));
    }
    made.sort_by_key(|(number, _, _)| *number);
    run.stock = samples(&made, stock);
    run.roles = made.iter().map(|(_, role, _)| *role).collect();
    run.histories = made.into_iter().map(|(_, _, history)| history).collect();
    run
}

/// What the operator would have seen, asked every 10 ms.
fn samples(made: &[(u64, &str, History)], stock: u32) -> Vec<StockSample> {
    let granted = made.iter().flat_map(|(_, _, history)| &history.events);
    let granted: Vec<u64> = granted
        .filter(|told| matches!(told.what, What::Order { .. }))
        .map(|told| told.told_us - 800)
        .collect();
    let sample = |at_us| {
        let gone = granted.iter().filter(|us| **us <= at_us).count() as u32;
        StockSample { at_us, offer: OfferId(1), free: stock - gone }
    };
    (0..9_000).map(|step| step * 10_000).map(sample).collect()
}

#[test]
fn every_call_is_counted_once_in_every_picture() {
    let run = night(2_000, 40);
    let digest = run.digest();
    let calls = run.histories.iter().flat_map(|history| &history.events);
    let calls = calls.filter(|told| !matches!(told.what, What::GaveUp { .. })).count() as u64;
    assert_eq!(digest.answers.iter().map(|row| row.count).sum::<u64>(), calls);
    assert_eq!(digest.series.sent.iter().sum::<u64>(), calls);
    for (answer, bins) in Answer::ALL.iter().zip(&digest.series.answers) {
        assert_eq!(bins.iter().sum::<u64>(), digest.answered(*answer), "{answer:?}");
    }
    let opening = digest.opening.expect("30 s of waiting need a close-up");
    let tries: u64 = [Answer::SoldOut, Answer::Granted]
        .map(|answer| opening.answers[answer.index()].iter().sum())
        .iter()
        .sum();
    let all: u64 = [Answer::SoldOut, Answer::Granted]
        .map(|answer| digest.series.answers[answer.index()].iter().sum())
        .iter()
        .sum();
    assert!(tries * 100 >= all * 95 && (60..=160).contains(&opening.bins()), "{tries} of {all}");
    assert!((60..=160).contains(&digest.series.bins()), "{}", digest.series.bins());
}

#[test]
fn the_opening_is_the_edge_of_a_bin() {
    let digest = night(500, 10).digest();
    for series in [Some(&digest.series), digest.opening.as_ref()].into_iter().flatten() {
        let before = digest.axis.zero_us as i64 - series.from_us;
        assert_eq!(before % series.width_us as i64, 0);
        assert!(series.edge_s(digest.axis, (before / series.width_us as i64) as usize).abs() < 1e-9);
    }
}

#[test]
fn the_busiest_second_is_found() {
    let buyer = |number: u64, at_us: u64| {
        let mut buyer = Script::new(number);
        buyer.arrive(at_us, 0);
        buyer.history
    };
    let crowd = (0..30).map(|number| buyer(number, LEAD_US + 2_000_000 + number * 33_000));
    let run = Run::of(crowd.chain([buyer(30, 0), buyer(31, LEAD_US + 3_000_000)]).collect());
    assert_eq!(run.digest().series.peak_per_s, 60);
}

#[test]
fn percentiles_are_those_of_the_histogram() {
    let run = night(2_000, 40);
    let digest = run.digest();
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 120_000_000, 3).unwrap();
    for told in run.histories.iter().flat_map(|history| &history.events) {
        let is_try = match &told.what {
            What::Order { .. } => true,
            What::Refused { call, .. } => *call == Call::Try,
            _ => false,
        };
        if is_try {
            histogram.record(told.told_us - told.asked_us).unwrap();
        }
    }
    let latency = digest.latency(Kind::Order).unwrap();
    assert_eq!(latency.count, histogram.len());
    for (ours, quantile) in
        [(latency.p50, 0.5), (latency.p90, 0.9), (latency.p99, 0.99), (latency.p999, 0.999)]
    {
        assert!(histogram.equivalent(ours, histogram.value_at_quantile(quantile)), "{quantile}: {ours}");
    }
    assert!(histogram.equivalent(latency.max, histogram.max()));
    for (parts, whole, us) in &latency.curve {
        let quantile = *parts as f64 / *whole as f64;
        assert!(histogram.equivalent(*us, histogram.value_at_quantile(quantile)), "{parts}/{whole}: {us}");
    }
}

#[test]
fn the_funnel_counts_buyers_and_names_losses() {
    let mut blocked = Script::new(1);
    blocked.arrive(0, 5);
    blocked.refused(Call::Pass, 10, 5, Code::Blocked);
    let mut walked_away = Script::new(2);
    walked_away.arrive(0, 5);
    walked_away.pass(10, 5);
    let mut late = Script::new(3);
    late.arrive(0, 5);
    late.pass(10, 5);
    late.refused(Call::Try, LEAD_US, 5, Code::Busy);
    late.refused(Call::Try, LEAD_US + 10, 5, Code::SoldOut);
    let mut unpaid = Script::new(4);
    unpaid.arrive(0, 5);
    unpaid.pass(10, 5);
    unpaid.granted(LEAD_US, 5);
    unpaid.look(LEAD_US + 5, 100, State::AwaitingPayment, false);
    unpaid.look(LEAD_US + 500, 100, State::Closed, true);
    let mut happy = Script::new(5);
    happy.arrive(0, 5);
    happy.pass(10, 5);
    happy.granted(LEAD_US, 5);
    happy.look(LEAD_US + 5, 200, State::Paid, false);
    // Who never came has no line in the history, and is not in the funnel.
    let nobody = Script::new(6);
    let scripts = [blocked, walked_away, late, unpaid, happy, nobody];
    let digest = Run::of(scripts.map(|script| script.history).into()).digest();
    let funnel = &digest.funnel;
    assert_eq!((funnel.arrived, funnel.passes, funnel.tried, funnel.tries), (5, 4, 3, 4));
    assert_eq!((funnel.granted, funnel.recorded, funnel.paid), (2, 2, 1));
    let losses = funnel
        .losses
        .each_ref()
        .map(|lost| lost.iter().map(|(why, count)| format!("{why} {count}")).collect::<Vec<_>>().join(","));
    assert_eq!(losses, ["blocked 1", "left without a word 1", "sold out 1", "", "not paid in time 1"]);
    let times = &digest.click_to_final;
    assert_eq!((times.won_us.count, times.won_us.p50, times.won_us.max), (2, 105, 205));
    assert_eq!((times.refused_us.count, times.refused_us.max, times.unanswered), (1, 15, 0));
    assert_eq!((digest.stock[0].held, digest.stock[0].sold_out_us), (1, None));
    let left: Vec<i64> = digest.stock[0].told.iter().map(|(_, left)| *left).collect();
    assert_eq!(left, [100, 98, 99]);
}

#[test]
fn an_early_click_is_a_try_but_no_place_in_line() {
    let mut bot = Script::new(1);
    bot.pass(10, 5);
    bot.refused(Call::Try, LEAD_US - 100, 5, Code::NotOpen);
    bot.refused(Call::Try, LEAD_US + 400, 5, Code::SoldOut);
    let mut earlier = Script::new(2);
    earlier.pass(10, 5);
    earlier.refused(Call::Try, LEAD_US - 100, 5, Code::NotOpen);
    let digest = Run::of(vec![bot.history, earlier.history]).digest();
    assert_eq!((digest.funnel.tried, digest.funnel.tries, digest.fairness.in_line), (2, 3, 1));
    assert_eq!(digest.click_to_final.refused_us.max, 5);
}

#[test]
fn the_stock_goes_down_by_the_answers_and_shows_an_oversale() {
    let mut run = night(300, 20);
    assert_eq!(run.digest().stock[0].told.iter().map(|(_, left)| *left).min(), Some(0));
    let sold_out = run.digest().stock[0].sold_out_us.unwrap();
    let grants = run.histories.iter().flat_map(|history| &history.events);
    let last = grants.filter(|told| matches!(told.what, What::Order { .. })).map(|told| told.told_us).max();
    assert_eq!(Some(sold_out), last);
    run.stocks[0].2 = 15;
    assert_eq!(run.digest().stock[0].told.iter().map(|(_, left)| *left).min(), Some(-5));
}

#[test]
fn a_unit_of_somebody_who_hung_up_is_gone_from_the_moment_it_was_taken() {
    let mut gone = Script::new(1);
    gone.arrive(10, 5);
    gone.tell(LEAD_US, 5, What::HungUp { pass: gone.order, bytes: 300 });
    gone.made_at = OPENED_AT.plus_ms(127);
    gone.look(LEAD_US + 11_700_000, 5, State::AwaitingPayment, true);
    let mut run = Run::of(vec![gone.history]);
    run.stocks[0].2 = 1;
    let burn = &run.digest().stock[0];
    assert_eq!(burn.sold_out_us, Some(LEAD_US + 127_000));
    assert_eq!(burn.told.last(), Some(&(LEAD_US + 127_000, 0)), "and so the line ends");
    assert!(run.html().contains("sold out 127\u{a0}ms after the opening"));
}

#[test]
fn a_unit_that_is_sold_again_before_its_giver_hears_of_it_is_no_oversale() {
    let (mut giver, mut next) = (Script::new(1), Script::new(2));
    giver.granted(LEAD_US, 5);
    next.granted(LEAD_US + 150, 50);
    let cancelled = What::Cancelled { order: giver.seen(State::Closed, 3) };
    giver.tell(LEAD_US + 100, 200, cancelled);
    let mut run = Run::of(vec![giver.history, next.history]);
    run.stocks[0].2 = 1;
    let burn = &run.digest().stock[0];
    assert_eq!(burn.told.iter().map(|(_, left)| *left).collect::<Vec<_>>(), [1, 0, 1, 0]);
    assert_eq!((burn.sold_out_us, burn.returned), (Some(LEAD_US + 5), 1));
}

/// Every third buyer wants another offer.
fn night_of_three_offers() -> Run {
    let mut run = night(3_000, 150);
    let sizes = [(2_u128, "Feitian 53, 375 ml", 60), (3, "Zodiac set", 900)];
    run.stocks.extend(sizes.map(|(id, name, stock)| (OfferId(id), name.to_owned(), stock)));
    for (number, history) in (0_u128..).zip(&mut run.histories) {
        let wanted = OfferId(number % 3 + 1);
        for told in &mut history.events {
            match &mut told.what {
                What::Pass { offer, .. } | What::Refused { offer: Some(offer), .. } => *offer = wanted,
                What::Order { order: seen, .. } | What::Looked { found: Some(seen), .. } => {
                    seen.offer = wanted
                }
                _ => {}
            }
        }
    }
    run.stock.clear();
    run
}

#[test]
fn a_stock_that_only_the_operator_knows_is_not_taken_for_none() {
    let mut run = night(400, 50);
    let held = run.digest().stock[0].held;
    (run.knows_stock, run.stock) = (false, Vec::new());
    let (digest, page) = (run.digest(), run.with(super::html));
    assert!(held > 0 && digest.stock[0].held == held && digest.stock[0].sold_out_us.is_none());
    assert!(digest.fairness.in_order() > 0.5, "{:?}", digest.fairness);
    assert!(page.contains("Units taken") && page.contains("of a stock that only the operator knows"));
    for lie in ["Units left", "of 0 units", "sold out after the", "raffle, coming first"] {
        assert!(!page.contains(lie), "{lie}");
    }
    let json = run.with(super::json);
    assert!(json["figures"]["stock"][0]["stock"].is_null(), "{json}");
}

#[test]
fn each_offer_has_its_own_stock_and_its_own_line() {
    let run = night_of_three_offers();
    let digest = run.digest();
    let taken = digest.stock.iter().map(|burn| (burn.held + burn.returned as i64) as u64);
    assert_eq!(taken.sum::<u64>(), digest.funnel.granted);
    assert!(digest.stock[2].sold_out_us.is_none() && digest.stock.iter().all(|burn| burn.held > 0));
    let grants = run.histories.iter().flat_map(|history| &history.events);
    let last = grants.filter(|told| matches!(told.what, What::Order { .. })).map(|told| told.told_us).max();
    assert_eq!(digest.stock.iter().filter_map(|burn| burn.last_taken_us()).max(), last);
    let page = run.html();
    check_page(&page);
    assert!(page.contains("share of the stock") && page.contains("Zodiac set · 900\u{a0}units"));
}

#[test]
fn deciles_hold_the_line_and_bots_are_told_apart() {
    let run = night(2_000, 40);
    let digest = run.digest();
    let fairness = &digest.fairness;
    assert_eq!(fairness.deciles.iter().map(|part| part.buyers).sum::<u64>(), fairness.in_line);
    assert_eq!(fairness.deciles.iter().map(|part| part.winners).sum::<u64>(), 40);
    assert_eq!(fairness.deciles.iter().map(|part| part.in_strict_order).sum::<u64>(), 40);
    assert_eq!(digest.roles.iter().map(|role| role.buyers).sum::<u64>(), 2_000);
    assert_eq!(digest.roles.iter().map(|role| role.tries).sum::<u64>(), digest.funnel.tries);
    assert_eq!(digest.roles.iter().map(|role| role.winners).sum::<u64>(), 40);
}

/// Parses as XML (stricter than HTML), and holds nothing that would be fetched or run.
fn check_page(page: &str) {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(page, options)
        .unwrap_or_else(|error| panic!("{error}: {page}"));
    let mut ids = std::collections::BTreeSet::new();
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        let fetching =
            ["script", "link", "img", "iframe", "object", "embed", "image", "use", "a", "base", "form"];
        assert!(!fetching.contains(&name), "<{name}>");
        for attribute in node.attributes() {
            assert!(!attribute.name().starts_with("on"), "{attribute:?}");
            assert!(!["src", "href", "srcset", "action"].contains(&attribute.name()), "{attribute:?}");
            assert!(
                !attribute.value().contains("NaN") && !attribute.value().contains("inf"),
                "{attribute:?}"
            );
        }
        if let Some(id) = node.attribute("id") {
            assert!(ids.insert(id.to_owned()), "two of {id}");
        }
        if node.has_tag_name("style") {
            let style = node.text().unwrap_or_default();
            assert!(!style.contains("url(") && !style.contains("@import"), "the style fetches something");
        }
        let is_picture = name == "svg" && node.attribute("role") == Some("img");
        if is_picture {
            let texts: Vec<_> = node
                .children()
                .filter(roxmltree::Node::is_element)
                .take(2)
                .map(|child| child.text())
                .collect();
            assert!(matches!(texts.as_slice(), [Some(_), Some(_)]), "a picture without words");
        }
    }
    let pictures = document.descendants().filter(|node| node.attribute("role") == Some("img")).count();
    assert!(pictures >= 5, "{pictures} pictures");
}

#[test]
fn the_page_is_well_formed_and_asks_for_nothing_outside() {
    check_page(&night(2_000, 40).html());
}

#[test]
fn empty_runs_and_a_single_buyer_have_a_report() {
    let empty = Run::of(Vec::new());
    check_page(&empty.html());
    assert!(!empty.html().contains("Clean"), "nobody came, and it is called clean");
    assert_eq!(empty.with(json)["figures"]["funnel"]["arrived"], 0);
    let mut no_offers = Run::of(Vec::new());
    no_offers.stocks.clear();
    check_page(&no_offers.html());
    let mut buyer = Script::new(1);
    buyer.arrive(0, 500);
    buyer.pass(1_000, 700);
    buyer.granted(LEAD_US + 50, 900);
    buyer.look(LEAD_US + 950, 3_000, State::AwaitingPayment, false);
    let one = Run::of(vec![buyer.history]);
    check_page(&one.html());
    let mut silent = Run::of(vec![History::new("ann".into())]);
    silent.stocks[0].2 = 0;
    check_page(&silent.html());
}

#[test]
fn times_of_any_size_have_a_report() {
    let mut odd = Script::new(1);
    odd.tell(u64::MAX / 4, 0, What::Registered);
    odd.pass(0, 0);
    odd.granted(5, 0);
    // A clock that went back: told before asked.
    odd.history.events.push(Told { asked_us: 900, told_us: 100, what: What::Registered });
    check_page(&Run::of(vec![odd.history]).html());
}

#[test]
fn hostile_names_are_text_and_nothing_else() {
    const HOSTILE: &str =
        "</title></style><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;\u{0}\u{202e}";
    let mut run = night(50, 5);
    run.sale = HOSTILE.into();
    run.stocks[0].1 = HOSTILE.into();
    run.findings = vec![format!("Buyer {HOSTILE} has two live orders.")];
    run.notes = vec![HOSTILE.into()];
    run.more = vec![(HOSTILE.into(), HOSTILE.into())];
    for (number, history) in run.histories.iter_mut().enumerate() {
        let code = format!("{HOSTILE}{number}");
        let what = What::Refused { call: Call::Try, offer: None, status: 418, code, pass: None, other: None };
        history.events.push(Told { asked_us: 1, told_us: 2, what });
        history.events.push(Told { asked_us: 1, told_us: 2, what: What::GaveUp { why: HOSTILE.into() } });
    }
    run.roles.fill(HOSTILE);
    let page = run.html();
    assert!(!page.contains("<script") && !page.contains("<img"));
    check_page(&page);
    assert_eq!(run.with(json)["sale"], HOSTILE);
}

#[test]
fn violations_are_sentences_and_too_many_are_counted() {
    let mut run = night(50, 5);
    run.findings = (0..120).map(|number| format!("Order {number} is gone.")).collect();
    let page = run.html();
    check_page(&page);
    assert!(page.contains("there are 120\u{a0}violations") && page.contains("<li>Order 0 is gone.</li>"));
    assert!(
        page.contains("<li>70 more; the JSON report has all.</li>") && !page.contains("Order 50 is gone.")
    );
    let json = run.with(json);
    assert_eq!(json["verdict"]["clean"], false);
    assert_eq!(json["verdict"]["findings"].as_array().unwrap().len(), 120);
    assert!(night(50, 5).html().contains("Clean: every promise to 50\u{a0}buyers was kept."));
    let not_judged =
        night(50, 5).with(|input| html(&Input { verdict: Verdict::NotJudged("no admin key"), ..*input }));
    assert!(not_judged.contains("Not judged.") && !not_judged.contains("Clean"));
}

#[test]
fn a_rehearsal_begins_with_its_answer_and_ends_with_what_to_change() {
    let mut run = night(50, 5);
    run.rehearsal = Some(Rehearsal {
        answer: rehearsal::Answer::DoesNotHold,
        holds: false,
        offered_per_s: 100,
        answered_per_s: 10,
        at_least_per_s: 10,
        saturates_at_per_s: Some(10),
        sells_out_within_ms: None,
        offers: vec![],
        sentences: vec![
            "It does not hold for 50 buyers: half of them heard <nothing>.".into(),
            "More tries came than it could answer.".into(),
        ],
        changes: vec!["Raise `limits.in_flight` or ` nothing.".into()],
    });
    let page = run.html();
    check_page(&page);
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is not there"));
    let order = [
        "<h2>It does not hold for 50 buyers.</h2>",
        "Half of them heard &lt;nothing&gt;.",
        "<li>More tries came than it could answer.</li>",
        "What to change",
        "<li>Raise <code>limits.in_flight</code> or ` nothing.</li>",
        "Clean: every promise",
    ];
    assert!(order.map(place).is_sorted(), "{page}");
}

#[test]
fn a_crowd_that_could_not_keep_up_is_said() {
    let run = night(50, 5);
    let page = |achieved, awake| {
        run.with(|input| {
            let generator = Generator { offered: 1_000, achieved, awake, ..input.generator };
            html(&Input { generator, ..*input })
        })
    };
    assert!(page(950, 950).contains("the figures tell of the server."));
    assert!(page(949, 949).contains("the crowd was the bottleneck"));
    // Who waits for a socket of a slow server waits for the server.
    assert!(page(949, 950).contains("waited for a free socket"));
    // And who waits for a pass waits for the shop.
    assert!(page(950, 950).contains("late passes</th><td>7\u{a0}buyers waited for one"));
}

#[test]
fn many_offers_and_many_findings_stay_one_small_page() {
    let mut run = night(1_000, 40);
    run.stocks.extend((2..1_000).map(|id| (OfferId(id), format!("offer {id}"), 10)));
    let page = run.html();
    check_page(&page);
    assert!(page.len() < 400_000 && page.contains("979\u{a0}offers more"), "{}", page.len());
    assert_eq!(run.with(json)["figures"]["stock"].as_array().unwrap().len(), 999);
}

#[test]
fn the_json_has_the_numbers_of_the_page() {
    let json = night(2_000, 40).with(json);
    assert_eq!(json["verdict"]["clean"], true);
    assert_eq!(json["figures"]["funnel"]["granted"], 40);
    assert_eq!(
        json["figures"]["stock"][0]["held"].as_i64().unwrap() as u64
            + json["figures"]["funnel"]["losses"][4]
                .as_array()
                .unwrap()
                .iter()
                .filter(|lost| lost[0] == "not paid in time")
                .map(|lost| lost[1].as_u64().unwrap())
                .sum::<u64>(),
        40
    );
    assert!(json["figures"]["latency_us"]["order"]["p99"].as_u64().unwrap() > 0);
    assert!(json["figures"]["series"]["answers"]["sold_out"].is_array());
}

/// Also the way to look at it: the files are under the target folder's `tmp/report`.
#[test]
fn a_sample_report_of_a_big_night_is_small_and_written() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(folder, std::path::PathBuf::from);
    let folder = target.join("tmp/report");
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let mut run = night(20_000, 100);
    run.notes =
        vec!["It holds: 20,000 buyers within 10 s leave 62 % of the server’s CPU free at the peak.".into()];
    let page = run.html();
    check_page(&page);
    write("clean.html", &page);
    write("clean.json", &serde_json::to_string_pretty(&run.with(json)).unwrap());
    run.notes.clear();
    run.findings = vec![
        "Offer 01k9zq3v8g7m4x2r5w6t0n1pbc has a stock of 95, but the buyers hold 100 units of it.".into(),
        "Order 01k9zq3v8g7m4x2r5w6t0n1pbd of buyer buyer-17 was queued and never got an end.".into(),
    ];
    run.stocks[0].2 = 95;
    write("violations.html", &run.html());
    write("offers.html", &night_of_three_offers().html());
    write("empty.html", &Run::of(Vec::new()).html());
    let big = night(200_000, 1_000);
    let started = crate::clock::monotonic_now();
    let big = big.html();
    println!("the page of 200,000 buyers took {:?} and {} bytes", started.elapsed(), big.len());
    check_page(&big);
    assert!(big.len() < 1_000_000, "{} bytes", big.len());
    write("big.html", &big);
}
