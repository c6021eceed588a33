//! Alipay and WeChat Pay from the start of a payment to the return of its money, over HTTP. Their stand-ins answer what was
//! recorded with the SDKs, about the payment they are asked about, and sign it with the providers' keys of the vectors.

use std::time::Duration;

use doorbuster::telemetry::metrics::Inquiry;
use rules::id::PaymentId;

use super::formats::{Vectors, open_with, sale_of, signed_by_alipay, signed_by_wechat, vectors};
use super::*;

const DESKTOP: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";
const PHONE: &str = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) \
                     Version/18.5 Mobile/15E148 Safari/604.1";

/// The name of the money in all that was recorded of each.
const ALIPAY_CAPTURE: &str = "2026120122001499990000000001";
const WECHAT_CAPTURE: &str = "4200000000202612010000000001";

/// One request, as it is understood.
#[derive(Clone, Debug)]
struct Wish {
    verb: &'static str,
    /// The payment that it is about.
    payment: String,
    content: Value,
}

/// One provider.
#[derive(Clone)]
struct Desk {
    provider: &'static str,
    vectors: Arc<Vectors>,
    clock: doorbuster::clock::Clock,
    wishes: Arc<Mutex<Vec<Wish>>>,
    /// What is not the usual answer: to which verb about which payment, and what is to be made of it.
    unusual: Arc<Mutex<HashMap<(&'static str, String), &'static str>>>,
}

/// A shop whose buyers pay at this provider, or at Stripe.
struct Shop {
    app: TestApp,
    sale: TestSale,
    desk: Desk,
}

impl Shop {
    async fn open(provider: &'static str) -> Self {
        let vectors = Arc::new(vectors());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stripe = StandIn::willing().await;
        let mut settings = vec![format!("payment.stripe.url=http://{}", stripe.address)];
        for name in ["alipay", "wechat"] {
            let url = if name == provider { url.as_str() } else { NOWHERE };
            settings.push(format!("payment.{name}.url={url}"));
        }
        let app = open_with(&vectors, &settings).await;
        let sale = sale_of(&app, &vectors).await;
        let clock = app.app.clock.clone();
        let desk = Desk { provider, vectors, clock, wishes: Arc::default(), unusual: Arc::default() };
        let router = axum::Router::new().fallback(answer).with_state(desk.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { app, sale, desk }
    }

    /// An order of this buyer, and its payment, started from this browser.
    async fn start(&self, buyer: &TestBuyer<'_>, agent: &str) -> (String, Value) {
        let order = won(buyer, &self.sale).await;
        let given = self.start_again(buyer, &order, agent).await;
        (order, given)
    }

    async fn start_again(&self, buyer: &TestBuyer<'_>, order: &str, agent: &str) -> Value {
        let request = self.app.client.post(self.app.url(&format!("/api/v1/orders/{order}/payment")));
        let request = request.bearer_auth(&buyer.token).header("user-agent", agent);
        let (status, _, given) = self.app.send(request.json(&json!({"provider": self.desk.provider}))).await;
        assert_eq!(status, 200, "{given}");
        given
    }

    /// An order that this buyer cancels with the provider's address in hand, and its payment, of which nobody there has heard.
    async fn cancelled_before_its_buyer_arrives(&self, buyer: &TestBuyer<'_>) -> (String, String) {
        let (order, given) = self.start(buyer, DESKTOP).await;
        let payment = id_of(&given);
        self.desk.answers("close", &payment, "unknown");
        buyer.call("POST", &format!("/api/v1/orders/{order}/cancel"), None, 200).await;
        eventually("it is not known there", async || self.desk.asked("close", &payment).len() == 1).await;
        (order, payment)
    }

    /// The whole way of money at this provider, after the starts.
    async fn goes_all_the_way(&self) {
        let app = &self.app;
        let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
        let (paid, given) = self.start(&ann, DESKTOP).await;
        let (unpaid, unpaid_given) = self.start(&bob, PHONE).await;
        self.is_closed_for_another_provider().await;
        self.is_found_paid_when_it_is_closed_and_goes_back().await;

        // At the deadline both are asked about, by our own name of the payment.
        let (payment, not_paid) = (id_of(&given), id_of(&unpaid_given));
        self.desk.answers("ask", &not_paid, "open");
        app.app.clock.advance(Duration::from_secs(900));
        assert_eq!(becomes(&bob, &unpaid, "closed").await["reason"], "timeout");
        eventually("it is closed there too", async || self.desk.asked("close", &not_paid).len() == 1).await;
        eventually("both are asked about", async || app.app.metrics.inquiries.get(Inquiry::Paid) == 1).await;
        assert_eq!(app.app.metrics.inquiries.get(Inquiry::NotPaid), 1);
        assert_eq!(states(app, &unpaid).await, [plain("closed")]);
        assert_eq!(order(&ann, &paid).await["state"], "awaiting_payment", "it waits for the notification");
        app.app.clock.advance(Duration::from_secs(15 * 60));
        assert_eq!(becomes(&ann, &paid, "paid").await["payment_id"], json!(payment));
        let capture = json!(self.desk.capture(&payment));
        assert_eq!(payments(app, &paid).await[0]["capture_id"], capture);
        assert_eq!(self.desk.asked("ask", &payment).len(), 1);

        app.operate("POST", &format!("/admin/v1/orders/{paid}/refund"), None, 200).await;
        becomes(&ann, &paid, "refunded").await;
        let refunds = self.desk.asked("refund", &payment);
        assert_eq!(refunds.len(), 1);
        self.is_all_of_it(&refunds[0], &payment);
        eventually("all units are back", async || units(app, &self.sale).await == [5, 5, 0, 0]).await;
    }

    async fn is_closed_for_another_provider(&self) {
        let cyd = self.app.buyer("cyd");
        let (id, given) = self.start(&cyd, DESKTOP).await;
        let payment = id_of(&given);
        start(&cyd, &id, "stripe", 200).await;
        eventually("it is closed", async || self.desk.asked("close", &payment).len() == 1).await;
        assert_eq!(states(&self.app, &id).await, [plain("closed"), plain("started")]);
        assert_eq!(self.desk.asked("ask", &payment).len(), 0, "what is closed need not be asked about");
        cyd.call("POST", &format!("/api/v1/orders/{id}/cancel"), None, 200).await;
    }

    /// A refund that is asked for and not done at once.
    async fn is_found_paid_when_it_is_closed_and_goes_back(&self) {
        let dan = self.app.buyer("dan");
        let (id, given) = self.start(&dan, DESKTOP).await;
        let payment = id_of(&given);
        self.desk.answers("close", &payment, "not_open");
        if self.desk.provider == "alipay" {
            // "N": this very request moved no money. WeChat's usual answer is that it is at it.
            self.desk.answers("refund", &payment, "pending");
        }
        self.desk.answers("ask_refund", &payment, "pending");
        dan.call("POST", &format!("/api/v1/orders/{id}/cancel"), None, 200).await;
        let on_its_way = ("refunding".to_owned(), Some("order_cancelled".to_owned()));
        eventually("it is asked how the refund stands", async || {
            !self.desk.asked("ask_refund", &payment).is_empty()
                && states(&self.app, &id).await == [on_its_way.clone()]
        })
        .await;
        self.desk.answers_as_usual("ask_refund", &payment);
        self.app.app.clock.advance(Duration::from_secs(5));
        eventually("it is back", async || states(&self.app, &id).await == [back("order_cancelled")]).await;
        let refunds = self.desk.asked("refund", &payment);
        refunds.iter().for_each(|refund| self.is_all_of_it(refund, &payment));
        // WeChat has named its refund, and is only asked how it stands. Alipay has promised nothing.
        assert_eq!(refunds.len(), if self.desk.provider == "alipay" { 2 } else { 1 });
        assert_eq!(self.desk.asked("ask_refund", &payment).len(), 2);
    }

    /// A request to return a payment's whole money, under the payment's own number.
    fn is_all_of_it(&self, refund: &Wish, payment: &str) {
        let content = &refund.content;
        let capture = json!(self.desk.capture(payment));
        match self.desk.provider {
            "alipay" => {
                assert_eq!((&content["trade_no"], &content["refund_amount"]), (&capture, &json!("1499.00")));
                assert_eq!(content["out_request_no"], payment);
            }
            _ => {
                let amount = json!({"refund": PRICE, "total": PRICE, "currency": "CNY"});
                assert_eq!((&content["transaction_id"], &content["amount"]), (&capture, &amount));
                assert_eq!(content["out_refund_no"], payment);
            }
        }
    }
}

impl Desk {
    fn answers(&self, verb: &'static str, payment: &str, expect: &'static str) {
        self.unusual.lock().insert((verb, payment.to_owned()), expect);
    }

