//! `doorbuster payments`: with a server that runs, and on a data folder alone.

use std::time::Duration;

use doorbuster::clock::Clock;
use serde_json::json;
use testkit::process::{Process, Program, Stream};

use super::*;
use crate::app::{ADMIN_KEY, AUTH_SECRET};

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the command; answers its code and what it said on both streams.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let process = program(args).start().unwrap();
    let code = process.wait(PATIENCE).unwrap().code();
    testkit::eventually(PATIENCE, || process.output_ended());
    (code, said(&process, Stream::Stdout), said(&process, Stream::Stderr))
}

fn program(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_doorbuster"))
        .args(args)
        .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
        .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
        .env("DOORBUSTER_PASS__SECRET", PASS_SECRET)
}

fn said(process: &Process, stream: Stream) -> String {
    let lines = process.lines().into_iter().filter(|line| line.stream == stream);
    lines.map(|line| line.text + "\n").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn payments_are_listed_shown_and_refunded_from_a_terminal() {
    let (app, sale) = shop(2).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    becomes(&ann, &id, "paid").await;
    let url = app.url("");
    let (on, key) = (["--server", url.as_str()], ["--admin-key", ADMIN_KEY]);
    let call = async |args: &[&str]| {
        let args: Vec<String> = args.iter().chain(&on).chain(&key).map(|arg| (*arg).to_owned()).collect();
        tokio::task::spawn_blocking(move || run(&args.iter().map(String::as_str).collect::<Vec<_>>()))
            .await
            .unwrap()
    };

    let (code, out, err) = call(&["payments", "list"]).await;
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(&payment) && out.contains("1499.00 CNY") && out.contains("applied"), "{out}");
    let (_, out, _) = call(&["payments", "list", "--order", &id, "--state", "applied", "--json"]).await;
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (listed["items"][0]["id"].as_str(), listed["items"].as_array().unwrap().len()),
        (Some(&*payment), 1)
    );
    let (_, out, _) = call(&["payments", "list", "--state", "refund_failed"]).await;
    assert_eq!(out, "There are no such payments.\n");
    let (_, out, _) = call(&["payments", "show", &payment]).await;
    assert!(out.contains("1499.00 CNY at sandbox") && out.contains(&format!("order    {id}")), "{out}");

    let (code, _, err) = call(&["payments", "retry", &payment]).await;
    assert!(code == Some(1) && err.contains("not_refundable") && err.contains("applied"), "{err}");
    let (code, out, err) = call(&["payments", "refund", &id, "--keep-units"]).await;
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("of ann is refunding") && out.contains("payments show"), "{out}");
    becomes(&ann, &id, "refunded").await;
    eventually("the stock is lower", async || units(&app, &sale).await == [1, 1, 0, 0]).await;
    let (code, out, _) = call(&["payments", "show", &payment, "--json"]).await;
    assert_eq!(
        (code, serde_json::from_str::<Value>(&out).unwrap()["state"].as_str()),
        (Some(0), Some("refunded"))
    );
    let (code, _, err) = call(&["payments", "show", "01k9zq3v8g7m4x2r5w6t0n1pbc"]).await;
    assert!(code == Some(1) && err.contains("payments list"), "{err}");
    let (code, _, err) = call(&["payments", "list", "--state", "lost"]).await;
    assert!(code == Some(2) && err.contains("refund_failed"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_found_shown_and_exported_from_a_terminal() {
    let (app, sale) = shop(3).await;
    // What is in the way of an address may be in a name.
    let (ann, odd) = (app.buyer("ann"), app.buyer("a&b=c ?"));
    let (id, other) = (won(&ann, &sale).await, won(&odd, &sale).await);
    let payment = payment(&ann, &id).await;
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    becomes(&ann, &id, "paid").await;
    let url = app.url("");
    let bare = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let call = async |args: &[&str]| {
        let on = ["--server", bare.as_str()];
        let args: Vec<String> = args.iter().chain(&on).map(|arg| (*arg).to_owned()).collect();
        tokio::task::spawn_blocking(move || run(&args.iter().map(String::as_str).collect::<Vec<_>>()))
            .await
            .unwrap()
    };

    let (code, out, err) = call(&["orders", "list"]).await;
    assert_eq!(code, Some(0), "an address without http:// is enough: {err}");
    assert!(out.contains(&id) && out.contains(&other) && out.contains("1499.00 CNY"), "{out}");
    for (wanted, expected) in [
        (&["--buyer", "a&b=c ?"][..], vec![&*other]),
        (&["--buyer", "ann", "--state", "paid", "--offer", sale.offer()], vec![&*id]),
        (&["--sale", &*sale.id], vec![&*other, &*id]),
        (&["--limit", "1"], vec![&*other]),
        (&["--buyer", "nobody"], vec![]),
    ] {
        let (_, out, err) = call(&[&["orders", "list", "--json"], wanted].concat()).await;
        let listed: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        let ids: Vec<&str> =
            listed["items"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
        assert_eq!(ids, expected, "{wanted:?}");
    }
    let (_, out, _) = call(&["orders", "list", "--state", "refused"]).await;
    assert_eq!(out, "There are no such orders.\n");
    let (_, out, _) = call(&["orders", "show", &id]).await;
    assert!(out.contains("buyer    ann") && out.contains(&format!("payment  {payment}")), "{out}");
    let (_, out, _) = call(&["orders", "show", &id, "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["state"], "paid");

    let (code, out, err) = call(&["orders", "export", "--state", "paid"]).await;
    assert_eq!((code, out.lines().count()), (Some(0), 2), "{err}");
    assert!(out.starts_with("id,sale_id,offer_id,buyer,") && out.contains(&id), "{out}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.csv");
    let (code, told, err) = call(&["orders", "export", "--out", file.to_str().unwrap(), "--json"]).await;
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), json!({"file": file, "orders": 2}));
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.lines().count() == 3 && written.contains(&other), "{written}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");

    let (code, _, err) = call(&["orders", "show", &payment]).await;
    assert!(code == Some(1) && err.contains("no order with the id") && err.contains("orders list"), "{err}");
    let (code, _, err) = call(&["payments", "show", &id]).await;
    assert!(
        code == Some(1) && err.contains("no payment with the id") && err.contains("payments list"),
        "{err}"
    );
    let (code, _, err) = call(&["payments", "refund", &payment]).await;
    assert!(code == Some(1) && err.contains("no order with the id"), "{err}");
    let (code, _, err) = call(&["orders", "list", "--state", "lost"]).await;
    assert!(code == Some(2) && err.contains("awaiting_payment"), "{err}");
    let lost = app.operate("GET", "/admin/v1/orders?state=lost", None, 422).await;
    assert!(lost["detail"].as_str().unwrap().contains("awaiting_payment, paid"), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_the_folder_is_opened() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let folder = app.stop().await;
    let path = folder.path().to_str().unwrap().to_owned();
    let listing = move || run(&["payments", "list", "--data-dir", &path, "--json"]);
    let (code, out, err) = tokio::task::spawn_blocking(listing).await.unwrap();
    assert_eq!(code, Some(0), "{err}");
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(listed["items"][0]["id"], json!(payment));
    let (code, _, err) = run(&["payments", "list", "--data-dir", "/nonexistent/doorbuster"]);
    assert!(code == Some(1) && err.contains("--server URL"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_asks_for_in_a_folder_is_carried_out_by_the_next_server() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    becomes(&ann, &id, "paid").await;
    let folder = app.stop().await;
    let path = folder.path().to_str().unwrap().to_owned();
    let order = id.clone();
    let refund = move || run(&["payments", "refund", &order, "--data-dir", &path, "--set", SANDBOX]);
    let (code, out, err) = tokio::task::spawn_blocking(refund).await.unwrap();
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("of ann is refunding") && err.contains("by the next server"), "{out}{err}");
    let look = folder.path().to_str().unwrap().to_owned();
    let look = move || run(&["payments", "show", &payment, "--data-dir", &look, "--set", SANDBOX, "--json"]);
    let (_, out, _) = tokio::task::spawn_blocking(look).await.unwrap();
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&shown["state"], &shown["attempts"]), (&json!("refund_due"), &json!(0)), "{shown}");

    let app = TestApp::on(folder, Clock::system(), &[SANDBOX]).await;
    becomes(&app.buyer("ann"), &id, "refunded").await;
    eventually("the unit is back", async || units(&app, &sale).await == [1, 1, 0, 0]).await;
}
