//! Sales and offers: their fields, their window, and what a draft must look like.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::id::{OfferId, SaleId};
use crate::money::{AMOUNT_MAX, ListPrice, Money, Price};
use crate::object::object;
use crate::time::UnixMs;
use crate::words::{read_as_text, words};

pub const TITLE_CHARS_MAX: usize = 200;
pub const DESCRIPTION_CHARS_MAX: usize = 4_000;
pub const IMAGE_CHARS_MAX: usize = 2_000;
pub const OFFERS_PER_SALE_MAX: usize = 1_000;
pub const STOCK_MAX: u32 = 10_000_000;
pub const UNITS_PER_ORDER_MAX: u32 = 100;
pub const PAY_WITHIN_S_MAX: u32 = 86_400;
pub const PAY_WITHIN_S_DEFAULT: u32 = 900;

/// Where a sale stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Being prepared; nobody sees it.
    Draft,
    /// Visible; sells inside its window.
    Published,
    /// Visible; passes are given, orders are refused.
    Paused,
    /// Over for good.
    Ended,
}

words! {
    SaleState {
        Draft = "draft",
        Published = "published",
        Paused = "paused",
        Ended = "ended",
    }
}

/// What an operator can do to a sale's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaleAction {
    Publish,
    Pause,
    Resume,
    End,
}

impl SaleAction {
    /// The state after the action. Doing what is already done is harmless and answers the same state; `None` is an
    /// action that makes no sense from here.
    #[must_use]
    pub const fn apply(self, state: SaleState) -> Option<SaleState> {
        match (state, self) {
            (SaleState::Draft | SaleState::Published, Self::Publish)
            | (SaleState::Paused | SaleState::Published, Self::Resume) => Some(SaleState::Published),
            (SaleState::Published | SaleState::Paused, Self::Pause) => Some(SaleState::Paused),
            (SaleState::Published | SaleState::Paused | SaleState::Ended, Self::End) => {
                Some(SaleState::Ended)
            }
            (SaleState::Draft, Self::Pause | Self::Resume | Self::End)
            | (SaleState::Paused | SaleState::Ended, Self::Publish)
            | (SaleState::Ended, Self::Pause | Self::Resume) => None,
        }
    }
}

/// The part of its life a sale is in, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Upcoming,
    Open,
    Closed,
}

words! {
    Phase {
        Upcoming = "upcoming",
        Open = "open",
        Closed = "closed",
    }
}

/// What a sale's window does, as its receivers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    Opened,
    Closed,
}

impl Turn {
    /// The event's name for its receivers. Stable.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Opened => "sale.opened",
            Self::Closed => "sale.closed",
        }
    }
}

/// `[opens_at, closes_at)`: nobody is early, nobody is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub opens_at: UnixMs,
    pub closes_at: UnixMs,
}

impl Window {
    #[must_use]
    pub fn phase(self, now: UnixMs) -> Phase {
        if now < self.opens_at {
            Phase::Upcoming
        } else if now < self.closes_at {
            Phase::Open
        } else {
            Phase::Closed
        }
    }
}

/// What proves a human, or costs a bot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub enum ChallengeKind {
    #[default]
    None,
    Pow,
    Picture,
}

words! {
    ChallengeKind {
        None = "none",
        Pow = "pow",
        Picture = "picture",
    }
}

read_as_text!(ChallengeKind);

/// Whether buyers must sign up before the sale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub enum RegistrationKind {
    #[default]
    None,
    Required,
}

words! {
    RegistrationKind {
        None = "none",
        Required = "required",
    }
}

read_as_text!(RegistrationKind);

/// A sale as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sale {
    pub id: SaleId,
    pub state: SaleState,
    pub title: String,
    pub window: Window,
    pub pay_within_s: u32,
    pub challenge: ChallengeKind,
    pub registration: RegistrationKind,
    pub registration_opens_at: Option<UnixMs>,
    pub registration_closes_at: Option<UnixMs>,
    pub publish_at: Option<UnixMs>,
    pub rehearsal: bool,
    pub offers: Vec<Offer>,
}

impl Sale {
    #[must_use]
    pub fn phase(&self, now: UnixMs) -> Phase {
        match self.state {
            SaleState::Ended => Phase::Closed,
            SaleState::Draft | SaleState::Published | SaleState::Paused => self.window.phase(now),
        }
    }