    fn answers_as_usual(&self, verb: &'static str, payment: &str) {
        self.unusual.lock().remove(&(verb, payment.to_owned()));
    }

    fn asked(&self, verb: &str, payment: &str) -> Vec<Wish> {
        let wishes = self.wishes.lock();
        wishes.iter().filter(|wish| wish.verb == verb && wish.payment == payment).cloned().collect()
    }

    /// What it calls the money of a payment.
    fn capture(&self, payment: &str) -> String {
        let recorded = if self.provider == "alipay" { ALIPAY_CAPTURE } else { WECHAT_CAPTURE };
        format!("{recorded}{payment}")
    }

    fn understand(&self, method: &Method, uri: &Uri, body: &str) -> Wish {
        if self.provider == "alipay" { of_alipay(uri, body) } else { of_wechat(method, uri, body) }
    }

    /// The recorded answer, about this payment.
    fn answer(&self, wish: &Wish) -> Response {
        let expect = self.unusual.lock().get(&(wish.verb, wish.payment.clone())).copied();
        let recorded = self.vectors.answer(self.provider, wish.verb, expect);
        let body = recorded.body.replace(&self.vectors.payment_id, &wish.payment);
        let body = body.replace(&self.vectors.refund_id, &wish.payment);
        let body = body.replace(&self.capture(""), &self.capture(&wish.payment));
        match self.provider {
            "alipay" => signed_by_alipay(&body),
            _ => signed_by_wechat(&self.vectors, recorded.status, body, self.clock.now()),
        }
    }
}

async fn answer(State(desk): State<Desk>, method: Method, uri: Uri, body: String) -> Response {
    let wish = desk.understand(&method, &uri, &body);
    let answer = desk.answer(&wish);
    desk.wishes.lock().push(wish);
    answer
}

fn of_alipay(uri: &Uri, body: &str) -> Wish {
    let query = pairs(uri.query().unwrap());
    let content: Value = serde_json::from_str(&pairs(body)["biz_content"]).unwrap();
    let verb = match query["method"].as_str() {
        "alipay.trade.close" => "close",
        "alipay.trade.query" => "ask",
        "alipay.trade.refund" => "refund",
        "alipay.trade.fastpay.refund.query" => "ask_refund",
        other => panic!("{other}"),
    };
    let named = if verb.ends_with("refund") { "out_request_no" } else { "out_trade_no" };
    Wish { verb, payment: content[named].as_str().unwrap().to_owned(), content }
}

fn of_wechat(method: &Method, uri: &Uri, body: &str) -> Wish {
    let content: Value = if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() };
    let parts: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
    let told = |name: &str| content[name].as_str().unwrap().to_owned();
    let (verb, payment) = match (method.as_str(), parts.as_slice()) {
        ("POST", ["v3", "pay", "transactions", "native"]) => ("start", told("out_trade_no")),
        ("POST", ["v3", "pay", "transactions", "h5"]) => ("start_phone", told("out_trade_no")),
        ("POST", ["v3", "pay", "transactions", "out-trade-no", id, "close"]) => ("close", (*id).to_owned()),
        ("GET", ["v3", "pay", "transactions", "out-trade-no", id]) => ("ask", (*id).to_owned()),
        ("POST", ["v3", "refund", "domestic", "refunds"]) => ("refund", told("out_refund_no")),
        ("GET", ["v3", "refund", "domestic", "refunds", id]) => ("ask_refund", (*id).to_owned()),
        other => panic!("{other:?}"),
    };
    Wish { verb, payment, content }
}

fn pairs(form: &str) -> HashMap<String, String> {
    form_urlencoded::parse(form.as_bytes()).into_owned().collect()
}

fn id_of(given: &Value) -> String {
    given["payment_id"].as_str().unwrap().to_owned()
}

/// Neither has a name of its own for what was started: ours serves, also when it is asked about or closed.
async fn has_no_name_of_its_own(shop: &Shop, given: &Value) {
    let id: PaymentId = id_of(given).parse().unwrap();
    let payment = shop.app.app.ledger.payment(id).await.unwrap().unwrap();
    assert_eq!((payment.provider_ref, payment.reference), (None, id_of(given)));
}

#[tokio::test(flavor = "multi_thread")]
async fn money_at_alipay_goes_all_the_way_there_and_back() {
    let shop = Shop::open("alipay").await;
    let (eve, fay) = (shop.app.buyer("eve"), shop.app.buyer("fay"));
    for (buyer, agent, method, product) in [
        (&eve, DESKTOP, "alipay.trade.page.pay", "FAST_INSTANT_TRADE_PAY"),
        (&fay, PHONE, "alipay.trade.wap.pay", "QUICK_WAP_WAY"),
    ] {
        let (id, given) = shop.start(buyer, agent).await;
        let (_, query) = given["pay_url"].as_str().unwrap().split_once('?').unwrap();
        let query = pairs(query);
        assert_eq!(query["method"], method);
        assert_eq!(query["return_url"], format!("https://sale.shop.example/orders/{id}"));
        assert_eq!(query["notify_url"], "https://sale.shop.example/api/v1/payments/alipay/callback");
        let content: Value = serde_json::from_str(&query["biz_content"]).unwrap();
        assert_eq!(
            (&content["product_code"], &content["total_amount"]),
            (&json!(product), &json!("1499.00"))
        );
        assert_eq!(content["out_trade_no"], given["payment_id"]);
        has_no_name_of_its_own(&shop, &given).await;
        assert_eq!(shop.start_again(buyer, &id, agent).await, given, "the same payment");
        // Alipay hears of a payment when its buyer arrives there. Until then there is nothing to close.
        shop.desk.answers("close", &id_of(&given), "unknown");
        buyer.call("POST", &format!("/api/v1/orders/{id}/cancel"), None, 200).await;
        eventually("it is closed", async || shop.desk.asked("close", &id_of(&given)).len() == 1).await;
        assert_eq!(states(&shop.app, &id).await, [plain("closed")]);
        assert_eq!(shop.desk.asked("ask", &id_of(&given)).len(), 0, "what nobody knows was not paid");
        shop.desk.answers_as_usual("close", &id_of(&given));
    }
    shop.goes_all_the_way().await;
}

/// The address that the buyer was given is good until the deadline, also after the order was cancelled. No callback comes.
#[tokio::test(flavor = "multi_thread")]
async fn money_of_a_buyer_who_goes_to_alipay_after_cancelling_is_found_and_goes_back() {
    let shop = Shop::open("alipay").await;
    let eve = shop.app.buyer("eve");
    let (id, payment) = shop.cancelled_before_its_buyer_arrives(&eve).await;
    shop.desk.answers("close", &payment, "not_open");
    eventually("it is found and back", async || {
        shop.app.app.clock.advance(Duration::from_millis(100));
        states(&shop.app, &id).await == [back("order_cancelled")]
    })
    .await;
    assert_eq!(order(&eve, &id).await["state"], "closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_whose_buyer_never_went_to_alipay_is_looked_for_once_after_its_deadline() {
    let shop = Shop::open("alipay").await;
    let eve = shop.app.buyer("eve");
    let (id, payment) = shop.cancelled_before_its_buyer_arrives(&eve).await;
    let asked = || shop.desk.asked("close", &payment).len();
    let due = async |now| !shop.app.app.ledger.closings_due("alipay", now, 10).await.unwrap().is_empty();
    eventually("it is to be asked about again", async || due(UnixMs(i64::MAX)).await).await;
    shop.app.app.clock.advance(Duration::from_secs(15 * 60));
    eventually("and once more, when nobody can pay any more", async || asked() == 2).await;
    let pay_by = UnixMs::parse(order(&eve, &id).await["pay_by"].as_str().unwrap()).unwrap();
    eventually("which is past the deadline", async || {
        !due(pay_by.plus_s(59)).await && due(pay_by.plus_s(60)).await
    })
    .await;
    shop.app.app.clock.advance(Duration::from_secs(60));
    eventually("that is the end", async || !due(UnixMs(i64::MAX)).await).await;
    assert_eq!((asked(), shop.desk.asked("ask", &payment).len()), (3, 0));
    assert_eq!(states(&shop.app, &id).await, [plain("closed")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn money_at_wechat_goes_all_the_way_there_and_back() {
    let shop = Shop::open("wechat").await;
    let (eve, fay) = (shop.app.buyer("eve"), shop.app.buyer("fay"));
    let phone = json!({"payer_client_ip": "127.0.0.1", "h5_info": {"type": "Wap"}});
    for (buyer, agent, verb, pay_url, scene) in [
        (&eve, DESKTOP, "start", "weixin://wxpay/bizpayurl?pr=testonly", Value::Null),
        (
            &fay,
            PHONE,
            "start_phone",
            "https://wx.tenpay.com/cgi-bin/mmpayweb-bin/checkmweb?prepay_id=testonly",
            phone,
        ),
    ] {
        let (id, given) = shop.start(buyer, agent).await;
        assert_eq!(given["pay_url"], pay_url);
        assert_eq!(shop.start_again(buyer, &id, agent).await, given, "the same payment");
        let asked = shop.desk.asked(verb, &id_of(&given));
        assert_eq!(asked.len(), 1, "its provider was asked once");
        let content = &asked[0].content;
        assert_eq!(content["amount"], json!({"total": PRICE, "currency": "CNY"}));
        assert_eq!(content["notify_url"], "https://sale.shop.example/api/v1/payments/wechat/callback");
        assert_eq!(content["scene_info"], scene);
        has_no_name_of_its_own(&shop, &given).await;
        buyer.call("POST", &format!("/api/v1/orders/{id}/cancel"), None, 200).await;
        eventually("it is closed", async || shop.desk.asked("close", &id_of(&given)).len() == 1).await;
        assert_eq!(states(&shop.app, &id).await, [plain("closed")]);
    }
    shop.goes_all_the_way().await;
}
