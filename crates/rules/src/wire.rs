//! What travels over HTTP: the JSON of the outside contract, once, for the server and for its clients.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::audit::Kind;
use crate::id::{AuditId, EventId, OfferId, OrderId, PaymentId, SaleId, WebhookId};
use crate::money::Money;
use crate::order::{Reason, State};
use crate::payment::{RefundReason, State as PaymentState};
use crate::sale::{ChallengeKind, Phase, RegistrationKind, SaleState};
use crate::time::UnixMs;

/// A try: the pass says who and what, the body how many.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrderRequest {
    pub pass: String,
    #[schema(minimum = 1, maximum = 100)]
    pub quantity: u32,
}

/// An order as its buyer sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrderView {
    pub id: OrderId,
    pub sale_id: SaleId,
    pub offer_id: OfferId,
    pub quantity: u32,
    pub price: Money,
    pub total: Money,
    pub state: State,
    pub reason: Option<Reason>,
    /// Grows by one with every change of this order.
    pub seq: u32,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: UnixMs,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub pay_by: Option<UnixMs>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub paid_at: Option<UnixMs>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub closed_at: Option<UnixMs>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub refunded_at: Option<UnixMs>,
    /// The payment that pays it, or paid it.
    pub payment_id: Option<PaymentId>,
    /// Money for this order that goes back or went back, and why. Left out where there is none, in lists, and in answers to
    /// a try or a cancellation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refunds: Vec<RefundView>,
}

/// Money that goes back, as its buyer sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefundView {
    /// What was taken, and goes back.
    pub money: Money,
    /// `refund_due`, `refunding`, `refunded` or `refund_failed`.
    pub state: PaymentState,
    pub reason: RefundReason,
    /// The reason in a sentence.
    pub detail: String,
}

/// A wish to pay, and where.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PaymentRequest {
    /// A payment provider that the shop has set up.
    #[schema(example = "sandbox")]
    pub provider: String,
}

/// Where the buyer pays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PaymentGiven {
    pub payment_id: PaymentId,
    /// An address to go to, or, when it begins with `weixin:`, the text of a code to scan.
    pub pay_url: String,
}

/// How an order is refunded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RefundRequest {
    /// Whether its units go back on sale; otherwise the stock is lowered by them. Not said: they do, and a refund that is
    /// tried again keeps to what was said before.
    #[serde(default)]
    pub restock: Option<bool>,
}

/// A payment as operators see it: one capture of money at one provider, or the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PaymentView {
    pub id: PaymentId,
    /// Nothing when the provider named no payment and no order of ours.
    pub order_id: Option<OrderId>,
    pub provider: String,
    /// Our name of the payment as the provider knows it.
    pub reference: String,
    /// The provider's name of the money; nothing before it came.
    pub capture_id: Option<String>,
    pub state: PaymentState,
    /// Why the money goes back.
    pub reason: Option<RefundReason>,
    /// What was asked for; from the capture on, what was taken.
    pub money: Money,
    pub pay_url: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: UnixMs,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub captured_at: Option<UnixMs>,
    /// When it was closed or refunded.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<UnixMs>,
    /// Whether the units of a refunded order go back on sale.
    pub restock: bool,
    /// How often the provider was asked to return the money since that began.
    pub attempts: u32,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_try_at: Option<UnixMs>,
    /// Why the provider did not return the money, the last time, or could not be brought to close the payment.
    pub problem: Option<String>,
    /// How much of it went back by refunds that were made elsewhere, such as in the provider's console: at least so much, as
    /// far as the provider told.
    #[serde(default)]
    pub back_elsewhere: Option<Money>,
}

/// A list and where it goes on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ServerTime {
    #[schema(value_type = String, format = DateTime)]
    pub now: UnixMs,
    pub now_ms: i64,
}