    /// What is to be told now, in this order, when `told` is the phase that was told of last. Nothing is told twice, and
    /// what came while nobody looked is told afterwards: a window that opened and closed meanwhile was open. An end by
    /// the operator before the opening opens nothing; a later `closes_at` opens a closed window again.
    #[must_use]
    pub fn turns(&self, told: Phase, now: UnixMs) -> &'static [Turn] {
        match (told, self.phase(now)) {
            (Phase::Upcoming, Phase::Closed) if self.state != SaleState::Ended => {
                &[Turn::Opened, Turn::Closed]
            }
            (Phase::Upcoming | Phase::Closed, Phase::Open) => &[Turn::Opened],
            (Phase::Upcoming | Phase::Open, Phase::Closed) => &[Turn::Closed],
            (Phase::Upcoming | Phase::Open | Phase::Closed, Phase::Upcoming)
            | (Phase::Open, Phase::Open)
            | (Phase::Closed, Phase::Closed) => &[],
        }
    }

    /// Whether a buyer may sign up now: from `registration_opens_at` (at once, when unset) until
    /// `registration_closes_at` (the opening, when unset).
    #[must_use]
    pub fn registration_open(&self, now: UnixMs) -> bool {
        let opens = self.registration_opens_at.is_none_or(|opens_at| now >= opens_at);
        let closes_at = self.registration_closes_at.unwrap_or(self.window.opens_at);
        let takes = matches!(self.state, SaleState::Published | SaleState::Paused);
        takes && self.registration == RegistrationKind::Required && opens && now < closes_at
    }

    /// Whether it still matters who signed up: passes may be given, or buyers may sign up or leave, now or later. Once
    /// it does not, only a later `closes_at` makes it matter again, and then nobody signs up any more.
    #[must_use]
    pub fn needs_registrations(&self, now: UnixMs) -> bool {
        let runs = matches!(self.state, SaleState::Published | SaleState::Paused);
        let signs_up = self.registration_closes_at.is_some_and(|closes_at| now < closes_at);
        let asks = self.registration == RegistrationKind::Required;
        runs && asks && (signs_up || now < self.window.closes_at)
    }
}

/// An offer as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub id: OfferId,
    pub name: String,
    pub description: Option<String>,
    pub image: Option<String>,
    pub list_price: Option<Money>,
    pub price: Money,
    pub stock: u32,
    pub max_per_order: u32,
}

/// What an operator sends to make a sale.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaleDraft {
    #[schema(
        min_length = 1,
        max_length = 200,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$",
        example = "1499 night"
    )]
    pub title: String,
    /// May lie in the past: then the sale opens when it is published.
    #[schema(value_type = String, format = DateTime)]
    pub opens_at: UnixMs,
    #[schema(value_type = String, format = DateTime)]
    pub closes_at: UnixMs,
    /// Seconds a buyer has to pay once the order is recorded.
    #[serde(default = "pay_within_default")]
    #[schema(minimum = 1, maximum = 86_400, default = 900)]
    pub pay_within_s: u32,
    #[serde(default)]
    pub challenge: ChallengeKind,
    #[serde(default)]
    pub registration: RegistrationKind,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_opens_at: Option<UnixMs>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_closes_at: Option<UnixMs>,
    /// Publishes and preheats by itself at this time, once (定时上架).
    #[schema(value_type = Option<String>, format = DateTime)]
    pub publish_at: Option<UnixMs>,
    /// Never listed, no webhooks.
    #[serde(default)]
    pub rehearsal: bool,
    #[schema(min_items = 1, max_items = 1_000)]
    pub offers: Vec<OfferDraft>,
}

/// What an operator sends to make an offer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct OfferDraft {
    #[schema(
        min_length = 1,
        max_length = 200,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$",
        example = "Feitian 53"
    )]
    pub name: String,
    #[schema(max_length = 4_000, pattern = r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")]
    pub description: Option<String>,
    /// An https address, or a path on this server.
    #[schema(
        max_length = 2_000,
        pattern = r"^(https://[^\x00-\x1f\x7f-\x9f]*|/([^/\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*)?)$"
    )]
    pub image: Option<String>,
    #[schema(value_type = Option<ListPrice>)]
    pub list_price: Option<Money>,
    #[schema(value_type = Price)]
    pub price: Money,
    #[schema(minimum = 0, maximum = 10_000_000)]
    pub stock: u32,
    #[serde(default = "max_per_order_default")]
    #[schema(minimum = 1, maximum = 100, default = 1)]
    pub max_per_order: u32,
}

object!(OfferDraft);

fn pay_within_default() -> u32 {
    PAY_WITHIN_S_DEFAULT
}

fn max_per_order_default() -> u32 {
    1
}

/// A field that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct FieldError {
    /// Path of the field as the sender wrote it, for example `offers[2].price.amount`.
    pub field: String,
    /// What is wrong with it, to be read after the field's name.
    pub problem: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

