//! One simulated buyer, from arriving to the last answer. A person knows the public API and its own passes, nothing
//! else; it writes down all it is told and judges nothing. What it does with an order it has won is in `ending`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use rules::id::{OfferId, OrderId};
use rules::order::State;
use rules::sale::{ChallengeKind, RegistrationKind};
use rules::time::UnixMs;
use rules::wire::{Code, OfferView, OrderRequest, OrderView, PassGiven, Problem, SaleView, ServerTime};
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::blast::thread_cpu;
use crate::clock::micros;
use crate::connection::{CallError, Request};
use crate::crowd::{Due, Heard, Reply, Scene, Tokens, count};
use crate::history::{
    BROKEN_OFF, Call, History, NO_ORDER, NO_PASS, OUR_OWN, Seen, Told, What, Wish, is_shedding, is_unsure,
};
use crate::push::{self, Line};
use crate::scenario::{Ending, Fires, Follow, Kind, Loop, Register, Wanted, pick};

/// How long to wait where the server does not say.
pub(crate) const RETRY_DEFAULT: Duration = Duration::from_millis(500);
/// No wait is shorter: it also bounds every loop of a person that is bounded by patience.
const RETRY_MIN: Duration = Duration::from_millis(20);
/// No told wait is believed beyond this, except for the opening itself.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long one look waits for news.
const LOOK_WAIT: Duration = Duration::from_secs(20);
/// How often somebody who polls asks.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// The longest a proof of work may take, in milliseconds.
const SOLVE_MS_MAX: u64 = 60_000;
/// Spreads neighbouring numbers over the seeds.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Clicks of one person that are on their way at a time. One that is due beyond this goes out late, and counts as such.
const ON_THE_WAY_MAX: usize = 1_024;
/// Nobody opens the page, or asks for the pass, later than this share of the time ahead: clicks are not that quick.
const AHEAD_MIN: f64 = 0.1;

/// When the buyer with this number comes, after the start.
pub(crate) fn arrives_after(scene: &Scene, number: u32) -> Duration {
    Choices::draw(scene, number, &mut dice(scene, number)).arrives_after
}

/// Everything one buyer does, from the arrival on.
pub(crate) async fn live(scene: Arc<Scene>, number: u32) -> Person {
    let mut person = Person::new(Arc::clone(&scene), number);
    let shopped = tokio::select! {
        biased;
        shopped = person.shop() => shopped,
        () = scene.called_off() => Err(person.break_off()),
    };
    if let Err(GaveUp(why)) = shopped {
        count(&person.scene.progress.gave_up);
        let now = person.scene.clock.instant();
        person.note_at(now, now, What::GaveUp { why });
    }
    push::close(&mut person);
    count(&person.scene.progress.gone);
    person
}

/// The look after everything is over: what was promised must be there, what hung in the air must have come down.
pub(crate) async fn look_once_more(mut person: Person) -> Person {
    let scene = Arc::clone(&person.scene);
    let looking = async {
        for order in person.history.to_look_at() {
            // Whether it could be seen is in the history; there is nobody left to give up.
            let _ = person.watch(order, None, true).await;
        }
    };
    tokio::select! {
        biased;
        () = scene.called_off() => {}
        () = looking => {}
    }
    person
}

#[derive(Debug)]
pub(crate) struct Person {
    pub scene: Arc<Scene>,
    pub number: u32,
    pub history: History,
    token: Option<Arc<str>>,
    /// The server's clock minus ours, in milliseconds.
    offset_ms: i64,
    /// When the next request was due, if that is not the moment it is made.
    due: Option<Instant>,
    /// How long this machine kept the person waiting for a proof of work: the crowd's own slowness, not the shop's.
    solving: Duration,
    /// A try is on its way.
    clicking: bool,
    /// The socket or the stream by which news come, while it is open.
    pub line: Option<Line>,
    pub choices: Choices,
    dice: Xoshiro256PlusPlus,
}

/// Decided before anything happens, so that the same seed makes the same people whatever they are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    /// A position in the mix.
    kind: usize,
    arrives_after: Duration,
    /// How long before the try the pass is fetched.
    pass_ahead: Duration,
    /// How long after the opening the try is due.
    tries_after: Duration,
    double_click: bool,
    /// How much of the try is sent before hanging up, in percent.
    hang_up: Option<u8>,
    comes_back: bool,
    pub ending: Ending,
    pub decides_after: Duration,
}

/// Why a person goes home.
#[derive(Debug)]
pub(crate) struct GaveUp(pub String);

#[derive(Debug)]
pub(crate) struct Refusal {
    pub status: u16,
    pub code: String,
    pub wait: Duration,
    other: Option<OrderId>,
}

/// What a person keeps of the page.
#[derive(Clone, Copy, Debug)]
struct Page {
    opens_at: UnixMs,
    challenge: ChallengeKind,
    registration: RegistrationKind,
    offer: OfferId,
}

/// What a person has in hand before the opening.
#[derive(Debug)]
struct Ticket {
    offer: OfferId,
    order: OrderId,
    body: Vec<u8>,
}

