//! `POST /api/v1/orders/{id}/payment`: the buyer's way to a payment provider.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Extension, FromRequest as _, Request, State};
use http::header::USER_AGENT;
use http::{HeaderMap, StatusCode};
use rules::id::OrderId;
use rules::payment::PAYMENTS_PER_ORDER_MAX;
use rules::wire::{Code, PaymentGiven, PaymentRequest};

use super::not_too_fast;
use crate::app::App;
use crate::edge::extract::{Buyer, IdPath, JsonBody};
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::edge::router::{ClientAddress, Place};
use crate::payment::providers::Device;
use crate::payment::till::PayAnswer;

problems! {
    Refusals = Malformed Unauthorized NotFound NotPayable NotYet TooLarge UnsupportedMediaType InvalidRequest TooFast
        Internal ProviderRefused ProviderUnavailable Busy Unsure;
}

/// Starts the payment of an order and says where to pay. Again, it answers the payment that is open; with another
/// provider it closes that one and starts anew. `provider_unavailable` means: nothing is lost, ask again.
#[utoipa::path(
    post, path = "/api/v1/orders/{id}/payment", tag = "buyer", operation_id = "pay_order",
    security(("buyer_token" = [])), params(("id" = OrderId, Path, description = "The order's id.")),
    request_body = PaymentRequest, responses((status = 200, body = PaymentGiven), Refusals)
)]
pub async fn pay(
    State(app): State<Arc<App>>,
    Buyer(buyer): Buyer,
    IdPath(id): IdPath<OrderId>,
    Extension(ClientAddress(address)): Extension<ClientAddress>,
    Extension(place): Extension<Place>,
    request: Request,
) -> Answer {
    not_too_fast(&app, &buyer)?;
    let device = device(request.headers(), address);
    let JsonBody(PaymentRequest { provider }) = JsonBody::from_request(request, &app).await?;
    let payer = Arc::clone(&app);
    let paying = async move {
        // Until the provider has answered, also when the buyer hangs up before: so many are asked at once, no more.
        let _place = place;
        payer.pay(id, &buyer, &provider, device).await
    };
    match app.to_the_end(paying).await? {
        PayAnswer::Pay { payment, pay_url } => {
            Ok(json(StatusCode::OK, &PaymentGiven { payment_id: payment, pay_url }))
        }
        PayAnswer::NotYet => Err(Refusal::new(Code::NotYet)),
        PayAnswer::NotPayable(state) => {
            let detail = format!(
                "An order that is {} cannot be paid, nor one whose time to pay is over.",
                state.as_str()
            );
            Err(Refusal::detail(Code::NotPayable, detail))
        }
        PayAnswer::TooMany => {
            let detail = format!(
                "{PAYMENTS_PER_ORDER_MAX} payments were started for this order, and there can be no more. If one of \
                 them is still open at its provider, go on with that one."
            );
            Err(Refusal::detail(Code::NotPayable, detail))
        }
        PayAnswer::NotFound => Err(Refusal::new(Code::NotFound)),
        PayAnswer::NoSuchProvider => Err(no_such_provider(&app)),
        PayAnswer::Unsuitable(sentence) => {
            Err(Refusal::field("provider", format_args!("cannot take this payment: {sentence}")))
        }
        PayAnswer::Unavailable => Err(Refusal::new(Code::ProviderUnavailable)),
        PayAnswer::Refused => Err(Refusal::new(Code::ProviderRefused)),
    }
}

fn no_such_provider(app: &App) -> Refusal {
    let names = app.port.names();
    if names.is_empty() {
        return Refusal::field("provider", "is none: the shop has set up no payment provider");
    }
    Refusal::field(
        "provider",
        format_args!("serves no payments here; this shop has set up: {}", names.join(", ")),
    )
}

/// Browsers say whether they run on a phone.
fn device(headers: &HeaderMap, address: IpAddr) -> Device {
    let is_mobile = |agent: &str| agent.contains("Mobile") || agent.contains("Android");
    let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    if agent.is_some_and(is_mobile) { Device::Phone { address } } else { Device::Desktop }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_says_whether_it_runs_on_a_phone() {
        let address = IpAddr::from([192, 0, 2, 7]);
        let of = |agent: Option<&str>| {
            let agent = agent.map(|agent| (USER_AGENT, agent.parse().unwrap()));
            device(&agent.into_iter().collect(), address)
        };
        for phone in [
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 Version/18.5 Mobile/15E148 Safari/604.1",
            "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 Chrome/138.0.0.0 Mobile Safari/537.36",
            "Mozilla/5.0 (Linux; Android 14; SM-X910) AppleWebKit/537.36 Chrome/138.0.0.0 Safari/537.36",
            "Mozilla/5.0 (Linux; Android 15; V2366) AppleWebKit/537.36 Mobile Safari/537.36 MicroMessenger/8.0.60",
        ] {
            assert_eq!(of(Some(phone)), Device::Phone { address }, "{phone}");
        }
        for desktop in [
            Some("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
            Some(
                "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Version/18.5 Safari/605.1.15",
            ),
            Some("curl/8.14.1"),
            Some(""),
            None,
        ] {
            assert_eq!(of(desktop), Device::Desktop, "{desktop:?}");
        }
    }
}