impl Sale {
    /// The whole sale is as it must be, or the first field that is not.
    pub fn check(&self) -> Result<(), FieldError> {
        check_text("title", &self.title, 1, TITLE_CHARS_MAX)?;
        if self.window.opens_at >= self.window.closes_at {
            return Err(FieldError::new("closes_at", "must be later than opens_at"));
        }
        if self.publish_at.is_some_and(|publish_at| publish_at >= self.window.closes_at) {
            return Err(FieldError::new("publish_at", "must be earlier than closes_at"));
        }
        check_range("pay_within_s", self.pay_within_s, 1, PAY_WITHIN_S_MAX)?;
        self.check_registration()?;
        if self.offers.is_empty() || self.offers.len() > OFFERS_PER_SALE_MAX {
            return Err(FieldError::new("offers", "must hold 1 to 1,000 offers"));
        }
        for (index, offer) in self.offers.iter().enumerate() {
            offer.check(&format!("offers[{index}]."))?;
        }
        Ok(())
    }

    fn check_registration(&self) -> Result<(), FieldError> {
        let times = [
            ("registration_opens_at", self.registration_opens_at),
            ("registration_closes_at", self.registration_closes_at),
        ];
        for (field, time) in times {
            if time.is_some() && self.registration == RegistrationKind::None {
                return Err(FieldError::new(field, "needs registration to be required"));
            }
        }
        if let (Some(opens_at), Some(closes_at)) = (self.registration_opens_at, self.registration_closes_at)
            && opens_at >= closes_at
        {
            return Err(FieldError::new(
                "registration_closes_at",
                "must be later than registration_opens_at",
            ));
        }
        Ok(())
    }
}

impl Offer {
    /// The offer is as it must be; `path` stands before the field's name in the error.
    pub fn check(&self, path: &str) -> Result<(), FieldError> {
        let field = |name: &str| format!("{path}{name}");
        check_text(&field("name"), &self.name, 1, TITLE_CHARS_MAX)?;
        if let Some(description) = &self.description {
            check_text(&field("description"), description, 0, DESCRIPTION_CHARS_MAX)?;
        }
        if let Some(image) = &self.image {
            check_image(&field("image"), image)?;
        }
        // What costs nothing could not be paid: every order of it would lapse.
        check_amount(&field("price.amount"), self.price, 1)?;
        if !self.price.currency.is_in_use() {
            return Err(FieldError::new(
                field("price.currency"),
                "is no currency that people pay with today",
            ));
        }
        if let Some(list_price) = self.list_price {
            check_amount(&field("list_price.amount"), list_price, 0)?;
            if list_price.currency != self.price.currency {
                return Err(FieldError::new(field("list_price.currency"), "must be the currency of price"));
            }
        }
        check_range(&field("stock"), self.stock, 0, STOCK_MAX)?;
        check_range(&field("max_per_order"), self.max_per_order, 1, UNITS_PER_ORDER_MAX)?;
        let dearest = self.price.times(self.max_per_order);
        if dearest.is_none_or(|total| total.amount > AMOUNT_MAX) {
            let problem = format!("times max_per_order must be at most {AMOUNT_MAX} minor units");
            return Err(FieldError::new(field("price.amount"), problem));
        }
        Ok(())
    }
}

fn check_text(field: &str, text: &str, min: usize, max: usize) -> Result<(), FieldError> {
    let chars = text.chars().count();
    if chars < min || chars > max {
        return Err(FieldError::new(field, format!("must have {min} to {max} characters")));
    }
    if min > 0 && text.trim().is_empty() {
        return Err(FieldError::new(field, "must not be blank"));
    }
    let allowed = |c: char| !c.is_control() || (min == 0 && matches!(c, '\n' | '\t'));
    if text.chars().all(allowed) {
        Ok(())
    } else {
        Err(FieldError::new(field, "must not contain control characters"))
    }
}

fn check_image(field: &str, image: &str) -> Result<(), FieldError> {
    check_text(field, image, 1, IMAGE_CHARS_MAX)?;
    let local = image.starts_with('/') && !image.starts_with("//");
    if local || image.starts_with("https://") {
        Ok(())
    } else {
        Err(FieldError::new(field, "must be an https address, or a path that starts with /"))
    }
}

fn check_amount(field: &str, money: Money, min: i64) -> Result<(), FieldError> {
    if (min..=AMOUNT_MAX).contains(&money.amount) {
        Ok(())
    } else {
        Err(FieldError::new(field, format!("must lie between {min} and {AMOUNT_MAX} minor units")))
    }
}