/// What a person makes of the answer to a try.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Order(Seen),
    Refused,
    Again(Duration),
}

#[derive(Deserialize)]
struct TokenGiven {
    token: String,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Challenge {
    None,
    Pow(Box<altcha::Challenge>),
    Picture {},
}

impl Person {
    pub(crate) fn new(scene: Arc<Scene>, number: u32) -> Self {
        let mut dice = dice(&scene, number);
        let choices = Choices::draw(&scene, number, &mut dice);
        let given = match &scene.settings.tokens {
            Tokens::Given(tokens) => usize::try_from(number).ok().and_then(|number| tokens.get(number)),
            Tokens::Demo | Tokens::Signed { .. } => None,
        };
        let token = given.map(|given| Arc::clone(&given.token));
        let name = || format!("{}{number}", scene.settings.name);
        let history = History::new(given.map_or_else(name, |given| given.buyer.clone()));
        let solving = Duration::ZERO;
        Self {
            scene,
            number,
            history,
            token,
            offset_ms: 0,
            due: None,
            solving,
            clicking: false,
            line: None,
            choices,
            dice,
        }
    }

    /// Which kind of the mix this is.
    pub const fn kind_position(&self) -> usize {
        self.choices.kind
    }

    async fn shop(&mut self) -> Result<(), GaveUp> {
        count(&self.scene.progress.arrived);
        self.due = Some(self.arrived_at());
        self.log_in().await?;
        let page = self.read_sale().await?;
        self.read_time().await?;
        push::open_with_the_page(self, self.kind().map_or(Follow::LongPoll, |kind| kind.follow));
        self.register(&page).await;
        let due = self.moment(&page);
        tokio::time::sleep_until(earlier(due, self.choices.pass_ahead).into()).await;
        let tickets = self.fetch_passes(&page).await?;
        self.forget_token();
        let due = self.due_with_the_pass(due);
        tokio::time::sleep_until(due.possible.into()).await;
        match (self.choices.hang_up, tickets.first()) {
            (Some(percent), Some(ticket)) => Box::pin(self.hang_up(ticket, percent, due)).await,
            _ => Box::pin(self.buy(&tickets, due)).await,
        }
    }

    fn arrived_at(&self) -> Instant {
        match self.scene.settings.arrival.paced {
            Loop::Open => self.scene.clock.instant_at(self.choices.arrives_after),
            Loop::Closed => self.scene.clock.instant(),
        }
    }

    /// When the first try is due. Of a sale that is not open yet, the server's clock says; of one that is, the plan.
    fn moment(&self, page: &Page) -> Instant {
        let (clock, settings) = (self.scene.clock, &self.scene.settings);
        let opening = match (self.until(page.opens_at), settings.arrival.paced) {
            (Duration::ZERO, Loop::Open) => clock.instant_at(settings.opens_in),
            (wait, _) => clock.instant() + wait,
        };
        earlier(opening + self.choices.tries_after, self.kind().map_or(Duration::ZERO, |kind| kind.early))
    }

    /// A try without a pass cannot be made: who got it late clicks at once, and has waited since the click was due. As far as
    /// the shop was slow with the pass, that is no lateness of the crowd; where this machine was, the try goes out late.
    fn due_with_the_pass(&self, due: Instant) -> Due {
        let (now, arrival) = (self.scene.clock.instant(), &self.scene.settings.arrival);
        let given_at = earlier(now, self.solving);
        match (arrival.paced, arrival.pages_ahead.is_zero()) {
            (Loop::Closed, _) => due.max(now).into(),
            // Whoever comes only at the opening cannot want to click before the pass is there.
            (Loop::Open, true) => due.max(given_at).into(),
            (Loop::Open, false) => {
                if given_at > due {
                    count(&self.scene.progress.late_passes);
                }
                Due { wanted: due, possible: due.max(given_at) }
            }
        }
    }

    /// Everybody is sent home. A try that is on its way may have happened, and nobody will hear.
    fn break_off(&mut self) -> GaveUp {
        if self.clicking {
            let now = self.scene.clock.instant();
            let passes = self.history.events.iter().filter_map(|told| match told.what {
                What::Pass { order, .. } => Some(order),
                _ => None,
            });
            for pass in passes.collect::<Vec<_>>() {
                let (call, why) = (Call::Try, "broken off".to_owned());
                self.note_at(now, now, What::Broken { call, pass: Some(pass), why });
            }
        }
        GaveUp(BROKEN_OFF.to_owned())
    }

    async fn log_in(&mut self) -> Result<(), GaveUp> {
        if self.token.is_some() || self.scene.signer.is_some() {
            return Ok(());
        }
        let body = serde_json::json!({ "buyer": self.history.buyer }).to_string();
        let heard =
            self.ask_patiently(Call::LogIn, "POST", "/api/v1/demo/login", Some(body.as_bytes())).await?;
        self.token = Some(read::<TokenGiven>(&heard, "token")?.token.into());
        Ok(())
    }

    /// The token, signed when it is needed for the first time.
    pub(crate) fn token(&mut self) -> Option<Arc<str>> {
        if let (None, Some(signer)) = (&self.token, &self.scene.signer) {
            let now = self.scene.clock.now().plus_ms(self.offset_ms);
            self.token = signer.sign(&self.history.buyer, now).map(Into::into);
        }
        self.token.clone()
    }

