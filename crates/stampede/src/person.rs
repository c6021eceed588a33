//! One simulated buyer, from arriving to the last answer. A person knows the public API and its own pass, nothing
//! else; it writes down all it is told and judges nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use rules::id::{OfferId, OrderId};
use rules::order::State;
use rules::sale::{ChallengeKind, RegistrationKind};
use rules::time::UnixMs;
use rules::wire::{Code, OrderRequest, OrderView, PassGiven, Problem, SaleView, ServerTime};
use serde::{Deserialize, Serialize};

use crate::connection::{CallError, Request};
use crate::crowd::{Heard, Reply, Scene, Wanted, count};
use crate::history::{Call, History, Seen, Told, What, is_unsure};

/// How long a signed token lasts, in milliseconds: longer than any sale is rehearsed.
const TOKEN_LIFE_MS: i64 = 24 * 3_600_000;
/// How long to wait where the server does not say.
const RETRY_DEFAULT: Duration = Duration::from_millis(500);
/// No wait is shorter: it also bounds every loop of a person that is bounded by patience.
const RETRY_MIN: Duration = Duration::from_millis(20);
/// No told wait is believed beyond this, except for the opening itself.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long one look waits for news.
const LOOK_WAIT: Duration = Duration::from_secs(20);
/// The longest a proof of work may take, in milliseconds.
const SOLVE_MS_MAX: u64 = 60_000;
/// Spreads neighbouring numbers over the seeds.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Everything one buyer does.
pub(crate) async fn live(scene: Arc<Scene>, number: u32) -> Person {
    let mut person = Person::new(scene, number);
    if let Err(GaveUp(why)) = person.shop().await {
        count(&person.scene.progress.gave_up);
        let now = person.scene.clock.instant();
        person.note_at(now, now, What::GaveUp { why });
    }
    count(&person.scene.progress.gone);
    person
}

/// The look after everything is over: what was promised must be there, what hung in the air must have come down.
pub(crate) async fn look_once_more(mut person: Person) -> Person {
    for order in person.history.to_look_at() {
        // Whether it could be seen is in the history; there is nobody left to give up.
        let _ = person.watch(order, None, true).await;
    }
    person
}

#[derive(Debug)]
pub(crate) struct Person {
    scene: Arc<Scene>,
    pub number: u32,
    pub history: History,
    token: Option<Arc<str>>,
    /// The server's clock minus ours, in milliseconds.
    offset_ms: i64,
    choices: Choices,
    dice: Xoshiro256PlusPlus,
}

/// Decided before anything happens, so that the same seed makes the same people whatever they are told.
#[derive(Clone, Copy, Debug)]
struct Choices {
    arrives_after: Duration,
    jitter: Duration,
    double_click: bool,
    /// How much of the try is sent before hanging up, in percent.
    hang_up: Option<u8>,
    comes_back: bool,
}

/// Why a person goes home without an answer.
#[derive(Debug)]
struct GaveUp(String);

#[derive(Debug)]
struct Refusal {
    status: u16,
    code: String,
    wait: Duration,
    other: Option<OrderId>,
}

/// What a person has in hand before the opening.
#[derive(Debug)]
struct Ticket {
    offer: OfferId,
    order: OrderId,
    path: String,
    body: Vec<u8>,
}

/// What a person makes of the answer to a try.
#[derive(Debug)]
enum Outcome {
    Order(Seen),
    Refused,
    Again(Duration),
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    exp: i64,
}

#[derive(Deserialize)]
struct TokenGiven {
    token: String,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Challenge {
    None,
    Pow(Box<altcha::Challenge>),
    Picture {},
}

impl Person {
    fn new(scene: Arc<Scene>, number: u32) -> Self {
        let seed = scene.settings.seed.wrapping_add(u64::from(number).wrapping_mul(SEED_STEP));
        let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
        let choices = Choices::draw(&scene, &mut dice);
        let history = History::new(format!("{}{number}", scene.settings.name));
        Self { scene, number, history, token: None, offset_ms: 0, choices, dice }
    }