fn check_range(field: &str, value: u32, min: u32, max: u32) -> Result<(), FieldError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(FieldError::new(field, format!("must lie between {min} and {max}")))
    }
}

impl SaleDraft {
    /// The sale this draft describes; `offer_id` names its offers.
    pub fn into_sale(self, id: SaleId, offer_id: impl FnMut() -> OfferId) -> Result<Sale, FieldError> {
        let mut offer_id = offer_id;
        let sale = Sale {
            id,
            state: SaleState::Draft,
            title: self.title,
            window: Window { opens_at: self.opens_at, closes_at: self.closes_at },
            pay_within_s: self.pay_within_s,
            challenge: self.challenge,
            registration: self.registration,
            registration_opens_at: self.registration_opens_at,
            registration_closes_at: self.registration_closes_at,
            publish_at: self.publish_at,
            rehearsal: self.rehearsal,
            offers: self.offers.into_iter().map(|draft| draft.into_offer(offer_id())).collect(),
        };
        sale.check()?;
        Ok(sale)
    }
}

impl OfferDraft {
    #[must_use]
    pub fn into_offer(self, id: OfferId) -> Offer {
        Offer {
            id,
            name: self.name,
            description: self.description,
            image: self.image,
            list_price: self.list_price,
            price: self.price,
            stock: self.stock,
            max_per_order: self.max_per_order,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> SaleDraft {
        serde_json::from_str(
            r#"{"title":"1499 night","opens_at":"2026-12-01T12:00:00Z","closes_at":"2026-12-01T13:00:00Z",
                "offers":[{"name":"Feitian 53","price":{"amount":149900,"currency":"CNY"},"stock":100}]}"#,
        )
        .unwrap()
    }

    fn refused(change: impl FnOnce(&mut SaleDraft)) -> String {
        let mut draft = draft();
        change(&mut draft);
        draft.into_sale(SaleId(1), || OfferId(2)).expect_err("must be refused").field
    }

    /// The full table of what is told of a window.
    #[test]
    fn the_table_of_turns_is_exactly_this() {
        let mut table = String::new();
        for state in [SaleState::Published, SaleState::Paused, SaleState::Ended] {
            for told in Phase::ALL {
                for (when, minute) in [("before", -1), ("in", 30), ("after", 60)] {
                    let mut sale = draft().into_sale(SaleId(1), || OfferId(2)).unwrap();
                    sale.state = state;
                    let turns = sale.turns(told, sale.window.opens_at.plus_ms(minute * 60_000));
                    if !turns.is_empty() {
                        let kinds: Vec<&str> = turns.iter().map(|turn| turn.kind()).collect();
                        table.push_str(&format!(
                            "{} told {} {when}: {}\n",
                            state.as_str(),
                            told.as_str(),
                            kinds.join(", ")
                        ));
                    }
                }
            }
        }
        let expected = "\
published told upcoming in: sale.opened
published told upcoming after: sale.opened, sale.closed
published told open after: sale.closed
published told closed in: sale.opened
paused told upcoming in: sale.opened
paused told upcoming after: sale.opened, sale.closed
paused told open after: sale.closed
paused told closed in: sale.opened
ended told upcoming before: sale.closed
ended told upcoming in: sale.closed
ended told upcoming after: sale.closed
ended told open before: sale.closed
ended told open in: sale.closed
ended told open after: sale.closed
";
        assert_eq!(table, expected);
        for phase in Phase::ALL {
            assert_eq!(Phase::parse(phase.as_str()), Some(phase));
        }
    }

    #[test]
    fn registrations_matter_until_neither_passes_nor_registrations_are_to_be_had() {
        let mut sale = draft().into_sale(SaleId(1), || OfferId(2)).unwrap();
        let closes_at = sale.window.closes_at;
        sale.state = SaleState::Published;
        assert!(!sale.needs_registrations(UnixMs(0)), "nobody is asked to sign up");
        sale.registration = RegistrationKind::Required;
        let needed = |sale: &Sale, at: UnixMs| [-1, 0].map(|ms| sale.needs_registrations(at.plus_ms(ms)));
        assert_eq!(needed(&sale, closes_at), [true, false]);
        sale.registration_closes_at = Some(closes_at.plus_s(60));
        assert_eq!(needed(&sale, closes_at), [true, true], "buyers may still leave");
        assert_eq!(needed(&sale, closes_at.plus_s(60)), [true, false]);
        for (state, expected) in
            [(SaleState::Draft, false), (SaleState::Paused, true), (SaleState::Ended, false)]
        {
            sale.state = state;
            assert_eq!(sale.needs_registrations(UnixMs(0)), expected, "{state:?}");
        }
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let sale = draft().into_sale(SaleId(1), || OfferId(2)).unwrap();
        assert_eq!((sale.pay_within_s, sale.challenge), (900, ChallengeKind::None));
        assert_eq!((sale.offers[0].max_per_order, sale.rehearsal), (1, false));
    }

    #[test]
    fn an_order_may_cost_as_much_as_an_amount_may_be() {
        let mut draft = draft();
        draft.offers[0].price.amount = AMOUNT_MAX / 2;
        draft.offers[0].max_per_order = 2;
        assert!(draft.into_sale(SaleId(1), || OfferId(2)).is_ok());
    }

    #[test]
    fn a_sale_may_be_as_long_as_there_are_times() {
        let mut draft = draft();
        draft.opens_at = UnixMs::parse("2000-01-01T00:00:00Z").unwrap();
        draft.closes_at = UnixMs::parse("2199-12-31T23:59:59Z").unwrap();
        let sale = draft.into_sale(SaleId(1), || OfferId(2)).unwrap();
        assert_eq!(sale.phase(UnixMs::parse("2099-01-01T00:00:00Z").unwrap()), Phase::Open);
    }

    #[test]
    fn the_refusal_names_the_field() {
        assert_eq!(refused(|draft| draft.title.clear()), "title");
        assert_eq!(refused(|draft| draft.title = "   ".into()), "title");
        assert_eq!(refused(|draft| draft.title = "a\u{7}b".into()), "title");
        assert_eq!(refused(|draft| draft.title = "字".repeat(201)), "title");
        assert_eq!(refused(|draft| draft.closes_at = draft.opens_at), "closes_at");
        assert_eq!(refused(|draft| draft.pay_within_s = 0), "pay_within_s");
        assert_eq!(refused(|draft| draft.pay_within_s = 86_401), "pay_within_s");
        assert_eq!(refused(|draft| draft.offers.clear()), "offers");
        assert_eq!(refused(|draft| draft.offers[0].stock = STOCK_MAX + 1), "offers[0].stock");
        assert_eq!(refused(|draft| draft.offers[0].max_per_order = 0), "offers[0].max_per_order");
        assert_eq!(refused(|draft| draft.offers[0].price.amount = -1), "offers[0].price.amount");
        assert_eq!(refused(|draft| draft.offers[0].price.amount = 0), "offers[0].price.amount");
        assert_eq!(
            refused(|draft| {
                draft.offers[0].price.amount = AMOUNT_MAX / 2;
                draft.offers[0].max_per_order = 3;
            }),
            "offers[0].price.amount"
        );
        for code in [concat!("XX", "X"), "XTS", "XAU", "BYR", "ROL", "CLF"] {
            let refused = refused(|draft| draft.offers[0].price.currency = code.parse().unwrap());
            assert_eq!(refused, "offers[0].price.currency", "{code}");
        }
        assert_eq!(refused(|draft| draft.publish_at = Some(draft.closes_at)), "publish_at");
        assert_eq!(refused(|draft| draft.offers[0].image = Some("http://x/y.png".into())), "offers[0].image");
        assert_eq!(
            refused(|draft| draft.registration_opens_at = Some(draft.opens_at)),
            "registration_opens_at"
        );
    }

    #[test]
    fn fields_nobody_may_set_are_refused() {
        for extra in [r#""state":"published""#, r#""id":"x""#, r#""sold":3"#] {
            let json = format!(
                r#"{{"title":"t","opens_at":"2026-12-01T12:00:00Z","closes_at":"2026-12-02T12:00:00Z","offers":[],{extra}}}"#
            );
            assert!(serde_json::from_str::<SaleDraft>(&json).is_err(), "{extra}");
        }
    }

    #[test]
    fn the_window_is_half_open() {
        let window = Window { opens_at: UnixMs(10), closes_at: UnixMs(20) };
        let phases = [9, 10, 19, 20].map(|now| window.phase(UnixMs(now)));
        assert_eq!(phases, [Phase::Upcoming, Phase::Open, Phase::Open, Phase::Closed]);
    }

    #[test]
    fn the_table_of_actions_is_exactly_this() {
        use SaleAction::{End, Pause, Publish, Resume};
        let table = [Publish, Pause, Resume, End]
            .map(|action| SaleState::ALL.map(|state| action.apply(state).map(SaleState::as_str)));
        let (published, paused, ended) = (Some("published"), Some("paused"), Some("ended"));
        assert_eq!(
            table,
            [
                [published, published, None, None],
                [None, paused, paused, None],
                [None, published, published, None],
                [None, ended, ended, ended],
            ]
        );
    }
}
