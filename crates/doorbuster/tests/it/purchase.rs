//! A sale from draft to recorded order, through the public interface.

use crate::app::TestApp;

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_gets_a_pass_tries_and_holds_a_recorded_order() {
    let app = TestApp::start().await;
    let sale = app.open_sale(3).await;
    let ann = app.buyer("ann");
    let queued = ann.buy(sale.offer(), 1, 202).await;
    assert_eq!(queued["state"], "queued");
    let order = ann.order(queued["id"].as_str().unwrap()).await;
    assert_eq!(order["state"], "awaiting_payment");
    assert_eq!(order["total"]["amount"], 149_900);
    let stats = app.stats(&sale).await;
    assert_eq!((&stats["offers"][0]["free"], &stats["offers"][0]["held"]), (&2.into(), &1.into()));
}
