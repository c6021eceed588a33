//! Sales and offers as their operator makes, changes and throws them away.

use serde_json::json;

use crate::app::{TestApp, draft};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_sale_is_a_draft_that_has_what_was_sent() {
    let app = TestApp::start().await;
    let mut sent = draft(7);
    let second = json!({"name": "Second", "price": {"amount": 1, "currency": "JPY"}, "stock": 0});
    sent["offers"].as_array_mut().unwrap().push(second);
    let sale = app.operate("POST", "/admin/v1/sales", Some(&sent), 201).await;
    assert_eq!((&sale["state"], &sale["phase"]), (&json!("draft"), &json!("open")));
    assert_eq!((&sale["pay_within_s"], &sale["challenge"]), (&json!(900), &json!("none")));
    assert_eq!(sale["offers"][0]["name"], "Feitian 53");
    assert_eq!((&sale["offers"][0]["stock"], &sale["offers"][1]["max_per_order"]), (&json!(7), &json!(1)));
    let path = format!("/admin/v1/sales/{}", sale["id"].as_str().unwrap());
    assert_eq!(app.operate("GET", &path, None, 200).await, sale);
    let stats = app.operate("GET", &format!("{path}/stats"), None, 200).await;
    let offer = &sale["offers"][0]["id"];
    let zeros = json!({"offer_id": offer, "stock": 7, "free": 7, "held": 0, "sold": 0, "returning": 0});
    assert_eq!(stats["offers"][0], zeros);
    assert_eq!(stats["funnel"]["tries"], 0);
}