/// A pass, and the id of the order it may become.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PassGiven {
    pub pass: String,
    pub order_id: OrderId,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: UnixMs,
    /// What the buyer should know before buying: strikes that count, and what one more would mean. Nothing for those
    /// who have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// A sale as a page shows it: no live numbers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SaleView {
    pub id: SaleId,
    pub title: String,
    pub state: SaleState,
    pub phase: Phase,
    #[schema(value_type = String, format = DateTime)]
    pub opens_at: UnixMs,
    #[schema(value_type = String, format = DateTime)]
    pub closes_at: UnixMs,
    pub pay_within_s: u32,
    pub challenge: ChallengeKind,
    pub registration: RegistrationKind,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_opens_at: Option<UnixMs>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_closes_at: Option<UnixMs>,
    pub offers: Vec<OfferView>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OfferView {
    pub id: OfferId,
    pub name: String,
    pub description: Option<String>,
    pub image: Option<String>,
    pub list_price: Option<Money>,
    pub price: Money,
    pub max_per_order: u32,
}

/// What a page may say about what is left.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Availability {
    pub sale_id: SaleId,
    pub offers: Vec<OfferAvailability>,
    /// How many buyers signed up.
    pub registrations: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OfferAvailability {
    pub offer_id: OfferId,
    pub state: AvailabilityState,
    /// When the earliest unpaid order must be paid: about then units may come back.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_return_at: Option<UnixMs>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AvailabilityState {
    Upcoming,
    Open,
    /// Open, with less than a tenth of the stock left.
    Few,
    /// Nothing free now; unpaid units may come back.
    SoldOut,
    /// Nothing free and nothing that could come back.
    AllPaid,
    Closed,
}

/// The buyer's own standing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Me {
    pub buyer: String,
    /// Orders that were won and not paid, and that still count.
    pub strikes: u32,
    /// So many block. 0: they never do.
    pub strikes_limit: u32,
    /// No passes before then.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub blocked_until: Option<UnixMs>,
    /// When the oldest strike stops counting.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_decay_at: Option<UnixMs>,
    /// The same in a sentence, to be shown before buying; nothing when there is nothing to say.
    pub notice: Option<String>,
    pub registrations: Vec<RegistrationView>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RegistrationView {
    pub sale_id: SaleId,
    #[schema(value_type = String, format = DateTime)]
    pub registered_at: UnixMs,
}

/// A sale as its operator sees it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OperatorSale {
    pub id: SaleId,
    pub title: String,
    pub state: SaleState,
    pub phase: Phase,
    #[schema(value_type = String, format = DateTime)]
    pub opens_at: UnixMs,
    #[schema(value_type = String, format = DateTime)]
    pub closes_at: UnixMs,
    pub pay_within_s: u32,
    pub challenge: ChallengeKind,
    pub registration: RegistrationKind,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_opens_at: Option<UnixMs>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_closes_at: Option<UnixMs>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub publish_at: Option<UnixMs>,
    pub rehearsal: bool,
    /// How many buyers signed up.
    pub registrations: u64,
    pub offers: Vec<OperatorOffer>,
}

/// An offer as its operator sees it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OperatorOffer {
    #[serde(flatten)]
    pub offer: OfferView,
    /// All units there are: free, held and sold.
    pub stock: u32,
    /// Where buyers find the image: our copy, or a path of this server.
    #[serde(default)]
    pub image_copy: Option<String>,
    /// Why the image could not be copied the last time.
    #[serde(default)]
    pub image_problem: Option<String>,
}

/// An order as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorOrder {
    #[serde(flatten)]
    pub order: OrderView,
    pub buyer: String,
}

/// What a preheat did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preheated {
    pub sale_id: SaleId,
    /// Offers that were looked at.
    pub offers: u64,
    /// Those of them that the gate did not know before.
    pub seeded: u64,
}

/// A change of an offer's stock, by a name of the operator's choice: the same name is the same change.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StockChange {
    /// Not 0.
    #[schema(example = 50, minimum = -10_000_000, maximum = 10_000_000)]
    pub change: i64,
    #[schema(min_length = 1, max_length = 100, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    pub change_id: String,
}

/// An offer's units after a stock change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StockView {
    pub offer_id: OfferId,
    pub stock: u32,
    /// Units that nobody has now.
    pub free: u32,
}

/// What an operator sends to block a buyer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BlockRequest {
    #[schema(value_type = String, format = DateTime)]
    pub until: UnixMs,
    #[schema(max_length = 1_000, pattern = r"^[^\x00]*$")]
    pub note: Option<String>,
}

