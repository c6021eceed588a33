//! `GET /api/v1/sales/{sale}/availability`: what a page may say about what is left. Counted at most once per second and
//! sale, however many ask.

use std::sync::Arc;

use axum::extract::State;
use http::HeaderMap;
use rules::id::SaleId;
use rules::sale::Phase;
use rules::wire::{Availability, AvailabilityState, Code, OfferAvailability, OfferStats};

use crate::app::App;
use crate::catalogue::{Rendered, SaleCard};
use crate::edge::cached;
use crate::edge::extract::IdPath;
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal};
use crate::ledger::{LedgerError, LedgerResult};

/// How long the answer may be kept, in seconds.
const MAX_AGE_S: u64 = 1;

problems! {
    Refusals = NotFound TooFast Internal Busy;
}

/// What is left of each offer, in words; when units may come back; how many buyers signed up. One second old at most.
#[utoipa::path(
    get, path = "/api/v1/sales/{sale}/availability", tag = "buyer",
    params(("sale" = SaleId, Path, description = "The sale's id.")),
    responses(
        (status = 200, body = Availability),
        (status = 304, description = "As before: `If-None-Match` names the present `ETag`."),
        Refusals,
    )
)]
pub async fn availability(
    State(app): State<Arc<App>>,
    IdPath(sale): IdPath<SaleId>,
    headers: HeaderMap,
) -> Answer {
    let card = app.catalogue.sale(sale).ok_or_else(|| Refusal::new(Code::NotFound))?;
    let now = app.clock.now();
    let phase = card.sale.phase(now);
    let latest = card.availability.get(now, phase, count(&app, &card, phase)).await?;
    Ok(cached::json(&headers, &latest.etag, MAX_AGE_S, vec![latest.json]))
}

async fn count(app: &App, card: &SaleCard, phase: Phase) -> LedgerResult<Rendered> {
    let gone = || LedgerError::Unavailable("the sale is in the catalogue and not in the ledger".into());
    let stats = app.stats(card.sale.id).await?.ok_or_else(gone)?;
    // Looking for deadlines means walking over all unpaid orders: not when there are none.
    let some_held = stats.offers.iter().any(|offer| offer.held > 0);
    let returns = if some_held { app.ledger.next_returns(card.sale.id).await? } else { Default::default() };
    let offer = |offer: &OfferStats| OfferAvailability {
        offer_id: offer.offer_id,
        state: state_of(phase, offer),
        next_return_at: returns.get(&offer.offer_id).copied(),
    };
    Ok(Rendered::of(&Availability {
        sale_id: card.sale.id,
        offers: stats.offers.iter().map(offer).collect(),
        registrations: stats.registrations,
    }))
}

/// A paused sale counts as its window says: the try itself tells that it is paused.
fn state_of(phase: Phase, offer: &OfferStats) -> AvailabilityState {
    let few = u64::from(offer.free) * 10 < u64::from(offer.stock);
    match phase {
        Phase::Upcoming => AvailabilityState::Upcoming,
        Phase::Closed => AvailabilityState::Closed,
        Phase::Open if offer.free == 0 && offer.held == 0 => AvailabilityState::AllPaid,
        Phase::Open if offer.free == 0 => AvailabilityState::SoldOut,
        Phase::Open if few => AvailabilityState::Few,
        Phase::Open => AvailabilityState::Open,
    }
}

#[cfg(test)]
mod tests {
    use rules::id::OfferId;

    use super::*;

    #[test]
    fn the_words_follow_the_numbers() {
        let state = |phase, stock, free, held| {
            let sold = stock - free - held;
            let offer = OfferStats { offer_id: OfferId(1), stock, free, held, sold, returning: 0 };
            state_of(phase, &offer)
        };
        assert_eq!(state(Phase::Upcoming, 10, 10, 0), AvailabilityState::Upcoming);
        assert_eq!(state(Phase::Open, 10, 1, 9), AvailabilityState::Open);
        assert_eq!(state(Phase::Open, 11, 1, 0), AvailabilityState::Few);
        assert_eq!(state(Phase::Open, 10, 0, 1), AvailabilityState::SoldOut);
        assert_eq!(state(Phase::Open, 10, 0, 0), AvailabilityState::AllPaid);
        assert_eq!(state(Phase::Closed, 10, 5, 0), AvailabilityState::Closed);
    }
}