    async fn shop(&mut self) -> Result<(), GaveUp> {
        tokio::time::sleep(self.choices.arrives_after).await;
        count(&self.scene.progress.arrived);
        self.log_in().await?;
        let sale = self.read_sale().await?;
        self.read_time().await?;
        if sale.registration == RegistrationKind::Required {
            self.register(&sale).await;
        }
        let ticket = self.fetch_pass(&sale).await?;
        tokio::time::sleep(self.until(sale.opens_at) + self.choices.jitter).await;
        match self.choices.hang_up {
            Some(percent) => self.hang_up(&ticket, percent).await,
            None => self.buy(&ticket).await,
        }
    }

    async fn log_in(&mut self) -> Result<(), GaveUp> {
        let token = match &self.scene.signer {
            Some(signer) => {
                let exp = self.scene.clock.now().plus_ms(TOKEN_LIFE_MS).0 / 1_000;
                let claims = Claims { sub: &self.history.buyer, exp };
                jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &signer.0)
                    .map_err(|error| GaveUp(format!("no token could be signed: {error}")))?
            }
            None => {
                let body = serde_json::json!({ "buyer": self.history.buyer }).to_string();
                let heard = self
                    .ask_patiently(Call::LogIn, "POST", "/api/v1/demo/login", Some(body.as_bytes()))
                    .await?;
                read::<TokenGiven>(&heard, "token")?.token
            }
        };
        self.token = Some(token.into());
        Ok(())
    }

    async fn read_sale(&mut self) -> Result<SaleView, GaveUp> {
        let path = format!("/api/v1/sales/{}", self.scene.settings.sale);
        let asked = self.scene.clock.instant();
        let heard = self.ask_patiently(Call::Sale, "GET", &path, None).await?;
        let sale: SaleView = read(&heard, "sale")?;
        self.note(asked, What::Window { opens_at: sale.opens_at, closes_at: sale.closes_at });
        Ok(sale)
    }

    /// The server's clock was read somewhere between asking and hearing; the middle is the best guess.
    async fn read_time(&mut self) -> Result<(), GaveUp> {
        let asked = self.scene.clock.instant();
        let asked_at = self.scene.clock.now();
        let heard = self.ask_patiently(Call::Time, "GET", "/api/v1/time", None).await?;
        let middle = asked_at.0.midpoint(self.scene.clock.now().0);
        self.offset_ms = read::<ServerTime>(&heard, "time")?.now_ms.saturating_sub(middle);
        self.note(asked, What::Offset { ms: self.offset_ms });
        Ok(())
    }

    /// A person whose registration is refused goes on and hears at the pass what that means.
    async fn register(&mut self, sale: &SaleView) {
        let path = format!("/api/v1/sales/{}/registration", sale.id);
        let asked = self.scene.clock.instant();
        if self.ask_patiently(Call::Registration, "POST", &path, Some(b"{}")).await.is_ok() {
            self.note(asked, What::Registered);
        }
    }

    async fn fetch_pass(&mut self, sale: &SaleView) -> Result<Ticket, GaveUp> {
        let offer = self.wanted_offer(sale)?;
        let path = format!("/api/v1/offers/{offer}/pass");
        let patience = self.until(sale.opens_at) + self.scene.settings.patience;
        let give_up_at = self.scene.clock.instant() + patience;
        loop {
            // A challenge lives two minutes: solved before a long wait it would be stale after it.
            let solution = self.solve(sale.challenge, offer).await?;
            let body = serde_json::json!({ "solution": solution }).to_string();
            let token = self.token.clone();
            let reply = self.scene.ask(&Request::post(&path, token.as_deref(), body.as_bytes())).await;
            let refusal = match self.hear(Call::Pass, Some(offer), None, &reply) {
                Ok(heard) => return self.take_pass(offer, &reply, heard),
                Err(refusal) => refusal,
            };
            let wait = match refusal.status {
                425 => refusal.wait.min(self.until(sale.opens_at).max(RETRY_MIN)),
                429 | 500.. => refusal.wait.min(RETRY_MAX),
                403 if refusal.code == Code::ChallengeFailed.as_str() => RETRY_MIN,
                _ => return Err(GaveUp(format!("no pass: {}", refusal.code))),
            };
            self.pause(wait, give_up_at, "no pass in time").await?;
        }
    }

    fn take_pass(&mut self, offer: OfferId, reply: &Reply, heard: &Heard) -> Result<Ticket, GaveUp> {
        let PassGiven { pass, order_id: order, expires_at } = read(heard, "pass")?;
        self.note_at(reply.asked, reply.told, What::Pass { offer, order, expires_at });
        count(&self.scene.progress.passes);
        let quantity = self.scene.settings.quantity;
        let body = serde_json::to_vec(&OrderRequest { pass, quantity }).unwrap_or_default();
        Ok(Ticket { offer, order, path: format!("/api/v1/offers/{offer}/orders"), body })
    }