/// A blocked buyer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BlockView {
    pub buyer: String,
    /// No passes before then.
    #[schema(value_type = String, format = DateTime)]
    pub until: UnixMs,
    /// Of a block by hand.
    pub note: Option<String>,
    pub strikes: u32,
    pub strikes_limit: u32,
}

/// A buyer's marks: block, strikes and their history.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MarksView {
    pub buyer: String,
    /// No passes before then, by hand or by strikes. `null`: not blocked.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<UnixMs>,
    /// The end of a block by hand, while it is in force.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub by_hand_until: Option<UnixMs>,
    /// Of the block by hand.
    pub note: Option<String>,
    /// Those that count now.
    pub strikes: u32,
    /// So many block. 0: they never do.
    pub strikes_limit: u32,
    /// When the oldest strike stops counting.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_decay_at: Option<UnixMs>,
    /// The last 200 strikes, newest first; also those that were lifted or no longer count.
    pub history: Vec<StrikeView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StrikeView {
    pub no: u64,
    #[schema(value_type = String, format = DateTime)]
    pub at: UnixMs,
    pub cause: StrikeCause,
    /// The order that was not paid.
    pub order_id: Option<OrderId>,
    pub note: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub lifted_at: Option<UnixMs>,
    pub lifted_by: Option<StrikeLifter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StrikeCause {
    /// An order was won and not paid.
    Unpaid,
    /// The operator gave it.
    Operator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StrikeLifter {
    Operator,
    /// The order was paid after all, and a unit was free.
    LateMoney,
}

/// What an operator sends to give a strike.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StrikeRequest {
    #[schema(max_length = 1_000, pattern = r"^[^\x00]*$")]
    pub note: Option<String>,
}

/// What an operator sends to be told of events.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookDraft {
    #[schema(example = "https://shop.example/hooks", max_length = 2_000)]
    pub url: String,
    /// Types such as `order.paid`, or `order.*` for all of a kind. Empty: all.
    #[serde(default)]
    #[schema(max_items = 50)]
    pub types: Vec<String>,
    /// Told nothing until it is enabled; events wait for it.
    #[serde(default)]
    pub disabled: bool,
}

/// What of a webhook is changed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookChange {
    #[schema(max_length = 2_000)]
    pub url: Option<String>,
    #[schema(max_items = 50)]
    pub types: Option<Vec<String>>,
    pub disabled: Option<bool>,
}

/// What a receiver of events is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReceiverKind {
    /// An address that takes signed requests.
    Webhook,
    /// The message broker of the settings; there is at most one.
    Broker,
}

/// A receiver of events, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookView {
    pub id: WebhookId,
    pub kind: ReceiverKind,
    pub url: String,
    pub types: Vec<String>,
    pub disabled: bool,
    /// Why it was disabled, when no operator did it.
    pub disabled_reason: Option<String>,
    /// Of a broker: whether there is a connection now.
    pub connected: Option<bool>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: UnixMs,
    /// Until then the secret before the last change signs too.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub previous_secret_until: Option<UnixMs>,
    /// Events that are tried again, and those behind them.
    pub waiting: u64,
    /// Events given up; a replay tries them again.
    pub parked: u64,
    /// When the oldest event happened that it still lacks.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub behind_since: Option<UnixMs>,
    pub last_problem: Option<String>,
    /// Events that became too old (`webhooks.keep_hours`) before it had them.
    pub dropped: u64,
}

/// A webhook with a new secret: this is the only time that it is shown.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WebhookSecret {
    #[serde(flatten)]
    pub webhook: WebhookView,
    /// `whsec_…`, by Standard Webhooks.
    pub secret: String,
}

/// What is delivered again: what is parked, and with `since` everything that happened from then on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<UnixMs>,
}

/// What a replay began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replayed {
    pub webhook_id: WebhookId,
    /// Events that are looked at again; of these, the webhook gets those it wants.
    pub events: u64,
}

