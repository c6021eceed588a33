//! What an operator may change of a sale, and until when. Pure: the caller says what time it is.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::id::OfferId;
use crate::money::{ListPrice, Money, Price};
use crate::sale::{ChallengeKind, FieldError, Offer, OfferDraft, Phase, RegistrationKind, Sale, SaleState};
use crate::time::UnixMs;

/// A field that was given has a value; where `null` means something, that value is an option itself.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// What an operator sends to change a sale: only what changes. `null` clears what is optional.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaleChange {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(
        value_type = String, min_length = 1, max_length = 200,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
    )]
    pub title: Option<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime)]
    pub opens_at: Option<UnixMs>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime)]
    pub closes_at: Option<UnixMs>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, minimum = 1, maximum = 86_400)]
    pub pay_within_s: Option<u32>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = ChallengeKind)]
    pub challenge: Option<ChallengeKind>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = RegistrationKind)]
    pub registration: Option<RegistrationKind>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_opens_at: Option<Option<UnixMs>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_closes_at: Option<Option<UnixMs>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub publish_at: Option<Option<UnixMs>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool)]
    pub rehearsal: Option<bool>,
    /// Replaces all offers of a draft; they get new ids.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<OfferDraft>, min_items = 1, max_items = 1_000)]
    pub offers: Option<Vec<OfferDraft>>,
}

/// What an operator sends to change an offer: only what changes. `null` clears what is optional.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OfferChange {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(
        value_type = String, min_length = 1, max_length = 200,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
    )]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 4_000, pattern = r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")]
    pub description: Option<Option<String>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(
        value_type = Option<String>, max_length = 2_000,
        pattern = r"^(https://[^\x00-\x1f\x7f-\x9f]*|/([^/\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*)?)$"
    )]
    pub image: Option<Option<String>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ListPrice>)]
    pub list_price: Option<Option<Money>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Price)]
    pub price: Option<Money>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, minimum = 0, maximum = 10_000_000)]
    pub stock: Option<u32>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, minimum = 1, maximum = 100)]
    pub max_per_order: Option<u32>,
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// It is too late to change this field.
    #[error("{0}")]
    NotEditable(FieldError),
    /// The field would not be as it must be.
    #[error("{0}")]
    Invalid(FieldError),
}

impl From<FieldError> for EditError {
    fn from(error: FieldError) -> Self {
        Self::Invalid(error)
    }
}

impl SaleChange {
    /// The sale after the change. A value that is the same as before is no change. `offer_id` names new offers.
    pub fn apply(
        self,
        before: Sale,
        now: UnixMs,
        offer_id: impl FnMut() -> OfferId,
    ) -> Result<Sale, EditError> {
        if self.offers.is_some() && before.state != SaleState::Draft {
            return Err(too_late("offers", before.state));
        }
        let mut after = before.clone();
        self.write(&mut after, offer_id);
        if before.state != SaleState::Draft {
            check_public_change(&before, &after, now)?;
        }
        after.check()?;
        Ok(after)
    }

    fn write(self, sale: &mut Sale, mut offer_id: impl FnMut() -> OfferId) {
        set(&mut sale.title, self.title);
        set(&mut sale.window.opens_at, self.opens_at);
        set(&mut sale.window.closes_at, self.closes_at);
        set(&mut sale.pay_within_s, self.pay_within_s);
        set(&mut sale.challenge, self.challenge);
        set(&mut sale.registration, self.registration);
        set(&mut sale.registration_opens_at, self.registration_opens_at);
        set(&mut sale.registration_closes_at, self.registration_closes_at);
        set(&mut sale.publish_at, self.publish_at);
        set(&mut sale.rehearsal, self.rehearsal);
        let offers = self
            .offers
            .map(|drafts| drafts.into_iter().map(|draft| draft.into_offer(offer_id())).collect::<Vec<_>>());
        set(&mut sale.offers, offers);
    }
}

impl OfferChange {
    /// The sale with this offer changed; `None` when it has no such offer.
    pub fn apply(self, sale: Sale, id: OfferId) -> Result<Option<Sale>, EditError> {
        let state = sale.state;
        let mut sale = sale;
        let Some(offer) = sale.offers.iter_mut().find(|offer| offer.id == id) else { return Ok(None) };
        let before = offer.clone();
        self.write(offer);
        if state != SaleState::Draft {
            check_public_offer_change(&before, offer, state)?;
        }
        offer.check("")?;
        Ok(Some(sale))
    }

