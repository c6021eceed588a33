//! The crowd's program against a real server: it finds the shop clean, rehearses a sale with a copy, and judges a kept
//! history again. What it does against a shop that lies is tested in its own crate.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use tempfile::TempDir;

use crate::app::{ADMIN_KEY, AUTH_SECRET, TestApp, TestSale, draft_between};

const CLEAN: ExitCode = ExitCode::SUCCESS;
/// How often a rehearsal is asked again on a machine that is busy with other things.
const ATTEMPTS_MAX: u32 = 6;

struct Stampede<'a> {
    app: &'a TestApp,
    folder: TempDir,
}

impl<'a> Stampede<'a> {
    fn of(app: &'a TestApp) -> Self {
        Self { app, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.file("night.json")).unwrap()).unwrap()
    }

    /// A command against this server, as its operator and with the shop's secret.
    async fn ask(&self, command: &str, sale: &TestSale, more: &[&str]) -> ExitCode {
        let (url, json) = (self.app.url(""), self.file("night.json"));
        let mut args =
            vec!["stampede", command, "--url", &url, "--sale", &sale.id, "--json", &json, "--quiet"];
        args.extend(["--secret", AUTH_SECRET, "--admin-key", ADMIN_KEY, "--connections", "64"]);
        args.extend(more);
        run(&args).await
    }

    /// Rehearses until it holds. A crowd on a machine that is busy with other tests may be too late to tell, and says
    /// so; a broken promise is never excused.
    async fn rehearse(&self, sale: &TestSale, more: &[&str]) -> Value {
        for _ in 0..ATTEMPTS_MAX {
            let code = self.ask("rehearse", sale, more).await;
            let night = self.json();
            assert_exit_fits(code, &night);
            if night["rehearsal"]["holds"] == true {
                return night;
            }
        }
        panic!("it never held: {:#}", self.json()["rehearsal"]);
    }

    /// The buyers' events of the kept history, buyer by buyer.
    fn histories(&self) -> Vec<Vec<Value>> {
        let kept = std::fs::read_to_string(self.file("night.jsonl")).unwrap();
        let lines = kept.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["events"].as_array().unwrap().clone()).collect()
    }
}

/// A rehearsal whose promises were kept ends with 0 when it holds and with 1 when it does not, or nobody can tell.
fn assert_exit_fits(code: ExitCode, night: &Value) {
    assert_eq!(
        (&night["kept"], &night["findings"]),
        (&Value::Bool(true), &Value::Array(vec![])),
        "{night:#}"
    );
    let wanted = if night["rehearsal"]["holds"] == true { CLEAN } else { ExitCode::FAILURE };
    assert_exit(code, wanted, &night["rehearsal"]);
}

async fn run(args: &[&str]) -> ExitCode {
    stampede::cli::run(args.iter().map(Into::into)).await
}

/// Exit codes cannot be compared, only shown.
fn assert_exit(code: ExitCode, wanted: ExitCode, told: &dyn std::fmt::Display) {
    assert_eq!(format!("{code:?}"), format!("{wanted:?}"), "{told:#}");
}

fn sentences(night: &Value) -> &[Value] {
    night["sentences"].as_array().unwrap()
}

