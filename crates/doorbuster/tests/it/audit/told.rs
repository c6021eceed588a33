//! What operators, receivers and scripts see of audits.

use std::time::Duration;

use rules::audit::Kind;
use rules::wire::AuditRequest;
use serde_json::{Value, json};
use testkit::process::{Program, Stream};

use super::{audit, text};
use crate::app::{ADMIN_KEY, TestApp, assert_code, draft, draft_between, eventually, with_manual_clock};
use crate::served::Server;
use crate::webhooks::{Got, INSIDE, Receiver};

const PATIENCE: Duration = Duration::from_secs(60);

async fn broken() -> (TestApp, String) {
    let app = TestApp::with(&["audit.apart_ms=100", "audit.every_s=0"]).await;
    let sale = app.open_sale(10).await;
    let gate = app.app.gate.memory.offer(sale.offer().parse().unwrap()).unwrap();
    app.app.gate.memory.surrender(&gate, 3).unwrap();
    (app, sale.offer().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_is_asked_for_read_and_listed() {
    let (app, offer) = broken().await;
    let said = app.audited(&json!({})).await;
    assert_eq!((&said["clean"], &said["state"], &said["cuts"]), (&json!(false), &json!("done"), &json!(2)));
    let finding = &said["findings"][0];
    assert_eq!((&finding["kind"], &finding["offer_id"]), (&json!("gate_units"), &json!(offer)));
    assert_eq!((&finding["units"], &finding["repaired"]), (&json!(3), &json!(false)));
    assert_eq!(finding["evidence"], json!({"stock": "10", "free": "7", "held": "0"}));
    let read = app.operate("GET", &format!("/admin/v1/audit/{}", text(&said, "id")), None, 200).await;
    assert_eq!(read, said);
    let mended = app.audited(&json!({"repair": true})).await;
    assert_eq!((&mended["findings"][0]["repaired"], &mended["clean"]), (&json!(true), &json!(false)));
    let clean = app.audited(&json!({"offer_id": offer})).await;
    assert_eq!((&clean["clean"], &clean["findings"], &clean["cuts"]), (&json!(true), &json!([]), &json!(1)));
    let list = app.operate("GET", "/admin/v1/audit?limit=2", None, 200).await;
    let ids: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|item| &item["id"]).collect();
    assert_eq!(ids, [&clean["id"], &mended["id"]]);
    let next = format!("/admin/v1/audit?cursor={}", text(&list, "next_cursor"));
    assert_eq!(app.operate("GET", &next, None, 200).await["items"][0], said);
    for body in
        [json!({"sale_id": "01k9zq3v8g7m4x2r5w6t0n1pbc"}), json!({"offer_id": "01k9zq3v8g7m4x2r5w6t0n1pbc"})]
    {
        let refused = app.operate("POST", "/admin/v1/audit", Some(&body), 422).await;
        assert_code(&refused, "invalid_request");
        assert_eq!(refused["field"], json!(body.as_object().unwrap().keys().next().unwrap()));
    }
    app.operate("GET", "/admin/v1/audit/01k9zq3v8g7m4x2r5w6t0n1pbc", None, 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_runs_it_says_so() {
    let app = TestApp::with(&["audit.apart_ms=4000", "audit.every_s=0"]).await;
    let sale = app.open_sale(10).await;
    let gate = app.app.gate.memory.offer(sale.offer().parse().unwrap()).unwrap();
    app.app.gate.memory.surrender(&gate, 3).unwrap();
    let begun = app.operate("POST", "/admin/v1/audit", Some(&json!({})), 202).await;
    assert_eq!((&begun["state"], &begun["clean"]), (&json!("running"), &Value::Null));
    let path = format!("/admin/v1/audit/{}", text(&begun, "id"));
    let mut seen = app.operate("GET", &path, None, 200).await;
    for _ in 0..400 {
        if seen["state"] != "running" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        seen = app.operate("GET", &path, None, 200).await;
    }
    assert_eq!((&seen["state"], &seen["clean"], &seen["id"]), (&json!("done"), &json!(false), &begun["id"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discrepancy_raises_one_alarm_however_often_it_is_seen() {
    let (app, offer) = broken().await;
    for _ in 0..3 {
        audit(&app, AuditRequest::default()).await;
    }
    let told = async || {
        let events = app.app.ledger.events_after(0, 10_000).await.unwrap();
        events.into_iter().filter(|event| event.kind == "audit.finding").collect::<Vec<_>>()
    };
    let events = told().await;
    assert_eq!(events.len(), 1, "it was told once");
    assert_eq!(events[0].offer_id.unwrap().to_string(), offer);
    assert_eq!((&events[0].data["kind"], &events[0].data["units"]), (&json!("gate_units"), &json!(3)));
    let metrics = app.app.metrics.encode();
    for line in ["doorbuster_audit_findings 1\n", "doorbuster_audits_total{outcome=\"findings\"} 3\n"] {
        assert!(metrics.contains(line), "{line}");
    }
    assert!(metrics.contains("doorbuster_audit_last_clean_timestamp_seconds 0\n"));
    audit(&app, AuditRequest { repair: true, ..AuditRequest::default() }).await;
    audit(&app, AuditRequest::default()).await;
    let metrics = app.app.metrics.encode();
    assert!(metrics.contains("doorbuster_audit_findings 0\n"));
    assert!(!metrics.contains("doorbuster_audit_last_clean_timestamp_seconds 0\n"));
    // Gone and back again is a new alarm.
    let gate = app.app.gate.memory.offer(offer.parse().unwrap()).unwrap();
    app.app.gate.memory.surrender(&gate, 1).unwrap();
    let again = audit(&app, AuditRequest::default()).await;
    assert_eq!(again.findings[0].kind, Kind::GateUnits);
    assert_eq!(told().await.len(), 2);
}

/// The real program: its log on standard error, and a receiver that asked for findings.
#[tokio::test(flavor = "multi_thread")]
async fn a_finding_is_logged_and_reaches_the_shops_webhook() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::willing().await);
    let server = Server::start(folder.path(), &[INSIDE, "audit.every_s=0", "audit.apart_ms=100"], None);
    let hook = json!({"url": receiver.url(), "types": ["audit.finding"]});
    server.operate("POST", "/admin/v1/webhooks", Some(&hook)).await;
    let sale = server.operate("POST", "/admin/v1/sales", Some(&draft(10))).await;
    server.operate("POST", &format!("/admin/v1/sales/{}/publish", text(&sale, "id")), Some(&json!({}))).await;
    let file = rusqlite::Connection::open(folder.path().join("doorbuster.db")).unwrap();
    file.busy_timeout(PATIENCE).unwrap();
    assert_eq!(file.execute("update offers set live_units = live_units + 1", []).unwrap(), 1);
    drop(file);
    server.operate("POST", "/admin/v1/audit", Some(&json!({}))).await;
    // The gate, which was told nothing, does not fit the counter either.
    let is_the_counter =
        |got: &Got| got.body["type"] == "audit.finding" && got.body["data"]["data"]["kind"] == "live_counter";
    eventually("the shop is told", async || receiver.taken().iter().any(is_the_counter)).await;
    let alarm = |line: &testkit::process::Line| {
        line.stream == Stream::Stderr
            && line.text.contains("ERROR")
            && line.text.contains("an audit found a discrepancy")
            && line.text.contains("live_counter")
    };
    tokio::task::spawn_blocking(move || server.process.wait_for(PATIENCE, alarm).map(drop))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_sale_is_audited_by_itself_and_once_after_its_end() {
    let app = TestApp::with(&["audit.every_s=1", "audit.after_s=0"]).await;
    let sale = app.open_sale(10).await;
    let made = async || app.app.audits(None, 200).await.unwrap().0;
    let until = async |what: &str, enough: &dyn Fn(&[rules::wire::AuditView]) -> bool| {
        for _ in 0..600 {
            if enough(&made().await) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("not within 30 s: {what}");
    };
    until("two audits", &|audits| audits.len() >= 2).await;
    app.act(&sale, rules::sale::SaleAction::End).await;
    let of_sale = |audits: &[rules::wire::AuditView]| {
        audits.iter().filter(|audit| audit.sale_id.is_some_and(|id| id.to_string() == sale.id)).count()
    };
    until("one after its end", &|audits| of_sale(audits) == 1).await;
    let audits = made().await;
    assert!(audits.iter().all(|audit| audit.clean == Some(true)), "{audits:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_closed_while_nobody_looked_is_audited_once_after_the_next_start() {
    let (app, clock) = with_manual_clock(&["audit.every_s=0"]).await;
    app.publish(draft_between(-60, 60, 10)).await;
    let folder = app.stop().await;
    clock.advance(Duration::from_secs(120));
    let watched = ["audit.every_s=60", "audit.after_s=0"];
    let app = TestApp::on(folder, clock.clone(), &watched).await;
    let made = async |app: &TestApp| app.app.audits(None, 200).await.unwrap().0;
    eventually("it is audited", async || !made(&app).await.is_empty()).await;
    let first = made(&app).await;
    assert_eq!((first.len(), first[0].clean), (1, Some(true)), "{first:#?}");

    // The next start knows that: only what closed since is audited.
    let app = TestApp::on(app.stop().await, clock.clone(), &watched).await;
    let other = app.publish(draft_between(-60, 3_600, 10)).await;
    let folder = app.stop().await;
    clock.advance(Duration::from_secs(4_000));
    let app = TestApp::on(folder, clock, &watched).await;
    eventually("the other one is audited", async || made(&app).await.len() == 2).await;
    assert_eq!(made(&app).await[0].sale_id.map(|id| id.to_string()), Some(other.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_after_a_look_at_its_sale_alone_is_told_when_it_comes_back() {
    let (app, offer) = broken().await;
    let offer_id = Some(offer.parse().unwrap());
    let gate = app.app.gate.memory.offer(offer.parse().unwrap()).unwrap();
    audit(&app, AuditRequest::default()).await;
    audit(&app, AuditRequest { repair: true, offer_id, sale_id: None }).await;
    assert_eq!(audit(&app, AuditRequest { offer_id, ..AuditRequest::default() }).await.clean, Some(true));
    app.app.gate.memory.surrender(&gate, 1).unwrap();
    audit(&app, AuditRequest::default()).await;
    let events = app.app.ledger.events_after(0, 10_000).await.unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "audit.finding").count(), 2);
}

/// Only the newest audit must know what it found: a thousand lists of the same would fill the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_audit_keeps_its_report_alone() {
    let (app, _) = broken().await;
    for _ in 0..3 {
        audit(&app, AuditRequest::default()).await;
    }
    let file = rusqlite::Connection::open(app.app.settings.ledger_path()).unwrap();
    let mut rows = file.prepare("select known = '[]' from audits order by audit_no").unwrap();
    let empty: Vec<bool> = rows.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(empty, [true, true, false]);
}

/// The binary as a script runs it: its exit code and what it says.
async fn run(args: &[&str]) -> (i32, String) {
    let program =
        Program::new(env!("CARGO_BIN_EXE_doorbuster")).args(args).env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY);
    let ended = tokio::task::spawn_blocking(move || {
        let process = program.start().unwrap();
        let code = process.wait(PATIENCE).unwrap().code().unwrap();
        testkit::eventually(PATIENCE, || process.output_ended());
        let out = process.lines().into_iter().filter(|line| line.stream == Stream::Stdout);
        (code, out.map(|line| line.text + "\n").collect())
    });
    ended.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_asks_the_server_that_runs_or_opens_its_folder() {
    let (app, offer) = broken().await;
    let server = app.url("");
    let (code, said) = run(&["audit", "--server", &server]).await;
    assert!(code == 3 && said.contains("gate_units") && said.contains("Repair sets them."), "{code} {said}");
    let (code, said) = run(&["audit", "--server", &server, "--repair", "--offer", &offer, "--json"]).await;
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &report["findings"][0]["repaired"]), (3, &json!(true)), "{said}");
    assert_eq!(run(&["audit", "--server", &server]).await.0, 0);
    let (code, _) = run(&["audit", "--server", &server, "--sale", &offer]).await;
    assert_eq!(code, 1, "an offer is no sale");

    let folder = app.stop().await;
    let path = folder.path().to_str().unwrap();
    let (code, said) = run(&["audit", "--data-dir", path]).await;
    assert!(code == 0 && said.starts_with("Clean: "), "{code} {said}");
    let file = rusqlite::Connection::open(folder.path().join("doorbuster.db")).unwrap();
    file.execute("update offers set live_units = live_units + 1", []).unwrap();
    drop(file);
    let (code, said) = run(&["audit", "--data-dir", path, "--repair"]).await;
    assert!(code == 3 && said.contains("live_counter") && said.contains("mended"), "{code} {said}");
    assert_eq!(run(&["audit", "--data-dir", path]).await.0, 0);
}

/// The list of kinds in the documentation is the one of the code.
#[test]
fn the_documentation_explains_every_finding() {
    let documented = include_str!("../../../../../docs/audit.md");
    let mut rows = String::new();
    for kind in Kind::ALL {
        let mends = if kind.mending() == rules::audit::Mending::Person { "a person" } else { "repair" };
        rows += &format!("| `{kind}` | {} | {mends} | {} |\n", kind.means(), kind.todo());
    }
    assert!(documented.contains(&rows), "docs/audit.md must hold this table:\n{rows}");
}