    fn wanted_offer(&self, sale: &SaleView) -> Result<OfferId, GaveUp> {
        let number = usize::try_from(self.number).unwrap_or(0);
        let position = match self.scene.settings.wanted {
            Wanted::First => 0,
            Wanted::Spread => number.checked_rem(sale.offers.len()).unwrap_or(0),
        };
        sale.offers
            .get(position)
            .map(|offer| offer.id)
            .ok_or_else(|| GaveUp("the sale offers nothing".into()))
    }

    async fn solve(
        &mut self,
        kind: ChallengeKind,
        offer: OfferId,
    ) -> Result<Option<altcha::Payload>, GaveUp> {
        if kind == ChallengeKind::None {
            return Ok(None);
        }
        let path = format!("/api/v1/offers/{offer}/challenge");
        let heard = self.ask_patiently(Call::Challenge, "POST", &path, Some(b"{}")).await?;
        match read(&heard, "challenge")? {
            Challenge::None => Ok(None),
            Challenge::Pow(challenge) => Box::pin(self.work(*challenge)).await.map(Some),
            Challenge::Picture {} => Err(GaveUp("cannot read pictures".into())),
        }
    }

    async fn work(&self, challenge: altcha::Challenge) -> Result<altcha::Payload, GaveUp> {
        let _permit = self.scene.solvers.acquire().await;
        let solving = tokio::task::spawn_blocking(move || {
            let mut options = altcha::SolveChallengeOptions::new(&challenge);
            options.timeout_ms = SOLVE_MS_MAX;
            let solution = altcha::solve_challenge(options).ok().flatten()?;
            Some(altcha::Payload { challenge, solution })
        });
        let solved = solving.await.ok().flatten();
        solved.ok_or_else(|| GaveUp("the proof of work was not found in time".into()))
    }

    async fn buy(&mut self, ticket: &Ticket) -> Result<(), GaveUp> {
        for number in 0..self.scene.settings.tries_max {
            let outcome = if number == 0 && self.choices.double_click {
                let (first, second) = tokio::join!(self.click(ticket), self.click(ticket));
                let outcomes = (self.hear_try(ticket, &first), self.hear_try(ticket, &second));
                better(outcomes.0, outcomes.1)
            } else {
                let reply = self.click(ticket).await;
                self.hear_try(ticket, &reply)
            };
            match outcome {
                Outcome::Order(seen) => return self.follow(seen).await,
                Outcome::Refused => return Ok(()),
                Outcome::Again(wait) => tokio::time::sleep(self.jittered(wait)).await,
            }
        }
        Err(GaveUp("too many tries without an answer".into()))
    }

    async fn click(&self, ticket: &Ticket) -> Reply {
        count(&self.scene.progress.tries);
        // No bearer: the pass says who.
        let reply = self.scene.ask(&Request::post(&ticket.path, None, &ticket.body)).await;
        self.scene.progress.count_try(&reply);
        reply
    }