    /// Whoever can sign another does not have to keep one while waiting: the pass is enough to try.
    fn forget_token(&mut self) {
        if self.scene.signer.is_some() {
            self.token = None;
        }
    }

    async fn read_sale(&mut self) -> Result<Page, GaveUp> {
        let path = format!("/api/v1/sales/{}", self.scene.settings.sale);
        let asked = self.scene.clock.instant();
        let heard = self.ask_patiently(Call::Sale, "GET", &path, None).await?;
        let sale: SaleView = read(&heard, "sale")?;
        let offer = self.wanted_offer(&sale);
        let wish = offer.map(|offer| self.wish(offer));
        self.note(asked, What::Window { opens_at: sale.opens_at, closes_at: sale.closes_at, wish });
        let offer = offer.ok_or_else(|| GaveUp("the sale offers nothing".into()))?.id;
        let SaleView { opens_at, challenge, registration, .. } = sale;
        Ok(Page { opens_at, challenge, registration, offer })
    }

    /// The server's clock was read somewhere between asking and hearing; the middle is the best guess.
    async fn read_time(&mut self) -> Result<(), GaveUp> {
        let asked = self.scene.clock.instant();
        let heard = self.ask_patiently(Call::Time, "GET", "/api/v1/time", None).await?;
        let middle = self.scene.clock.now().0.saturating_sub(half_ms(asked, self.scene.clock.instant()));
        self.offset_ms = read::<ServerTime>(&heard, "time")?.now_ms.saturating_sub(middle);
        self.note(asked, What::Offset { ms: self.offset_ms });
        Ok(())
    }

    /// A person whose registration is refused goes on and hears at the pass what that means.
    async fn register(&mut self, page: &Page) {
        let required = page.registration == RegistrationKind::Required;
        let wants = match self.kind().map_or(Register::Required, |kind| kind.register) {
            Register::Required => required,
            Register::Always => true,
            Register::Never => false,
        };
        if !wants {
            return;
        }
        let path = format!("/api/v1/sales/{}/registration", self.scene.settings.sale);
        let asked = self.scene.clock.instant();
        if self.ask_patiently(Call::Registration, "POST", &path, Some(b"{}")).await.is_ok() {
            self.note(asked, What::Registered);
        }
    }

    async fn fetch_passes(&mut self, page: &Page) -> Result<Vec<Arc<Ticket>>, GaveUp> {
        let wanted = self.kind().map_or(1, |kind| kind.passes);
        let mut tickets = Vec::with_capacity(1);
        for _ in 0..wanted {
            tickets.push(Arc::new(Box::pin(self.fetch_pass(page)).await?));
        }
        count(&self.scene.progress.passes);
        Ok(tickets)
    }

    async fn fetch_pass(&mut self, page: &Page) -> Result<Ticket, GaveUp> {
        let offer = page.offer;
        let path = format!("/api/v1/offers/{offer}/pass");
        let patience = self.until(page.opens_at) + self.scene.settings.patience;
        let give_up_at = self.scene.clock.instant() + patience;
        loop {
            // A challenge lives two minutes: solved before a long wait it would be stale after it.
            let solution = self.solve(page.challenge, offer, give_up_at).await?;
            let body = serde_json::json!({ "solution": solution }).to_string();
            let (token, due) = (self.token(), self.due());
            let reply = self.scene.ask(due, &Request::post(&path, token.as_deref(), body.as_bytes())).await;
            let refusal = match self.hear(Call::Pass, Some(offer), None, &reply) {
                Ok(heard) => return self.take_pass(offer, &reply, heard),
                Err(refusal) => refusal,
            };
            let wait = match refusal.status {
                425 => refusal.wait.min(self.until(page.opens_at).max(RETRY_MIN)),
                0 | 429 | 500.. => refusal.wait.min(RETRY_MAX),
                403 if refusal.code == Code::ChallengeFailed.as_str() => RETRY_MIN,
                _ => return Err(GaveUp(format!("{NO_PASS}{}", refusal.code))),
            };
            self.pause_after(&refusal, wait, give_up_at + self.solving, "no pass in time").await?;
        }
    }

    fn take_pass(&mut self, offer: OfferId, reply: &Reply, heard: &Heard) -> Result<Ticket, GaveUp> {
        let PassGiven { pass, order_id: order, expires_at, .. } = read(heard, "pass")?;
        self.note_at(reply.asked, reply.told, What::Pass { offer, order, expires_at });
        let quantity = self.quantity();
        let body = serde_json::to_vec(&OrderRequest { pass, quantity }).unwrap_or_default();
        Ok(Ticket { offer, order, body })
    }

    fn wish(&self, offer: &OfferView) -> Wish {
        Wish { offer: offer.id, quantity: self.quantity(), max_per_order: offer.max_per_order }
    }