mod heavy {
    use serde_json::json;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_shipped_scenario_finds_the_shop_clean() {
        let app = TestApp::with(&["payment.sandbox=true"]).await;
        for shipped in stampede::scenario::SHIPPED {
            // Nobody can sign up any more when it is open.
            let signs_up = shipped.name == "registration";
            let mut draft = draft_between(if signs_up { 6 } else { 2 }, 3_600, 20);
            draft["registration"] = if signs_up { "required" } else { "none" }.into();
            let sale = app.publish(draft).await;
            let crowd = Stampede::of(&app);
            let (report, history) = (crowd.file("night.html"), crowd.file("night.jsonl"));
            let more = ["--scenario", shipped.name, "--buyers", "150", "--within", "500ms"];
            let files = ["--report", &report, "--history", &history];
            let code = crowd.ask("run", &sale, &[&more[..], &files[..]].concat()).await;
            let night = crowd.json();
            assert_exit(code, CLEAN, &format!("{}: {}", shipped.name, night["sentences"]));
            assert_eq!((&night["kept"], sentences(&night).len()), (&json!(true), 0), "{}", shipped.name);
            assert_eq!(night["summary"]["stock"], 20, "{}", shipped.name);
            // Every unit went out; what was cancelled may have found somebody else, or nobody.
            let (sold, cancelled) =
                (night["summary"]["sold"].as_u64().unwrap(), night["totals"]["cancelled"].as_u64().unwrap());
            assert!(sold <= 20 && sold + cancelled >= 20, "{}: {sold} + {cancelled}", shipped.name);
            if shipped.name == "half-pay" {
                let totals = &night["totals"];
                assert!(totals["paid"].as_u64().unwrap() > 0 && totals["no_payment"] == 0, "{totals}");
            }
            if shipped.name == "registration" {
                let refused = &night["totals"]["refused"];
                assert!(refused["not_registered"].as_u64().unwrap_or(0) > 0, "{refused}");
            }
            let page = std::fs::read_to_string(&report).unwrap();
            assert!(
                page.to_lowercase().starts_with("<!doctype html>") && page.len() > 10_000,
                "{}",
                shipped.name
            );
            // The kept history is judged the same again.
            assert_exit(run(&["stampede", "check", &history, "--quiet"]).await, CLEAN, &shipped.name);
            spoil_and_check(Path::new(&history)).await;
        }
    }