    fn hear_try(&mut self, ticket: &Ticket, reply: &Reply) -> Outcome {
        let refusal = match self.hear(Call::Try, Some(ticket.offer), Some(ticket.order), reply) {
            Ok(heard) => match read::<OrderView>(heard, "order") {
                Ok(view) => {
                    let (status, order) = (heard.status, Seen::from(&view));
                    let asked = self.scene.settings.quantity;
                    let what = What::Order { status, pass: ticket.order, asked, order };
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
        let last = match seen.state {
            State::Queued => self.watch(seen.id, Some(seen.seq), false).await?,
            _ => Some(seen),
        };
        if last.is_some_and(|seen| seen.is_live() && seen.state != State::Queued) {
            count(&self.scene.progress.won);
        }
        Ok(())
    }

    async fn hang_up(&mut self, ticket: &Ticket, percent: u8) -> Result<(), GaveUp> {
        count(&self.scene.progress.tries);
        let asked = self.scene.clock.instant();
        let request = Request::post(&ticket.path, None, &ticket.body);
        match Box::pin(self.scene.hang_up(&request, percent)).await {
            Ok(bytes) => self.note(asked, What::HungUp { pass: ticket.order, bytes }),
            Err(error) => {
                count(&self.scene.progress.errors);
                let what = What::Broken { call: Call::Try, pass: Some(ticket.order), why: error.to_string() };
                self.note(asked, what);
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
    async fn watch(
        &mut self,
        id: OrderId,
        mut after: Option<u32>,
        last: bool,
    ) -> Result<Option<Seen>, GaveUp> {
        let offer = self.history.offer().map_or(String::new(), |offer| format!("offer={offer}&"));
        let give_up_at = self.scene.clock.instant() + self.scene.settings.patience;
        loop {
            let beyond = after.map_or(String::new(), |seq| format!("&after={seq}"));
            let path = format!("/api/v1/orders/{id}?{offer}wait={}{beyond}", LOOK_WAIT.as_secs());
            let token = self.token.clone();
            let reply = self.scene.ask_and_wait(&Request::get(&path, token.as_deref()), LOOK_WAIT).await;
            let wait = match self.hear(Call::Look, None, Some(id), &reply) {
                Ok(heard) => {
                    let seen = Seen::from(&read::<OrderView>(heard, "order")?);
                    self.note_at(reply.asked, reply.told, What::Looked { id, found: Some(seen), last });
                    if seen.state != State::Queued {
                        return Ok(Some(seen));
                    }
                    after = Some(seen.seq);
                    // A server without room for one more waiter answers at once.
                    RETRY_MIN
                }
                Err(refusal) if refusal.status == 404 => {
                    self.note_at(reply.asked, reply.told, What::Looked { id, found: None, last });
                    return Ok(None);
                }
                Err(refusal) if matches!(refusal.status, 0 | 429 | 500..) => refusal.wait.min(RETRY_MAX),
                Err(refusal) => return Err(GaveUp(format!("no look at the order: {}", refusal.code))),
            };
            self.pause(wait, give_up_at, "the order stayed queued").await?;
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
            let token = self.token.clone();
            let request = Request { method, path, bearer: token.as_deref(), body };
            let mut reply = self.scene.ask(&request).await;
            let refusal = match self.hear(call, None, None, &reply) {
                Ok(_) => {
                    let heard = std::mem::replace(&mut reply.result, Err(CallError::AnswerTimeout));
                    return heard.map_err(|error| GaveUp(error.to_string()));
                }
                Err(refusal) => refusal,
            };
            if !matches!(refusal.status, 0 | 429 | 500..) {
                return Err(GaveUp(format!("{call:?} was refused: {}", refusal.code)));
            }
            self.pause(refusal.wait.min(RETRY_MAX), give_up_at, "the shop did not answer").await?;
        }
    }

    /// Tells an answer from a refusal, which is written down at once. No answer is a refusal with status 0.
    fn hear<'a>(
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

    async fn pause(&mut self, wait: Duration, give_up_at: Instant, why: &str) -> Result<(), GaveUp> {
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
    fn until(&self, at: UnixMs) -> Duration {
        Duration::from_millis(self.scene.clock.now().plus_ms(self.offset_ms).ms_until(at))
    }

    fn note(&mut self, asked: Instant, what: What) {
        self.note_at(asked, self.scene.clock.instant(), what);
    }

    fn note_at(&mut self, asked: Instant, told: Instant, what: What) {
        let (asked_us, told_us) = (self.scene.clock.us_at(asked), self.scene.clock.us_at(told));
        self.history.events.push(Told { asked_us, told_us, what });
    }
}

impl Choices {
    fn draw(scene: &Scene, dice: &mut Xoshiro256PlusPlus) -> Self {
        let settings = &scene.settings;
        let hangs_up = dice.random_bool(settings.hang_up);
        // Half of them cut their own sentence, the others say it whole and do not wait for the answer.
        let percent = if dice.random_bool(0.5) { 100 } else { dice.random_range(1..100) };
        Self {
            arrives_after: settings.arrival_spread.mul_f64(dice.random_range(0.0..1.0)),
            jitter: settings.jitter.mul_f64(dice.random_range(0.0..1.0)),
            double_click: dice.random_bool(settings.double_click),
            hang_up: hangs_up.then_some(percent),
            comes_back: dice.random_bool(settings.come_back),
        }
    }
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

fn read<'a, T: Deserialize<'a>>(heard: &'a Heard, what: &str) -> Result<T, GaveUp> {
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
}