    fn wanted_offer<'a>(&self, sale: &'a SaleView) -> Option<&'a OfferView> {
        let number = usize::try_from(self.number).unwrap_or(0);
        let position = match self.scene.settings.wanted {
            Wanted::First => 0,
            Wanted::Spread => number.checked_rem(sale.offers.len()).unwrap_or(0),
        };
        sale.offers.get(position)
    }

    async fn solve(
        &mut self,
        kind: ChallengeKind,
        offer: OfferId,
        give_up_at: Instant,
    ) -> Result<Option<altcha::Payload>, GaveUp> {
        if kind == ChallengeKind::None {
            return Ok(None);
        }
        // Before the challenge is fetched: it must not grow old while this machine is busy with others.
        let scene = Arc::clone(&self.scene);
        let asked = scene.clock.instant();
        let place = tokio::time::timeout_at(give_up_at.into(), scene.solvers.acquire()).await;
        self.solving += scene.clock.instant().saturating_duration_since(asked);
        let _place = place.map_err(|_| GaveUp(format!("{OUR_OWN}no proof of work was solved in time")))?;
        let path = format!("/api/v1/offers/{offer}/challenge");
        let heard = self.ask_patiently(Call::Challenge, "POST", &path, Some(b"{}")).await?;
        match read(&heard, "challenge")? {
            Challenge::None => Ok(None),
            Challenge::Pow(challenge) => Box::pin(self.work(*challenge)).await.map(Some),
            Challenge::Picture {} => Err(GaveUp(format!("{OUR_OWN}a picture cannot be solved by a program"))),
        }
    }

    async fn work(&mut self, challenge: altcha::Challenge) -> Result<altcha::Payload, GaveUp> {
        let asked = self.scene.clock.instant();
        let solved = tokio::task::spawn_blocking(move || solve_pow(challenge)).await.ok();
        self.solving += self.scene.clock.instant().saturating_duration_since(asked);
        let (solved, cpu) = solved.unwrap_or_default();
        self.scene.progress.solving_us.fetch_add(micros(cpu), Ordering::Relaxed);
        solved.ok_or_else(|| GaveUp(format!("{OUR_OWN}the proof of work was not found in time")))
    }

    async fn buy(&mut self, tickets: &[Arc<Ticket>], due: Due) -> Result<(), GaveUp> {
        let (volleys, parallel) = self.kind().map_or((1, 1), |kind| (kind.volleys, kind.parallel));
        if volleys > 1 {
            return match self.fire(tickets, due).await {
                Outcome::Order(seen) => self.follow(seen).await,
                Outcome::Refused => Ok(()),
                Outcome::Again(wait) => {
                    self.try_patiently(tickets, 1, (self.scene.clock.instant() + wait).into()).await
                }
            };
        }
        let clicks = parallel.max(if self.choices.double_click { 2 } else { 1 });
        self.try_patiently(tickets, clicks, due).await
    }

    /// Tries, waits as told, tries again.
    async fn try_patiently(
        &mut self,
        tickets: &[Arc<Ticket>],
        clicks: u32,
        mut due: Due,
    ) -> Result<(), GaveUp> {
        for number in 0..self.scene.settings.tries_max {
            tokio::time::sleep_until(due.possible.into()).await;
            let clicks = if number == 0 { clicks } else { 1 };
            match self.volley(tickets, clicks, due).await {
                Outcome::Order(seen) => return self.follow(seen).await,
                Outcome::Refused => return Ok(()),
                Outcome::Again(wait) => due = (self.scene.clock.instant() + self.jittered(wait)).into(),
            }
        }
        Err(GaveUp(self.why_not()))
    }

    /// Whoever heard that nothing is sold now, or to come later, has an answer; who heard nothing clear has none.
    fn why_not(&self) -> String {
        let closed = [Code::Paused.as_str(), Code::NotOpen.as_str()];
        let clear = |code: &&str| closed.contains(code) || is_shedding(code);
        match self.history.last_refused_try().filter(clear) {
            Some(code) => format!("{NO_ORDER}{code}"),
            None => "too many tries without an answer".into(),
        }
    }

    /// Fires by its own clock, whatever it is told and whether it is told anything: volleys go out at their times also
    /// while those before them are on their way.
    async fn fire(&mut self, tickets: &[Arc<Ticket>], mut due: Due) -> Outcome {
        let Some(Kind { volleys, every, parallel, .. }) = self.kind().cloned() else {
            return Outcome::Refused;
        };
        let mut clicks = Clicks::default();
        for _ in 0..volleys {
            self.hear_clicks(&mut clicks, Some(due.possible)).await;
            clicks.send(&self.scene, tickets, parallel, due);
            due = (due.possible + every).into();
        }
        self.hear_clicks(&mut clicks, None).await;
        clicks.best()
    }

    /// So many clicks at once, taking turns with the passes.
    async fn volley(&mut self, tickets: &[Arc<Ticket>], clicks: u32, due: Due) -> Outcome {
        if let (1, Some(ticket)) = (clicks, tickets.first()) {
            self.clicking = true;
            let reply = click(&self.scene, ticket, due).await;
            self.clicking = false;
            return self.hear_try(ticket, &reply);
        }
        let mut sent = Clicks::default();
        sent.send(&self.scene, tickets, clicks, due);
        self.hear_clicks(&mut sent, None).await;
        sent.best()
    }

    /// Hears the answers that come until then and until there is room for more clicks; without a time, all.
    async fn hear_clicks(&mut self, clicks: &mut Clicks, until: Option<Instant>) {
        loop {
            self.clicking = !clicks.on_the_way.is_empty();
            let until = until.filter(|_| clicks.on_the_way.len() < ON_THE_WAY_MAX);
            if until.is_none() && clicks.on_the_way.is_empty() {
                return;
            }
            let next = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            let clicked = tokio::select! {
                biased;
                () = next => return,
                clicked = clicks.on_the_way.join_next(), if !clicks.on_the_way.is_empty() => clicked,
            };
            let Some(Ok((volley, ticket, reply))) = clicked else { continue };
            let outcome = self.hear_try(&ticket, &reply);
            clicks.keep(volley, outcome);
        }
    }

    fn hear_try(&mut self, ticket: &Ticket, reply: &Reply) -> Outcome {
        let refusal = match self.hear(Call::Try, Some(ticket.offer), Some(ticket.order), reply) {
            Ok(heard) => match read::<OrderView>(heard, "order") {
                Ok(view) => {
                    let (status, order) = (heard.status, Seen::from(&view));
                    let what = What::Order { status, pass: ticket.order, asked: self.quantity(), order };
                    self.note_at(reply.asked, reply.told, what);
                    return Outcome::Order(order);
                }
                Err(GaveUp(why)) => {
                    let what = What::Broken { call: Call::Try, pass: Some(ticket.order), why };
                    self.note_at(reply.asked, reply.told, what);
                    return Outcome::Again(RETRY_DEFAULT);
                }
            },
            Err(refusal) => refusal,
        };
        // The same pass again is always the same request, so repeating what is unsure or broken is harmless.
        let again = matches!(refusal.status, 0 | 425 | 429 | 500..) || refusal.code == Code::Paused.as_str();
        if again { Outcome::Again(refusal.wait.min(RETRY_MAX)) } else { Outcome::Refused }
    }

    async fn follow(&mut self, seen: Seen) -> Result<(), GaveUp> {
        count(&self.scene.progress.queued);
        let how = self.kind().map_or(Follow::LongPoll, |kind| kind.follow);
        let last = match (seen.state, how) {
            (State::Queued, Follow::Nothing) => None,
            (State::Queued, Follow::LongPoll | Follow::Polling) => {
                self.watch(seen.id, Some(seen.seq), false).await?
            }
            (State::Queued, Follow::Websocket | Follow::Sse) => {
                match push::follow(self, seen.id, how).await {
                    Some(seen) => Some(seen),
                    // A push is a hint: whoever misses one looks.
                    None => {
                        let looked = self.watch(seen.id, Some(seen.seq), false).await?;
                        if let Some(shown) = looked {
                            push::listen_on(self, shown).await;
                        }
                        looked
                    }
                }
            }
            _ => Some(seen),
        };
        let Some(won) = last.filter(|seen| seen.is_live() && seen.state != State::Queued) else {
            return Ok(());
        };
        count(&self.scene.progress.won);
        Box::pin(self.end(won)).await
    }

    async fn hang_up(&mut self, ticket: &Ticket, percent: u8, due: Due) -> Result<(), GaveUp> {
        let due = due.wanted;
        count(&self.scene.progress.tries);
        let path = ticket.path();
        let request = Request::post(&path, None, &ticket.body);
        self.clicking = true;
        let hung_up = Box::pin(self.scene.hang_up(&request, percent)).await;
        self.clicking = false;
        match hung_up {
            Ok(bytes) => self.note(due, What::HungUp { pass: ticket.order, bytes }),
            Err(error) => {
                count(&self.scene.progress.errors);
                let what = What::Broken { call: Call::Try, pass: Some(ticket.order), why: error.to_string() };
                self.note(due, what);
            }
        }
        if !self.choices.comes_back {
            return Ok(());
        }
        tokio::time::sleep(self.jittered(RETRY_DEFAULT)).await;
        match self.watch(ticket.order, None, false).await? {
            Some(seen) => self.follow(seen).await,
            None => Ok(()),
        }
    }

    /// Looks at an order until it is no longer queued. `None`: it is not there.
    pub(crate) async fn watch(
        &mut self,
        id: OrderId,
        after: Option<u32>,
        last: bool,
    ) -> Result<Option<Seen>, GaveUp> {
        self.watch_until(id, after, last, |seen| seen.state != State::Queued).await
    }

    /// Looks at an order until it is as wanted. `None`: it is not there.
    pub(crate) async fn watch_until(
        &mut self,
        id: OrderId,
        mut after: Option<u32>,
        last: bool,
        wanted: fn(&Seen) -> bool,
    ) -> Result<Option<Seen>, GaveUp> {
        let polls = !last && self.kind().is_some_and(|kind| kind.follow == Follow::Polling);
        let (wait, pause) = if polls { (Duration::ZERO, POLL_EVERY) } else { (LOOK_WAIT, RETRY_MIN) };
        let offer = self.history.offer().map_or(String::new(), |offer| format!("offer={offer}&"));
        let give_up_at = self.scene.clock.instant() + self.scene.settings.patience;
        loop {
            let beyond = after.map_or(String::new(), |seq| format!("&after={seq}"));
            let path = format!("/api/v1/orders/{id}?{offer}wait={}{beyond}", wait.as_secs());
            let token = self.token();
            let reply = self.scene.ask_and_wait(&Request::get(&path, token.as_deref()), wait).await;
            let wait = match self.hear(Call::Look, None, Some(id), &reply) {
                Ok(heard) => {
                    let seen = Seen::from(&read::<OrderView>(heard, "order")?);
                    self.note_at(reply.asked, reply.told, What::Looked { id, found: Some(seen), last });
                    if wanted(&seen) {
                        return Ok(Some(seen));
                    }
                    after = Some(seen.seq);
                    // A server without room for one more waiter answers at once.
                    pause
                }
                Err(refusal) if refusal.status == 404 => {
                    self.note_at(reply.asked, reply.told, What::Looked { id, found: None, last });
                    return Ok(None);
                }
                Err(refusal) if matches!(refusal.status, 0 | 429 | 500..) => refusal.wait.min(RETRY_MAX),
                Err(refusal) => return Err(GaveUp(format!("no look at the order: {}", refusal.code))),
            };
            self.pause(wait, give_up_at, "the order did not get on").await?;
        }
    }

    /// Asks until there is an answer that is worth keeping, as long as patience lasts.
    async fn ask_patiently(
        &mut self,
        call: Call,
        method: &'static str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Heard, GaveUp> {
        let give_up_at = self.scene.clock.instant() + self.scene.settings.patience;
        loop {
            let (token, due) = (self.token(), self.due());
            let request = Request { method, path, bearer: token.as_deref(), body };
            let mut reply = self.scene.ask(due, &request).await;
            let refusal = match self.hear(call, None, None, &reply) {
                Ok(_) => {
                    let heard = std::mem::replace(&mut reply.result, Err(CallError::AnswerTimeout));
                    return heard.map_err(|error| GaveUp(error.to_string()));
                }
                Err(refusal) => refusal,
            };
            if !matches!(refusal.status, 0 | 429 | 500..) {
                return Err(GaveUp(format!("asked for {} and was told {}", call.words(), refusal.code)));
            }
            let wait = refusal.wait.min(RETRY_MAX);
            self.pause_after(&refusal, wait, give_up_at, "the shop did not answer").await?;
        }
    }

    /// Tells an answer from a refusal, which is written down at once. No answer is a refusal with status 0.
    pub(crate) fn hear<'a>(
        &mut self,
        call: Call,
        offer: Option<OfferId>,
        pass: Option<OrderId>,
        reply: &'a Reply,
    ) -> Result<&'a Heard, Refusal> {
        let heard = match &reply.result {
            Ok(heard) if (200..300).contains(&heard.status) => return Ok(heard),
            Ok(heard) => heard,
            Err(error) => {
                count(&self.scene.progress.errors);
                let why = error.to_string();
                self.note_at(reply.asked, reply.told, What::Broken { call, pass, why });
                return Err(Refusal { status: 0, code: "broken".into(), wait: RETRY_DEFAULT, other: None });
            }
        };
        let refusal = Refusal::read(heard);
        self.scene.progress.count_refusal(&refusal.code);
        // A look that finds nothing is written down by whoever looked.
        if !(call == Call::Look && refusal.status == 404) {
            let (status, code, other) = (refusal.status, refusal.code.clone(), refusal.other);
            self.note_at(reply.asked, reply.told, What::Refused { call, offer, status, code, pass, other });
        }
        Err(refusal)
    }

    /// As [`Person::pause`], before there is a pass. Whoever was told to come later, to the last, has an answer.
    async fn pause_after(
        &mut self,
        refusal: &Refusal,
        wait: Duration,
        give_up_at: Instant,
        why: &str,
    ) -> Result<(), GaveUp> {
        let paused = self.pause(wait, give_up_at, why).await;
        let shed = is_shedding(&refusal.code);
        paused.map_err(|gave_up| if shed { GaveUp(format!("{NO_PASS}{}", refusal.code)) } else { gave_up })
    }

    pub(crate) async fn pause(
        &mut self,
        wait: Duration,
        give_up_at: Instant,
        why: &str,
    ) -> Result<(), GaveUp> {
        let wait = self.jittered(wait.max(RETRY_MIN));
        if self.scene.clock.instant() + wait > give_up_at {
            return Err(GaveUp(why.to_owned()));
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Never shorter than told, up to a quarter longer: a crowd that was told the same must not come back as one.
    fn jittered(&mut self, wait: Duration) -> Duration {
        wait + wait.mul_f64(self.dice.random_range(0.0..0.25))
    }

    /// How long until the server's clock shows `at`.
    pub(crate) fn until(&self, at: UnixMs) -> Duration {
        Duration::from_millis(self.scene.clock.now().plus_ms(self.offset_ms).ms_until(at))
    }

    /// When the request that is made now was due.
    fn due(&mut self) -> Instant {
        self.due.take().unwrap_or_else(|| self.scene.clock.instant())
    }

    fn kind(&self) -> Option<&Kind> {
        self.scene.settings.mix.get(self.choices.kind)
    }

    fn quantity(&self) -> u32 {
        self.kind().map_or(1, |kind| kind.quantity)
    }

    pub(crate) fn note(&mut self, asked: Instant, what: What) {
        self.note_at(asked, self.scene.clock.instant(), what);
    }

    pub(crate) fn note_at(&mut self, asked: Instant, told: Instant, what: What) {
        let (asked_us, told_us) = (self.scene.clock.us_at(asked), self.scene.clock.us_at(told));
        self.history.events.push(Told { asked_us, told_us, what });
    }

    /// For what was heard beside other things, and is written down only now.
    pub(crate) fn note_in_order(&mut self, asked: Instant, told: Instant, what: What) {
        let (asked_us, told_us) = (self.scene.clock.us_at(asked), self.scene.clock.us_at(told));
        let events = &mut self.history.events;
        let place =
            events.iter().rposition(|before| before.told_us <= told_us).map_or(0, |before| before + 1);
        events.insert(place, Told { asked_us, told_us, what });
    }
}

/// Clicks of one person that are on their way, and what came of those before.
#[derive(Debug, Default)]
struct Clicks {
    on_the_way: JoinSet<(u32, Arc<Ticket>, Reply)>,
    volleys: u32,
    /// The newest volley that was answered, and the best of its answers.
    best: Option<(u32, Outcome)>,
}

impl Clicks {
    /// So many clicks at once. Each waits by itself for one of the crowd's sockets.
    fn send(&mut self, scene: &Arc<Scene>, tickets: &[Arc<Ticket>], clicks: u32, due: Due) {
        let volley = self.volleys;
        self.volleys += 1;
        for (_, ticket) in (0..clicks).zip(tickets.iter().cycle()) {
            let (scene, ticket) = (Arc::clone(scene), Arc::clone(ticket));
            self.on_the_way.spawn(async move {
                let reply = click(&scene, &ticket, due).await;
                (volley, ticket, reply)
            });
        }
    }

    /// An order stays, else the newest volley counts, so that "not open" is forgotten after "sold out".
    fn keep(&mut self, volley: u32, outcome: Outcome) {
        self.best = Some(match (self.best, outcome) {
            (Some((before, best)), _) if before == volley => (volley, better(best, outcome)),
            (Some((before, best @ Outcome::Order(_))), _) => (before, best),
            (Some((before, best)), Outcome::Refused | Outcome::Again(_)) if before > volley => (before, best),
            _ => (volley, outcome),
        });
    }

    fn best(&self) -> Outcome {
        self.best.map_or(Outcome::Refused, |(_, outcome)| outcome)
    }
}

/// The solution, if there is one in time, and the CPU time it took.
pub(crate) fn solve_pow(challenge: altcha::Challenge) -> (Option<altcha::Payload>, Duration) {
    let before = thread_cpu();
    let mut options = altcha::SolveChallengeOptions::new(&challenge);
    options.timeout_ms = SOLVE_MS_MAX;
    let solution = altcha::solve_challenge(options).ok().flatten();
    let solved = solution.map(|solution| altcha::Payload { challenge, solution });
    (solved, thread_cpu().saturating_sub(before))
}

#[cfg(test)]
pub(crate) fn send_home_while_clicking(mut person: Person) -> Person {
    person.clicking = true;
    let GaveUp(why) = person.break_off();
    assert!(crate::history::is_our_own(&why));
    person
}

async fn click(scene: &Scene, ticket: &Ticket, due: Due) -> Reply {
    count(&scene.progress.tries);
    let path = ticket.path();
    // No bearer: the pass says who.
    let reply = scene.ask(due, &Request::post(&path, None, &ticket.body)).await;
    scene.progress.count_try(&reply);
    reply
}

impl Ticket {
    fn path(&self) -> String {
        format!("/api/v1/offers/{}/orders", self.offer)
    }
}

fn dice(scene: &Scene, number: u32) -> Xoshiro256PlusPlus {
    let seed = scene.settings.seed.wrapping_add(u64::from(number).wrapping_mul(SEED_STEP));
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

impl Choices {
    fn draw(scene: &Scene, number: u32, dice: &mut Xoshiro256PlusPlus) -> Self {
        let settings = &scene.settings;
        let mut lot = || dice.random_range(0.0..1.0);
        let position = pick(&settings.mix, lot());
        let (place, finger, page, pass) = (lot(), lot(), lot(), lot());
        let (doubles, hangs, half, percent) = (lot(), lot(), lot(), lot());
        let (comes_back, ending, thinks) = (lot(), lot(), lot());
        let plain = Kind::default();
        let kind = settings.mix.get(position).unwrap_or(&plain);
        // One lot per place in the line, so that the curve is followed closely and not only on average.
        let share = (f64::from(number) + place) / f64::from(settings.buyers.max(1));
        let arrival = &settings.arrival;
        let by_curve = match kind.fires {
            Fires::Curve => arrival.within.mul_f64(arrival.curve.at(share)),
            Fires::Opening => Duration::ZERO,
        };
        let tries_after = by_curve + kind.jitter.mul_f64(finger);
        let ahead = |time: Duration, lot: f64| time.mul_f64(AHEAD_MIN + (1.0 - AHEAD_MIN) * lot);
        let page_ahead = ahead(arrival.pages_ahead, page);
        let shows_up = settings.opens_in + if settings.signs_up { Duration::ZERO } else { tries_after };
        Self {
            kind: position,
            arrives_after: shows_up.saturating_sub(page_ahead),
            pass_ahead: ahead(arrival.passes_ahead, pass),
            tries_after,
            double_click: doubles < kind.double_click,
            // Half of them cut their own sentence, the others say it whole and do not wait for the answer.
            hang_up: (hangs < kind.hang_up).then(|| if half < 0.5 { 100 } else { percent_of(percent) }),
            comes_back: comes_back < kind.come_back,
            ending: kind.ending(ending),
            decides_after: kind.decide_within.mul_f64(thinks),
        }
    }
}

/// 1 to 99.
fn percent_of(lot: f64) -> u8 {
    let percent = Duration::from_secs(99).mul_f64(lot).as_secs();
    u8::try_from(percent).unwrap_or(0).clamp(1, 99)
}

fn earlier(instant: Instant, by: Duration) -> Instant {
    instant.checked_sub(by).unwrap_or(instant)
}

fn half_ms(from: Instant, to: Instant) -> i64 {
    i64::try_from(to.saturating_duration_since(from).as_millis() / 2).unwrap_or(0)
}

impl Refusal {
    fn read(heard: &Heard) -> Self {
        let problem: Option<Problem> = serde_json::from_slice(&heard.body).ok();
        let told_ms = problem.as_ref().and_then(|problem| problem.retry_after_ms).map(Duration::from_millis);
        let other = problem.as_ref().and_then(|problem| problem.order_id);
        let code = problem.map_or_else(|| format!("status_{}", heard.status), |problem| problem.code);
        // `unsure` names the pass's own order, not one that stands in the way.
        let other = other.filter(|_| !is_unsure(heard.status, &code));
        let wait = told_ms.or(heard.retry_after).unwrap_or(RETRY_DEFAULT);
        Self { status: heard.status, code, wait, other }
    }
}

/// Of two clicks the one that got further.
fn better(first: Outcome, second: Outcome) -> Outcome {
    match (first, second) {
        (Outcome::Order(seen), _) | (_, Outcome::Order(seen)) => Outcome::Order(seen),
        (Outcome::Again(wait), Outcome::Again(other)) => Outcome::Again(wait.max(other)),
        (Outcome::Again(wait), Outcome::Refused) | (Outcome::Refused, Outcome::Again(wait)) => {
            Outcome::Again(wait)
        }
        (Outcome::Refused, Outcome::Refused) => Outcome::Refused,
    }
}

pub(crate) fn read<'a, T: Deserialize<'a>>(heard: &'a Heard, what: &str) -> Result<T, GaveUp> {
    serde_json::from_slice(&heard.body).map_err(|error| GaveUp(format!("this is no {what}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::{Crowd, CrowdSettings, Tokens};
    use crate::fake::{FakeShop, Manners};

    #[tokio::test]
    async fn a_waiting_person_is_small() {
        let shop = FakeShop::open(Manners::default());
        let crowd = Crowd::new(CrowdSettings::new(shop.addr(), shop.sale(), Tokens::Demo, 1)).unwrap();
        let mut person = Person::new(crowd.scene(), 0);
        let bytes = size_of_val(&person.shop());
        assert!(bytes <= 2_048, "a hundred thousand people of {bytes} bytes");
    }

    #[tokio::test]
    async fn a_pass_is_late_only_as_far_as_the_shop_was_slow_with_it() {
        let shop = FakeShop::open(Manners::default());
        let mut settings = CrowdSettings::new(shop.addr(), shop.sale(), Tokens::Demo, 1);
        let moment = Duration::from_secs(20);
        settings.arrival.pages_ahead = moment;
        let crowd = Crowd::new(settings).unwrap();
        let mut person = Person::new(crowd.scene(), 0);
        let late_passes = || crowd.progress().snapshot().late_passes;
        let now = person.scene.clock.instant();
        // All of it was this machine's: the try is late by as much.
        person.solving = 3 * moment;
        let due = now - moment;
        let with_the_pass = person.due_with_the_pass(due);
        assert_eq!((with_the_pass.wanted, with_the_pass.possible, late_passes()), (due, due, 0));
        // Half of it was the shop's.
        person.solving = moment;
        let due = now - 2 * moment;
        let Due { wanted, possible } = person.due_with_the_pass(due);
        assert!(possible > due && possible <= person.scene.clock.instant() - moment);
        // Whoever was slow, the buyer waits since the click was due.
        assert_eq!(wanted, due);
        assert_eq!(late_passes(), 1);
        person.solving = Duration::ZERO;
        assert!(person.due_with_the_pass(due).possible >= now);
        assert_eq!(late_passes(), 2);
    }
}