    fn write(self, offer: &mut Offer) {
        set(&mut offer.name, self.name);
        set(&mut offer.description, self.description);
        set(&mut offer.image, self.image);
        set(&mut offer.list_price, self.list_price);
        set(&mut offer.price, self.price);
        set(&mut offer.stock, self.stock);
        set(&mut offer.max_per_order, self.max_per_order);
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// Once buyers know of a sale: its title, a later end, and while it is upcoming a later opening. Of an ended sale,
/// nothing.
fn check_public_change(before: &Sale, after: &Sale, now: UnixMs) -> Result<(), EditError> {
    let fixed = [
        ("pay_within_s", before.pay_within_s != after.pay_within_s),
        ("challenge", before.challenge != after.challenge),
        ("registration", before.registration != after.registration),
        ("registration_opens_at", before.registration_opens_at != after.registration_opens_at),
        ("registration_closes_at", before.registration_closes_at != after.registration_closes_at),
        ("publish_at", before.publish_at != after.publish_at),
        ("rehearsal", before.rehearsal != after.rehearsal),
        ("title", before.title != after.title && before.state == SaleState::Ended),
        ("opens_at", before.window.opens_at != after.window.opens_at && before.phase(now) != Phase::Upcoming),
        ("closes_at", before.window.closes_at != after.window.closes_at && before.state == SaleState::Ended),
    ];
    if let Some((field, _)) = fixed.into_iter().find(|(_, changed)| *changed) {
        return Err(too_late(field, before.state));
    }
    let earlier = [
        ("opens_at", after.window.opens_at < before.window.opens_at),
        ("closes_at", after.window.closes_at < before.window.closes_at),
    ];
    match earlier.into_iter().find(|(_, earlier)| *earlier) {
        Some((field, _)) => Err(EditError::NotEditable(FieldError::new(field, "can only become later"))),
        None => Ok(()),
    }
}

/// Once buyers know of an offer: only its description and its image. Its stock has a call of its own.
fn check_public_offer_change(before: &Offer, after: &Offer, state: SaleState) -> Result<(), EditError> {
    let ended = state == SaleState::Ended;
    let fixed = [
        ("name", before.name != after.name),
        ("list_price", before.list_price != after.list_price),
        ("price", before.price != after.price),
        ("stock", before.stock != after.stock),
        ("max_per_order", before.max_per_order != after.max_per_order),
        ("description", before.description != after.description && ended),
        ("image", before.image != after.image && ended),
    ];
    match fixed.into_iter().find(|(_, changed)| *changed) {
        Some((field, _)) => Err(too_late(field, state)),
        None => Ok(()),
    }
}

fn too_late(field: &str, state: SaleState) -> EditError {
    let problem = match state {
        SaleState::Ended => "cannot be changed once the sale has ended",
        SaleState::Draft | SaleState::Published | SaleState::Paused => {
            "can no longer be changed: buyers know the sale"
        }
    };
    EditError::NotEditable(FieldError::new(field, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SaleId;
    use crate::sale::SaleDraft;

    const NOON: i64 = 1_796_126_400_000;

    fn sale(state: SaleState) -> Sale {
        let draft: SaleDraft = serde_json::from_str(
            r#"{"title":"1499 night","opens_at":"2026-12-01T12:00:00Z","closes_at":"2026-12-01T13:00:00Z",
                "publish_at":"2026-11-30T12:00:00Z",
                "offers":[{"name":"Feitian 53","price":{"amount":149900,"currency":"CNY"},"stock":100}]}"#,
        )
        .unwrap();
        let sale = draft.into_sale(SaleId(1), || OfferId(2)).unwrap();
        Sale { state, ..sale }
    }

    fn edit(state: SaleState, now: i64, json: &str) -> Result<Sale, EditError> {
        let change: SaleChange = serde_json::from_str(json).unwrap();
        change.apply(sale(state), UnixMs(now), || OfferId(9))
    }

    fn refused(state: SaleState, now: i64, json: &str) -> String {
        match edit(state, now, json) {
            Err(EditError::NotEditable(error)) => error.field,
            other => panic!("{json}: {other:?}"),
        }
    }

    #[test]
    fn a_draft_takes_every_change_and_null_clears() {
        let after = edit(
            SaleState::Draft,
            0,
            r#"{"publish_at":null,"pay_within_s":60,"opens_at":"2026-12-01T11:00:00Z"}"#,
        );
        let after = after.unwrap();
        assert_eq!((after.publish_at, after.pay_within_s), (None, 60));
        let offers = r#"{"offers":[{"name":"Other","price":{"amount":1,"currency":"CNY"},"stock":1}]}"#;
        assert_eq!(edit(SaleState::Draft, 0, offers).unwrap().offers[0].id, OfferId(9));
        assert!(matches!(edit(SaleState::Draft, 0, r#"{"offers":[]}"#), Err(EditError::Invalid(_))));
    }

    #[test]
    fn null_is_no_value_where_one_is_needed() {
        for json in
            [r#"{"title":null}"#, r#"{"opens_at":null}"#, r#"{"offers":null}"#, r#"{"rehearsal":null}"#]
        {
            assert!(serde_json::from_str::<SaleChange>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_published_sale_takes_a_title_and_later_times_only() {
        let early = NOON - 1;
        let published = SaleState::Published;
        assert!(edit(published, early, r#"{"title":"Tonight"}"#).is_ok());
        assert!(edit(published, early, r#"{"closes_at":"2026-12-01T14:00:00Z"}"#).is_ok());
        assert!(edit(published, early, r#"{"opens_at":"2026-12-01T12:30:00Z"}"#).is_ok());
        assert!(edit(SaleState::Paused, NOON, r#"{"closes_at":"2026-12-01T14:00:00Z"}"#).is_ok());
        assert_eq!(refused(published, NOON, r#"{"opens_at":"2026-12-01T12:30:00Z"}"#), "opens_at");
        assert_eq!(refused(published, early, r#"{"opens_at":"2026-12-01T11:30:00Z"}"#), "opens_at");
        assert_eq!(refused(published, early, r#"{"closes_at":"2026-12-01T12:59:00Z"}"#), "closes_at");
        assert_eq!(refused(published, early, r#"{"pay_within_s":60}"#), "pay_within_s");
        assert_eq!(refused(published, early, r#"{"challenge":"pow"}"#), "challenge");
        assert_eq!(refused(published, early, r#"{"registration":"required"}"#), "registration");
        assert_eq!(refused(published, early, r#"{"rehearsal":true}"#), "rehearsal");
        assert_eq!(refused(published, early, r#"{"publish_at":null}"#), "publish_at");
        assert_eq!(refused(published, early, r#"{"offers":[]}"#), "offers");
    }

    #[test]
    fn an_ended_sale_takes_nothing_but_what_it_has() {
        let ended = SaleState::Ended;
        assert_eq!(refused(ended, NOON, r#"{"title":"Again"}"#), "title");
        assert_eq!(refused(ended, 0, r#"{"closes_at":"2026-12-01T14:00:00Z"}"#), "closes_at");
        assert_eq!(refused(ended, 0, r#"{"opens_at":"2026-12-01T12:30:00Z"}"#), "opens_at");
        assert!(edit(ended, NOON, r#"{"title":"1499 night"}"#).is_ok());
    }

    #[test]
    fn a_published_offer_changes_only_how_it_is_described() {
        let change = |state, json: &str| {
            let change: OfferChange = serde_json::from_str(json).unwrap();
            change.apply(sale(state), OfferId(2))
        };
        let published = SaleState::Published;
        for json in [
            r#"{"description":"…"}"#,
            r#"{"image":"/x.png"}"#,
            r#"{"stock":100}"#,
            r#"{"name":"Feitian 53"}"#,
        ] {
            assert!(matches!(change(published, json), Ok(Some(_))), "{json}");
            let is_same = json.contains("stock") || json.contains("name");
            assert_eq!(change(SaleState::Ended, json).is_ok(), is_same, "{json}");
        }
        for json in [
            r#"{"name":"New"}"#,
            r#"{"stock":99}"#,
            r#"{"price":{"amount":1,"currency":"CNY"}}"#,
            r#"{"list_price":{"amount":1,"currency":"CNY"}}"#,
            r#"{"max_per_order":2}"#,
        ] {
            assert!(matches!(change(published, json), Err(EditError::NotEditable(_))), "{json}");
            assert!(matches!(change(SaleState::Draft, json), Ok(Some(_))), "{json}");
        }
        assert_eq!(OfferChange::default().apply(sale(published), OfferId(7)), Ok(None));
    }
}