/// What became of a test delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookTested {
    pub webhook_id: WebhookId,
    /// The `webhook-id` of the delivery, by which the receiver's log shows it.
    pub event_id: EventId,
    /// Whether the receiver took it.
    pub delivered: bool,
    /// Why not.
    pub problem: Option<String>,
    pub took_ms: u64,
}

/// An event that a webhook did not take in all the time it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ParkedView {
    pub event_id: EventId,
    #[serde(rename = "type")]
    pub kind: String,
    #[schema(value_type = String, format = DateTime)]
    pub at: UnixMs,
    pub attempts: u32,
    pub problem: Option<String>,
}

/// Who signed up for a sale, and when one can.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Registrations {
    pub sale_id: SaleId,
    pub registration: RegistrationKind,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_opens_at: Option<UnixMs>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub registration_closes_at: Option<UnixMs>,
    /// Whether a buyer may sign up now.
    pub open: bool,
    /// How many have.
    pub count: u64,
    pub items: Vec<RegisteredBuyer>,
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RegisteredBuyer {
    pub buyer: String,
    #[schema(value_type = String, format = DateTime)]
    pub registered_at: UnixMs,
}

/// A sale's live numbers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    pub sale_id: SaleId,
    pub state: SaleState,
    pub phase: Phase,
    pub offers: Vec<OfferStats>,
    pub funnel: Funnel,
    pub queue: QueueStats,
    pub registrations: u64,
}

/// `free + held + sold + returning = stock`, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OfferStats {
    pub offer_id: OfferId,
    pub stock: u32,
    pub free: u32,
    /// Units queued or awaiting payment.
    pub held: u32,
    /// Units paid for.
    pub sold: u32,
    /// Units given back in the ledger, not yet in the gate.
    pub returning: u32,
}

/// How many came how far, since `counted_since`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Funnel {
    pub passes: u64,
    pub tries: u64,
    pub granted: u64,
    pub sold_out: u64,
    pub already_ordered: u64,
    pub not_open: u64,
    pub too_fast: u64,
    pub busy: u64,
    /// When the server started: these counts begin anew with it. Stock, held and sold do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub counted_since: Option<UnixMs>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueStats {
    /// Claims not yet recorded and releases not yet in the gate.
    pub depth: u64,
    /// Age of the oldest of these claims, in milliseconds.
    pub lag_ms: u64,
}

/// An error document by RFC 9457, with a stable `code`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    pub code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_id: Option<OrderId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<UnixMs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<u32>,
}

/// What is to be audited, and whether what is proven safe is mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditRequest {
    /// Mends what is proven safe. Without it nothing is changed.
    #[serde(default)]
    pub repair: bool,
    /// Only this sale; what belongs to no sale is then left out.
    pub sale_id: Option<SaleId>,
    /// Only this offer.
    pub offer_id: Option<OfferId>,
}

/// How far an audit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditState {
    /// Under way, or waiting for another one to end.
    Running,
    Done,
    /// It could not be finished; `problem` says why.
    Failed,
}

/// An audit and what it found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    pub id: AuditId,
    pub state: AuditState,
    /// Whether it mends what is proven safe.
    pub repair: bool,
    pub sale_id: Option<SaleId>,
    pub offer_id: Option<OfferId>,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: UnixMs,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<UnixMs>,
    /// Whether nothing was found; unknown until it is done.
    pub clean: Option<bool>,
    pub findings: Vec<AuditFinding>,
    /// Findings beyond those that are listed.
    pub more: u64,
    /// Orders that were looked at.
    pub orders: u64,
    /// How often gate and ledger were compared: a second time when the first left a doubt.
    pub cuts: u32,
    /// The longest that any buyer's try can have waited for it at the gate, in microseconds.
    pub held_up_us: u64,
    /// Why it could not be finished.
    pub problem: Option<String>,
}

/// A discrepancy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditFinding {
    pub kind: Kind,
    pub offer_id: Option<OfferId>,
    /// Units it is about. Of counters and of the gate: below 0 when they show too many.
    pub units: i64,
    /// What is wrong, in a sentence.
    pub detail: String,
    /// What was seen: ids and numbers by name.
    pub evidence: BTreeMap<String, String>,
    pub repaired: bool,
    /// What a person should do.
    pub todo: Option<String>,
}