    /// One order that the last look no longer finds.
    async fn spoil_and_check(history: &Path) {
        let kept = std::fs::read_to_string(history).unwrap();
        let mut lines: Vec<Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let events = lines.iter_mut().filter_map(|line| line.get_mut("events")?.as_array_mut()).flatten();
        let mut looks = events.filter(|event| event["told"] == "looked" && event["last"] == true);
        looks.next().unwrap()["found"] = Value::Null;
        let spoilt: Vec<String> = lines.iter().map(ToString::to_string).collect();
        std::fs::write(history, spoilt.join("\n")).unwrap();
        let (file, json) =
            (history.display().to_string(), history.with_extension("json").display().to_string());
        let code = run(&["stampede", "check", &file, "--json", &json, "--quiet"]).await;
        let night: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        assert_exit(code, ExitCode::from(3), &night["sentences"]);
        assert!(
            sentences(&night)
                .iter()
                .any(|sentence| sentence.as_str().unwrap().ends_with("and now it is gone."))
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_rehearsal_runs_a_copy_ends_it_and_says_that_it_holds() {
        let app = TestApp::start().await;
        let sale = app.publish(draft_between(3_600, 7_200, 30)).await;
        let crowd = Stampede::of(&app);
        // Time enough for everybody's pass: it does not hold where passes come late.
        let more = ["--buyers", "200", "--within", "1s", "--open-in", "8s"];
        let night = crowd.rehearse(&sale, &more).await;
        let said: Vec<&str> = night["rehearsal"]["sentences"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one.as_str().unwrap())
            .collect();
        assert!(said[0].starts_with("It holds"), "{said:?}");
        assert!(said.iter().any(|sentence| sentence.starts_with("It sells out")), "{said:?}");
        // Where it saturates is beyond what came; what it took is a lower bound.
        assert!(said.iter().any(|sentence| sentence.contains("It saturates beyond that")), "{said:?}");
        assert_eq!(night["rehearsal"]["saturates_at_per_s"], Value::Null);
        assert!(night["rehearsal"]["at_least_per_s"].as_u64().unwrap() > 50, "{}", night["rehearsal"]);
        assert_eq!(night["summary"]["sold"], 30);
        // The real sale is untouched, the copy is over and was never listed.
        assert_eq!(app.stats(&sale).await["offers"][0]["free"], 30);
        let sales = app.operate("GET", "/admin/v1/sales", None, 200).await;
        let copy = sales["items"].as_array().unwrap().iter().find(|one| one["rehearsal"] == true).unwrap();
        assert_eq!((&copy["state"], &copy["title"]), (&json!("ended"), &json!("Rehearsal of 1499 night")));
        let listed = app.call("GET", "/api/v1/sales", None, None, 200).await;
        assert!(!listed.to_string().contains("Rehearsal"), "{listed}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_rehearsal_that_is_shed_says_which_setting_to_change() {
        let app = TestApp::with(&["limits.per_buyer_per_s=1", "limits.per_buyer_burst=4"]).await;
        let sale = app.publish(draft_between(3_600, 7_200, 5)).await;
        let crowd = Stampede::of(&app);
        let scenario = crowd.file("hammers.toml");
        std::fs::write(&scenario, "title = \"hammers\"\n[[person]]\nvolleys = 10\nevery = \"20ms\"\n")
            .unwrap();
        let more = ["--buyers", "20", "--within", "1s", "--open-in", "3s", "--scenario", &scenario];
        let code = crowd.ask("rehearse", &sale, &more).await;
        let night = crowd.json();
        // Who is told "too fast" has an answer: no promise is broken.
        assert_exit_fits(code, &night);
        let changes = night["rehearsal"]["changes"].to_string();
        assert!(changes.contains("limits.per_buyer_per_s"), "{changes}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn news_come_by_websocket_and_by_event_stream() {
        let app = TestApp::start().await;
        for follow in ["websocket", "sse"] {
            let sale = app.open_sale(6).await;
            let crowd = Stampede::of(&app);
            let (scenario, history) = (crowd.file("watchers.toml"), crowd.file("night.jsonl"));
            let watchers =
                "title = \"watchers\"\n[arrival]\nloop = \"closed\"\nat_once = 4\n[[person]]\nfollow = ";
            std::fs::write(&scenario, format!("{watchers}\"{follow}\"\n")).unwrap();
            let more = ["--scenario", &scenario, "--buyers", "12", "--history", &history];
            let code = crowd.ask("run", &sale, &more).await;
            assert_exit(code, CLEAN, &crowd.json()["sentences"]);
            let histories = crowd.histories();
            let has = |events: &[Value], told: &str| events.iter().any(|event| event["told"] == told);
            let winners: Vec<&Vec<Value>> =
                histories.iter().filter(|events| has(events.as_slice(), "order")).collect();
            assert_eq!(winners.len(), 6, "{follow}");
            for events in winners {
                let decided =
                    |event: &&Value| event["told"] == "pushed" && event["order"]["state"] != "queued";
                assert!(events.iter().any(|event| decided(&event)), "{follow}: {events:#?}");
            }
            let broken = |event: &&Value| event["told"] == "broken" && event["call"] == "push";
            assert_eq!(histories.iter().flatten().find(broken), None, "{follow}");
        }
    }

    /// The smallest contrast of text that is read, by WCAG.
    const CONTRAST_MIN: f64 = 4.5;

    /// What a reader would stumble over in a page: what is too wide, pictures without a size, text that can hardly be told
    /// from what is behind it.
    const STUMBLES: &str = r"(() => {
        const found = [];
        const root = document.documentElement;
        if (root.scrollWidth > root.clientWidth) found.push(`${root.scrollWidth} wide in ${root.clientWidth}`);
        for (const part of document.querySelectorAll('body *')) {
            const area = part.getBoundingClientRect();
            const inside = part.closest('.scroll, svg, legend');
            if (!inside && area.right > root.clientWidth + 1) found.push(`${part.tagName} ends at ${area.right}`);
        }
        const pictures = [...document.querySelectorAll('figure > svg')];
        if (pictures.length < 4) found.push(`${pictures.length} pictures`);
        for (const picture of pictures) {
            const area = picture.getBoundingClientRect();
            if (area.width < 200 || area.height < 80) found.push(`a picture of ${area.width} by ${area.height}`);
        }
        const numbers = colour => colour.match(/[\d.]+/g).map(Number);
        const light = colour => {
            const [r, g, b] = numbers(colour).map(part => part / 255)
                .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = part => {
            for (let at = part; at; at = at.parentElement) {
                const colour = getComputedStyle(at).backgroundColor;
                if ((numbers(colour)[3] ?? 1) > 0) return colour;
            }
            return 'rgb(255, 255, 255)';
        };
        for (const part of document.querySelectorAll('h1, h2, h3, p, li, dt, dd, td, th, pre, figcaption, label, figure text')) {
            if (!part.textContent.trim()) continue;
            const style = getComputedStyle(part);
            const pair = [light(part.closest('svg') ? style.fill : style.color), light(behind(part))].sort((a, b) => b - a);
            const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
            if (contrast < CONTRAST) found.push(`${contrast.toFixed(2)} ${part.tagName}.${part.className.baseVal ?? part.className}`);
        }
        return [...new Set(found)];
    })()";

    #[tokio::test(flavor = "multi_thread")]
    async fn the_report_of_a_night_can_be_read_in_a_browser() {
        let app = TestApp::with(&["payment.sandbox=true"]).await;
        let sale = app.publish(draft_between(2, 3_600, 20)).await;
        let crowd = Stampede::of(&app);
        let report = crowd.file("night.html");
        let more = ["--scenario", "half-pay", "--buyers", "300", "--within", "1s", "--report", &report];
        assert_exit(crowd.ask("run", &sale, &more).await, CLEAN, &crowd.json()["sentences"]);
        let browser = testkit::browser::Browser::launch().await.unwrap();
        let mut page = browser.page().await.unwrap();
        for (width, height, phone) in [(390, 844, true), (1_280, 900, false)] {
            for dark in [false, true] {
                page.resize(width, height, phone).await.unwrap();
                page.darken(dark).await.unwrap();
                page.open(&format!("file://{report}")).await.unwrap();
                let paper = page.evaluate("getComputedStyle(document.body).backgroundColor").await.unwrap();
                assert_eq!(paper == "rgb(18, 22, 28)", dark, "{paper}");
                let name = format!("report-{width}-{}.png", if dark { "dark" } else { "light" });
                let picture = page.whole_picture().await.unwrap();
                assert!(picture.starts_with(b"\x89PNG"), "{name}");
                std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name), picture).unwrap();
                let stumbles = STUMBLES.replace("CONTRAST", &CONTRAST_MIN.to_string());
                let stumbles = page.evaluate(&stumbles).await.unwrap();
                assert_eq!(stumbles, json!([]), "{name}");
            }
        }
        assert_eq!(page.problems(), [] as [String; 0], "nothing went wrong, and its policy forbade nothing");
        browser.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crowd_solves_the_proofs_of_work_of_the_real_server() {
        let app = TestApp::with(&["challenge.pow_cost=2", "challenge.pow_tries=20"]).await;
        let mut draft = draft_between(3, 3_600, 10);
        draft["challenge"] = "pow".into();
        let sale = app.publish(draft).await;
        let crowd = Stampede::of(&app);
        let code = crowd.ask("run", &sale, &["--buyers", "60", "--within", "500ms"]).await;
        let night = crowd.json();
        assert_exit(code, CLEAN, &night["sentences"]);
        assert_eq!((&night["totals"]["passes"], &night["summary"]["sold"]), (&json!(60), &json!(10)));
        assert_eq!(night["totals"]["refused"]["challenge_failed"], Value::Null);
        assert!(night["totals"]["solving_us"].as_u64().unwrap() > 0);
        assert!(night["notes"].to_string().contains("This machine solves about"), "{}", night["notes"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn late_money_comes_after_the_deadline_and_ends_once() {
        let app = TestApp::with(&["payment.sandbox=true"]).await;
        let mut draft = draft_between(2, 3_600, 5);
        draft["pay_within_s"] = 2.into();
        let sale = app.publish(draft).await;
        let crowd = Stampede::of(&app);
        let (scenario, history) = (crowd.file("late.toml"), crowd.file("night.jsonl"));
        let late = "title = \"late\"\n[arrival]\npages_ahead = \"1s\"\n[[person]]\npay_late = 1.0\ndecide_within = \"0ms\"\n";
        std::fs::write(&scenario, late).unwrap();
        let more = ["--scenario", &scenario, "--buyers", "8", "--within", "200ms", "--history", &history];
        let code = crowd.ask("run", &sale, &more).await;
        let night = crowd.json();
        assert_exit(code, CLEAN, &night["sentences"]);
        assert_eq!(night["totals"]["not_late"], 0, "{}", night["totals"]);
        let histories = crowd.histories();
        let paid_late = |event: &&Value| event["told"] == "paid" && event["late"] == true;
        assert!(histories.iter().flatten().any(|event| paid_late(&event)), "{histories:#?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tokens_can_come_from_a_file_and_the_demo_logs_everybody_in() {
        let app = TestApp::with(&["demo=true"]).await;
        let sale = app.open_sale(3).await;
        let crowd = Stampede::of(&app);
        let tokens: Vec<String> = (0..5).map(|number| app.buyer(&format!("member {number}")).token).collect();
        let (file, url) = (crowd.file("tokens.txt"), app.url(""));
        std::fs::write(&file, tokens.join("\n")).unwrap();
        let scenario = crowd.file("calm.toml");
        let calm = "title = \"calm\"\n[arrival]\nloop = \"closed\"\nat_once = 2\n[[person]]\nfollow = \"websocket\"\ncancel = 1.0\ndecide_within = \"0ms\"\n";
        std::fs::write(&scenario, calm).unwrap();
        let common =
            ["stampede", "run", "--url", &url, "--sale", &sale.id, "--scenario", &scenario, "--quiet"];
        let given = ["--tokens", &file, "--buyers", "5", "--admin-key", ADMIN_KEY];
        assert_exit(run(&[&common[..], &given[..]].concat()).await, CLEAN, &"with tokens");
        let orders = app.operate("GET", &format!("/admin/v1/orders?sale={}", sale.id), None, 200).await;
        let buyers: Vec<&str> = orders["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|order| order["buyer"].as_str().unwrap())
            .collect();
        assert!(buyers.len() == 5 && buyers.iter().all(|buyer| buyer.starts_with("member ")), "{buyers:?}");
        // Without the operator's key only what the buyers were told is judged.
        let demo = ["--demo-login", "--buyers", "4"];
        assert_exit(run(&[&common[..], &demo[..]].concat()).await, CLEAN, &"demo login");
        let many = ["--tokens", &file, "--buyers", "6"];
        assert_exit(run(&[&common[..], &many[..]].concat()).await, ExitCode::FAILURE, &"too few tokens");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sale_with_a_picture_is_rehearsed_without_it_and_that_is_said() {
        let app = TestApp::start().await;
        let mut draft = draft_between(3_600, 7_200, 5);
        draft["challenge"] = "picture".into();
        let sale = app.publish(draft).await;
        let crowd = Stampede::of(&app);
        let more = ["--buyers", "20", "--within", "500ms", "--open-in", "8s"];
        // A scenario that is not there leaves no copy behind.
        let code = crowd.ask("rehearse", &sale, &[&more[..], &["--scenario", "none such"]].concat()).await;
        assert_exit(code, ExitCode::FAILURE, &"no such scenario");
        let sales = app.operate("GET", "/admin/v1/sales", None, 200).await;
        assert_eq!(sales["items"].as_array().unwrap().len(), 1, "{sales}");
        let night = crowd.rehearse(&sale, &more).await;
        assert_eq!(night["summary"]["sold"], 5);
        assert!(night["notes"].to_string().contains("asks buyers to read a picture"), "{}", night["notes"]);
        let sales = app.operate("GET", "/admin/v1/sales", None, 200).await;
        let copy = sales["items"].as_array().unwrap().iter().find(|one| one["rehearsal"] == true).unwrap();
        assert_eq!((&copy["challenge"], &copy["state"]), (&json!("none"), &json!("ended")));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sale_that_wants_registration_is_rehearsed_by_people_who_sign_up_in_time() {
        let app = TestApp::start().await;
        let mut draft = draft_between(3_600, 7_200, 5);
        draft["registration"] = "required".into();
        let sale = app.publish(draft).await;
        let crowd = Stampede::of(&app);
        // The last try is due long after the opening, when nobody can sign up any more.
        let more = ["--buyers", "40", "--within", "4s", "--open-in", "8s"];
        let night = crowd.rehearse(&sale, &more).await;
        assert_eq!((&night["totals"]["passes"], &night["summary"]["sold"]), (&json!(40), &json!(5)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tokens_are_signed_for_the_issuer_and_the_audience_the_server_wants() {
        let app = TestApp::with(&["auth.issuer=https://shop.example", "auth.audience=drops"]).await;
        let sale = app.open_sale(3).await;
        let crowd = Stampede::of(&app);
        let scenario = crowd.file("calm.toml");
        std::fs::write(&scenario, "title = \"calm\"\n[arrival]\nloop = \"closed\"\n[[person]]\n").unwrap();
        let calm = ["--buyers", "5", "--scenario", &scenario];
        let code = crowd.ask("run", &sale, &calm).await;
        assert_exit(code, ExitCode::FAILURE, &"tokens of nobody");
        let half = [&calm[..], &["--issuer", "https://shop.example"]].concat();
        assert_exit(crowd.ask("run", &sale, &half).await, ExitCode::FAILURE, &"no audience");
        let whole = [&half[..], &["--audience", "drops"]].concat();
        assert_exit(crowd.ask("run", &sale, &whole).await, CLEAN, &"both");
        assert_eq!(crowd.json()["summary"]["sold"], 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_said_and_ends_with_code_1_or_2_where_the_usage_is_wrong() {
    let app = TestApp::start().await;
    let url = app.url("");
    let no_sale = rules::id::SaleId(7).to_string();
    let (failed, usage) = (|| ExitCode::FAILURE, || ExitCode::from(2));
    let of = |url: &str, more: &[&str]| {
        let common =
            ["stampede", "run", "--url", url, "--sale", &no_sale, "--buyers", "1", "--secret", AUTH_SECRET];
        [&common[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let cases = [
        (of(&url, &[]), failed()),
        (of("http://127.0.0.1:1", &[]), failed()),
        (of("https://127.0.0.1:1", &[]), failed()),
        (of(&url, &["--scenario", "no such night"]), failed()),
        (of(&url, &["--within", "soon"]), usage()),
        (of(&url, &["--tokens", "also.txt"]), usage()),
        (of(&url, &["--report", "/no/such/folder/night.html"]), failed()),
        (vec!["stampede".into(), "check".into(), "/no/such/night.jsonl".into()], failed()),
        (vec!["stampede".into(), "check".into(), "Cargo.toml".into()], failed()),
        (vec!["stampede".into()], usage()),
    ];
    for (case, wanted) in cases {
        let args: Vec<&str> = case.iter().map(String::as_str).collect();
        assert_exit(run(&args).await, wanted, &format!("{args:?}"));
    }
    let picture = app.publish({
        let mut draft = draft_between(60, 120, 1);
        draft["challenge"] = "picture".into();
        draft
    });
    let picture = picture.await;
    let crowd = Stampede::of(&app);
    assert_exit(crowd.ask("run", &picture, &["--buyers", "1"]).await, failed(), &"a picture");
    let paused = app.publish(draft_between(60, 120, 1)).await;
    app.operate("POST", &format!("/admin/v1/sales/{}/pause", paused.id), None, 200).await;
    assert_exit(crowd.ask("run", &paused, &["--buyers", "1"]).await, failed(), &"a paused sale");
}