macro_rules! codes {
    ($($name:ident = $status:literal $text:literal $title:literal;)*) => {
        /// Every refusal there is. The names are stable: clients branch on them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $title] $name,)* }

        impl Code {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The refusal in a sentence that a person understands.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    Malformed = 400 "malformed" "The request could not be read.";
    Unauthorized = 401 "unauthorized" "A valid token is needed.";
    SignatureInvalid = 401 "signature_invalid" "The signature does not match.";
    NotificationStale = 401 "notification_stale" "The notification was signed too long ago, or ahead of our clock.";
    WrongMerchant = 403 "wrong_merchant" "The notification is meant for somebody else.";
    NotRegistered = 403 "not_registered" "This sale is for buyers who registered before it.";
    Blocked = 403 "blocked" "You cannot take part for now.";
    ChallengeFailed = 403 "challenge_failed" "The check was not passed. Please do a new one.";
    PassInvalid = 403 "pass_invalid" "This is not a valid pass for this offer.";
    PassExpired = 403 "pass_expired" "This pass has expired. Please get a new one.";
    ForeignOrigin = 403 "foreign_origin" "This page may not connect here.";
    NotFound = 404 "not_found" "There is nothing here.";
    MethodNotAllowed = 405 "method_not_allowed" "This address does not take that method.";
    SoldOut = 409 "sold_out" "Sold out.";
    NotEnough = 409 "not_enough" "Fewer units are left than you asked for.";
    AlreadyOrdered = 409 "already_ordered" "You already have an order of this offer.";
    Paused = 409 "paused" "The shop has paused the sale. Please stay here.";
    PassReused = 409 "pass_reused" "This pass was already used with another quantity.";
    NotCancellable = 409 "not_cancellable" "This order can no longer be cancelled.";
    NotPayable = 409 "not_payable" "This order cannot be paid.";
    NotRefundable = 409 "not_refundable" "There is no money to return.";
    NotYet = 409 "not_yet" "The order is still being confirmed.";
    RegistrationClosed = 409 "registration_closed" "Registration is not open.";
    StockBelowLive = 409 "stock_below_live" "The stock cannot go below what is queued, held or sold.";
    NotEditable = 409 "not_editable" "This can no longer be changed once the sale is published.";
    WrongState = 409 "wrong_state" "The sale is not in a state that allows this.";
    KeyReused = 409 "key_reused" "This Idempotency-Key was used for another request.";
    Ended = 410 "ended" "This sale is over.";
    TooLarge = 413 "too_large" "The request is too large.";
    UnsupportedMediaType = 415 "unsupported_media_type" "The body must be application/json.";
    InvalidRequest = 422 "invalid_request" "A field is not as it must be.";
    NotOpen = 425 "not_open" "Not open yet.";
    TooFast = 429 "too_fast" "Too fast. Please wait a moment.";
    Internal = 500 "internal" "Something went wrong on our side.";
    ProviderRefused = 502 "provider_refused" "The payment provider refused. Please choose another one.";
    ProviderUnavailable = 503 "provider_unavailable" "The payment provider does not answer. Nothing was lost; please try again.";
    Busy = 503 "busy" "Very busy. Nothing happened; please try again.";
    Unsure = 503 "unsure" "It is not certain whether this happened. Repeat the same pass, or look at the order.";
    NotReady = 503 "not_ready" "Starting up. Please try again in a moment.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_their_statuses_are_errors() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        assert!(Code::ALL.iter().all(|code| (400..600).contains(&code.status())));
    }

    #[test]
    fn a_quantity_is_a_whole_number_or_nothing() {
        for bad in ["null", "1.0", "\"1\"", "-1", "1e3", "99999999999", "true", "[1]"] {
            let json = format!(r#"{{"pass":"p","quantity":{bad}}}"#);
            assert!(serde_json::from_str::<OrderRequest>(&json).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<OrderRequest>(r#"{"pass":"p"}"#).is_err());
        assert!(serde_json::from_str::<OrderRequest>(r#"{"pass":"p","quantity":1}"#).is_ok());
    }
}
